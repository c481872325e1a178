"""Confidence intervals of what circuits are measured by: arrays in, `Interval` out.

A statistic enters as a function of sums over examples. A bootstrap resample is then one row of
draw counts times the table of per-example components, and the jackknife is a subtraction, so
thousands of resamples of many quantities cost one matrix product.

`RatioOfSums` covers means, recoveries, baseline-corrected recoveries and areas under a curve of them;
`FunctionOfSums` whatever else is a function of sums. Both resample without a model.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float, Float64, Int, Real

from assay.core.errors import FileFormatError, InputError, check_fraction, check_least, check_name
from assay.core.measurement import ONE_SIDED_95, Interval, undefined_interval
from assay.core.random import stream
from assay.core.record import BRIEF, Record
from assay.stats.estimate import EQUAL, Estimate, finite, varies


OfSums = Callable[[Float[np.ndarray, "*draws n_components"], int], Float[np.ndarray, "*draws"]]

N_RESAMPLES = 2000
_BLOCK = 1 << 22  # draws counted at a time
UNDEFINED_SHARE = 0.01  # replicates that may be undefined before the interval is
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


def bootstrap_spread(
    values: Float64[np.ndarray, "n_components n"],
    of_sums: OfSums,
    *,
    rng: np.random.Generator,
    n_resamples: int = N_RESAMPLES,
    draws: Int[np.ndarray, "n_resamples n"] | None = None,
) -> Estimate:
    """Standard deviation (ddof 0) of a function of sums over bootstrap resamples of the examples.

    Args:
        values: Per-example components, one row each, finite.
        of_sums: Vectorised `(sums [..., n_components], n) -> [...]`; NaN where undefined.
        rng: Source of the resamples.
        n_resamples: Number of resamples.
        draws: Given index matrix `[n_resamples, n]` instead of random ones.

    Returns:
        Undefined below two examples (`too_few`) or where more than 1 % of the replicates are undefined
        (`undefined_replicates`).

    References:
        Efron (1979), doi:10.1214/aos/1176344552.
    """
    n = values.shape[1]
    if n < 2:
        return Estimate.undefined("too_few")
    replicates = of_sums(draw_counts(n, n_resamples, rng, draws) @ values.T, n)
    defined = replicates[np.isfinite(replicates)]
    if len(defined) < (1 - UNDEFINED_SHARE) * len(replicates):
        return Estimate.undefined("undefined_replicates")
    return Estimate(value=float(defined.std()) if varies(defined) else 0.0)


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


Table = Float64[np.ndarray, "n_components n"]


@dataclass(frozen=True, kw_only=True)
class RatioOfSums(Record):
    """F = offset + scale * N / D, N and D linear in the sums of components.

    Attributes:
        numerator: Coefficient of each component's sum in N.
        denominator: The same for D; empty means the number of examples, so F is affine in means.
        offset: Added to the ratio.
        scale: Multiplies the ratio.
        smallest: The ratio is undefined where |D| < smallest * n.
        bounds: Of a mean: smallest and largest N that an example can have; its interval then holds for any
            distribution between them, at every n.
    """

    record_kind = "ratio-of-sums"

    numerator: Mapping[str, float]
    denominator: Mapping[str, float] = field(default_factory=dict)
    offset: float = 0.0
    scale: float = 1.0
    smallest: float = 1e-8
    bounds: tuple[float, float] | None = field(default=None, metadata=BRIEF)

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the per-example vectors it sums."""
        return tuple(dict.fromkeys((*self.numerator, *self.denominator)))

    def _coefficients(self) -> Float64[np.ndarray, "2 n_components"]:
        """Of N and of D. Used one by one: products with both round otherwise, and tied resamples part."""
        sides = (self.numerator, self.denominator)
        return np.array([[float(side.get(name, 0.0)) for name in self.components] for side in sides])

    def of_sums(self, sums: Float[np.ndarray, "*draws n_components"], n: int) -> Float[np.ndarray, "*draws"]:
        """F from the sums over `n` examples; NaN where the denominator vanishes."""
        pair = np.stack([sums @ side for side in self._coefficients()], axis=-1)
        if not self.denominator:
            pair[..., 1] = n
        return self._of_pair(pair, n)

    def _of_pair(self, sums: Float[np.ndarray, "*draws 2"], n: int) -> Float[np.ndarray, "*draws"]:
        """F from the sums N and D themselves."""
        top, bottom = sums[..., 0], sums[..., 1]
        usable = np.abs(bottom) >= max(self.smallest * n, np.finfo(np.float64).tiny)
        ratio = np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=usable)
        return np.asarray(self.offset + self.scale * ratio)

    def _per_example(self, values: Table) -> Float64[np.ndarray, "2 n"]:
        pair = np.stack([side @ values for side in self._coefficients()])
        if not self.denominator:
            pair[1] = 1.0
        return pair

    def pair(self, values: Table) -> tuple[Float64[np.ndarray, "n 1"], Float64[np.ndarray, " n"] | None]:
        """F as one ratio: offset D + scale N per example, as a column, and D; None for a mean."""
        top, bottom = self._per_example(values)
        column = (self.offset * bottom + self.scale * top)[:, None]
        return column, bottom if self.denominator else None

    def linearised(self, values: Table) -> Float64[np.ndarray, " n"]:
        """Per-example values that average to F: F plus influence; for a mean, the data themselves.

        F_i = F + scale (N_i - (N / D) D_i) / mean(D); spread over root n is the delta standard error.
        """
        top, bottom = self._per_example(values)
        with np.errstate(divide="ignore", invalid="ignore"):  # a vanishing denominator leaves nothing defined
            ratio = top.sum() / bottom.sum()
            linear = self.offset + self.scale * (ratio + (top - ratio * bottom) / bottom.mean())
        return np.asarray(linear)

    def unstable(self, values: Table) -> bool:
        """Whether the denominator's mean is within three standard errors of zero."""
        bottom = self._per_example(values)[1]
        n = len(bottom)
        return n > 1 and bool(abs(bottom.mean()) < 3 * bottom.std(ddof=1) / math.sqrt(n))

    def interval(
        self, values: Table, *, level: float = 0.95, method: str | None = None, seed: int = 0
    ) -> Interval:
        """Interval over examples; by default betting (bounded means), Fieller (unstable ratios) or BCa."""
        method = method or ("betting" if self.bounds else "fieller" if self.unstable(values) else "bca")
        known = ("bca", "percentile", "delta", "fieller", "clopper-pearson", "betting")
        check_name("interval method", method, known)
        pair = self._per_example(values)
        top, bottom = pair
        if method in ("bca", "percentile"):
            rng = stream(seed, "bootstrap")
            return bootstrap_interval(pair, self._of_pair, rng=rng, level=level, method=method)
        if method == "delta":
            linear = self.linearised(values)
            return delta_interval(float(linear.mean()), linear, level=level)
        if method == "fieller":
            found = fieller_interval(top, bottom, level=level)
        elif method == "betting" and self.bounds and not self.denominator:
            found = bounded_mean(top, level=level, bounds=self.bounds)
        elif method == "clopper-pearson" and not self.denominator and np.isin(top, (0.0, 1.0)).all():
            found = clopper_pearson(int(top.sum()), len(top), level=level)
        else:
            needed = "with known bounds" if method == "betting" else "that are 0 or 1"
            raise InputError(f"a {method} interval needs the mean of values {needed}; use 'bca'")
        # Of N / D, whose ends a negative scale swaps.
        ends = sorted((self.offset + self.scale * found.low, self.offset + self.scale * found.high))
        return replace(found, low=ends[0], high=ends[1])


