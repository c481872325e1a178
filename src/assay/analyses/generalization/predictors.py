"""The metrics by which models are ranked: depth biases, and the baselines they are compared with."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64, Int64

from assay.analyses.generalization import baselines
from assay.analyses.generalization.depth_bias import dependency_depth_bias, depth_biases, output_depth_bias
from assay.analyses.generalization.predictor import (
    PREDICTORS,
    SHARE,
    MetricEstimate,
    MetricEvidence,
    Predictor,
    group_shifts,
    known_of,
    mean_of,
    performance,
    predictor,
    pulls_of,
    relative,
    weighted_means,
)
from assay.analyses.generalization.resampled import matrices
from assay.analyses.generalization.spectra import image_groups
from assay.core.errors import InputError
from assay.core.random import stream


COT_LIMIT = 200_000  # unknowns of the linear programme that is solved without being asked for by name

# ----------------------------------------------------------------------------------------- circuits


@predictor("ddb-output", "DDB output", "depth bias of the edges into the logits", needs="output-scores")
def _ddb_output(evidence: MetricEvidence) -> MetricEstimate:
    target = evidence.target
    assert target.output_scores is not None
    assert target.output_draws is not None
    value = output_depth_bias(
        target.graph,
        torch.from_numpy(target.output_scores),
        ratio=evidence.rule.ratio,
        **evidence.rule.options,
    )
    drawn = matrices(target.graph, target.output_draws.astype(np.float64))
    layers = evidence.rule.layers(target.graph.n_layers)
    return MetricEstimate(value=value, draws=depth_biases(drawn, "output", layers))


def _ddb_of_matrix(evidence: MetricEvidence, targets: str) -> MetricEstimate:
    target = evidence.target
    assert target.dependency is not None
    assert target.dependency_draws is not None
    layers = evidence.rule.layers(target.graph.n_layers)
    return MetricEstimate(
        value=dependency_depth_bias(
            torch.from_numpy(target.dependency),
            targets=targets,
            ratio=evidence.rule.ratio,
            **evidence.rule.options,
        ),
        draws=depth_biases(target.dependency_draws.astype(np.float64), targets, layers),
    )


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
    return mean_of(evidence.target.confidence, evidence.counts)


@predictor("negative-entropy", "ANE", "mean of sum p log p", bounds=(-math.inf, 0.0))
def _negative_entropy(evidence: MetricEvidence) -> MetricEstimate:
    return mean_of(evidence.target.negative_entropy, evidence.counts)


@predictor("energy", "MDE", "spread of the energies of the images", direction=0)
def _energy(evidence: MetricEvidence) -> MetricEstimate:
    energies = evidence.target.energies
    counts, n = relative(evidence.counts), len(energies)
    top = energies.max()
    inner = np.log(counts @ np.exp(energies - top)) + top - counts @ energies / n
    with np.errstate(divide="ignore", invalid="ignore"):  # equal energies have no logarithm
        draws = np.where(inner > 1e-15, np.log(inner), np.nan)
    return MetricEstimate(value=baselines.spread_of_energies(energies), draws=draws)


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
    before, scores = known.confidence, evidence.target.confidence
    threshold = baselines.atc_threshold(before, known.predictions == known.labels)
    order = np.argsort(before, kind="stable")
    wrong = known_counts @ (known.predictions != known.labels).astype(np.float64)
    passed = np.cumsum(known_counts[:, order], axis=1)
    place = (passed < wrong[:, None]).sum(1)
    thresholds = np.where(wrong > 0, before[order][np.minimum(place, len(before) - 1)], -np.inf)
    ranked = np.argsort(scores, kind="stable")
    below = np.searchsorted(scores[ranked], thresholds, side="left")
    counts = relative(evidence.counts)
    left = np.concatenate([np.zeros((len(below), 1)), np.cumsum(counts[:, ranked], axis=1)], axis=1)
    return MetricEstimate(
        value=float((scores >= threshold).mean()),
        draws=1 - left[np.arange(len(below)), below] / len(scores),
    )


@predictor(
    "doc", "DoC", "in-distribution accuracy minus the drop of mean confidence", needs="known", bounds=SHARE
)
def _doc(evidence: MetricEvidence) -> MetricEstimate:
    known, known_counts = known_of(evidence)
    assert known.labels is not None
    correct = mean_of((known.predictions == known.labels).astype(np.float64), known_counts)
    before = mean_of(known.confidence, known_counts)
    after = mean_of(evidence.target.confidence, evidence.counts)
    assert correct.draws is not None
    assert before.draws is not None
    assert after.draws is not None
    return MetricEstimate(
        value=float(np.clip(correct.value - (before.value - after.value), 0.0, 1.0)),
        draws=np.clip(correct.draws - before.draws + after.draws, 0.0, 1.0),
    )


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
    of_known = match.of_classes[labels]
    draws = weighted_means(match.of_examples, evidence.counts) + weighted_means(of_known, known_counts)
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

    def estimates(rows: Int64[np.ndarray, " k"], known_rows: Int64[np.ndarray, " m"]) -> np.ndarray:
        line = baselines.agreement_on_the_line(before[:, known_rows], labels[known_rows], after[:, rows])
        return np.asarray(line.estimates)

    try:
        values = estimates(np.arange(after.shape[1]), np.arange(before.shape[1]))
    except InputError as error:
        return [MetricEstimate(value=math.nan, reason=str(error)) for _ in everyone]
    draws = np.full((len(counts), len(everyone)), np.nan)
    for draw, (row, known_row) in enumerate(zip(counts, known_counts, strict=True)):
        drawn, known_drawn = (
            np.repeat(np.arange(len(each)), each.astype(np.int64)) for each in (row, known_row)
        )
        try:
            draws[draw] = estimates(drawn, known_drawn)
        except InputError:  # no line through these resampled agreements: undefined, and counted as such
            continue
    n = after.shape[1]
    return [MetricEstimate(value=float(each), draws=draws[:, at], n=n) for at, each in enumerate(values)]


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
