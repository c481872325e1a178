"""Numbers under resamples of the examples behind them: standard errors, intervals, paired differences."""

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy
from jaxtyping import Float64

from assay.core.errors import InputError, check_fraction
from assay.core.verdict import Interval, undefined_interval


FEWEST = 20  # resamples below which a variance says little
_EQUAL = 1e-12  # relative spread below which draws differ by rounding only
UNBOUNDED = (-math.inf, math.inf)


@dataclass(frozen=True, kw_only=True, eq=False)
class ResampledValue:
    """A number and what it becomes under resamples of the examples behind it.

    Attributes:
        value: The number itself.
        draws: In each resample, `[B]`; NaN where a resample has none. Their spread counts, not their mean.
        n: Examples.
        bounds: Smallest and largest value there is.
        key: Of the resamples: what gave each example its weights. Draws pair up only where it is equal.
    """

    value: float
    draws: Float64[np.ndarray, " n_resamples"]
    n: int
    bounds: tuple[float, float] = UNBOUNDED
    key: str = ""

    def __sub__(self, other: "ResampledValue") -> "ResampledValue":
        """The difference of two numbers on the same examples, resample by resample.

        Raises:
            InputError: If resamples or examples differ, in number or by their key.
        """
        mine, theirs = ((len(each.draws), each.n, each.key) for each in (self, other))
        if mine != theirs:
            raise InputError(
                "a paired difference needs the same resamples of the same examples, but one number has "
                f"(resamples, examples, key) {mine}, the other {theirs}; score both with the same "
                "resamples=, seed and data"
            )
        return replace(self, value=self.value - other.value, draws=self.draws - other.draws, bounds=UNBOUNDED)

    @property
    def error(self) -> float:
        """Standard error, in the unit of the value: the standard deviation of the draws.

        NaN where fewer than 20 of them are defined.
        """
        defined = self.draws[np.isfinite(self.draws)]
        return math.nan if len(defined) < FEWEST else float(defined.std(ddof=1))

    def interval(self, *, level: float = 0.95) -> Interval:
        """Value -+ t error, cut at the bounds, with t the quantile of Student's distribution at n - 1.

        Args:
            level: Two-sided coverage.

        Returns:
            For the mean of the number over sets of n examples, not for its limit at infinitely many: noise
            is magnitude and distance, too. Undefined below two examples (`too_few`) and where value or error
            is (`undefined`); both ends at the value (`degenerate`) where all resamples agree.

        Raises:
            InputError: For a level outside (0, 1).

        Notes:
            Percentiles of the draws, corrected for bias or not, do not hold this mean where the examples are
            noisy: a resample has their noise twice. Coverage of both: docs/theory/intervals-verdicts.md.

        Example:
            >>> draws = np.tile([1.0, 3.0], 10)
            >>> found = ResampledValue(value=2.0, draws=draws, n=30).interval()
            >>> round(found.low, 2), round(found.high, 2)
            (-0.1, 4.1)
        """
        check_fraction(level=level)
        if self.n < 2:
            return undefined_interval(level, "resampled", "too_few")
        error = self.error
        if not (math.isfinite(self.value) and math.isfinite(error)):
            return undefined_interval(level, "resampled", "undefined")
        if error <= _EQUAL * abs(self.value):
            return Interval(
                low=self.value, high=self.value, level=level, method="resampled", reason="degenerate"
            )
        margin = float(scipy.stats.t.ppf((1 + level) / 2, self.n - 1)) * error
        low, high = max(self.bounds[0], self.value - margin), min(self.bounds[1], self.value + margin)
        return Interval(low=low, high=high, level=level, method="resampled")
