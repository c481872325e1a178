"""Tests that need no distribution: signs flipped, ranks permuted."""

import math
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Bool, Float64, Int64, Real

from assay.core.errors import ShapeError, check_least, check_name
from assay.core.record import Record
from assay.stats._checks import finite, varies
from assay.stats.agreement import N_PERMUTATIONS
from assay.stats.estimate import SignificanceTest, undefined_test


EXACT_SIGNS = 12
EXACT_RANKS = 8
_ROUNDING = 1e-12
_BLOCK = 1 << 22  # entries permuted at a time
_ALTERNATIVES = ("greater", "two-sided")


@dataclass(frozen=True, kw_only=True)
class MeanTest(Record):
    """Whether a mean is above 0, two ways.

    Attributes:
        sign_flip: The mean against means after flipping signs; needs symmetry around 0 under the null.
        t: Student's one-sided t test.
        exact: Whether every flip was counted.
    """

    sign_flip: SignificanceTest
    t: SignificanceTest
    exact: bool


def mean_tests(
    values: Real[np.ndarray, "n k"], *, rng: np.random.Generator, n_permutations: int = N_PERMUTATIONS
) -> tuple[MeanTest, ...]:
    """One-sided tests of mean > 0 for each column, under the same flips.

    p = share of all 2^n sign flips with a mean at least as large as the observed one for n <= 12, otherwise
    (1 + number among random flips) / (1 + n_permutations).

    Args:
        values: Finite; examples by columns.
        rng: Source of the flips; not used for n <= 12.
        n_permutations: Random flips, at least 1.

    Returns:
        One per column. Both undefined for n = 0 (`too_few`); t also for n = 1, and for a column of zeros
        (`zero_variance`), of which the sign-flip p is 1. A constant column other than 0 has t infinite with
        its sign (`degenerate`).

    References:
        Fisher (1935), The design of experiments, section 21.
    """
    check_least(1, n_permutations=n_permutations)
    n, k = values.shape
    if n == 0 or k == 0:
        nothing = undefined_test("too_few")
        return tuple(MeanTest(sign_flip=nothing, t=nothing, exact=True) for _ in range(k))
    x = finite(values)
    exact = n <= EXACT_SIGNS
    # A flipped mean reaches the observed one exactly if the flipped values sum to at most 0.
    slack = _ROUNDING * np.abs(x).sum(axis=0)
    reached = np.zeros(k, dtype=np.int64)
    if exact:
        flips = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        reached += np.count_nonzero(flips @ x <= slack, axis=0)
        p_values = reached / 2**n
    else:
        rows = max(1, _BLOCK // n)
        for start in range(0, n_permutations, rows):
            flips = rng.integers(0, 2, (min(rows, n_permutations - start), n))
            reached += np.count_nonzero(flips @ x <= slack, axis=0)
        p_values = (1 + reached) / (1 + n_permutations)
    return tuple(
        MeanTest(
            sign_flip=SignificanceTest(statistic=float(column.mean()), p_value=float(p_value)),
            t=_t_test(column),
            exact=exact,
        )
        for column, p_value in zip(x.T, p_values, strict=True)
    )


def _t_test(x: Float64[np.ndarray, " n"]) -> SignificanceTest:
    if len(x) < 2:
        return undefined_test("too_few")
    if not x.any():
        return undefined_test("zero_variance")
    df = (float(len(x) - 1),)
    if not varies(x):
        sign = float(np.sign(x[0]))
        return SignificanceTest(
            statistic=sign * math.inf, p_value=float(sign < 0), degrees_of_freedom=df, reason="degenerate"
        )
    test = scipy.stats.ttest_1samp(x, 0.0, alternative="greater")
    return SignificanceTest(
        statistic=float(test.statistic), p_value=float(test.pvalue), degrees_of_freedom=df
    )


@dataclass(frozen=True, kw_only=True)
class RankTest(Record):
    """Spearman's rho against permutations of one side.

    Attributes:
        rho: The rank correlation; NaN where undefined.
        p_value: Share of permutations at least as extreme.
        smallest_p: The p-value of the best order that these ties and this n allow, below which no sample of
            the kind can come: where it exceeds the level, the test cannot reject.
        exact: Whether every permutation was counted.
        reason: `too_few` pairs (below 2) or `zero_variance` (a constant side), else None.
    """

    rho: float
    p_value: float
    smallest_p: float
    exact: bool
    reason: str | None = None


def spearman_test(
    x: Real[np.ndarray, " n"],
    y: Real[np.ndarray, " n"],
    *,
    rng: np.random.Generator,
    alternative: str = "two-sided",
    n_permutations: int = N_PERMUTATIONS,
) -> RankTest:
    """Permutation test of no rank correlation.

    Args:
        x: One side, finite.
        y: The other, same length.
        rng: Source of the permutations; not used for n <= 8, where all n! are counted.
        alternative: `two-sided` or `greater` (rho > 0).
        n_permutations: Random permutations, at least 1; p = (1 + number at least as extreme) / (1 + this).

    References:
        Pitman (1937), doi:10.2307/2983647.

    Example:
        >>> up = np.arange(4.0)
        >>> spearman_test(up, up, alternative="greater", rng=np.random.default_rng(0)).p_value
        0.041666666666666664
    """
    check_name("alternative", alternative, _ALTERNATIVES)
    check_least(1, n_permutations=n_permutations)
    if x.shape != y.shape:
        raise ShapeError(f"a rank test compares vectors of equal length; got shapes {x.shape} and {y.shape}")
    n = len(x)
    if n < 2:
        return _no_rank_test("too_few", exact=True)
    # Doubled average ranks are whole numbers, so permutations that tie with the sample tie exactly.
    first, second = (_centred_ranks(finite(side, name)) for side, name in ((x, "x"), (y, "y")))
    if not (first.any() and second.any()):
        return _no_rank_test("zero_variance", exact=n <= EXACT_RANKS)
    observed = int(first @ second)
    best = int(np.sort(first) @ np.sort(second))
    worst = int(np.sort(first) @ np.sort(second)[::-1])
    if alternative == "two-sided":
        best = max(best, -worst)
    exact = n <= EXACT_RANKS

    def extreme(products: Int64[np.ndarray, " _"], limit: int) -> Bool[np.ndarray, " _"]:
        return np.asarray((np.abs(products) if alternative == "two-sided" else products) >= limit)

    limit = abs(observed) if alternative == "two-sided" else observed
    if exact:
        products = second[_all_orders(n)] @ first
        p_value = float(extreme(products, limit).mean())
        smallest_p = float(extreme(products, best).mean())
    else:
        reached, rows = 0, max(1, _BLOCK // n)
        for start in range(0, n_permutations, rows):
            block = np.broadcast_to(second, (min(rows, n_permutations - start), n))
            reached += int(np.count_nonzero(extreme(rng.permuted(block, axis=1) @ first, limit)))
        p_value, smallest_p = (1 + reached) / (1 + n_permutations), 1 / (1 + n_permutations)
    return RankTest(
        rho=observed / math.sqrt(int(first @ first) * int(second @ second)),
        p_value=p_value,
        smallest_p=smallest_p,
        exact=exact,
    )


def _no_rank_test(reason: str, *, exact: bool) -> RankTest:
    return RankTest(rho=math.nan, p_value=math.nan, smallest_p=math.nan, exact=exact, reason=reason)


def _centred_ranks(values: Float64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Twice the average ranks, less twice their mean."""
    return np.asarray(np.rint(2 * scipy.stats.rankdata(values)).astype(np.int64) - (len(values) + 1))


def _all_orders(n: int) -> Int64[np.ndarray, "orders n"]:
    """Every permutation of 0..n-1, one per row."""
    orders = np.zeros((1, 1), dtype=np.int64)
    for size in range(2, n + 1):
        longer = np.insert(orders, 0, size - 1, axis=1)
        orders = np.concatenate([np.roll(longer, shift, axis=1) for shift in range(size)])
    return orders
