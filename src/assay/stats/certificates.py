"""Certificates: what a sample of values guarantees about a percentile of the distribution it came from.

A certificate is a number with a failure probability: the percentile of the *distribution*, not of the
sample, lies at or below `bound`, except with that probability. One-dimensional values are independent
draws. A matrix `[n_clean, n_corrupted]` holds the value of every pair of two independent samples, so its
entries share inputs and only min(n_clean, n_corrupted) of them are independent.

The number of values is fixed before they are looked at, and values that were searched for, or that took
part in choosing what is certified, do not belong in the sample.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float64, Int, Int64, Real

from assay.core.errors import InputError, ShapeError, check_name
from assay.core.random import stream
from assay.core.record import Record
from assay.stats._checks import finite
from assay.stats.all_pairs_bounds import all_pairs_failure, best_all_pairs_order
from assay.stats.percentile_bounds import (
    OrderStatistic,
    best_order_statistic,
    order_of,
    percentile_failure,
    percentile_sample_size,
    share,
)


_STREAM = "disjoint-pairs"
_SOLVED = 10**9  # sizes up to here are worked out exactly; it takes well under a second
INDEPENDENT = "order-statistic"
OF_PAIRS = ("ustat", "disjoint", "asymptotic", "published")


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
        method: `order-statistic`; for crossed inputs `ustat`, `disjoint`, `asymptotic` or `published`;
            `exact` for a population that was enumerated.
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
        name = f"percentile {100 * self.percentile:.10g}"
        if self.bound is None:
            return (
                f"no bound on {name} at confidence {self.delta:g}: {self.n} independent values, "
                f"{self.n_needed} needed ({self.method})"
            )
        if self.method == "exact":
            return f"{name} is {self.bound:.6g}: all {self.n_values:,} pairs were run"
        kind = "" if self.rigorous else ", approximate"
        return (
            f"{name} is at most {self.bound:.6g} with confidence {self.confidence:.6g} "
            f"({self.method}, {self.n} independent values{kind})"
        )


def certificate(
    values: Real[np.ndarray, "..."],
    percentile: float,
    *,
    delta: float = 0.95,
    epsilon: float | None = None,
    method: str | None = None,
    seed: int = 0,
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
            `all_pairs_order_failure`), `disjoint` (rigorous and exact; one random pairing of
            min(n_clean, n_corrupted) values), `asymptotic` (a normal approximation with two-way standard
            errors) or `published` (all values under the binomial of as many independent values as there are
            inputs on the smaller side: no theorem, though seldom wrong). For independent draws only
            `order-statistic`.
        seed: Of the pairing of `disjoint`.

    Returns:
        `bound` is None, with the reason `too_few` and the n needed, where n < ln(1 - delta) / ln(p)
        independent values cannot bound the percentile at that confidence, whichever the method.

    Raises:
        InputError: An argument out of range, no values, or a method that does not fit the values.
        NonFiniteError: NaN or infinite values.

    Notes:
        Ties and discrete distributions keep the bound valid (its failure probability falls). `asymptotic`
        takes the smallest value t with F^(t) - z se(t) >= p, se^2 = S_row^2 / n_clean + S_col^2 / n_corrupted
        with the variances of the row and column means of 1[K <= t]; with 100 to 300 inputs a side and effects
        shared along rows or columns its coverage is .87 to .97 at a nominal .95, and down to .79 where few
        inputs make the tail (p = .99 of 300). A million values take about 0.1 s.

    References:
        uit de Bos and Garriga-Alonso (2024), arXiv:2407.15166, proposition 2.1; Hoeffding (1963),
        doi:10.1080/01621459.1963.10500830, section 5.

    Example:
        >>> certificate(np.arange(1.0, 1001.0), 0.99).statement
        'percentile 99 is at most 996 with confidence 0.971314 (order-statistic, 1000 independent values)'
        >>> certificate(np.arange(1.0, 1001.0), 0.999).n_needed
        2995
    """
    checked, method = _checked(values, method)
    share(percentile, "percentile")
    share(delta, "delta")
    if method == "disjoint":
        rng, m = stream(seed, _STREAM), min(checked.shape)
        checked = checked[rng.permutation(checked.shape[0])[:m], rng.permutation(checked.shape[1])[:m]]
    if epsilon is None:
        best = _best(checked, percentile, delta, method)
    elif method == "asymptotic":
        raise InputError("the asymptotic method chooses its own order statistic; remove epsilon")
    else:
        best = _fixed(checked, percentile, delta, epsilon, method)
    bound = None if best.order is None else _smallest(checked, best.order)
    short = bound is None or best.n_needed > min(checked.shape)
    return Certificate(
        bound=bound,
        percentile=percentile,
        failure=best.failure,
        delta=delta,
        n=min(checked.shape),
        n_values=checked.size,
        order=best.order,
        method=method,
        rigorous=method not in ("asymptotic", "published"),
        reason=None if not short else "too_few" if bound is None else "below_delta",
        n_needed=best.n_needed if short else None,
    )


