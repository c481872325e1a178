"""The standard error of a ratio beside the ratio itself: bounds that allow for the errors of both.

theta = SE(F) / |F| with F = sum N / sum D, or a mean (D = 1). Up to a constant ln theta is
ln sd(N - F D) - ln |sum N|: a function of sums of products of N and D up to the fourth order, so that
resamples of many columns cost one matrix product.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import scipy
from jaxtyping import Float64, Real

from assay.core.errors import ShapeError
from assay.core.verdict import ONE_SIDED_95
from assay.stats._checks import EQUAL, finite
from assay.stats.intervals import draw_counts
from assay.stats.spread import FEWEST_FOR_BOUNDS, NO_MEAN, bonett_logs, trimmed_kurtosis


N_RESAMPLES = 999
_FARTHEST = 8.0  # standard errors; the normal tail beyond is 1e-15
_HALVINGS = 40


@dataclass(frozen=True, kw_only=True)
class RelativeErrors:
    """Relative standard errors of the columns of a table, judged by the outermost of three bounds.

    The three: bootstrap-t of ln theta; percentiles of the resampled theta; Bonett's bounds of the spread
    joined with the error of F, as independent errors of the logarithm.

    Attributes:
        value: `[k]` theta, without a unit; NaN where |F| < 1e-8.
        n: Units.
        log_error: `[k]` standard error of ln theta.
        logs: `[n_resamples, k]` resampled ln theta less that of the sample, ascending.
        studentised: `[n_resamples, k]` the same over its standard error in the resample, ascending.
        kurtosis: `[k]` Bonett's g4 of the influence values.
        of_value: `[k]` relative standard error of F at n.
    """

    value: Float64[np.ndarray, " k"]
    n: int
    log_error: Float64[np.ndarray, " k"] = field(repr=False)
    logs: Float64[np.ndarray, "n_resamples k"] = field(repr=False)
    studentised: Float64[np.ndarray, "n_resamples k"] = field(repr=False)
    kurtosis: Float64[np.ndarray, " k"] = field(repr=False)
    of_value: Float64[np.ndarray, " k"] = field(repr=False)

    def bounds(self, level: float = ONE_SIDED_95) -> Float64[np.ndarray, "2 k"]:
        """Lower and upper bound of theta, `[2, k]`.

        Args:
            level: Two-sided coverage; each end alone is a bound at (1 + level) / 2.

        Returns:
            NaN where theta is, and below ten units; 0 where nothing varies.
        """
        tail = (1 - level) / 2
        rank = int(tail * (len(self.logs) + 1) + EQUAL)  # of the order statistic that is the bound
        ends = np.full((2, len(self.value)), np.nan)
        known = self._known
        ends[:, self.value == 0] = 0.0
        if not known.any():
            return ends
        wide = self._wide(np.full(len(self.value), -float(scipy.special.ndtri(tail))))[:, known]
        far = np.full((2, int(known.sum())), np.inf) * np.array([[-1.0], [1.0]])
        percentiles, reach = far, far
        if rank > 0:
            percentiles = self.logs[[rank - 1, -rank]][:, known]
            reach = -self.studentised[[-rank, rank - 1]][:, known] * self.log_error[known]
        low = np.minimum(np.minimum(percentiles[0], reach[0]), wide[0])
        high = np.maximum(np.maximum(percentiles[1], reach[1]), wide[1])
        with np.errstate(over="ignore"):  # a bound beyond every float is infinite
            ends[:, known] = self.value[known] * np.exp([low, high])
        return ends

    def p_below(self, limit: float) -> Float64[np.ndarray, " k"]:
        """The p of "theta is `limit` or more", each column: small where theta is proven to be smaller.

        At most alpha exactly where the upper bound at 1 - alpha lies below the limit; 1 where theta is NaN.
        """
        p = np.ones(len(self.value))
        p[self.value == 0] = 0.0
        known = self._known
        if not known.any():
            return p
        log_limit = np.zeros(len(self.value))
        log_limit[known] = math.log(limit) - np.log(self.value[known])
        beyond = self.logs >= log_limit
        further = self.studentised <= -log_limit / np.where(known, self.log_error, 1.0)
        resampled = (1 + np.maximum(beyond.sum(axis=0), further.sum(axis=0))) / (len(self.logs) + 1)
        # The widened bound reaches the limit at some z; its distance grows with z.
        inside, outside = np.zeros(len(p)), np.full(len(p), min(_FARTHEST, 0.9 * self.n))
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            short = np.abs(self._wide(middle)[1]) < np.abs(log_limit)
            inside, outside = np.where(short, middle, inside), np.where(short, outside, middle)
        wide = np.where(log_limit > 0, scipy.special.ndtr(-inside), 1.0)
        p[known] = np.maximum(resampled, wide)[known]
        return p

    @property
    def _known(self) -> np.ndarray:
        return np.asarray((self.value > 0) & (self.n >= FEWEST_FOR_BOUNDS))

    def _wide(self, z: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, "2 k"]:
        """Logarithms of the widened Bonett bounds over theta, at z standard errors."""
        spread = np.abs(bonett_logs(z, self.n, self.kurtosis))
        return np.asarray(np.array([[-1.0], [1.0]]) * np.hypot(spread, z * self.of_value))


def absolute_errors(
    numerator: Real[np.ndarray, "n k"],
    denominator: Real[np.ndarray, " _"] | None = None,
    *,
    n_at: float | int | None = None,
    rng: np.random.Generator,
    n_resamples: int = N_RESAMPLES,
) -> RelativeErrors:
    """Standard error of ratios of sums, or of means, in their own unit; else as `relative_errors`."""
    return _errors(numerator, denominator, n_at, rng, n_resamples, relative=False)


def relative_errors(
    numerator: Real[np.ndarray, "n k"],
    denominator: Real[np.ndarray, " _"] | None = None,
    *,
    n_at: float | int | None = None,
    rng: np.random.Generator,
    n_resamples: int = N_RESAMPLES,
) -> RelativeErrors:
    """Standard error of ratios of sums, or of means, over their absolute value.

    With e = (N - F D) / mean(D) and s^2 its variance, theta = s / (root(n_at) |F|), and the influence of a
    unit on ln theta is u = (e^2 / s^2 - 1) / 2 - e / F for a mean. A ratio has two terms more, since D
    varies: - (D / mean(D) - 1) - e mean(e D) / (s^2 mean(D)).

    Args:
        numerator: Finite; units by columns.
        denominator: Finite, one value per unit, shared by the columns; None: means of the columns.
        n_at: Units of the sample in question; None: as many as there are.
        rng: Source of the resamples, which all columns share.
        n_resamples: Their number.

    References:
        Efron and Tibshirani (1993), chapter 12 (bootstrap-t); Bonett (2006), doi:10.1016/j.csda.2004.10.003.

    Example:
        >>> found = relative_errors(np.arange(1.0, 41.0)[:, None], rng=np.random.default_rng(0))
        >>> round(float(found.value[0]), 4)  # root(40 * 41 / 12) / root(40) / 20.5
        0.0902
    """
    return _errors(numerator, denominator, n_at, rng, n_resamples, relative=True)


def _errors(
    numerator: Real[np.ndarray, "n k"],
    denominator: Real[np.ndarray, " _"] | None,
    n_at: float | int | None,
    rng: np.random.Generator,
    n_resamples: int,
    *,
    relative: bool,
) -> RelativeErrors:
    top = finite(numerator, "numerator")
    n = len(top)
    bottom = np.ones(n) if denominator is None else finite(denominator, "denominator")
    if bottom.shape != (n,):
        raise ShapeError(f"denominator has shape {bottom.shape}; expected one value per unit, {(n,)}")
    with np.errstate(all="ignore"):  # columns without a spread or a ratio become NaN, and stay so
        g = bottom / bottom.mean()
        ratio = top.mean(axis=0) / bottom.mean()
        e = top / bottom.mean() - ratio * g[:, None]
        rounding = EQUAL * (np.abs(e) + np.abs(ratio * g[:, None])).max(axis=0)
        spread = np.where(np.abs(e).max(axis=0) > rounding, np.sqrt((e**2).sum(axis=0) / (n - 1)), 0.0)
        over = np.where(np.abs(ratio) < NO_MEAN, np.nan, np.abs(ratio)) if relative else np.ones(len(ratio))
        e /= spread
        counts = np.concatenate([np.ones((1, n)), draw_counts(n, n_resamples, rng)])
        logs, errors = _log_theta(
            counts, e, None if denominator is None else g, ratio / spread if relative else None
        )
        logs -= logs[0]
        # A resample that holds one value only has theta 0; its t is as far away.
        studentised = np.where(np.isfinite(logs), logs / errors, logs)
        studentised[np.abs(logs) <= EQUAL] = 0.0  # 0 / 0 where values balance exactly
        return RelativeErrors(
            value=spread / math.sqrt(n if n_at is None else n_at) / over,
            n=n,
            log_error=errors[0],
            logs=np.sort(logs[1:], axis=0),
            studentised=np.sort(studentised[1:], axis=0),
            kurtosis=trimmed_kurtosis(e) if n >= FEWEST_FOR_BOUNDS else np.full(e.shape[1], np.nan),
            of_value=spread / math.sqrt(n) / over * relative,
        )


def _log_theta(
    counts: Float64[np.ndarray, "draws n"],
    e: Float64[np.ndarray, "n k"],
    g: Float64[np.ndarray, " n"] | None,
    f: Float64[np.ndarray, " k"] | None,
) -> tuple[Float64[np.ndarray, "draws k"], Float64[np.ndarray, "draws k"]]:
    """Logarithm of theta of weighted units, up to a constant, and its standard error from their influence.

    Args:
        counts: Weight of each unit.
        e: Influence on the ratio, of variance 1.
        g: Denominators over their mean; None: all 1.
        f: The ratio in the unit of e; None: theta is the standard error itself.
    """
    n = len(e)
    orders = [(a, b) for a in range(5) for b in range(5 - a) if (a, b) > (0, 0) and (b == 0 or g is not None)]
    columns = [e**a if g is None else e**a * g[:, None] ** b for a, b in orders]
    sums = (counts @ np.concatenate(columns, axis=1)).reshape(len(counts), len(orders), -1) / n
    ones = np.ones_like(sums[:, 0])
    means = dict(zip(orders, np.moveaxis(sums, 1, 0), strict=True))

    def mean(a: int, b: int) -> Float64[np.ndarray, "draws k"]:
        found: Float64[np.ndarray, "draws k"] = (
            means[a, 0 if g is None else b] if a or g is not None else ones
        )
        return found

    d = mean(1, 0) / mean(0, 1)  # the ratio moves by d, and e becomes e - d g
    second = mean(2, 0) - 2 * d * mean(1, 1) + d**2 * mean(0, 2)
    second = np.where(second > EQUAL, second, 0.0)
    third = mean(3, 0) - 3 * d * mean(2, 1) + 3 * d**2 * mean(1, 2) - d**3 * mean(0, 3)
    fourth = (
        mean(4, 0) - 4 * d * mean(3, 1) + 6 * d**2 * mean(2, 2) - 4 * d**3 * mean(1, 3) + d**4 * mean(0, 4)
    )
    with_g = (mean(1, 1) - d * mean(0, 2)) / mean(0, 1)
    squares_with_g = (mean(2, 1) - 2 * d * mean(1, 2) + d**2 * mean(0, 3)) / mean(0, 1)
    # u = (e^2 / s^2 - 1) / 2 - slope e - (g / mean(g) - 1)
    slope = with_g / second
    if f is not None:
        slope = slope + 1 / ((f + d) * mean(0, 1))
    variance = (
        (fourth / second**2 - 1) / 4
        + slope**2 * second
        + mean(0, 2) / mean(0, 1) ** 2
        - 1
        - slope * third / second
        - (squares_with_g / second - 1)
        + 2 * slope * with_g
    )
    logs = np.log(second) / 2 - np.log(np.abs(mean(0, 1)))
    if f is not None:
        logs = logs - np.log(np.abs(f + d))
    return logs, np.sqrt(np.maximum(variance, 0.0) / n)
