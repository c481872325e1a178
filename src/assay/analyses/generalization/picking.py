"""One metric over all models, and what picking by it is worth: ranks, chances, regret, correlation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64

from assay.analyses.generalization.evaluation import TaskCorrelation, correlate
from assay.analyses.generalization.predictor import MetricEstimate, Predictor
from assay.core.random import stream
from assay.core.record import Record, same
from assay.core.verdict import Interval, undefined_interval
from assay.stats import kendall_tau_rows
from assay.stats.resampled import ResampledValue


Values = Float64[np.ndarray, " models"]
Replicates = Float64[np.ndarray, "draws models"]

UNDEFINED_SHARE = 0.05  # replicates that may be undefined before the interval is
FEWEST_MODELS = 5  # below that, resampled models say nothing about a correlation
_PAIR_BLOCK = 1 << 24  # pairs of models compared at a time


def interval_of(estimate: MetricEstimate, metric: Predictor, level: float) -> Interval:
    """The interval of a metric of one model, see `ResampledValue`; undefined without replicates."""
    if estimate.draws is None or math.isnan(estimate.value):
        return undefined_interval(level, "resampled", estimate.reason or "no_replicates")
    if np.isfinite(estimate.draws).mean() < 1 - UNDEFINED_SHARE:
        return undefined_interval(level, "resampled", "undefined_replicates")
    number = ResampledValue(value=estimate.value, draws=estimate.draws, n=estimate.n, bounds=metric.bounds)
    return number.interval(level=level)


def ranks(oriented: Values) -> Float64[np.ndarray, " models"]:
    """1 for the model predicted best; ties share the smaller rank; NaN where the metric is."""
    places = np.full(len(oriented), np.nan)
    defined = np.isfinite(oriented)
    places[defined] = scipy.stats.rankdata(-oriented[defined], method="min")
    return places


def best_chances(oriented: Replicates) -> Values:
    """Share of the resamples in which each model is the best by a metric; ties share it equally."""
    return np.asarray(_shares_of_best(oriented).mean(0))


def _shares_of_best(oriented: Replicates) -> Replicates:
    """Of each resample: 1 / ties for each model at the top; all equal where no model has a value."""
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


def regret_of_picking(
    oriented: Values,
    oriented_draws: Replicates,
    performance: Values,
    performance_draws: Replicates,
    *,
    level: float = 0.95,
) -> Regret:
    """Regret of picking the model of the highest metric.

    E_b[ max_m perf_b(m) - perf_b(argmax_m metric_b(m)) ], b a resample of the images.

    Args:
        oriented: The metric of each model, higher predicted better; NaN is never picked.
        oriented_draws: Its replicates.
        performance: True performance of each model.
        performance_draws: Its replicates, of the same resamples.
        level: Coverage of the interval.

    Returns:
        In the unit of performance, >= 0; lower is better. The maximum over resampled performances is a little
        too good, for every metric alike: `random` is the yardstick, not 0.
    """
    regret = performance_draws.max(1) - (_shares_of_best(oriented_draws) * performance_draws).sum(1)
    picked = _shares_of_best(oriented[None])[0]
    return Regret(
        observed=float(performance.max() - picked @ performance),
        expected=float(regret.mean()),
        interval=_percentile_interval(regret, len(regret), level),
        random=float((performance_draws.max(1) - performance_draws.mean(1)).mean()),
    )


@dataclass(frozen=True, kw_only=True)
class CorrelationEstimate(Record):
    """One correlation of a metric with true performance, and its interval."""

    value: float
    interval: Interval


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
    def estimates(self) -> dict[str, CorrelationEstimate]:
        """Each correlation with its interval."""
        return {
            name: CorrelationEstimate(value=getattr(self.point, name), interval=interval)
            for name, interval in self.intervals.items()
        }


def correlation_with_intervals(
    point: TaskCorrelation,
    metric_draws: Replicates | None,
    performance_draws: Replicates,
    *,
    level: float = 0.95,
    seed: int = 0,
) -> MetricCorrelation:
    """Intervals of the correlations from resamples of models and images together.

    Args:
        point: The correlations themselves.
        metric_draws: Replicates of the metric; None: the metric does not vary with the images.
        performance_draws: Replicates of performance.
        level: Two-sided coverage.
        seed: Of the resamples of the models.

    Returns:
        NaN ends for fewer than 5 models, without replicates, or where more than 5 % of the resamples have no
        correlation.
    """
    n_draws, n_models = performance_draws.shape
    if metric_draws is None or n_models < FEWEST_MODELS:
        why = "no_replicates" if metric_draws is None else "too_few"
        nothing = undefined_interval(level, "percentile", why)
        return MetricCorrelation(point=point, intervals=dict.fromkeys(("r2", "srcc", "krcc"), nothing))
    rows = stream(seed, "rank/models").integers(0, n_models, (n_draws, n_models))
    x, y = (np.take_along_axis(each, rows, axis=1) for each in (metric_draws, performance_draws))
    finite = np.isfinite(x).all(1) & np.isfinite(y).all(1)
    x, y = x[finite], y[finite]
    ranked = (scipy.stats.rankdata(each, axis=1) for each in (x, y))
    correlations = {"r2": _pearson(x, y) ** 2, "srcc": _pearson(*ranked), "krcc": _tau_b(x, y)}
    return MetricCorrelation(
        point=point,
        intervals={name: _percentile_interval(draws, n_draws, level) for name, draws in correlations.items()},
    )


def _percentile_interval(draws: Float64[np.ndarray, " draws"], n: int, level: float) -> Interval:
    """Percentiles of the defined ones of `n` replicates."""
    defined = draws[np.isfinite(draws)]
    if len(defined) < (1 - UNDEFINED_SHARE) * n:
        return undefined_interval(level, "percentile", "undefined_replicates")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(low=float(low), high=float(high), level=level, method="percentile")


def _pearson(x: Replicates, y: Replicates) -> Float64[np.ndarray, " draws"]:
    x, y = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
    size = np.sqrt((x * x).sum(1) * (y * y).sum(1))
    varies = (np.ptp(x, axis=1) > 0) & (np.ptp(y, axis=1) > 0)
    return np.asarray(np.divide((x * y).sum(1), size, out=np.full(len(x), np.nan), where=varies & (size > 0)))


def _tau_b(x: Replicates, y: Replicates) -> Float64[np.ndarray, " draws"]:
    """Kendall's tau-b, some rows at a time: all pairs of models of all rows would be too many."""
    n = x.shape[1]
    block = max(1, _PAIR_BLOCK // max(1, n * (n - 1) // 2))
    starts = range(0, max(1, len(x)), block)
    return np.concatenate([kendall_tau_rows(x[at : at + block], y[at : at + block]) for at in starts])


# ------------------------------------------------------------------------------------------ columns


# What tables and pictures say about a metric.
METRIC_FACTS = ("key", "name", "summary", "direction", "best_at", "resampled")


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedMetric(Record):
    """One metric over all models.

    Attributes:
        metric: What it is.
        values: `[n_models]`, NaN where undefined.
        intervals: Over resampled images.
        reasons: Why a value or an interval is missing, None where it is not.
        ranks: 1 is predicted best; None where the metric's source states no direction.
        chances: Share of the resamples in which each model is the best by the metric; None likewise, or
            without replicates.
        regret: Of picking by it; None without labels or direction.
        correlation: With true performance; None without labels.
        draws: Replicates `[n_draws, n_models]`; None where there are none.
    """

    record_layout = {**same(*METRIC_FACTS, of="metric"), **same("rows", "regret", "correlation")}

    metric: Predictor
    values: Float64[np.ndarray, " models"]
    intervals: tuple[Interval, ...]
    reasons: tuple[str | None, ...]
    ranks: Float64[np.ndarray, " models"] | None = None
    chances: Float64[np.ndarray, " models"] | None = None
    regret: Regret | None = None
    correlation: MetricCorrelation | None = None
    draws: Float64[np.ndarray, "draws models"] | None = None

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


def column_of(
    metric: Predictor,
    found: Sequence[MetricEstimate],
    truth: RankedMetric | None,
    distinct: Bool[np.ndarray, " models"] | None = None,
    *,
    level: float,
    seed: int,
) -> RankedMetric:
    """A metric over all models, put together from its estimates.

    Args:
        metric: What it is.
        found: Its estimate for each model.
        truth: True performance; None without labels.
        distinct: Models that correlations are over: not copies of one another. Default: all.
        level: Coverage of the intervals.
        seed: Of the resampled models of correlations.
    """
    values = np.array([each.value for each in found], dtype=np.float64)
    have = [each.draws for each in found if each.draws is not None]
    missing = np.full(len(have[0]) if have else 0, np.nan)
    draws = (
        np.stack([missing if each.draws is None else each.draws for each in found], axis=1) if have else None
    )
    oriented = metric.oriented(values)
    oriented_draws = None if draws is None else metric.oriented(draws)
    regret = correlation = None
    if truth is not None:
        assert truth.draws is not None
        used = np.isfinite(values) & (True if distinct is None else distinct)
        correlation = _correlation(values, draws, truth, used, level=level, seed=seed)
        if oriented is not None:
            # A metric that cannot be resampled picks the same model in every resample.
            picks = np.tile(oriented, (len(truth.draws), 1)) if oriented_draws is None else oriented_draws
            regret = regret_of_picking(oriented, picks, truth.values, truth.draws, level=level)
    return RankedMetric(
        metric=metric,
        values=values,
        intervals=tuple(interval_of(each, metric, level) for each in found),
        reasons=tuple(each.reason for each in found),
        ranks=None if oriented is None else ranks(oriented),
        chances=None if oriented_draws is None else best_chances(oriented_draws),
        regret=regret,
        correlation=correlation,
        draws=draws,
    )


def _correlation(
    values: Float64[np.ndarray, " models"],
    draws: Float64[np.ndarray, "draws models"] | None,
    truth: RankedMetric,
    used: Bool[np.ndarray, " models"],
    *,
    level: float,
    seed: int,
) -> MetricCorrelation | None:
    """Over the `used` models; None where these are fewer than 3, or nothing varies."""
    if used.sum() < 3 or np.ptp(values[used]) == 0 or np.ptp(truth.values[used]) == 0:
        return None
    assert truth.draws is not None
    return correlation_with_intervals(
        correlate(values[used], truth.values[used]),
        None if draws is None else draws[:, used],
        truth.draws[:, used],
        level=level,
        seed=seed,
    )
