"""How repeatable a score is: stepped-up correlations and internal consistency."""

import math
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float64, Real

from assay.core.errors import InputError
from assay.core.record import Record
from assay.core.verdict import ONE_SIDED_95, Interval, undefined_interval
from assay.stats._checks import EQUAL, finite
from assay.stats.association import pearson_matrix
from assay.stats.estimate import Estimate, undefined_estimate
from assay.stats.intervals import draw_counts
from assay.stats.relative_error import N_RESAMPLES


NO_VARIANCE = 1e-12


def spearman_brown(r: float, *, factor: float = 2.0) -> Estimate:
    """Reliability of a measurement made `factor` times as long: f r / (1 + (f - 1) r).

    Args:
        r: Reliability, or correlation of two halves, in [-1, 1].
        factor: New length over the old one, > 0; 2 turns the correlation of two halves into the reliability
            of the whole.

    Returns:
        At most 1; below -1 for strongly negative r. Undefined where r is NaN (`undefined`) and where the
        denominator is 0 (`pole`; r = -1 at factor 2).

    References:
        Spearman (1910), doi:10.1111/j.2044-8295.1910.tb00206.x; Brown (1910),
        doi:10.1111/j.2044-8295.1910.tb00207.x.

    Example:
        >>> spearman_brown(0.5).value
        0.6666666666666666
    """
    if abs(r) > 1:
        raise InputError(f"r is {r}; expected a correlation in [-1, 1]")
    if not (factor > 0 and math.isfinite(factor)):
        raise InputError(f"factor is {factor}; expected a finite number above 0")
    if math.isnan(r):
        return undefined_estimate("undefined")
    below = 1 + (factor - 1) * r
    return undefined_estimate("pole") if below == 0 else Estimate(value=factor * r / below)


@dataclass(frozen=True, kw_only=True)
class Consistency(Record):
    """Cronbach's alpha of a set of items, in three forms.

    Attributes:
        alpha: Of the items as they are, with Feldt's bounds; at most 1, may be negative.
        sign_aligned: The same after multiplying each item by the sign of its mean (items of mean 0 stay).
        standardised: From the mean correlation r of all pairs of items, K r / (1 + (K - 1) r).
        item_rest: `[K]` correlation of each item with the sum of the others; NaN where either is constant.
        signs: `[K]` the signs used, 1 or -1.
        n_cases: Rows.
        n_items: Columns, K.
    """

    alpha: Estimate
    sign_aligned: Estimate
    standardised: Estimate
    item_rest: Float64[np.ndarray, " K"]
    signs: Float64[np.ndarray, " K"]
    n_cases: int
    n_items: int


def cronbach_alpha(scores: Real[np.ndarray, "P K"], *, level: float = ONE_SIDED_95) -> Consistency:
    """Internal consistency of items measured on the same cases.

    alpha = K / (K - 1) (1 - sum_j var_j / var(sum)), variances with ddof 1. Bounds:
    1 - (1 - alpha) F_q(P - 1, (P - 1)(K - 1)).

    Args:
        scores: Finite; cases (prompts) by items (heads).
        level: Two-sided coverage of the bounds.

    Returns:
        All forms undefined below two items or cases (`too_few`); alpha also where the variance of the sum is
        below 1e-12 (`zero_variance`; published code: 0); the standardised form where an item is constant
        (`zero_variance`) or its denominator is 0 (`pole`).

    References:
        Cronbach (1951), doi:10.1007/BF02310555; Feldt (1965), doi:10.1007/BF02289499.

    Example:
        >>> found = cronbach_alpha(np.array([[1.0, 1.0], [2.0, 3.0], [3.0, 2.0]]))
        >>> round(found.alpha.value, 4)
        0.6667
    """
    n_cases, n_items = scores.shape
    signs = np.ones(n_items)
    item_rest = np.full(n_items, np.nan)
    if n_items < 2 or n_cases < 2:
        nothing = undefined_estimate("too_few", undefined_interval(level, "feldt", "too_few"))
        alpha = sign_aligned = nothing
        standardised = undefined_estimate("too_few")
    else:
        x = finite(scores, "scores")
        signs[x.mean(axis=0) < 0] = -1.0
        rest = x.sum(axis=1, keepdims=True) - x
        item_rest = pearson_matrix(np.stack([x.T, rest.T], axis=1))[:, 0, 1]
        alpha, sign_aligned = _alpha(x, level), _alpha(x * signs, level)
        standardised = _standardised(x)
    return Consistency(
        alpha=alpha,
        sign_aligned=sign_aligned,
        standardised=standardised,
        item_rest=item_rest,
        signs=signs,
        n_cases=n_cases,
        n_items=n_items,
    )


