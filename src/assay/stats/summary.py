"""Descriptions of many values at once: percentiles, histogram, largest values, quantiles per group.

Everything here describes the sample. What it says about the distribution behind it is the business of
`assay.stats.certificates`.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, Real, Shaped

from assay.core.errors import DegenerateDataWarning, InputError, ShapeError, check_least
from assay.core.record import Record
from assay.stats._checks import coded, finite
from assay.stats.association import spearman


PERCENTILES: Mapping[str, float] = MappingProxyType(
    {"p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
)
# Below these counts not a single value is expected beyond the percentile.
_TAIL_COUNTS: Mapping[str, int] = MappingProxyType({"p99.9": 1_000, "p99.99": 10_000})
N_BINS = 100


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
        warnings: Codes, `few_tail_points` and `no_spread`.
    """

    absolute: Mapping[str, int | float | None]
    z: Mapping[str, float | None]
    standard_error: float
    exceedance: Mapping[float, float] = field(default_factory=dict)
    few_tail_points: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def resolved(self, n_distinct: int) -> "Summary":
        """The same of so many distinct values: percentiles that they do not resolve are None.

        Args:
            n_distinct: Distinct values, or distinct units that the values belong to. Percentile p stays where
                (1 - p) n_distinct is at least 1.

        Returns:
            With `n_distinct` as `count`; the others are in `few_tail_points`.
        """
        # A tolerance, since 1 - 0.9999 is a little less than 1 / 10,000.
        few = tuple(key for key, share in PERCENTILES.items() if (1 - share) * n_distinct < 1 - 1e-9)
        left_out: dict[str, None] = dict.fromkeys(few)
        others = tuple(code for code in self.warnings if code != "few_tail_points")
        codes = ("few_tail_points", *others) if few else others
        return replace(
            self,
            absolute={**self.absolute, "count": n_distinct, **left_out},
            z={**self.z, **left_out},
            few_tail_points=few,
            warnings=codes,
        )


def summarize(values: Real[np.ndarray, "..."], *, thresholds: Sequence[float] = ()) -> Summary:
    """Moments, percentiles and z-scores of all values.

    Args:
        values: Finite, any shape; a matrix is taken as the crossing of its rows and columns for the standard
            error.
        thresholds: Shares of values strictly above these are reported too.

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
    lowest, highest = float(checked.min()), float(checked.max())
    if lowest == highest:  # rounding would leave a spread of some 1e-17
        mean, std = lowest, 0.0 if checked.size > 1 else math.nan
    else:
        mean, std = float(checked.mean()), float(checked.std(ddof=1))
    quantiles = np.quantile(checked, list(PERCENTILES.values()))
    ranked = {
        "min": lowest,
        **{key: float(value) for key, value in zip(PERCENTILES, quantiles, strict=True)},
        "max": highest,
    }
    few = tuple(key for key, needed in _TAIL_COUNTS.items() if checked.size < needed)
    codes = {"few_tail_points": bool(few), "no_spread": not std > 0}
    return Summary(
        absolute={"count": checked.size, "mean": mean, "std": std, **ranked},
        z={key: (value - mean) / std if std > 0 else math.nan for key, value in ranked.items()},
        standard_error=mean_standard_error(checked),
        exceedance={
            float(threshold): float((checked > threshold).mean()) for threshold in dict.fromkeys(thresholds)
        },
        few_tail_points=few,
        warnings=tuple(code for code, applies in codes.items() if applies),
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


@dataclass(frozen=True, kw_only=True)
class AnchorComparison:
    """A circuit's values beside those of an anchor on the same pairs.

    Attributes:
        ratio_of_means: Mean of the values over mean of the anchor's; NaN where the latter is 0.
        share_above: Share of pairs whose value exceeds the anchor's.
        spearman: Rank correlation of the two; NaN where either is constant.
    """

    ratio_of_means: float
    share_above: float
    spearman: float


def compare_with_anchor(values: Real[np.ndarray, "..."], anchor: Real[np.ndarray, "..."]) -> AnchorComparison:
    """How values compare, pair by pair, with those of an anchor such as the empty circuit.

    Args:
        values: Finite, any shape, e.g. divergence of the circuit per pair.
        anchor: The same pairs' values of the anchor.

    Example:
        >>> compare_with_anchor(np.array([1.0, 2.0, 6.0]), np.array([2.0, 4.0, 3.0]))
        AnchorComparison(ratio_of_means=1.0, share_above=0.3333333333333333, spearman=0.5)
    """
    ours, theirs = finite(values), finite(anchor, "anchor values")
    if ours.shape != theirs.shape:
        raise ShapeError(
            f"values have shape {ours.shape}, the anchor {theirs.shape}; expected the same pairs"
        )
    reference = float(theirs.mean())
    return AnchorComparison(
        ratio_of_means=float(ours.mean()) / reference if reference else math.nan,
        share_above=float((ours > theirs).mean()),
        spearman=spearman(ours.ravel(), theirs.ravel()),
    )


# ------------------------------------------------------------------------------------------------- histogram


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts in bins of equal width.

    Attributes:
        counts: Values per bin; each bin holds its left edge, the last one both.
        edges: `[n_bins + 1]` ascending; both 0 for the single bin of values that are all 0.
    """

    counts: Int64[np.ndarray, " n_bins"]
    edges: Float64[np.ndarray, " n_edges"]


