"""Layouts of the correctness matrix: what they compute, and that they agree."""

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from assay.analyses.subsets import CorrectnessData, layouts, oodselect, placement
from assay.analyses.subsets.document import _halves
from assay.analyses.subsets.layouts import EXACT_WEIGHTS, DenseMatrix, PackedMatrix, whole_weights
from assay.analyses.subsets.placement import DeviceMatrix, as_matrix, for_many
from assay.analyses.subsets.problem import computed
from assay.core.errors import FreeMemoryError, InputError, ShapeError


NAMES = ("dense", "packed", "accelerator")
HAND = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1]], dtype=np.uint8)


def random_matrix(n_models, n_examples, seed=0, share=0.5):
    return (np.random.default_rng(seed).random((n_models, n_examples)) < share).astype(np.uint8)


def matrix_of(correct, layout, models=None):
    return as_matrix(correct, models, layout=layout, device="cpu" if layout == "accelerator" else None)


@st.composite
def matrices(draw):
    n_models, n_examples = draw(st.integers(1, 41)), draw(st.integers(1, 150))
    return random_matrix(n_models, n_examples, draw(st.integers(0, 2**32 - 1)), draw(st.floats(0, 1)))


@pytest.mark.gpu
@settings(deadline=None, max_examples=60)
@given(matrices(), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_gpu_gives_what_the_cpu_gives(correct, k, seed):
    generator = np.random.default_rng(seed)
    weights = generator.normal(size=(k, len(correct)))
    examples = generator.integers(0, correct.shape[1], 2 * correct.shape[1])
    there, here = DeviceMatrix(correct, device="cuda"), PackedMatrix.pack(correct)
    whole = np.stack([whole_weights(each)[0] for each in weights])
    np.testing.assert_array_equal(there.weigh_many(whole), here.weigh_many(whole))
    np.testing.assert_array_equal(there.count(examples), here.count(examples))
    np.testing.assert_array_equal(there.gained(examples[::3], examples), here.gained(examples[::3], examples))
    np.testing.assert_array_equal(there.column_sums(), here.column_sums())
    np.testing.assert_array_equal(there.dense(examples), here.dense(examples))


# ------------------------------------------------------------------------------------------------ by hand


@pytest.mark.parametrize("layout", NAMES)
def test_three_models_by_hand(layout):
    matrix = matrix_of(HAND, layout)
    assert (matrix.name, matrix.n_models, matrix.n_examples) == (layout, 3, 3)
    assert matrix.weigh(np.array([1.0, 2.0, 4.0])).tolist() == [5, 4, 7]
    assert matrix.count(np.array([0, 2])).tolist() == [2, 1, 2]
    assert matrix.count(np.array([0, 2, 2])).tolist() == [3, 2, 3]  # twice counts twice
    assert matrix.count(np.array([], dtype=np.int64)).tolist() == [0, 0, 0]
    assert matrix.column_sums().tolist() == [2, 1, 3]
    assert matrix.dense().tolist() == HAND.tolist()
    assert matrix.dense(np.array([2, 0])).tolist() == HAND[:, [2, 0]].tolist()


def test_bits_lie_with_the_first_model_lowest():
    packed = PackedMatrix.pack(HAND)
    assert packed.bits.tolist() == [[0b101, 0b100, 0b111]]
    assert packed.nbytes == 3


def test_the_thousandth_model_is_in_the_last_bit_of_its_byte():
    correct = np.zeros((1000, 2), dtype=np.uint8)
    correct[999, 1] = 1
    bits = PackedMatrix.pack(correct).bits
    assert bits.shape == (125, 2)
    assert bits[124].tolist() == [0, 128]
    assert bits[:124].sum() == 0


# ------------------------------------------------------------------------------------------------ agreement


@pytest.mark.parametrize("layout", NAMES)
@settings(max_examples=40)
@given(correct=matrices(), data=st.data())
def test_every_layout_computes_what_numpy_does(layout, correct, data):
    n_models, n_examples = correct.shape
    matrix = matrix_of(correct, layout)
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    weights = generator.standard_normal(n_models)
    # Sums of at most 41 numbers of size 1 in float32; on a device, rounded to 2**-24 of their sum.
    np.testing.assert_allclose(matrix.weigh(weights), weights @ correct, atol=1e-4)
    whole = whole_weights(weights)[0]
    assert np.array_equal(matrix.weigh(whole), whole @ correct)
    examples = generator.integers(0, n_examples, data.draw(st.integers(0, 2 * n_examples)))
    assert np.array_equal(matrix.count(examples), correct[:, examples].sum(axis=1))
    leaving = generator.integers(0, n_examples, data.draw(st.integers(0, n_examples)))
    gained = correct[:, examples].sum(axis=1, dtype=int) - correct[:, leaving].sum(axis=1, dtype=int)
    assert np.array_equal(matrix.gained(examples, leaving), gained)
    assert np.array_equal(matrix.column_sums(), correct.sum(axis=0))
    assert np.array_equal(matrix.dense(), correct)
    assert np.array_equal(matrix.dense(examples), correct[:, examples])
    assert matrix.dense(examples).flags.c_contiguous  # products have other bits where columns lie together
    models = generator.integers(0, n_models, data.draw(st.integers(1, n_models)))
    taken = matrix_of(correct, layout, models)
    assert taken.name == layout
    assert np.array_equal(taken.dense(), correct[models])
    assert np.array_equal(taken.count(examples), correct[models][:, examples].sum(axis=1))


@pytest.mark.parametrize("layout", NAMES)
def test_blocks_do_not_change_a_result(layout, monkeypatch):
    correct = random_matrix(37, 5000)
    weights = whole_weights(np.random.default_rng(1).standard_normal(37))[0]
    monkeypatch.setattr(layouts, "_COLUMNS", 700)
    monkeypatch.setattr(layouts, "CHUNK", 64)
    monkeypatch.setattr(placement, "CHUNK", 64)
    monkeypatch.setattr(placement, "_DEVICE_ENTRIES", 1000)
    matrix = matrix_of(correct, layout)
    assert np.array_equal(matrix.weigh(weights), weights @ correct)
    assert np.array_equal(matrix.count(np.arange(0, 5000, 3)), correct[:, ::3].sum(axis=1))
    gained = correct[:, ::3].sum(axis=1, dtype=int) - correct[:, ::7].sum(axis=1, dtype=int)
    assert np.array_equal(matrix.gained(np.arange(0, 5000, 3), np.arange(0, 5000, 7)), gained)
    assert np.array_equal(matrix.dense(), correct)


@pytest.mark.parametrize("n_models", [1, 8, 9, 16, 17, 33])
def test_pairs_of_bytes_give_the_sums_of_single_bytes(n_models, monkeypatch):
    correct = random_matrix(n_models, 300)
    weights = whole_weights(np.random.default_rng(1).standard_normal(n_models))[0]
    monkeypatch.setattr(layouts, "_PAIR_EXAMPLES", 1)
    assert np.array_equal(PackedMatrix.pack(correct).weigh(weights), weights @ correct)


@pytest.mark.parametrize("layout", NAMES)
def test_a_repeated_product_has_the_same_bits(layout):
    matrix = matrix_of(random_matrix(101, 3000), layout)
    weights = np.random.default_rng(1).standard_normal(101)
    first = matrix.weigh(weights)
    assert all(matrix.weigh(weights).tobytes() == first.tobytes() for _ in range(3))


def test_threads_may_share_a_matrix():
    matrix = PackedMatrix.pack(random_matrix(50, 4000))
    expected = PackedMatrix.pack(random_matrix(50, 4000)).count(np.arange(1000))
    found = []
    threads = [threading.Thread(target=lambda: found.append(matrix.count(np.arange(1000)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(np.array_equal(counts, expected) for counts in found)


@pytest.mark.parametrize("layout", NAMES)
def test_packed_input_gives_every_layout(layout):
    correct = random_matrix(21, 100)
    models = np.array([20, 3, 3, 11])
    matrix = matrix_of(PackedMatrix.pack(correct), layout, models)
    assert matrix.name == layout
    assert np.array_equal(matrix.dense(), correct[models])
    assert np.array_equal(matrix_of(PackedMatrix.pack(correct), layout).dense(), correct)


def test_inputs_are_not_changed():
    correct = random_matrix(21, 100)
    packed = PackedMatrix.pack(correct)
    bits, before = packed.bits.copy(), correct.copy()
    for layout in NAMES:
        for source in (correct, packed):
            matrix = matrix_of(source, layout)
            matrix_of(source, layout, np.arange(5)).weigh(np.ones(5))
            matrix.dense()[:] = 7
    assert np.array_equal(correct, before)
    assert np.array_equal(packed.bits, bits)


# ------------------------------------------------------------------------------------------------ weights


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
    assert (whole.tolist(), scale) == ([0, 0, 0], 1.0)


# ------------------------------------------------------------------------------------------------ choice


def test_auto_is_dense_for_small_matrices_and_packed_for_large_ones(monkeypatch):
    correct = random_matrix(10, 100)
    assert as_matrix(correct).name == "dense"
    monkeypatch.setattr(placement, "_DENSE_ENTRIES", 999)
    assert as_matrix(correct).name == "packed"
    assert as_matrix(correct, np.arange(9)).name == "dense"
    assert as_matrix(correct, device="cpu").name == "packed"


def test_packed_is_an_eighth_of_the_examples_per_model():
    correct = random_matrix(80, 1000)
    assert as_matrix(correct, layout="dense").nbytes == 32 * as_matrix(correct, layout="packed").nbytes


def test_a_matrix_beyond_the_memory_asks_for_the_packed_layout(monkeypatch):
    monkeypatch.setattr(layouts, "free_memory", lambda: 3000)
    correct = random_matrix(10, 100)
    with pytest.raises(InputError, match=r'dense matrix of 10 x 100 needs .* use layout="packed"'):
        as_matrix(correct, layout="dense")
    with pytest.raises(InputError, match="needs"):
        DenseMatrix(correct)
    assert as_matrix(correct, layout="packed").n_models == 10
    monkeypatch.setattr(layouts, "free_memory", lambda: 900)
    with pytest.raises(InputError, match="int8 matrix of 10 x 100 on cpu"):
        DeviceMatrix(correct, device="cpu")


def test_bytes_for_many_products_are_made_once_for_all_threads(monkeypatch):
    monkeypatch.setattr(placement, "int8_is_fast", lambda: True)
    packed = as_matrix(random_matrix(10, 100), layout="packed")
    monkeypatch.setattr(placement, "free_memory", lambda: 1999)
    assert for_many(packed, 5) is packed
    monkeypatch.setattr(placement, "free_memory", lambda: 2000)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: for_many(packed, 5), range(8)))
    assert len(found) == 1
    held = found.pop()
    assert isinstance(held, DeviceMatrix)
    assert (held.dense() == packed.dense()).all()
    assert for_many(packed, 2) is packed
    gone = weakref.ref(held)
    del packed, held
    assert gone() is None


def test_bits_serve_where_the_memory_for_bytes_is_taken_meanwhile(monkeypatch):
    monkeypatch.setattr(placement, "int8_is_fast", lambda: True)
    monkeypatch.setattr(placement, "free_memory", lambda: 2000)
    monkeypatch.setattr(layouts, "free_memory", lambda: 900)
    packed = as_matrix(random_matrix(10, 100), layout="packed")
    assert for_many(packed, 5) is packed


def test_too_little_memory_is_not_a_reason_of_a_document(monkeypatch):
    data = CorrectnessData.of(random_matrix(60, 80), np.linspace(0.4, 0.8, 60), groups=range(60))
    selection = oodselect(data, size=9, layout="dense")
    parts = np.split(np.arange(60), [7, 30])
    few = oodselect(data, size=9, split=dict(zip(("train", "validation", "test"), parts, strict=True)))
    assert "each needs at least 4" in _halves(few, 1, 1, computed)["reason"]
    assert _halves(selection, 1, 1, computed)["reason"] is None
    monkeypatch.setattr(layouts, "free_memory", lambda: 100)
    with pytest.raises(FreeMemoryError, match="dense matrix of 12 x 80 needs"):
        _halves(selection, 1, 1, computed)


@pytest.mark.parametrize("kind", ["bytes", "digits", "whole"])
@pytest.mark.parametrize("cached", [7, 2**19])
def test_weights_beyond_a_byte_and_a_single_model_are_summed_exactly(monkeypatch, kind, cached):
    monkeypatch.setattr(placement, "_kind_of_product", lambda _: kind)
    monkeypatch.setattr(placement, "_CACHED_ENTRIES", cached)
    weights = np.array([[2.0**23 + 2**22 + 129, -3.0, 255.0], [1.0, 0.0, 0.0], [0.0, -128.0, -(2.0**23)]])
    correct = random_matrix(3, 90)
    assert np.array_equal(DeviceMatrix(correct, device="cpu").weigh_many(weights), weights @ correct)
    alone = DeviceMatrix(correct[:1], device="cpu")
    assert np.array_equal(alone.weigh_many(weights[:, :1]), weights[:, :1] @ correct[:1])
    halves = weights / 2 + 0.5  # rounded on the grid, whatever multiplies them
    expected = [whole_weights(each)[0] @ correct / whole_weights(each)[1] for each in halves]
    assert np.array_equal(DeviceMatrix(correct, device="cpu").weigh_many(halves), expected)


# ------------------------------------------------------------------------------------------------ errors


def test_an_unknown_layout_lists_the_known_ones():
    with pytest.raises(InputError, match="unknown layout 'sparse'"):
        as_matrix(HAND, layout="sparse")


@pytest.mark.parametrize("layout", NAMES)
def test_indices_and_weights_that_do_not_fit_are_named(layout):
    matrix = matrix_of(HAND, layout)
    with pytest.raises(
        InputError, match="examples holds indices from 0 to 3, but the matrix has examples 0 to 2"
    ):
        matrix.count(np.array([0, 3]))
    with pytest.raises(InputError, match="examples holds indices from -1"):
        matrix.dense(np.array([-1]))
    with pytest.raises(
        InputError, match="models holds indices from 3 to 3, but the matrix has models 0 to 2"
    ):
        as_matrix(HAND, np.array([3]), layout=layout)


def test_bits_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match=r"ceil\(models / 8\) rows, 2 for 9 models"):
        PackedMatrix(np.zeros((1, 4), dtype=np.uint8), 9)
    with pytest.raises(InputError, match="bits set beyond model 8"):
        PackedMatrix(np.full((2, 4), 255, dtype=np.uint8), 9)


def test_a_device_that_is_not_there_or_would_stay_idle_is_refused() -> None:
    correct = np.ones((8, 12), dtype=np.uint8)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="PyTorch cannot use device 'cuda' here"):
            as_matrix(correct, device="cuda")
    with pytest.raises(InputError, match="PyTorch cannot use device 'nowhere' here"):
        as_matrix(correct, device="nowhere")
    for layout in ("dense", "packed"):
        with pytest.raises(InputError, match=f"device is 'meta', but layout '{layout}' uses main memory"):
            as_matrix(correct, layout=layout, device="meta")
        as_matrix(correct, layout=layout, device="cpu")
