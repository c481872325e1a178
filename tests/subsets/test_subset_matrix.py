"""Answers as bits and as scores: by hand, and what NumPy computes."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from assay.analyses.subsets import matrix
from assay.analyses.subsets.matrix import EXACT_WEIGHTS, Answers, whole_weights


HAND = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1]], dtype=np.uint8)


def random_matrix(n_models, n_examples, seed=0, share=0.6):
    return (np.random.default_rng(seed).random((n_models, n_examples)) < share).astype(np.uint8)


def test_three_models_by_hand():
    answers = Answers.of(HAND)
    assert (answers.n_models, answers.n_examples) == (3, 3)
    assert answers.weigh(np.array([[1.0, 2.0, 4.0], [1.0, 0.0, -1.0]])).tolist() == [[5, 4, 7], [0, -1, 0]]
    assert answers.count(np.array([0, 2])).tolist() == [2, 1, 2]
    assert answers.count(np.array([], dtype=np.int64)).tolist() == [0, 0, 0]
    assert Answers.of(HAND, np.array([2, 0])).columns(np.array([2, 1])).tolist() == [[1, 1], [1, 0]]


@settings(max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 41), st.integers(1, 150)),
    k=st.integers(1, 9),
    small=st.booleans(),
    fast=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_answers_compute_what_numpy_does(shape, k, small, fast, seed):
    """In large blocks and small ones; by tables of sums, as bytes and as float32."""
    generator = np.random.default_rng(seed)
    correct = random_matrix(*shape, seed, generator.random())
    models = generator.integers(0, shape[0], generator.integers(1, shape[0] + 1))
    examples = generator.permutation(shape[1])[: generator.integers(0, shape[1] + 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix, "bytes_are_fast", lambda: fast)
        if small:
            for name, size in (("_COLUMNS", 7), ("_ENTRIES", 100)):
                patch.setattr(matrix, name, size)
        answers = Answers.of(correct, models)
        weights = np.stack([whole_weights(each)[0] for each in generator.normal(size=(k, len(models)))])
        np.testing.assert_array_equal(answers.weigh(weights), weights @ correct[models])
        np.testing.assert_array_equal(answers.count(examples), correct[models][:, examples].sum(axis=1))
        columns = answers.columns(examples)
    np.testing.assert_array_equal(columns.numpy(), correct[models][:, examples])
    assert columns.is_contiguous()  # products have other bits where columns lie together


def test_scores_are_summed_one_product_at_a_time():
    scores = np.random.default_rng(0).random((30, 200)).astype(np.float32)
    answers = Answers.of(scores, np.arange(5, 25))
    weights = np.random.default_rng(1).integers(-500, 500, (3, 20)).astype(float)
    together = answers.weigh(weights)
    np.testing.assert_allclose(together, weights @ scores[5:25], rtol=1e-4, atol=1e-2)
    for row, each in zip(together, weights, strict=True):
        assert answers.weigh(each[None])[0].tobytes() == row.tobytes()
    np.testing.assert_allclose(answers.count(np.arange(0, 200, 3)), scores[5:25, ::3].sum(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(answers.columns(np.array([7, 3])).numpy(), scores[5:25][:, [7, 3]])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300))
def test_whole_weights_are_summed_exactly_and_lie_near_the_given_ones(weights):
    weights = np.array(weights)
    assume(np.abs(weights).sum() > 1e-280 or not weights.any())
    whole, scale = whole_weights(weights)
    assert np.abs(whole).sum() <= EXACT_WEIGHTS
    assert np.array_equal(whole, np.rint(whole))
    # Half a unit, and the rounding of the product in float64.
    assert np.all(np.abs(whole - weights * scale) <= 0.5 + 1e-9 * np.abs(whole))
    again, one = whole_weights(whole)
    assert one == 1
    assert np.array_equal(again, whole)


@pytest.mark.parametrize("size", [0.0, 1e-308])
def test_weights_of_zero_and_below_any_scale_are_zero(size):
    whole, scale = whole_weights(np.full(3, size))
    assert (whole.tolist(), scale) == ([0, 0, 0], 1)
