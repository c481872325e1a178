"""Whether groups differ in mean or spread, and how much of the variance lies between them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float64, Real

from assay.core.record import Record
from assay.core.verdict import ONE_SIDED_95, Interval, undefined_interval
from assay.stats._checks import finite, varies
from assay.stats.estimate import Estimate, SignificanceTest, undefined_estimate, undefined_test


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
        means: `[G]` of the groups used.
        sizes: `[G]` their numbers of values.
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
    means: tuple[float, ...]
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
    means = tuple(float(group.mean()) for group in kept)
    sizes = tuple(len(group) for group in kept)
    n_groups, n = len(kept), sum(sizes)
    no_bounds = undefined_interval(level, _METHOD, "too_few_groups")
    eta = undefined_estimate("too_few_groups", no_bounds)
    omega = epsilon = undefined_estimate("too_few_groups")
    tests: tuple[SignificanceTest, ...] = (undefined_test("too_few_groups"),) * 4
    if n_groups > 1:
        pooled = np.concatenate(kept)
        spreads = [varies(group) for group in kept]
        tests = _tests(kept) if any(spreads) else (undefined_test("zero_variance"),) * 4
        if not any(spreads):
            share = float(varies(pooled))
            interval = Interval(low=share, high=share, level=level, method=_METHOD, reason="degenerate")
            eta, omega, epsilon = (
                Estimate(value=share, interval=interval),
                Estimate(value=share),
                Estimate(value=share),
            )
        else:
            between = sum(size * (mean - pooled.mean()) ** 2 for size, mean in zip(sizes, means, strict=True))
            within = float(sum(((group - group.mean()) ** 2).sum() for group in kept))
            total, mean_within = between + within, within / (n - n_groups)
            excess = float(between - (n_groups - 1) * mean_within)
            eta = Estimate(
                value=float(between / total),
                interval=_eta_bounds(tests[1].statistic, n_groups - 1, n - n_groups, n, level),
            )
            omega = Estimate(value=float(excess / (total + mean_within)))
            epsilon = Estimate(value=float(excess / total))
    return GroupDifferences(
        eta_squared=eta,
        omega_squared=omega,
        epsilon_squared=epsilon,
        expected_eta_squared=(n_groups - 1) / (n - 1) if n_groups > 1 else math.nan,
        welch=tests[0],
        classic=tests[1],
        brown_forsythe=tests[2],
        kruskal_wallis=tests[3],
        means=means,
        sizes=sizes,
        used=used,
    )


def _tests(groups: list[Float64[np.ndarray, " _"]]) -> tuple[SignificanceTest, ...]:
    """Welch, classic, Brown-Forsythe, Kruskal-Wallis, of groups not all of which are constant."""
    ranks = scipy.stats.kruskal(*groups)
    return (
        _welch(groups) if all(varies(group) for group in groups) else undefined_test("zero_variance"),
        _classic(groups),
        _classic([np.abs(group - np.median(group)) for group in groups]),
        SignificanceTest(
            statistic=float(ranks.statistic),
            p_value=float(ranks.pvalue),
            degrees_of_freedom=(float(len(groups) - 1),),
        ),
    )


def _classic(groups: list[Float64[np.ndarray, " _"]]) -> SignificanceTest:
    if not any(varies(group) for group in groups):
        return undefined_test("zero_variance")
    test = scipy.stats.f_oneway(*groups)
    return SignificanceTest(
        statistic=float(test.statistic),
        p_value=float(test.pvalue),
        degrees_of_freedom=(float(len(groups) - 1), float(sum(map(len, groups)) - len(groups))),
    )


def _welch(groups: list[Float64[np.ndarray, " _"]]) -> SignificanceTest:
    n_groups = len(groups)
    sizes = np.array([len(group) for group in groups])
    means = np.array([group.mean() for group in groups])
    weights = sizes / np.array([group.var(ddof=1) for group in groups])
    centre = weights @ means / weights.sum()
    lack = 3 * ((1 - weights / weights.sum()) ** 2 / (sizes - 1)).sum() / (n_groups**2 - 1)
    statistic = weights @ (means - centre) ** 2 / (n_groups - 1) / (1 + 2 * (n_groups - 2) * lack / 3)
    df = (float(n_groups - 1), float(1 / lack))
    return SignificanceTest(
        statistic=float(statistic), p_value=float(scipy.stats.f.sf(statistic, *df)), degrees_of_freedom=df
    )


def _eta_bounds(f: float, df_between: int, df_within: int, n: int, level: float) -> Interval:
    ends = []
    for probability in ((1 + level) / 2, (1 - level) / 2):
        noncentrality = _noncentrality(f, df_between, df_within, probability)
        ends.append(noncentrality / (noncentrality + n))
    return Interval(low=ends[0], high=ends[1], level=level, method=_METHOD)


def _noncentrality(f: float, df_between: int, df_within: int, probability: float) -> float:
    """Lambda at which a noncentral F lies below `f` with the given probability; 0 where there is none."""

    def excess(noncentrality: float) -> float:
        return float(scipy.special.ncfdtr(df_between, df_within, noncentrality, f)) - probability

    if f <= 0 or float(scipy.special.fdtr(df_between, df_within, f)) <= probability:
        return 0.0
    high = max(1.0, 2 * df_between * f)
    while excess(high) > 0:
        high *= 2
    return float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-12 * high, rtol=1e-14))
