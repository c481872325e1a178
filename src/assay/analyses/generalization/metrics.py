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
from assay.analyses.generalization.baselines import mean_of, once
from assay.analyses.generalization.dependency import DepthRule, depth_biases, layer_sums
from assay.analyses.generalization.inspection import Inspection
from assay.core.errors import DegenerateDataWarning, InputError
from assay.stats.resampled import UNBOUNDED


Rows = Float64[np.ndarray, " rows"]
Numbers = Float64[np.ndarray, "rows models"]
Shown = tuple[Inspection, Inspection | None]  # of the target, and of labelled images of the own domain

SHARE = (0.0, 1.0)  # bounds of a metric that estimates a share of the images
COT_LIMIT = 200_000  # unknowns of the linear programme that is solved without being asked for by name


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """How often each image counts, a row of ones first, and what else is the same for every model.

    Attributes:
        target: Of the target images; rows may add up to other numbers than n.
        known: Of the labelled images of the models' own domain; empty without them.
        rule: Layers that a depth bias compares.
        measure: `"accuracy"` or `"macro-f1"`.
    """

    target: Float64[np.ndarray, "rows n"]
    known: Float64[np.ndarray, "_ m"] = field(default_factory=lambda: once(0))
    rule: DepthRule = field(default_factory=DepthRule)
    measure: str = "accuracy"


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
        over: Whose images its replicates draw: those of the `"target"`, or the `"known"` ones.
        of: From models and weights to the numbers, `[rows, models]`.
        together: Whether it looks at all models at once rather than at one after the other.
        bounds: Smallest and largest value there is.
    """

    key: str
    name: str
    summary: str
    of: Callable[[Sequence[Shown], Weights], Numbers]
    direction: int = 1
    best_at: float | None = None
    needs: frozenset[str] = frozenset()
    over: str = "target"
    together: bool = False
    bounds: tuple[float, float] = UNBOUNDED

    def oriented(self, values: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"] | None:
        """The values such that higher predicts better; None where the source states no direction."""
        if self.best_at is not None:
            return np.asarray(-np.abs(values - self.best_at))
        return None if self.direction == 0 else np.asarray(self.direction * values)


class Estimate(NamedTuple):
    """A metric of some models.

    Attributes:
        rows: Value, then replicates; NaN where undefined, `[rows, models]`.
        reason: Why a number is undefined; None where none is.
    """

    rows: Numbers
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
    weights = Weights(target=once(target.n), known=once(known.n if known else 0))
    values, absent = {}, {}
    for metric in (METRICS[key] for key in keys if known is not None or "known" not in METRICS[key].needs):
        found = estimate(metric, [(target, known)], weights)
        value = float(found.rows[0, 0])
        if math.isfinite(value):
            values[metric.name.lower()] = value
        else:
            absent[metric.name.lower()] = found.reason or ""
    return values, absent


def reading_direction(key: str) -> int:
    """1 where a reading rises with performance, -1 where it falls, 0 where its source does not say."""
    return next((each.direction for each in METRICS.values() if each.name.lower() == key), 1)


def affordable_transport(n: int, n_classes: int) -> bool:
    """Whether COT of so many images and classes is computed without being asked for by name."""
    return n * n_classes <= COT_LIMIT


# ------------------------------------------------------------------------------------- the table

METRICS: dict[str, Metric] = {}  # in the order of tables


def _metric(
    key: str, name: str, needs: str = "", *, together: bool = False, **facts: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a metric, summed up by its docstring: of one model, or of all `together`.

    The second inspection is that of the labelled images of the own domain, or the target's again where the
    metric does not need them.
    """
    parts = frozenset(needs.split())

    def enter(of: Callable[..., Any]) -> Callable[..., Any]:
        def of_all(shown: Sequence[Shown], weights: Weights) -> Numbers:
            pairs = [(target, known if "known" in parts else target) for target, known in shown]
            if any(known is None for _, known in pairs):
                raise InputError("needs labelled images of the models' own domain (id_data, --id-images)")
            if "known" in parts and any(known is not None and known.labels is None for _, known in pairs):
                raise InputError("the images of the models' own domain have no labels")
            if together:
                return np.asarray(of(pairs, weights))
            return np.stack([of(target, known, weights) for target, known in pairs], axis=1)

        summary, more = (of.__doc__ or "").rstrip("."), {"together": together, **facts}
        METRICS[key] = Metric(key=key, name=name, summary=summary, of=of_all, needs=parts, **more)
        return of

    return enter


def _part(shown: Inspection, name: str) -> Any:
    """What a model was inspected for."""
    if (value := getattr(shown, name)) is None:
        raise InputError(f"the models were inspected without {name.replace('_', ' ')}")
    return value


