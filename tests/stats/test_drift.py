"""Two-sample tests: uniform without drift, small with it."""

import numpy as np
import pytest

from assay.core.errors import NonFiniteError, ShapeError
from assay.stats.drift import classifier_p_value, ks_p_value, mmd_p_value


def test_mmd_agrees_with_a_literal_sum() -> None:
    rng = np.random.default_rng(0)
    known, new = rng.standard_normal((6, 2)), rng.standard_normal((4, 2)) + 1
    rows = np.concatenate([known, new])
    squares = ((rows[:, None] - rows[None]) ** 2).sum(-1)
    median = np.median([squares[i, j] for i in range(10) for j in range(i)])

    def discrepancy(first: list[int]) -> float:
        second = [i for i in range(10) if i not in first]
        kernel = np.exp(-squares / (2 * median))
        return float(
            kernel[np.ix_(first, first)].mean()
            + kernel[np.ix_(second, second)].mean()
            - 2 * kernel[np.ix_(first, second)].mean()
        )

    draws = np.random.default_rng(5)
    labels = np.array([True] * 6 + [False] * 4)
    found = discrepancy(np.flatnonzero(labels).tolist())
    permuted = [discrepancy(np.flatnonzero(draws.permutation(labels)).tolist()) for _ in range(199)]
    expected = (1 + sum(each >= found - 1e-12 for each in permuted)) / 200
    assert mmd_p_value(known, new, rng=np.random.default_rng(5)) == pytest.approx(expected)


@pytest.mark.parametrize("test", [mmd_p_value, classifier_p_value])
def test_no_drift_is_rarely_called_one_and_a_drift_is(test) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(1)
    null = [test(rng.standard_normal((40, 3)), rng.standard_normal((40, 3)), rng=rng) for _ in range(60)]
    assert np.mean(np.array(null) <= 0.05) <= 0.15
    assert test(rng.standard_normal((60, 3)), rng.standard_normal((60, 3)) + 1, rng=rng) < 0.02


def test_ks_on_numbers() -> None:
    rng = np.random.default_rng(2)
    assert ks_p_value(rng.random(80), rng.random(80) + 0.5) < 1e-3
    assert ks_p_value(np.arange(5.0), np.arange(5.0)) == 1


def test_equal_vectors_do_not_differ() -> None:
    assert mmd_p_value(np.ones((4, 2)), np.ones((3, 2)), rng=np.random.default_rng(0)) == 1


def test_bad_samples_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ShapeError, match=r"\(4, 2\) and \(1, 2\)"):
        mmd_p_value(np.ones((4, 2)), np.ones((1, 2)), rng=rng)
    with pytest.raises(NonFiniteError, match="the new sample"):
        classifier_p_value(np.ones((4, 2)), np.full((4, 2), np.nan), rng=rng)
