"""Whether groups differ in mean or spread, and how much of the variance lies between them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    if reason:
        eta = undefined_estimate(reason, undefined_interval(level, _METHOD, reason))
        omega = epsilon = undefined_estimate(reason)
        welch = classic = brown_forsythe = kruskal_wallis = undefined_test(reason)
        if n_groups > 1:  # constant groups
            share = float(varies(np.concatenate(kept)))
            omega = epsilon = Estimate(value=share)
            point = Interval(low=share, high=share, level=level, method=_METHOD, reason="degenerate")
            eta = Estimate(value=share, interval=point)
    else:
        welch = _welch(kept) if all(varied) else undefined_test("zero_variance")
        classic = _tested(scipy.stats.f_oneway(*kept))
        deviations = [np.abs(group - np.median(group)) for group in kept]
        brown_forsythe = undefined_test("zero_variance")
        if any(varies(group) for group in deviations):
            brown_forsythe = _tested(scipy.stats.f_oneway(*deviations))
        kruskal_wallis = _tested(scipy.stats.kruskal(*kept))
        centre = np.concatenate(kept).mean()
        between = sum(len(group) * (group.mean() - centre) ** 2 for group in kept)
        within = float(sum(((group - group.mean()) ** 2).sum() for group in kept))
        total, mean_within = between + within, within / (n - n_groups)
        excess = float(between - (n_groups - 1) * mean_within)
        bounds = _eta_bounds(classic.statistic, n_groups - 1, n - n_groups, level)
        eta = Estimate(value=float(between / total), interval=bounds)
        omega = Estimate(value=float(excess / (total + mean_within)))
        epsilon = Estimate(value=float(excess / total))
    return GroupDifferences(
        eta_squared=eta,
        omega_squared=omega,
        epsilon_squared=epsilon,
        expected_eta_squared=(n_groups - 1) / (n - 1) if n_groups > 1 else math.nan,
        welch=welch,
        classic=classic,
        brown_forsythe=brown_forsythe,
        kruskal_wallis=kruskal_wallis,
        sizes=tuple(map(len, kept)),
        used=used,
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