def _depth_bias(target: Inspection, targets: str, weights: Weights) -> Rows:
    """Of the scores of all images, then of each resample, which the inspection holds."""
    name = "output" if targets == "output" else "dependency"
    value = _part(target, "output_scores" if targets == "output" else name)
    rows = np.concatenate([value[None], _part(target, f"{name}_draws")])[: len(weights.target)]
    matrices = layer_sums(target.graph, np.abs(rows)) if targets == "output" else rows
    return depth_biases(matrices, targets, weights.rule)


@_metric("ddb-output", "DDB output", "output-scores")
def _ddb_output(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Depth bias of the edges into the logits."""
    return _depth_bias(target, "output", weights)


@_metric("ddb-deep", "DDB deep", "edge-scores")
def _ddb_deep(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Depth bias of the edges into deep layers and logits."""
    return _depth_bias(target, "deep", weights)


@_metric("ddb-global", "DDB global", "edge-scores")
def _ddb_global(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Depth bias of all edges."""
    return _depth_bias(target, "global", weights)


@_metric("id-accuracy", "ID accuracy", "known", over="known", bounds=SHARE)
def _id_accuracy(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Performance on the models' own domain."""
    assert known.labels is not None  # checked where the table is read
    return baselines.performance_of(known.predictions, known.labels, weights.known, measure=weights.measure)


@_metric("sharpness", "Sharpness", "known sharpness", direction=-1)
def _sharpness(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Rise of the loss when every weight changes a little."""
    return _alone(_part(known, "sharpness"), weights)


@_metric("average-confidence", "AC", bounds=SHARE)
def _confidence(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Mean largest probability."""
    return mean_of(target.confidence, weights.target)


@_metric("negative-entropy", "ANE", bounds=(-math.inf, 0.0))
def _negative_entropy(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Mean of sum p log p."""
    return mean_of(target.negative_entropy, weights.target)


@_metric("energy", "MDE", direction=0)
def _energy(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Spread of the energies of the images."""
    return baselines.spread_of_energies(target.energies, weights.target)


@_metric("rankme", "RankMe", "features", bounds=(1.0, math.inf))
def _rankme(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Effective rank of the features."""
    return _alone(baselines.effective_rank(_part(target, "spectrum")), weights)


@_metric("alpha-req", "alpha-ReQ", "features", direction=0, best_at=1.0)
def _alpha_req(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Decay of the spectrum of the features."""
    sizes = _part(target, "centred_spectrum")
    return _alone(baselines.spectral_decay(sizes, (target.n, len(sizes))), weights)


def _alone(value: float, weights: Weights) -> Rows:
    """A value without replicates, as of a rank, which repeated images alone would lower."""
    return np.array([value, *[math.nan] * (len(weights.target) - 1)])


@_metric("atc", "ATC", "known", bounds=SHARE)
def _atc(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Share of images above a confidence threshold learned in-distribution."""
    correct = known.predictions == known.labels
    return baselines.passing(known.confidence, correct, target.confidence, weights.known, weights.target)


@_metric("doc", "DoC", "known", bounds=SHARE)
def _doc(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """In-distribution accuracy minus the drop of mean confidence."""
    correct = (known.predictions == known.labels).astype(np.float64)
    drop = mean_of(known.confidence, weights.known) - mean_of(target.confidence, weights.target)
    return np.asarray(np.clip(mean_of(correct, weights.known) - drop, 0.0, 1.0))


@_metric("cot", "COT", "known logits", bounds=SHARE)
def _cot(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Cost of matching the predictions to known label shares."""
    if target.logits is None and not affordable_transport(target.n, target.n_classes):
        size = target.n * target.n_classes
        raise InputError(f"it has {size:,} unknowns; name the metric to compute it, or give fewer images")
    match = baselines.matched(_part(known, "labels"), _part(target, "logits"))
    of_known = mean_of(match.of_classes[known.labels], weights.known)
    rows = mean_of(match.of_examples, weights.target) + of_known
    rows[0] = match.gain  # which the prices give up to the solver's tolerance
    return np.asarray(np.clip(rows, 0.0, 1.0))


@_metric("agreement-line", "ALine-D", "known", together=True, bounds=SHARE)
def _agreement(shown: Sequence[tuple[Inspection, Inspection]], weights: Weights) -> Numbers:
    """Accuracy read off the line of the models' agreements."""
    after, before = (np.stack([each[place].predictions for each in shown]) for place in (0, 1))
    labels = _part(shown[0][1], "labels")
    rows = baselines.agreement_line(before, labels, after, weights.known, weights.target)
    if np.isnan(rows[0]).all():
        raise InputError("every pair of models agrees equally often; give models that differ")
    return rows


# What held-out labels say comes first. Sharpness takes 61 passes per image, 20 of them backward: it runs only
# where it is asked for by name.
DEFAULT_METRICS = tuple(dict.fromkeys(["id-accuracy", *(key for key in METRICS if key != "sharpness")]))
