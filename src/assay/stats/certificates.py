"""Certificates: what a sample of values guarantees about a percentile of the distribution it came from.

A certificate is a number with a failure probability: the percentile of the *distribution*, not of the
sample, lies at or below `bound`, except with that probability. One-dimensional values are independent
draws. A matrix `[n_clean, n_corrupted]` holds the value of every pair of two independent samples, so its
entries share inputs and only min(n_clean, n_corrupted) of them are independent.

The number of values is fixed before they are looked at, and values that were searched for, or that took
part in choosing what is certified, do not belong in the sample.

Throughout, x_p = inf{t : F(t) >= p} is the percentile, X_(k) the k-th smallest value, and *failure* the
probability that X_(k) < x_p. Failures are upper tails, so they keep their precision where one minus them
would print 1.0. Shares are read as they are written: 0.95 is 19/20, since ceil((0.9 + 0.05) * 60) is 58 in
floats.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float64, Real

from assay.core.errors import InputError, ShapeError, check_fraction, check_least, check_name
from assay.core.record import Record
from assay.stats.estimate import finite


ROUNDING = 1e-12  # relative error of a computed tail; a failure this close to the allowed one meets it
METHODS = {1: ("order-statistic",), 2: ("ustat", "published")}  # by the axes of the values, the default first
_WORDS = {"order-statistic": "order statistic", "ustat": "U-statistic", "published": "as published"}
_LARGEST = 2 * 10**6  # exact sample size; it takes some seconds


@dataclass(frozen=True, kw_only=True)
class Certificate(Record):
    """An upper bound on a percentile of a distribution, and how far it can be trusted.

    Attributes:
        bound: The percentile is at most this, except with probability `failure`; None where these data give
            no such bound (see `reason`).
        percentile: The share p whose percentile x_p = inf{t : F(t) >= p} is bounded.
        failure: Upper bound on the probability that `bound` is too low; NaN without a bound.
        delta: The confidence that was asked for.
        n: Independent values behind it; for crossed inputs the smaller number of inputs.
        n_values: Values that were ordered.
        order: Rank of `bound` among them, 1 the smallest.
        method: `order-statistic`; for crossed inputs `ustat` or `published`.
        rigorous: Whether `failure` is a theorem for every distribution, or an approximation.
        reason: `too_few` (no bound), `below_delta` (the confidence falls short of `delta`), else None.
        n_needed: Independent values that are enough where `reason` is given.
    """

    derived = ("confidence", "epsilon")

    bound: float | None
    percentile: float
    failure: float
    delta: float
    n: int
    n_values: int
    order: int | None
    method: str
    rigorous: bool
    reason: str | None = None
    n_needed: int | None = None

    @property
    def confidence(self) -> float:
        """Probability, at least, that the bound holds: 1 - failure. NaN without a bound."""
        return 1 - self.failure

    @property
    def epsilon(self) -> float:
        """How far above the percentile the bound was taken, order / n_values - p; NaN without a bound."""
        return math.nan if self.order is None else self.order / self.n_values - self.percentile

    @property
    def statement(self) -> str:
        """The certificate in a sentence."""
        name, n = f"percentile {100 * self.percentile:.10g}", f"{self.n} independent values"
        how = _WORDS[self.method] + ("" if self.rigorous else ", approximate")
        if self.bound is None:
            return f"no bound on {name} at confidence {self.delta:g}: {n}, {self.n_needed} needed ({how})"
        return f"{name} is at most {self.bound:.6g} with confidence {self.confidence:.6g} ({how}, {n})"


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


def certificate(
    values: Real[np.ndarray, "..."],
    percentile: float,
    *,
    delta: float = 0.95,
    epsilon: float | None = None,
    method: str | None = None,
) -> Certificate:
    """An upper bound on a percentile of the distribution that the values were drawn from.

    The bound is an order statistic of the sample. By default it is the smallest one whose confidence reaches
    `delta`; with `epsilon` the k-th smallest of N, k = ceil((percentile + epsilon) N), whatever its
    confidence.

    Args:
        values: Finite. `[n]`: independent draws. `[n_clean, n_corrupted]`: every pair of independent clean
            and independent corrupted inputs.
        percentile: Share p in (0, 1), as written: 0.999 for the 99.9th percentile.
        delta: Confidence to reach, in (0, 1).
        epsilon: Take the order statistic this far above the percentile; percentile + epsilon < 1.
        method: For a matrix: `ustat` (default; rigorous, all values, the convex bound of
            `all_pairs_order_failure`) or `published` (all values under the binomial of as many independent
            values as there are inputs on the smaller side: no theorem, though seldom wrong). For independent
            draws only `order-statistic`.

    Returns:
        `bound` is None, with the reason `too_few` and the n needed, where n < ln(1 - delta) / ln(p)
        independent values cannot bound the percentile at that confidence, whichever the method.

    Raises:
        InputError: An argument out of range, no values, or a method that does not fit the values.
        NonFiniteError: NaN or infinite values.

    Notes:
        Ties and discrete distributions keep the bound valid (its failure probability falls). A million
        values take about 0.1 s.

    References:
        uit de Bos and Garriga-Alonso (2024), arXiv:2407.15166, proposition 2.1; Hoeffding (1963),
        doi:10.1080/01621459.1963.10500830, section 5.

    Example:
        >>> certificate(np.arange(1.0, 1001.0), 0.99).statement
        'percentile 99 is at most 996 with confidence 0.971314 (order statistic, 1000 independent values)'
        >>> certificate(np.arange(1.0, 1001.0), 0.999).n_needed
        2995
    """
    checked = finite(values)
    if checked.ndim not in METHODS:
        raise ShapeError(
            f"values have shape {checked.shape}; [n] independent draws or the matrix [n_clean, n_corrupted] "
            "of every pair is needed"
        )
    methods = METHODS[checked.ndim]
    method = method or methods[0]
    check_name("certificate method for these values", method, methods)
    _share(percentile, "percentile")
    allowed = float(1 - _share(delta, "delta"))
    m, most = min(checked.shape), max(checked.shape)
    sides = checked.shape[0], checked.shape[-1]
    if epsilon is not None:
        rank, n_needed = order_of(checked.size, percentile, epsilon), m
        if method == "ustat":
            failure = all_pairs_order_failure(*sides, percentile, rank)
        else:
            failure = percentile_failure(m, percentile, epsilon)
        if failure > allowed:
            n_needed = percentile_sample_size(percentile, delta, epsilon, "chernoff")  # enough for all pairs
            if method != "ustat" and n_needed <= _LARGEST:
                n_needed = percentile_sample_size(percentile, delta, epsilon)
        best = OrderStatistic(order=rank, failure=failure, n_needed=n_needed)
    elif method == "ustat":
        best = best_all_pairs_order(*sides, percentile, delta)
    else:
        best = best_order_statistic(m, percentile, delta)
        if best.order is not None and method == "published":
            best = replace(best, order=best.order * most)
    order = best.order
    short = order is None or best.n_needed > m
    return Certificate(
        bound=None if order is None else float(np.partition(checked, order - 1, axis=None)[order - 1]),
        percentile=percentile,
        failure=best.failure,
        delta=delta,
        n=m,
        n_values=checked.size,
        order=order,
        method=method,
        rigorous=method != "published",
        reason=None if not short else "too_few" if order is None else "below_delta",
        n_needed=best.n_needed if short else None,
    )


def edit_radius(lower: float, deletion: float) -> int | None:
    """Edits that a majority of random parts survives: floor(ln(3/2 - lower) / ln deletion).

    An edit of R examples goes unnoticed by a part from which all of them are deleted, a share deletion^R of
    the parts, so it moves the share of positive parts by at most 1 - deletion^R.

    Args:
        lower: Lower bound of the share of parts that agree, in [0, 1].
        deletion: Probability with which each example is deleted, in (0, 1).

    Returns:
        None where `lower` <= 1/2; else at most floor(ln(1/2) / ln deletion).

    References:
        Huang et al. (2023), arXiv:2302.01757; Anani et al. (2026), arXiv:2602.22968.

    Example:
        >>> [edit_radius(1.0, deletion) for deletion in (0.2, 0.5, 0.9)]
        [0, 1, 6]
    """
    check_fraction(deletion=deletion)
    if not 0 <= lower <= 1:
        raise InputError(f"lower is {lower}; expected a fraction in [0, 1]")
    return math.floor(math.log(1.5 - lower) / math.log(deletion)) if lower > 0.5 else None


# ----------------------------------------------------------------------------------------- independent values


def _share(value: float, name: str) -> Fraction:
    """A number strictly between 0 and 1 as the fraction that its decimal digits say."""
    check_fraction(**{name: value})
    return Fraction(str(value))


def _target(p: float, epsilon: float) -> tuple[Fraction, Fraction]:
    """The shares p and p + epsilon."""
    percentile = _share(p, "p")
    if not 0 < epsilon < 1 or percentile + Fraction(str(epsilon)) >= 1:
        raise InputError(
            f"epsilon is {epsilon}; expected a positive number below {float(1 - percentile):g}, since no "
            "order statistic lies beyond the largest value"
        )
    return percentile, percentile + Fraction(str(epsilon))


def order_of(n: int, p: float, epsilon: float) -> int:
    """The rank k = ceil((p + epsilon) n) among n values, 1 the smallest."""
    check_least(1, n=n)
    return math.ceil(_target(p, epsilon)[1] * n)


def _within(failure: float, allowed: float) -> bool:
    return failure <= allowed * (1 + ROUNDING)


def _rate(bound: str, percentile: Fraction, target: Fraction) -> float:
    """Rate c of the bound exp(-c n) on the failure at order ceil(target n), `chernoff` or `hoeffding`.

    Chernoff's is the KL divergence of two coins in nats, D(a || b) = b f((a - b) / b) + (1 - b) f((b - a) /
    (1 - b)) with f(x) = (1 + x) ln(1 + x) - x: both terms are positive, so that nothing cancels for a close
    to b, where D is about (a - b)^2 / (2 b (1 - b)).
    """
    apart = target - percentile
    if bound == "hoeffding":
        return float(2 * apart**2)

    def term(x: float) -> float:
        if abs(x) > 0.01:
            return float(scipy.special.xlog1py(1 + x, x)) - x
        return x * x * sum((-x) ** k / ((k + 1) * (k + 2)) for k in range(7))

    below, above = float(apart / percentile), float(-apart / (1 - percentile))
    return float(percentile) * term(below) + float(1 - percentile) * term(above)


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
    check_name("bound", bound, ("exact", "chernoff", "hoeffding"))
    percentile, target = _target(p, epsilon)
    if bound == "exact":
        return float(scipy.stats.binom.sf(order_of(n, p, epsilon) - 1, n, float(percentile)))
    check_least(1, n=n)
    return math.exp(-n * _rate(bound, percentile, target))


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


def _least_sample(percentile: Fraction, allowed: float) -> int:
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
    percentile, allowed = _share(p, "p"), float(1 - _share(delta, "delta"))
    check_least(1, n=n)
    n_needed = _least_sample(percentile, allowed)
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


class SampleSize(NamedTuple):
    """Sizes that reach a confidence: the `first`, and the `stable` one, from which on every size does."""

    first: int
    stable: int


def percentile_sample_size(
    p: float, delta: float, epsilon: float, bound: str = "exact", *, details: bool = False
) -> int | Any:
    """Smallest sample size from which on `percentile_confidence` is at least delta, at every larger one too.

    Args:
        p: The percentile as a share, in (0, 1).
        delta: Confidence to reach, in (0, 1).
        epsilon: How far above p the order statistic is taken; p + epsilon < 1.
        bound: `exact`, `chernoff` or `hoeffding`.
        details: Give a `SampleSize`, with the smallest size that reaches delta, too.

    Raises:
        InputError: p or delta outside (0, 1), epsilon <= 0, p + epsilon >= 1, an unknown bound, or an epsilon
            so small that the exact size may exceed 2 million.

    Notes:
        The exact failure, Pr(Binom(n, 1 - p) <= j) with j = floor((1 - a) n), falls with n while j stays and
        jumps up when j steps, so some sizes above the first do not reach delta. From Chernoff's size on all
        do. The closed forms fall with n, and both sizes are the same.

    Example:
        >>> percentile_sample_size(0.95, 0.95, 0.01), percentile_sample_size(0.95, 0.95, 0.01, details=True)
        (1326, SampleSize(first=1148, stable=1326))
    """
    check_name("bound", bound, ("exact", "chernoff", "hoeffding"))
    allowed, (percentile, target) = float(1 - _share(delta, "delta")), _target(p, epsilon)
    closed = "chernoff" if bound == "exact" else bound
    enough = math.ceil(-math.log(allowed) / _rate(closed, percentile, target))
    size = SampleSize(enough, enough)
    if bound == "exact":
        if enough > _LARGEST:
            raise InputError(
                f"epsilon = {epsilon:g} may need {enough:.3g} values, but exact sizes are computed only up "
                f"to {_LARGEST:,}; use bound='chernoff' or a larger epsilon"
            )
        cut = 1 - target
        fits = cut.numerator * enough < 2**63 and cut.denominator < 2**63
        n = np.arange(1, enough + 1, dtype=np.int64 if fits else object)
        below = (n * cut.numerator // cut.denominator).astype(np.float64)
        failures = scipy.stats.binom.cdf(below, n.astype(np.float64), float(1 - percentile))
        reached = np.asarray(failures) <= allowed * (1 + ROUNDING)
        short = np.flatnonzero(~reached)
        size = SampleSize(int(reached.argmax()) + 1, int(short[-1]) + 2 if len(short) else 1)
    return size if details else size.stable


# -------------------------------------------------------------------------------------------------- all pairs


def _expected_excess(m: int, p: float) -> Float64[np.ndarray, " m"]:
    """E[(B - j)_+] for j = 0..m - 1, B ~ Binom(m, p): sums of upper tails, so that nothing cancels."""
    tails = scipy.stats.binom.sf(np.arange(m), m, p)
    return np.asarray(np.cumsum(tails[::-1])[::-1])


def all_pairs_order_failure(
    n_clean: int, n_corrupted: int, p: float, order: int, bound: str = "convex"
) -> float:
    """Bound on the probability that the order-th smallest of all crossed pairs' values is below x_p.

    The values come from every pair of `n_clean` and `n_corrupted` independent inputs, so only
    m = min(n_clean, n_corrupted) pairs are independent of one another. With a = order / (n_clean
    n_corrupted): `convex` min over j < a m of E[(B - j)_+] / (a m - j), B ~ Binom(m, p); `chernoff` exp(-m
    D(a || p)); `hoeffding` exp(-2 m (a - p)^2).

    Args:
        n_clean: Independent clean inputs.
        n_corrupted: Independent corrupted inputs, independent of the clean ones.
        p: The percentile as a share, in (0, 1).
        order: Rank among all values, 1 the smallest.
        bound: `convex`, `chernoff` or `hoeffding`, from the sharpest to the simplest.

    Returns:
        In [0, 1]; 1 where order / (n_clean n_corrupted) is at most p.

    Notes:
        The share of pairs below x_p is a two-sample U-statistic of mean at most p; the expectation of a
        convex function of it is at most that of the same function of B / m. Costs m binomial tails.

    References:
        Hoeffding (1963), doi:10.1080/01621459.1963.10500830, section 5.

    Example:
        >>> all_pairs_order_failure(2, 2, 0.5, 3)  # j = 1: E[(B - 1)_+] / (3/2 - 1) = (1/4) / (1/2)
        0.5
    """
    percentile = _share(p, "p")
    check_least(1, n_clean=n_clean, n_corrupted=n_corrupted)
    if not 1 <= order <= n_clean * n_corrupted:
        raise InputError(
            f"order is {order}; expected a rank among the {n_clean} x {n_corrupted} values, 1 to "
            f"{n_clean * n_corrupted}"
        )
    check_name("bound", bound, ("convex", "chernoff", "hoeffding"))
    m, target = min(n_clean, n_corrupted), Fraction(order, n_clean * n_corrupted)
    if target <= percentile:
        return 1.0
    if bound != "convex":
        return math.exp(-m * _rate(bound, percentile, target))
    below = np.arange(math.ceil(target * m))
    ratios = _expected_excess(m, float(percentile))[below] / (float(target * m) - below)
    return min(float(ratios.min()), 1.0)


def best_all_pairs_order(n_clean: int, n_corrupted: int, p: float, delta: float) -> OrderStatistic:
    """The smallest rank among all crossed pairs whose value bounds x_p with confidence at least delta.

    Under the `convex` bound, whose condition E[(B - j)_+] <= (1 - delta)(a m - j) asks for
    a m >= j + E[(B - j)_+] / (1 - delta). The right side is convex in j and least at the smallest j with
    Pr(B > j) <= 1 - delta. It exists iff m = min(n_clean, n_corrupted) >= ln(1 - delta) / ln(p).

    Args:
        n_clean: Independent clean inputs.
        n_corrupted: Independent corrupted inputs, independent of the clean ones.
        p: The percentile as a share, in (0, 1).
        delta: Confidence to reach, in (0, 1).

    Returns:
        `n_needed` counts the inputs needed on either side.

    Example:
        >>> best_all_pairs_order(1000, 1000, 0.95, 0.95).order / 1e6 - 0.95 < 0.0138
        True
    """
    percentile, allowed = _share(p, "p"), float(1 - _share(delta, "delta"))
    check_least(1, n_clean=n_clean, n_corrupted=n_corrupted)
    m, most = min(n_clean, n_corrupted), max(n_clean, n_corrupted)
    n_needed = _least_sample(percentile, allowed)
    if m < n_needed:
        return OrderStatistic(order=None, failure=math.nan, n_needed=n_needed)
    least = float((np.arange(m) + _expected_excess(m, float(percentile)) / allowed).min())
    # Rounded up; the tolerance keeps a sum that is whole but for rounding from costing a rank.
    order = min(math.ceil(least * most * (1 - ROUNDING)), m * most)
    failure = all_pairs_order_failure(n_clean, n_corrupted, p, order)
    return OrderStatistic(order=order, failure=failure, n_needed=n_needed)


def maximum_exceedance(n: int, *, delta: float = 0.95) -> float:
    """Share of the distribution that may exceed the largest of n independent values.

    1 - (1 - delta)^(1/n): with confidence delta, a new value exceeds the sample's maximum with at most this
    probability. For crossed inputs n is the smaller of their two numbers.

    Args:
        n: Number of independent values, at least 1.
        delta: Confidence, in (0, 1).

    Example:
        >>> round(maximum_exceedance(1000), 4)
        0.003
    """
    check_least(1, n=n)
    return -math.expm1(math.log(float(1 - _share(delta, "delta"))) / n)
