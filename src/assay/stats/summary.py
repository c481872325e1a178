"""Descriptions of many values at once: percentiles, histogram, largest values.

Everything here describes the sample. What it says about the distribution behind it is the business of
`assay.stats.certificates`.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from jaxtyping import Float64, Int64, Real

from assay.core.errors import DegenerateDataWarning, InputError, ShapeError, check_least
from assay.core.record import Record
from assay.stats._checks import finite
from assay.stats.association import spearman


PERCENTILES: Mapping[str, float] = MappingProxyType(
    {"p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
)
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
        few = tuple(key for key, share in PERCENTILES.items() if (1 - share) * n_distinct < _ONE)
        left_out: dict[str, None] = dict.fromkeys(few)
        others = tuple(code for code in self.warnings if code != "few_tail_points")
        return replace(
            self,
            absolute={**self.absolute, "count": n_distinct, **left_out},
            z={**self.z, **left_out},
            few_tail_points=few,
            warnings=("few_tail_points",) * bool(few) + others,
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
    ends = {"min": 0.0, **PERCENTILES, "max": 1.0}
    ranked = dict(zip(ends, np.quantile(checked, list(ends.values())).tolist(), strict=True))
    mean, std = float(checked.mean()), float(checked.std(ddof=1)) if checked.size > 1 else math.nan
    if ranked["min"] == ranked["max"]:  # rounding would leave a spread of some 1e-17
        mean, std = ranked["min"], 0.0 * std
    few = tuple(key for key in ("p99.9", "p99.99") if (1 - PERCENTILES[key]) * checked.size < _ONE)
    return Summary(
        absolute={"count": checked.size, "mean": mean, "std": std, **ranked},
        z={key: (value - mean) / std if std > 0 else math.nan for key, value in ranked.items()},
        standard_error=mean_standard_error(checked),
        exceedance={float(each): float((checked > each).mean()) for each in thresholds},
        few_tail_points=few,
        warnings=("few_tail_points",) * bool(few) + ("no_spread",) * (not std > 0),
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
    values: Real[np.ndarray, "..."], *, n_bins: int = 100, maximum: float | None = None
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
    end = float(checked.max()) if maximum is None else maximum
    if checked.min() < 0 or checked.max() > end:
        raise InputError(
            f"values run from {checked.min():g} to {checked.max():g}; the histogram from 0 to {end:g}"
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
        message = f"{k} largest values were requested, but there are only {flat.size}; all are returned"
        warnings.warn(message, DegenerateDataWarning, stacklevel=2)
        k = flat.size
    least = np.partition(flat, flat.size - k)[flat.size - k]
    candidates = np.flatnonzero(flat >= least)  # ascending, so a stable sort leaves ties in this order
    order = candidates[np.argsort(-flat[candidates], kind="stable")][:k]
    return np.asarray(order, dtype=np.int64)
