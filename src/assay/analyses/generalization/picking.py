"""One metric over all models, and what picking by it is worth: ranks, chances, regret, correlation."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64

from assay.analyses.generalization.evaluation import TaskCorrelation, correlate
from assay.analyses.generalization.metrics import Metric
from assay.core.random import stream
from assay.core.record import Record, same
from assay.core.verdict import Interval, undefined_interval
from assay.stats import kendall_tau_rows
from assay.stats.resampled import ResampledValue


Values = Float64[np.ndarray, " models"]
Numbers = Float64[np.ndarray, "rows models"]  # the value, then a replicate per resample

UNDEFINED_SHARE = 0.05  # replicates that may be undefined before the interval is
FEWEST_MODELS = 5  # below that, resampled models say nothing about a correlation
CORRELATIONS = ("r2", "srcc", "krcc")
_PAIR_BLOCK = 1 << 24  # pairs of models compared at a time


def interval_of(numbers: Float64[np.ndarray, " rows"], n: int, metric: Metric, level: float) -> Interval:
    """The interval of a metric of one model, see `ResampledValue`; undefined without replicates.

    Args:
        numbers: The value, then its replicates.
        n: Images, or batches, behind them.
        metric: Gives the bounds.
        level: Coverage.
    """
    value, draws = float(numbers[0]), numbers[1:]
    if math.isnan(value) or not np.isfinite(draws).any():
        return undefined_interval(level, "resampled", "no_replicates")
    if np.isfinite(draws).mean() < 1 - UNDEFINED_SHARE:
        return undefined_interval(level, "resampled", "undefined_replicates")
    return ResampledValue(value=value, draws=draws, n=n, bounds=metric.bounds).interval(level=level)


def ranks(oriented: Values) -> Values:
    """1 for the model predicted best; ties share the smaller rank; NaN where the metric is."""
    places = np.full(len(oriented), np.nan)
    defined = np.isfinite(oriented)
    places[defined] = scipy.stats.rankdata(-oriented[defined], method="min")
    return places


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


def regret_of_picking(oriented: Numbers, performance: Numbers, *, level: float = 0.95) -> Regret:
    """Regret of picking the model of the highest metric.

    E_b[ max_m perf_b(m) - perf_b(argmax_m metric_b(m)) ], b a resample of the images.

    Args:
        oriented: The metric of each model, higher predicted better; NaN is never picked. A metric without
            replicates picks the same model in every resample.
        performance: True performance of each model, under the same resamples.
        level: Coverage of the interval.

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
        interval=_percentiles(np.array(regrets), len(regrets), level),
        random=float((best - performance.mean(1))[1:].mean()),
    )


@dataclass(frozen=True, kw_only=True)
class MetricCorrelation(Record):
    """How a metric goes with true performance over the models, with intervals.

    Attributes:
        point: The three correlations, signed.
        intervals: `r2`, `srcc`, `krcc` -> percentiles over resampled models and images.
    """

    record_layout = {"n": "point.n", **same("**estimates")}

    point: TaskCorrelation
    intervals: dict[str, Interval]

    @property
    def estimates(self) -> dict[str, dict[str, Any]]:
        """Each correlation with its interval."""
        return {
            name: {"value": getattr(self.point, name), "interval": interval}
            for name, interval in self.intervals.items()
        }


def correlation_with_intervals(
    metric: Numbers, performance: Numbers, *, level: float = 0.95, seed: int = 0
) -> MetricCorrelation | None:
    """Correlations over models, with intervals from resamples of models and images together.

    Args:
        metric: Of each model, finite values.
        performance: Of each model, under the same resamples.
        level: Two-sided coverage.
        seed: Of the resamples of the models.

    Returns:
        None for fewer than 3 models, or where nothing varies. NaN ends for fewer than 5 models, without
        replicates, or where more than 5 % of the resamples have no correlation.
    """
    n_models = metric.shape[1]
    if n_models < 3 or np.ptp(metric[0]) == 0 or np.ptp(performance[0]) == 0:
        return None
    point = correlate(metric[0], performance[0])
    has_draws = np.isfinite(metric[1:]).any()
    if not has_draws or n_models < FEWEST_MODELS:
        nothing = undefined_interval(level, "percentile", "too_few" if has_draws else "no_replicates")
        return MetricCorrelation(point=point, intervals=dict.fromkeys(CORRELATIONS, nothing))
    n_draws = len(performance) - 1
    chosen = stream(seed, "rank/models").integers(0, n_models, (n_draws, n_models))
    x, y = (np.take_along_axis(each[1:], chosen, axis=1) for each in (metric, performance))
    finite = np.isfinite(x).all(1) & np.isfinite(y).all(1)
    x, y = x[finite], y[finite]
    ranked = (scipy.stats.rankdata(each, axis=1) for each in (x, y))
    draws = {"r2": _pearson(x, y) ** 2, "srcc": _pearson(*ranked), "krcc": _tau_b(x, y)}
    return MetricCorrelation(
        point=point,
        intervals={name: _percentiles(each, n_draws, level) for name, each in draws.items()},
    )


