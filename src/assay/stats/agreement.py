"""Agreement of numbers that belong to the same items: correlations, raters, sets, scores that find a set.

A constant vector has no correlation: NaN with a `DegenerateDataWarning`, never 0. Row-wise forms
return NaN for the rows concerned and leave counting them to the caller.
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Bool, Float, Float64, Int, Int64, Real

from assay.core.errors import DegenerateDataWarning, InputError, ShapeError, check_least
from assay.core.measurement import ONE_SIDED_95, Interval, undefined_interval
from assay.core.record import Record
from assay.stats.estimate import EQUAL, Estimate, SignificanceTest, finite, varies
from assay.stats.intervals import draw_counts
from assay.stats.significance import N_PERMUTATIONS, blocks


def _paired(x: np.ndarray, y: np.ndarray, name: str) -> np.ndarray | None:
    """Both vectors in float64, one row each, or None (with a warning) where no correlation is defined."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ShapeError(f"{name} compares two vectors of equal length, got shapes {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError(f"{name} got NaN or infinite entries; drop those pairs first")
    if len(a) < 2:
        reason = f"got {len(a)} pair(s); expected at least 2"
    elif not (varies(a) and varies(b)):
        reason = "one vector is constant"
    else:
        return np.stack([a, b])
    warnings.warn(f"{name} is undefined: {reason}", DegenerateDataWarning, stacklevel=3)
    return None


def pearson(x: Real[np.ndarray, " n"], y: Real[np.ndarray, " n"]) -> float:
    """Product-moment correlation.

    Returns:
        r in [-1, 1]; NaN with a `DegenerateDataWarning` for a constant vector or fewer than two pairs.

    Example:
        >>> pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
        1.0
    """
    pair = _paired(x, y, "Pearson correlation")
    return math.nan if pair is None else float(pearson_matrix(pair)[0, 1])


def spearman(x: Real[np.ndarray, " n"], y: Real[np.ndarray, " n"]) -> float:
    """Rank correlation: Pearson's of average ranks.

    Returns:
        rho in [-1, 1]; NaN with a `DegenerateDataWarning` for a constant vector or fewer than two pairs.

    References:
        Spearman (1904).
    """
    pair = _paired(x, y, "Spearman correlation")
    return math.nan if pair is None else float(spearman_matrix(pair)[0, 1])


def pearson_matrix(scores: Real[np.ndarray, "*batch m n"]) -> Float64[np.ndarray, "*batch m m"]:
    """Pearson correlation of every pair of rows, for any batch of tables at once.

    Args:
        scores: Finite; `m` raters by `n` items.

    Returns:
        r in [-1, 1]; NaN in the rows and columns of a constant rater and for fewer than two items.
    """
    x = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(x).all():
        raise InputError("scores hold NaN or infinite entries; drop those items first")
    if x.shape[-1] < 2:
        return np.full((*x.shape[:-1], x.shape[-2]), np.nan)
    varying = np.ptp(x, axis=-1, keepdims=True) > EQUAL * np.abs(x).max(axis=-1, keepdims=True)
    x = x - x.mean(axis=-1, keepdims=True)
    # Scaled by the largest entry first, so that squares neither overflow nor vanish.
    x = np.divide(x, np.abs(x).max(axis=-1, keepdims=True), out=np.full(x.shape, np.nan), where=varying)
    products = x @ x.swapaxes(-1, -2)
    own = np.diagonal(products, axis1=-2, axis2=-1)
    return np.asarray(np.clip(products / np.sqrt(own[..., :, None] * own[..., None, :]), -1.0, 1.0))


def spearman_matrix(scores: Real[np.ndarray, "*batch m n"]) -> Float64[np.ndarray, "*batch m m"]:
    """Rank correlation of every pair of rows: Pearson's of average ranks, for any batch of tables at once.

    Args:
        scores: Finite; `m` raters by `n` items.

    Returns:
        rho in [-1, 1]; NaN in the rows and columns of a constant rater and for fewer than two items.

    Example:
        >>> spearman_matrix(np.array([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])).round(3)
        array([[ 1. , -0.5],
               [-0.5,  1. ]])
    """
    if not np.isfinite(scores).all():  # ranks of them would be finite
        raise InputError("scores hold NaN or infinite entries; drop those items first")
    return pearson_matrix(scipy.stats.rankdata(scores, axis=-1))


def kendall_tau(x: Real[np.ndarray, " n"], y: Real[np.ndarray, " n"]) -> float:
    """Kendall's tau-b, (n_c - n_d) / root((n_0 - n_1)(n_0 - n_2)), n_1 and n_2 the tied pairs of each side.

    Returns:
        tau in [-1, 1]; NaN with a `DegenerateDataWarning` for a constant vector or fewer than two pairs.

    References:
        Kendall (1945), doi:10.1093/biomet/33.3.239.
    """
    pair = _paired(x, y, "Kendall's tau")
    return math.nan if pair is None else float(scipy.stats.kendalltau(*pair, variant="b").statistic)


def _pair_signs(values: Real[np.ndarray, "rows n"]) -> np.ndarray:
    """Sign of v_a - v_b for the pairs a < b of each row, `[rows, n (n - 1) / 2]`."""
    first, second = np.triu_indices(values.shape[1], k=1)
    return np.asarray(np.sign(values[:, first] - values[:, second]))


def kendall_tau_rows(
    x: Float[np.ndarray, "rows n"], y: Float[np.ndarray, "rows n"], *, used: np.ndarray | None = None
) -> Float64[np.ndarray, " rows"]:
    """Kendall's tau-b of each row of two tables, for short rows (time and memory grow with n squared).

    Args:
        x: One side, finite where used.
        y: The other side.
        used: Boolean `[rows, n]`; entries left out of their row. None uses all.

    Returns:
        tau in [-1, 1] per row; exactly 1 for equal rows; NaN where either side is constant or fewer than two
        entries are used.
    """
    first, second = np.triu_indices(x.shape[1], k=1)
    both = np.ones((len(x), len(first)), dtype=bool) if used is None else used[:, first] & used[:, second]
    a, b = _pair_signs(x) * both, _pair_signs(y) * both
    untied = np.count_nonzero(a, axis=1) * np.count_nonzero(b, axis=1)
    balance = (a * b).sum(axis=1)
    tau = np.full(len(x), np.nan)
    np.divide(balance, np.sqrt(untied), out=tau, where=untied > 0)
    return tau


def fagin_tau_rows(
    a: Int[np.ndarray, "rows k"], b: Int[np.ndarray, "rows k"]
) -> Float64[np.ndarray, " rows"]:
    """Rank agreement of two top-k lists per row: 1 - 2 D / D_max, D Fagin's distance K^(1/2).

    Over unordered pairs of the union of both lists, D counts 1 for opposite order (an absent item ranks
    below every listed one) and 1/2 for two items of one list that the other lists neither of.
    D_max = k^2 + k (k - 1) / 2 is the distance of disjoint lists.

    Args:
        a: Item ids in descending order, distinct within a row.
        b: The other list of each row.

    Returns:
        In [-1, 1]: 1 for identical lists, -1 for disjoint ones.

    References:
        Fagin, Kumar and Sivakumar (2003), doi:10.1137/S0895480102412856.

    Example:
        >>> fagin_tau_rows(np.array([[1, 2]]), np.array([[2, 1]]))
        array([0.6])
    """
    k = a.shape[1]
    same = a[:, :, None] == b[:, None, :]
    place = np.arange(k)
    # The union: the k items of a, then those of b, of which the shared ones are skipped. Absent = rank k.
    rank_in_a = np.concatenate([np.broadcast_to(place, a.shape), np.full(b.shape, k)], axis=1)
    places = np.where(same.any(axis=2), same.argmax(axis=2), k)
    rank_in_b = np.concatenate([places, np.broadcast_to(place, b.shape)], axis=1)
    listed = np.concatenate([np.ones(a.shape, dtype=bool), ~same.any(axis=1)], axis=1)
    first, second = np.triu_indices(2 * k, k=1)
    order_a, order_b = _pair_signs(rank_in_a), _pair_signs(rank_in_b)
    penalty = (order_a * order_b < 0) + 0.5 * ((order_a == 0) != (order_b == 0))
    distance = (penalty * (listed[:, first] & listed[:, second])).sum(axis=1)
    return np.asarray(1 - 2 * distance / (k * k + k * (k - 1) / 2))


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
        w = Estimate.undefined(reason)
        chi_square = permutation = SignificanceTest.undefined(reason)
    else:
        # Doubled average ranks are whole numbers, so permutations that tie with the sample tie exactly.
        ranks = np.rint(2 * scipy.stats.rankdata(x, axis=1)).astype(np.int64)
        counts = (np.unique(row, return_counts=True)[1] for row in ranks)
        ties = sum(int((count**3 - count).sum()) for count in counts)
        spread = int(_rank_sum_spread(ranks[None])[0])  # 4 n S
        value = 3 * spread / (n * (m * m * (n**3 - n) - m * ties))
        statistic = m * (n - 1) * value
        w = Estimate(value=value)
        beyond = float(scipy.stats.chi2.sf(statistic, n - 1))
        chi_square = SignificanceTest(statistic=statistic, p_value=beyond)
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
    """

    agreement: Estimate
    agreement_mean: Estimate
    consistency_mean: Estimate


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
    raters, undefined = (msc - mse) / max(n, 1), Estimate.undefined(reason or "negative_variance")
    one, mean = (
        Estimate(value=(msr - mse) / below) if below > 0 and not reason else undefined
        for below in (msr + (k - 1) * mse + k * raters, msr + raters)
    )
    reason = reason or ("no_target_variance" if msr == 0 else None)
    if reason:
        consistency = Estimate.undefined(reason, undefined_interval(level, "f", reason))
    else:
        f = msr / mse if mse > 0 else math.inf
        tails, df = ((1 + level) / 2, (1 - level) / 2), (n - 1, (n - 1) * (k - 1))
        value, low, high = (1 - 1 / ratio for ratio in (f, *(f / scipy.stats.f.ppf(q, *df) for q in tails)))
        degenerate = "degenerate" if low == high else None
        interval = Interval(low=float(low), high=float(high), level=level, method="f", reason=degenerate)
        consistency = Estimate(value=value, interval=interval)
    return IntraclassCorrelation(agreement=one, agreement_mean=mean, consistency_mean=consistency)


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
        return Estimate.undefined("undefined" if math.isnan(r) else "pole")
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
        alpha = aligned = Estimate.undefined("too_few", undefined_interval(level, "feldt", "too_few"))
        standardised = Estimate.undefined("too_few")
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
        return Estimate.undefined("zero_variance", undefined_interval(level, "feldt", "zero_variance"))
    alpha = float(n_items / (n_items - 1) * (1 - x.var(axis=0, ddof=1).sum() / total))
    tails, df = ((1 + level) / 2, (1 - level) / 2), (n_cases - 1, (n_cases - 1) * (n_items - 1))
    low, high = (1 - (1 - alpha) * float(scipy.stats.f.ppf(q, *df)) for q in tails)
    return Estimate(value=alpha, interval=Interval(low=low, high=high, level=level, method="feldt"))


def _standardised(x: Float64[np.ndarray, "P K"]) -> Estimate:
    n_items = x.shape[1]
    r = float(pearson_matrix(x.T)[np.triu_indices(n_items, k=1)].mean())
    below = 1 + (n_items - 1) * r
    if math.isnan(r) or abs(below) < EQUAL:
        return Estimate.undefined("zero_variance" if math.isnan(r) else "pole")
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


NO_SPREAD = 1e-12
Draws = Float64[np.ndarray, "draws _"]
Statistic = Float64[np.ndarray, " draws"]


def d_prime(signal: Real[np.ndarray, " _"], noise: Real[np.ndarray, " _"]) -> Estimate:
    """Distance of two groups of scores in units of their spread.

    (mean_s - mean_n) / root((s_s^2 + s_n^2) / 2), variances with ddof 1.

    Args:
        signal: Scores of the members, finite.
        noise: Scores of the rest, finite.

    Returns:
        Any sign, 0 for equal means. Undefined below two scores on either side (`too_few`) and where the
        pooled spread is below 1e-12 (`zero_variance`).

    References:
        Green and Swets (1966), Signal detection theory and psychophysics.

    Example:
        >>> d_prime(np.array([3.0, 5.0]), np.array([0.0, 2.0])).value
        2.1213203435596424
    """
    if min(len(signal), len(noise)) < 2:
        return Estimate.undefined("too_few")
    high, low = finite(signal, "signal"), finite(noise, "noise")
    pooled = float(np.sqrt((high.var(ddof=1) + low.var(ddof=1)) / 2))
    if pooled < NO_SPREAD or not (varies(high) or varies(low)):
        return Estimate.undefined("zero_variance")
    return Estimate(value=float(high.mean() - low.mean()) / pooled)


def _sides(scores: np.ndarray, members: np.ndarray) -> str | None:
    """Why members and others cannot be compared, if so."""
    if scores.shape != members.shape:
        raise ShapeError(f"scores have shape {scores.shape}, members {members.shape}; give a flag per score")
    return "no_members" if not members.any() else "no_others" if members.all() else None


def auroc(scores: Real[np.ndarray, " n"], members: Bool[np.ndarray, " n"]) -> Estimate:
    """Probability that a random member outscores a random other item, ties counting half.

    Args:
        scores: Finite.
        members: Which items belong to the set.

    Returns:
        In [0, 1], 1/2 at chance. Undefined where nothing (`no_members`) or everything (`no_others`) belongs.

    References:
        Mann and Whitney (1947), doi:10.1214/aoms/1177730491; Hanley and McNeil (1982),
        doi:10.1148/radiology.143.1.7063747.

    Example:
        >>> auroc(np.array([3.0, 1.0, 2.0]), np.array([True, False, False])).value
        1.0
    """
    reason = _sides(scores, members)
    if reason:
        return Estimate.undefined(reason)
    n_members = int(members.sum())
    rank_sum = float(scipy.stats.rankdata(finite(scores, "scores"))[members].sum())
    pairs = n_members * (len(scores) - n_members)
    return Estimate(value=(rank_sum - n_members * (n_members + 1) / 2) / pairs)


def d_primes(inside: Draws, outside: Draws) -> tuple[Statistic, Statistic]:
    """D' of each row and its standard error from influence values, NaN where nothing varies.

    The influence of a score x inside is (x - m) / S - d' ((x - m)^2 - s^2) / (4 S^2), S^2 the mean of both
    variances; outside the first term has the other sign.
    """
    centred = [side - side.mean(axis=1, keepdims=True) for side in (inside, outside)]
    variances = [(side**2).sum(axis=1, keepdims=True) / (side.shape[1] - 1) for side in centred]
    pooled = np.sqrt((variances[0] + variances[1]) / 2)
    pooled = np.where(pooled > NO_SPREAD, pooled, np.nan)
    distance = (inside.mean(axis=1) - outside.mean(axis=1))[:, None] / pooled
    squared = np.zeros(len(inside))
    for sign, side, variance in zip((1, -1), centred, variances, strict=True):
        influence = sign * side / pooled - distance * (side**2 - variance) / (4 * pooled**2)
        squared += influence.var(axis=1, ddof=1) / side.shape[1]
    return distance[:, 0], np.sqrt(squared)


def areas(inside: Draws, outside: Draws) -> tuple[Statistic, Statistic]:
    """AUROC of each row and its standard error from the share of the other side that a score exceeds.

    References:
        DeLong, DeLong and Clarke-Pearson (1988), doi:10.2307/2531595.
    """
    n, m = inside.shape[1], outside.shape[1]
    ranks = scipy.stats.rankdata(np.concatenate([inside, outside], axis=1), axis=1)
    above = (ranks[:, :n] - scipy.stats.rankdata(inside, axis=1)) / m
    below = 1 - (ranks[:, n:] - scipy.stats.rankdata(outside, axis=1)) / n
    squared = above.var(axis=1, ddof=1) / n + below.var(axis=1, ddof=1) / m
    return above.mean(axis=1), np.sqrt(squared)


def average_precision(scores: Real[np.ndarray, " n"], members: Bool[np.ndarray, " n"]) -> Estimate:
    """Mean precision at the ranks of the members: sum over thresholds of (recall gained) times precision.

    Equal scores share a threshold, so their order does not matter.

    Args:
        scores: Finite.
        members: Which items belong to the set.

    Returns:
        In (0, 1], about the share of members at chance. Undefined where nothing (`no_members`) or everything
        (`no_others`) belongs.

    Example:
        >>> average_precision(np.array([3.0, 2.0, 1.0]), np.array([True, False, True])).value
        0.8333333333333333
    """
    reason = _sides(scores, members)
    if reason:
        return Estimate.undefined(reason)
    from sklearn.metrics import average_precision_score

    return Estimate(value=float(average_precision_score(members, finite(scores, "scores"))))


def precision_at(scores: Real[np.ndarray, " n"], members: Bool[np.ndarray, " n"], k: int) -> Estimate:
    """Share of members among the k best scores; ties go to the lower index (`top_members`).

    Args:
        scores: NaN ranks last, with a `DegenerateDataWarning`.
        members: Which items belong to the set.
        k: 0 to n; 0 is undefined (`too_few`).
    """
    _sides(scores, members)
    best = members[top_members(scores, k)]
    return Estimate(value=float(best.mean())) if k else Estimate.undefined("too_few")
