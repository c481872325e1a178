"""Values by the labels of their inputs: quantiles of each cell, and which exceed a threshold too often."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Real, Shaped

from assay.core.errors import InputError
from assay.core.random import stream
from assay.core.record import Record
from assay.stats._checks import finite
from assay.stats.multiplicity import benjamini_hochberg


SPARSE = 20
_FEWEST = 999
_PER_CELL = 40  # a cell that no permutation reaches then has q = 1/40, whatever the number of cells
_WORK = 2 * 10**7  # entries that all permutations together may touch: about a second


def _coded(
    labels: Shaped[np.ndarray, "..."], shape: tuple[int, ...]
) -> tuple[tuple[Any, ...], Int64[np.ndarray, "..."]]:
    """The labels that occur, ascending, and which of them each entry bears, in the shape of the labels."""
    np.broadcast_to(labels, shape)  # or numpy says which shapes do not fit
    known, codes = np.unique(labels, return_inverse=True)
    return tuple(known.tolist()), codes.reshape(labels.shape).astype(np.int64)


# ------------------------------------------------------------------------------------------------- quantiles


@dataclass(frozen=True, kw_only=True)
class CellTable(Record):
    """Values grouped by one or two labels.

    Attributes:
        rows: Values of the first label, ascending.
        columns: Values of the second one, ascending; a single None where there is none.
        quantiles_at: The shares of `quantiles`.
        n: `[R, C]` values per cell.
        mean: `[R, C]`; NaN for an empty cell.
        quantiles: `[Q, R, C]`, type 7; the share 1 is the maximum. NaN for an empty cell.
    """

    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    quantiles_at: tuple[float, ...]
    n: Int64[np.ndarray, "R C"]
    mean: Float64[np.ndarray, "R C"]
    quantiles: Float64[np.ndarray, "Q R C"]


def cell_table(
    values: Real[np.ndarray, "..."],
    rows: Shaped[np.ndarray, "..."],
    columns: Shaped[np.ndarray, "..."] | None = None,
    *,
    quantiles: Sequence[float] = (1.0,),
) -> CellTable:
    """Count, mean and quantiles of the values of each cell of a cross table.

    Args:
        values: Finite, any shape.
        rows: First label of each value, of a shape that broadcasts to that of `values`: for pairs
            `[n_clean, n_corrupted]`, a label of the clean input is `[n_clean, 1]`.
        columns: Second label; None groups by the first alone.
        quantiles: Shares in [0, 1]; 1 is the maximum.

    Returns:
        Cells of every combination of labels that occur, in ascending order of the labels.

    Notes:
        The maximum of a cell grows with its count: compare cells of unequal `n` by quantiles they all
        resolve.

    Example:
        >>> table = cell_table(np.array([1.0, 5.0, 3.0]), np.array(["b", "a", "b"]))
        >>> table.rows, table.n.ravel(), table.quantiles.ravel()
        (('a', 'b'), array([1, 2]), array([5., 3.]))
    """
    checked = finite(values)
    row_labels, row_of = _coded(rows, checked.shape)
    column_labels, column_of = ((None,), 0) if columns is None else _coded(columns, checked.shape)
    shape = (len(row_labels), len(column_labels))
    cell = np.broadcast_to(row_of * shape[1] + column_of, checked.shape).ravel()
    counts = np.bincount(cell, minlength=shape[0] * shape[1])
    filled = counts > 0
    sums = np.bincount(cell, weights=checked.ravel(), minlength=len(counts))

    # By value, then stably by cell in the smallest integers that hold it, which numpy sorts in linear time.
    by_value = np.argsort(checked, axis=None)
    narrow = cell.astype(np.min_scalar_type(len(counts)))[by_value]
    ordered = checked.ravel()[by_value[np.argsort(narrow, kind="stable")]]
    starts = (np.cumsum(counts) - counts)[filled]
    table = np.full((len(quantiles), len(counts)), np.nan)
    for at, share in enumerate(quantiles):
        place = (counts[filled] - 1) * share
        low = np.floor(place).astype(np.int64)
        below = ordered[starts + low]
        above = ordered[starts + np.minimum(low + 1, counts[filled] - 1)]
        table[at, filled] = below + (above - below) * (place - low)
    return CellTable(
        rows=row_labels,
        columns=column_labels,
        quantiles_at=tuple(float(share) for share in quantiles),
        n=counts.reshape(shape).astype(np.int64),
        mean=_shares(sums, counts).reshape(shape),
        quantiles=table.reshape(-1, *shape),
    )


def _shares(sums: Real[np.ndarray, "..."], n: Real[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Sums over counts, NaN for empty cells. Equal ratios of whole numbers are equal floats, so ties stay."""
    return np.asarray(np.divide(sums, n, out=np.full(np.shape(n), np.nan), where=n > 0))


# ----------------------------------------------------------------------------------------------------- tests