def _percentiles(draws: Float64[np.ndarray, " draws"], n: int, level: float) -> Interval:
    """Percentiles of the defined ones of `n` replicates."""
    defined = draws[np.isfinite(draws)]
    if len(defined) < (1 - UNDEFINED_SHARE) * n:
        return undefined_interval(level, "percentile", "undefined_replicates")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(low=float(low), high=float(high), level=level, method="percentile")


def _pearson(x: Numbers, y: Numbers) -> Float64[np.ndarray, " rows"]:
    x, y = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
    size = np.sqrt((x * x).sum(1) * (y * y).sum(1))
    varies = (np.ptp(x, axis=1) > 0) & (np.ptp(y, axis=1) > 0)
    return np.asarray(np.divide((x * y).sum(1), size, out=np.full(len(x), np.nan), where=varies & (size > 0)))


def _tau_b(x: Numbers, y: Numbers) -> Float64[np.ndarray, " rows"]:
    """Kendall's tau-b, some rows at a time: all pairs of models of all rows would be too many."""
    n = x.shape[1]
    block = max(1, _PAIR_BLOCK // max(1, n * (n - 1) // 2))
    starts = range(0, max(1, len(x)), block)
    return np.concatenate([kendall_tau_rows(x[at : at + block], y[at : at + block]) for at in starts])


# What tables and pictures say about a metric.
METRIC_FACTS = ("key", "name", "summary", "direction", "best_at", "resampled")


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedMetric(Record):
    """One metric over all models.

    Attributes:
        metric: What it is.
        numbers: Value of each model, NaN where undefined, then its replicates, `[1 + draws, models]`.
        sizes: Images, or batches, behind the number of each model.
        reasons: Why a value or an interval is missing, None where it is not.
        truth: True performance of the models under the same resamples; None without labels.
        distinct: Models that correlations are over: not copies of one another.
        level: Coverage of the intervals.
        seed: Of the resampled models of correlations.
    """

    record_layout = {**same(*METRIC_FACTS, of="metric"), **same("rows", "regret", "correlation")}

    metric: Metric
    numbers: Numbers
    sizes: tuple[int, ...]
    reasons: tuple[str | None, ...]
    truth: Numbers | None
    distinct: Bool[np.ndarray, " models"]
    level: float
    seed: int

    @property
    def values(self) -> Values:
        """The metric of each model."""
        return np.asarray(self.numbers[0])

    @cached_property
    def intervals(self) -> tuple[Interval, ...]:
        """Over resampled images."""
        columns = zip(self.numbers.T, self.sizes, strict=True)
        return tuple(interval_of(column, n, self.metric, self.level) for column, n in columns)

    @property
    def ranks(self) -> Values | None:
        """1 is predicted best; None where the metric's source states no direction."""
        oriented = self.metric.oriented(self.values)
        return None if oriented is None else ranks(oriented)

    @cached_property
    def chances(self) -> Values | None:
        """Share of the resamples in which each model is the best by the metric; ties share it equally.

        None without direction or replicates.
        """
        oriented = self.metric.oriented(self.numbers[1:])
        if oriented is None or not np.isfinite(oriented).any():
            return None
        return np.asarray(shares_of_best(oriented).mean(0))

    @cached_property
    def regret(self) -> Regret | None:
        """Of picking by it; None without labels or direction."""
        oriented = self.metric.oriented(self.numbers)
        if self.truth is None or oriented is None:
            return None
        return regret_of_picking(oriented, self.truth, level=self.level)

    @cached_property
    def correlation(self) -> MetricCorrelation | None:
        """With true performance; None without labels."""
        if self.truth is None:
            return None
        used = np.isfinite(self.values) & self.distinct
        return correlation_with_intervals(
            self.numbers[:, used], self.truth[:, used], level=self.level, seed=self.seed
        )

    def rows(self) -> list[dict[str, Any]]:
        """The metric of each model, as in documents."""
        return [
            {
                "value": self.values[place],
                "low": interval.low,
                "high": interval.high,
                "method": interval.method,
                "reason": self.reasons[place] or interval.reason,
                "rank": None if self.ranks is None else self.ranks[place],
                "chance": None if self.chances is None else self.chances[place],
            }
            for place, interval in enumerate(self.intervals)
        ]
