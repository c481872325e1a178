"""Which cells of a table of labels exceed a threshold more often than chance: permutations over inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from assay.core.errors import InputError, ShapeError
from assay.core.random import stream
from assay.core.record import Record
from assay.stats._checks import coded
from assay.stats.multiplicity import benjamini_hochberg


SPARSE = 20
_STREAM = "cell-tests"
_FEWEST = 999
_PER_CELL = 40  # a cell that no permutation reaches then has q = 1/40, whatever the number of cells
_WORK = 2 * 10**7  # entries that all permutations together may touch: about a second


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


@dataclass(frozen=True, kw_only=True)
class _DrawnInputs:
    """One axis of the values: which input each draw is, and the cell label of each input.

    `unit` `[draws]` numbers the distinct inputs, `multiplicity` `[units]` counts their draws, `label`
    `[units]` is what is dealt anew.
    """

    unit: Int64[np.ndarray, " draws"]
    multiplicity: Int64[np.ndarray, " units"]
    label: Int64[np.ndarray, " units"]
    n_labels: int

    @property
    def inputs_per_label(self) -> Int64[np.ndarray, " labels"]:
        return np.bincount(self.label, minlength=self.n_labels)

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
        InputError: No values, no permutations, or one input with two labels.
        ShapeError: Labels or ids that do not fit.

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
    if exceeds.ndim not in (1, 2):
        raise ShapeError(
            f"exceeds has shape {exceeds.shape}; expected [P] pairs or the matrix [n_clean, n_corrupted]"
        )
    if exceeds.size == 0:
        raise InputError(f"exceeds has shape {exceeds.shape}; expected at least one value")
    if permutations is not None and permutations < 1:
        raise InputError(f"permutations is {permutations}; expected at least 1")
    row_axis = _axis(rows, exceeds, "rows")
    row_labels, row_codes = coded(rows, exceeds.shape, "rows")
    if columns is None:
        column_labels, column_codes, column_axis = (None,), np.zeros_like(row_codes), row_axis
    else:
        column_axis = _axis(columns, exceeds, "columns")
        column_labels, column_codes = coded(columns, exceeds.shape, "columns")
    shape = (len(row_labels), len(column_labels))
    units = _units(inputs, exceeds)
    if row_axis == column_axis:
        joint = (row_codes * shape[1] + column_codes).ravel()
        side = _side(units[row_axis], joint, shape[0] * shape[1])
        n_inputs = side.inputs_per_label
        tests = _test_one_side(exceeds, side, row_axis, permutations, seed)
    else:
        first = _side(units[row_axis], row_codes.ravel(), shape[0])
        second = _side(units[column_axis], column_codes.ravel(), shape[1])
        n_inputs = np.minimum.outer(first.inputs_per_label, second.inputs_per_label)
        turned = exceeds if row_axis == 0 else exceeds.T
        tests = _test_two_sides(turned, first, second, permutations, seed)
    n, exceed, p_value, permutations = tests
    return CellTests(
        rows=row_labels,
        columns=column_labels,
        n=n.reshape(shape),
        n_inputs=n_inputs.reshape(shape),
        exceed=exceed.reshape(shape),
        pooled=float(exceeds.mean()),
        p_value=p_value.reshape(shape),
        q_value=benjamini_hochberg(p_value).reshape(shape),
        sparse=n_inputs.reshape(shape) < SPARSE,
        permutations=permutations,
    )


# ------------------------------------------------------------------------------------------------- its parts


def _axis(labels: Shaped[np.ndarray, "..."], exceeds: Bool[np.ndarray, "..."], name: str) -> int:
    """The axis of the values whose inputs bear the labels."""
    wanted = [
        tuple(n if at == axis else 1 for at, n in enumerate(exceeds.shape)) for axis in range(exceeds.ndim)
    ]
    if labels.shape not in wanted:
        raise ShapeError(
            f"labels of the {name} have shape {labels.shape}; expected {' or '.join(map(str, wanted))}, "
            "because a label belongs to an input"
        )
    return wanted.index(labels.shape)


def _units(
    inputs: Sequence[Shaped[np.ndarray, " _"]] | None, exceeds: Bool[np.ndarray, "..."]
) -> list[Int64[np.ndarray, " draws"]]:
    """For each axis, the number of the distinct input that each draw is."""
    if inputs is None:
        return [np.arange(n) for n in exceeds.shape]
    shapes = tuple(len(ids) for ids in inputs)
    if shapes != exceeds.shape:
        raise ShapeError(
            f"inputs holds ids for {shapes} draws, but the values have shape {exceeds.shape}; expected one "
            "id array per axis"
        )
    return [np.unique(ids, return_inverse=True)[1].astype(np.int64) for ids in inputs]


def _side(
    unit: Int64[np.ndarray, " draws"],
    labels: Int64[np.ndarray, " draws"],
    n_labels: int,
) -> _DrawnInputs:
    multiplicity = np.bincount(unit)
    label = np.empty(len(multiplicity), dtype=np.int64)
    label[unit] = labels
    torn = np.flatnonzero(label[unit] != labels)
    if len(torn):
        at = int(torn[0])
        twin = int(np.flatnonzero((unit == unit[at]) & (labels != labels[at]))[0])
        raise InputError(
            f"draws {min(at, twin)} and {max(at, twin)} have the same input id but different labels; a "
            "label must be a property of the input"
        )
    return _DrawnInputs(unit=unit, multiplicity=multiplicity, label=label, n_labels=n_labels)


def _number(permutations: int | None, n_cells: int, per_permutation: int) -> int:
    if permutations is not None:
        return permutations
    return max(_FEWEST, min(_PER_CELL * n_cells, _WORK // max(per_permutation, 1)))


_Found = tuple[Int64[np.ndarray, " cells"], Float64[np.ndarray, " cells"], Float64[np.ndarray, " cells"], int]


def _shares(
    hits: Int64[np.ndarray, "..."] | Float64[np.ndarray, "..."],
    n: Int64[np.ndarray, "..."] | Float64[np.ndarray, "..."],
) -> Float64[np.ndarray, "..."]:
    """Share of hits, NaN for empty cells. Equal ratios of whole numbers are equal floats: ties stay ties."""
    return np.asarray(np.divide(hits, n, out=np.full(np.shape(n), np.nan), where=n > 0))


def _test_one_side(
    exceeds: Bool[np.ndarray, "..."], side: _DrawnInputs, axis: int, permutations: int | None, seed: int
) -> _Found:
    """Labels of one axis: an input matters only through how many of its values exceed.

    Inputs of one draw and no exceeding value are alike, so only the others need a place to go: with a million
    pairs that is one in a hundred of them.
    """
    per_draw = exceeds.sum(axis=1 - axis) if exceeds.ndim == 2 else exceeds.astype(np.int64)
    hits = np.bincount(side.unit, weights=per_draw)
    values_per_draw = exceeds.size // len(side.unit)
    inputs = side.inputs_per_label
    distinct = np.flatnonzero((hits > 0) | (side.multiplicity > 1))
    weights, extra = hits[distinct], side.multiplicity[distinct] - 1
    duplicated = bool(extra.any())

    def share(label: Int64[np.ndarray, " distinct"]) -> Float64[np.ndarray, " cells"]:
        draws = inputs
        if duplicated:
            draws = inputs + np.bincount(label, weights=extra, minlength=side.n_labels).astype(np.int64)
        summed = np.bincount(label, weights=weights, minlength=side.n_labels)
        return _shares(summed, draws * values_per_draw)

    observed = share(side.label[distinct])
    number = _number(permutations, int(np.count_nonzero(inputs)), max(len(distinct), side.n_labels))
    rng = stream(seed, _STREAM)
    reached = np.zeros(side.n_labels, dtype=np.int64)
    for _ in range(number):
        places = rng.choice(len(side.label), len(distinct), replace=False)
        reached += share(side.label[places]) >= observed
    p_value = np.where(inputs > 0, (1 + reached) / (1 + number), np.nan)
    return side.draws_per_label(side.label) * values_per_draw, observed, p_value, number


def _test_two_sides(
    exceeds: Bool[np.ndarray, "n_first n_second"],
    first: _DrawnInputs,
    second: _DrawnInputs,
    permutations: int | None,
    seed: int,
) -> _Found:
    """Labels of both axes, dealt independently; only the list of exceeding pairs is looked at."""
    places = np.nonzero(exceeds)
    at_first, at_second = (side.unit[at] for side, at in zip((first, second), places, strict=True))
    n_cells = first.n_labels * second.n_labels

    def table(
        label: Int64[np.ndarray, " units"], other: Int64[np.ndarray, " others"]
    ) -> Float64[np.ndarray, " cells"]:
        pairs = np.multiply.outer(first.draws_per_label(label), second.draws_per_label(other)).ravel()
        cell = label[at_first] * second.n_labels + other[at_second]
        return _shares(np.bincount(cell, minlength=n_cells), pairs)

    observed = table(first.label, second.label)
    number = _number(permutations, n_cells, max(len(at_first), n_cells))
    rng = stream(seed, _STREAM)
    reached = np.zeros(n_cells, dtype=np.int64)
    for _ in range(number):
        reached += table(rng.permutation(first.label), rng.permutation(second.label)) >= observed
    n = np.multiply.outer(*(each.draws_per_label(each.label) for each in (first, second))).ravel()
    return n, observed, (1 + reached) / (1 + number), number
