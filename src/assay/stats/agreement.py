"""Agreement of several raters on the same items, and how repeatable a score is.

Concordance, kappa of sets, intraclass correlations, internal consistency.
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Bool, Float64, Int64, Real

from assay.core.errors import DegenerateDataWarning, InputError, check_least
from assay.core.record import Record
from assay.core.verdict import ONE_SIDED_95, Interval, undefined_interval
from assay.stats._checks import EQUAL, finite
from assay.stats.association import pearson_matrix, spearman_matrix
from assay.stats.estimate import Estimate, SignificanceTest, undefined_estimate, undefined_test
from assay.stats.intervals import draw_counts
from assay.stats.permutation import N_PERMUTATIONS, blocks


_N_RESAMPLES = 999


# --------------------------------------------------------------------------------------------- concordance


@dataclass(frozen=True, kw_only=True)
class Concordance(Record):
    """Kendall's W of raters who rank the same items.

    Attributes:
        w: In [0, 1]; 1 where all rank alike. Its expectation under random ranks is 1 / `n_raters`.
        chi_square: m (n - 1) W against chi-square with n - 1 degrees of freedom, for many items.
        permutation: W against independent permutations of every rater.
        spearman: `[m, m]` rank correlation of each pair of raters; NaN for a constant one.
        mean_spearman: Over pairs; NaN where any rater is constant. Without ties W = (1 + (m - 1) mean) / m.
    """

    w: Estimate
    chi_square: SignificanceTest
    permutation: SignificanceTest
    spearman: Float64[np.ndarray, "m m"]
    mean_spearman: float


def kendall_w(
    scores: Real[np.ndarray, "m n"], *, rng: np.random.Generator, n_permutations: int = N_PERMUTATIONS
) -> Concordance:
    """Kendall's coefficient of concordance, corrected for ties.

    W = 12 S / (m^2 (n^3 - n) - m sum over raters and ties of (t^3 - t)), S the squared deviations of the rank
    sums from their mean, average ranks.

    Args:
        scores: Finite; raters by items. Only the order within each rater counts.
        rng: Source of the permutations.
        n_permutations: At least 1; p = (1 + number with W at least as large) / (1 + n_permutations).

    Returns:
        Undefined below two raters or two items (`too_few`), and where every rater is constant
        (`zero_variance`).

    References:
        Kendall and Babington Smith (1939), doi:10.1214/aoms/1177732186.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> kendall_w(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]), rng=rng).w.value
        0.1111111111111111
    """
    check_least(1, n_permutations=n_permutations)
    m, n = scores.shape
    spearman, reason = np.full((m, m), np.nan), "too_few"
    if min(m, n) > 1:
        x = finite(scores, "scores")
        spearman, reason = spearman_matrix(x), "" if (x != x[:, :1]).any() else "zero_variance"
    pairs = spearman[np.triu_indices(m, k=1)]
    mean_spearman = float(pairs.mean()) if len(pairs) else math.nan
    if reason:
        w, chi_square, permutation = (
            undefined_estimate(reason),
            undefined_test(reason),
            undefined_test(reason),
        )
    else:
        # Doubled average ranks are whole numbers, so permutations that tie with the sample tie exactly.
        ranks = np.rint(2 * scipy.stats.rankdata(x, axis=1)).astype(np.int64)
        counts = (np.unique(row, return_counts=True)[1] for row in ranks)
        ties = sum(int((count**3 - count).sum()) for count in counts)
        spread = int(_rank_sum_spread(ranks[None])[0])  # 4 n S
        value = 3 * spread / (n * (m * m * (n**3 - n) - m * ties))
        statistic = m * (n - 1) * value
        w = Estimate(value=value)
        chi_square = SignificanceTest(
            statistic=statistic, p_value=float(scipy.stats.chi2.sf(statistic, n - 1))
        )
        reached = 0
        for rows in blocks(n_permutations, ranks.size):
            dealt = rng.permuted(np.broadcast_to(ranks, (rows, m, n)), axis=2)
            reached += int(np.count_nonzero(_rank_sum_spread(dealt) >= spread))
        permutation = SignificanceTest(statistic=value, p_value=(1 + reached) / (1 + n_permutations))
    return Concordance(
        w=w, chi_square=chi_square, permutation=permutation, spearman=spearman, mean_spearman=mean_spearman
    )


def _rank_sum_spread(ranks: Int64[np.ndarray, "batch m n"]) -> Int64[np.ndarray, " batch"]:
    """N times the squared deviations of the rank sums from their mean: a whole number."""
    sums = ranks.sum(axis=1)
    return np.asarray(sums.shape[1] * (sums**2).sum(axis=1) - sums.sum(axis=1) ** 2)


# --------------------------------------------------------------------------------------------- chosen sets


def top_members(scores: Real[np.ndarray, " n"], k: int) -> Bool[np.ndarray, " n"]:
    """Exactly k items: the largest scores, ties to the lower index, NaN last.

    Heads in flat order (layer * n_heads + head) are thereby taken by score, then layer, then head.

    Args:
        scores: NaN allowed, with a `DegenerateDataWarning` (`nan_scores`).
        k: 0 to n.

    Example:
        >>> top_members(np.array([1.0, 2.0, 1.0]), 2)
        array([ True,  True, False])
    """
    x = np.asarray(scores, dtype=np.float64)
    if not 0 <= k <= len(x):
        raise InputError(f"k is {k} of {len(x)} scores; expected a number between 0 and {len(x)}")
    missing = int(np.isnan(x).sum())
    if missing:
        message = f"nan_scores: {missing} scores are NaN and rank last"
        warnings.warn(message, DegenerateDataWarning, stacklevel=2)
    members = np.zeros(len(x), dtype=bool)
    members[np.argsort(-x, kind="stable")[:k]] = True
    return members


def kappa_matrix(members: Bool[np.ndarray, "*batch m n"]) -> Float64[np.ndarray, "*batch m m"]:
    """Cohen's kappa of every pair of sets, for any batch of tables at once.

    Agreement beyond chance, (p_o - p_e) / (1 - p_e): p_o is the share of items on which two sets agree, p_e
    its expectation for independent sets of the same sizes.

    Args:
        members: Membership of each of n items in each of m sets.

    Returns:
        In [-1, 1]; 1 for equal sets, 0 at chance. NaN where both sets hold everything or both nothing.

    References:
        Cohen (1960), doi:10.1177/001316446002000104.

    Example:
        >>> float(kappa_matrix(np.array([[True, True, False, False], [True, False, False, False]]))[0, 1])
        0.5
    """
    inside = np.asarray(members, dtype=np.float64)
    n = members.shape[-1]
    size = inside.sum(axis=-1)
    both = inside @ inside.swapaxes(-1, -2)
    rows, columns = size[..., :, None], size[..., None, :]
    # Counts times n are whole numbers below 2^53: 0 in the denominator is exact.
    agree = n * (n - rows - columns + 2 * both)
    expected = rows * columns + (n - rows) * (n - columns)
    below = n * n - expected
    return np.asarray(np.divide(agree - expected, below, out=np.full(both.shape, np.nan), where=below != 0))


# ------------------------------------------------------------------------------------ intraclass correlation


@dataclass(frozen=True, kw_only=True)
class IntraclassCorrelation(Record):
    """Share of the variance of ratings that is due to the targets, two-way layout.

    Attributes:
        agreement: ICC(2,1), also ICC(A,1): one random rater, absolute agreement. Meaningless for scores of
            different units unless they are standardised per rater first.
        agreement_mean: ICC(2,k): mean of the k raters, absolute agreement.
        consistency_mean: ICC(3,k), up to a shift per rater, which is Cronbach's alpha of the raters; with
            bounds.
        n_targets: Rows used, n: those without a NaN or infinite cell.
    """

    agreement: Estimate
    agreement_mean: Estimate
    consistency_mean: Estimate
    n_targets: int


def intraclass_correlation(
    ratings: Real[np.ndarray, "n k"], *, level: float = ONE_SIDED_95
) -> IntraclassCorrelation:
    """Intraclass correlations of targets rated by the same raters.

    With mean squares MSR of targets, MSC of raters and MSE of the rest:
    ICC(2,1) = (MSR - MSE) / (MSR + (k - 1) MSE + k (MSC - MSE) / n),
    ICC(2,k) = (MSR - MSE) / (MSR + (MSC - MSE) / n), ICC(3,k) = 1 - MSE / MSR.
    Bounds of ICC(3,k): 1 - F_q(n - 1, (n - 1)(k - 1)) / (MSR / MSE).

    Args:
        ratings: Targets by raters; rows with a cell that is not finite are dropped.
        level: Two-sided coverage of the bounds.

    Returns:
        At most 1, may be negative. All undefined below two targets or raters (`too_few`) and where MSR and
        MSE are both 0 (`zero_variance`); ICC(3,k) also where MSR alone is 0 (`no_target_variance`), and
        ICC(2,.) where its denominator, an estimate of a variance, is not positive (`negative_variance`).

    References:
        Shrout and Fleiss (1979), doi:10.1037/0033-2909.86.2.420; McGraw and Wong (1996),
        doi:10.1037/1082-989X.1.1.30.

    Example:
        >>> found = intraclass_correlation(np.array([[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]))
        >>> found.consistency_mean.value, round(found.agreement.value, 4)
        (1.0, 0.6667)
    """
    x = np.asarray(ratings, dtype=np.float64)
    x = x[np.isfinite(x).all(axis=1)]
    n, k = x.shape
    msr, msc, mse = _mean_squares(x) if min(n, k) > 1 else (math.nan,) * 3
    reason = "too_few" if min(n, k) < 2 else "zero_variance" if msr == mse == 0 else None
    if reason:
        agreement = (undefined_estimate(reason),) * 2
    else:
        one, mean = (
            Estimate(value=(msr - mse) / below) if below > 0 else undefined_estimate("negative_variance")
            for below in (msr + (k - 1) * mse + k * (msc - mse) / n, msr + (msc - mse) / n)
        )
        agreement = one, mean
    reason = reason or ("no_target_variance" if msr == 0 else None)
    if reason:
        consistency = undefined_estimate(reason, undefined_interval(level, "f", reason))
    else:
        f = msr / mse if mse > 0 else math.inf
        tails, df = ((1 + level) / 2, (1 - level) / 2), (n - 1, (n - 1) * (k - 1))
        value, low, high = (1 - 1 / ratio for ratio in (f, *(f / scipy.stats.f.ppf(q, *df) for q in tails)))
        degenerate = "degenerate" if low == high else None
        interval = Interval(low=float(low), high=float(high), level=level, method="f", reason=degenerate)
        consistency = Estimate(value=value, interval=interval)
    return IntraclassCorrelation(
        agreement=agreement[0], agreement_mean=agreement[1], consistency_mean=consistency, n_targets=n
    )


def _mean_squares(x: Float64[np.ndarray, "n k"]) -> tuple[float, float, float]:
    """MSR, MSC and MSE; exactly 0 where only rounding is left."""
    n, k = x.shape
    rounding = (EQUAL * float(np.abs(x).max())) ** 2
    x = x - x.mean()
    rows, columns = x.mean(axis=1, keepdims=True), x.mean(axis=0, keepdims=True)
    squares = (
        k * float((rows**2).sum()) / (n - 1),
        n * float((columns**2).sum()) / (k - 1),
        float(((x - rows - columns) ** 2).sum()) / ((n - 1) * (k - 1)),
    )
    msr, msc, mse = (square if square > rounding else 0.0 for square in squares)
    return msr, msc, mse


# ----------------------------------------------------------------------------------------------- reliability


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
    below = 1 + (factor - 1) * r
    if math.isnan(r) or below == 0:
        return undefined_estimate("undefined" if math.isnan(r) else "pole")
    return Estimate(value=factor * r / below)


@dataclass(frozen=True, kw_only=True)
class Consistency(Record):
    """Cronbach's alpha of a set of items, in three forms.

    Attributes:
        alpha: Of the items as they are, with Feldt's bounds; at most 1, may be negative.
        sign_aligned: The same after multiplying each item by the sign of its mean (items of mean 0 stay).
        standardised: From the mean correlation r of all pairs of items, K r / (1 + (K - 1) r).
        item_rest: `[K]` correlation of each item with the sum of the others; NaN where either is constant.
        signs: `[K]` the signs used, 1 or -1.
    """

    alpha: Estimate
    sign_aligned: Estimate
    standardised: Estimate
    item_rest: Float64[np.ndarray, " K"]
    signs: Float64[np.ndarray, " K"]


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
    signs, item_rest = np.ones(n_items), np.full(n_items, np.nan)
    if min(n_cases, n_items) < 2:
        alpha = aligned = undefined_estimate("too_few", undefined_interval(level, "feldt", "too_few"))
        standardised = undefined_estimate("too_few")
    else:
        x = finite(scores, "scores")
        signs[x.mean(axis=0) < 0] = -1.0
        rest = x.sum(axis=1, keepdims=True) - x
        item_rest = pearson_matrix(np.stack([x.T, rest.T], axis=1))[:, 0, 1]
        alpha, aligned = _alpha(x, level), _alpha(x * signs, level)
        standardised = _standardised(x)
    return Consistency(
        alpha=alpha, sign_aligned=aligned, standardised=standardised, item_rest=item_rest, signs=signs
    )


def _alpha(x: Float64[np.ndarray, "P K"], level: float) -> Estimate:
    n_cases, n_items = x.shape
    total = float(x.sum(axis=1).var(ddof=1))
    if total < 1e-12:
        return undefined_estimate("zero_variance", undefined_interval(level, "feldt", "zero_variance"))
    alpha = float(n_items / (n_items - 1) * (1 - x.var(axis=0, ddof=1).sum() / total))
    tails, df = ((1 + level) / 2, (1 - level) / 2), (n_cases - 1, (n_cases - 1) * (n_items - 1))
    low, high = (1 - (1 - alpha) * float(scipy.stats.f.ppf(q, *df)) for q in tails)
    return Estimate(value=alpha, interval=Interval(low=low, high=high, level=level, method="feldt"))


def _standardised(x: Float64[np.ndarray, "P K"]) -> Estimate:
    n_items = x.shape[1]
    r = float(pearson_matrix(x.T)[np.triu_indices(n_items, k=1)].mean())
    below = 1 + (n_items - 1) * r
    if math.isnan(r) or abs(below) < EQUAL:
        return undefined_estimate("zero_variance" if math.isnan(r) else "pole")
    return Estimate(value=n_items * r / below)


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
    counts = np.concatenate([np.ones((1, n)), draw_counts(n, _N_RESAMPLES, rng)])
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
    rank = int((1 - level) / 2 * (_N_RESAMPLES + 1) + EQUAL)
    if rank < 1:
        return -math.inf, math.inf
    low = min(moved[rank - 1], -t[-rank] * errors[0])
    high = max(moved[-rank], -t[rank - 1] * errors[0])
    ends = [n_items / (n_items - 1) * (1 - math.exp(logs[0] + end)) for end in (high, low)]
    return ends[0], ends[1]
