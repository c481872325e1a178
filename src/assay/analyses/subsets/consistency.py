"""How alike selections of different sizes are, beyond what their sizes force (Eq. 6)."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets._arrays import Places
from assay.core.errors import InputError, ShapeError
from assay.core.plotted import Plotted
from assay.core.random import stream
from assay.core.record import Record


if TYPE_CHECKING:
    import pandas as pd

_EQUAL = 1e-12  # room between chance and nesting below which there is nothing to normalise by
_REACH = 6.0  # roots of the smaller size around the mean overlap; the mass beyond is below exp(-72)


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectionConsistency(Plotted, Record):
    """Pairwise overlap of selections from one pool; rows and columns in the order the selections were given.

    Attributes:
        sizes: Examples of each selection.
        n_examples: Size N of the pool.
        jaccard: |A and B| / |A or B|, 1 on the diagonal.
        maximum: The same for a nested pair of these sizes.
        expected: The same for two independent uniform draws of these sizes, on average; 1 on the diagonal.
        normalised: (jaccard - expected) / (maximum - expected): 1 nested, 0 as two random draws, negative for
            less overlap than that; NaN where chance alone nests (a selection of the whole pool). 1 on the
            diagonal.
        mean: Of `normalised` over the defined pairs; NaN without one.
        mean_adjacent: Of `normalised` over neighbours in size.
        lowest: Least `normalised` of a pair.
        lowest_pair: The places of that pair; None without a defined pair.
        n_random: Pairs of random draws behind `expected`; None where it is the exact sum.
    """

    drawn_by = "assay.analyses.subsets.plots:plot_overlap"

    sizes: Int64[np.ndarray, " k"]
    n_examples: int
    jaccard: Float64[np.ndarray, "k k"]
    maximum: Float64[np.ndarray, "k k"]
    expected: Float64[np.ndarray, "k k"]
    normalised: Float64[np.ndarray, "k k"]
    mean: float
    mean_adjacent: float
    lowest: float
    lowest_pair: tuple[int, int] | None
    n_random: int | None = None

    def __repr__(self) -> str:
        overlap = f"mean {self.mean:.3g}, lowest {self.lowest:.3g}"
        return f"SelectionConsistency({len(self.sizes)} selections, {overlap})"

    def to_frame(self) -> "pd.DataFrame":
        """One row per pair of selections: first, second (places), sizes, jaccard, expected, normalised."""
        import pandas as pd

        first, second = np.triu_indices(len(self.sizes), 1)
        return pd.DataFrame(
            {
                "first": first,
                "second": second,
                "first_size": self.sizes[first],
                "second_size": self.sizes[second],
                **{
                    name: getattr(self, name)[first, second] for name in ("jaccard", "expected", "normalised")
                },
            }
        )


def expected_jaccard(first: int, second: int, n_examples: int) -> float:
    """Mean Jaccard index of two independent uniform draws without replacement.

    E[h / (a + b - h)] with h ~ Hypergeometric(N, a, b), summed exactly.

    Args:
        first: Size a, 1 to N.
        second: Size b, 1 to N.
        n_examples: Size N of the pool.

    Returns:
        In (0, 1]; symmetric in the sizes; 1 where both draws are the whole pool.

    Example:
        >>> round(expected_jaccard(1, 1, 4), 12)
        0.25
    """
    for size in (first, second):
        if not 1 <= size <= n_examples:
            raise InputError(
                f"a selection of {size} examples from n_examples={n_examples}; expected 1 to n_examples"
            )
    small, large = sorted((first, second))
    # |h - mean| >= t has probability at most 2 exp(-2 t^2 / a) (Hoeffding 1963, Theorem 4), so the support
    # beyond `_REACH` root(a) adds nothing a float64 could hold.
    centre, reach = small * large / n_examples, _REACH * math.sqrt(small)
    low = max(0, small + large - n_examples, math.floor(centre - reach))
    high = min(small, math.ceil(centre + reach))
    overlap = np.arange(low, high + 1)
    # p(h + 1) / p(h), multiplied up in logs and normalised: without a factorial of N, nothing is lost.
    h = overlap[:-1].astype(np.float64)
    ratios = (small - h) * (large - h) / ((h + 1) * (n_examples - small - large + h + 1))
    logs = np.append(0.0, np.cumsum(np.log(ratios)))
    mass = np.exp(logs - logs.max())
    return float(mass @ (overlap / (small + large - overlap)) / mass.sum())


def positions(indices: Any, n: int, name: str = "indices") -> Places:
    """Distinct positions in a pool of `n` examples, at least one.

    Raises:
        InputError: Repeated positions, or some outside the pool.
        ShapeError: No vector of integers.
    """
    places = np.asarray(indices)
    if places.ndim != 1 or not len(places) or places.dtype.kind not in "iu":
        raise ShapeError(
            f"{name} has shape {places.shape} and dtype {places.dtype}; expected a vector of at least one "
            "integer position (np.flatnonzero converts a mask)"
        )
    places = places.astype(np.int64)
    distinct, times = np.unique(places, return_counts=True)
    if distinct[0] < 0 or distinct[-1] >= n:
        outside = distinct[0] if distinct[0] < 0 else distinct[-1]
        raise InputError(f"{name} holds {outside}; positions must lie in [0, {n - 1}]")
    if len(distinct) < len(places):
        raise InputError(
            f"{name} holds {distinct[times > 1][0]} more than once; the positions must be distinct"
        )
    return places


def selection_consistency(
    sets: Sequence[Any], n_examples: int, *, n_random: int | None = None, seed: int = 0
) -> SelectionConsistency:
    """Overlap of every pair of selections between chance (0) and nesting (1).

    J_norm = (J - J_rand) / (J_max - J_rand), with J the Jaccard index, J_max = |A| / |B| that of a nested
    pair and J_rand its mean over independent uniform draws of the same sizes, |A| <= |B|.

    A high value is not evidence that a subset is real: selections of one solver on one set of models agree
    just as well where no example has a negative slope.

    Args:
        sets: Selections: distinct positions in the pool, in any order, as index arrays or lists.
        n_examples: Size N of the pool they come from.
        n_random: Estimate J_rand from this many random pairs instead of the exact sum.
        seed: Root of those draws.

    Returns:
        Matrices over the selections and their summaries over the pairs.

    Raises:
        InputError: No selection, an empty one, repeated positions, or positions outside the pool.
        ShapeError: A selection that is not a vector of integers.

    Notes:
        O(k^2) pairs, each O(N / 64) for the overlap and O(root of the smaller size) for the exact sum.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Eq. 6.

    Example:
        >>> selection_consistency([[0, 1], [0, 1, 2, 3]], 10).mean
        1.0
    """
    if n_random is not None and n_random < 1:
        raise InputError(
            f"n_random is {n_random}; expected at least 1 random pair, or None for the exact sum"
        )
    if not len(sets):
        raise InputError("sets is empty; give at least one selection, as an array of positions")
    checked = [positions(each, n_examples, f"sets[{place}]") for place, each in enumerate(sets)]
    sizes = np.array([len(each) for each in checked], dtype=np.int64)
    overlap = _overlaps(checked, n_examples)
    jaccard = overlap / (sizes[:, None] + sizes[None, :] - overlap)
    maximum = np.minimum.outer(sizes, sizes) / np.maximum.outer(sizes, sizes)
    expected = np.ones_like(jaccard)
    rng = stream(seed, "selection-consistency")

    @functools.cache
    def chance(small: int, large: int) -> float:
        if n_random is None:
            return expected_jaccard(small, large, n_examples)
        shared = rng.hypergeometric(small, n_examples - small, large, n_random)
        return float((shared / (small + large - shared)).mean())

    first, second = np.triu_indices(len(checked), k=1)
    for i, j in zip(first, second, strict=True):
        expected[i, j] = expected[j, i] = chance(*sorted((int(sizes[i]), int(sizes[j]))))
    room = maximum - expected
    normalised = np.full_like(jaccard, np.nan)
    np.divide(jaccard - expected, room, out=normalised, where=room >= _EQUAL)
    np.fill_diagonal(normalised, 1.0)
    pairs, by_size = normalised[first, second], np.argsort(sizes, kind="stable")
    lowest = int(np.nanargmin(pairs)) if np.isfinite(pairs).any() else None
    return SelectionConsistency(
        sizes=sizes,
        n_examples=n_examples,
        jaccard=jaccard,
        maximum=maximum,
        expected=expected,
        normalised=normalised,
        mean=_mean(pairs),
        mean_adjacent=_mean(normalised[by_size[:-1], by_size[1:]]),
        lowest=math.nan if lowest is None else float(pairs[lowest]),
        lowest_pair=None if lowest is None else (int(first[lowest]), int(second[lowest])),
        n_random=n_random,
    )


def consistency_within(sets: Sequence[Any], pool: Places) -> SelectionConsistency:
    """`selection_consistency` of selections that could hold only some examples: chance draws from these.

    Args:
        sets: Selections, as places of examples.
        pool: Examples that could have been selected, ascending.
    """
    return selection_consistency([np.searchsorted(pool, each) for each in sets], len(pool))


def _overlaps(sets: list[Places], n_examples: int) -> Int64[np.ndarray, "k k"]:
    """Number of shared examples of every pair, from one bit per selection and example."""
    bits = np.zeros((len(sets), n_examples), dtype=bool)
    for row, each in zip(bits, sets, strict=True):
        row[each] = True
    packed = np.packbits(bits, axis=1)
    return np.stack([np.bitwise_count(packed & row).sum(axis=1, dtype=np.int64) for row in packed])


def _mean(values: Float64[np.ndarray, " n"]) -> float:
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else math.nan
