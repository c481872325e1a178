"""The metrics by which models are ranked: depth biases, and the baselines they are compared with."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from assay.analyses.generalization import baselines
from assay.analyses.generalization.dependency import Matrices, depth_biases, layer_sums
from assay.analyses.generalization.predictor import (
    PREDICTORS,
    SHARE,
    MetricEstimate,
    MetricEvidence,
    Predictor,
    estimate_of,
    group_shifts,
    known_of,
    performance,
    predictor,
    pulls_of,
    weights_of,
)
from assay.analyses.generalization.spectra import image_groups
from assay.core.errors import InputError
from assay.core.random import stream


COT_LIMIT = 200_000  # unknowns of the linear programme that is solved without being asked for by name

# ----------------------------------------------------------------------------------------- circuits


def _ddb(evidence: MetricEvidence, matrices: Matrices, targets: str) -> MetricEstimate:
    """Of the dependency matrix of all images, then of each resample."""
    value, *draws = depth_biases(matrices, targets, evidence.rule.layers(evidence.target.graph.n_layers))
    reason = None
    if math.isnan(value):
        reason = "depth bias is undefined: all scores of edges from deep or shallow layers are 0"
    return MetricEstimate(value=float(value), draws=np.array(draws), reason=reason)


@predictor("ddb-output", "DDB output", "depth bias of the edges into the logits", needs="output-scores")
def _ddb_output(evidence: MetricEvidence) -> MetricEstimate:
    target = evidence.target
    assert target.output_scores is not None
    assert target.output_draws is not None
    rows = np.abs(np.concatenate([target.output_scores[None], target.output_draws]))
    return _ddb(evidence, layer_sums(target.graph, rows), "output")


def _ddb_of_matrix(evidence: MetricEvidence, targets: str) -> MetricEstimate:
    target = evidence.target
    assert target.dependency is not None
    assert target.dependency_draws is not None
    return _ddb(evidence, np.concatenate([target.dependency[None], target.dependency_draws]), targets)


@predictor("ddb-deep", "DDB deep", "depth bias of the edges into deep layers and logits", needs="edge-scores")
def _ddb_deep(evidence: MetricEvidence) -> MetricEstimate:
    return _ddb_of_matrix(evidence, "deep")


@predictor("ddb-global", "DDB global", "depth bias of all edges", needs="edge-scores")
def _ddb_global(evidence: MetricEvidence) -> MetricEstimate:
    return _ddb_of_matrix(evidence, "global")


# ------------------------------------------------------------------------------------- in-distribution


@predictor(
    "id-accuracy",
    "ID accuracy",
    "performance on the models' own domain",
    needs="known",
    reads_target=False,
    bounds=SHARE,
)
def _id_accuracy(evidence: MetricEvidence) -> MetricEstimate:
    known, counts = known_of(evidence)
    assert known.labels is not None
    return performance(known, known.labels, counts, evidence.measure)


@predictor(
    "sharpness",
    "Sharpness",
    "rise of the loss when every weight changes a little",
    direction=-1,
    needs="known sharpness",
    resampled="batches",
    reads_target=False,
)
def _sharpness(evidence: MetricEvidence) -> MetricEstimate:
    known, _ = known_of(evidence)
    assert known.sharpness is not None
    batches = known.sharpness
    if len(batches) < 2:
        return MetricEstimate(
            value=float(batches.mean()),
            reason="one batch has no interval; give more images or smaller batches",
        )
    draws = stream(evidence.seed, "rank/batches").integers(
        0, len(batches), (len(evidence.counts), len(batches))
    )
    return MetricEstimate(value=float(batches.mean()), draws=batches[draws].mean(1), n=len(batches))


# ------------------------------------------------------------------------------------ outputs alone


@predictor("average-confidence", "AC", "mean largest probability", bounds=SHARE)
def _confidence(evidence: MetricEvidence) -> MetricEstimate:
    return estimate_of(baselines.mean_of(evidence.target.confidence, weights_of(evidence.counts)))


@predictor("negative-entropy", "ANE", "mean of sum p log p", bounds=(-math.inf, 0.0))
def _negative_entropy(evidence: MetricEvidence) -> MetricEstimate:
    return estimate_of(baselines.mean_of(evidence.target.negative_entropy, weights_of(evidence.counts)))


@predictor("energy", "MDE", "spread of the energies of the images", direction=0)
def _energy(evidence: MetricEvidence) -> MetricEstimate:
    return estimate_of(baselines.spread_of_energies(evidence.target.energies, weights_of(evidence.counts)))


@predictor(
    "rankme",
    "RankMe",
    "effective rank of the features",
    needs="features",
    resampled="groups",
    bounds=(1.0, math.inf),
)
def _rankme(evidence: MetricEvidence) -> MetricEstimate:
    assert evidence.target.spectra is not None
    return _of_spectra(
        evidence, [baselines.effective_rank(each) for each in _sizes(evidence.target.spectra.raw)]
    )


@predictor(
    "alpha-req",
    "alpha-ReQ",
    "decay of the spectrum of the features; closest to 1 is best",
    direction=0,
    best_at=1.0,
    needs="features",
    resampled="groups",
)
def _alpha_req(evidence: MetricEvidence) -> MetricEstimate:
    target = evidence.target
    assert target.spectra is not None
    left_out = [0, *(len(group) for group in image_groups(target.n, evidence.seed))]
    width = target.spectra.raw.shape[1]
    spectra = zip(_sizes(target.spectra.centred), left_out, strict=True)
    return _of_spectra(
        evidence, [baselines.spectral_decay(each, (target.n - n_out, width)) for each, n_out in spectra]
    )


def _sizes(spectra: Float64[np.ndarray, "sets d"]) -> list[Float64[np.ndarray, " k"]]:
    """The singular values of each set of images."""
    return [row[np.isfinite(row)] for row in spectra]


def _of_spectra(evidence: MetricEvidence, values: Sequence[float]) -> MetricEstimate:
    """From the metric on all images and without each group of them.

    Resampled features repeat rows, which alone lowers their rank: groups are left out instead.
    """
    pulls = pulls_of(np.array(values[1:]))
    return MetricEstimate(
        value=values[0], draws=values[0] + pulls @ group_shifts(evidence.counts, evidence.seed)
    )


# ------------------------------------------------------------------------------ estimates of accuracy


@predictor(
    "atc",
    "ATC",
    "share of images above a confidence threshold learned in-distribution",
    needs="known",
    bounds=SHARE,
)
def _atc(evidence: MetricEvidence) -> MetricEstimate:
    known, known_counts = known_of(evidence)
    assert known.labels is not None
    v, w = weights_of(known_counts), weights_of(evidence.counts)
    correct = known.predictions == known.labels
    return estimate_of(baselines.passing(known.confidence, correct, evidence.target.confidence, v, w))


@predictor(
    "doc", "DoC", "in-distribution accuracy minus the drop of mean confidence", needs="known", bounds=SHARE
)
def _doc(evidence: MetricEvidence) -> MetricEstimate:
    known, known_counts = known_of(evidence)
    assert known.labels is not None
    v, w = weights_of(known_counts), weights_of(evidence.counts)
    correct = baselines.mean_of((known.predictions == known.labels).astype(np.float64), v)
    drop = baselines.mean_of(known.confidence, v) - baselines.mean_of(evidence.target.confidence, w)
    return estimate_of(np.clip(correct - drop, 0.0, 1.0))


def affordable_transport(n: int, n_classes: int) -> bool:
    """Whether COT of so many images and classes is computed without being asked for by name."""
    return n * n_classes <= COT_LIMIT


@predictor(
    "cot", "COT", "cost of matching the predictions to known label shares", needs="known logits", bounds=SHARE
)
def _cot(evidence: MetricEvidence) -> MetricEstimate:
    known, known_counts = known_of(evidence)
    labels, target = known.labels, evidence.target
    assert labels is not None
    if "cot" not in evidence.asked and not affordable_transport(target.n, target.n_classes):
        raise InputError(
            f"its linear programme would have {target.n * target.n_classes:,} unknowns; name the metric to "
            "compute it anyway, or give fewer images"
        )
    if target.logits is None:
        raise InputError("the models were inspected without logits")
    match = baselines.matched(labels, target.logits)
    of_known = baselines.mean_of(match.of_classes[labels], known_counts)
    draws = baselines.mean_of(match.of_examples, evidence.counts) + of_known
    return MetricEstimate(value=float(np.clip(match.gain, 0.0, 1.0)), draws=np.clip(draws, 0.0, 1.0))


def _agreement(everyone: Sequence[MetricEvidence]) -> list[MetricEstimate]:
    """A line through the agreements of all pairs of models."""
    known = [each.known for each in everyone]
    counts, known_counts = everyone[0].counts, everyone[0].known_counts
    assert known_counts is not None  # `needs` was checked
    before = np.stack([each.predictions for each in known if each is not None])
    after = np.stack([each.target.predictions for each in everyone])
    labels = known[0].labels if known[0] is not None else None
    assert labels is not None

    try:
        rows = baselines.agreement_line(before, labels, after, weights_of(known_counts), weights_of(counts))
    except InputError as error:
        return [MetricEstimate(value=math.nan, reason=str(error)) for _ in everyone]
    if np.isnan(rows[0]).all():
        reason = "every pair of models agrees equally often; give models that differ"
        return [MetricEstimate(value=math.nan, reason=reason) for _ in everyone]
    return [estimate_of(column, after.shape[1]) for column in rows.T]


PREDICTORS.add(
    "agreement-line",
    Predictor(
        key="agreement-line",
        name="ALine-D",
        summary="accuracy read off the line of the models' agreements",
        direction=1,
        needs=frozenset({"known"}),
        of=_agreement,
        together=True,
        bounds=SHARE,
    ),
)

# In the order of tables: circuits, then what needs labels of the own domain, then outputs alone.
ORDER = (
    "ddb-output",
    "ddb-deep",
    "ddb-global",
    "id-accuracy",
    "sharpness",
    "average-confidence",
    "negative-entropy",
    "energy",
    "rankme",
    "alpha-req",
    "atc",
    "doc",
    "cot",
    "agreement-line",
)
# Sharpness takes 61 passes per image, 20 of them backward, so it runs only where it is asked for by name.
DEFAULT_METRICS = tuple(key for key in ORDER if key != "sharpness")
FAST_METRICS = tuple(key for key in DEFAULT_METRICS if key not in ("ddb-deep", "ddb-global"))
