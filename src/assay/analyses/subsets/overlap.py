"""How far two subsets share examples: between as two random draws and as one inside the other."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy

from assay.analyses.subsets.line import Places
from assay.core.errors import InputError


_EQUAL = 1e-12  # room between chance and nesting below which there is nothing to normalise by


def positions(places: Any, n: int) -> Places:
    """Distinct places in a pool of `n` examples, at least one.

    Raises:
        InputError: If they are not, or lie outside the pool.
    """
    checked = np.asarray(places)
    distinct = np.unique(checked)
    whole = checked.ndim == 1 and len(checked) > 0 and checked.dtype.kind in "iu"
    if not whole or len(distinct) < len(checked) or distinct[0] < 0 or distinct[-1] >= n:
        raise InputError(
            f"a selection is {checked.dtype} {checked.shape}; expected places in [0, {n - 1}], each once"
        )
    return checked.astype(np.int64)


@functools.lru_cache(maxsize=4096)
def expected_jaccard(first: int, second: int, n: int) -> float:
    """Mean Jaccard index of two independent uniform draws of these sizes from `n`.

    E[h / (a + b - h)] with h ~ Hypergeometric(n, a, b).

    Example:
        >>> round(expected_jaccard(1, 1, 4), 12)
        0.25
    """
    h = np.arange(max(0, first + second - n), min(first, second) + 1)
    return float(scipy.stats.hypergeom.pmf(h, n, first, second) @ (h / (first + second - h)))


def selection_consistency(sets: Sequence[Any], n: int) -> pd.DataFrame:
    """Overlap of every pair of selections between chance (0) and nesting (1).

    J_norm = (J - J_rand) / (J_max - J_rand), with J the Jaccard index, J_max = |A| / |B| that of a nested
    pair and J_rand its mean over independent uniform draws of the same sizes, |A| <= |B|.

    A high value is not evidence that a subset is real: selections of one solver on one set of models agree
    just as well where no example has a negative slope.

    Args:
        sets: Selections, each as distinct places in the pool.
        n: Examples of the pool they come from.

    Returns:
        `[k, k]`, rows and columns named by size; 1 on the diagonal, below 0 for less overlap than two random
        draws, NaN where chance alone nests.

    Raises:
        InputError: Repeated or impossible places, or an empty selection.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Eq. 6.

    Example:
        >>> float(selection_consistency([[0, 1], [0, 1, 2, 3]], 10).iloc[0, 1])
        1.0
    """
    checked = [positions(each, n) for each in sets]
    sizes = [len(each) for each in checked]
    table = np.eye(len(checked))
    for (i, one), (j, other) in itertools.combinations(enumerate(checked), 2):
        shared = len(np.intersect1d(one, other, assume_unique=True))
        small, large = sorted((len(one), len(other)))
        chance, most = expected_jaccard(small, large, n), small / large
        j_norm = (shared / (small + large - shared) - chance) / (most - chance or math.nan)
        table[i, j] = table[j, i] = j_norm if most - chance >= _EQUAL else math.nan
    return pd.DataFrame(table, index=sizes, columns=sizes)