@dataclass(frozen=True, kw_only=True)
class CellTests(Record):
    """How often the values of each cell exceed a threshold, against all cells together.

    Attributes:
        rows: Values of the first label, ascending.
        columns: Values of the second one, ascending; a single None where there is none.
        n: `[R, C]` values per cell.
        n_inputs: `[R, C]` distinct inputs that bear the cell's labels; where the two labels belong to the two
            sides of a cross, the smaller of the two numbers.
        exceed: `[R, C]` share of the cell's values above the threshold; NaN for an empty cell.
        pooled: The same share over all values.
        p_value: `[R, C]` in (0, 1], one-sided: small where the cell exceeds more often than its labels'
            being dealt to other inputs explains. NaN for an empty cell.
        q_value: `[R, C]` Benjamini-Hochberg over the cells of this table; NaN for an empty cell.
        sparse: `[R, C]` whether fewer than 20 distinct inputs stand behind the cell (empty cells too).
        permutations: Their number.
    """

    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    n: Int64[np.ndarray, "R C"]
    n_inputs: Int64[np.ndarray, "R C"]
    exceed: Float64[np.ndarray, "R C"]
    pooled: float
    p_value: Float64[np.ndarray, "R C"]
    q_value: Float64[np.ndarray, "R C"]
    sparse: Bool[np.ndarray, "R C"]
    permutations: int

    def significant(self, level: float = 0.05) -> Bool[np.ndarray, "R C"]:
        """Cells with q <= level: among these, the expected share of false ones is at most `level`."""
        return np.asarray(self.q_value <= level)


class _Side:
    """One axis of the values: which distinct input each draw is, and the cell label that each input bears."""

    def __init__(
        self, unit: Int64[np.ndarray, " draws"], labels: Int64[np.ndarray, " draws"], n_labels: int
    ) -> None:
        self.unit, self.n_labels = unit, n_labels
        self.multiplicity = np.bincount(unit)  # draws of each input
        self.label = np.empty(len(self.multiplicity), dtype=np.int64)
        self.label[unit] = labels
        if (self.label[unit] != labels).any():
            raise InputError("draws of one input have different labels; a label is a property of the input")
        self.inputs_per_label = np.bincount(self.label, minlength=n_labels)

    def draws_per_label(self, label: Int64[np.ndarray, " units"]) -> Int64[np.ndarray, " labels"]:
        return np.bincount(label, weights=self.multiplicity, minlength=self.n_labels).astype(np.int64)


