"""What a page shows of a subset beyond its own record: data, classes, facts, models and single examples."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.subsets.coherence import (
    class_correlations,
    class_names,
    class_notice,
    class_shares,
    example_correlations,
    facts_of,
    models_needed,
    prevalence_shift,
    replicate_examples,
    selection_consistency,
)
from assay.analyses.subsets.data import reliability
from assay.analyses.subsets.line import LEVEL, Places, fit_line
from assay.analyses.subsets.splits import PARTS
from assay.core.random import stream
from assay.core.record import plain
from assay.page.thumbnail import thumbnail


if TYPE_CHECKING:
    import pandas as pd

    from assay.analyses.subsets.selection import Subset

SHOWN = 48  # single examples on either side
FACTS = 6  # facts beside a single example
MOST_CLASSES = 100  # of a subset, beyond which R inside each is left out


def contents_of(subset: "Subset", sizes: "Sequence[Subset]") -> dict[str, Any]:
    """Everything a page shows of a subset that its record does not hold.

    Args:
        subset: With its data.
        sizes: The subsets of all sizes, for overlap and class shares over sizes.

    Returns:
        Finite JSON. What the data do not tell (labels, facts, images) is null or empty.

    Raises:
        InputError: For a subset that was loaded without data.
    """
    data, pool = subset.require_data("a page"), subset.pool
    sets = [np.searchsorted(pool, each.indices) for each in sizes]
    overlap = selection_consistency(sets, len(pool)) if len(sets) > 1 else None
    facts: dict[str, Any] = plain(
        {
            "data": {
                "n_models": data.n_models,
                "n_examples": data.n_examples,
                "unit_kind": data.unit_kind,
                "reliability": reliability(data.id_accuracy, data.n_id),
            },
            "description": {name: each for name, each in data.describe().dropna().items() if each != ""},
            "split": _split(subset),
            "consistency": None if overlap is None else overlap.to_numpy(),
            "classes": None if data.labels is None else _classes(subset, sets),
            "prevalence": None if facts_of(subset).empty else _rows(prevalence_shift(subset)),
            "replication": _replication(subset),
            "models_needed": _models_needed(subset),
            "models": _models(subset),
            "lines": _lines(subset),
            "examples": _examples(subset),
        }
    )
    return facts


def _rows(table: "pd.DataFrame") -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _split(subset: "Subset") -> dict[str, Any]:
    """The split with the units of its parts: training runs where known, as the verdict counts them."""
    data, split = subset.require_data("a page"), subset.split
    kind = "group" if data.groups is not None else data.unit_kind
    units = data.units(kind)
    parts = {
        name: {"n_models": len(split.part(name)), "n_units": len(np.unique(units[split.part(name)]))}
        for name in PARTS
    }
    return {"unit_kind": kind, "parts": parts, "straddling": split.straddling(units)}


def _classes(subset: "Subset", sets: Sequence[Places]) -> dict[str, Any]:
    """Class shares by size, and R inside each class of the subset."""
    shares = class_shares(sets, class_names(subset)[subset.pool])
    few = len(np.unique(class_names(subset)[subset.indices])) <= MOST_CLASSES
    return {
        "notice": class_notice(shares, subset.size),
        "shares": _rows(shares[[subset.size, "pool"]].set_axis(["chosen", "pool"], axis=1).reset_index()),
        "inside": _rows(class_correlations(subset)) if few else [],
    }


def _replication(subset: "Subset") -> dict[str, Any]:
    """Correlations of single examples over the test models as shares per bin, chosen and others apart."""
    table, edges = replicate_examples(subset), np.linspace(-1.0, 1.0, 41)
    sides: dict[str, Any] = {"edges": edges}
    for name, rows in (("chosen", table[table["chosen"]]), ("others", table[~table["chosen"]])):
        r = rows["r"].dropna()
        sides[name] = {
            "n": len(rows),
            "shares": np.histogram(r, edges)[0] / max(1, len(rows)),  # of all, constant examples included
            "negative": float((r < 0).mean()) if len(r) else math.nan,
            "discovered": (rows["q_value"] <= LEVEL).mean() if rows["q_value"].notna().any() else math.nan,
        }
    return sides


def _models_needed(subset: "Subset") -> dict[str, Any]:
    """R on all examples over growing numbers of models, in random orders, at the step of Figure 7."""
    data = subset.require_data("a page")
    units = data.units("model" if data.groups is None else "group")
    apart = data.groups is None and len(np.unique(units)) == data.n_models
    curve = models_needed(
        data.id_accuracy, data.accuracy(), groups=None if apart else units, seed=subset.settings.seed
    )
    return curve.to_dict()


def _models(subset: "Subset") -> list[dict[str, Any]]:
    """Accuracies of every model in distribution, on all examples and on the chosen ones."""
    data = subset.require_data("a page")
    part = np.full(data.n_models, "unused", dtype=object)
    for name in PARTS:
        part[subset.split.part(name)] = name
    columns = {
        "model": data.model_ids,
        "part": part,
        "id_accuracy": data.id_accuracy,
        "all": data.accuracy(),
        "chosen": data.accuracy(subset.indices),
    }
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*(each.tolist() for each in columns.values()), strict=True)
    ]


def _lines(subset: "Subset") -> dict[str, Any]:
    """Least-squares lines of the test models on all and on the chosen examples."""
    data, test = subset.require_data("a page"), subset.split.test
    sides = {"all": data.accuracy(), "chosen": data.accuracy(subset.indices)}
    return {name: fit_line(data.id_accuracy[test], values[test]) for name, values in sides.items()}


def _examples(subset: "Subset") -> dict[str, list[dict[str, Any]]]:
    """The most harmful chosen examples and as many others at random, with pictures where there are any."""
    outside = np.setdiff1d(subset.pool, subset.indices)
    rng = stream(subset.settings.seed, "examples of a report")
    others = np.sort(rng.choice(outside, min(SHOWN, len(outside)), replace=False)).astype(np.int64)
    return {"chosen": _described(subset, subset.indices[:SHOWN]), "others": _described(subset, others)}


def _described(subset: "Subset", places: Places) -> list[dict[str, Any]]:
    data, test = subset.require_data("a page"), subset.split.test
    answers = data.correct[test][:, places]
    r, right = example_correlations(answers, data.id_accuracy[test]), answers.mean(axis=0, dtype=np.float64)
    labels = None if data.labels is None else class_names(subset)[places]
    facts = data.meta.iloc[places, :FACTS]
    return [
        {
            "index": index,
            "id": str(data.example_ids[index]),
            "label": None if labels is None else str(labels[row]),
            "facts": {str(name): _fact(facts[name].iloc[row]) for name in facts},
            "right": right[row],
            "r": r[row],
            "image": None if data.images is None else thumbnail(data.images[index]),
        }
        for row, index in enumerate(places.tolist())
    ]


def _fact(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