def certificate_family(
    values: Real[np.ndarray, "..."],
    percentiles: Sequence[float],
    *,
    delta: float = 0.95,
    method: str | None = None,
    seed: int = 0,
) -> tuple[Certificate, ...]:
    """Certificates of several percentiles that hold all at once with confidence `delta`.

    The failure probability is split equally (Bonferroni): each of m certificates is made at confidence
    1 - (1 - delta) / m.

    Args:
        values: As for `certificate`.
        percentiles: Shares in (0, 1), one certificate each, in this order.
        delta: Confidence of all of them together.
        method: As for `certificate`.
        seed: As for `certificate`.

    Example:
        >>> [each.order for each in certificate_family(np.arange(1.0, 1001.0), [0.95, 0.99])]
        [964, 997]
    """
    if not percentiles:
        raise InputError("percentiles are missing; give at least one")
    each = float(1 - (1 - share(delta, "delta")) / len(percentiles))
    return tuple(
        certificate(values, percentile, delta=each, method=method, seed=seed) for percentile in percentiles
    )


# ------------------------------------------------------------------------------------------------ its parts


def _checked(values: Real[np.ndarray, "..."], method: str | None) -> tuple[Float64[np.ndarray, "..."], str]:
    """The values in float64 and the method, both known to fit each other."""
    checked = finite(values)
    if checked.ndim not in (1, 2):
        raise ShapeError(
            f"values have shape {checked.shape}; [n] independent draws or the matrix [n_clean, n_corrupted] "
            "of every pair is needed"
        )
    methods = (INDEPENDENT,) if checked.ndim == 1 else OF_PAIRS
    method = method or methods[0]
    check_name("certificate method", method, (INDEPENDENT, *OF_PAIRS))
    if method not in methods:
        what = "independent values [n]" if checked.ndim == 1 else "a matrix of pairs that share inputs"
        raise InputError(f"method {method!r} does not fit {what}; choose {' or '.join(map(repr, methods))}")
    return checked, method


def _smallest(values: Float64[np.ndarray, "..."], order: int) -> float:
    return float(np.partition(values, order - 1, axis=None)[order - 1])


def _best(values: Float64[np.ndarray, "..."], p: float, delta: float, method: str) -> OrderStatistic:
    """The smallest rank that the method allows at confidence delta."""
    if method == "ustat":
        return best_all_pairs_order(values.shape[0], values.shape[1], p, delta)
    best = best_order_statistic(min(values.shape), p, delta)
    if method == "asymptotic" and min(values.shape) < 2:  # no variance of one row or column
        return OrderStatistic(order=None, failure=math.nan, n_needed=max(best.n_needed, 2))
    if best.order is None or method in (INDEPENDENT, "disjoint"):
        return best
    if method == "published":
        return OrderStatistic(
            order=best.order * max(values.shape), failure=best.failure, n_needed=best.n_needed
        )
    return OrderStatistic(
        order=_asymptotic_order(values, p, delta),
        failure=float(1 - share(delta, "delta")),
        n_needed=best.n_needed,
    )


def _fixed(
    values: Float64[np.ndarray, "..."], p: float, delta: float, epsilon: float, method: str
) -> OrderStatistic:
    """The rank ceil((p + epsilon) N), with the sample size that would bring it to delta."""
    m = min(values.shape)
    if method == "ustat":
        failure = all_pairs_failure(values.shape[0], values.shape[1], p, epsilon)
    else:
        failure = percentile_failure(m, p, epsilon)
    n_needed = m
    if failure > float(1 - share(delta, "delta")):
        n_needed = percentile_sample_size(p, delta, epsilon, "chernoff")  # enough for the convex bound too
        if method != "ustat" and n_needed <= _SOLVED:
            n_needed = percentile_sample_size(p, delta, epsilon)
    return OrderStatistic(order=order_of(values.size, p, epsilon), failure=failure, n_needed=n_needed)


def _running_counts(groups: Int[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """How many earlier entries belong to the same group, for each entry."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    counts = np.empty(len(groups), dtype=np.int64)
    counts[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return counts


def _asymptotic_order(values: Float64[np.ndarray, "n_clean n_corrupted"], p: float, delta: float) -> int:
    """Smallest s with F^ - z se >= p, where F^ = s / N is the share of values up to the s-th smallest.

    The variances of row and column means follow from sums of squared counts of values <= t per row and per
    column, and adding a value to a row of count c adds 2 c + 1 to its sum. Only ranks above p N can qualify
    (all can, where z < 0).
    """
    n_columns = values.shape[1]
    z = float(scipy.special.ndtri(delta))
    skipped = math.ceil(share(p, "p") * values.size) - 1 if z >= 0 else 0
    flat = values.ravel()
    by_size = np.argpartition(flat, skipped)
    below, above = by_size[:skipped], by_size[skipped:]
    above = above[np.argsort(flat[above])]
    total = np.arange(skipped + 1, values.size + 1)
    share_below = total / values.size
    squared_error = np.zeros(len(above))
    # Groups of the flat indices: rows by integer division, columns by its remainder.
    groups = zip(values.shape, np.divmod(below, n_columns), np.divmod(above, n_columns), strict=True)
    for n_groups, kept, added in groups:
        counts = np.bincount(kept, minlength=n_groups)
        squares = (counts**2).sum() + np.cumsum(2 * (counts[added] + _running_counts(added)) + 1)
        length = values.size // n_groups
        spread = (squares / length**2 - n_groups * share_below**2) / (n_groups - 1)
        squared_error += np.maximum(spread, 0) / n_groups
    last_of_ties = np.append(flat[above[1:]] > flat[above[:-1]], True)
    qualified = last_of_ties & (share_below - z * np.sqrt(squared_error) >= p)
    return int(total[np.argmax(qualified)])
