"""The error of a score relative to the score, and scores of parts of the prompts."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int, Int64, Shaped

from assay.analyses.calibration.gate import Draft
from assay.analyses.calibration.samples import Sample, judged
from assay.core.verdict import ONE_SIDED_95, Interval, Rule, Verdict, undefined_interval
from assay.stats import Estimate, RatioOfSums, RelativeErrors, relative_errors
from assay.stats.estimate import undefined_estimate


NO_VALUE = 1e-8  # below this a faithfulness is not a scale to compare its error with
SMALLEST_POOL = 100  # units below which no bound of a relative error holds for t5 or exponential values
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


def outermost(found: RelativeErrors, level: float, fewest: int) -> Interval:
    """The bounds of the only column; both 0 where nothing varies, else undefined below `fewest` units.

    A heavy tail that a sample has not shown makes any upper bound of a spread too low: over t5 and
    exponential values about twice as often as the bound says, more often with fewer units. Upper bounds have
    min(1 / 2, n / 250) of the error that is allowed.
    """
    if found.value[0] == 0:
        return Interval(low=0.0, high=0.0, level=level, method="outermost", reason="degenerate")
    if found.n < fewest:
        return undefined_interval(level, "outermost", "too_few")
    low = float(found.bounds(level)[0, 0])
    high = float(found.bounds(1 - (1 - level) * min(0.5, found.n / 250))[1, 0])
    return Interval(low=low, high=high, level=level, method="outermost")


def relative_error(
    statistic: RatioOfSums,
    table: Float64[np.ndarray, "2 n"],
    n_at: float | int,
    *,
    rng: np.random.Generator,
    level: float = ONE_SIDED_95,
) -> Estimate:
    """Standard error of a ratio of sums at another sample size over its absolute value.

    Args:
        statistic: The ratio.
        table: Its components, one row each.
        n_at: Units of the sample in question.
        rng: Source of the resamples.
        level: Two-sided coverage of the bounds.

    Returns:
        With the outermost of three bounds, undefined below 100 units (`too_few`). Undefined where the value
        is (`zero_denominator`) or is below 1e-8 (`zero_mean`).
    """
    value = float(statistic.of_sums(table.sum(axis=1), table.shape[1]))
    reason = "zero_denominator" if math.isnan(value) else "zero_mean" if abs(value) < NO_VALUE else None
    if reason is not None:
        return undefined_estimate(reason)
    found = relative_errors(*statistic.pair(table), n_at=n_at, rng=rng)
    return Estimate(value=float(found.value[0]), interval=outermost(found, level, SMALLEST_POOL))


def by_relative_error(
    rule: Rule, published: float, error: Estimate, data: Sample, draft: Draft, *, on_error: Rule | None = None
) -> Verdict:
    """The published rule on its own number, `on_error` (default: the same) on the relative standard error."""
    if error.reason:
        return draft.undefined(error.reason)
    assert error.interval is not None
    draft.warn("zero_variance", error.value == 0)
    draft.values = {**draft.values, "relative_standard_error": error.value}
    verdict = judged(on_error or rule, error.value, error.value, error.interval, data.n, fewest=SMALLEST_POOL)
    return draft.verdict(verdict, published=rule.published(published))


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
