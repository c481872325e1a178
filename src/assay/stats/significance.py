"""Tests of hypotheses: signs flipped, ranks and labels permuted, groups compared, many hypotheses at once.

Adjusting p-values or e-values for their number gives the smallest level at which each hypothesis is rejected,
so "rejected at level a" reads `adjusted <= a`. NaN marks what was not tested, and stays NaN.

| function | controls | under |
|---|---|---|
| `bonferroni`, `holm` | any false rejection | any dependence |
| `benjamini_hochberg` | share of false rejections | independence or positive dependence |
| `benjamini_yekutieli`, `e_benjamini_hochberg` | share of false rejections | any dependence |

Two ask how many are false: `partial_conjunction`, whether at least so many of all are, and
`true_discoveries`, how many of some that were picked after looking.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64, Int64, Real, Shaped

from assay.core.errors import InputError, ShapeError, check_least, check_name
from assay.core.measurement import ONE_SIDED_95, Interval, undefined_interval
from assay.core.random import stream
from assay.core.record import Record
from assay.stats.estimate import EQUAL, Estimate, SignificanceTest, finite, varies
from assay.stats.summary import coded, shares_of


SPARSE = 20  # distinct inputs below which a cell says little of others with its labels
EXACT_SIGNS = 12
EXACT_RANKS = 8
N_PERMUTATIONS = 10_000


def blocks(n_permutations: int, entries: int) -> Iterator[int]:
    """Permutations of so many entries each to make at a time, until all are made."""
    rows = max(1, (1 << 22) // entries)
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
        nothing = SignificanceTest.undefined("too_few")
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
        return SignificanceTest.undefined("too_few" if len(x) < 2 else "zero_variance")
    if not varies(x):
        sign = float(np.sign(x[0]))
        return SignificanceTest(statistic=sign * math.inf, p_value=float(sign < 0), reason="degenerate")
    t = float(x.mean() / np.sqrt(x.var(ddof=1) / len(x)))
    return SignificanceTest(statistic=t, p_value=float(scipy.special.stdtr(len(x) - 1, -t)))


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
        orders = np.array(list(itertools.permutations(range(n))))
        products = extremity(second[orders] @ first)
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


def _adjusted(
    p_values: Float64[np.ndarray, "..."], rule: Callable[[np.ndarray], np.ndarray]
) -> Float64[np.ndarray, "..."]:
    """The rule applied to what was tested."""
    tested = ~np.isnan(p_values)
    adjusted = np.full(p_values.shape, np.nan)
    if tested.any():
        adjusted[tested] = rule(_checked(p_values[tested]))
    return adjusted


def _checked(p_values: Float64[np.ndarray, " m"]) -> Float64[np.ndarray, " m"]:
    if not ((p_values >= 0) & (p_values <= 1)).all():
        raise InputError(f"p-values are {p_values}; expected values in [0, 1]")
    return p_values


def bonferroni(p_values: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Adjusted p-values min(1, m p): at level a the chance of any false rejection is at most a.

    Args:
        p_values: In [0, 1], any shape; NaN marks what was not tested.

    Raises:
        InputError: A p-value outside [0, 1].

    Example:
        >>> bonferroni(np.array([0.01, 0.04, np.nan]))
        array([0.02, 0.08,  nan])
    """
    return _adjusted(p_values, lambda p: np.minimum(1.0, len(p) * p))


def holm(p_values: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Adjusted p-values of the step-down rule: max over j <= i of (m - j + 1) p_(j), at most 1.

    The same promise as `bonferroni`, and never larger.

    Args:
        p_values: In [0, 1], any shape; NaN marks what was not tested.

    Raises:
        InputError: A p-value outside [0, 1].

    References:
        Holm (1979), Scandinavian Journal of Statistics 6, 65-70.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03]))
        array([0.03, 0.06, 0.06])
    """

    def rule(p: np.ndarray) -> np.ndarray:
        order = np.argsort(p, kind="stable")
        stepped = np.empty(len(p))
        stepped[order] = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
        return np.minimum(1.0, stepped)

    return _adjusted(p_values, rule)


def benjamini_hochberg(p_values: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Smallest false discovery rate at which each hypothesis would be rejected.

    q_(i) = min over j >= i of m p_(j) / j, with p_(1) <= ... <= p_(m).

    Args:
        p_values: In [0, 1], any shape; NaN marks what was not tested and does not count into m.

    Returns:
        In [0, 1], in the shape given, never below the p-value; NaN where that was NaN.

    Raises:
        InputError: A p-value outside [0, 1].

    References:
        Benjamini and Hochberg (1995), doi:10.1111/j.2517-6161.1995.tb02031.x.

    Example:
        >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03, 0.5]))
        array([0.04      , 0.05333333, 0.05333333, 0.5       ])
    """
    return _adjusted(p_values, lambda p: scipy.stats.false_discovery_control(p, method="bh"))