def mean_of(
    name: str, *, offset: float = 0.0, scale: float = 1.0, bounds: tuple[float, float] | None = None
) -> RatioOfSums:
    """A mean of one component, scaled and shifted: offset + scale * mean; `bounds` are the component's."""
    return RatioOfSums(numerator={name: 1.0}, offset=offset, scale=scale, bounds=bounds)


def ratio_of(name: str, over: str, *, offset: float = 0.0, scale: float = 1.0) -> RatioOfSums:
    """Sum of one component over the sum of another, scaled and shifted: offset + scale * ratio."""
    return RatioOfSums(numerator={name: 1.0}, denominator={over: 1.0}, offset=offset, scale=scale)


def recovery_of(name: str, *, smallest: float = 1e-8) -> RatioOfSums:
    """(sum of `name` - sum of `empty`) / (sum of `full` - sum of `empty`)."""
    whole = {"full": 1.0, "empty": -1.0}
    return RatioOfSums(numerator={name: 1.0, "empty": -1.0}, denominator=whole, smallest=smallest)


@dataclass(frozen=True, kw_only=True)
class FunctionOfSums(Record):
    """A named function of the sums of components that is not a ratio of sums.

    Attributes:
        function: A key of `_FUNCTIONS`: `difference`, or a named area of a curve. It takes the sums
            `[..., n_components]`, n and the parameters.
        components: Names of the per-example vectors it sums, in the order the function expects.
        parameters: JSON values passed on by keyword.
    """

    record_kind = "function-of-sums"

    function: str
    components: tuple[str, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def of_sums(self, sums: Float[np.ndarray, "*draws n_components"], n: int) -> Float[np.ndarray, "*draws"]:
        """The function at the sums over `n` examples."""
        return np.asarray(_FUNCTIONS[self.function](sums, n, **self.parameters))

    def linearised(self, values: Table) -> Float64[np.ndarray, " n"]:
        """F plus the jackknife influence (n - 1) (mean of F without an example - F without it)."""
        n = values.shape[1]
        totals = values.sum(axis=1)
        point = self.of_sums(totals, n)
        if n < 2:
            return np.full(n, point)
        left_out = self.of_sums(totals - values.T, n - 1)
        return np.asarray(point + (n - 1) * (left_out.mean() - left_out))

    def interval(
        self, values: Table, *, level: float = 0.95, method: str | None = None, seed: int = 0
    ) -> Interval:
        """Interval over examples: `bca` (default), `percentile` or `delta` (from the jackknife)."""
        if method == "delta":
            point = float(self.of_sums(values.sum(axis=1), values.shape[1]))
            return delta_interval(point, self.linearised(values), level=level)
        rng = stream(seed, "bootstrap")
        return bootstrap_interval(values, self.of_sums, rng=rng, level=level, method=method or "bca")


def _area(
    part: Callable[[Float64[np.ndarray, "..."]], Float64[np.ndarray, "..."]],
    sums: Float[np.ndarray, "*draws n_components"],
    n: int,
    *,
    weights: list[float],
    smallest: float,
) -> Float[np.ndarray, "*draws"]:
    """sum_k w_k part(F_k), F_k = (S_k - S_empty) / (S_full - S_empty); components: empty, full, points."""
    empty, full, points = sums[..., :1], sums[..., 1:2], sums[..., 2:]
    bottom = full - empty
    usable = np.broadcast_to(np.abs(bottom) >= max(smallest * n, np.finfo(np.float64).tiny), points.shape)
    recovered = np.divide(points - empty, bottom, out=np.full(points.shape, np.nan), where=usable)
    return np.asarray(part(recovered) @ np.array(weights))


def _difference(
    sums: Float[np.ndarray, "*draws n_components"], n: int, *, a: Mapping[str, Any], b: Mapping[str, Any]
) -> Float[np.ndarray, "*draws"]:
    """Statistic b of the last components less statistic a of the first."""
    first, second = statistic_from_dict(a), statistic_from_dict(b)
    place = len(first.components)
    return np.asarray(second.of_sums(sums[..., place:], n) - first.of_sums(sums[..., :place], n))


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "difference": _difference,
    "distance-area": partial(_area, lambda recovered: np.abs(1 - recovered)),
    "clipped-area": partial(_area, lambda recovered: np.minimum(recovered, 1)),
    "clipped-distance-area": partial(_area, lambda recovered: np.maximum(1 - recovered, 0)),
    "overshoot-area": partial(_area, lambda recovered: np.maximum(recovered - 1, 0)),
}
Sample = tuple[RatioOfSums | FunctionOfSums, Mapping[str, Float64[np.ndarray, " n"]]]


