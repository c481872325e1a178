"""Data of models and examples: what is computed from them by hand, archives, and what is refused by name."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from assay.analyses.subsets.data import CorrectnessData
from assay.core.errors import FileFormatError, InputError, ShapeError, UnsafeFileError
from assay.zoo import Correctness


CORRECT = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=np.uint8)
ACCURACY = np.array([0.9, 0.5, 0.8, 0.25, 0.7])
FACTS: dict[str, Any] = {
    "groups": ["run a", "run a", "run b", "run c", "run d"],
    "families": ["conv", "conv", "vit", "vit", "mlp"],
    "model_ids": ["a/1", "a/2", "b", "c", "Größe"],
    "example_ids": ["x", "y", "z"],
    "labels": [0, 2, 1],
    "label_names": ("cat", "dog", "é"),
    "meta": {"hospital": ["north", None, "sea"], "age": [40.5, np.nan, 61.0], "scanned": [True, False, True]},
    "embedding": np.arange(6.0).reshape(3, 2),
    "id_embedding": np.arange(8.0).reshape(4, 2),
    "images": np.arange(3 * 2 * 2 * 3).reshape(3, 2, 2, 3).astype(np.uint8),
    "source": {"kind": "test", "seed": 3, "share": 0.1},
}


@pytest.fixture
def data() -> CorrectnessData:
    return CorrectnessData.of(CORRECT, ACCURACY, **FACTS)


def assert_equal(one: CorrectnessData, other: CorrectnessData) -> None:
    assert one.hash == other.hash
    names = ("correct", "id_accuracy", "model_ids", "example_ids", "groups", "families", "labels")
    for name in (*names, "embedding", "id_embedding", "images"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
    pd.testing.assert_frame_equal(one.meta, other.meta)
    assert (one.label_names, dict(one.source)) == (other.label_names, dict(other.source))


def test_hashes_are_those_of_earlier_versions(data: CorrectnessData) -> None:
    assert CorrectnessData.of(CORRECT, ACCURACY).hash == "2e88f8cff7dbbce7"
    assert data.hash == "1e93f1cf6e397402"
    assert CorrectnessData.of(CORRECT * 0.3, ACCURACY, scores=True).hash == "985144c9fb49154a"


def test_the_hash_knows_units_but_not_their_names_and_not_those_of_models(data: CorrectnessData) -> None:
    names = {"groups": list("zzyxw"), "families": list("ppqqr"), "model_ids": list("vwxyz")}
    renamed = CorrectnessData.of(data, **names, meta={"age": [1, 2, 3]})
    assert renamed.hash == data.hash
    assert renamed.meta["age"].tolist() == [1, 2, 3]
    assert CorrectnessData.of(data, groups=list("abcde")).hash != data.hash
    assert CorrectnessData.of(data, example_ids=["x", "y", "w"]).hash != data.hash
    assert CorrectnessData.of(data, id_accuracy=ACCURACY[::-1]).hash != data.hash


def test_accuracies_are_those_worked_by_hand(data: CorrectnessData) -> None:
    np.testing.assert_allclose(data.accuracy(), [2 / 3, 1 / 3, 1, 0, 1 / 3])
    np.testing.assert_allclose(data.accuracy(np.array([0, 1])), [0.5, 0, 1, 0, 0.5])
    np.testing.assert_allclose(data.example_accuracy(), [0.6, 0.2, 0.6])
    np.testing.assert_allclose(data.example_accuracy(np.array([0, 4])), [1, 0, 0.5])
    with pytest.raises(InputError, match="selection is empty"):
        data.accuracy(np.array([], dtype=np.int64))


def test_units_are_the_largest_that_are_known(data: CorrectnessData) -> None:
    assert (data.unit_kind, data.units().tolist()) == ("family", [0, 0, 1, 1, 2])
    assert data.units("group").tolist() == [0, 0, 1, 2, 3]
    plain = CorrectnessData.of(CORRECT, ACCURACY)
    assert (plain.unit_kind, plain.units().tolist()) == ("model", [0, 1, 2, 3, 4])
    with pytest.raises(InputError, match="family of each model is unknown"):
        plain.units("family")


def test_some_models_and_examples_are_taken_with_all_that_is_known(data: CorrectnessData) -> None:
    some = data.take(models=np.array([4, 0]), examples=np.array([2, 0]))
    assert some.correct.tolist() == [[0, 1], [1, 1]]
    assert some.id_accuracy.tolist() == [0.7, 0.9]
    assert some.families.tolist() == ["mlp", "conv"]
    assert some.meta["hospital"].tolist() == ["sea", "north"]
    assert some.labels.tolist() == [1, 0]
    assert some.images[0].tolist() == FACTS["images"][2].tolist()


def test_values_are_matched_by_the_names_of_models_and_examples() -> None:
    ids, examples = FACTS["model_ids"], FACTS["example_ids"]
    pairs = {name: list(zip(ids, FACTS[name], strict=True)) for name in ("groups", "families")}
    by_name: dict[str, Any] = {name: dict(each[::-1]) for name, each in pairs.items()}
    by_name["labels"] = pd.Series([1, 2, 0], index=["z", "y", "x"])
    by_name["meta"] = pd.DataFrame(FACTS["meta"], index=examples).iloc[::-1]
    accuracy = pd.Series(ACCURACY, index=ids)
    one = CorrectnessData.of(CORRECT, accuracy.sample(frac=1, random_state=0), **FACTS | by_name)
    assert_equal(one, CorrectnessData.of(CORRECT, ACCURACY, **FACTS))
    assert CorrectnessData.of(CORRECT, accuracy).model_ids.tolist() == ids
    assert CorrectnessData.of(CORRECT, pd.Series(ACCURACY)).model_ids[0] == "model_0"


def test_what_an_analyst_would_look_at_is_described(data: CorrectnessData) -> None:
    seen = data.describe()
    assert seen["models"] == "5: a/1, a/2, b, ..."
    assert (seen["training runs"], seen["families"]) == (4, 3)
    assert seen["in-distribution accuracy"] == "25.0% to 90.0%"
    assert (seen["examples all right"], seen["examples all wrong"]) == (0, 0)
    assert seen["classes"] == "3: cat, dog, é"


@pytest.mark.parametrize(
    ("names", "note"),
    [
        ([f"img_{k}.png" for k in range(7)] + ["id_acc"], "'id_acc' counted as an example"),
        ([f"img_{k}.png" for k in range(6)] + ["seed", "epochs"], "'seed' and 'epochs' counted as examples"),
        ([f"img_{k}.png" for k in range(5)] + ["a", "b", "c"], None),
        (list("abcdefgh"), None),
    ],
)
def test_examples_that_are_named_unlike_all_others_are_noted(names: list[str], note: str | None) -> None:
    """A column of facts that is read as an example would enter the selection in silence."""
    seen = CorrectnessData.of(np.eye(4, 8), ACCURACY[:4], example_ids=names).describe()
    assert (note or "") in seen["notes"]
    assert note is not None or not seen["notes"]


# -------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("correct", "facts", "error", "message"),
    [
        (CORRECT * 2, {}, InputError, "model 'model_0' on example 'row_0' is 2; expected 0 .* scores=True"),
        (CORRECT - 0.5, {"scores": True}, InputError, "'row_1' is -0.5; expected a score from 0 to 1"),
        (np.where(CORRECT == 0, np.nan, 1), {}, InputError, "on example 'row_1' is nan; expected 0"),
        (CORRECT[0], {}, ShapeError, "expected 0 and 1, models by examples"),
        (CORRECT[:3], {"id_accuracy": ACCURACY[:3]}, InputError, "3 models .* expected at least 4"),
        (CORRECT, {"id_accuracy": None}, InputError, "id_accuracy is missing"),
        (CORRECT, {"id_accuracy": ACCURACY * 100}, InputError, "percentages: divide them by 100"),
        (CORRECT, {"id_accuracy": [0.1] * 4 + [np.nan]}, InputError, "id_accuracy of model 'model_4' is nan"),
        (CORRECT, {"id_accuracy": ["good"] * 5}, InputError, "id_accuracy of model 'model_0' is nan"),
        (CORRECT, {"id_accuracy": ACCURACY[:4]}, ShapeError, r"id_accuracy has shape \(4,\)"),
        (CORRECT, {"model_ids": list("abcda")}, InputError, "model_ids holds 'a' more than once"),
        (CORRECT, {"example_ids": ["x", "y", "x"]}, InputError, "example_ids holds 'x' more than once"),
        (CORRECT, {"groups": ["a", None, "b", "c", "d"]}, InputError, r"groups\[1\] is None"),
        (CORRECT, {"groups": list("aabcd"), "families": list("uvwxy")}, InputError, "'a' lies in 2 families"),
        (CORRECT, {"groups": {"model_0": "a"}}, InputError, r"groups lacks model 'model_1' \(4 are missing"),
        (CORRECT, {"labels": [0, -1, 2]}, InputError, "labels runs from -1 to 2"),
        (CORRECT, {"labels": [0, 1, 2], "label_names": ["a", "b"]}, InputError, "from 0 to 2; classes are"),
        (CORRECT, {"meta": {"age": [1, 2]}}, ShapeError, r"meta\['age'\] has shape \(2,\)"),
        (CORRECT, {"embedding": np.full((3, 2), np.inf)}, ShapeError, "embedding .* expected finite float32"),
        (CORRECT, {"images": np.zeros((3, 2, 2))}, ShapeError, "images are float64 .*expected finite uint8"),
        (CORRECT, {"image": np.zeros((3, 2, 2))}, InputError, "'image'; did you mean 'images'"),
    ],
)
def test_bad_input_is_named(correct: Any, facts: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CorrectnessData.of(correct, **{"id_accuracy": ACCURACY} | facts)


def test_models_that_are_only_evaluated_need_no_accuracies() -> None:
    one = CorrectnessData.of(CORRECT[:1], for_selection=False)
    assert one.unrated
    assert one.describe()["in-distribution accuracy"] is None
    assert CorrectnessData.of(one, for_selection=False) is one


# ------------------------------------------------------------------------------------------- archives


def test_an_archive_is_read_back(tmp_path: Path, data: CorrectnessData) -> None:
    assert_equal(CorrectnessData.load(data.save(tmp_path / "full.npz")), data)
    plain = CorrectnessData.of(CORRECT, ACCURACY)
    assert_equal(CorrectnessData.load(plain.save(tmp_path / "plain.npz")), plain)
    scores = CorrectnessData.of(CORRECT * 0.3, ACCURACY, scores=True)
    assert_equal(CorrectnessData.load(scores.save(tmp_path / "scores.npz")), scores)


def test_what_a_zoo_writes_is_read(tmp_path: Path) -> None:
    zoo = Correctness(
        correct=CORRECT,
        id_accuracy=ACCURACY,
        keys=tuple("abcde"),
        families=tuple("uuvvw"),
        ids=np.array([7, 2, 5]),
        labels=np.array([0, 1, 1]),
        domain="sketch",
        n_id=0,
    )
    zoo.save(tmp_path / "zoo.npz")
    data = CorrectnessData.load(tmp_path / "zoo.npz")
    assert data.correct.tolist() == CORRECT.tolist()
    assert data.example_ids.tolist() == ["sketch/7", "sketch/2", "sketch/5"]
    assert data.meta["domain"].tolist() == ["sketch"] * 3


def damaged(change: Any) -> Any:
    """The arrays of an archive, changed."""
    arrays: dict[str, Any] = {"X": CORRECT, "y": ACCURACY, "label": [0, 1, 2], "source": '{"kind": "x"}'}
    return {name: np.asarray(value) for name, value in (arrays | change).items() if value is not None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": None}, "lacks the array 'y'"),
        ({"X": None}, "lacks the array 'X'"),
        ({"X": CORRECT * 3}, "model 'model_0' on example 'row_0' is 3"),
        ({"y": ACCURACY * 100}, "id_accuracy"),
        ({"Y": ACCURACY}, "unknown array 'Y'"),
        ({"source": "{"}, "is not a correctness archive"),
        ({"X": None, "X_bits": CORRECT, "shape": (99, 3)}, "is not a correctness archive"),
    ],
)
def test_a_bad_archive_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "bad.npz", **damaged(change))
    with pytest.raises((FileFormatError, InputError), match=rf"bad\.npz.*{message}"):
        CorrectnessData.load(tmp_path / "bad.npz")


def test_a_cut_archive_and_a_place_without_one_are_named(tmp_path: Path, data: CorrectnessData) -> None:
    whole = data.save(tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match="cut off or damaged"):
        CorrectnessData.load(tmp_path / "cut.npz")
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(CORRECT))
    with pytest.raises(UnsafeFileError, match="is a pickle"):
        CorrectnessData.load(tmp_path / "pickle.npz")
    with pytest.raises(FileFormatError, match="is not a file. Pass a correctness archive"):
        CorrectnessData.load(tmp_path / "none.npz")
