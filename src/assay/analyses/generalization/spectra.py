"""Singular values of features of all images, and without each of twenty groups of them."""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import scipy
from jaxtyping import Float64, Int64

from assay.core.random import stream


GROUPS = 20  # of images left out in turn, for metrics that are too slow or too skewed to resample


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
    """Features of images, fed batch by batch, and their spectra.

    With T = [1 F] the features of a group behind a column of ones, R of T = QR has the products T'T = R'R, so
    factors below each other replace images below each other. The column of ones takes the mean off: all but
    the first row and column of R are a factor of the centred features. A factor keeps small singular values,
    which products of features would lose to rounding.

    Args:
        n: Images in all.
        seed: Of the groups.
    """

    def __init__(self, n: int, seed: int) -> None:
        self._groups = image_groups(n, seed)
        self._table = np.ones((n, 1))

    def add(self, rows: Int64[np.ndarray, " b"], features: Float64[np.ndarray, "b d"]) -> None:
        """The features of some images, by their row number."""
        if self._table.shape[1] == 1:
            self._table = np.pad(self._table, ((0, 0), (0, features.shape[1])))
        self._table[rows, 1:] = features

    def spectra(self) -> Spectra:
        """Of what was fed."""
        parts, nothing = [self._table[group] for group in self._groups], self._table[:0]
        before = [*accumulate(parts, _joined, initial=nothing)]
        after = [*accumulate(reversed(parts), _joined, initial=nothing)]
        left_out = [_joined(*pair) for pair in zip(before[:-1], after[-2::-1], strict=True)]
        found = np.full((2, 1 + len(left_out), self._table.shape[1] - 1), np.nan)
        for place, factor in enumerate((before[-1], *left_out)):
            raw = factor[:, 1:]
            centred = np.vstack([np.zeros_like(raw[:1]), raw[1:]])
            for row, table in zip(found[:, place], (raw, centred), strict=True):
                row[: min(table.shape)] = scipy.linalg.svdvals(table)
        return Spectra(raw=found[0], centred=found[1])


def _joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """R of two tables below each other = Q R."""
    return np.asarray(np.linalg.qr(np.vstack([first, second]), mode="r"))
