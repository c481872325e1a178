"""What an order statistic of a sample says about a percentile: binomial tails, no data in sight.

Throughout, x_p = inf{t : F(t) >= p} is the percentile, X_(k) the k-th smallest value, and *failure*
the probability that X_(k) < x_p, i.e. that the order statistic is not an upper bound after all.
Failures are upper tails, so they keep their precision where one minus them would print 1.0.
Shares are read as they are written: 0.95 is 19/20, since ceil((0.9 + 0.05) * 60) is 58 in floats.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Literal, overload

import numpy as np
import scipy

from assay.core.errors import InputError, check_fraction, check_least, check_name, unknown_name


ROUNDING = 1e-12  # relative error of a computed tail; a failure this close to the allowed one meets it
_RUNS = 1024  # runs of the sawtooth evaluated at a time
_LARGEST = 10**12  # exact sample size; beyond, the walk takes longer than a few seconds


@dataclass(frozen=True, kw_only=True)
class SampleSize:
    """Sample sizes that reach a confidence.

    Attributes:
        first: Smallest n that does. Some larger ones may not: the exact probability is a sawtooth in n.
        stable: Smallest n from which on every sample size does.
    """

    first: int
    stable: int


@dataclass(frozen=True, kw_only=True)
class OrderStatistic:
    """The smallest order statistic that bounds a percentile at a given confidence.

    Attributes:
        order: Its rank k among the values, 1 the smallest; None where no rank suffices.
        failure: Bound on the probability that it falls below the percentile; NaN without a rank.
        n_needed: Independent values that are needed for any rank to suffice.
    """

    order: int | None
    failure: float
    n_needed: int


# ------------------------------------------------------------------------------------------------ arguments


def share(value: float, name: str) -> Fraction:
    """A number strictly between 0 and 1 as the fraction that its decimal digits say."""
    check_fraction(**{name: value})
    return Fraction(str(value))


def _target(p: float, epsilon: float) -> tuple[Fraction, Fraction]:
    """The shares p and p + epsilon."""
    percentile = share(p, "p")
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon is {epsilon}; expected a positive number with p + epsilon < 1")
    target = percentile + Fraction(str(epsilon))
    if target >= 1:
        raise InputError(
            f"p + epsilon is {float(target):g}; it must stay below 1, because no order statistic lies "
            f"beyond the largest value. Use epsilon < {float(1 - percentile):g}, or the best order statistic"
        )
    return percentile, target


def order_of(n: int, p: float, epsilon: float) -> int:
    """The rank k = ceil((p + epsilon) n) among n values, 1 the smallest."""
    check_least(1, n=n)
    return math.ceil(_target(p, epsilon)[1] * n)


def _within(failure: float, allowed: float) -> bool:
    return failure <= allowed * (1 + ROUNDING)


# ---------------------------------------------------------------------------------------- one order statistic


def _divergence(of: Fraction, reference: Fraction) -> float:
    """KL divergence of two coins in nats, D(a || b) = b f((a - b) / b) + (1 - b) f((b - a) / (1 - b)).

    With f(x) = (1 + x) ln(1 + x) - x: both terms are positive, so that nothing cancels for a close to b,
    where D is about (a - b)^2 / (2 b (1 - b)).
    """

    def term(x: float) -> float:
        if abs(x) > 0.01:
            return float(scipy.special.xlog1py(1 + x, x)) - x
        return x * x * sum((-x) ** k / ((k + 1) * (k + 2)) for k in range(7))

    apart = of - reference
    return float(reference) * term(float(apart / reference)) + float(1 - reference) * term(
        float(-apart / (1 - reference))
    )


def closed_form(bound: str, percentile: Fraction, target: Fraction) -> float:
    """Rate c of the bound exp(-c n) on the failure at order ceil(target n)."""
    if bound == "chernoff":
        return _divergence(target, percentile)
    return float(2 * (target - percentile) ** 2)


def percentile_failure(n: int, p: float, epsilon: float, bound: str = "exact") -> float:
    """Probability that X_(k), k = ceil((p + epsilon) n), of n independent values is below the percentile x_p.

    With a = p + epsilon: `exact` Pr(Binom(n, p) >= k), `chernoff` exp(-n D(a || p)) with the divergence D of
    two coins, `hoeffding` exp(-2 n epsilon^2). Attained by `exact` where F is continuous at x_p; an upper
    bound otherwise.

    Args:
        n: Number of independent values, at least 1.
        p: The percentile as a share, in (0, 1).
        epsilon: How far above p the order statistic is taken; p + epsilon < 1.
        bound: `exact`, `chernoff` or `hoeffding`, from the sharpest to the simplest.

    Returns:
        In [0, 1); tiny values keep their precision.

    Raises:
        InputError: p outside (0, 1), epsilon <= 0, p + epsilon >= 1, n < 1, or an unknown bound.

    References:
        uit de Bos and Garriga-Alonso (2024), arXiv:2407.15166, proposition 2.1 and corollary 2.2.

    Example:
        >>> round(percentile_failure(10, 0.5, 0.2), 6)  # 176 / 1024: at least 7 heads in 10 tosses
        0.171875
    """
    percentile, target = _target(p, epsilon)
    order = order_of(n, p, epsilon)
    if bound == "exact":
        return float(scipy.stats.binom.sf(order - 1, n, float(percentile)))
    if bound in ("chernoff", "hoeffding"):
        return math.exp(-n * closed_form(bound, percentile, target))
    raise unknown_name("bound", bound, ("exact", "chernoff", "hoeffding"))


def percentile_confidence(n: int, p: float, epsilon: float, bound: str = "exact") -> float:
    """Confidence with which X_(k), k = ceil((p + epsilon) n), of n independent values bounds x_p from above.

    One minus `percentile_failure`, which has the arguments, errors and sources.

    Returns:
        In [0, 1), or 1.0 where the failure is below rounding. Higher is better.

    Example:
        >>> round(percentile_confidence(1000, 0.95, 0.01), 5)
        0.91936
    """
    return 1 - percentile_failure(n, p, epsilon, bound)


def least_sample(percentile: Fraction, allowed: float) -> int:
    """Smallest n with p^n <= allowed: below it, not even the maximum is a bound."""
    log_p, log_allowed = math.log1p(-float(1 - percentile)), math.log(allowed)
    n = max(1, math.ceil(log_allowed / log_p))
    return n - 1 if n > 1 and (n - 1) * log_p <= log_allowed + ROUNDING else n


def best_order_statistic(n: int, p: float, delta: float) -> OrderStatistic:
    """The smallest k for which X_(k) of n independent values bounds x_p with confidence at least delta.

    k = min{k : Pr(Binom(n, p) >= k) <= 1 - delta}. It exists iff n >= ln(1 - delta) / ln(p).

    Args:
        n: Number of independent values, at least 1.
        p: The percentile as a share, in (0, 1).
        delta: Confidence to reach, in (0, 1).

    Example:
        >>> best_order_statistic(59, 0.95, 0.95).order, best_order_statistic(58, 0.95, 0.95).order
        (59, None)
    """
    percentile, allowed = share(p, "p"), float(1 - share(delta, "delta"))
    check_least(1, n=n)
    n_needed = least_sample(percentile, allowed)
    if n < n_needed:
        return OrderStatistic(order=None, failure=math.nan, n_needed=n_needed)

    def failure(order: int) -> float:
        return float(scipy.stats.binom.sf(order - 1, n, float(percentile)))

    # The quantile function may be off by one where the tail meets the level to the last digit.
    order = min(int(scipy.stats.binom.isf(allowed, n, float(percentile))) + 1, n)
    while order < n and not _within(failure(order), allowed):
        order += 1
    while order > 1 and _within(failure(order - 1), allowed):
        order -= 1
    return OrderStatistic(order=order, failure=failure(order), n_needed=n_needed)


# ----------------------------------------------------------------------------------------------- sample sizes


@overload
def percentile_sample_size(
    p: float, delta: float, epsilon: float, bound: str = "exact", *, details: Literal[False] = False
) -> int: ...
@overload
def percentile_sample_size(
    p: float, delta: float, epsilon: float, bound: str = "exact", *, details: Literal[True]
) -> SampleSize: ...
def percentile_sample_size(
    p: float, delta: float, epsilon: float, bound: str = "exact", *, details: bool = False
) -> int | SampleSize:
    """Sample size from which on `percentile_confidence` is at least delta.

    Args:
        p: The percentile as a share, in (0, 1).
        delta: Confidence to reach, in (0, 1).
        epsilon: How far above p the order statistic is taken; p + epsilon < 1.
        bound: `exact`, `chernoff` or `hoeffding`.
        details: Also say which smaller size reaches delta first.

    Returns:
        The smallest n that is enough together with every larger one, or with `details` a `SampleSize`. The
        two sizes are equal under the closed forms, which fall with n.

    Raises:
        InputError: p or delta outside (0, 1), epsilon <= 0, p + epsilon >= 1, an unknown bound, or an epsilon
            so small that the exact size may exceed 10^12.

    Notes:
        The exact failure, Pr(Binom(n, 1 - p) <= j) with j = floor((1 - a) n), falls with n while j stays and
        jumps up when j steps, so bisection over n would return some crossing. Each run of constant j is
        monotone; runs are walked from both ends, and those are skipped that the two-sided normal bounds of
        Zubkov and Serov settle: about root n tails in all.

    References:
        Zubkov and Serov (2013), doi:10.1137/S0040585X97986138.

    Example:
        >>> percentile_sample_size(0.95, 0.95, 0.01, details=True)
        SampleSize(first=1148, stable=1326)
    """
    percentile, target = _target(p, epsilon)
    allowed = float(1 - share(delta, "delta"))
    check_name("bound", bound, ("exact", "chernoff", "hoeffding"))
    closed = "chernoff" if bound == "exact" else bound
    n = math.ceil(-math.log(allowed) / closed_form(closed, percentile, target))
    size = SampleSize(first=n, stable=n)
    if bound == "exact":
        if n > _LARGEST:
            raise InputError(
                f"epsilon = {epsilon:g} may need {n:.3g} values, but exact sizes are computed only up to "
                f"{_LARGEST:.0e}; use bound='chernoff' or a larger epsilon"
            )
        sawtooth = _Sawtooth(missing=1 - percentile, cut=1 - target, allowed=allowed)
        size = SampleSize(first=sawtooth.first(), stable=sawtooth.stable())
    return size if details else size.stable


@dataclass(frozen=True, kw_only=True)
class _Sawtooth:
    """The condition Pr(Binom(n, missing) <= floor(cut n)) <= allowed as n grows.

    Run j holds the n with floor(cut n) = j; inside it the probability falls with n. Let z be the normal
    deviate of the allowed failure and h(n, s) = 2 n D(cut + s / n || missing). Zubkov and Serov give
    Phi(-root h(n, -1)) <= failure <= Phi(-root h(n, +1)) where cut + s / n lies in (0, missing).
    h is convex in n (the perspective of a convex function), and h(n, +1) increases.
    """

    missing: Fraction
    cut: Fraction
    allowed: float

    def _start(self, run: int) -> int:
        return max(1, -(-run * self.cut.denominator // self.cut.numerator))

    def _met(self, run: int, n: int) -> bool:
        return _within(float(scipy.stats.binom.cdf(run, n, float(self.missing))), self.allowed)

    def _met_at(self, n: list[int], runs: range) -> np.ndarray:
        failures = scipy.stats.binom.cdf(np.array(runs), np.array(n), float(self.missing))
        return np.asarray(failures <= self.allowed * (1 + ROUNDING))

    def _deviate(self, n: int, step: int) -> float:
        """Root of h(n, step); NaN where it is not defined."""
        at = self.cut + Fraction(step, n)
        return math.sqrt(2 * n * _divergence(at, self.missing)) if 0 < at < self.missing else math.nan

    @property
    def _allowed_deviate(self) -> float:
        return max(-float(scipy.special.ndtri(self.allowed)), 0.0)

    def _beyond(self) -> int:
        """A size at and above which the condition holds, by the upper bound."""
        enough = self._allowed_deviate * (1 + 1e-9)
        size = 1
        while not self._deviate(size, 1) >= enough:
            size *= 2
        return _first_where(lambda n: self._deviate(n, 1) >= enough, size // 2, size)

    def first(self) -> int:
        """Smallest size that meets the condition."""
        beyond, sure = self._beyond(), self._allowed_deviate * (1 - 1e-9)
        run = 0
        while True:
            n = self._start(run)
            if self._deviate(n, -1) < sure:
                # By convexity the sizes that surely fail are an interval; n is in it, so jump to its end.
                end = _first_where(lambda n: not self._deviate(n, -1) < sure, n, beyond)
                run = max(run, math.floor(self.cut * end))
            runs = range(run, run + _RUNS)
            met = self._met_at([self._start(each + 1) - 1 for each in runs], runs)
            if met.any():
                run += int(met.argmax())
                return _first_where(partial(self._met, run), self._start(run), self._start(run + 1) - 1)
            run += _RUNS

    def stable(self) -> int:
        """Smallest size from which on the condition is always met."""
        for runs in _blocks_down(math.floor(self.cut * self._beyond())):
            met = self._met_at([self._start(each) for each in runs], runs)
            if not met.all():
                run = runs[int(np.argmin(met))]
                # Either inside the run, or its end: the next run starts with a size that is met.
                return _first_where(partial(self._met, run), self._start(run), self._start(run + 1))
        return 1


def _first_where(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Smallest n in low..high with `holds(n)`, false before and true after; `high` where nothing below is."""
    return low + bisect_left(range(low, high), True, key=holds)


def _blocks_down(top: int) -> Iterator[range]:
    """The integers top, top - 1, ..., 0 in blocks."""
    for start in range(top, -1, -_RUNS):
        yield range(start, max(start - _RUNS, -1), -1)


# -------------------------------------------------------------------------------------------------- all pairs


# ---------------------------------------------------------------------------------------------------- maximum
