"""Descriptions of many values at once: percentiles, largest values, values by the labels of their inputs.

Everything here describes the sample. What it says about the distribution behind it is the business of
`assay.stats.certificates`.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, Real, Shaped

from assay.core.errors import DegenerateDataWarning, ShapeError, check_least
from assay.core.record import Record
from assay.stats.estimate import finite


PERCENTILES = (0.25, 0.5, 0.75, 0.95, 0.99, 0.999, 0.9999)
_ONE = 1 - 1e-9  # value expected beyond a percentile, since 1 - 0.9999 is a little less than 1 / 10,000


# ------------------------------------------------------------------------------------------------- summary


@dataclass(frozen=True, kw_only=True)
class Summary(Record):
    """Moments and percentiles of a sample.

    Attributes:
        absolute: `count`, `mean`, `std` (ddof 1; NaN for one value), `min`, `p25`, `p50`, `p75`, `p95`,
            `p99`, `p99.9`, `p99.99`, `max`, in the unit of the values.
        z: (value - mean) / std of `min` to `max`; NaN where std is 0 or undefined.
        standard_error: Of the mean; for a matrix with shared rows and columns, see `mean_standard_error`.
        exceedance: Threshold to the share of values above it.
        few_tail_points: Percentiles of which the sample holds less than one value beyond, on average:
            estimates by name only.
    """

    absolute: Mapping[str, int | float | None]
    z: Mapping[str, float | None]
    standard_error: float
    exceedance: Mapping[float, float] = field(default_factory=dict)
    few_tail_points: tuple[str, ...] = ()


def summarize(
    values: Real[np.ndarray, "..."], *, thresholds: Sequence[float] = (), n_distinct: int | None = None
) -> Summary:
    """Moments, percentiles and z-scores of all values.

    Args:
        values: Finite, any shape; a matrix is taken as the crossing of its rows and columns for the standard
            error.
        thresholds: Shares of values strictly above these are reported too.
        n_distinct: Distinct values, or distinct units that the values belong to, as `count`: percentiles that
            they do not resolve, (1 - p) `n_distinct` below 1, are then None.

    Returns:
        Percentiles by linear interpolation between order statistics (type 7). They estimate; upper bounds at
        a stated confidence come from `certificate`.

    Raises:
        InputError: No values.
        NonFiniteError: NaN or infinite values.

    Example:
        >>> summary = summarize(np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
        >>> summary.absolute["p25"], summary.absolute["p95"], round(summary.z["max"], 6)
        (1.0, 3.8, 1.264911)
    """
    checked = finite(values)
    ends = {"min": 0.0, **{f"p{100 * share:.10g}": share for share in PERCENTILES}, "max": 1.0}
    ranked = dict(zip(ends, np.quantile(checked, list(ends.values())).tolist(), strict=True))
    mean, std = float(checked.mean()), float(checked.std(ddof=1)) if checked.size > 1 else math.nan
    if ranked["min"] == ranked["max"]:  # rounding would leave a spread of some 1e-17
        mean, std = ranked["min"], 0.0 * std
    z = {key: (value - mean) / std if std > 0 else math.nan for key, value in ranked.items()}
    count = checked.size if n_distinct is None else n_distinct
    few = tuple(key for key, share in ends.items() if share < 1 and (1 - share) * count < _ONE)
    left_out: dict[str, None] = {} if n_distinct is None else dict.fromkeys(few)
    return Summary(
        absolute={"count": count, "mean": mean, "std": std, **ranked, **left_out},
        z={**z, **left_out},
        standard_error=mean_standard_error(checked),
        exceedance={float(each): float((checked > each).mean()) for each in thresholds},
        few_tail_points=few,
    )


def mean_standard_error(values: Real[np.ndarray, "..."]) -> float:
    """Standard error of the mean of independent values, or of the crossing of two independent samples.

    One axis: sd / root n. A matrix `[n_rows, n_columns]`, rows and columns drawn independently:
    root(S_row^2 / n_rows + S_column^2 / n_columns), with the sample variances of row and column means.

    Returns:
        NaN where a variance takes two values and there is one.

    Notes:
        The two-way form counts noise of single entries twice, so it errs on the large side where rows and
        columns share little.

    Example:
        >>> mean_standard_error(np.array([[0.0, 2.0], [2.0, 4.0]]))  # both variances 2, over 2 each
        1.4142135623730951
    """
    checked = finite(values)
    if checked.ndim not in (1, 2):
        raise ShapeError(f"values have shape {checked.shape}; expected a vector or a matrix")
    if min(checked.shape) < 2:
        return math.nan
    means = [checked] if checked.ndim == 1 else [checked.mean(axis=1), checked.mean(axis=0)]
    return math.sqrt(sum(float(each.var(ddof=1)) / len(each) for each in means))


# -------------------------------------------------------------------------------------------- largest values


def top_indices(values: Real[np.ndarray, "..."], k: int) -> Int64[np.ndarray, " k"]:
    """Flat indices of the k largest values, largest first; ties by ascending index.

    In a matrix `[n_clean, n_corrupted]` ascending flat index means (clean, corrupted) ascending;
    `numpy.unravel_index` gives the two back.

    Args:
        values: Finite, any shape.
        k: How many, at least 1; all of them, with a `DegenerateDataWarning`, where there are fewer.

    Example:
        >>> top_indices(np.array([1.0, 3.0, 2.0, 3.0]), 3)
        array([1, 3, 2])
    """
    flat = finite(values).ravel()
    check_least(1, k=k)
    if k > flat.size:
        message = f"{k} largest values were requested, but there are only {flat.size}; all are returned"
        warnings.warn(message, DegenerateDataWarning, stacklevel=2)
        k = flat.size
    least = np.partition(flat, flat.size - k)[flat.size - k]
    candidates = np.flatnonzero(flat >= least)  # ascending, so a stable sort leaves ties in this order
    order = candidates[np.argsort(-flat[candidates], kind="stable")][:k]
    return np.asarray(order, dtype=np.int64)


# ---------------------------------------------------------------------------------------------------- cells


def coded(
    labels: Shaped[np.ndarray, "..."], shape: tuple[int, ...]
) -> tuple[tuple[Any, ...], Int64[np.ndarray, "..."]]:
    """The labels that occur, ascending, and which of them each entry bears, in the shape of the labels."""
    np.broadcast_to(labels, shape)  # or numpy says which shapes do not fit
    known, codes = np.unique(labels, return_inverse=True)
    return tuple(known.tolist()), codes.reshape(labels.shape).astype(np.int64)


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
    row_labels, row_of = coded(rows, checked.shape)
    column_labels, column_of = ((None,), 0) if columns is None else coded(columns, checked.shape)
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
        mean=shares_of(sums, counts).reshape(shape),
        quantiles=table.reshape(-1, *shape),
    )


def shares_of(sums: Real[np.ndarray, "..."], n: Real[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Sums over counts, NaN for empty cells. Equal ratios of whole numbers are equal floats, so ties stay."""
    return np.asarray(np.divide(sums, n, out=np.full(np.shape(n), np.nan), where=n > 0))
