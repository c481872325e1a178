"""Tables that could be read in two ways, or hide a mistake: each is refused, or read as it says."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from assay.analyses.subsets.cells import same_class
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.selection import oodselect
from assay.core.errors import AlignmentError, FileFormatError, InputError
from assay.pipeline.subset_data import read_data


CORRECT = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]], dtype=np.uint8)
MODELS, EXAMPLES = list("abcd"), list("xyz")
ACCURACY = dict(zip(MODELS, (0.9, 0.8, 0.7, 0.6), strict=True))


def wide() -> pd.DataFrame:
    return pd.DataFrame(CORRECT, index=MODELS, columns=EXAMPLES)


def long() -> pd.DataFrame:
    melted = wide().rename_axis("model").reset_index()
    return melted.melt("model", var_name="example_id", value_name="correct")


def predicted() -> pd.DataFrame:
    frame = long().assign(label="cat")
    return frame.assign(prediction=np.where(frame.pop("correct") == 1, "cat", "dog"))


def read(frame: pd.DataFrame, **options: Any) -> CorrectnessData:
    return CorrectnessData.from_frame(frame, **{"id_accuracy": ACCURACY} | options)


def rated(folder: Path, accuracy: dict[str, float] = ACCURACY) -> str:
    path = folder / "rated.csv"
    path.write_text("model,id_accuracy\n" + "".join(f"{name},{y}\n" for name, y in accuracy.items()))
    return str(path)


# --------------------------------------------------------------------------------------------- cells


def test_a_score_beside_predictions_is_read_as_neither_unless_it_is_said() -> None:
    frame = predicted().assign(score=0.75)
    with pytest.raises(InputError, match="'score' may hold scores of answers .*--cells score or --cells pr"):
        read(frame)
    assert np.asarray(read(frame, cells="prediction").correct).tolist() == CORRECT.tolist()
    assert np.asarray(read(frame, cells="score").correct).tolist() == [[0.75] * 3] * 4
    likely = frame.drop(columns="prediction").assign(label=1, probability=0.75)
    with pytest.raises(InputError, match="'score' may hold"):
        read(likely)
    assert np.asarray(read(frame.drop(columns="label")).correct).tolist() == [[0.75] * 3] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cells": "correct"}, "cells hold 'correct', but the table has no such column"),
        ({"cells": "score"}, "cells hold 'score', but the table has no such column"),
        ({"scores": (5, 0)}, "cells hold 'score', but the table has no such column"),
        (
            {"cells": "prediction", "scores": (5, 0)},
            r"scores= \(--scores\) has no effect with cells='prediction'",
        ),
    ],
)
def test_what_a_table_does_not_hold_cannot_be_asked_for(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(predicted(), **options)


def test_numbers_among_texts_are_compared_as_numbers() -> None:
    prediction, truth = pd.Series([1.0, 2.0, 3.0, np.nan, 1.0]), pd.Series(["1", "02", "cat", "cat", None])
    np.testing.assert_array_equal(same_class(prediction, truth), [1, 1, 0, np.nan, np.nan])
    np.testing.assert_array_equal(same_class(truth[:3], prediction[:3]), [1, 1, 0])
    text = pd.Series(["cat", "1"])
    np.testing.assert_array_equal(same_class(text, pd.Series(["cat", "1.0"])), [1, 1])


def test_texts_that_are_no_classes_are_no_predictions() -> None:
    frame = wide().replace({0: "no", 1: "yes"}).T
    frame["label"] = ["cat", "dog", "cat"]
    with pytest.raises(InputError, match="model 'a' on example 'x' is 'yes'; every cell must be 0"):
        read(frame)
    frame.loc["x", "a"] = "dog"  # one is a class, so all are predictions
    assert not np.asarray(read(frame).correct).any()


@pytest.mark.parametrize("odd", [1.5, -0.1, 75.0])
def test_a_probability_lies_between_0_and_1(odd: float) -> None:
    frame = predicted().drop(columns="prediction").assign(label=1, probability=0.75)
    frame.loc[5, "probability"] = odd
    with pytest.raises(InputError, match=f"is {odd}; every cell must be a probability, from 0 to 1"):
        read(frame)


def test_accuracies_beside_scores_are_scores_too() -> None:
    losses = 5.0 * (1 - wide())
    data = read(losses, scores=(5, 0), id_accuracy=dict(zip(MODELS, (0.5, 1.0, 1.5, 2.5), strict=True)))
    assert data.id_accuracy.tolist() == pytest.approx([0.9, 0.8, 0.7, 0.5], rel=1e-12)
    assert data.understood().id_accuracy == "given by model, mapped from 5 (worse) and 0 (better)"
    with pytest.raises(
        InputError, match=r"id_accuracy, .* run from 1 to 6, but their ends are 5 and 0 \(1 lie"
    ):
        read(losses, scores=(5, 0), id_accuracy=[1, 2, 3, 6])
    every = pd.concat([long().assign(domain="ood"), long().assign(domain="id")])
    frame = every.assign(score=5.0 * (1 - every.pop("correct")))
    within = read(frame, scores=(5, 0), id_accuracy=None)  # mapped once
    assert within.id_accuracy.tolist() == pytest.approx(CORRECT.mean(axis=1).tolist(), rel=1e-6)


def test_a_row_in_distribution_counts_once() -> None:
    every = pd.concat([long().assign(domain="ood"), long().assign(domain="id")], ignore_index=True)
    with pytest.raises(InputError, match="model 'b' has several in-distribution rows for example 'x'"):
        read(pd.concat([every, every.iloc[[13]]]), id_accuracy=None)
    other = long().assign(domain="photo")  # the same names in another domain are other examples
    both = read(pd.concat([every, other]), id_accuracy=None, ood_domains=["ood"])
    assert both.n_id is not None
    assert both.n_id.tolist() == [6] * 4


def test_what_was_understood_of_arrays_tells_scores_from_answers() -> None:
    for values, scores, told in ((CORRECT / 2, True, "scores"), (CORRECT, False, "0 and 1")):
        data = CorrectnessData.of(values, list(ACCURACY.values()), scores=scores)
        assert data.understood().answers == told


def test_scores_stay_on_the_cpu() -> None:
    data = CorrectnessData.of(CORRECT / 2, list(ACCURACY.values()), scores=True)
    assert data.matrix(device="cpu").dense().tolist() == (CORRECT / 2).tolist()
    with pytest.raises(InputError, match="device is 'meta', but scores are computed with on the CPU"):
        data.matrix(device="meta")


# --------------------------------------------------------------------------------------------- columns


def test_an_example_may_be_called_as_a_column_of_answers_is(tmp_path: Path) -> None:
    for name in ("score", "correct", "prediction"):
        frame = wide().rename(columns={"x": name}).rename_axis("model").reset_index()
        data = read(frame)
        assert data.source["orientation"] == "wide"
        assert data.example_ids.tolist() == [name, "y", "z"]
        assert np.asarray(data.correct).tolist() == CORRECT.tolist()
        assert name not in data.understood().columns.values()
    with pytest.raises(InputError, match="unknown column of the table 'example_id'"):
        read(long().drop(columns="example_id"))


def test_two_columns_of_a_file_cannot_have_one_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("model,x,y,x\n" + "".join(f"{name},1,0,1\n" for name in MODELS))
    with pytest.raises(FileFormatError, match="two columns of .*t.csv are named 'x'"):
        read_data(tmp_path / "t.csv", id_accuracy=rated(tmp_path))


def test_names_that_look_missing_are_names(tmp_path: Path) -> None:
    names = ["NA", "None", "null", "nan"]
    frame = wide().set_axis(names, axis=0).rename_axis("model").reset_index()
    frame.insert(1, "id_accuracy", list(ACCURACY.values()))
    frame.to_csv(tmp_path / "wide.csv", index=False)
    assert read_data(tmp_path / "wide.csv").data.model_ids == tuple(names)
    frame.loc[1, "y"] = np.nan
    frame.to_csv(tmp_path / "wide.csv", index=False, na_rep="NA")  # an answer that is NA is missing
    with pytest.raises(InputError, match="answer of model 'None' on example 'y' is missing"):
        read_data(tmp_path / "wide.csv")
    melted = long().replace({"example_id": {"x": "NA"}})
    melted.to_csv(tmp_path / "long.csv", index=False)
    data = read_data(tmp_path / "long.csv", id_accuracy=rated(tmp_path)).data
    assert data.example_ids.tolist() == ["NA", "y", "z"]
    melted.replace({"example_id": {"y": ""}}).to_csv(tmp_path / "long.csv", index=False)
    with pytest.raises(InputError, match=r"frame\['example_id'\] is missing in row 4"):
        read_data(tmp_path / "long.csv", id_accuracy=rated(tmp_path))


@pytest.mark.parametrize(("group", "family"), [("group", "family"), ("seed", "kind")])
def test_runs_and_families_are_names(tmp_path: Path, group: str, family: str) -> None:
    frame = wide().rename_axis("model").reset_index().assign(id_accuracy=list(ACCURACY.values()))
    frame[group], frame[family] = ["01", "1", "2", "3"], ["07", "7", "8", "8"]
    frame.to_csv(tmp_path / "t.csv", index=False)
    columns = None if group == "group" else f"group={group},family={family}"
    data = read_data(tmp_path / "t.csv", columns=columns).data
    assert (data.groups, data.families) == (("01", "1", "2", "3"), ("07", "7", "8", "8"))


# --------------------------------------------------------------------------------------------- files


def files(folder: Path, **columns: Any) -> Path:
    """A file per model; the rows of every second one in the other order."""
    folder.mkdir()
    for place, name in enumerate(MODELS):
        rows = pd.DataFrame({"correct": CORRECT[place], **columns})
        rows[:: -1 if place % 2 else 1].to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.mark.parametrize("name", ["id", "doc_id"])
def test_rows_of_files_are_matched_by_their_ids(tmp_path: Path, name: str) -> None:
    folder = files(tmp_path / "files", **{name: [7, 8, 9]})
    data = read_data(folder, id_accuracy=rated(tmp_path)).data
    assert data.example_ids.tolist() == ["7", "8", "9"]
    assert np.asarray(data.correct).tolist() == CORRECT.tolist()


def test_files_that_differ_in_more_than_answers_are_not_matched_by_place(tmp_path: Path) -> None:
    folder = files(tmp_path / "files", question=["q7", "q8", "q9"])
    with pytest.raises(AlignmentError, match="differ in 'question', .*--columns example=NAME, or remove"):
        read_data(folder, id_accuracy=rated(tmp_path))
    data = read_data(folder, id_accuracy=rated(tmp_path), columns="example=question").data
    assert np.asarray(data.correct).tolist() == CORRECT.tolist()
    for place, name in enumerate(MODELS):  # what is the same in all rows belongs to the model
        rows = pd.DataFrame({"correct": CORRECT[place], "question": [7, 8, 9], "seed": place})
        rows.to_csv(folder / f"{name}.csv", index=False)
    data = read_data(folder, id_accuracy=rated(tmp_path), groups="seed").data
    assert np.asarray(data.correct).tolist() == CORRECT.tolist()
    assert data.groups == tuple("0123")


def test_a_json_file_beside_tables_is_no_log(tmp_path: Path) -> None:
    folder = files(tmp_path / "files", id=[7, 8, 9])
    (folder / "config.json").write_text("{}")
    assert read_data(folder, id_accuracy=rated(tmp_path)).data.understood().kind == "a file per model"


def test_checkpoints_are_for_prediction_files(tmp_path: Path) -> None:
    long().to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match="--checkpoints has no effect for a table"):
        read_data(tmp_path / "t.csv", id_accuracy=rated(tmp_path), checkpoints="all")


@pytest.mark.parametrize("spelling", [{"cat": 1, "dog": 0}, {"cat": "Cat", "dog": "Dog "}])
def test_predictions_of_which_none_is_a_class_are_refused(spelling: dict[str, Any]) -> None:
    frame = predicted()
    frame["label"] = np.where(frame["example_id"] == "x", "dog", "cat")
    other = frame.assign(prediction=frame["prediction"].map(spelling))
    few = f"such as .*{spelling['dog']!r}.* where the class is one of 'dog', 'cat'; use the same classes"
    with pytest.raises(InputError, match=few):
        read(other)
    cells = other.pivot(index="model", columns="example_id", values="prediction")
    facts = pd.DataFrame({"label": ["dog", "cat", "cat"]}, index=EXAMPLES)
    with pytest.raises(InputError, match=few):
        read(cells, examples=facts, cells="prediction")
    collapsed = frame.assign(prediction=frame["prediction"].mask(frame["model"] == "a", "horse"))
    assert read(collapsed).accuracy()[0] == 0


def test_probabilities_in_a_wide_table_are_sent_to_the_long_form() -> None:
    facts = pd.DataFrame({"label": [0, 1, 1]}, index=EXAMPLES)
    with pytest.raises(InputError, match="such as '0.75', '0.5'.*long table: columns p_0, p_1, .* label"):
        read(wide() * 0.25 + 0.5, examples=facts, cells="prediction")


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (wide().astype(float).mask(np.eye(4, 3) == 1), {}, "example 'x' is missing .3 of 12 cells"),
        (wide(), {"examples": pd.DataFrame({"light": [1, 2]}, index=["x", "y"])}, "examples has no row 'z'"),
        (wide().T, {"id_accuracy": [0.9, 0.8, 0.7]}, "correct holds 3 models; expected at least 4"),
        (wide(), {"id_accuracy": [90.0, 80, 70, 60]}, "id_accuracy of model 'a' is 90.0.*divide them by 100"),
    ],
)
def test_whatever_is_wrong_with_a_table_the_way_it_was_read_is_named(
    frame: pd.DataFrame, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=f"{message}.*The table was read as wide.*--orientation long or tr"):
        read(frame, **options)


def test_the_one_model_that_answers_an_odd_example_is_named() -> None:
    odd = pd.concat([long(), pd.DataFrame({"model": ["c"], "example_id": ["odd"], "correct": [1]})])
    with pytest.raises(InputError, match="model 'a' on example 'odd' is missing; only 'c' has one .3 of 16"):
        read(odd)


def test_what_is_out_of_distribution_has_to_be_named() -> None:
    frame = pd.concat([long().assign(domain=name) for name in ("photo", "sketch")])
    with pytest.raises(InputError, match=r"never 'ood'; say which of photo, sketch is out .*\(--ood-env\)"):
        read(frame, id_domains=["photo"], id_accuracy=None)


def test_every_model_can_be_a_family_of_its_own(tmp_path: Path) -> None:
    long().to_csv(tmp_path / "t.csv", index=False)
    data = read_data(tmp_path / "t.csv", id_accuracy=rated(tmp_path), families="model").data
    assert data.families == tuple(MODELS)
    with pytest.raises(InputError, match="neither a file nor a column .* or model if each model is one of"):
        read_data(tmp_path / "t.csv", id_accuracy=rated(tmp_path), families="modell")


def test_a_source_given_beside_a_frame_joins_what_the_frame_says() -> None:
    data = CorrectnessData.of(wide(), id_accuracy=np.linspace(0.6, 0.9, 4), source={"name": "night"})
    assert (data.source["name"], data.source["orientation"]) == ("night", "wide")


def test_examples_that_cannot_be_selected_are_named() -> None:
    answers = np.random.default_rng(0).integers(0, 2, (24, 3))
    data = CorrectnessData.of(answers, np.linspace(0.5, 0.9, 24), example_ids=["x", "y", "z"])
    with pytest.raises(InputError, match="must_include holds example 'y', which allowed excludes .1 in tot"):
        oodselect(data, size=2, must_include=[1, 2], allowed=[0, 2])


def test_facts_of_a_transposed_table_are_named() -> None:
    frame = wide().T.rename_axis("example_id").reset_index()
    frame.insert(1, "light", ["day", "night", "day"])
    with pytest.raises(InputError, match="Name columns that say something.* --facts light .meta=.'light'"):
        read(frame)
    assert read(frame, meta=["light"]).meta["light"].tolist() == ["day", "night", "day"]
    counted = frame.drop(columns="example_id").rename(columns={"light": "Unnamed: 0"})
    with pytest.raises(InputError, match="'Unnamed: 0' holds the names of the examples, call it example_id"):
        read(counted, orientation="transposed")


def test_estimators_without_names_are_refused() -> None:
    rows, classes = np.zeros((4, 1)), np.zeros(4)
    with pytest.raises(InputError, match="holds object without a name; give a mapping from names"):
        CorrectnessData.from_estimators([object()], rows, classes, rows, classes)
