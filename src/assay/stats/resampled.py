"""Intervals from resamples of a number that noise moves to one side: a magnitude, or a distance."""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64
from scipy import stats as scipy_stats

from assay.core.errors import InputError, check_fraction
from assay.core.verdict import Interval, undefined_interval


FEWEST = 20  # resamples below which a variance says little
_EQUAL = 1e-12  # relative spread below which draws differ by rounding only


@dataclass(frozen=True, kw_only=True, eq=False)
class ResampledValue:
    """A number and what it becomes under resamples of the examples behind it.

    With m the mean scores and d_b the departure of resample b: the number at m, at m + d_b, and at c + d_b,
    where c is m with its own noise taken off.

    Attributes:
        value: The number itself.
        draws: At m + d_b, `[B]`; NaN where a resample has none.
        settled: At c + d_b, `[B]`: as noisy as the number itself, while a draw has the noise twice.
        n: Examples.
    """

    value: float
    draws: Float64[np.ndarray, " n_resamples"]
    settled: Float64[np.ndarray, " n_resamples"]
    n: int

    def __sub__(self, other: "ResampledValue") -> "ResampledValue":
        """The difference of two numbers on the same examples, resample by resample.

        Raises:
            InputError: If resamples or examples differ in number.
        """
        mine, theirs = ((len(each.draws), each.n) for each in (self, other))
        if mine != theirs:
            raise InputError(
                "a paired difference needs the same resamples of the same examples, but one number has "
                f"(resamples, examples) {mine}, the other {theirs}"
            )
        return replace(
            self,
            value=self.value - other.value,
            draws=self.draws - other.draws,
            settled=self.settled - other.settled,
        )

    @property
    def error(self) -> float:
        """Standard error, in the unit of the value; NaN where fewer than 20 resamples are defined.

        The root of (V + S) / 2, with V the variance of the draws and S that of the settled ones. V errs where
        noise prevails, S where the centre keeps too much or too little; coverage of the mean of both was
        simulated (docs/theory/intervals-verdicts.md).
        """
        usable = np.isfinite(self.draws) & np.isfinite(self.settled)
        if usable.sum() < FEWEST:
            return math.nan
        variances = (each[usable].var(ddof=1) for each in (self.draws, self.settled))
        return math.sqrt(float(sum(variances)) / 2)

    def interval(
        self, *, level: float = 0.95, bounds: tuple[float, float] = (-math.inf, math.inf)
    ) -> Interval:
        """Value -+ t error, with t the quantile of Student's distribution with n - 1 degrees of freedom.

        Args:
            level: Two-sided coverage.
            bounds: Smallest and largest value there is.

        Returns:
            For the mean of the number over sets of n examples, not for its limit at infinitely many: noise
            is magnitude and distance, too. Undefined below two examples (`too_few`) and where value or error
            is (`undefined`); both ends at the value (`degenerate`) where all resamples agree.

        Raises:
            InputError: For a level outside (0, 1).
        """
        check_fraction(level=level)
        if self.n < 2:
            return undefined_interval(level, "resampled", "too_few")
        error = self.error
        if not (math.isfinite(self.value) and math.isfinite(error)):
            return undefined_interval(level, "resampled", "undefined")
        if error <= _EQUAL * max(1.0, abs(self.value)):
            return Interval(
                low=self.value, high=self.value, level=level, method="resampled", reason="degenerate"
            )
        margin = float(scipy_stats.t.ppf((1 + level) / 2, self.n - 1)) * error
        low, high = max(bounds[0], self.value - margin), min(bounds[1], self.value + margin)
        return Interval(low=low, high=high, level=level, method="resampled")
