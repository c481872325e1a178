"""Every shape of a table of answers is one matrix: one table in thirteen shapes, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.files import read_data
from assay.core.errors import AssayError, InputError


CORRECT = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]], dtype=np.uint8)
MODELS, EXAMPLES = list("abcd"), ["007", "x", "é"]
ACCURACY = dict(zip(MODELS, [0.9, 0.8, 0.7, 0.6], strict=True))
WIDE = pd.DataFrame(CORRECT, index=MODELS, columns=EXAMPLES)
HASH = "79b4ead825f85ec3"  # of this table in earlier versions


def long(frame: pd.DataFrame = WIDE) -> pd.DataFrame:
    rows = frame.rename_axis("model").reset_index().melt("model", var_name="example_id", value_name="correct")
    return rows.sort_values(["model", "example_id"], ignore_index=True)


def predicted() -> pd.DataFrame:
    rows = long()
    rows["label"] = rows["example_id"].map({"007": 0, "x": 1, "é": 1})
    rows["prediction"] = np.where(rows.pop("correct") == 1, rows["label"], 1 - rows["label"])
    return rows


def write_files(path: Path) -> None:
    path.mkdir()
    for name, row in WIDE.iterrows():
        row.rename_axis("example_id").rename("correct").to_csv(path / f"{name}.csv")


WORDS = WIDE.astype(object).replace({1: "Correct", 0: "wrong"})
SHAPES: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "wide.csv": (WIDE.rename_axis("model").to_csv, {}),
    "unnamed.csv": (WIDE.to_csv, {}),
    "semicolon.csv": (lambda path: WIDE.rename_axis("model").to_csv(path, sep=";"), {}),
    "wide.tsv": (lambda path: WIDE.rename_axis("model").to_csv(path, sep="\t"), {}),
    "wide.csv.gz": (WIDE.rename_axis("model").to_csv, {}),
    "truth.csv": (lambda path: WIDE.astype(bool).rename_axis("model").to_csv(path), {}),
    "words.csv": (WORDS.rename_axis("model").to_csv, {"right": "correct", "wrong": "wrong"}),
    "turned.csv": (lambda path: WIDE.T.rename_axis("example_id").to_csv(path), {}),
    "turned.parquet": (lambda path: WIDE.T.to_parquet(path), {"orientation": "transposed"}),
    "long.csv": (lambda path: long().to_csv(path, index=False), {}),
    "predicted.csv": (lambda path: predicted().to_csv(path, index=False), {}),
    "long.jsonl": (lambda path: long().to_json(path, orient="records", lines=True), {}),
    "files": (write_files, {}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_thirteen_shapes_of_a_table_are_one_matrix(tmp_path: Path, shape: str) -> None:
    write, options = SHAPES[shape]
    write(tmp_path / shape)
    rated = tmp_path.parent / f"rated-{shape}.csv"
    rated.write_text("model,id_accuracy\n" + "".join(f"{m},{y}\n" for m, y in list(ACCURACY.items())[::-1]))
    data = read_data(tmp_path / shape, id_accuracy=str(rated), **options)
    assert data.correct.tolist() == CORRECT.tolist()
    assert (data.model_ids.tolist(), data.example_ids.tolist()) == (MODELS, EXAMPLES)
    assert data.hash == HASH


def test_accuracies_runs_families_and_facts_are_columns_and_rows() -> None:
    frame = WIDE.assign(id_accuracy=list(ACCURACY.values()), family=list("uuvv"), run=list("pqrs"))
    one = CorrectnessData.from_frame(frame, groups="run")
    assert one.families.tolist() == list("uuvv")
    assert one.groups.tolist() == list("pqrs")
    turned = frame.T.assign(label=["cat", "dog", "cat", "", "", ""])
    other = CorrectnessData.from_frame(turned, orientation="transposed", groups="run")
    assert one.hash == other.hash
    assert other.label_names == ("cat", "dog")
    known = pd.DataFrame({"label": [2, 0, 1], "hour": [3, 1, 2]}, index=["é", "007", "x"])
    third = CorrectnessData.from_frame(frame, groups="run", examples=known)
    assert (third.labels.tolist(), third.meta["hour"].tolist()) == ([0, 1, 2], [1, 2, 3])


def test_a_square_table_lies_as_it_is_said_to() -> None:
    frame = pd.DataFrame(np.tri(4, dtype=int))
    one = CorrectnessData.from_frame(frame, id_accuracy=list(ACCURACY.values()))
    other = CorrectnessData.from_frame(frame, id_accuracy=[0.9, 0.8, 0.7, 0.6], orientation="transposed")
    assert one.correct.tolist() == np.tri(4).tolist()
    assert other.correct.tolist() == np.tri(4).T.tolist()
    assert not other.has_ids


def test_classes_in_cells_are_compared_with_the_true_ones() -> None:
    truth = np.array(["cat", "dog", "elk"])
    cells = pd.DataFrame(np.where(CORRECT == 1, truth, "emu"), index=MODELS, columns=EXAMPLES)
    labelled = cells.T.assign(label=truth)
    options: dict[str, Any] = {"id_accuracy": ACCURACY, "cells": "prediction"}
    one = CorrectnessData.from_frame(labelled, orientation="transposed", **options)
    known = pd.DataFrame({"label": truth}, index=EXAMPLES)
    other = CorrectnessData.from_frame(cells, examples=known, **options)
    assert one.hash == other.hash == CorrectnessData.from_frame(WIDE, id_accuracy=ACCURACY).hash
    with pytest.raises(InputError, match="no prediction is right: .* such as 'emu'"):
        CorrectnessData.from_frame(cells.map(lambda _: "emu"), examples=known, **options)


def test_equal_numbers_are_one_class_whatever_their_type() -> None:
    rows = predicted().assign(label=lambda t: t["label"].astype(float), prediction=lambda t: t["prediction"])
    rows["prediction"] = rows["prediction"].astype(object)
    assert CorrectnessData.from_frame(rows, id_accuracy=ACCURACY).hash == HASH


def test_roles_are_named_by_the_caller(tmp_path: Path) -> None:
    frame = long().set_axis(["run", "uid", "hit"], axis=1)
    frame["acc"] = frame["run"].map(ACCURACY)
    frame.to_csv(tmp_path / "t.csv", index=False)
    columns = {"model": "run", "example": "uid", "correct": "hit"}
    data = read_data(tmp_path / "t.csv", columns=columns, id_accuracy="acc", groups="run")
    assert data.hash != HASH
    assert CorrectnessData.from_frame(frame, columns=columns, id_accuracy="acc").hash == HASH
    for wrong, message in (
        ({"model": "runn"}, "did you mean 'run'"),
        ({"modl": "run"}, "unknown role of a column 'modl'; did you mean 'model'"),
    ):
        with pytest.raises(InputError, match=message):
            read_data(tmp_path / "t.csv", columns=wrong)


# ------------------------------------------------------------------------------------ scores, domains


def test_losses_are_mapped_by_their_ends_and_so_are_accuracies() -> None:
    losses = 5 * (1 - 0.8 * WIDE)
    accuracy = {"a": 0.5, "b": 1.0, "c": 1.5, "d": 2.0}
    data = CorrectnessData.from_frame(losses, id_accuracy=accuracy, scores=(5, 0))
    np.testing.assert_allclose(data.correct, 0.8 * CORRECT, atol=1e-7)
    np.testing.assert_allclose(data.id_accuracy, [0.9, 0.8, 0.7, 0.6])
    assert data.scores
    with pytest.raises(InputError, match="'a' on example 'x' is 5.0; expected a score from 4.*--scores"):
        CorrectnessData.from_frame(losses, id_accuracy=accuracy, scores=(4, 0))
    zero_one = CorrectnessData.from_frame(WIDE.astype(float), id_accuracy=ACCURACY, cells="score")
    assert zero_one.hash == HASH


def test_rows_in_distribution_give_accuracies() -> None:
    inside = pd.DataFrame([[1, 1], [1, 1], [1, 0], [0, 0]], index=MODELS, columns=["p", "q"])
    other = pd.DataFrame(np.zeros((4, 1), int), index=MODELS, columns=["r"])
    tables = {"photo": inside, "sketch": WIDE, "art": other}
    rows = pd.concat([long(table).assign(domain=domain) for domain, table in tables.items()])
    data = CorrectnessData.from_frame(rows, id_domains=["photo"], ood_domains=["sketch"])
    assert data.correct.tolist() == CORRECT.tolist()
    assert data.id_accuracy.tolist() == [1, 1, 0.5, 0]
    others = CorrectnessData.from_frame(rows, ood_domains=["sketch"])
    np.testing.assert_allclose(others.id_accuracy, [2 / 3, 2 / 3, 1 / 3, 0])
    sides = {"photo": "id", "sketch": "ood", "art": "id"}
    usual = CorrectnessData.from_frame(rows.replace({"domain": sides}))
    assert usual.hash == others.hash
    for options, message in (
        ({}, "does not hold 'id' and 'ood'; say which of art, photo, sketch are in and out"),
        ({"ood_domains": ["sketc"]}, "did you mean 'sketch'"),
        ({"id_domains": ["art"], "ood_domains": ["art"]}, "both in and out of distribution"),
    ):
        with pytest.raises(InputError, match=message):
            CorrectnessData.from_frame(rows, **options)


# ---------------------------------------------------------------------------------------- missing cells


def test_missing_answers_are_counted_and_left_out() -> None:
    tiled = np.tile(CORRECT[:, :2], (2, 2))[:5].astype(float)
    cells = pd.DataFrame(tiled, index=list("abcde"), columns=list("wxyz"))
    cells.iloc[0, 2] = cells.iloc[0, 3] = cells.iloc[4, 3] = np.nan
    accuracy = [0.5, 0.6, 0.7, 0.8, 0.9]
    with pytest.raises(InputError) as caught:
        CorrectnessData.from_frame(cells, id_accuracy=accuracy)
    assert "model 'a' on example 'y' is missing (3 of 20 are)" in str(caught.value)
    assert "drop-models keeps 3 of 5 models, drop-examples 2 of 4 examples" in str(caught.value)
    given: dict[str, Any] = {"missing": "drop-examples", "families": list("uuvvw")}
    data = CorrectnessData.from_frame(cells, id_accuracy=accuracy, **given)
    assert (data.n_models, data.example_ids.tolist(), data.describe()["missing cells"]) == (5, ["w", "x"], 3)
    more = pd.concat([cells, cells.iloc[1:2].rename(index={"b": "f"})])
    data = CorrectnessData.from_frame(more, id_accuracy=[*accuracy, 0.4], missing="drop-models")
    assert data.model_ids.tolist() == list("bcdf")
    assert data.id_accuracy.tolist() == [0.6, 0.7, 0.8, 0.4]
    with pytest.raises(InputError, match="drop-models keeps 0 of 5 models"):
        CorrectnessData.from_frame(cells.assign(z=np.nan), id_accuracy=accuracy, missing="drop-models")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda f: f * 3, {}, "'a' on example '007' is 3; expected 0.*read as wide.*--orientation long"),
        (lambda f: f.T * 3, {"orientation": "transposed"}, "model 'a' on example '007' is 3.*as transposed"),
        (lambda f: long(f * 3), {}, "is 3; .*read as long: a row per model and example"),
        (lambda f: f * 0.5, {}, r"is 0.5; .*--cells score"),
        (lambda f: WORDS, {}, "is 'Correct'; .*--right yes --wrong no"),
        (lambda f: WORDS, {"right": "correct"}, "belong together"),
        (lambda f: f, {"orientation": "transposed"}, "3 models and 4 .*--orientation long or wide"),
        (lambda f: f.T.assign(b2=1), {}, "3 models .*--orientation long or transposed"),
        (lambda f: f, {"orientation": "sideways"}, "unknown orientation 'sideways'"),
        (lambda f: f, {"orientation": "long"}, "unknown column of the table 'model'.*read as long"),
        (lambda f: f, {"cells": "prediction"}, "need the true classes"),
        (lambda f: f, {"missing": "drop"}, "unknown rule for missing answers 'drop'"),
        (lambda f: f, {"id_domains": ["id"]}, "only a long table with a column 'domain'"),
        (lambda f: f, {"groups": "run"}, "unknown column of the table 'run'"),
        (lambda f: f.rename(index={"b": "a"}), {}, "model_ids holds 'a' more than once.*read as wide"),
        (lambda f: f.rename(columns={"x": "é"}), {}, "two columns of the table are named 'é'"),
        (lambda f: pd.concat([long(f), long(f).tail(1)]), {}, "model 'd' has two rows for example 'é'"),
        (lambda f: long(f).replace({"model": {"b": None}}), {}, r"model_ids\[1\] is (nan|None); name"),
        (lambda f: long(f).assign(label=range(12)), {}, "example_id '007' has two values of 'label'"),
        (lambda f: long(f).assign(family=list("uvw") * 4), {}, "model 'a' has two values of 'family'"),
        (lambda f: f.iloc[:0], {}, "there are no answers beside 007"),
        (lambda f: f, {"id_accuracy": None}, "id_accuracy is missing"),
    ],
)
def test_a_wrong_table_names_what_came_and_the_option(change: Any, options: Any, message: str) -> None:
    with pytest.raises(AssayError, match=message):
        CorrectnessData.from_frame(change(WIDE), **{"id_accuracy": ACCURACY} | options)
