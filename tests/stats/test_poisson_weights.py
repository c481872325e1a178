"""Weights of a bootstrap along a stream: distribution, independence, and what they depend on."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.stats import poisson_weights


def test_counts_have_the_poisson_distribution() -> None:
    weights = poisson_weights(np.arange(5000), 200)
    shares = np.bincount(weights.astype(int).ravel(), minlength=6)[:6] / weights.size
    expected = [math.exp(-1) / math.factorial(k) for k in range(6)]
    # A share over a million draws has a standard error of at most 0.0005.
    assert shares == pytest.approx(expected, abs=0.002)
    assert weights.mean() == pytest.approx(1, abs=0.004)
    assert weights.var() == pytest.approx(1, abs=0.008)


@pytest.mark.parametrize("other", ["ids", "resamples", "seeds"])
def test_neighbours_are_independent(other: str) -> None:
    weights = poisson_weights(np.arange(1001), 301)
    pairs = {
        "ids": (weights[:, 1:], weights[:, :-1]),
        "resamples": (weights[1:], weights[:-1]),
        "seeds": (weights, poisson_weights(np.arange(1001), 301, seed=1)),
    }
    first, second = (each.ravel() for each in pairs[other])
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(first.size)


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20), st.randoms(), st.integers(-5, 2**40))
def test_a_weight_follows_its_id(ids: list[int], random: object, seed: int) -> None:
    shuffled = list(ids)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # a random.Random
    whole = poisson_weights(np.array(ids), 7, seed=seed)
    by_id = {each: whole[:, place] for place, each in enumerate(ids)}
    for place, each in enumerate(shuffled):
        alone = poisson_weights(np.array(shuffled), 7, seed=seed)[:, place]
        assert np.array_equal(alone, by_id[each])
        assert np.array_equal(poisson_weights(np.array([each]), 7, seed=seed)[:, 0], alone)


def test_more_resamples_begin_with_the_same() -> None:
    ids = np.array([4, 9])
    assert np.array_equal(poisson_weights(ids, 9)[:5], poisson_weights(ids, 5))


def test_what_cannot_be_weighed() -> None:
    with pytest.raises(InputError, match="n_resamples is 0; expected at least 1"):
        poisson_weights(np.arange(3), 0)
