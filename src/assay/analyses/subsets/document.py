"""The document of subsets of one or more sizes: plain JSON, everything that a report shows."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets.baselines import BaselineRow
from assay.analyses.subsets.composition import ClassCorrelation, class_composition, class_correlations
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import clip_of, fit_line
from assay.analyses.subsets.members import SelectedExamples
from assay.analyses.subsets.model_curve import models_needed
from assay.analyses.subsets.placement import as_matrix
from assay.analyses.subsets.prevalence import LABEL, prevalence_shift
from assay.analyses.subsets.replication import (
    example_correlations,
    replicate_examples,
    replicate_halves,
)
from assay.analyses.subsets.splits import PARTS, ModelSplit
from assay.analyses.subsets.verdict import SubsetVerdict
from assay.core.errors import InputError
from assay.core.random import stream
from assay.core.record import plain


SHOWN = 48  # single examples on either side
THUMBNAIL = 64  # pixels of the longer side
FACTS = 6  # metadata columns beside a single example
STEPS = 60  # numbers of models at which the curve over models is computed, about
N_HALVES = 19  # permutations behind the overlap of halves
MOST_CLASSES = 100  # of a subset, beyond which R inside each is left out


def subset_document(
    header: Mapping[str, Any],
    headline: SelectedExamples,
    verdicts: Mapping[SelectedExamples, SubsetVerdict],
    baselines: Mapping[str, Sequence[BaselineRow]],
    *,
    n_halves: int | None = None,
) -> dict[str, Any]:
    """Everything a report shows of subsets of one or more sizes; details are those of the headline size.

    Args:
        header: What the document says beyond the subsets: kind, schema, identity, path, consistency, largest,
            provenance.
        headline: The subset that the page is about.
        verdicts: The subsets, ascending by size, with their verdicts.
        baselines: By kind, a row per size.
        n_halves: Permutations behind the overlap of halves; 0 leaves it out. Default: 19.

    Returns:
        Finite JSON; undefined numbers are null. What the data do not tell (labels, facts, images, families)
        is null or empty.

    Raises:
        InputError: For a selection that was loaded without data.
    """
    data, verdict = headline.require_data("a report"), verdicts[headline]
    rows = [_row(each, judged, baselines, row) for row, (each, judged) in enumerate(verdicts.items())]
    document: dict[str, Any] = plain(
        {
            **header,
            "size": headline.size,
            "level": headline.correlation["test"].level,
            "data": _data(data),
            "interval_units": headline.facts["interval_units"],
            "split": _split(headline.split, data),
            "settings": headline.settings.record(),
            "full": {name: on for name, on in headline.full.items() if name != "train"},
            "rows": rows,
            "verdict": verdict,
            "null": _null(verdict),
            "composition": _composition(data, headline, tuple(verdicts)),
            "prevalence": _prevalence(data, headline),
            "replication": _replication(headline),
            "halves": _halves(headline, n_halves),
            "models_needed": _models_needed(data, headline),
            **_models(data, headline),
            "examples": _examples(data, headline),
            "indices": headline.indices,
            "example_ids": headline.example_ids,
            "scores": headline.scores,
        }
    )
    return document


# ---------------------------------------------------------------------------------------------- one subset


def _data(data: CorrectnessData) -> dict[str, Any]:
    return {
        "n_models": data.n_models,
        "n_examples": data.n_examples,
        "n_groups": None if data.groups is None else len(set(data.groups)),
        "n_families": None if data.families is None else len(set(data.families)),
        "unit_kind": data.unit_kind,
        "labels": None if data.labels is None else _names(data, np.unique(data.labels)),
        "facts": sorted(data.meta),
        "quality": data.quality().to_dict(),
        "hash": data.hash,
        "source": dict(data.source),
    }


def _split(split: ModelSplit, data: CorrectnessData) -> dict[str, Any]:
    """The split with the units of its parts: training runs where known, as the verdict counts them."""
    kind = "group" if data.groups is not None else data.unit_kind
    units = data.unit_codes(kind)
    return {
        **split.to_dict(),
        "unit_kind": kind,
        "parts": {
            name: {"n_models": len(split.part(name)), "n_units": split.n_units(name, units)} for name in PARTS
        },
        "straddling": split.straddling(units),
    }


def _row(
    selection: SelectedExamples,
    verdict: SubsetVerdict,
    baselines: Mapping[str, Sequence[BaselineRow]],
    place: int,
) -> dict[str, Any]:
    """A size: the subset on the parts that did not choose it, and what other subsets of its size give."""
    judged = verdict.to_dict()
    return {
        "size": selection.size,
        "validation": selection.correlation["validation"].to_dict(),
        "test": selection.correlation["test"].to_dict(),
        # The permutations are the same for all sizes and are in the document once.
        "verdict": {name: value for name, value in judged.items() if name != "null"},
        **{kind: _baseline(rows[place]) for kind, rows in baselines.items() if kind != "all"},
    }


def _baseline(row: BaselineRow) -> dict[str, Any]:
    """A correlation with its interval; of random subsets the mean and the range of the draws."""
    # Of the correlation behind a baseline the ends are in the row already.
    return {name: value for name, value in row.to_dict().items() if name != "correlation"}


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


def _names(data: CorrectnessData, codes: Int64[np.ndarray, " k"]) -> list[str]:
    names = data.label_names
    return [str(code) if names is None else names[code] for code in codes.tolist()]


def _composition(
    data: CorrectnessData, headline: SelectedExamples, selections: Sequence[SelectedExamples]
) -> dict[str, Any] | None:
    """Class shares by size, and R inside each class of the headline subset."""
    if data.labels is None:
        return None
    pool = headline.pool
    found = class_composition(
        [np.searchsorted(pool, each.indices) for each in selections], data.labels[pool], data.label_names
    )
    inside: Sequence[ClassCorrelation] = ()
    if len(np.unique(data.labels[headline.indices])) <= MOST_CLASSES:
        inside = class_correlations(headline)
    return {
        "names": list(found.names),
        "pool": found.pool_shares,
        "rows": [
            {"size": size, "shares": shares}
            for size, shares in zip(found.sizes.tolist(), found.shares.tolist(), strict=True)
        ],
        "per_class": [
            {
                "label": each.name,
                "n": each.size,
                "r": each.correlation.r,
                "low": each.correlation.low,
                "high": each.correlation.high,
            }
            for each in inside
        ],
    }


def _prevalence(data: CorrectnessData, selection: SelectedExamples) -> dict[str, Any] | None:
    """Shares and means in the subset against the pool; None where nothing is known of the examples."""
    # Labels stand under a name of their own, so a column of that name gets another.
    facts = {name if name != LABEL else f"{LABEL} (fact)": column for name, column in data.meta.items()}
    if data.labels is None and not facts:
        return None
    return prevalence_shift(selection, facts, seed=selection.settings.seed).to_dict()


# ----------------------------------------------------------------------------------------- is it real


def _replication(selection: SelectedExamples) -> dict[str, Any]:
    """Correlations of single examples over the test models, as shares per bin, chosen and others apart."""
    found = replicate_examples(selection)
    n_others = len(selection.pool) - selection.size

    def side(
        n: int, counts: Int64[np.ndarray, " n_bins"], negative: float, discovered: float
    ) -> dict[str, Any]:
        # Shares of all, so that examples on which the models agree count too.
        return {"n": n, "shares": counts / max(1, n), "negative": negative, "discovered": discovered}

    return {
        "edges": found.edges,
        "level": found.level,
        "n_models": found.n_models,
        "degrees_of_freedom": found.degrees_of_freedom,
        "selected": side(selection.size, found.counts, found.share_negative, found.share_discovered),
        "pool": side(n_others, found.pool_counts, found.pool_share_negative, found.pool_share_discovered),
    }


def _halves(selection: SelectedExamples, n_permutations: int | None) -> dict[str, Any] | None:
    """Overlap of two selections by halves of the training units; the reason where these are too few."""
    n_permutations = N_HALVES if n_permutations is None else n_permutations
    if n_permutations == 0:
        return None
    try:
        found = replicate_halves(selection, n_permutations=n_permutations)
    except InputError as error:
        return {"overlap": None, "reason": str(error)}
    null = [each for each in found.null if not math.isnan(each)]
    return {
        "overlap": found.normalised,
        "null": null,
        "null_mean": float(np.mean(null)) if null else math.nan,
        "p_value": found.p_value,
        "n_models": found.n_models,
        "n_units": found.n_units,
        "kind": found.kind,
        "reason": None,
    }


def _models_needed(data: CorrectnessData, selection: SelectedExamples) -> dict[str, Any]:
    """R on all examples over growing numbers of models, in random orders."""
    found = models_needed(
        data.id_accuracy,
        data.accuracy(),
        groups=data.groups,
        step=max(10, math.ceil(data.n_models / STEPS / 10) * 10),
        seed=selection.settings.seed,
        eps=selection.settings.eps,
    )
    record = found.to_dict()
    kept = ("k", "n_used", "curves", "mean", "median", "range", "n_never", "tol", "unit", "n_units", "seed")
    return {name: record[name] for name in kept} | {"n_models": found.n_models}


def _models(data: CorrectnessData, selection: SelectedExamples) -> dict[str, Any]:
    """Accuracies of every model on all, the chosen and the other examples, and lines over the test models."""
    chosen, everything = selection.accuracies(), data.accuracy()
    rest: Float64[np.ndarray, " m"] | None = None
    others = np.setdiff1d(selection.pool, selection.indices)
    if len(others):
        rest = data.accuracy_on(others, np.arange(data.n_models))
    part = np.full(data.n_models, "unused", dtype=object)
    for name in PARTS:
        part[selection.split.part(name)] = name
    sides = {"all": everything, "selected": chosen, "rest": rest}
    test = selection.split.test
    y = data.id_accuracy[test]
    eps = selection.settings.eps
    clips = {"selected": clip_of(selection.settings.clip, selection.size, eps)}
    return {
        "models": {
            "id": list(data.model_ids),
            "part": part.tolist(),
            "group": None if data.groups is None else list(data.groups),
            "family": None if data.families is None else list(data.families),
            "id_accuracy": data.id_accuracy,
            **sides,
        },
        "lines": {
            name: None
            if values is None
            else fit_line(y, values[test], eps=clips.get(name, eps), id_eps=eps).to_dict()
            for name, values in sides.items()
        },
    }


# ------------------------------------------------------------------------------------------ single examples


def _examples(data: CorrectnessData, selection: SelectedExamples) -> dict[str, list[dict[str, Any]]]:
    """The most harmful chosen examples and as many others at random, with pictures where there are any."""
    outside = np.setdiff1d(selection.pool, selection.indices)
    rng = stream(selection.settings.seed, "examples of a report")
    others = np.sort(rng.choice(outside, min(SHOWN, len(outside)), replace=False)).astype(np.int64)
    return {
        "selected": _described(data, selection, selection.indices[:SHOWN]),
        "others": _described(data, selection, others),
    }


def _described(
    data: CorrectnessData, selection: SelectedExamples, places: Int64[np.ndarray, " k"]
) -> list[dict[str, Any]]:
    if not len(places):
        return []
    test = selection.split.test
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
            "right": float(right[row]),
            "r": float(r[row]),
            "image": None if data.images is None else thumbnail(data.images[index]),
        }
        for row, index in enumerate(places.tolist())
    ]


def _fact(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def thumbnail(image: np.ndarray) -> str:
    """A picture as a PNG data URI, no side longer than 64 pixels.

    Args:
        image: uint8, `[H, W]`, `[H, W, 1]` or `[H, W, 3]`.
    """
    from PIL import Image

    pixels = image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
