"""Intervals from the values that a number takes without each image in turn."""

import math

import numpy as np
from jaxtyping import Float64
from scipy import stats

from assay.core.measurement import Interval, undefined_interval


def jackknife_interval(
    value: float,
    left_out: Float64[np.ndarray, " n"],
    *,
    level: float,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    rounding: float = 0.0,
) -> Interval:
    """The interval v -+ t sqrt((n - 1) / n sum_i (v_(i) - mean v_(.))^2).

    With t the quantile of Student's distribution with n - 1 degrees of freedom.

    Args:
        value: The number on all images.
        left_out: v_(i), the number without image i, of two images or more.
        level: Two-sided coverage.
        bounds: Smallest and largest value there is.
        rounding: Spread below which the values without one image are taken for equal.

    Returns:
        Undefined where a number is NaN; both ends at the value (`degenerate`) where all images agree.
    """
    if math.isnan(value) or np.isnan(left_out).any():
        return undefined_interval(level, "jackknife", "undefined")
    n = len(left_out)
    spread = math.sqrt((n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum()))
    if spread <= rounding:
        return Interval(low=value, high=value, level=level, method="jackknife", reason="degenerate")
    margin = float(stats.t.ppf((1 + level) / 2, n - 1)) * spread
    low, high = max(bounds[0], value - margin), min(bounds[1], value + margin)
    return Interval(low=low, high=high, level=level, method="jackknife")
