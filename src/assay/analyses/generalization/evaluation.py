"""How well a metric predicts performance: correlations over models or domains, and alarms by threshold."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Real
from torch import Tensor

from assay.analyses.generalization.dependency import dependency_depth_bias
from assay.analyses.generalization.shift import check_comparable
from assay.circuits import EdgeScores
from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError
from assay.core.random import stream
from assay.stats import kendall_tau, pearson, spearman


Values = Sequence[float] | Real[np.ndarray, " n"]

CORRELATIONS = ("r2", "srcc", "krcc")
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5)
# Performance thresholds of the alarm curve: 0.50, 0.51, ..., 0.95.
DELTAS = tuple(round(0.5 + 0.01 * step, 2) for step in range(46))


# -------------------------------------------------------------------------------------- correlation


@dataclass(frozen=True, kw_only=True)
class TaskCorrelation:
    """How a metric goes with performance on one task.

    Attributes:
        r2: Squared Pearson correlation: the R2 of a straight line, in sample; in [0, 1].
        srcc: Spearman's rank correlation, in [-1, 1].
        krcc: Kendall's tau-b, in [-1, 1].
        n: Models or domains.
    """

    r2: float
    srcc: float
    krcc: float
    n: int


def correlate(metric: Values, performance: Values) -> TaskCorrelation:
    """The three correlations of a metric with true performance.

    Args:
        metric: One number per model (before deployment) or domain (after), finite.
        performance: Accuracy or macro-F1 of each, in the same order.

    Returns:
        Signed correlations; those of a shift score are expected to be negative. All NaN, with a
        `DegenerateDataWarning`, for fewer than 3 pairs or where one side is constant.

    Raises:
        InputError: For lists of different lengths.
        NonFiniteError: For NaN or infinite numbers.

    References:
        Peng et al. (2026), arXiv:2604.08192, Tables 1 and 3.

    Example:
        >>> correlate([0.1, 0.4, 0.9], [0.5, 0.6, 0.9]).srcc
        1.0
    """
    x, y = _pair(metric, performance)
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        reason = "one side is constant" if len(x) >= 3 else f"got {len(x)} pair(s); expected at least 3"
        warnings.warn(
            f"correlation with performance is undefined: {reason}", DegenerateDataWarning, stacklevel=2
        )
        return TaskCorrelation(r2=math.nan, srcc=math.nan, krcc=math.nan, n=len(x))
    return TaskCorrelation(r2=pearson(x, y) ** 2, srcc=spearman(x, y), krcc=kendall_tau(x, y), n=len(x))


@dataclass(frozen=True, kw_only=True)
class CorrelationSummary:
    """A metric over all tasks of all datasets, as in the published tables.

    Attributes:
        per_dataset: Dataset -> `r2`, `srcc`, `krcc`: means over its tasks.
        average: Mean of all these cells.
        sem: Their population standard deviation over the root of their number.
    """

    per_dataset: dict[str, dict[str, float]]
    average: float
    sem: float


def summarize_correlations(
    tasks: Mapping[str, Sequence[TaskCorrelation]], *, absolute: bool = True
) -> CorrelationSummary:
    """Mean and standard error of correlations over datasets.

    Args:
        tasks: Dataset -> correlation on each of its tasks; at least one each.
        absolute: Take magnitudes per task first, as the published tables do; False keeps signs.

    Returns:
        The cells, their mean and standard error. NaN where a task of theirs is NaN.

    Raises:
        InputError: For no dataset or one without tasks.

    Notes:
        The cells of one dataset rest on the same data: the standard error describes spread, not confidence.

    References:
        Peng et al. (2026), arXiv:2604.08192, Table 1.
    """
    empty = [name for name, found in tasks.items() if not found]
    if not tasks or empty:
        raise InputError(f"every dataset needs at least one task; empty: {', '.join(empty) or 'all'}")
    cells = {}
    for name, found in tasks.items():
        values = np.array([[getattr(each, key) for key in CORRELATIONS] for each in found])
        cells[name] = (np.abs(values) if absolute else values).mean(0)
    every = np.concatenate([*cells.values()])
    return CorrelationSummary(
        per_dataset={
            name: dict(zip(CORRELATIONS, map(float, row), strict=True)) for name, row in cells.items()
        },
        average=float(every.mean()),
        sem=float(every.std() / math.sqrt(len(every))),
    )


def ratio_ablation(
    scores: Sequence[EdgeScores] | Sequence[Float[Tensor, "_ _"]],
    performance: Values,
    *,
    targets: str = "output",
    ratios: Sequence[float] = RATIOS,
) -> dict[float, TaskCorrelation]:
    """How the choice of ratio tau changes what the dependency depth bias predicts.

    Args:
        scores: Circuit of each model of a zoo on the target data, found in one way; or its dependency matrix.
        performance: True performance of each model.
        targets: As in `dependency_depth_bias`.
        ratios: The ratios tried.

    Returns:
        Ratio -> correlation of the bias with performance.

    Raises:
        GraphMismatchError, InputError: For circuits that cannot be compared, or not one performance each.

    References:
        Peng et al. (2026), arXiv:2604.08192, Tables 2, 12 and 13.
    """
    circuits = [each for each in scores if isinstance(each, EdgeScores)]
    for each in circuits[1:]:
        check_comparable(circuits[0], each, same_model=False)
    return {
        ratio: correlate(
            [dependency_depth_bias(each, targets=targets, ratio=ratio) for each in scores], performance
        )
        for ratio in ratios
    }


# ------------------------------------------------------------------------------------------- alarms


@dataclass(frozen=True, kw_only=True, eq=False)
class AlarmCurve:
    """F1 of an alarm over performance thresholds.

    Attributes:
        deltas: Performance thresholds, `[n_deltas]`.
        f1: `[n_deltas, n_subsets]`; NaN where no alarm was due and none was raised.
        mean: Over the subsets, NaN ones left out; NaN where all are.
        std: Population standard deviation, likewise.
        low: 2.5 % quantile, likewise.
        high: 97.5 % quantile, likewise.
    """

    deltas: Float64[np.ndarray, " n_deltas"]
    f1: Float64[np.ndarray, "n_deltas n_subsets"]
    mean: Float64[np.ndarray, " n_deltas"]
    std: Float64[np.ndarray, " n_deltas"]
    low: Float64[np.ndarray, " n_deltas"]
    high: Float64[np.ndarray, " n_deltas"]


def alarm_curve(
    calibration_scores: Values,
    calibration_performance: Values,
    scores: Sequence[float] | Real[np.ndarray, " m"],
    performance: Sequence[float] | Real[np.ndarray, " m"],
    *,
    deltas: Sequence[float] = DELTAS,
    n_subsets: int = 100,
    subset_size: int = 20,
    higher_is_shift: bool = True,
    seed: int = 0,
) -> AlarmCurve:
    """F1 of the alarm for each performance threshold, calibrated on random subsets of the known domains.

    Args:
        calibration_scores: Score of each calibration domain, `[n]`.
        calibration_performance: Performance of each.
        scores: Score of each test domain, `[m]`.
        performance: True performance of each.
        deltas: Performance thresholds.
        n_subsets: Subsets drawn for each of them, without replacement inside a subset.
        subset_size: Domains of a subset, 1 to n.
        higher_is_shift: True for shifts; False for scores that fall with performance.
        seed: Of the draws; those of one delta do not depend on the other deltas.

    Returns:
        The F1 values and their mean, spread and quantiles; higher is better.

    Raises:
        InputError: For lists of different lengths, no domain, or subsets larger than the number of domains.
        NonFiniteError: For NaN or infinite numbers.

    Notes:
        The paper states neither grid nor numbers; the defaults here are this package's.

    References:
        Peng et al. (2026), arXiv:2604.08192, section 5.
    """
    known, known_performance = _pair(calibration_scores, calibration_performance)
    new, new_performance = _pair(scores, performance)
    if not 1 <= subset_size <= len(known) or n_subsets < 1 or not len(deltas):
        raise InputError(
            f"subset_size is {subset_size}, n_subsets {n_subsets}, with {len(deltas)} deltas and "
            f"{len(known)} calibration domains; give a subset_size of 1 to the number of domains, and at "
            "least one of the others"
        )
    rows = []
    for delta in deltas:
        draws = stream(seed, f"alarm-subsets/{delta:.9g}").random((n_subsets, len(known)))
        # Ascending inside a subset, so that the first of equally near domains wins.
        subsets = np.sort(draws.argsort(1)[:, :subset_size], axis=1)
        nearest = np.abs(known_performance[subsets] - delta).argmin(1)
        limits = known[subsets[np.arange(n_subsets), nearest]][:, None]
        raised, due = new > limits if higher_is_shift else new < limits, new_performance < delta
        hits, wrong = (raised & due).sum(1), (raised ^ due).sum(1)
        total = 2 * hits + wrong
        rows.append(np.divide(2.0 * hits, total, out=np.full(n_subsets, np.nan), where=total > 0))
    kept = [row[np.isfinite(row)] for row in rows]

    def over(statistic: Callable[[np.ndarray], Any]) -> Float64[np.ndarray, " n_deltas"]:
        return np.array([statistic(row) if len(row) else math.nan for row in kept])

    return AlarmCurve(
        deltas=np.array(deltas, dtype=np.float64),
        f1=np.stack(rows),
        mean=over(np.mean),
        std=over(np.std),
        low=over(lambda row: np.quantile(row, 0.025)),
        high=over(lambda row: np.quantile(row, 0.975)),
    )


def _pair(x: Values, y: Values) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or not len(a):
        raise InputError(
            f"scores have shape {a.shape}, performance {b.shape}; give one of each per model or domain"
        )
    for name, array in (("score", a), ("performance", b)):
        bad = np.flatnonzero(~np.isfinite(array))
        if len(bad):
            raise NonFiniteError(f"{name} {bad[0]} is {array[bad[0]]}; remove that model or domain from both")
    return a, b
