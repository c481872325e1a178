"""What a metric that predicts performance is: its value for a model, and its bootstrap replicates.

A replicate is the metric of a resample of the images. The resamples are the same for every model, so
replicates of two models can be compared one by one. Held fixed are the models, and the ablation's means.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64

from assay.analyses.generalization import baselines
from assay.analyses.generalization.dependency import DepthRule
from assay.analyses.generalization.inspection import Inspection
from assay.analyses.generalization.spectra import image_groups
from assay.analyses.generalization.tables import label_array
from assay.core.errors import DegenerateDataWarning, InputError
from assay.core.registry import Registry
from assay.stats.resampled import UNBOUNDED


Draws = Float64[np.ndarray, " draws"]
Counts = Float64[np.ndarray, "draws n"]

SHARE = (0.0, 1.0)  # bounds of a metric that estimates a share of the images


@dataclass(frozen=True, kw_only=True, eq=False)
class MetricEvidence:
    """What one model showed, and the resamples under which it is judged.

    Attributes:
        target: On the images it is to be chosen for.
        known: On labelled images of the domain it was trained for; None if there are none.
        counts: How often each target image counts in each resample; rows may add up to other numbers than n.
        known_counts: The same for the known images.
        rule: Layers that a depth bias compares.
        measure: `"accuracy"` or `"macro-f1"`.
        seed: Of the groups left out in turn.
        asked: Keys of metrics named by the user, who then waits as long as they take.
    """

    target: Inspection
    known: Inspection | None
    counts: Counts
    known_counts: Float64[np.ndarray, "draws m"] | None
    rule: DepthRule = field(default_factory=DepthRule)
    measure: str = "accuracy"
    seed: int = 0
    asked: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, eq=False)
class MetricEstimate:
    """A metric of one model.

    Attributes:
        value: NaN where undefined.
        draws: Replicates; None where the metric cannot be resampled.
        reason: Why the value or the replicates are missing.
        n: Images, or batches, that are resampled; 0: those that `predictor` finds in the evidence.
    """

    value: float
    draws: Draws | None = None
    reason: str | None = None
    n: int = 0


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """A metric that may predict performance.

    Attributes:
        key: What `rank_models` calls it.
        name: For tables and pictures.
        summary: One line.
        direction: 1: rises with performance; -1: falls; 0: neither.
        best_at: The value that predicts best, for a metric of direction 0. None: its source does not say, so
            nothing is ranked by it.
        needs: Parts of the inspection of the target (`"logits"`, `"features"`, `"output-scores"`,
            `"edge-scores"`), and `"known"`: labelled images of the models' own domain; `"sharpness"` of
            these.
        resampled: What is drawn for its replicates: `"images"`, `"batches"`, or `"groups"`: the metric is
            linearised, from leaving out 20 groups of images in turn.
        of: The estimates of models, in order.
        together: Whether it looks at all models at once rather than at one after the other.
        reads_target: Whether the target's images enter; False for what is measured on the own domain alone.
        bounds: Smallest and largest value there is.
    """

    key: str
    name: str
    summary: str
    direction: int
    needs: frozenset[str]
    of: Callable[[Sequence[MetricEvidence]], list[MetricEstimate]]
    resampled: str = "images"
    best_at: float | None = None
    together: bool = False
    reads_target: bool = True
    bounds: tuple[float, float] = UNBOUNDED

    @property
    def ranks(self) -> bool:
        """Whether models can be put in order by it."""
        return self.direction != 0 or self.best_at is not None

    def oriented(self, values: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"] | None:
        """The values such that higher predicts better; None where the source states no direction."""
        if self.best_at is not None:
            return np.asarray(-np.abs(values - self.best_at))
        return None if self.direction == 0 else np.asarray(self.direction * values)


PREDICTORS: Registry[Predictor] = Registry("ranking metric")


Estimator = Callable[[MetricEvidence], MetricEstimate]


def predictor(
    key: str, name: str, summary: str, *, direction: int = 1, needs: str = "", **facts: Any
) -> Callable[[Estimator], Estimator]:
    """Register a metric that looks at one model at a time; an error over its data becomes its reason."""

    def register(one: Estimator) -> Estimator:
        metric = Predictor(
            key=key,
            name=name,
            summary=summary,
            direction=direction,
            needs=frozenset(needs.split()),
            of=lambda models: [_attempt(one, each, facts.get("reads_target", True)) for each in models],
            **facts,
        )
        PREDICTORS.add(key, metric)
        return one

    return register


def _attempt(one: Estimator, evidence: MetricEvidence, reads_target: bool) -> MetricEstimate:
    """The estimate; NaN with the reason where the metric is not defined on these data."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", DegenerateDataWarning)
        try:
            estimate = one(evidence)
        except InputError as error:
            return MetricEstimate(value=math.nan, reason=str(error))
    if math.isnan(estimate.value) and estimate.reason is None:
        said = [str(each.message) for each in raised if issubclass(each.category, DegenerateDataWarning)]
        return MetricEstimate(value=math.nan, reason=said[0] if said else "undefined on these images")
    read = evidence.target if reads_target else evidence.known
    return replace(estimate, n=estimate.n or (0 if read is None else read.n))


# ------------------------------------------------------------------------------------- of weights


def weights_of(counts: Counts) -> Float64[np.ndarray, "rows n"]:
    """All images once, then each resample."""
    return np.concatenate([baselines.once(counts.shape[1]), counts])


def estimate_of(rows: Float64[np.ndarray, " rows"], n: int = 0) -> MetricEstimate:
    """From the metric of all images, and of each resample behind it."""
    return MetricEstimate(value=float(rows[0]), draws=rows[1:], n=n)


def performance(
    inspection: Inspection, labels: Int64[np.ndarray, " n"], counts: Counts, measure: str
) -> MetricEstimate:
    """Accuracy, or the mean F1 of the classes that occur in the labels, with its replicates."""
    truth = label_array(labels, inspection.n_classes)
    rows = baselines.performance_of(inspection.predictions, truth, weights_of(counts), measure=measure)
    return estimate_of(rows, len(truth))


def known_of(evidence: MetricEvidence) -> tuple[Inspection, Counts]:
    """What a metric that needs the known images reads."""
    assert evidence.known is not None  # `needs` was checked
    assert evidence.known_counts is not None
    return evidence.known, evidence.known_counts


# ---------------------------------------------------------------------------------- groups left out


def pulls_of(without: Float64[np.ndarray, " groups"]) -> Float64[np.ndarray, " groups"]:
    """How each of K groups of images pulls at a metric, from the metric without each.

    (K - 1) / K (mean of the metrics without a group - the metric without this one).
    """
    return np.asarray((len(without) - 1) * (without.mean() - without) / len(without))


def group_shifts(counts: Counts, seed: int) -> Float64[np.ndarray, "groups draws"]:
    """How far each group is over-drawn in each resample, with the variance that drawing whole groups has."""
    groups = image_groups(counts.shape[1], seed)
    scaled = baselines.scaled(counts)
    return np.stack([(scaled[:, group].mean(1) - 1) * math.sqrt(len(group)) for group in groups])