def histogram(
    values: Real[np.ndarray, "..."], *, n_bins: int = N_BINS, maximum: float | None = None
) -> Histogram:
    """Counts of non-negative values in equal bins on [0, maximum], the last bin closed.

    Args:
        values: Finite and non-negative, any shape.
        n_bins: Number of bins, at least 1; there is one where the maximum is 0.
        maximum: Right end, at least the largest value: give the largest over several samples to compare them.
            None takes the sample's own.

    Example:
        >>> histogram(np.array([0.0, 0.5, 1.0, 2.0]), n_bins=2).counts
        array([2, 2])
    """
    checked = finite(values)
    lowest, highest = float(checked.min()), float(checked.max())
    if lowest < 0:
        raise InputError(
            f"the smallest value is {lowest:g}; the histogram starts at 0, so values must not be negative"
        )
    check_least(1, n_bins=n_bins)
    end = highest if maximum is None else maximum
    if not highest <= end < math.inf:
        raise InputError(
            f"maximum is {end}; expected a finite number of at least the largest value, {highest:g}"
        )
    if end == 0:
        return Histogram(counts=np.array([checked.size]), edges=np.zeros(2))
    counts, edges = np.histogram(checked, bins=n_bins, range=(0.0, end))
    return Histogram(counts=counts.astype(np.int64), edges=edges)


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
        warnings.warn(
            f"{k} largest values were requested, but there are only {flat.size}; all are returned",
            DegenerateDataWarning,
            stacklevel=2,
        )
        k = flat.size
    least = np.partition(flat, flat.size - k)[flat.size - k]
    candidates = np.flatnonzero(flat >= least)  # ascending, so a stable sort leaves ties in this order
    order = candidates[np.argsort(-flat[candidates], kind="stable")][:k]
    return np.asarray(order, dtype=np.int64)


# ------------------------------------------------------------------------------------------- values by group


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
    if not quantiles or not all(0 <= each <= 1 for each in quantiles):
        raise InputError(f"quantiles are {tuple(quantiles)}; expected at least one fraction in [0, 1]")
    row_labels, row_of = coded(rows, checked.shape, "rows")
    column_labels, column_of = ((None,), 0) if columns is None else coded(columns, checked.shape, "columns")
    shape = (len(row_labels), len(column_labels))
    cell = np.broadcast_to(row_of * shape[1] + column_of, checked.shape).ravel()
    counts = np.bincount(cell, minlength=shape[0] * shape[1])
    filled = counts > 0
    sums = np.bincount(cell, weights=checked.ravel(), minlength=len(counts))
    mean = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=filled)

    # By value, then stably by cell in the smallest integers that hold it, which numpy sorts in linear time.
    by_value = np.argsort(checked, axis=None)
    narrow = cell.astype(np.min_scalar_type(len(counts)))[by_value]
    by_cell = by_value[np.argsort(narrow, kind="stable")]
    ordered = checked.ravel()[by_cell]
    starts = np.cumsum(counts) - counts
    table = np.full((len(quantiles), len(counts)), np.nan)
    for at, share in enumerate(quantiles):
        place = (counts[filled] - 1) * share
        low = np.floor(place).astype(np.int64)
        below = ordered[starts[filled] + low]
        above = ordered[starts[filled] + np.minimum(low + 1, counts[filled] - 1)]
        table[at, filled] = below + (above - below) * (place - low)
    return CellTable(
        rows=row_labels,
        columns=column_labels,
        quantiles_at=tuple(float(share) for share in quantiles),
        n=counts.reshape(shape).astype(np.int64),
        mean=mean.reshape(shape),
        quantiles=table.reshape(-1, *shape),
    )
