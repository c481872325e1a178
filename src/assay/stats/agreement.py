"""Agreement of several raters on the same items: concordance, kappa of sets, intraclass correlations."""

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
from assay.stats.association import spearman_matrix
from assay.stats.estimate import Estimate, SignificanceTest, undefined_estimate, undefined_test


N_PERMUTATIONS = 10_000
_BLOCK = 1 << 22  # ranks permuted at a time


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
        n_raters: m.
        n_items: n.
    """

    w: Estimate
    chi_square: SignificanceTest
    permutation: SignificanceTest
    spearman: Float64[np.ndarray, "m m"]
    mean_spearman: float
    n_raters: int
    n_items: int


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
    x = finite(scores, "scores") if scores.size else np.asarray(scores, dtype=np.float64)
    spearman = spearman_matrix(x) if m and n else np.full((m, m), np.nan)
    pairs = spearman[np.triu_indices(m, k=1)]
    reason = "too_few" if m < 2 or n < 2 else None if (x != x[:, :1]).any() else "zero_variance"
    if reason:
        w, chi_square, permutation = (
            undefined_estimate(reason),
            undefined_test(reason),
            undefined_test(reason),
        )
    else:
        # Doubled average ranks are whole numbers, so permutations that tie with the sample tie exactly.
        ranks = np.rint(2 * scipy.stats.rankdata(x, axis=1)).astype(np.int64)
        counts = (np.unique(row, return_counts=True)[1] for row in x)
        ties = sum(int((count**3 - count).sum()) for count in counts)
        spread = int(_rank_sum_spread(ranks[None])[0])  # 4 n S
        value = 3 * spread / (n * (m * m * (n**3 - n) - m * ties))
        statistic = m * (n - 1) * value
        w = Estimate(value=value)
        chi_square = SignificanceTest(
            statistic=statistic,
            p_value=float(scipy.stats.chi2.sf(statistic, n - 1)),
            degrees_of_freedom=(float(n - 1),),
        )
        reached, rows = 0, max(1, _BLOCK // ranks.size)
        for start in range(0, n_permutations, rows):
            block = np.broadcast_to(ranks, (min(rows, n_permutations - start), m, n))
            reached += int(np.count_nonzero(_rank_sum_spread(rng.permuted(block, axis=2)) >= spread))
        permutation = SignificanceTest(statistic=value, p_value=(1 + reached) / (1 + n_permutations))
    return Concordance(
        w=w,
        chi_square=chi_square,
        permutation=permutation,
        spearman=spearman,
        mean_spearman=float(pairs.mean()) if len(pairs) else math.nan,
        n_raters=m,
        n_items=n,
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
        warnings.warn(
            f"nan_scores: {missing} scores are NaN and rank last", DegenerateDataWarning, stacklevel=2
        )
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
        consistency: ICC(3,1): one of these raters, up to a shift per rater.
        consistency_mean: ICC(3,k), which is Cronbach's alpha of the raters.
        targets_test: F test of no difference between targets.
        ms_targets: Mean square of rows, MSR.
        ms_raters: Mean square of columns, MSC.
        ms_error: Residual mean square, MSE.
        n_targets: Rows used, n.
        n_raters: Columns, k.
        n_dropped: Rows left out because a cell was NaN or infinite.
    """

    agreement: Estimate
    agreement_mean: Estimate
    consistency: Estimate
    consistency_mean: Estimate
    targets_test: SignificanceTest
    ms_targets: float
    ms_raters: float
    ms_error: float
    n_targets: int
    n_raters: int
    n_dropped: int


