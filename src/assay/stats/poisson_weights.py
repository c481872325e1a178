"""Weights of a bootstrap that runs along a stream: each example's own, whatever comes before or beside it."""

import numpy as np
import scipy
from jaxtyping import Float32, Int, UInt64

from assay.core.errors import check_least


_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_BITS = 53


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