def paired_difference(a: Sample, b: Sample) -> Sample:
    """Statistic b less statistic a of the same examples, as one statistic.

    Args:
        a: A statistic and its components, one value per example.
        b: The same for the other side.

    Returns:
        The statistic and its components, named `a/NAME` and `b/NAME`. Two ratios of one scale over the same
        sums are one ratio: (sum of b's numerator - sum of a's) / their denominator. Two means of values in
        `bounds` differ by the mean of values in +- the width of `bounds`.
    """
    (first, values), (second, others) = a, b
    components = {f"a/{name}": values[name] for name in first.components}
    components |= {f"b/{name}": others[name] for name in second.components}
    if (
        isinstance(first, RatioOfSums)
        and isinstance(second, RatioOfSums)
        and replace(first, offset=0.0) == replace(second, offset=0.0)
        and all(np.array_equal(values[name], others[name], equal_nan=True) for name in first.denominator)
    ):
        width = None if first.bounds is None else first.bounds[1] - first.bounds[0]
        ratio = replace(
            first,
            numerator={f"b/{name}": each for name, each in second.numerator.items()}
            | {f"a/{name}": -each for name, each in first.numerator.items()},
            denominator={f"a/{name}": each for name, each in first.denominator.items()},
            offset=second.offset - first.offset,
            bounds=None if width is None else (-width, width),
        )
        return ratio, {name: components[name] for name in ratio.components}
    parameters = {"a": first.to_dict(), "b": second.to_dict()}
    function = FunctionOfSums(function="difference", components=tuple(components), parameters=parameters)
    return function, components


