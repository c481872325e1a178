"""Every shape of a table of answers is one matrix: tiny tables worked by hand, random ones in five shapes."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.analyses.subsets.cells import complete_part
from assay.analyses.subsets.data import CorrectnessData
from assay.core.errors import AlignmentError, FileFormatError, InputError
from assay.pipeline.subset_data import read_data


CORRECT = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]], dtype=np.uint8)
MODELS, EXAMPLES, ACCURACY = list("abcd"), ["007", "x", "é"], [0.9, 0.8, 0.7, 0.6]


def wide(correct: Any, models: Any, examples: Any) -> pd.DataFrame:
    return pd.DataFrame(correct, index=list(models), columns=list(examples))


def long(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.rename_axis("model").reset_index().melt("model", var_name="example_id", value_name="correct")


def write_shapes(folder: Path, frame: pd.DataFrame, separator: str = ",") -> dict[str, Path]:
    """One table in five shapes, without accuracies."""
    places = {
        name: folder / f"{name}.csv" for name in ("wide", "transposed", "long", "predicted", "rated")
    } | {"files": folder / "files"}
    frame.rename_axis("model").to_csv(places["wide"], sep=separator)
    frame.T.rename_axis("example_id").to_csv(places["transposed"], sep=separator)
    long(frame).to_csv(places["long"], sep=separator, index=False)
    predicted = long(frame).assign(label="cat")
    predicted["prediction"] = np.where(predicted.pop("correct") == 1, "cat", "dog")
    predicted.to_csv(places["predicted"], sep=separator, index=False)
    places["files"].mkdir()
    for name, row in frame.iterrows():
        rows = row.rename_axis("example_id").rename("correct")
        rows.to_csv(places["files"] / f"{name}.csv", sep=separator)
    rated = pd.DataFrame({"model": frame.index, "id_accuracy": np.arange(1, len(frame) + 1) / 10})
    rated.to_csv(places["rated"], index=False)
    return places


def same(one: CorrectnessData, other: CorrectnessData) -> bool:
    """Whether two data are equal but for the order of models and examples."""
    assert sorted(one.model_ids) == sorted(other.model_ids)
    models = np.array([other.model_ids.index(name) for name in one.model_ids])
    places = {name: place for place, name in enumerate(other.example_ids.tolist())}
    examples = np.array([places[name] for name in one.example_ids.tolist()])
    return one.hash == other.take_models(models).take_examples(examples).hash


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    correct=hnp.arrays(np.uint8, st.tuples(st.integers(4, 7), st.integers(2, 6)), elements=st.integers(0, 1)),
    separator=st.sampled_from(",;\t|"),
    seed=st.integers(0, 2**16),
    boolean=st.booleans(),
)
def test_five_shapes_of_a_table_are_equal_data(
    tmp_path_factory: pytest.TempPathFactory, correct: np.ndarray, separator: str, seed: int, boolean: bool
) -> None:
    names = [f"m{k}" for k in range(len(correct))], [f"{k:03d}" for k in range(correct.shape[1])]
    frame = wide(correct.astype(bool) if boolean else correct, *names)
    shuffled = frame.sample(frac=1, random_state=seed).sample(frac=1, axis=1, random_state=seed)
    places = write_shapes(tmp_path_factory.mktemp("shapes"), shuffled, separator)
    accuracy = {f"m{k}": k / 10 for k in range(len(correct))}
    places["rated"].write_text("model,id_accuracy\n" + "".join(f"{m},{y}\n" for m, y in accuracy.items()))
    expected = CorrectnessData.from_frame(frame, id_accuracy=accuracy)
    for shape in ("wide", "transposed", "long", "predicted", "files"):
        found = read_data(places[shape], id_accuracy=str(places["rated"])).data
        assert same(expected, found), shape


# ------------------------------------------------------------------------------------------- orientation


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    places = write_shapes(tmp_path, wide(CORRECT, MODELS, EXAMPLES))
    lines = [f"{name},{y}" for name, y in zip(MODELS, ACCURACY, strict=True)]
    places["rated"].write_text("\n".join(["model,id_accuracy", *lines, ""]))
    return places


def rows_of(data: CorrectnessData) -> list[list[float]]:
    return np.asarray(data.correct).tolist()


@pytest.mark.parametrize(
    ("shape", "kind", "orientation"),
    [
        ("wide", "frame", "wide"),
        ("transposed", "frame", "transposed"),
        ("long", "frame", "long"),
        ("files", "a file per model", "long"),
    ],
)
def test_what_was_understood_is_told(
    tables: dict[str, Path], shape: str, kind: str, orientation: str
) -> None:
    data = read_data(tables[shape], id_accuracy=str(tables["rated"])).data
    assert rows_of(data) == CORRECT.tolist()
    assert data.example_ids.tolist() == EXAMPLES  # 007 is not 7
    assert data.id_accuracy.tolist() == ACCURACY
    understood = data.understood()
    assert (understood.kind, understood.orientation) == (kind, orientation)
    assert (understood.models, understood.missing) == (("a", "b", "c"), 0)
    told = dict(understood.rows())
    assert told["examples"] == "3: 007, x, é"
    assert told["models"] == "4: a, b, c, ..."
    assert told["in-distribution accuracy"] == "60.0% to 90.0%, given by model"


def test_a_table_without_a_name_of_its_rows_lies_as_the_accuracies_do() -> None:
    frame, accuracy = wide(CORRECT, MODELS, EXAMPLES), dict(zip(MODELS, ACCURACY, strict=True))
    turned = CorrectnessData.from_frame(frame.T, id_accuracy=accuracy)
    assert turned.source["orientation"] == "transposed"
    assert turned.hash == CorrectnessData.from_frame(frame, id_accuracy=accuracy).hash
    by_place = CorrectnessData.from_frame(frame.T, id_accuracy=ACCURACY)
    assert by_place.hash == turned.hash


def test_a_transposed_table_is_the_transposed_wide_one() -> None:
    frame = wide(CORRECT, MODELS, EXAMPLES).assign(id_accuracy=ACCURACY, family=list("uuvv"))
    one, other = CorrectnessData.from_frame(frame), CorrectnessData.from_frame(frame.T)
    assert one.hash == other.hash
    assert other.families == ("u", "u", "v", "v")


def test_a_square_table_is_wide_unless_it_is_turned() -> None:
    frame = pd.DataFrame(np.tri(4, dtype=int))
    one = CorrectnessData.from_frame(frame, id_accuracy=ACCURACY)
    other = CorrectnessData.from_frame(frame, id_accuracy=ACCURACY, orientation="transposed")
    assert rows_of(one) == np.tri(4).tolist()
    assert rows_of(other) == np.tri(4).T.tolist()


def test_facts_and_classes_are_columns_of_a_transposed_table() -> None:
    frame = wide(CORRECT, MODELS, EXAMPLES).T
    frame["label"], frame["light"] = ["cat", "dog", "cat"], ["day", "night", "day"]
    data = CorrectnessData.from_frame(frame, id_accuracy=ACCURACY, meta=["light"])
    assert rows_of(data) == CORRECT.tolist()
    assert data.label_names == ("cat", "dog")
    assert data.meta["light"].tolist() == ["day", "night", "day"]


def test_a_column_that_counts_rows_is_no_example(tmp_path: Path) -> None:
    frame = wide(CORRECT, MODELS, EXAMPLES).rename_axis("model").reset_index()
    frame.insert(1, "id_accuracy", ACCURACY)
    frame.to_csv(tmp_path / "t.csv")  # pandas writes its index first
    assert read_data(tmp_path / "t.csv").data.example_ids.tolist() == EXAMPLES


# --------------------------------------------------------------------------------------------- cells


@pytest.mark.parametrize(
    "cells",
    [
        CORRECT.astype(bool),
        CORRECT.astype(float),
        np.where(CORRECT == 1, "True", "False"),
        np.where(CORRECT == 1, "true", "FALSE"),
        np.where(CORRECT == 1, np.True_, np.False_).astype(object),
    ],
    ids=["numpy", "float", "text", "lower", "object"],
)
def test_true_and_false_are_1_and_0(cells: np.ndarray) -> None:
    frame = wide(cells, MODELS, EXAMPLES)
    for each in (frame, frame.T, long(frame)):
        data = CorrectnessData.from_frame(each, id_accuracy=dict(zip(MODELS, ACCURACY, strict=True)))
        assert rows_of(data) == CORRECT.tolist()


def test_booleans_of_pandas_may_be_missing() -> None:
    frame = wide(CORRECT.astype(bool), MODELS, EXAMPLES).astype("boolean")
    assert rows_of(CorrectnessData.from_frame(frame, id_accuracy=ACCURACY)) == CORRECT.tolist()
    frame.iloc[1, 2] = pd.NA
    with pytest.raises(InputError, match="model 'b' on example 'é' is missing"):
        CorrectnessData.from_frame(frame, id_accuracy=ACCURACY)


def test_classes_in_cells_are_compared_with_the_true_ones() -> None:
    truth = np.array(["cat", "dog", "elk"])
    predicted = np.where(CORRECT == 1, truth, "emu")
    frame = wide(predicted, MODELS, EXAMPLES).T
    frame["label"] = truth
    data = CorrectnessData.from_frame(frame, id_accuracy=ACCURACY)
    assert rows_of(data) == CORRECT.tolist()
    assert data.source["answers"] == "classes compared with the true ones"
    known = pd.DataFrame({"truth": truth}, index=EXAMPLES)
    other = CorrectnessData.from_frame(
        wide(predicted, MODELS, EXAMPLES), id_accuracy=ACCURACY, examples=known
    )
    assert rows_of(other) == CORRECT.tolist()
    assert other.label_names == ("cat", "dog", "elk")


def test_0_and_1_are_classes_if_they_are_said_to_be() -> None:
    frame = wide(CORRECT, MODELS, EXAMPLES).T.assign(label=[0, 0, 1])
    with pytest.raises(
        InputError, match="cells are 0 and 1, and so are the true classes; .*--cells prediction"
    ):
        CorrectnessData.from_frame(frame, id_accuracy=ACCURACY)
    right = CorrectnessData.from_frame(frame, id_accuracy=ACCURACY, cells="correct")
    assert rows_of(right) == CORRECT.tolist()
    named = frame.assign(label=["cat", "dog", "cat"])  # no such class is 0 or 1
    assert rows_of(CorrectnessData.from_frame(named, id_accuracy=ACCURACY)) == CORRECT.tolist()
    data = CorrectnessData.from_frame(frame, id_accuracy=ACCURACY, cells="prediction")
    assert rows_of(data) == (np.array([[0, 0, 1]]) == CORRECT).astype(int).tolist()


@pytest.mark.parametrize("of_one", [True, False])
def test_the_likeliest_class_is_compared_with_the_true_one(of_one: bool) -> None:
    frame = long(wide(CORRECT, MODELS, EXAMPLES))
    frame["label"] = frame["example_id"].map({"007": 0, "x": 1, "é": 1})
    right = frame.pop("correct") == 1
    p = np.where(right, frame["label"], 1 - frame["label"]) * 0.4 + 0.3  # 0.7 of the class it takes for true
    if of_one:
        frame["probability"] = p
    else:
        frame["p_0"], frame["p_1"] = 1 - p, p
    data = CorrectnessData.from_frame(frame, id_accuracy=dict(zip(MODELS, ACCURACY, strict=True)))
    assert rows_of(data) == CORRECT.tolist()
    tied = frame.assign(**{name: 0.5 for name in ("probability", "p_0", "p_1") if name in frame})
    first = CorrectnessData.from_frame(tied, id_accuracy=dict(zip(MODELS, ACCURACY, strict=True)))
    assert rows_of(first) == [[1, 0, 0]] * 4  # the first of equals, class 0
    with pytest.raises(InputError, match="probabilities of 2 classes it must be a whole number from 0 to 1"):
        CorrectnessData.from_frame(frame.replace({"label": {1: 2}}), id_accuracy=ACCURACY)


def test_columns_are_named_by_role(tmp_path: Path) -> None:
    frame = long(wide(CORRECT, MODELS, EXAMPLES))
    frame.columns = ["run", "uid", "hit"]
    frame["acc"] = frame["run"].map(dict(zip(MODELS, ACCURACY, strict=True)))
    frame.to_csv(tmp_path / "t.csv", index=False)
    named = "model=run, example=uid,correct=hit"
    data = read_data(tmp_path / "t.csv", columns=named, id_accuracy="acc", groups="run").data
    assert rows_of(data) == CORRECT.tolist()
    assert data.groups == tuple(MODELS)
    assert data.id_accuracy.tolist() == ACCURACY
    for wrong, message in (
        ("model=runn", "did you mean 'run'"),
        ("modl=run", "unknown role of a column 'modl'; did you mean 'model'"),
        ("model", "give ROLE=NAME"),
    ):
        with pytest.raises(InputError, match=message):
            read_data(tmp_path / "t.csv", columns=wrong)


def test_a_decimal_comma_goes_with_a_semicolon(tmp_path: Path) -> None:
    text = "model;id_accuracy;x;y\n" + "".join(f"m{k};0,{5 + k};1;{k % 2}\n" for k in range(4))
    (tmp_path / "t.csv").write_text(text)
    assert read_data(tmp_path / "t.csv").data.id_accuracy.tolist() == [0.5, 0.6, 0.7, 0.8]


# --------------------------------------------------------------------------------------------- domains


def test_any_names_of_domains_can_be_in_and_out_of_distribution(tmp_path: Path) -> None:
    frame = long(wide(CORRECT, MODELS, EXAMPLES)).assign(domain="sketch")
    within = long(wide([[1, 1], [1, 1], [1, 0], [0, 0]], MODELS, ["p", "q"])).assign(domain="photo")
    other = long(wide(np.zeros((4, 1), int), MODELS, ["r"])).assign(domain="cartoon")
    pd.concat([within, frame, other]).to_csv(tmp_path / "t.csv", index=False)
    data = read_data(tmp_path / "t.csv", id_envs="photo", ood_env="sketch").data
    assert rows_of(data) == CORRECT.tolist()
    assert data.id_accuracy.tolist() == [1, 1, 0.5, 0]
    rest = read_data(tmp_path / "t.csv", ood_env="sketch").data  # all others are in distribution
    assert rest.id_accuracy.tolist() == pytest.approx([2 / 3, 2 / 3, 1 / 3, 0])
    with pytest.raises(InputError, match="holds 'cartoon'.*which of cartoon, photo, sketch.*--ood-env"):
        read_data(tmp_path / "t.csv")
    with pytest.raises(InputError, match="did you mean 'sketch'"):
        read_data(tmp_path / "t.csv", ood_env="sketsh")


# --------------------------------------------------------------------------------------------- holes


HOLES = np.array([[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], dtype=bool)


def test_the_largest_share_of_holes_goes_first_worked_by_hand() -> None:
    # Shares of models 2/4, 1/4, 0, 0, 0; of examples 0, 0, 1/5, 2/5: the first model goes. Then models 1/4,
    # examples 1/4: equal, so the last example goes, and nothing is missing any more.
    models, examples = complete_part(HOLES, "drop")
    assert models.tolist() == [1, 2, 3, 4]
    assert examples.tolist() == [0, 1, 2]
    assert complete_part(HOLES, "drop-models")[0].tolist() == [2, 3, 4]
    assert complete_part(HOLES, "drop-examples")[1].tolist() == [0, 1]


def literal_drop(holes: np.ndarray) -> tuple[set[int], set[int]]:
    """The rule of `complete_part` with fractions and sets."""
    from fractions import Fraction

    rows, columns = set(range(holes.shape[0])), set(range(holes.shape[1]))
    while any(holes[i, j] for i in rows for j in columns):
        of_rows = {i: Fraction(sum(bool(holes[i, j]) for j in columns), len(columns)) for i in rows}
        of_columns = {j: Fraction(sum(bool(holes[i, j]) for i in rows), len(rows)) for j in columns}
        worst = max(max(of_rows.values()), max(of_columns.values()))
        if max(of_columns.values()) == worst:
            columns -= {j for j, share in of_columns.items() if share == worst}
        else:
            rows -= {i for i, share in of_rows.items() if share == worst}
    return rows, columns


@given(holes=hnp.arrays(np.bool_, st.tuples(st.integers(1, 7), st.integers(1, 7))))
def test_what_is_left_is_complete_and_what_the_rule_says(holes: np.ndarray) -> None:
    for rule in ("drop", "drop-models", "drop-examples"):
        models, examples = complete_part(holes, rule)
        assert not holes[np.ix_(models, examples)].any()
    models, examples = complete_part(holes, "drop")
    rows, columns = literal_drop(holes)
    if rows and columns:
        assert (set(models.tolist()), set(examples.tolist())) == (rows, columns)


def test_missing_cells_are_counted_with_the_ways_out() -> None:
    cells = np.tile(CORRECT[:, :2], (2, 2))[:5].astype(float)
    cells[HOLES] = np.nan
    frame = wide(cells, "abcde", "wxyz").assign(id_accuracy=[0.5, 0.6, 0.7, 0.8, 0.9], family=list("uuvvw"))
    with pytest.raises(InputError) as caught:
        CorrectnessData.from_frame(frame)
    for part in (
        "model 'a' on example 'y' is missing (3 of 20 cells are)",
        "drop-examples keeps 2 of 4 examples, drop-models 3 of 5 models",
        "4 models and 3 examples",
    ):
        assert part in str(caught.value)
    data = CorrectnessData.from_frame(frame, missing="drop")
    assert data.model_ids == tuple("bcde")
    assert data.families == ("u", "v", "v", "w")
    assert data.id_accuracy.tolist() == [0.6, 0.7, 0.8, 0.9]
    assert rows_of(data) == cells[1:, :3].tolist()
    assert data.source["missing"] == 3
    assert data.source["left_out"] == {"models": 1, "examples": 1}
    assert "1 models left out, 1 examples left out" in dict(data.understood().rows())["cells"]
    assert CorrectnessData.from_frame(frame, missing="drop-examples").n_examples == 2
    with pytest.raises(InputError, match="pairwise.*not offered"):
        CorrectnessData.from_frame(frame, missing="pairwise")
    with pytest.raises(InputError, match="leaves 0 of 5 models"):
        CorrectnessData.from_frame(frame.assign(z=np.nan), missing="drop-models")


# --------------------------------------------------------------------------------- refused, with the way out


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda f: f * 3, {}, "is 3; every cell must be 0.*read as wide.*--orientation long or transposed"),
        (lambda f: f.T * 3, {}, "is 3; .*read as transposed: a row per example.*--orientation long or wide"),
        (lambda f: long(f * 3), {}, "is 3; .*read as long: a row per model and example.*--orientation wide"),
        (lambda f: f * 0.5, {}, r"is 0.5; .*--cells score"),
        (
            lambda f: long(f).assign(label=1, probability="high").drop(columns="correct"),
            {},
            "example '007' is 'high'; every cell must be a number",
        ),
        (lambda f: f.replace(1, "cat"), {}, "is 'cat'; .*classes need a column 'label'"),
        (lambda f: f, {"orientation": "transposed"}, "id_accuracy lacks model '007'.*read as transposed"),
        (lambda f: f, {"orientation": "sideways"}, "unknown orientation 'sideways'"),
        (lambda f: f, {"orientation": "long"}, "unknown column of the table 'model'.*read as long"),
        (lambda f: f, {"cells": "prediction"}, "the true classes are missing"),
        (lambda f: f, {"id_domains": ["id"]}, "domains are given, but the table has no column 'domain'"),
        (
            lambda f: long(f),
            {"id_domains": ["id"]},
            "domains are given, but the table has no column 'domain'",
        ),
        (lambda f: f.assign(id_accuracy="good"), {"id_accuracy": None}, "of model 'a' is 'good'; expected a"),
    ],
)
def test_a_wrong_table_names_its_orientation_and_the_option(
    change: Callable[[pd.DataFrame], pd.DataFrame], options: dict[str, Any], message: str
) -> None:
    arguments = {"id_accuracy": dict(zip(MODELS, ACCURACY, strict=True))} | options
    frame = change(wide(CORRECT, MODELS, EXAMPLES))
    with pytest.raises(InputError, match=message):
        CorrectnessData.from_frame(frame, **arguments)


def test_files_of_models_without_names_must_be_equally_long(tmp_path: Path) -> None:
    for name, row in zip(MODELS, CORRECT, strict=True):
        pd.DataFrame({"correct": row}).to_csv(tmp_path / f"{name}.csv", index=False)
    rated = tmp_path.parent / "rated.csv"
    rated.write_text("model,id_accuracy\na,.9\nb,.8\nc,.7\nd,.6\n")
    data = read_data(tmp_path, id_accuracy=str(rated)).data
    assert rows_of(data) == CORRECT.tolist()
    assert data.understood().notes == ("rows of the files are matched by place",)
    pd.DataFrame({"correct": [1, 0]}).to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(AlignmentError, match="a.csv has 3 rows without a column of examples, .*b.csv has 2"):
        read_data(tmp_path, id_accuracy=str(rated))
    (tmp_path / "notes.csv").unlink(missing_ok=True)
    with pytest.raises(InputError, match="neither a file nor a column"):
        read_data(tmp_path / "a.csv", id_accuracy="accuracies.csv")


# ------------------------------------------------------------------------------------------ sample logs


def write_lm_eval(folder: Path, *, metric: str = "acc", hashed: str = "h") -> None:
    """Two tasks: `inside`, of which the models have 2, 2, 1, 0 right, and `outside`, which is CORRECT."""
    for place, name in enumerate(MODELS):
        (folder / name).mkdir(parents=True)
        tasks = {
            "inside": [int(k < (2, 2, 1, 0)[place]) for k in range(2)],
            "outside": CORRECT[place].tolist(),
        }
        for task, values in tasks.items():
            rows = [
                {"doc_id": k, "target": 0, "filter": kept, "metrics": [metric], "doc_hash": f"{hashed}{k}"}
                | {metric: float(value) if kept == "none" else 0.0}
                for kept in ("none", "strict")
                for k, value in enumerate(values)
            ]
            path = folder / name / f"samples_{task}_2026-01-02T03-04-05.678.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            old = [row | {metric: 0.0} for row in rows]
            path = folder / name / f"samples_{task}_2025-01-02T03-04-05.678.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in old))


def test_sample_logs_of_lm_eval_are_a_table(tmp_path: Path) -> None:
    write_lm_eval(tmp_path / "logs")
    data = read_data(tmp_path / "logs", id_envs="inside", ood_env="outside").data
    assert rows_of(data) == CORRECT.tolist()
    assert data.model_ids == tuple(MODELS)
    assert data.example_ids.tolist() == ["outside/0", "outside/1", "outside/2"]
    assert data.id_accuracy.tolist() == [1, 1, 0.5, 0]
    understood = data.understood()
    assert understood.kind == "lm-eval"
    assert understood.notes == (
        "inside: metric acc, filter none",
        "outside: metric acc, filter none",
        "8 older files of the same model and task left out",
    )
    with pytest.raises(InputError, match="which of inside, outside are in and out"):
        read_data(tmp_path / "logs")
    with pytest.raises(InputError, match="metric 'bleu' of a sample is 'None', not one number.*: acc"):
        read_data(tmp_path / "logs", columns="correct=bleu", ood_env="outside")


def test_one_filter_and_metric_of_a_task_are_read_for_all_models(tmp_path: Path) -> None:
    write_lm_eval(tmp_path / "logs")
    log = tmp_path / "logs" / "b" / "samples_outside_2026-01-02T03-04-05.678.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[::-1]))  # the filter `strict`, where nothing is right, comes first
    data = read_data(tmp_path / "logs", id_envs="inside", ood_env="outside").data
    assert rows_of(data) == CORRECT.tolist()
    log.write_text("".join(line for line in lines if '"strict"' in line))
    with pytest.raises(InputError, match="no sample of the filter 'none', which is read for 'outside'"):
        read_data(tmp_path / "logs", id_envs="inside", ood_env="outside")
    for folder in (tmp_path / "logs").iterdir():  # another metric in another task
        for file in folder.glob("samples_inside_*"):
            file.write_text(file.read_text().replace('"acc"', '"exact_match"'))
    log.write_text("".join(lines))
    data = read_data(tmp_path / "logs", id_envs="inside", ood_env="outside").data
    assert data.id_accuracy.tolist() == [1, 1, 0.5, 0]
    assert data.understood().notes[0] == "inside: metric exact_match, filter none"


def test_samples_that_differ_between_models_are_refused(tmp_path: Path) -> None:
    write_lm_eval(tmp_path / "logs")
    changed = tmp_path / "logs" / "b" / "samples_outside_2026-01-02T03-04-05.678.jsonl"
    changed.write_text(changed.read_text().replace('"h1"', '"g1"'))
    with pytest.raises(AlignmentError, match="sample 'outside/1' of 'b' is not that of 'a'"):
        read_data(tmp_path / "logs", ood_env="outside")
    changed.write_text("no json")
    with pytest.raises(FileFormatError, match="samples_outside.*is not a sample log of lm-eval"):
        read_data(tmp_path / "logs", ood_env="outside")


def write_inspect(folder: Path, suffix: str) -> None:
    folder.mkdir()
    for place, name in enumerate(MODELS):
        header = {"version": 2, "status": "success", "eval": {"model": f"lab/{name}", "task": "quiz"}}
        samples = [
            {"id": k, "epoch": epoch, "scores": {"match": {"value": "C" if value else "I"}}}
            for epoch in (1, 2)
            for k, value in enumerate(CORRECT[place].tolist())
        ]
        if suffix == ".json":
            (folder / f"{name}.json").write_text(json.dumps(header | {"samples": samples}))
            continue
        with zipfile.ZipFile(folder / f"{name}.eval", "w") as archive:
            archive.writestr("header.json", json.dumps(header))
            if place % 2:
                archive.writestr("summaries.json", json.dumps(samples))
            for each in samples:
                archive.writestr(f"samples/{each['id']}_epoch_{each['epoch']}.json", json.dumps(each))
    failed = {"version": 2, "status": "error", "eval": {"model": "lab/z", "task": "quiz"}}
    (folder / "failed.json").write_text(json.dumps(failed))


@pytest.mark.parametrize("suffix", [".json", ".eval"])
def test_logs_of_inspect_are_a_table(tmp_path: Path, suffix: str) -> None:
    write_inspect(tmp_path / "logs", suffix)
    rated = tmp_path / "rated.csv"
    rated.write_text("model,id_accuracy\n" + "".join(f"lab/{m},0.{k}\n" for k, m in enumerate(MODELS, 5)))
    data = read_data(tmp_path / "logs", id_accuracy=str(rated)).data
    assert rows_of(data) == CORRECT.tolist()
    assert data.model_ids == tuple(f"lab/{name}" for name in MODELS)
    assert data.understood().kind == "inspect_ai"
    assert data.understood().notes == (
        "the first scorer of each sample",
        "1 logs left out (1 did not succeed, the others are older)",
        "mean over 2 epochs",
    )
    with pytest.raises(InputError, match="no scorer 'f1'; it has match"):
        read_data(tmp_path / "logs", columns="correct=f1", id_accuracy=str(rated))
    (tmp_path / "logs" / "odd.json").write_text("{}")
    with pytest.raises(FileFormatError, match="odd.json is not a log of inspect_ai"):
        read_data(tmp_path / "logs", id_accuracy=str(rated))


@pytest.mark.parametrize("suffix", [".json", ".eval"])
@pytest.mark.parametrize("emptied", [MODELS, MODELS[:1]])
def test_logs_of_inspect_without_samples_are_named(tmp_path: Path, suffix: str, emptied: list[str]) -> None:
    write_inspect(tmp_path / "logs", suffix)
    for name in emptied:
        header = {"version": 2, "status": "success", "eval": {"model": f"lab/{name}", "task": "quiz"}}
        path = tmp_path / "logs" / f"{name}{suffix}"
        if suffix == ".json":
            path.write_text(json.dumps(header))
        else:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("header.json", json.dumps(header))
    said = f"{len(emptied)} logs? without samples.*a{suffix}.*without --no-log-samples, or remove"
    with pytest.raises(InputError, match=said):
        read_data(tmp_path / "logs")


def test_models_of_lm_eval_without_samples_are_named(tmp_path: Path) -> None:
    write_lm_eval(tmp_path / "logs")
    for name in MODELS:
        (tmp_path / "logs" / name / "results_2026-01-02T03-04-05.678.json").write_text("{}")
    assert read_data(tmp_path / "logs", id_envs="inside", ood_env="outside").data.n_models == 4
    for log in (tmp_path / "logs" / "c").glob("samples_*"):
        log.unlink()
    with pytest.raises(InputError, match="1 log without samples.*c/results_.*--log_samples"):
        read_data(tmp_path / "logs", id_envs="inside", ood_env="outside")
    for log in (tmp_path / "logs").glob("*/samples_*"):
        log.unlink()
    with pytest.raises(InputError, match="4 logs without samples"):
        read_data(tmp_path / "logs", id_envs="inside", ood_env="outside")
    (tmp_path / "logs" / "c" / "samples_outside_2026-01-02T03-04-05.678.jsonl").write_text("")
    with pytest.raises(InputError, match="3 logs without samples"):
        read_data(tmp_path / "logs", ood_env="outside")


# ------------------------------------------------------------------------------------------------ WILDS


def test_predictions_of_wilds_meet_the_classes_of_their_split(tmp_path: Path) -> None:
    truth = pd.DataFrame({"split": ["id_test"] * 2 + ["train"] + ["test"] * 3, "y": [0, 1, 9, 2, 0, 1]})
    truth.to_csv(tmp_path / "metadata.csv")
    for place, (folder, seed) in enumerate((each, k) for each in ("erm", "irm") for k in "01"):
        (tmp_path / "preds" / folder).mkdir(parents=True, exist_ok=True)
        inside = [0, 1] if place < 2 else [0, 0]
        outside = np.where(CORRECT[place] == 1, [2, 0, 1], 7).tolist()
        for split, values in (("id_test", inside), ("test", outside)):
            name = f"iwildcam_split:{split}_seed:{seed}_epoch:best_pred.csv"
            (tmp_path / "preds" / folder / name).write_text("".join(f"{value}\n" for value in values))
    given: dict[str, Any] = {"examples": tmp_path / "metadata.csv", "id_envs": "id_test", "ood_env": "test"}
    data = read_data(tmp_path / "preds", **given).data
    assert rows_of(data) == CORRECT.tolist()
    assert data.model_ids == ("erm/0", "erm/1", "irm/0", "irm/1")
    assert data.groups == data.model_ids
    assert data.id_accuracy.tolist() == [1, 1, 0.5, 0.5]
    assert data.example_ids.tolist() == ["test/0", "test/1", "test/2"]
    assert data.understood().kind == "WILDS"
    with pytest.raises(InputError, match="without true classes; give --examples FILE"):
        read_data(tmp_path / "preds", ood_env="test")
    (tmp_path / "preds" / "erm" / "iwildcam_split:test_seed:0_epoch:best_pred.csv").write_text("2\n0\n")
    with pytest.raises(
        AlignmentError, match="holds 2 rows of 1 numbers; expected one class for each of the 3"
    ):
        read_data(tmp_path / "preds", **given)
