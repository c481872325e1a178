"""Weights of a bootstrap that runs along a stream, and numbers under resamples of their examples."""

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy
from jaxtyping import Float32, Float64, Int, UInt64

from assay.core.errors import InputError, check_fraction, check_least
from assay.core.measurement import Interval, undefined_interval
from assay.stats.estimate import EQUAL


FEWEST = 20  # resamples below which a variance says little
UNBOUNDED = (-math.inf, math.inf)
_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_BITS = 53


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
                f"a paired difference needs equal (resamples, examples, key), but got {mine} and {theirs}; "
                "score both with the same resamples=, seed and data"
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
        if error <= EQUAL * abs(self.value):
            ends = {"low": self.value, "high": self.value}
            return Interval(**ends, level=level, method="resampled", reason="degenerate")
        margin = float(scipy.stats.t.ppf((1 + level) / 2, self.n - 1)) * error
        low, high = max(self.bounds[0], self.value - margin), min(self.bounds[1], self.value + margin)
        return Interval(low=low, high=high, level=level, method="resampled")


def poisson_weights(
    ids: Int[np.ndarray, " n"], n_resamples: int, *, seed: int = 0
) -> Float32[np.ndarray, "n_resamples n"]:
    """How often each example counts in each resample of a Poisson bootstrap: independent Poisson(1).

    The weight of example i in resample b is a function of (seed, i, b) alone: the inverse distribution
    function at number b of the SplitMix64 sequence that starts at a hash of seed and id. So weights do not
    depend on the order of the examples, on the batches they fall into, or on what else there is.

    Args:
        ids: Number of each example in its data set. Equal ids have equal weights.
        n_resamples: Number of resamples, at least 1.
        seed: Root seed; any whole number.

    Returns:
        Whole numbers >= 0, as float32 for matrix products. Mean and variance 1.

    Raises:
        InputError: For fewer than 1 resample.

    Notes:
        A weighted mean divides by the sum of its weights, which is random: a resample of n examples is empty
        with probability exp(-n). Given its sum, the weights are those of drawing that many with replacement.

    References:
        Chamandy, Muralidharan, Najmi and Naidu (2012), "Estimating uncertainty for massive data streams";
        SplitMix64: Steele, Lea and Flood (2014), doi:10.1145/2660193.2660195.

    Example:
        >>> poisson_weights(np.array([3, 8]), 4).tolist()
        [[0.0, 1.0], [0.0, 2.0], [1.0, 1.0], [1.0, 1.0]]
    """
    check_least(1, n_resamples=n_resamples)
    root = _mixed(np.array([seed % 2**64], dtype=np.uint64) + np.uint64(_GOLDEN))
    starts = _mixed(root ^ _mixed(ids.astype(np.uint64)))
    steps = np.arange(1, n_resamples + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    uniform = _mixed(starts + steps[:, None]) >> np.uint64(64 - _BITS)
    # Counts above 16 have probability 2e-15 together, below the last place of a float64 sum.
    limits = np.floor(scipy.stats.poisson.cdf(np.arange(17), 1.0) * 2.0**_BITS).astype(np.uint64)
    return np.searchsorted(limits, uniform, side="right").astype(np.float32)


def _mixed(numbers: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """The finaliser of SplitMix64, modulo 2**64."""
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(numbers ^ (numbers >> np.uint64(31)))