def statistic_from_dict(record: Mapping[str, Any]) -> RatioOfSums | FunctionOfSums:
    """The statistic that `to_dict` described."""
    for form in (RatioOfSums, FunctionOfSums):
        if record.get("kind") == form.record_kind:
            return form.from_dict(record)
    raise FileFormatError(
        f"unknown kind of statistic: {record.get('kind')!r}; the file may be of a newer version"
    )


FEWEST_FOR_MEANS = 20  # values from which one-sided errors hold for normal, t5 and exponential values


def mean_above(
    values: Real[np.ndarray, "n k"], least: float = 0.0, *, error: Real[np.ndarray, "#k"] | float = 0.0
) -> Float64[np.ndarray, " k"]:
    """One-sided p-value of "the mean is at most `least`" for each column.

    The larger of two: of Student's t with n - 1 degrees of freedom at root(n) S, and at root(n) Q,
    Q = S + g S^2 / 3 + g^2 S^3 / 27 + g / (6 n), where S = (mean - least) / s and g is the skewness
    m3 / m2^(3/2) of the column times 1 + 20 / n.

    Args:
        values: Finite; examples by columns, two or more examples.
        least: The mean that is to be exceeded. Of "the mean is at least d", give the negative values and -d.
        error: Standard error of `least` for each column, where it is an independent estimate itself: s then
            has that of the difference, root(s^2 + n error^2), and the skewness shrinks accordingly.

    Returns:
        In [0, 1]. Of a column of equal values 0 or 1, as they are above `least` or not.

    Notes:
        With 20 or more values, levels down to 0.001 hold for normal, t5 and exponential values in either
        direction. The factor 1 + 20 / n was chosen for that by simulation; the sample's own skewness is
        known to be too small.

    References:
        Hall (1992), doi:10.1111/j.2517-6161.1992.tb01876.x.

    Example:
        >>> mean_above(np.array([[1.0], [2.0], [3.0]])).round(4)
        array([0.0371])
    """
    x = finite(values)
    n = len(x)
    if n < 2:
        raise InputError(f"got {n} value; a test of a mean needs two or more")
    centre, spread, skewness = _moments(x)
    whole = np.hypot(spread, math.sqrt(n) * np.asarray(error, dtype=np.float64))
    varied = whole > 0
    p = np.where(centre > least, 0.0, 1.0)
    score = (centre[varied] - least) / whole[varied]
    g = skewness[varied] * (spread[varied] / whole[varied]) ** 3
    transformed = score + g * score**2 / 3 + g**2 * score**3 / 27 + g / (6 * n)
    p[varied] = scipy.special.stdtr(n - 1, -math.sqrt(n) * np.minimum(score, transformed))
    return p


