"""The error of a score relative to the score, and scores of parts of the prompts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int, Int64, Shaped
from scipy import special

from assay.calibration._samples import Sample, judged, limits
from assay.calibration.gate import undefined
from assay.measurement import ONE_SIDED_95, Interval, Rule, Verdict
from assay.stats import Estimate, RatioOfSums, standard_deviation


NO_VALUE = 1e-8  # below this a faithfulness is no scale to compare its error with
FAINT = 3  # standard errors from 0 below which a score cannot be told from it


def near_zero(statistic: RatioOfSums, table: Float64[np.ndarray, "2 n"]) -> tuple[str, ...]:
    """`score_near_zero` where a score lies within three standard errors of 0.

    An error of it in its own unit may then be small, and one relative to it large, while neither says more
    than that the score may be 0.
    """
    n = table.shape[1]
    value = float(statistic.of_sums(table.sum(axis=1), n))
    if n < 2 or math.isnan(value):
        return ()
    error = float(statistic.linearised(table).std(ddof=1)) / math.sqrt(n)
    return ("score_near_zero",) if abs(value) < FAINT * error else ()


def relative_error(
    statistic: RatioOfSums,
    table: Float64[np.ndarray, "2 n"],
    n_at: float | int,
    *,
    level: float = ONE_SIDED_95,
) -> tuple[Estimate, Interval]:
    """Standard error of a ratio of sums at another sample size over its absolute value.

    Args:
        statistic: The ratio.
        table: Its components, one row each.
        n_at: Units of the sample in question.
        level: Two-sided coverage of the bounds.

    Returns:
        With Bonett's bounds of the spread, the value taken as known; and the bounds that also allow for the
        error of the value itself, as independent errors of the logarithm. Undefined where the value is
        (`zero_denominator`) or is below 1e-8 (`zero_mean`).
    """
    value = float(statistic.of_sums(table.sum(axis=1), table.shape[1]))
    reason = "zero_denominator" if math.isnan(value) else "zero_mean" if abs(value) < NO_VALUE else None
    if reason is not None:
        nothing = Interval(low=math.nan, high=math.nan, level=level, method="bonett", reason=reason)
        return Estimate(value=math.nan, interval=nothing, reason=reason), nothing
    spread = standard_deviation(statistic.linearised(table), level=level)
    narrow = spread.interval
    assert narrow is not None
    scale = 1 / (math.sqrt(n_at) * abs(value))
    theta = spread.value * scale
    narrow = replace(narrow, low=narrow.low * scale, high=narrow.high * scale)
    wide = narrow
    if narrow.defined and narrow.low > 0:
        # The z value of the bounds times the relative error of the value on the whole table.
        of_value = (
            float(special.ndtri((1 + level) / 2)) * spread.value / (math.sqrt(table.shape[1]) * abs(value))
        )
        wide = replace(
            narrow,
            low=theta * math.exp(-math.hypot(math.log(theta / narrow.low), of_value)),
            high=theta * math.exp(math.hypot(math.log(narrow.high / theta), of_value)),
            method="bonett-quadrature",
        )
    return Estimate(value=theta, interval=narrow, reason=spread.reason), wide


def by_relative_error(
    rule: Rule,
    published: float,
    error: Estimate,
    wide: Interval,
    data: Sample,
    *,
    on_error: Rule | None = None,
    warnings: tuple[str, ...],
    details: Mapping[str, Any],
    values: Mapping[str, float | None],
) -> Verdict:
    """The published rule on its own number, `on_error` (default: the same) on the relative standard error."""
    on_error = on_error or rule
    if error.reason:
        return undefined(
            error.reason, values=values, thresholds=limits(on_error), warnings=warnings, details=details
        )
    assert error.interval is not None
    if error.value == 0:
        warnings += ("zero_variance",)
    if on_error.rigorous(error.interval) != on_error.rigorous(wide):
        warnings += ("value_uncertain",)
    verdict = judged(
        on_error,
        error.value,
        error.value,
        error.interval,
        data.n,
        values={**values, "relative_standard_error": error.value},
        warnings=warnings,
        details={**details, "interval_with_error_of_value": wide.to_dict()},
    )
    return replace(verdict, published=rule.published(published))


def scores_of(
    statistic: RatioOfSums, table: Float64[np.ndarray, "2 n"], subsets: Sequence[Int[np.ndarray, " _"]]
) -> Float64[np.ndarray, " n_subsets"]:
    """The score on each subset, those without one left out."""
    found = [statistic.of_sums(table[:, rows].sum(axis=1), len(rows)) for rows in subsets if len(rows)]
    scores = np.array(found, dtype=np.float64)
    return scores[np.isfinite(scores)]


def unit_labels(
    data: Sample, labels: Shaped[np.ndarray, " n_prompts"]
) -> tuple[Int64[np.ndarray, " n_units"], bool]:
    """A label per unit, coded, and whether every unit has only one."""
    codes = np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int64)
    of_unit = np.zeros(data.n, dtype=np.int64)
    of_unit[data.unit[::-1]] = codes[::-1]  # the first prompt of a unit speaks for it
    return of_unit, bool((of_unit[data.unit] == codes).all())


def shuffled(
    rng: np.random.Generator, n: int, strata: Int64[np.ndarray, " n"] | None
) -> Int64[np.ndarray, " n"]:
    """A random order of 0..n-1, every stretch of which holds the strata in about their proportions."""
    order = rng.permutation(n)
    if strata is None:
        return order
    place = np.empty(n)
    for stratum in np.unique(strata):
        members = order[strata[order] == stratum]
        place[members] = (np.arange(len(members)) + rng.random()) / len(members)
    return np.argsort(place, kind="stable")
