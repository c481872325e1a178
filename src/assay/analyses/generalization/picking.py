"""One metric over all models, and what picking by it is worth: ranks, chances, regret, correlation."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float64

from assay.analyses.generalization.evaluation import correlate
from assay.analyses.generalization.metrics import Metric, Numbers
from assay.core.random import stream
from assay.core.record import Record, same
from assay.core.verdict import Interval, undefined_interval
from assay.stats import Estimate, kendall_tau_rows
from assay.stats.resampled import ResampledValue


Values = Float64[np.ndarray, " models"]

LEVEL = 0.95  # coverage of the intervals
UNDEFINED_SHARE = 0.05  # replicates that may be undefined before the interval is
FEWEST_MODELS = 5  # below that, resampled models say nothing about a correlation
PAIRS = 1 << 24  # pairs of models compared at a time


def interval_of(numbers: Float64[np.ndarray, " rows"], n: int, metric: Metric) -> Interval:
    """The interval of a metric of one model, see `ResampledValue`; undefined without replicates.

    Args:
        numbers: The value, then its replicates.
        n: Images, or batches, behind them.
        metric: Gives the bounds.
    """
    value, draws = float(numbers[0]), numbers[1:]
    if math.isnan(value) or not np.isfinite(draws).any():
        return undefined_interval(LEVEL, "resampled", "no_replicates")
    if np.isfinite(draws).mean() < 1 - UNDEFINED_SHARE:
        return undefined_interval(LEVEL, "resampled", "undefined_replicates")
    return ResampledValue(value=value, draws=draws, n=n, bounds=metric.bounds).interval(level=LEVEL)


def ranks(oriented: Values) -> Values:
    """1 for the model predicted best; ties share the smaller rank; NaN where the metric is."""
    places = scipy.stats.rankdata(-oriented, method="min", nan_policy="omit")
    return np.asarray(places, dtype=np.float64)


def shares_of_best(oriented: Numbers) -> Numbers:
    """Of each row: 1 / ties for each model at the top; all equal where no model has a value."""
    filled = np.where(np.isfinite(oriented), oriented, -np.inf)
    top = filled == filled.max(1, keepdims=True)
    return np.asarray(top / top.sum(1, keepdims=True))


@dataclass(frozen=True, kw_only=True)
class Regret(Record):
    """What is lost by picking a model by a metric instead of by true performance.

    Attributes:
        observed: Best performance - performance of the picked model, on the images at hand; ties among the
            picked count as a random choice.
        expected: Mean of the same over the resamples, metric and performance drawn together.
        interval: Percentiles of the same.
        random: Mean over the resamples for a model picked blindly.
    """

    observed: float
    expected: float
    interval: Interval
    random: float


def regret_of_picking(oriented: Numbers, performance: Numbers) -> Regret:
    """Regret of picking the model of the highest metric.

    E_b[ max_m perf_b(m) - perf_b(argmax_m metric_b(m)) ], b a resample of the images.

    Args:
        oriented: The metric of each model, higher predicted better; NaN is never picked. A metric without
            replicates picks the same model in every resample.
        performance: True performance of each model, under the same resamples.

    Returns:
        In the unit of performance, >= 0; lower is better. The maximum over resampled performances is a little
        too good, for every metric alike: `random` is the yardstick, not 0.
    """
    if not np.isfinite(oriented[1:]).any():
        oriented = np.tile(oriented[0], (len(performance), 1))
    best = performance.max(1)
    observed, *regrets = best - (shares_of_best(oriented) * performance).sum(1)
    return Regret(
        observed=float(observed),
        expected=float(np.mean(regrets)),
        interval=_percentiles(np.array(regrets), len(regrets)),
        random=float((best - performance.mean(1))[1:].mean()),
    )


@dataclass(frozen=True, kw_only=True)
class MetricCorrelation(Record):
    """How a metric goes with true performance over `n` models: signed, with intervals.

    Attributes:
        n: Models.
        r2: Squared Pearson correlation, with percentiles over resampled models and images, as the next two.
        srcc: Spearman's rank correlation.
        krcc: Kendall's tau-b.
    """

    n: int
    r2: Estimate
    srcc: Estimate
    krcc: Estimate


def correlation_with_intervals(
    metric: Numbers, performance: Numbers, *, seed: int = 0
) -> MetricCorrelation | None:
    """Correlations over models, with intervals from resamples of models and images together.

    Args:
        metric: Of each model, finite values.
        performance: Of each model, under the same resamples.
        seed: Of the resamples of the models.

    Returns:
        None for fewer than 3 models, or where nothing varies. NaN ends for fewer than 5 models, without
        replicates, or where more than 5 % of the resamples have no correlation.
    """
    n_draws, n_models = len(performance) - 1, metric.shape[1]
    if n_models < 3 or np.ptp(metric[0]) == 0 or np.ptp(performance[0]) == 0:
        return None
    has_draws = np.isfinite(metric[1:]).any()
    if has_draws and n_models >= FEWEST_MODELS:
        chosen = stream(seed, "rank/models").integers(0, n_models, (n_draws, n_models))
        x, y = (np.take_along_axis(each[1:], chosen, axis=1) for each in (metric, performance))
        finite = np.isfinite(x).all(1) & np.isfinite(y).all(1)
        x, y = x[finite], y[finite]
        ranked = (scipy.stats.rankdata(each, axis=1) for each in (x, y))
        parts = math.ceil(max(1, len(x)) * n_models**2 / 2 / PAIRS)
        taus = [
            kendall_tau_rows(*each)
            for each in zip(*(np.array_split(side, parts) for side in (x, y)), strict=True)
        ]
        draws = (_pearson(x, y) ** 2, _pearson(*ranked), np.concatenate(taus))
        intervals = [_percentiles(each, n_draws) for each in draws]
    else:
        why = "too_few" if has_draws else "no_replicates"
        intervals = [undefined_interval(LEVEL, "percentile", why)] * 3
    point = correlate(metric[0], performance[0])
    values = (point.r2, point.srcc, point.krcc)
    r2, srcc, krcc = (Estimate(value=v, interval=i) for v, i in zip(values, intervals, strict=True))
    return MetricCorrelation(n=n_models, r2=r2, srcc=srcc, krcc=krcc)


def _percentiles(draws: Float64[np.ndarray, " draws"], n: int) -> Interval:
    """Percentiles of the defined ones of `n` replicates."""
    defined = draws[np.isfinite(draws)]
    if len(defined) < (1 - UNDEFINED_SHARE) * n:
        return undefined_interval(LEVEL, "percentile", "undefined_replicates")
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(low=float(low), high=float(high), level=LEVEL, method="percentile")


def _pearson(x: Numbers, y: Numbers) -> Float64[np.ndarray, " rows"]:
    x, y = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
    size = np.sqrt((x * x).sum(1) * (y * y).sum(1))
    varies = (np.ptp(x, axis=1) > 0) & (np.ptp(y, axis=1) > 0)
    return np.asarray(np.divide((x * y).sum(1), size, out=np.full(len(x), np.nan), where=varies & (size > 0)))


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedMetric(Record):
    """One metric over all models.

    Attributes:
        metric: What it is.
        numbers: Value of each model, NaN where undefined, then its replicates, `[1 + draws, models]`.
        rows: Of each model `value`; `low`, `high`, `method`, `reason` of its interval over resampled images;
            `rank` (1 is predicted best); `chance`, the share of the resamples in which it is the best, ties
            shared equally. Rank and chance are None where the metric's source states no direction.
        regret: Of picking by it; None without labels or direction.
        correlation: With true performance; None without labels.
    """

    record_layout = {
        **same("key", "name", "summary", "direction", "best_at", "resampled", of="metric"),
        **same("rows", "regret", "correlation"),
    }

    metric: Metric
    numbers: Numbers
    rows: Sequence[Mapping[str, Any]]
    regret: Regret | None
    correlation: MetricCorrelation | None

    @property
    def values(self) -> Values:
        """The metric of each model."""
        return np.asarray(self.numbers[0])

    @property
    def ranks(self) -> Values | None:
        """1 is predicted best; None where the metric's source states no direction."""
        oriented = self.metric.oriented(self.values)
        return None if oriented is None else ranks(oriented)


