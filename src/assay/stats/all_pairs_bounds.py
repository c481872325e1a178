"""Percentile bounds where every input of one sample is paired with every input of another."""

import math
from fractions import Fraction

import numpy as np
import scipy
from jaxtyping import Float64

from assay.core.errors import InputError, check_least, check_name
from assay.stats.percentile_bounds import (
    ROUNDING,
    OrderStatistic,
    closed_form,
    least_sample,
    order_of,
    share,
)


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
    percentile = share(p, "p")
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
        return math.exp(-m * closed_form(bound, percentile, target))
    below = np.arange(math.ceil(target * m))
    ratios = _expected_excess(m, float(percentile))[below] / (float(target * m) - below)
    return min(float(ratios.min()), 1.0)


def all_pairs_failure(
    n_clean: int, n_corrupted: int, p: float, epsilon: float, bound: str = "convex"
) -> float:
    """Bound on the probability that X_(k), k = ceil((p + epsilon) N), of all N crossed pairs is below x_p.

    `all_pairs_order_failure` at that order, N = n_clean n_corrupted; see there.

    Example:
        >>> round(all_pairs_failure(1000, 1000, 0.95, 0.01), 4)
        0.1724
    """
    check_least(1, n_clean=n_clean, n_corrupted=n_corrupted)
    order = order_of(n_clean * n_corrupted, p, epsilon)
    return all_pairs_order_failure(n_clean, n_corrupted, p, order, bound)


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
    percentile, allowed = share(p, "p"), float(1 - share(delta, "delta"))
    check_least(1, n_clean=n_clean, n_corrupted=n_corrupted)
    m, most = min(n_clean, n_corrupted), max(n_clean, n_corrupted)
    n_needed = least_sample(percentile, allowed)
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
    return -math.expm1(math.log(float(1 - share(delta, "delta"))) / n)
