"""The metrics that may predict performance: one table, read by rankings, monitors, evaluations and pages.

Each number is computed once, for weights of the images: the first row counts every image once and gives the
value, each further row is a resample and gives a replicate. The resamples are the same for every model, so
replicates of two models can be compared one by one. Held fixed are the models, and the ablation's means.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from assay.analyses.generalization import baselines
from assay.analyses.generalization.baselines import once
from assay.analyses.generalization.dependency import DepthRule, Matrices, depth_biases, layer_sums
from assay.analyses.generalization.inspection import Inspection
from assay.analyses.generalization.spectra import image_groups
from assay.core.errors import DegenerateDataWarning, InputError
from assay.core.random import stream
from assay.stats.resampled import UNBOUNDED


Rows = Float64[np.ndarray, " rows"]
Shown = tuple[Inspection, Inspection | None]  # of the target, and of labelled images of the own domain

SHARE = (0.0, 1.0)  # bounds of a metric that estimates a share of the images
COT_LIMIT = 200_000  # unknowns of the linear programme that is solved without being asked for by name


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """How often each image counts, a row of ones first, and what else is the same for every model.

    Attributes:
        target: Of the target images; rows may add up to other numbers than n.
        known: Of the labelled images of the models' own domain; None without them.
        rule: Layers that a depth bias compares.
        measure: `"accuracy"` or `"macro-f1"`.
        seed: Of the groups left out in turn.
    """

    target: Float64[np.ndarray, "rows n"]
    known: Float64[np.ndarray, "rows m"] | None = None
    rule: DepthRule = field(default_factory=DepthRule)
    measure: str = "accuracy"
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that may predict performance.

    Attributes:
        key: What `rank_models` calls it.
        name: For tables and pictures; in lower case its key in readings of a monitor.
        summary: One line.
        direction: 1: rises with performance; -1: falls; 0: neither.
        best_at: The value that predicts best, for a metric of direction 0. None: its source does not say, so
            nothing is ranked by it.
        needs: Parts of the inspection of the target (`"logits"`, `"features"`, `"output-scores"`,
            `"edge-scores"`), and `"known"`: labelled images of the models' own domain; `"sharpness"` of
            these.
        resampled: What is drawn for its replicates: `"images"`, `"batches"`, or `"groups"`: the metric is
            linearised, from leaving out 20 groups of images in turn.
        of: From models and weights to the numbers, `[rows, models]`.
        together: Whether it looks at all models at once rather than at one after the other.
        reads_target: Whether the target's images enter; False for what is measured on the own domain alone.
        bounds: Smallest and largest value there is.
    """

    key: str
    name: str
    summary: str
    of: Callable[[Sequence[Shown], Weights], Float64[np.ndarray, "rows models"]]
    direction: int = 1
    best_at: float | None = None
    needs: frozenset[str] = frozenset()
    resampled: str = "images"
    together: bool = False
    reads_target: bool = True
    bounds: tuple[float, float] = UNBOUNDED

    def oriented(self, values: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"] | None:
        """The values such that higher predicts better; None where the source states no direction."""
        if self.best_at is not None:
            return np.asarray(-np.abs(values - self.best_at))
        return None if self.direction == 0 else np.asarray(self.direction * values)

    def n(self, target: Inspection, known: Inspection | None) -> int:
        """Images, or batches, that are resampled."""
        read = target if self.reads_target else known
        assert read is not None  # `needs` was checked
        sampled = read.sharpness if self.resampled == "batches" else read.ids
        return 0 if sampled is None else len(sampled)


METRICS: dict[str, Metric] = {}  # in the order of tables


class Estimate(NamedTuple):
    """A metric of some models.

    Attributes:
        rows: Value, then replicates; NaN where undefined, `[rows, models]`.
        reason: Why a number is undefined; None where none is.
    """

    rows: Float64[np.ndarray, "rows models"]
    reason: str | None


def estimate(metric: Metric, shown: Sequence[Shown], weights: Weights) -> Estimate:
    """The numbers of a metric; what it says of data on which it is undefined becomes the reason."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", DegenerateDataWarning)
        try:
            rows = metric.of(shown, weights)
        except InputError as error:
            return Estimate(np.full((len(weights.target), len(shown)), math.nan), str(error))
    if np.isfinite(rows).all():
        return Estimate(rows, None)
    said = [str(each.message) for each in raised if issubclass(each.category, DegenerateDataWarning)]
    undefined = None if np.isfinite(rows[0]).all() else "undefined on these images"
    return Estimate(rows, said[0] if said else undefined)


def readings(
    keys: Sequence[str], target: Inspection, known: Inspection | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics of one model on some images, by their names in lower case, and why others are undefined.

    Args:
        keys: Of `METRICS`; those that learn from labelled images are left out without `known`.
        target: On the images.
        known: On labelled images in distribution.
    """
    weights = Weights(target=once(target.n), known=None if known is None else once(known.n))
    values, absent = {}, {}
    for metric in (METRICS[key] for key in keys if known is not None or "known" not in METRICS[key].needs):
        found = estimate(metric, [(target, known)], weights)
        value = float(found.rows[0, 0])
        if math.isfinite(value):
            values[metric.name.lower()] = value
        else:
            absent[metric.name.lower()] = found.reason or ""
    return values, absent


def reading(key: str) -> Metric | None:
    """The metric of a key in `readings`; None for another number."""
    return next((each for each in METRICS.values() if each.name.lower() == key), None)


def reading_direction(key: str) -> int:
    """1 where a reading rises with performance, -1 where it falls, 0 where its source does not say."""
    metric = reading(key)
    return 1 if metric is None else metric.direction


Of = Callable[[Inspection, Inspection | None, Weights], Rows]


def _metric(key: str, name: str, summary: str, *, needs: str = "", **facts: Any) -> Callable[[Of], Of]:
    """Enter a metric that looks at one model at a time."""

    def enter(of: Of) -> Of:
        METRICS[key] = Metric(
            key=key,
            name=name,
            summary=summary,
            of=lambda shown, weights: np.stack([of(*each, weights) for each in shown], axis=1),
            needs=frozenset(needs.split()),
            **facts,
        )
        return of

    return enter


# ------------------------------------------------------------------------------------------- circuits


def _ddb(target: Inspection, matrices: Matrices, targets: str, weights: Weights) -> Rows:
    """Of the dependency matrix of all images, then of each resample, which the inspection holds."""
    rows = depth_biases(matrices, targets, weights.rule.layers(target.graph.n_layers))
    if math.isnan(rows[0]):
        warnings.warn(
            "depth bias is undefined: all scores of edges from deep or shallow layers are 0",
            DegenerateDataWarning,
            stacklevel=2,
        )
    return rows[: len(weights.target)]


def _matrices(target: Inspection) -> Matrices:
    assert target.dependency is not None  # `needs` was checked
    assert target.dependency_draws is not None
    return np.concatenate([target.dependency[None], target.dependency_draws])


@_metric("ddb-output", "DDB output", "depth bias of the edges into the logits", needs="output-scores")
def _ddb_output(target: Inspection, known: Inspection | None, weights: Weights) -> Rows:
    assert target.output_scores is not None
    assert target.output_draws is not None
    rows = np.abs(np.concatenate([target.output_scores[None], target.output_draws]))
    return _ddb(target, layer_sums(target.graph, rows), "output", weights)


@_metric("ddb-deep", "DDB deep", "depth bias of the edges into deep layers and logits", needs="edge-scores")
def _ddb_deep(target: Inspection, known: Inspection | None, weights: Weights) -> Rows:
    return _ddb(target, _matrices(target), "deep", weights)


@_metric("ddb-global", "DDB global", "depth bias of all edges", needs="edge-scores")
def _ddb_global(target: Inspection, known: Inspection | None, weights: Weights) -> Rows:
    return _ddb(target, _matrices(target), "global", weights)


# ------------------------------------------------------------------------------------- in-distribution


def _learnt(
    known: Inspection | None, weights: Weights
) -> tuple[Inspection, np.ndarray, Float64[np.ndarray, "rows m"]]:
    """The known images, whether each is answered right, and how often it counts."""
    assert known is not None  # `needs` was checked
    assert weights.known is not None
    return known, known.predictions == known.labels, weights.known


@_metric(
    "id-accuracy",
    "ID accuracy",
    "performance on the models' own domain",
    needs="known",
    reads_target=False,
    bounds=SHARE,
)
def _id_accuracy(target: Inspection, known: Inspection | None, weights: Weights) -> Rows:
    known, _, v = _learnt(known, weights)
    assert known.labels is not None
    return baselines.performance_of(known.predictions, known.labels, v, measure=weights.measure)


@_metric(
    "sharpness",
    "Sharpness",
    "rise of the loss when every weight changes a little",
    direction=-1,
    needs="known sharpness",
    resampled="batches",
    reads_target=False,
)
def _sharpness(target: Inspection, known: Inspection | None, weights: Weights) -> Rows:
    known, _, v = _learnt(known, weights)
    assert known.sharpness is not None
    batches = known.sharpness
    if len(batches) < 2:
        warnings.warn(
            "one batch has no interval; give more images or smaller batches",
            DegenerateDataWarning,
            stacklevel=2,
        )
        return np.array([batches.mean(), *[math.nan] * (len(v) - 1)])
    draws = stream(weights.seed, "rank/batches").integers(0, len(batches), (len(v) - 1, len(batches)))
    return np.array([batches.mean(), *batches[draws].mean(1)])


# ------------------------------------------------------------------------------------ outputs alone


@_metric("average-confidence", "AC", "mean largest probability", bounds=SHARE)
def _confidence(target: Inspection, known: Inspection | None, weights: Weights) -> Rows:
    return baselines.mean_of(target.confidence, weights.target)


@_metric("negative-entropy", "ANE", "mean of sum p log p", bounds=(-math.inf, 0.0))
def _negative_entropy(target: Inspection, known: Inspection | None, weights: Weights) -> Rows:
    return baselines.mean_of(target.negative_entropy, weights.target)


@_metric("energy", "MDE", "spread of the energies of the images", direction=0)
def _energy(target: Inspection, known: Inspection | None, weights: Weights) -> Rows:
    return baselines.spread_of_energies(target.energies, weights.target)


@_metric(
    "rankme",
    "RankMe",
    "effective rank of the features",
    needs="features",
    resampled="groups",
    bounds=(1.0, math.inf),
)
def _rankme(target: Inspection, known: Inspection | None, weights: Weights) -> Rows:
    assert target.spectra is not None
    sizes = (row[np.isfinite(row)] for row in target.spectra.raw)
    return linearised([baselines.effective_rank(each) for each in sizes], weights)


@_metric(
    "alpha-req",
    "alpha-ReQ",
    "decay of the spectrum of the features; closest to 1 is best",
    direction=0,
    best_at=1.0,
    needs="features",
    resampled="groups",
)
def _alpha_req(target: Inspection, known: Inspection | None, weights: Weights) -> Rows:
    assert target.spectra is not None
    left_out = [0, *(len(group) for group in image_groups(target.n, weights.seed))]
    spectra = target.spectra.centred
    shapes = [(target.n - n_out, spectra.shape[1]) for n_out in left_out]
    values = [
        baselines.spectral_decay(row[np.isfinite(row)], shape)
        for row, shape in zip(spectra, shapes, strict=True)
    ]
    return linearised(values, weights)


def linearised(values: Sequence[float], weights: Weights) -> Rows:
    """From a metric on all images and without each group of them.

    Resampled features repeat rows, which alone lowers their rank: groups are left out instead. Group k pulls
    by (K - 1) / K (mean of the metrics without a group - the metric without it), and is over-drawn in each
    row by what gives that the variance of drawing whole groups.
    """
    without = np.array(values[1:])
    pulls = (len(without) - 1) * (without.mean() - without) / len(without)
    groups = image_groups(weights.target.shape[1], weights.seed)
    counts = baselines.scaled(weights.target)
    drawn = np.stack([(counts[:, group].mean(1) - 1) * math.sqrt(len(group)) for group in groups])
    return np.asarray(values[0] + pulls @ drawn)


# ------------------------------------------------------------------------------ estimates of accuracy


@_metric(
    "atc",
    "ATC",
    "share of images above a confidence threshold learned in-distribution",
    needs="known",
    bounds=SHARE,
)
def _atc(target: Inspection, known: Inspection | None, weights: Weights) -> Rows:
    known, correct, v = _learnt(known, weights)
    return baselines.passing(known.confidence, correct, target.confidence, v, weights.target)


@_metric(
    "doc", "DoC", "in-distribution accuracy minus the drop of mean confidence", needs="known", bounds=SHARE
)
def _doc(target: Inspection, known: Inspection | None, weights: Weights) -> Rows:
    known, correct, v = _learnt(known, weights)
    drop = baselines.mean_of(known.confidence, v) - baselines.mean_of(target.confidence, weights.target)
    return np.asarray(np.clip(baselines.mean_of(correct.astype(np.float64), v) - drop, 0.0, 1.0))


def affordable_transport(n: int, n_classes: int) -> bool:
    """Whether COT of so many images and classes is computed without being asked for by name."""
    return n * n_classes <= COT_LIMIT


@_metric(
    "cot", "COT", "cost of matching the predictions to known label shares", needs="known logits", bounds=SHARE
)
def _cot(target: Inspection, known: Inspection | None, weights: Weights) -> Rows:
    known, _, v = _learnt(known, weights)
    assert known.labels is not None
    assert target.logits is not None
    match = baselines.matched(known.labels, target.logits)
    of_known = baselines.mean_of(match.of_classes[known.labels], v)
    rows = baselines.mean_of(match.of_examples, weights.target) + of_known
    rows[0] = match.gain  # which the prices give up to the solver's tolerance
    return np.asarray(np.clip(rows, 0.0, 1.0))


def _agreement(shown: Sequence[Shown], weights: Weights) -> Float64[np.ndarray, "rows models"]:
    """A line through the agreements of all pairs of models."""
    learnt = [_learnt(known, weights) for _, known in shown]
    before = np.stack([known.predictions for known, _, _ in learnt])
    after = np.stack([target.predictions for target, _ in shown])
    labels, v = learnt[0][0].labels, learnt[0][2]
    assert labels is not None
    rows = baselines.agreement_line(before, labels, after, v, weights.target)
    if np.isnan(rows[0]).all():
        raise InputError("every pair of models agrees equally often; give models that differ")
    return rows


METRICS["agreement-line"] = Metric(
    key="agreement-line",
    name="ALine-D",
    summary="accuracy read off the line of the models' agreements",
    of=_agreement,
    needs=frozenset({"known"}),
    together=True,
    bounds=SHARE,
)

# Sharpness takes 61 passes per image, 20 of them backward, so it runs only where it is asked for by name.
DEFAULT_METRICS = tuple(key for key in METRICS if key != "sharpness")
