"""The mean of values in [0, 1] from a fixed number of them, whatever their distribution.

A gambler who starts with 1 and stakes on "the mean is above m" has, if it is not, an expected capital of at
most 1 after any number of values; capital 20 then has a probability of at most 5 % (Markov). The lower bound
is the smallest m that such a capital does not refute.
"""

import math

import numpy as np
import scipy
from jaxtyping import Float64, Real, Shaped

from assay.core.errors import InputError, ShapeError, check_fraction
from assay.core.verdict import Interval, undefined_interval
from assay.stats._checks import EQUAL, finite


N_BETS = 200
_SHARES = (np.arange(N_BETS) + 0.5) / N_BETS  # of the largest bet 1 / m, above which a value of 0 ruins


def bounded_mean(
    values: Real[np.ndarray, " n"],
    *,
    level: float = 0.95,
    bounds: tuple[float, float] = (0.0, 1.0),
    unit_id: Shaped[np.ndarray, " _"] | None = None,
) -> Interval:
    """Interval of the mean of bounded values, coverage at least `level` for every n and distribution.

    The lower end is the smallest m with K(m) < 1 / alpha, alpha = (1 - level) / 2: the capital K(m) is the
    mean over 200 bets lambda, evenly spaced in (0, 1 / m), of prod_i (1 + lambda (z_i - m)). The upper end is
    that of the mirrored values 1 - z. The order of the values does not count.

    Args:
        values: Independent values of one mean, inside `bounds`.
        level: Two-sided coverage; each end alone is a bound at (1 + level) / 2.
        bounds: Smallest and largest value possible, known before any is seen.
        unit_id: Values that belong together; they are averaged first, and the mean is one over units.

    Returns:
        `too_few` without values. Equal values have an interval that is not empty.

    Raises:
        InputError: For a value outside the bounds, and a level outside (0, 1).

    Notes:
        Wider than the exact interval of a share: for values that are 0 or 1, take `clopper_pearson`.

    References:
        Waudby-Smith and Ramdas (2024), doi:10.1093/jrsssb/qkad009 (fixed bets; a mean of capitals is one).

    Example:
        >>> interval = bounded_mean(np.ones(20), level=0.90)
        >>> round(interval.low, 3), interval.high
        (0.801, 1.0)
    """
    check_fraction(level=level)
    if not len(values):
        return undefined_interval(level, "betting", "too_few")
    lowest, highest = bounds
    z = finite(values)
    rounding = EQUAL * (highest - lowest)
    if z.min() < lowest - rounding or z.max() > highest + rounding:
        raise InputError(
            f"values run from {z.min():g} to {z.max():g}; expected values in [{lowest:g}, {highest:g}]"
        )
    if unit_id is not None:
        if unit_id.shape != z.shape:
            raise ShapeError(f"unit_id has shape {unit_id.shape}; expected one per value, {z.shape}")
        codes = np.unique(unit_id, return_inverse=True)[1].reshape(-1)
        z = np.bincount(codes, weights=z) / np.bincount(codes)
    z = np.clip((z - lowest) / (highest - lowest), 0.0, 1.0)
    limit = math.log(2 / (1 - level))
    low, high = _lower(z, limit), 1 - _lower(1 - z, limit)
    return Interval(
        low=lowest + (highest - lowest) * low,
        high=lowest + (highest - lowest) * high,
        level=level,
        method="betting",
    )


def _lower(z: Float64[np.ndarray, " n"], limit: float) -> float:
    """The mean at which the log capital falls to the limit; the capital falls as the mean rises."""
    distinct, counts = np.unique(z, return_counts=True)

    def excess(mean: float) -> float:
        log_growth = np.log1p(_SHARES[:, None] * (distinct / mean - 1)) @ counts
        return float(scipy.special.logsumexp(log_growth)) - math.log(N_BETS) - limit

    smallest = 1e-12
    if excess(smallest) < 0:
        return 0.0
    return float(scipy.optimize.brentq(excess, smallest, 1.0, xtol=1e-12))
