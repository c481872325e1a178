"""Singular values of features that stream past: of all images, and without each of twenty groups of them."""

from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float64, Int64

from assay.core.random import stream


GROUPS = 20  # of images left out in turn, for metrics that are too slow or too skewed to resample
_WAITING = 256  # rows of a group that are gathered before they are folded into its factor


def image_groups(n: int, seed: int) -> list[Int64[np.ndarray, " k"]]:
    """Random disjoint groups of rows, of equal sizes up to one."""
    shuffled = stream(seed, "rank/groups").permutation(n)
    return [np.asarray(each) for each in np.array_split(shuffled, min(GROUPS, n))]


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectra:
    """Singular values of features, descending; NaN fills rows that have fewer.

    Attributes:
        raw: Of the features, `[1 + groups, n_features]`: of all images, then without each group of
            `image_groups`.
        centred: Likewise, of the features less their mean over the same images.
    """

    raw: Float64[np.ndarray, "sets d"]
    centred: Float64[np.ndarray, "sets d"]


class SpectrumSums:
    """Features of disjoint groups of images, fed batch by batch, as one triangular factor per group.

    With T = [1 F] the features of a group behind a column of ones, R of T = QR has the products T'T = R'R, so
    factors below each other replace images below each other. The column of ones takes the mean off: all but
    the first row and column of R are a factor of the centred features. A factor keeps small singular values,
    which products of features would lose to rounding.

    Args:
        n: Images in all.
        seed: Of the groups.

    Notes:
        Holds at most 20 (d + 256) (d + 1) numbers of 8 bytes for d features, never more than the features.
    """

    def __init__(self, n: int, seed: int) -> None:
        self._groups = image_groups(n, seed)
        self._of = np.empty(n, dtype=np.int64)
        for place, group in enumerate(self._groups):
            self._of[group] = place
        self._factors: list[Float64[np.ndarray, "rows columns"]] = []

    def add(self, rows: Int64[np.ndarray, " b"], features: Float64[np.ndarray, "b d"]) -> None:
        """The features of some images, by their row number."""
        table = np.hstack([np.ones((len(features), 1)), features])
        if not self._factors:
            self._factors = [table[:0]] * len(self._groups)
        for place in np.unique(self._of[rows]):
            more = np.vstack([self._factors[place], table[self._of[rows] == place]])
            full = len(more) > table.shape[1] + _WAITING
            self._factors[place] = _factor(more) if full else more

    def spectra(self) -> Spectra:
        """Of what was fed."""
        nothing = self._factors[0][:0]
        before, after = [nothing], [nothing]
        for each in self._factors:
            before.append(_factor(np.vstack([before[-1], each])))
        for each in self._factors[:0:-1]:
            after.append(_factor(np.vstack([after[-1], each])))
        without = [_factor(np.vstack(pair)) for pair in zip(before[:-1], reversed(after), strict=True)]
        raw = [each[:, 1:] for each in (before[-1], *without)]
        centred = [np.vstack([np.zeros_like(each[:1]), each[1:]]) for each in raw]
        return Spectra(raw=_singular_values(raw), centred=_singular_values(centred))


def _factor(table: Float64[np.ndarray, "rows columns"]) -> Float64[np.ndarray, "k columns"]:
    """R of a table = Q R."""
    return np.asarray(np.linalg.qr(table, mode="r"))


def _singular_values(factors: list[Float64[np.ndarray, "_ d"]]) -> Float64[np.ndarray, "sets d"]:
    found = np.full((len(factors), factors[0].shape[1]), np.nan)
    for row, factor in zip(found, factors, strict=True):
        row[: min(factor.shape)] = scipy.linalg.svdvals(factor)
    return found