def skewed_mean_interval(
    point: float, influence: Float64[np.ndarray, " n"], *, level: float = ONE_SIDED_95
) -> Interval:
    """Bounds of an estimate from values whose spread is its error: what `mean_above` does not reject.

    At each end the outer one of Student's bound and of Hall's, which solves Q = t / root(n) for the mean.

    Args:
        point: The estimate.
        influence: Per-example values whose mean is the estimate to first order, or their deviations.
        level: Two-sided coverage; each end alone is a bound at (1 + level) / 2.

    Returns:
        Undefined (`too_few`) below two examples; both ends at the point (`degenerate`) at zero spread.

    References:
        Hall (1992), doi:10.1111/j.2517-6161.1992.tb01876.x.

    Example:
        >>> interval = skewed_mean_interval(3.0, np.array([0.0, 1.0, 2.0, 3.0, 9.0] * 4))
        >>> round(interval.low, 3), round(interval.high, 3)
        (1.746, 5.46)
    """
    n = len(influence)
    if n < 2:
        return undefined_interval(level, "hall", "too_few")
    _, spreads, skewnesses = _moments(finite(influence)[:, None])
    spread, g = float(spreads[0]), float(skewnesses[0])
    if spread == 0:
        return Interval(low=point, high=point, level=level, method="hall", reason="degenerate")
    student = float(scipy.stats.t.ppf((1 + level) / 2, n - 1)) / math.sqrt(n)
    low = max(student, _solved(student, g, n))
    high = max(student, _solved(student, -g, n))
    return Interval(low=point - spread * low, high=point + spread * high, level=level, method="hall")


def _solved(q: float, g: float, n: int) -> float:
    """S at which Hall's transformation is q: (1 + g S / 3)^3 = 1 + g (q - g / (6 n))."""
    if abs(g) < 1e-6:  # the cube root would lose what it is to find
        return q
    return 3 * (float(np.cbrt(1 + g * (q - g / (6 * n)))) - 1) / g


def _moments(
    x: Float64[np.ndarray, "n k"],
) -> tuple[Float64[np.ndarray, " k"], Float64[np.ndarray, " k"], Float64[np.ndarray, " k"]]:
    """Mean, standard deviation (ddof 1) and enlarged skewness of each column; 0 where it does not vary."""
    n = len(x)
    centre = x.mean(axis=0)
    apart = x - centre
    # Cubes of tiny values would vanish.
    scale = np.where(np.ptp(x, axis=0) > EQUAL * np.abs(x).max(axis=0), np.abs(apart).max(axis=0), 0.0)
    apart = np.divide(apart, scale, out=np.zeros_like(x), where=scale > 0)
    squares = apart**2
    second, third = squares.mean(axis=0), (squares * apart).mean(axis=0)
    skewness = np.divide(third, second**1.5, out=np.zeros(x.shape[1]), where=second > 0)
    # The skewness of n values is too small; enlarged so it is not, even where that matters most.
    return centre, scale * np.sqrt(second * n / (n - 1)), skewness * (1 + 20 / n)
