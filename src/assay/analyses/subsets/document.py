"""The document of subsets of one or more sizes: plain JSON, everything that a report shows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assay.analyses.subsets._arrays import Places
from assay.analyses.subsets.baselines import BaselineRow
from assay.analyses.subsets.composition import class_composition, class_correlations
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.holdout import example_holdout
from assay.analyses.subsets.line import clip_of, fit_line
from assay.analyses.subsets.members import SelectedExamples
from assay.analyses.subsets.model_curve import models_needed
from assay.analyses.subsets.ngrams import ngram_shift
from assay.analyses.subsets.placement import as_matrix
from assay.analyses.subsets.prevalence import LABEL, prevalence_shift
from assay.analyses.subsets.problem import Shelf, computed
from assay.analyses.subsets.replication import example_correlations, replicate_examples, replicate_halves
from assay.analyses.subsets.splits import PARTS, ModelSplit
from assay.analyses.subsets.verdict import SubsetVerdict
from assay.core.errors import FreeMemoryError, InputError
from assay.core.random import stream
from assay.core.record import Record, plain
from assay.page.thumbnail import thumbnail


SHOWN = 48  # single examples on either side
FACTS = 6  # metadata columns beside a single example
N_HALVES = 19  # permutations behind the overlap of halves
MOST_CLASSES = 100  # of a subset, beyond which R inside each is left out


def subset_document(
    header: Mapping[str, Any],
    headline: SelectedExamples,
    verdicts: Mapping[SelectedExamples, SubsetVerdict],
    baselines: Mapping[str, Sequence[BaselineRow]],
    *,
    n_halves: int | None = None,
    workers: int | None = None,
    shelf: Shelf = computed,
) -> dict[str, Any]:
    """Everything a report shows of subsets of one or more sizes; details are those of the headline size.

    Args:
        header: What the document says beyond the subsets: kind, schema, identity, path, consistency, largest,
            provenance.
        headline: The subset that the page is about.
        verdicts: The subsets, ascending by size, with their verdicts.
        baselines: By kind, a row per size.
        n_halves: Permutations behind the overlap of halves; 0 leaves out that and the hold-out of examples.
            Default: 19.
        workers: As of `replicate_halves`.
        shelf: As of `replicate_halves`.

    Returns:
        Finite JSON; undefined numbers are null. What the data do not tell (labels, facts, images, families)
        is null or empty.

    Raises:
        InputError: For a selection that was loaded without data.
    """
    data, verdict = headline.require_data("a report"), verdicts[headline]
    document: dict[str, Any] = plain(
        {
            **header,
            "size": headline.size,
            "level": headline.correlation["test"].level,
            "data": _data(data),
            "interval_units": headline.facts["interval_units"],
            "split": _split(headline.split, data),
            "settings": headline.settings.record(),
            "full": {part: headline.full[part] for part in ("validation", "test")},
            "rows": [
                _row(each, judged, {kind: rows[place] for kind, rows in baselines.items() if kind != "all"})
                for place, (each, judged) in enumerate(verdicts.items())
            ],
            "verdict": verdict,
            "null": _null(verdict),
            "composition": _composition(headline, tuple(verdicts)),
            "prevalence": _prevalence(headline),
            "ngrams": _ngrams(headline),
            "replication": _replication(headline),
            "halves": _halves(headline, N_HALVES if n_halves is None else n_halves, workers, shelf),
            "holdout": _holdout(headline, tested=n_halves != 0),
            "models_needed": _models_needed(headline),
            **_models(headline),
            "examples": _examples(headline),
            **{name: getattr(headline, name) for name in ("indices", "example_ids", "scores")},
        }
    )
    return document


# ---------------------------------------------------------------------------------------------- one subset


def _data(data: CorrectnessData) -> dict[str, Any]:
    quality = data.quality().to_dict()
    shared = ("n_models", "n_examples", "n_groups", "n_families")
    return {
        **{name: quality[name] for name in shared},
        "unit_kind": data.unit_kind,
        "labels": None if data.labels is None else _names(data, np.unique(data.labels)),
        "facts": sorted(data.meta),
        "quality": quality,
        "hash": data.hash,
        "source": dict(data.source),
    }


def _split(split: ModelSplit, data: CorrectnessData) -> dict[str, Any]:
    """The split with the units of its parts: training runs where known, as the verdict counts them."""
    kind = data.kind_of_units(by_family=False)
    units = data.unit_codes(kind)
    parts = {
        name: {"n_models": len(split.part(name)), "n_units": split.n_units(name, units)} for name in PARTS
    }
    return {**split.to_dict(), "unit_kind": kind, "parts": parts, "straddling": split.straddling(units)}


def _row(
    selection: SelectedExamples, verdict: SubsetVerdict, baselines: Mapping[str, BaselineRow]
) -> dict[str, Any]:
    """A size: the subset on the parts that did not choose it, and what other subsets of its size give."""
    return {
        "size": selection.size,
        "validation": selection.correlation["validation"],
        "test": selection.correlation["test"],
        # The permutations are the same for all sizes and are in the document once.
        "verdict": _without("null", verdict),
        # Of the correlation behind a baseline the ends are in the row already.
        **{kind: _without("correlation", row) for kind, row in baselines.items()},
    }


def _without(name: str, record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.to_dict().items() if key != name}


def _null(verdict: SubsetVerdict) -> dict[str, Any] | None:
    """Lowest cross-fitted R over the sizes under permuted accuracies, and the observed one."""
    if not verdict.null:
        return None
    return {
        "values": list(verdict.null),
        "observed": verdict.r,
        "p_value": verdict.p_value,
        "n": verdict.n_permutations,
        "n_sizes": len(verdict.sizes),
        "kind": verdict.kind,
    }


# ------------------------------------------------------------------------------------------- what is in it


def _names(data: CorrectnessData, codes: Places) -> list[str]:
    names = data.label_names
    return [str(code) if names is None else names[code] for code in codes.tolist()]


def _composition(headline: SelectedExamples, selections: Sequence[SelectedExamples]) -> dict[str, Any] | None:
    """Class shares by size, and R inside each class of the headline subset."""
    data, pool = headline.problem.data, headline.pool
    if data.labels is None:
        return None
    sets = [np.searchsorted(pool, each.indices) for each in selections]
    mix = class_composition(sets, data.labels[pool], data.label_names)
    few = len(np.unique(data.labels[headline.indices])) <= MOST_CLASSES
    return {
        "names": mix.names,
        "pool": mix.pool_shares,
        "rows": [
            {"size": size, "shares": shares} for size, shares in zip(mix.sizes, mix.shares, strict=True)
        ],
        "per_class": [
            {
                "label": each.name,
                "n": each.size,
                **{end: getattr(each.correlation, end) for end in ("r", "low", "high")},
            }
            for each in (class_correlations(headline) if few else ())
        ],
    }


def _prevalence(selection: SelectedExamples) -> dict[str, Any] | None:
    """Shares and means in the subset against the pool; None where nothing is known of the examples."""
    data = selection.problem.data
    # Labels stand under a name of their own, so a column of that name gets another.
    facts = {
        name if name != LABEL else f"{LABEL} (fact)": column
        for name, column in data.meta.items()
        if name != data.source.get("text")
    }
    if data.labels is None and not facts:
        return None
    return prevalence_shift(selection, facts, seed=selection.settings.seed).to_dict()


def _ngrams(selection: SelectedExamples) -> dict[str, Any] | None:
    """Words and phrases of texts in the subset against the pool; the reason where there are none."""
    text = selection.problem.data.source.get("text")
    if text is None:
        return None
    try:
        return ngram_shift(selection, text, seed=selection.settings.seed).to_dict()
    except InputError as error:
        return {"rows": [], "reason": str(error)}


# ----------------------------------------------------------------------------------------- is it real


def _replication(selection: SelectedExamples) -> dict[str, Any]:
    """Correlations of single examples over the test models, as shares per bin, chosen and others apart."""
    test = replicate_examples(selection)
    sides = {}
    for side, prefix, n in (
        ("selected", "", selection.size),
        ("pool", "pool_", len(selection.pool) - selection.size),
    ):
        sides[side] = {
            "n": n,
            "shares": getattr(test, f"{prefix}counts") / max(1, n),  # of all, constant examples included
            "negative": getattr(test, f"{prefix}share_negative"),
            "discovered": getattr(test, f"{prefix}share_discovered"),
        }
    shared = ("edges", "level", "n_models", "degrees_of_freedom")
    return {name: getattr(test, name) for name in shared} | sides


def _halves(
    selection: SelectedExamples, n_permutations: int, workers: int | None, shelf: Shelf
) -> dict[str, Any] | None:
    """Overlap of two selections by halves of the training units; the reason where these are too few."""
    if n_permutations == 0:
        return None
    try:
        halves = replicate_halves(selection, n_permutations=n_permutations, workers=workers, shelf=shelf)
    except FreeMemoryError:
        raise  # of the machine, not of the models: another time there is enough
    except InputError as error:
        return {"overlap": None, "reason": str(error)}
    null = [each for each in halves.null if not math.isnan(each)]
    return {
        "overlap": halves.normalised,
        "null": null,
        "null_mean": float(np.mean(null)) if null else math.nan,
        **{name: getattr(halves, name) for name in ("p_value", "n_models", "n_units", "kind")},
        "reason": None,
    }


def _holdout(selection: SelectedExamples, *, tested: bool) -> dict[str, Any] | None:
    """New examples that a rule on the embedding picks; the reason where there are none."""
    data = selection.problem.data
    if data.embedding is None:
        return None
    if not tested:
        return {"correlation": None, "reason": "no tests were asked for"}
    try:
        found = example_holdout(selection, "embedding").to_dict()
    except InputError as error:
        return {"correlation": None, "reason": str(error)}
    del found["predicted"]
    return found | {"encoder": data.source.get("encoder"), "reason": None}


def _models_needed(selection: SelectedExamples) -> dict[str, Any]:
    """R on all examples over growing numbers of models, in random orders, at the step of Figure 7."""
    data = selection.problem.data
    units = data.unit_codes("model" if data.groups is None else "group")
    apart = data.groups is None and len(np.unique(units)) == data.n_models
    curve = models_needed(
        data.id_accuracy,
        data.accuracy(),
        groups=None if apart else units,
        seed=selection.settings.seed,
        eps=selection.settings.eps,
    )
    left_out = ("relative_change", "first", "stable")
    return {name: value for name, value in curve.to_dict().items() if name not in left_out}


def _models(selection: SelectedExamples) -> dict[str, Any]:
    """Accuracies of every model on all, the chosen and the other examples, and lines over the test models."""
    data, test, eps = selection.problem.data, selection.split.test, selection.settings.eps
    others = np.setdiff1d(selection.pool, selection.indices)
    sides = {
        "all": data.accuracy(),
        "selected": selection.accuracies(),
        "rest": data.accuracy_on(others) if len(others) else None,
    }
    part = np.full(data.n_models, "unused", dtype=object)
    for name in PARTS:
        part[selection.split.part(name)] = name
    clips = {"selected": clip_of(selection.settings.clip, selection.size, eps)}
    return {
        "models": {
            "id": data.model_ids,
            "part": part,
            "group": data.groups,
            "family": data.families,
            "id_accuracy": data.id_accuracy,
            **sides,
        },
        "lines": {
            name: None
            if values is None
            else fit_line(data.id_accuracy[test], values[test], eps=clips.get(name, eps), id_eps=eps)
            for name, values in sides.items()
        },
    }


# ------------------------------------------------------------------------------------------ single examples


def _examples(selection: SelectedExamples) -> dict[str, list[dict[str, Any]]]:
    """The most harmful chosen examples and as many others at random, with pictures where there are any."""
    outside = np.setdiff1d(selection.pool, selection.indices)
    rng = stream(selection.settings.seed, "examples of a report")
    others = np.sort(rng.choice(outside, min(SHOWN, len(outside)), replace=False)).astype(np.int64)
    return {
        "selected": _described(selection, selection.indices[:SHOWN]),
        "others": _described(selection, others),
    }


def _described(selection: SelectedExamples, places: Places) -> list[dict[str, Any]]:
    data, test = selection.problem.data, selection.split.test
    if not len(places):
        return []
    matrix = as_matrix(data.columns(places), test)
    right = matrix.column_sums() / matrix.n_models
    r = example_correlations(matrix, data.id_accuracy[test], eps=selection.settings.eps)
    labels = [None] * len(places) if data.labels is None else _names(data, data.labels[places])
    facts = sorted(data.meta)[:FACTS]
    return [
        {
            "index": index,
            "id": str(data.example_ids[index]),
            "label": labels[row],
            "meta": {name: _fact(data.meta[name][index]) for name in facts},
            "right": right[row],
            "r": r[row],
            "image": None if data.images is None else thumbnail(data.images[index]),
        }
        for row, index in enumerate(places.tolist())
    ]


def _fact(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
