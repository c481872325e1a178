"""Spectra of features that come in batches, against those of the whole table."""

import numpy as np
import pytest
from scipy import linalg

from assay.analyses.generalization.spectra import SpectrumSums, image_groups


def fed(features: np.ndarray, size: int, seed: int = 0) -> SpectrumSums:
    sums = SpectrumSums(len(features), seed)
    for rows in np.array_split(np.arange(len(features)), max(1, len(features) // size)):
        sums.add(rows, features[rows])
    return sums


@pytest.mark.parametrize(("n", "width"), [(900, 12), (6, 12), (30, 12), (7000, 3)])
def test_spectra_are_those_of_the_whole_table(n: int, width: int) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(3.0, 1.0, size=(n, width)) @ np.diag(0.3 ** np.arange(width))  # down to 1e-6
    found = fed(features, 50).spectra()
    sets = [features, *(np.delete(features, group, axis=0) for group in image_groups(n, 0))]
    for row, table in enumerate(sets):
        raw = found.raw[row][np.isfinite(found.raw[row])]
        np.testing.assert_allclose(raw, linalg.svdvals(table), rtol=1e-8, atol=1e-14 * raw[0])
        centred = linalg.svdvals(table - table.mean(0))
        theirs = found.centred[row][np.isfinite(found.centred[row])]
        np.testing.assert_allclose(theirs, centred, rtol=1e-8, atol=1e-13 * raw[0])


def test_small_singular_values_survive_a_large_mean() -> None:
    features = np.random.default_rng(2).normal(size=(2000, 2)) * [1.0, 1e-7] + [0.0, 100.0]
    found = fed(features, 64).spectra()
    expected = linalg.svdvals(features - features.mean(0))
    np.testing.assert_allclose(found.centred[0], expected, rtol=1e-5)  # 1e-7 beside 100, in 16 digits