def _alpha(x: Float64[np.ndarray, "P K"], level: float) -> Estimate:
    n_cases, n_items = x.shape
    total = float(x.sum(axis=1).var(ddof=1))
    if total < NO_VARIANCE:
        return undefined_estimate("zero_variance", undefined_interval(level, "feldt", "zero_variance"))
    alpha = float(n_items / (n_items - 1) * (1 - x.var(axis=0, ddof=1).sum() / total))
    df = (n_cases - 1, (n_cases - 1) * (n_items - 1))
    low, high = (
        1 - (1 - alpha) * float(scipy.stats.f.ppf(q, *df)) for q in ((1 + level) / 2, (1 - level) / 2)
    )
    return Estimate(value=alpha, interval=Interval(low=low, high=high, level=level, method="feldt"))


def resampled_alpha_bounds(
    scores: Real[np.ndarray, "P K"], *, level: float = ONE_SIDED_95, rng: np.random.Generator
) -> tuple[float, float]:
    """Bounds of alpha from resampled cases, the outer of bootstrap-t and percentiles at either end.

    Of lambda = ln(sum_j var_j) - ln var(sum), from which alpha follows. The influence of a case is
    sum_j d_j^2 / sum_j var_j - (sum_j d_j)^2 / var(sum), with its deviations d_j from the items' means.

    Args:
        scores: Finite; cases by items, two of each at least, whose sum varies.
        level: Two-sided coverage.
        rng: Source of 999 resamples.

    Returns:
        Lower and upper bound; infinite where 999 resamples do not reach so far.

    References:
        Efron and Tibshirani (1993), chapter 12 (bootstrap-t).
    """
    x = finite(scores, "scores")
    n, n_items = x.shape
    x = (x - x.mean(axis=0)) / x.std()
    counts = np.concatenate([np.ones((1, n)), draw_counts(n, N_RESAMPLES, rng)])
    means = counts @ x / n
    apart = (x**2).sum(axis=1) - 2 * means @ x.T + (means**2).sum(axis=1, keepdims=True)
    together = (x.sum(axis=1) - means.sum(axis=1, keepdims=True)) ** 2
    parts, whole = ((counts * squares).sum(axis=1, keepdims=True) / n for squares in (apart, together))
    with np.errstate(divide="ignore", invalid="ignore"):  # a resample of one case has no variance
        influence = apart / parts - together / whole
        logs = np.log(parts / whole)[:, 0]
        errors = np.sqrt((counts * influence**2).sum(axis=1)) / n
        moved = np.sort(logs[1:] - logs[0])
        t = np.sort((logs[1:] - logs[0]) / errors[1:])
    rank = int((1 - level) / 2 * (N_RESAMPLES + 1) + EQUAL)
    if rank < 1:
        return -math.inf, math.inf
    low = min(moved[rank - 1], -t[-rank] * errors[0])
    high = max(moved[-rank], -t[rank - 1] * errors[0])
    ends = [n_items / (n_items - 1) * (1 - math.exp(logs[0] + end)) for end in (high, low)]
    return ends[0], ends[1]


def _standardised(x: Float64[np.ndarray, "P K"]) -> Estimate:
    n_items = x.shape[1]
    r = float(pearson_matrix(x.T)[np.triu_indices(n_items, k=1)].mean())
    if math.isnan(r):
        return undefined_estimate("zero_variance")
    below = 1 + (n_items - 1) * r
    return undefined_estimate("pole") if abs(below) < EQUAL else Estimate(value=n_items * r / below)
