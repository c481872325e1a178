"""How a metric goes with performance over models or domains: correlations, and their mean over tasks."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Real
from torch import Tensor

from assay.analyses.generalization.dependency import dependency_depth_bias
from assay.analyses.generalization.shift import check_comparable
from assay.circuits import EdgeScores
from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError
from assay.core.record import Record
from assay.stats import kendall_tau, pearson, spearman


Values = Sequence[float] | Real[np.ndarray, " n"]

CORRELATIONS = ("r2", "srcc", "krcc")


# -------------------------------------------------------------------------------------- correlation


@dataclass(frozen=True, kw_only=True)
class TaskCorrelation(Record):
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
    x, y = paired(metric, performance)
    if len(x) < 3 or not np.ptp(x) or not np.ptp(y):
        reason = "one side is constant" if len(x) >= 3 else f"got {len(x)} pair(s); expected at least 3"
        text = f"correlation with performance is undefined: {reason}"
        warnings.warn(text, DegenerateDataWarning, stacklevel=2)
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
    if not tasks or not all(tasks.values()):
        raise InputError("every dataset needs at least one task")
    cells = {}
    for name, found in tasks.items():
        values = np.array([[getattr(each, key) for key in CORRELATIONS] for each in found])
        cells[name] = (np.abs(values) if absolute else values).mean(0)
    every = np.concatenate([*cells.values()])
    per_dataset = {name: dict(zip(CORRELATIONS, row.tolist(), strict=True)) for name, row in cells.items()}
    sem = float(every.std() / math.sqrt(len(every)))
    return CorrelationSummary(per_dataset=per_dataset, average=float(every.mean()), sem=sem)


def ratio_ablation(
    scores: Sequence[EdgeScores] | Sequence[Float[Tensor, "_ _"]],
    performance: Values,
    *,
    targets: str = "output",
    ratios: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5),
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
    biases = {
        ratio: [dependency_depth_bias(each, targets=targets, ratio=ratio) for each in scores]
        for ratio in ratios
    }
    return {ratio: correlate(values, performance) for ratio, values in biases.items()}


def paired(x: Values, y: Values) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Scores and performance as arrays of one length, finite, at least one of each."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or not len(a):
        raise InputError(f"scores have shape {a.shape}, performance {b.shape}; give one of each, [n]")
    for name, array in (("score", a), ("performance", b)):
        for place in np.flatnonzero(~np.isfinite(array)):
            raise NonFiniteError(f"{name} {place} is {array[place]}; leave it out of both")
    return a, b
