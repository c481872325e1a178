"""Tests that need no distribution: signs flipped, ranks permuted."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float64, Int64, Real

from assay.core.errors import ShapeError, check_least, check_name
from assay.core.record import Record
from assay.stats._checks import EQUAL, finite, varies
from assay.stats.estimate import SignificanceTest, undefined_test


EXACT_SIGNS = 12
EXACT_RANKS = 8
N_PERMUTATIONS = 10_000
_BLOCK = 1 << 22  # entries permuted at a time


def blocks(n_permutations: int, entries: int) -> Iterator[int]:
    """Permutations of so many entries each to make at a time, until all are made."""
    rows = max(1, _BLOCK // entries)
    yield from (min(rows, n_permutations - start) for start in range(0, n_permutations, rows))


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
    if n == 0:
        nothing = undefined_test("too_few")
        return tuple(MeanTest(sign_flip=nothing, t=nothing, exact=True) for _ in range(k))
    x = finite(values) if k else values
    exact = n <= EXACT_SIGNS
    # A flipped mean reaches the observed one exactly if the flipped values sum to at most 0.
    slack = EQUAL * np.abs(x).sum(axis=0)
    if exact:
        flips = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        p_values = np.count_nonzero(flips @ x <= slack, axis=0) / 2**n
    else:
        flips_at_a_time = (rng.integers(0, 2, (rows, n)) for rows in blocks(n_permutations, n))
        reached = sum(np.count_nonzero(flips @ x <= slack, axis=0) for flips in flips_at_a_time)
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
    if len(x) < 2 or not x.any():
        return undefined_test("too_few" if len(x) < 2 else "zero_variance")
    if not varies(x):
        sign = float(np.sign(x[0]))
        return SignificanceTest(statistic=sign * math.inf, p_value=float(sign < 0), reason="degenerate")
    test = scipy.stats.ttest_1samp(x, 0.0, alternative="greater")
    return SignificanceTest(statistic=float(test.statistic), p_value=float(test.pvalue))


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
    check_name("alternative", alternative, ("greater", "two-sided"))
    check_least(1, n_permutations=n_permutations)
    if x.shape != y.shape:
        raise ShapeError(f"a rank test compares vectors of equal length; got shapes {x.shape} and {y.shape}")
    n = len(x)
    exact = n <= EXACT_RANKS
    reason = "too_few" if n < 2 else None
    if not reason:
        # Doubled average ranks are whole numbers, so permutations that tie with the sample tie exactly.
        first, second = (_centred_ranks(finite(side, name)) for side, name in ((x, "x"), (y, "y")))
        reason = None if first.any() and second.any() else "zero_variance"
    if reason:
        return RankTest(rho=math.nan, p_value=math.nan, smallest_p=math.nan, exact=exact, reason=reason)

    def extremity(products: Int64[np.ndarray, " _"]) -> Int64[np.ndarray, " _"]:
        return np.abs(products) if alternative == "two-sided" else products

    observed = second[None] @ first
    limit = extremity(observed)
    if exact:
        products = extremity(second[_all_orders(n)] @ first)
        p_value, smallest_p = float((products >= limit).mean()), float((products == products.max()).mean())
    else:
        reached = 0
        for rows in blocks(n_permutations, n):
            dealt = rng.permuted(np.broadcast_to(second, (rows, n)), axis=1)
            reached += int(np.count_nonzero(extremity(dealt @ first) >= limit))
        p_value, smallest_p = (1 + reached) / (1 + n_permutations), 1 / (1 + n_permutations)
    rho = int(observed[0]) / math.sqrt(int(first @ first) * int(second @ second))
    return RankTest(rho=rho, p_value=p_value, smallest_p=smallest_p, exact=exact)


def _centred_ranks(values: Float64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Twice the average ranks, less twice their mean."""
    return np.asarray(np.rint(2 * scipy.stats.rankdata(values)).astype(np.int64) - (len(values) + 1))


def _all_orders(n: int) -> Int64[np.ndarray, "orders n"]:
    """Every permutation of 0..n-1, one per row."""
    return np.array(list(itertools.permutations(range(n))))