def ranked_metric(
    metric: Metric,
    numbers: Numbers,
    n: int,
    reasons: Sequence[str | None],
    *,
    truth: Numbers | None,
    distinct: np.ndarray,
    seed: int,
) -> RankedMetric:
    """One metric over all models.

    Args:
        metric: What it is.
        numbers: Values, then replicates, `[1 + draws, models]`.
        n: Images, or batches, behind the number of each model.
        reasons: Why a number of a model is undefined.
        truth: True performance of the models under the same resamples; None without labels.
        distinct: Places of the models that are not copies of earlier ones: correlations are over these.
        seed: Of the resampled models of correlations.
    """
    oriented = metric.oriented(numbers)
    places: Iterable[float | None] = [None] * numbers.shape[1]
    chances, regret, correlation = places, None, None
    if oriented is not None:
        places = ranks(oriented[0])
        chances = shares_of_best(oriented[1:]).mean(0) if np.isfinite(numbers[1:]).any() else chances
        regret = None if truth is None else regret_of_picking(oriented, truth)
    rows = []
    for column, reason, rank, chance in zip(numbers.T, reasons, places, chances, strict=True):
        found = interval_of(column, n, metric)
        ends = {
            "low": found.low,
            "high": found.high,
            "method": found.method,
            "reason": reason or found.reason,
        }
        rows.append({"value": column[0], **ends, "rank": rank, "chance": chance})
    if truth is not None:
        used = distinct[np.isfinite(numbers[0, distinct])]
        correlation = correlation_with_intervals(numbers[:, used], truth[:, used], seed=seed)
    return RankedMetric(metric=metric, numbers=numbers, rows=rows, regret=regret, correlation=correlation)
