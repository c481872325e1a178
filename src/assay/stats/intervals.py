"""Confidence intervals of what circuits are measured by: arrays in, `Interval` out.

A statistic enters as a function of sums over examples. A bootstrap resample is then one row of
draw counts times the table of per-example components, and the jackknife is a subtraction, so
thousands of resamples of many quantities cost one matrix product.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy
from jaxtyping import Float, Float64, Int, Real

from assay.core.errors import InputError, check_fraction, check_least, check_name
from assay.core.verdict import Interval, undefined_interval
from assay.stats._checks import EQUAL, finite


OfSums = Callable[[Float[np.ndarray, "*draws n_components"], int], Float[np.ndarray, "*draws"]]

N_RESAMPLES = 2000
UNDEFINED_SHARE = 0.01  # replicates that may be undefined before the interval is
_BLOCK = 1 << 22  # draws counted at a time
_N_BETS = 200
# Shares of the largest bet 1 / m, above which a value of 0 ruins.
_BETS = (np.arange(_N_BETS) + 0.5) / _N_BETS
_Values = Float64[np.ndarray, "_"]


def draw_counts(
    n: int, n_resamples: int, rng: np.random.Generator, draws: Int[np.ndarray, "n_resamples n"] | None = None
) -> Float64[np.ndarray, "n_resamples n"]:
    """How often each of `n` examples is drawn in each resample, with replacement.

    Args:
        n: Number of examples.
        n_resamples: Number of resamples, at least 1.
        rng: Source of the index matrix `integers(0, n, (n_resamples, n))`.
        draws: Given index matrix instead, `[n_resamples, n]`.
    """
    check_least(1, n_resamples=n_resamples)
    rows = max(1, _BLOCK // max(n, 1))
    counts = np.empty((n_resamples, n))
    for start in range(0, n_resamples, rows):
        stop = min(start + rows, n_resamples)
        block = rng.integers(0, n, (stop - start, n)) if draws is None else draws[start:stop]
        flat = block + n * np.arange(stop - start)[:, None]
        counts[start:stop] = np.bincount(flat.ravel(), minlength=n * (stop - start)).reshape(-1, n)
    return counts


def bootstrap_interval(
    values: Float64[np.ndarray, "n_components n"],
    of_sums: OfSums,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    method: str = "bca",
    n_resamples: int = N_RESAMPLES,
    draws: Int[np.ndarray, "n_resamples n"] | None = None,
) -> Interval:
    """Bootstrap interval over examples of any function of sums over examples.

    Args:
        values: Per-example components, one row each, finite.
        of_sums: Vectorised `(sums [..., n_components], n) -> [...]`; NaN where undefined.
        rng: Source of the resamples.
        level: Two-sided coverage.
        method: `bca` (bias-corrected and accelerated) or `percentile`.
        n_resamples: Number of resamples.
        draws: Given index matrix `[n_resamples, n]` instead of random ones.

    Returns:
        NaN ends when there are fewer than two examples (`too_few`) or more than 1 % of the replicates are
        undefined (`undefined_replicates`). All replicates equal: both ends at the value, reason
        `degenerate`. BCa falls back to percentiles, reason `bca_undefined`, when every replicate lies on
        one side of the value.

    References:
        Efron (1987), doi:10.1080/01621459.1987.10478410.
    """
    check_name("bootstrap method", method, ("bca", "percentile"))
    n = values.shape[1]
    if n < 2:
        return undefined_interval(level, method, "too_few")
    totals = values.sum(axis=1)
    point = float(of_sums(totals, n))
    replicates = of_sums(draw_counts(n, n_resamples, rng, draws) @ values.T, n)
    defined = replicates[np.isfinite(replicates)]
    if math.isnan(point) or len(defined) < (1 - UNDEFINED_SHARE) * len(replicates):
        return undefined_interval(level, method, "undefined_replicates")
    if np.ptp(defined) <= EQUAL * max(abs(point), float(np.abs(defined).max())):
        return Interval(low=point, high=point, level=level, method=method, reason="degenerate")
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    reason = None
    if method == "bca":
        left_out = of_sums(totals - values.T, n - 1)
        adjusted = _bca_levels(tails, point, defined, left_out)
        if np.isfinite(adjusted).all():
            tails = adjusted
        else:
            method, reason = "percentile", "bca_undefined"
    low, high = np.quantile(defined, tails)
    return Interval(low=float(low), high=float(high), level=level, method=method, reason=reason)


def _bca_levels(tails: _Values, point: float, replicates: _Values, left_out: _Values) -> _Values:
    """Percentile levels corrected for bias and acceleration (Efron 1987); non-finite where undefined."""
    below = float(((replicates < point).sum() + (replicates <= point).sum()) / (2 * len(replicates)))
    if not 0 < below < 1:
        return np.full(2, np.nan)
    bias = scipy.special.ndtri(below)
    pull = left_out.mean() - left_out
    spread = (pull**2).sum()
    acceleration = (pull**3).sum() / (6 * spread**1.5) if spread > 0 else 0.0
    shifted = bias + scipy.special.ndtri(tails)
    return scipy.special.ndtr(bias + shifted / (1 - acceleration * shifted))


def delta_interval(point: float, influence: Float64[np.ndarray, " n"], *, level: float = 0.95) -> Interval:
    """Student interval from linearised per-example values: point +- t sd(influence) / root n.

    Args:
        point: The estimate.
        influence: Change of the estimate per unit weight of each example; their spread (ddof 1) counts.
        level: Two-sided coverage.

    Returns:
        Undefined (`too_few`) below two examples; both ends at the point (`degenerate`) at zero spread.
    """
    n = len(influence)
    if n < 2:
        return undefined_interval(level, "delta", "too_few")
    margin = float(scipy.stats.t.ppf((1 + level) / 2, n - 1) * influence.std(ddof=1) / math.sqrt(n))
    reason = None if margin > 0 else "degenerate"
    return Interval(low=point - margin, high=point + margin, level=level, method="delta", reason=reason)


def studentized_interval(
    point: float,
    error: float,
    replicates: Float64[np.ndarray, " n_resamples"],
    errors: Float64[np.ndarray, " n_resamples"],
    *,
    level: float = 0.95,
    low_tail: float | None = None,
) -> Interval:
    """Bootstrap-t interval: quantiles of the studentised replicates in place of Student's.

    [point - t_high error, point - t_low error], with t = (replicate - point) / its own standard error. Its
    ends are second-order correct for skewed data, where Student's are not.

    Args:
        point: The estimate.
        error: Its standard error, >= 0.
        replicates: The estimate in each resample; NaN where undefined.
        errors: Its standard error there, by the same formula.
        level: Two-sided coverage; each end alone is a bound at (1 + level) / 2.
        low_tail: Error of the lower bound where it is not (1 - level) / 2.

    Returns:
        Both ends at the point (`degenerate`) at zero error. An end is infinite where a resample without any
        spread decides it. Undefined (`undefined_replicates`) where more than 1 % of the replicates are.

    References:
        Efron (1981), doi:10.2307/3314608; Hall (1988), doi:10.1214/aos/1176350933.

    Example:
        >>> interval = studentized_interval(1.0, 0.5, np.array([0.5, 1.0, 2.0]), np.array([0.5, 0.5, 0.5]))
        >>> interval.low, interval.high
        (0.0, 1.5)
    """
    method = "bootstrap-t"
    defined = np.isfinite(replicates) & (errors >= 0)
    few = defined.sum() < max(1.0, (1 - UNDEFINED_SHARE) * len(replicates))
    if few or not (math.isfinite(point) and math.isfinite(error)):
        return undefined_interval(level, method, "undefined_replicates")
    if error == 0:
        return Interval(low=point, high=point, level=level, method=method, reason="degenerate")
    distance = replicates[defined] - point
    # A resample of equal values has no error of its own: infinitely far, or not at all.
    limits = np.where(distance == 0, 0.0, np.copysign(math.inf, distance))
    t = np.divide(distance, errors[defined], out=limits, where=errors[defined] > 0)
    tail = (1 - level) / 2
    # Neighbours are not interpolated: one of them may be infinite.
    above = float(np.quantile(t, 1 - (tail if low_tail is None else low_tail), method="higher"))
    below = float(np.quantile(t, tail, method="lower"))
    return Interval(low=point - above * error, high=point - below * error, level=level, method=method)


def outermost(first: Interval, *others: Interval) -> Interval:
    """The lowest lower and the highest upper end of intervals of one number; the method of the first.

    Returns:
        The first undefined one where there is any.
    """
    intervals = (first, *others)
    for each in intervals:
        if not each.defined:
            return each
    low, high = min(each.low for each in intervals), max(each.high for each in intervals)
    return replace(first, low=low, high=high, reason=None)


def resampled_ratios(
    numerators: Float64[np.ndarray, "n k"],
    denominator: Float64[np.ndarray, " n"],
    counts: Float64[np.ndarray, "n_resamples n"],
) -> tuple[Float64[np.ndarray, "n_resamples k"], Float64[np.ndarray, "n_resamples k"]]:
    """Ratios of sums in each resample, and their standard errors there.

    R = sum N / sum D; its error is root(sum (N - R D)^2 / (n (n - 1))) over the mean of D. All from sums, so
    that resamples are one matrix product.

    Args:
        numerators: One column for each ratio.
        denominator: Of all of them; ones for means.
        counts: How often each example is drawn, rows that sum to n.

    Returns:
        Ratios and errors; not finite where the denominator's sum is 0.
    """
    n = len(denominator)
    with np.errstate(divide="ignore", invalid="ignore"):
        centre = numerators.sum(axis=0) / denominator.sum()
        # Around the ratio itself, or squares would cancel; what rounding leaves of equal values is none.
        left = numerators - centre * denominator[:, None]
        left[:, np.abs(left).max(axis=0) <= EQUAL * np.abs(numerators).max(axis=0)] = 0.0
        bottom = (counts @ denominator)[:, None]
        moved = (counts @ left) / bottom
        squares = (
            counts @ left**2
            - 2 * moved * (counts @ (left * denominator[:, None]))
            + moved**2 * (counts @ denominator**2)[:, None]
        )
        errors = np.sqrt(np.maximum(squares, 0.0) * n / (n - 1)) / np.abs(bottom)
    return centre + moved, errors


def fieller_interval(
    numerator: Float64[np.ndarray, " n"], denominator: Float64[np.ndarray, " n"], *, level: float = 0.95
) -> Interval:
    """Interval of a ratio of means that stays honest when the denominator is near zero.

    All F with (mean(num) - F mean(den))^2 <= t^2 Var(num - F den) / n.

    Returns:
        Undefined with reason `unbounded` when the denominator's mean is not distinguishable from zero, and
        `too_few` below two examples. Both ends at the ratio (`degenerate`) where every example has it.

    References:
        Fieller (1954), doi:10.1111/j.2517-6161.1954.tb00159.x.
    """
    n = len(numerator)
    if n < 2:
        return undefined_interval(level, "fieller", "too_few")
    t = scipy.stats.t.ppf((1 + level) / 2, n - 1)
    ratio = float(numerator.sum() / denominator.sum())
    if np.abs(numerator - ratio * denominator).max() <= EQUAL * np.abs(numerator).max():
        return Interval(low=ratio, high=ratio, level=level, method="fieller", reason="degenerate")
    covariance = np.cov(numerator, denominator, ddof=1) * t**2 / n
    top, bottom = numerator.mean(), denominator.mean()
    a = bottom**2 - covariance[1, 1]
    b = top * bottom - covariance[0, 1]
    c = top**2 - covariance[0, 0]
    if a <= 0:
        return undefined_interval(level, "fieller", "unbounded")
    root = math.sqrt(max(b * b - a * c, 0.0))
    return Interval(low=float((b - root) / a), high=float((b + root) / a), level=level, method="fieller")


def clopper_pearson(successes: int, n: int, *, level: float = 0.95) -> Interval:
    """Exact interval of a share, coverage at least `level` for every n.

    Args:
        successes: Number of successes, 0..n.
        n: Number of trials; 0 gives an undefined interval (`too_few`).
        level: Two-sided coverage.

    References:
        Clopper and Pearson (1934), doi:10.1093/biomet/26.4.404.

    Example:
        >>> interval = clopper_pearson(10, 10)
        >>> round(interval.low, 4), interval.high
        (0.6915, 1.0)
    """
    if not 0 <= successes <= n:
        raise InputError(f"successes is {successes} of n = {n}; expected a count between 0 and n")
    if n == 0:
        return undefined_interval(level, "clopper-pearson", "too_few")
    ends = scipy.stats.binomtest(successes, n).proportion_ci(confidence_level=level, method="exact")
    return Interval(low=float(ends.low), high=float(ends.high), level=level, method="clopper-pearson")


def fisher_z_interval(r: float, n: int, *, level: float = 0.95, kind: str = "pearson") -> Interval:
    """Interval of a correlation through z = atanh(r), asymmetric around r.

    Args:
        r: Correlation in [-1, 1].
        n: Number of pairs; below 4 the interval is undefined (`too_few`).
        level: Two-sided coverage.
        kind: `pearson` (standard error 1 / root(n - 3)) or `spearman` (root((1 + r^2 / 2) / (n - 3))).

    Returns:
        NaN ends for NaN r; both ends at r (`degenerate`) for |r| = 1.

    References:
        Fisher (1921); Bonett and Wright (2000), doi:10.1007/BF02294183.
    """
    check_name("kind", kind, ("pearson", "spearman"))
    if abs(r) > 1:
        raise InputError(f"r is {r}; expected a correlation in [-1, 1]")
    if math.isnan(r) or n < 4:
        return undefined_interval(level, "fisher-z", "undefined" if math.isnan(r) else "too_few")
    if abs(r) == 1:
        return Interval(low=r, high=r, level=level, method="fisher-z", reason="degenerate")
    inflation = 1 + r * r / 2 if kind == "spearman" else 1.0
    margin = float(scipy.special.ndtri((1 + level) / 2)) * math.sqrt(inflation / (n - 3))
    z = math.atanh(r)
    return Interval(low=math.tanh(z - margin), high=math.tanh(z + margin), level=level, method="fisher-z")


def bounded_mean(
    values: Real[np.ndarray, " n"], *, level: float = 0.95, bounds: tuple[float, float] = (0.0, 1.0)
) -> Interval:
    """Interval of the mean of bounded values, coverage at least `level` for every n and distribution.

    A gambler who starts with 1 and stakes on "the mean is above m" has, if it is not, an expected capital of
    at most 1 after any number of values; capital 20 then has a probability of at most 5 % (Markov). The lower
    bound is the smallest m that such a capital does not refute.

    The lower end is the smallest m with K(m) < 1 / alpha, alpha = (1 - level) / 2: the capital K(m) is the
    mean over 200 bets lambda, evenly spaced in (0, 1 / m), of prod_i (1 + lambda (z_i - m)). The upper end is
    that of the mirrored values 1 - z. The order of the values does not count.

    Args:
        values: Independent values of one mean, inside `bounds`.
        level: Two-sided coverage; each end alone is a bound at (1 + level) / 2.
        bounds: Smallest and largest value possible, known before any is seen.

    Returns:
        `too_few` without values. Equal values have an interval that is not empty.

    Raises:
        InputError: For a value outside the bounds, and a level outside (0, 1).

    Notes:
        Wider than the exact interval of a share: for values that are 0 or 1, take `clopper_pearson`.

    References:
        Waudby-Smith and Ramdas (2024), doi:10.1093/jrsssb/qkad009 (fixed bets; a mean of capitals is one).

    Example:
        >>> interval = bounded_mean(np.ones(20), level=0.90)
        >>> round(interval.low, 3), interval.high
        (0.801, 1.0)
    """
    check_fraction(level=level)
    if not len(values):
        return undefined_interval(level, "betting", "too_few")
    lowest, highest = bounds
    z = finite(values)
    rounding = EQUAL * (highest - lowest)
    if z.min() < lowest - rounding or z.max() > highest + rounding:
        raise InputError(f"values run from {z.min():g} to {z.max():g}; expected values in {bounds}")
    z = np.clip((z - lowest) / (highest - lowest), 0.0, 1.0)
    limit = math.log(2 / (1 - level))
    low, high = (lowest + (highest - lowest) * end for end in (_lower(z, limit), 1 - _lower(1 - z, limit)))
    return Interval(low=low, high=high, level=level, method="betting")


def _lower(z: Float64[np.ndarray, " n"], limit: float) -> float:
    """The mean at which the log capital falls to the limit; the capital falls as the mean rises."""
    distinct, counts = np.unique(z, return_counts=True)

    def excess(mean: float) -> float:
        log_growth = np.log1p(_BETS[:, None] * (distinct / mean - 1)) @ counts
        return float(scipy.special.logsumexp(log_growth)) - math.log(_N_BETS) - limit

    smallest = 1e-12
    return 0.0 if excess(smallest) < 0 else float(scipy.optimize.brentq(excess, smallest, 1.0, xtol=1e-12))