def benjamini_yekutieli(p_values: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """As `benjamini_hochberg`, times 1 + 1/2 + ... + 1/m: valid however the p-values depend on each other.

    Args:
        p_values: In [0, 1], any shape; NaN marks what was not tested.

    Raises:
        InputError: A p-value outside [0, 1].

    References:
        Benjamini and Yekutieli (2001), doi:10.1214/aos/1013699998.

    Example:
        >>> benjamini_yekutieli(np.array([0.01, 0.04]))
        array([0.03, 0.06])
    """
    return _adjusted(p_values, lambda p: scipy.stats.false_discovery_control(p, method="by"))


def e_benjamini_hochberg(e_values: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Smallest false discovery rate at which each e-value would be rejected, however they depend.

    Rejecting at level a takes the i* largest, i* the largest i with e_(i) >= m / (i a): q_(i) = min over j >=
    i of m / (j e_(j)), at most 1, with e_(1) >= ... >= e_(m).

    Args:
        e_values: >= 0, infinity allowed, any shape; expectation at most 1 under the null. NaN marks what was
            not tested.

    Returns:
        In [0, 1], in the shape given; NaN where that was NaN.

    Raises:
        InputError: A negative e-value.

    References:
        Wang and Ramdas (2022), arXiv:2009.02824.

    Example:
        >>> e_benjamini_hochberg(np.array([80.0, 10.0, 0.0, 40.0]))
        array([0.05      , 0.13333333, 1.        , 0.05      ])
    """
    if (e_values < 0).any():
        raise InputError(f"the smallest e-value is {np.nanmin(e_values):g}; expected values of at least 0")
    # 1 / e is a p-value by Markov's inequality; the cap at 1 keeps it in range and changes no rejection.
    return benjamini_hochberg(1 / np.maximum(1.0, e_values))


def partial_conjunction(p_values: Float64[np.ndarray, " m"], least: int) -> float:
    """p-value of "fewer than `least` of these hypotheses are false", however strongly the false ones are so.

    min over j >= u of (m - u + 1) / (j - u + 1) p_(j), with u = `least` and p_(1) <= ... <= p_(m): of any set
    of m - u + 1 hypotheses, one of which is then false, Simes' p-value, for the set with the largest.

    Args:
        p_values: In [0, 1], at least one.
        least: From 1 to m. A count of rejections is not such a test: some of the rejected may be true.

    Returns:
        In [0, 1]. At level a the statement "at least u are false" is wrong with probability at most a, where
        the p-values are independent or positively dependent, as those of heads that share prompts are.

    Raises:
        InputError: A p-value outside [0, 1] or NaN, or a number that is not from 1 to m.

    References:
        Benjamini and Heller (2008), doi:10.1111/j.1541-0420.2007.00984.x; Simes (1986),
        doi:10.1093/biomet/73.3.751.

    Example:
        >>> partial_conjunction(np.array([0.001, 0.02, 0.03, 0.9]), 2)
        0.045
    """
    m = len(p_values)
    if not 1 <= least <= m:
        raise InputError(f"least is {least} of {m} p-values; expected a number from 1 to {m}")
    ranks = np.arange(1, m - least + 2)
    return float(min(1.0, ((m - least + 1) / ranks * np.sort(_checked(p_values))[least - 1 :]).min()))


def true_discoveries(
    p_values: Float64[np.ndarray, " m"], selected: Bool[np.ndarray, " m"], *, alpha: float = 0.05
) -> int:
    """Lower bound of how many of the selected hypotheses are false, whatever they were selected by.

    max over u of 1 - u + #{selected: h p <= u alpha}, at least 0, with Hommel's h, the largest i such that
    p_(m - i + j) > j alpha / i for all j = 1..i: the closed testing procedure of Simes' tests.

    Args:
        p_values: Of all that was tested, in [0, 1].
        selected: Which of them the bound is of.
        alpha: Probability that any such bound, of any selection, is above the truth, where the p-values are
            independent or positively dependent.

    Raises:
        InputError: A p-value outside [0, 1] or NaN.

    References:
        Goeman and Solari (2011), doi:10.1214/11-STS356; Goeman, Meijer, Krebs and Solari (2019),
        doi:10.1093/biomet/asz041.

    Example:
        >>> p = np.array([0.001, 0.004, 0.03, 0.6])
        >>> true_discoveries(p, p < 0.05)
        2
    """
    m, ordered = len(p_values), np.sort(_checked(p_values))
    sizes = np.arange(1, m + 1)
    # All of the i largest beyond the line through alpha: Simes' test does not reject them.
    kept = [i for i in sizes.tolist() if (i * ordered[m - i :] > alpha * sizes[:i]).all()]
    h = max(kept, default=0)
    chosen = np.sort(p_values[selected])
    places = np.arange(len(chosen))
    if h == 0:
        return len(chosen)
    return int((np.searchsorted(chosen, alpha * (places + 1) / h, side="right") - places).max(initial=0))


FEWEST_PER_GROUP = 3
_METHOD = "noncentral-f"


@dataclass(frozen=True, kw_only=True)
class GroupDifferences(Record):
    """One-way comparison of groups.

    Attributes:
        eta_squared: Share of the sum of squares between groups, SSB / SST (partial eta^2 of a one-way
            layout), with bounds of the population's. Biased upwards, see `expected_eta_squared`.
        omega_squared: (SSB - (G - 1) MSW) / (SST + MSW), nearly unbiased; may be negative.
        epsilon_squared: (SSB - (G - 1) MSW) / SST; may be negative.
        expected_eta_squared: (G - 1) / (N - 1), the expectation of eta^2 where groups do not differ.
        welch: F test of equal means that allows unequal variances; undefined where a group is constant.
        classic: F test of equal means under equal variances.
        brown_forsythe: F test of equal spread around the group medians.
        kruskal_wallis: Rank test of equal distributions.
        sizes: `[G]` numbers of values of the groups used.
        used: Positions of the groups used among those given.
    """

    eta_squared: Estimate
    omega_squared: Estimate
    epsilon_squared: Estimate
    expected_eta_squared: float
    welch: SignificanceTest
    classic: SignificanceTest
    brown_forsythe: SignificanceTest
    kruskal_wallis: SignificanceTest
    sizes: tuple[int, ...]
    used: tuple[int, ...]


def group_differences(
    groups: Sequence[Real[np.ndarray, " _"]], *, level: float = ONE_SIDED_95
) -> GroupDifferences:
    """Compare the means and spreads of independent groups.

    Welch: F = [sum_g w_g (m_g - m_w)^2 / (G - 1)] / [1 + 2 (G - 2) L / 3] with w_g = n_g / s_g^2, m_w the
    weighted mean, L = 3 sum_g (1 - w_g / W)^2 / (n_g - 1) / (G^2 - 1), on (G - 1, 1 / L) degrees of freedom.
    Bounds of eta^2: lambda / (lambda + N), with lambda such that the classic F statistic is the upper or
    lower quantile of a noncentral F; 0 where none is.

    Args:
        groups: Finite values; groups of fewer than three are left out.
        level: Two-sided coverage of the bounds.

    Returns:
        Everything undefined below two groups (`too_few_groups`). Where every group is constant, eta^2 is 0
        for equal means and 1 for different ones, and no test is defined (`zero_variance`). Where some group
        is, Welch's test is undefined and the classic one stands.

    References:
        Welch (1951), doi:10.1093/biomet/38.3-4.330; Brown and Forsythe (1974),
        doi:10.1080/01621459.1974.10482955; Kruskal and Wallis (1952), doi:10.1080/01621459.1952.10483441;
        Steiger (2004), doi:10.1037/1082-989X.9.2.164 (bounds of eta^2).

    Example:
        >>> found = group_differences([np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 4.0])])
        >>> round(found.eta_squared.value, 4), round(found.classic.statistic, 4)
        (0.2727, 1.5)
    """
    used = tuple(at for at, group in enumerate(groups) if len(group) >= FEWEST_PER_GROUP)
    kept = [finite(groups[at], f"values of group {at}") for at in used]
    n_groups, n = len(kept), sum(map(len, kept))
    varied = [varies(group) for group in kept]
    reason = "too_few_groups" if n_groups < 2 else None if any(varied) else "zero_variance"
    undefined = SignificanceTest.undefined(reason or "zero_variance")
    tests = dict.fromkeys(("welch", "classic", "brown_forsythe", "kruskal_wallis"), undefined)
    if reason:
        eta = Estimate.undefined(reason, undefined_interval(level, _METHOD, reason))
        omega = epsilon = Estimate.undefined(reason)
        if n_groups > 1:  # constant groups
            share = float(varies(np.concatenate(kept)))
            omega = epsilon = Estimate(value=share)
            point = Interval(low=share, high=share, level=level, method=_METHOD, reason="degenerate")
            eta = Estimate(value=share, interval=point)
    else:
        tests["classic"] = _tested(scipy.stats.f_oneway(*kept))
        tests["kruskal_wallis"] = _tested(scipy.stats.kruskal(*kept))
        if all(varied):
            tests["welch"] = _welch(kept)
        deviations = [np.abs(group - np.median(group)) for group in kept]
        if any(varies(group) for group in deviations):
            tests["brown_forsythe"] = _tested(scipy.stats.f_oneway(*deviations))
        centre = np.concatenate(kept).mean()
        between = sum(len(group) * (group.mean() - centre) ** 2 for group in kept)
        within = float(sum(((group - group.mean()) ** 2).sum() for group in kept))
        total, mean_within = between + within, within / (n - n_groups)
        excess = float(between - (n_groups - 1) * mean_within)
        bounds = _eta_bounds(tests["classic"].statistic, n_groups - 1, n - n_groups, level)
        eta = Estimate(value=float(between / total), interval=bounds)
        omega = Estimate(value=float(excess / (total + mean_within)))
        epsilon = Estimate(value=float(excess / total))
    return GroupDifferences(
        eta_squared=eta,
        omega_squared=omega,
        epsilon_squared=epsilon,
        expected_eta_squared=(n_groups - 1) / (n - 1) if n_groups > 1 else math.nan,
        sizes=tuple(map(len, kept)),
        used=used,
        **tests,
    )


def _tested(test: Any) -> SignificanceTest:
    """What a test of scipy found."""
    return SignificanceTest(statistic=float(test.statistic), p_value=float(test.pvalue))


def _welch(groups: list[Float64[np.ndarray, " _"]]) -> SignificanceTest:
    n_groups = len(groups)
    sizes, means, variances = np.array([(len(group), group.mean(), group.var(ddof=1)) for group in groups]).T
    weights = sizes / variances
    centre = weights @ means / weights.sum()
    lack = 3 * ((1 - weights / weights.sum()) ** 2 / (sizes - 1)).sum() / (n_groups**2 - 1)
    statistic = weights @ (means - centre) ** 2 / (n_groups - 1) / (1 + 2 * (n_groups - 2) * lack / 3)
    p_value = float(scipy.stats.f.sf(statistic, n_groups - 1, 1 / lack))
    return SignificanceTest(statistic=float(statistic), p_value=p_value)


def _eta_bounds(f: float, df_between: int, df_within: int, level: float) -> Interval:
    """L / (L + N) with the noncentrality L at which F lies below `f` with the probability of either tail."""
    n, ends = df_between + df_within + 1, []
    for probability in ((1 + level) / 2, (1 - level) / 2):

        def excess(noncentrality: float, probability: float = probability) -> float:
            return float(scipy.special.ncfdtr(df_between, df_within, noncentrality, f)) - probability

        noncentrality = 0.0
        if f > 0 and scipy.special.fdtr(df_between, df_within, f) > probability:
            high = max(1.0, 2 * df_between * f)
            while excess(high) > 0:
                high *= 2
            noncentrality = float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-12 * high, rtol=1e-14))
        ends.append(noncentrality / (noncentrality + n))
    return Interval(low=ends[0], high=ends[1], level=level, method=_METHOD)


# ---------------------------------------------------------------------------------------------------- cells


@dataclass(frozen=True, kw_only=True)
class CellTests(Record):
    """How often the values of each cell exceed a threshold, against all cells together.

    Attributes:
        rows: Values of the first label, ascending.
        columns: Values of the second one, ascending; a single None where there is none.
        n: `[R, C]` values per cell.
        n_inputs: `[R, C]` distinct inputs that bear the cell's labels; where the two labels belong to the two
            sides of a cross, the smaller of the two numbers.
        exceed: `[R, C]` share of the cell's values above the threshold; NaN for an empty cell.
        pooled: The same share over all values.
        p_value: `[R, C]` in (0, 1], one-sided: small where the cell exceeds more often than its labels'
            being dealt to other inputs explains. NaN for an empty cell.
        q_value: `[R, C]` Benjamini-Hochberg over the cells of this table; NaN for an empty cell.
    """

    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    n: Int64[np.ndarray, "R C"]
    n_inputs: Int64[np.ndarray, "R C"]
    exceed: Float64[np.ndarray, "R C"]
    pooled: float
    p_value: Float64[np.ndarray, "R C"]
    q_value: Float64[np.ndarray, "R C"]


class _Axis:
    """One axis of the values: which distinct input each draw is, and the cell label that each input bears."""

    def __init__(
        self, unit: Int64[np.ndarray, " draws"], labels: Int64[np.ndarray, " draws"], n_labels: int
    ) -> None:
        self.unit, self.n_labels = unit, n_labels
        self.multiplicity = np.bincount(unit)  # draws of each input
        self.label = np.empty(len(self.multiplicity), dtype=np.int64)
        self.label[unit] = labels
        if (self.label[unit] != labels).any():
            raise InputError("draws of one input have different labels; a label is a property of the input")
        self.inputs_per_label = np.bincount(self.label, minlength=n_labels)

    def draws_per_label(self, label: Int64[np.ndarray, " units"]) -> Int64[np.ndarray, " labels"]:
        return np.bincount(label, weights=self.multiplicity, minlength=self.n_labels).astype(np.int64)


def cell_tests(
    exceeds: Bool[np.ndarray, "..."],
    rows: Shaped[np.ndarray, "..."],
    columns: Shaped[np.ndarray, "..."] | None = None,
    *,
    inputs: Sequence[Shaped[np.ndarray, " _"]] | None = None,
    permutations: int | None = None,
    seed: int = 0,
) -> CellTests:
    """Test each cell of a cross table for exceeding a threshold more often than all values together.

    Values that share an input depend on each other, so labels are dealt anew to *inputs*, not to values. The
    p-value of a cell is (1 + b) / (1 + permutations), with b the permutations in which the share of exceeding
    values in the cell is at least the observed one. Its null hypothesis: the label has nothing to do with
    what its inputs do.

    Args:
        exceeds: Whether each value lies above the threshold, say the 99th percentile of all of them.
            `[n_clean, n_corrupted]`: every pair of two samples of inputs. `[P]`: pairs drawn one by one.
        rows: First label. For a matrix it belongs to one of its sides: `[n_clean, 1]` or `[1, n_corrupted]`;
            for `[P]` one label per pair.
        columns: Second label; None tests the values of the first alone. Labels of different sides are dealt
            independently, two labels of one side together.
        inputs: Ids of the inputs, one array per axis of `exceeds` (`(clean, corrupted)`, or `(pairs,)`):
            draws with equal ids are one input, count once in `n_inputs` and keep their label in common. None
            takes every draw for another input.
        permutations: At least 1. None takes 999, and up to 40 per cell while that stays a matter of seconds:
            with many cells p-values of 1/1000 are too coarse for the correction.
        seed: Of the permutations.

    Returns:
        One row and column per label that occurs, ascending.

    Raises:
        InputError: One input with two labels.
        ValueError: Labels or ids whose shape does not fit, by numpy.

    Notes:
        For `[P]` the labels are dealt to pairs (or to distinct ids). That presupposes pairs drawn
        independently of each other, as in the protocols `matched` and `iid`; where pairs share inputs
        otherwise, the p-values are too small. With all labels equal, or no value above the threshold, p = 1.
        A cross of labels of both sides tests cells against the whole table: where one row is bad throughout,
        each of its cells can be significant. A cell with few inputs is tested soundly but tells little about
        other inputs with its labels: see `n_inputs`.

    References:
        Phipson and Smyth (2010), doi:10.2202/1544-6115.1585, for the 1 + b.

    Example:
        >>> exceeds = np.zeros((40, 50), dtype=bool)
        >>> exceeds[:20, ::5] = True
        >>> tests = cell_tests(exceeds, np.repeat(["ring", "book"], 20)[:, None])
        >>> tests.rows, tests.exceed.ravel(), tests.p_value.ravel()
        (('book', 'ring'), array([0. , 0.2]), array([1.   , 0.001]))
    """
    ids = map(np.arange, exceeds.shape) if inputs is None else inputs
    units = [np.unique(each, return_inverse=True)[1].astype(np.int64) for each in ids]
    row_labels, row_codes = coded(rows, exceeds.shape)
    column_labels, column_codes = (None,), np.zeros_like(row_codes)
    if columns is not None:
        column_labels, column_codes = coded(columns, exceeds.shape)
    shape = (len(row_labels), len(column_labels))
    row_axis, column_axis = (
        int(codes.shape not in (exceeds.shape[:1], (len(exceeds), 1))) for codes in (row_codes, column_codes)
    )
    # Labels of one axis are dealt together; of two, each for itself.
    if row_axis == column_axis:
        side = _Axis(units[row_axis], (row_codes * shape[1] + column_codes).ravel(), shape[0] * shape[1])
        n_inputs = side.inputs_per_label
        n, share, own, deal, work = _of_one_side(exceeds, side, row_axis)
    else:
        first = _Axis(units[row_axis], row_codes.ravel(), shape[0])
        second = _Axis(units[column_axis], column_codes.ravel(), shape[1])
        n_inputs = np.minimum.outer(first.inputs_per_label, second.inputs_per_label).ravel()
        n, share, own, deal, work = _of_two_sides(exceeds if row_axis == 0 else exceeds.T, first, second)
    if permutations is None:
        n_cells = int(np.count_nonzero(n_inputs))
        # A cell that no permutation reaches then has q = 1/40; 20 million entries take about a second.
        permutations = max(999, min(40 * n_cells, 20_000_000 // max(work, 1)))
    observed, rng = share(*own), stream(seed, "cell-tests")
    reached = np.zeros(len(observed), dtype=np.int64)
    for _ in range(permutations):
        reached += share(*deal(rng)) >= observed
    p_value = np.where(n_inputs > 0, (1 + reached) / (1 + permutations), np.nan)
    return CellTests(
        rows=row_labels,
        columns=column_labels,
        n=n.reshape(shape),
        n_inputs=n_inputs.reshape(shape),
        exceed=observed.reshape(shape),
        pooled=float(exceeds.mean()),
        p_value=p_value.reshape(shape),
        q_value=benjamini_hochberg(p_value).reshape(shape),
    )


# Values per cell, the share of exceeding ones by labels of inputs, the labels as they are, a deal of them,
# and the entries that a deal touches.
_Labels = Int64[np.ndarray, "_"]
_Test = tuple[_Labels, Callable[..., np.ndarray], Sequence[_Labels], Callable[..., Sequence[_Labels]], int]


def _of_one_side(exceeds: Bool[np.ndarray, "..."], side: _Axis, axis: int) -> _Test:
    """Labels of one axis: an input matters only through how many of its values exceed.

    Inputs of one draw and no exceeding value are alike, so only the others need a place to go: with a million
    pairs that is one in a hundred of them.
    """
    per_draw = exceeds.sum(axis=1 - axis) if exceeds.ndim == 2 else exceeds.astype(np.int64)
    hits = np.bincount(side.unit, weights=per_draw)
    values_per_draw = exceeds.size // len(side.unit)
    distinct = np.flatnonzero((hits > 0) | (side.multiplicity > 1))
    weights, extra = hits[distinct], side.multiplicity[distinct] - 1
    in_cells = partial(np.bincount, minlength=side.n_labels)

    def share(label: _Labels) -> Float64[np.ndarray, " cells"]:
        draws = side.inputs_per_label
        if extra.any():
            draws = draws + in_cells(label, weights=extra).astype(np.int64)
        return shares_of(in_cells(label, weights=weights), draws * values_per_draw)

    def deal(rng: np.random.Generator) -> Sequence[_Labels]:
        return (side.label[rng.choice(len(side.label), len(distinct), replace=False)],)

    n = side.draws_per_label(side.label) * values_per_draw
    return n, share, (side.label[distinct],), deal, max(len(distinct), side.n_labels)


def _of_two_sides(exceeds: Bool[np.ndarray, "n_first n_second"], first: _Axis, second: _Axis) -> _Test:
    """Labels of both axes, dealt independently; only the list of exceeding pairs is looked at."""
    places = np.nonzero(exceeds)
    at_first, at_second = first.unit[places[0]], second.unit[places[1]]
    n_cells = first.n_labels * second.n_labels

    def pairs(label: _Labels, other: _Labels) -> Int64[np.ndarray, " cells"]:
        return np.outer(first.draws_per_label(label), second.draws_per_label(other)).ravel()

    def share(label: _Labels, other: _Labels) -> Float64[np.ndarray, " cells"]:
        cell = label[at_first] * second.n_labels + other[at_second]
        return shares_of(np.bincount(cell, minlength=n_cells), pairs(label, other))

    def deal(rng: np.random.Generator) -> Sequence[_Labels]:
        return rng.permutation(first.label), rng.permutation(second.label)

    own = first.label, second.label
    return pairs(*own), share, own, deal, max(len(at_first), n_cells)