def intraclass_correlation(
    ratings: Real[np.ndarray, "n k"], *, level: float = ONE_SIDED_95
) -> IntraclassCorrelation:
    """Intraclass correlations of targets rated by the same raters.

    ICC(2,1) = (MSR - MSE) / (MSR + (k - 1) MSE + k (MSC - MSE) / n),
    ICC(2,k) = (MSR - MSE) / (MSR + (MSC - MSE) / n),
    ICC(3,1) = (MSR - MSE) / (MSR + (k - 1) MSE), ICC(3,k) = 1 - MSE / MSR.
    Bounds of ICC(3,k): 1 - F_q(n - 1, (n - 1)(k - 1)) / (MSR / MSE).

    Args:
        ratings: Targets by raters; rows with a cell that is not finite are dropped.
        level: Two-sided coverage of the bounds.

    Returns:
        At most 1, may be negative. All undefined below two targets or raters (`too_few`) and where MSR and
        MSE are both 0 (`zero_variance`); ICC(3,k) also where MSR alone is 0 (`no_target_variance`), and
        ICC(2,k) where its denominator, an estimate of a variance, is not positive (`negative_variance`).

    References:
        Shrout and Fleiss (1979), doi:10.1037/0033-2909.86.2.420; McGraw and Wong (1996),
        doi:10.1037/1082-989X.1.1.30.

    Example:
        >>> found = intraclass_correlation(np.array([[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]))
        >>> found.consistency.value, round(found.agreement.value, 4)
        (1.0, 0.6667)
    """
    x = np.asarray(ratings, dtype=np.float64)
    complete = np.isfinite(x).all(axis=1)
    x = x[complete]
    n, k = x.shape
    squares = _mean_squares(x) if n > 1 and k > 1 else (math.nan, math.nan, math.nan)
    if n < 2 or k < 2 or squares[0] == squares[2] == 0:
        reason = "too_few" if n < 2 or k < 2 else "zero_variance"
        forms = (_no_correlation(reason, level),) * 4
        targets_test = undefined_test(reason)
    else:
        forms = (*_agreement(squares, n, k, level), *_consistency(squares, n, k, level))
        f, df = _ratio(squares), (n - 1, (n - 1) * (k - 1))
        targets_test = SignificanceTest(
            statistic=f,
            p_value=float(scipy.stats.f.sf(f, *df)),
            degrees_of_freedom=(float(df[0]), float(df[1])),
        )
    return IntraclassCorrelation(
        agreement=forms[0],
        agreement_mean=forms[1],
        consistency=forms[2],
        consistency_mean=forms[3],
        targets_test=targets_test,
        ms_targets=squares[0],
        ms_raters=squares[1],
        ms_error=squares[2],
        n_targets=n,
        n_raters=k,
        n_dropped=int((~complete).sum()),
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


def _ratio(squares: tuple[float, float, float]) -> float:
    return squares[0] / squares[2] if squares[2] > 0 else math.inf


def _bounds(low: float, high: float, level: float) -> Interval:
    return Interval(low=low, high=high, level=level, method="f", reason="degenerate" if low == high else None)


def _no_correlation(reason: str, level: float) -> Estimate:
    return undefined_estimate(reason, undefined_interval(level, "f", reason))


def _consistency(
    squares: tuple[float, float, float], n: int, k: int, level: float
) -> tuple[Estimate, Estimate]:
    """ICC(3,1) and ICC(3,k), functions of the ratio of mean squares alone."""
    f = _ratio(squares)
    quantiles = [
        float(scipy.stats.f.ppf(q, n - 1, (n - 1) * (k - 1))) for q in ((1 + level) / 2, (1 - level) / 2)
    ]
    ratios = (f, f / quantiles[0], f / quantiles[1])
    value, low, high = (1.0 if math.isinf(ratio) else (ratio - 1) / (ratio + k - 1) for ratio in ratios)
    single = Estimate(value=value, interval=_bounds(low, high, level))
    if f == 0:
        return single, _no_correlation("no_target_variance", level)
    value, low, high = (1 - 1 / ratio for ratio in ratios)
    return single, Estimate(value=value, interval=_bounds(low, high, level))


def _agreement(
    squares: tuple[float, float, float], n: int, k: int, level: float
) -> tuple[Estimate, Estimate]:
    """ICC(2,1) and ICC(2,k); bounds with Satterthwaite's degrees of freedom (Shrout and Fleiss 1979)."""
    msr, msc, mse = squares
    below = msr + (k - 1) * mse + k * (msc - mse) / n
    if below <= 0:
        return (_no_correlation("negative_variance", level),) * 2
    rho = (msr - mse) / below
    raters = k * rho * msc
    error = (n * (1 + (k - 1) * rho) - k * rho) * mse
    if raters == error == 0:
        low = high = rho
    else:
        # Both parts of the published ratio times MSE squared, so that MSE = 0 needs no case of its own.
        df = (k - 1) * (n - 1) * (raters + error) ** 2 / ((n - 1) * raters**2 + error**2)
        q = (1 + level) / 2
        f_rows, f_columns = float(scipy.stats.f.ppf(q, n - 1, df)), float(scipy.stats.f.ppf(q, df, n - 1))
        rest = k * msc + (k * n - k - n) * mse
        low = n * (msr - f_rows * mse) / (f_rows * rest + n * msr)
        high = n * (f_columns * msr - mse) / (rest + n * f_columns * msr)
    single = Estimate(value=rho, interval=_bounds(low, high, level))
    below = msr + (msc - mse) / n
    if below <= 0:
        return single, _no_correlation("negative_variance", level)
    low, high = (
        k * bound / (1 + (k - 1) * bound) if 1 + (k - 1) * bound > 0 else -math.inf for bound in (low, high)
    )
    return single, Estimate(value=(msr - mse) / below, interval=_bounds(low, high, level))