def cell_tests(
    exceeds: Bool[np.ndarray, "..."],
    rows: Shaped[np.ndarray, "..."],
    columns: Shaped[np.ndarray, "..."] | None = None,
    *,
    inputs: Sequence[Shaped[np.ndarray, " _"]] | None = None,
    permutations: int | None = None,
    seed: int = 0,
) -> CellTests:
    """Test each cell of a cross table for exceeding a threshold more often than all values together.

    Values that share an input depend on each other, so labels are dealt anew to *inputs*, not to values. The
    p-value of a cell is (1 + b) / (1 + permutations), with b the permutations in which the share of exceeding
    values in the cell is at least the observed one. Its null hypothesis: the label has nothing to do with
    what its inputs do.

    Args:
        exceeds: Whether each value lies above the threshold, say the 99th percentile of all of them.
            `[n_clean, n_corrupted]`: every pair of two samples of inputs. `[P]`: pairs drawn one by one.
        rows: First label. For a matrix it belongs to one of its sides: `[n_clean, 1]` or `[1, n_corrupted]`;
            for `[P]` one label per pair.
        columns: Second label; None tests the values of the first alone. Labels of different sides are dealt
            independently, two labels of one side together.
        inputs: Ids of the inputs, one array per axis of `exceeds` (`(clean, corrupted)`, or `(pairs,)`):
            draws with equal ids are one input, count once in `n_inputs` and keep their label in common. None
            takes every draw for another input.
        permutations: At least 1. None takes 999, and up to 40 per cell while that stays a matter of seconds:
            with many cells p-values of 1/1000 are too coarse for the correction.
        seed: Of the permutations.

    Returns:
        One row and column per label that occurs, ascending.

    Raises:
        InputError: One input with two labels.
        ValueError: Labels or ids whose shape does not fit, by numpy.

    Notes:
        For `[P]` the labels are dealt to pairs (or to distinct ids). That presupposes pairs drawn
        independently of each other, as in the protocols `matched` and `iid`; where pairs share inputs
        otherwise, the p-values are too small. With all labels equal, or no value above the threshold, p = 1.
        A cross of labels of both sides tests cells against the whole table: where one row is bad throughout,
        each of its cells can be significant. A cell with few inputs is tested soundly but tells little about
        other inputs with its labels: see `sparse`.

    References:
        Phipson and Smyth (2010), doi:10.2202/1544-6115.1585, for the 1 + b.

    Example:
        >>> exceeds = np.zeros((40, 50), dtype=bool)
        >>> exceeds[:20, ::5] = True
        >>> tests = cell_tests(exceeds, np.repeat(["ring", "book"], 20)[:, None])
        >>> tests.rows, tests.exceed.ravel(), tests.p_value.ravel()
        (('book', 'ring'), array([0. , 0.2]), array([1.   , 0.001]))
    """
    ids = map(np.arange, exceeds.shape) if inputs is None else inputs
    units = [np.unique(each, return_inverse=True)[1].astype(np.int64) for each in ids]
    row_labels, row_codes = _coded(rows, exceeds.shape)
    column_labels, column_codes = (None,), np.zeros_like(row_codes)
    if columns is not None:
        column_labels, column_codes = _coded(columns, exceeds.shape)
    shape = (len(row_labels), len(column_labels))
    row_axis, column_axis = (
        int(codes.shape not in (exceeds.shape[:1], (len(exceeds), 1))) for codes in (row_codes, column_codes)
    )
    # Labels of one axis are dealt together; of two, each for itself.
    if row_axis == column_axis:
        side = _Side(units[row_axis], (row_codes * shape[1] + column_codes).ravel(), shape[0] * shape[1])
        n_inputs = side.inputs_per_label
        n, share, own, deal, work = _of_one_side(exceeds, side, row_axis)
    else:
        first = _Side(units[row_axis], row_codes.ravel(), shape[0])
        second = _Side(units[column_axis], column_codes.ravel(), shape[1])
        n_inputs = np.minimum.outer(first.inputs_per_label, second.inputs_per_label).ravel()
        n, share, own, deal, work = _of_two_sides(exceeds if row_axis == 0 else exceeds.T, first, second)
    if permutations is None:
        n_cells = int(np.count_nonzero(n_inputs))
        permutations = max(_FEWEST, min(_PER_CELL * n_cells, _WORK // max(work, 1)))
    observed, rng = share(*own), stream(seed, "cell-tests")
    reached = np.zeros(len(observed), dtype=np.int64)
    for _ in range(permutations):
        reached += share(*deal(rng)) >= observed
    p_value = np.where(n_inputs > 0, (1 + reached) / (1 + permutations), np.nan)
    return CellTests(
        rows=row_labels,
        columns=column_labels,
        n=n.reshape(shape),
        n_inputs=n_inputs.reshape(shape),
        exceed=observed.reshape(shape),
        pooled=float(exceeds.mean()),
        p_value=p_value.reshape(shape),
        q_value=benjamini_hochberg(p_value).reshape(shape),
        sparse=n_inputs.reshape(shape) < SPARSE,
        permutations=permutations,
    )


# Values per cell, the share of exceeding ones by labels of inputs, the labels as they are, a deal of them,
# and the entries that a deal touches.
_Labels = Int64[np.ndarray, "_"]
_Test = tuple[_Labels, Callable[..., np.ndarray], Sequence[_Labels], Callable[..., Sequence[_Labels]], int]


def _of_one_side(exceeds: Bool[np.ndarray, "..."], side: _Side, axis: int) -> _Test:
    """Labels of one axis: an input matters only through how many of its values exceed.

    Inputs of one draw and no exceeding value are alike, so only the others need a place to go: with a million
    pairs that is one in a hundred of them.
    """
    per_draw = exceeds.sum(axis=1 - axis) if exceeds.ndim == 2 else exceeds.astype(np.int64)
    hits = np.bincount(side.unit, weights=per_draw)
    values_per_draw = exceeds.size // len(side.unit)
    distinct = np.flatnonzero((hits > 0) | (side.multiplicity > 1))
    weights, extra = hits[distinct], side.multiplicity[distinct] - 1
    in_cells = partial(np.bincount, minlength=side.n_labels)

    def share(label: _Labels) -> Float64[np.ndarray, " cells"]:
        draws = side.inputs_per_label
        if extra.any():
            draws = draws + in_cells(label, weights=extra).astype(np.int64)
        return _shares(in_cells(label, weights=weights), draws * values_per_draw)

    def deal(rng: np.random.Generator) -> Sequence[_Labels]:
        return (side.label[rng.choice(len(side.label), len(distinct), replace=False)],)

    n = side.draws_per_label(side.label) * values_per_draw
    return n, share, (side.label[distinct],), deal, max(len(distinct), side.n_labels)


def _of_two_sides(exceeds: Bool[np.ndarray, "n_first n_second"], first: _Side, second: _Side) -> _Test:
    """Labels of both axes, dealt independently; only the list of exceeding pairs is looked at."""
    places = np.nonzero(exceeds)
    at_first, at_second = first.unit[places[0]], second.unit[places[1]]
    n_cells = first.n_labels * second.n_labels

    def pairs(label: _Labels, other: _Labels) -> Int64[np.ndarray, " cells"]:
        return np.outer(first.draws_per_label(label), second.draws_per_label(other)).ravel()

    def share(label: _Labels, other: _Labels) -> Float64[np.ndarray, " cells"]:
        cell = label[at_first] * second.n_labels + other[at_second]
        return _shares(np.bincount(cell, minlength=n_cells), pairs(label, other))

    def deal(rng: np.random.Generator) -> Sequence[_Labels]:
        return rng.permutation(first.label), rng.permutation(second.label)

    own = first.label, second.label
    return pairs(*own), share, own, deal, max(len(at_first), n_cells)
