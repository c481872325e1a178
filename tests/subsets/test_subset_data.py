"""The correctness matrix: what is refused, what is counted, and that storage does not matter."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.layouts import PackedMatrix
from assay.analyses.subsets.line import probit
from assay.core.errors import InputError, ShapeError


def small(n_models=6, n_examples=9, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2, (n_models, n_examples)).astype(np.uint8), rng.uniform(0.5, 0.9, n_models)


@given(st.integers(4, 20), st.integers(1, 40), st.integers(0, 2**32))
def test_storage_does_not_matter(n_models, n_examples, seed):
    correct, y = small(n_models, n_examples, seed)
    families = [str(place % 3) for place in range(n_models)]
    plain = CorrectnessData.of(correct, y, families=families)
    packed = CorrectnessData.of(PackedMatrix.pack(correct), y, families=families)
    rng = np.random.default_rng(seed)
    models, examples = rng.permutation(n_models)[:4], rng.integers(0, n_examples, 5)
    assert plain.hash == packed.hash
    assert plain.quality() == packed.quality() or math.isnan(plain.quality().reliability)
    np.testing.assert_array_equal(plain.accuracy_on(examples), packed.accuracy_on(examples))
    np.testing.assert_array_equal(plain.accuracy(models), packed.accuracy(models))
    np.testing.assert_array_equal(plain.example_accuracy(models), packed.example_accuracy(models))
    np.testing.assert_array_equal(plain.columns(examples), packed.columns(examples))
    chosen = np.unique(examples)
    left, right = (each.take_models(models).take_examples(chosen) for each in (plain, packed))
    assert left.hash == right.hash
    np.testing.assert_array_equal(left.accuracy(), correct[models][:, chosen].mean(axis=1))


def test_booleans_integers_and_floats_are_the_same_data():
    correct, y = small()
    hashes = {CorrectnessData.of(correct.astype(kind), y).hash for kind in (bool, np.uint8, np.int64, float)}
    assert len(hashes) == 1
    assert CorrectnessData.of(1 - correct, y).hash not in hashes
    assert CorrectnessData.of(correct, y, groups=range(6)).hash not in hashes


def test_quality_by_hand():
    correct = np.array([[1, 1, 0, 0], [1, 0, 0, 1], [1, 1, 0, 0], [1, 1, 1, 1]], dtype=np.uint8)
    correct = np.c_[correct, np.zeros(4, dtype=np.uint8)]
    y = np.array([0.5, 0.6, 0.7, 0.8])
    found = CorrectnessData.of(correct, y, n_id=100, families=["a", "a", "b", "b"]).quality()
    assert (found.n_all_right, found.n_all_wrong, found.n_duplicates) == (1, 1, 1)
    assert found.n_constant_models == 0
    assert found.n_groups is None
    assert found.n_families == 2
    assert found.accuracy == (0.4, 0.8)
    z = probit(y)
    noise = y * (1 - y) / (100 * scipy_stats.norm.pdf(z) ** 2)
    assert found.reliability == pytest.approx(1 - noise.mean() / z.var())


def test_units_are_the_largest_that_is_known():
    correct, y = small()
    groups, families = ["r1", "r1", "r2", "r3", "r4", "r4"], ["f1", "f1", "f1", "f2", "f2", "f2"]
    assert CorrectnessData.of(correct, y).unit_kind == "model"
    assert CorrectnessData.of(correct, y, groups=groups).units.tolist() == [0, 0, 1, 2, 3, 3]
    both = CorrectnessData.of(correct, y, groups=groups, families=families)
    assert both.unit_kind == "family"
    assert both.units.tolist() == [0, 0, 0, 1, 1, 1]
    assert CorrectnessData.of(CorrectnessData.of(correct, y), families=families).unit_kind == "family"


def test_labels_may_be_names():
    correct, y = small()
    named = CorrectnessData.of(correct, y, labels=["dog", "cat"] * 4 + ["dog"])
    assert named.label_names == ("cat", "dog")
    assert named.labels.tolist() == [1, 0] * 4 + [1]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"correct": np.full((6, 9), 2)}, InputError, r"correct\[0, 0\] is 2"),
        ({"correct": np.full((6, 9), np.nan)}, InputError, r"correct\[0, 0\] is nan"),
        ({"correct": np.full((6, 9), "yes")}, InputError, "0 and 1"),
        ({"correct": np.zeros(9)}, ShapeError, "models by examples"),
        (
            {"correct": np.zeros((3, 9)), "id_accuracy": [0.5] * 3},
            InputError,
            "holds 3 models; expected at least 4",
        ),
        ({"correct": np.zeros((6, 0))}, InputError, "not hold any example"),
        ({"id_accuracy": [0.5] * 5}, ShapeError, r"shape \(5,\)"),
        ({"id_accuracy": [0.5] * 5 + [math.nan]}, InputError, r"id_accuracy\[5\] is nan"),
        ({"id_accuracy": [51.0, 60, 70, 80, 90, 95]}, InputError, "divide them by 100"),
        ({"id_accuracy": [0.5] * 5 + [-0.1]}, InputError, r"id_accuracy\[5\] is -0.1"),
        ({"example_ids": ["a"] * 2 + list("bcdefgh")}, InputError, "'a' 2 times"),
        ({"example_ids": ["a"]}, ShapeError, "9 examples"),
        ({"labels": [0] * 8}, ShapeError, "labels has shape"),
        ({"labels": [-1] * 9}, InputError, "counted from 0"),
        ({"labels": [2] * 9, "label_names": ["a", "b"]}, InputError, "label_names lists only 2"),
        ({"labels": ["x"] * 9, "label_names": ["x"]}, InputError, "names already"),
        ({"meta": {"sex": ["f"] * 8}}, ShapeError, "'sex'"),
        ({"n_id": 0}, InputError, "counts of at least 1"),
        ({"n_id": [1, 2]}, ShapeError, "n_id has shape"),
        ({"embedding": np.zeros((8, 2))}, ShapeError, "embedding has shape"),
        ({"embedding": np.full((9, 2), np.inf)}, InputError, "NaN or infinite"),
        (
            {"embedding": np.zeros((9, 2)), "id_embedding": np.zeros((5, 3))},
            ShapeError,
            "use one encoder",
        ),
        ({"images": np.zeros((9, 4, 4))}, ShapeError, "images are float64"),
        ({"images": np.zeros((9, 4, 4, 2), dtype=np.uint8)}, ShapeError, "2 channels"),
        ({"groups": ["r"] * 6, "families": list("aabbcc")}, InputError, "share one family"),
        ({"model_ids": ["m"]}, ShapeError, "model_ids holds 1"),
        ({"model_ids": ["m"] * 6}, InputError, "'m' more than once"),
        ({"groups": ["r", None, "s", "t", "u", "v"]}, InputError, r"groups\[1\] is None"),
        ({"families": [math.nan, *"abcde"]}, InputError, r"families\[0\] is nan"),
    ],
)
def test_bad_input_is_named(unchecked, change, error, message):
    correct, y = small()
    with pytest.raises(error, match=message):
        CorrectnessData.of(**({"correct": correct, "id_accuracy": y} | change))


def test_data_take_no_second_accuracy():
    correct, y = small()
    with pytest.raises(InputError, match="part of the data"):
        CorrectnessData.of(CorrectnessData.of(correct, y), y)
