"""Files of answers as programs write them: separators, limits, a file per model, sample logs."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from assay.analyses.subsets import files
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.files import read_data
from assay.core.errors import AlignmentError, AssayError, FileFormatError, InputError


CORRECT = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]], dtype=np.uint8)
MODELS, ACCURACY = list("abcd"), [0.9, 0.8, 0.7, 0.6]
LINES = ["model,id_accuracy,x,y,z", "a,0.9,1,0,1", "b,0.8,0,0,1", "c,0.7,1,1,1", "d,0.6,0,1,0"]


@pytest.fixture
def expected() -> CorrectnessData:
    return CorrectnessData.of(CORRECT, ACCURACY, model_ids=MODELS, example_ids=list("xyz"))


def write(path: Path, lines: list[str], separator: str = ",") -> Path:
    path.write_text("".join(line.replace(",", separator) + "\n" for line in lines))
    return path


# ------------------------------------------------------------------------------ tables of programs


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_delimiters_behind_values_shift_no_columns_and_more_values_are_refused(
    tmp_path: Path, expected: CorrectnessData, separator: str
) -> None:
    header, *rows = LINES
    for lines in (
        [header, *(f"{row}," for row in rows)],  # behind the values alone: the header is one shorter
        [f"{header},,", *(f"{row},," for row in rows)],
        [header, rows[0], f"{rows[1]},", *rows[2:]],
        [header, "", *rows, ""],
    ):
        data = read_data(write(tmp_path / "t.csv", lines, separator))
        assert data.hash == expected.hash
        assert data.id_accuracy.tolist() == ACCURACY
    for longer in (range(1, 5), range(3, 4)):
        lines = [f"{line},1" if place in longer else line for place, line in enumerate(LINES)]
        with pytest.raises(FileFormatError, match=rf"line {longer[0] + 1} of .*t.csv has 6 values, .* 5"):
            read_data(write(tmp_path / "t.csv", lines, separator))
    rated = write(tmp_path / "acc.csv", ["model,accuracy", "a,.9,1", "b,.8,1", "c,.7,1", "d,.6,1"], separator)
    with pytest.raises(FileFormatError, match="line 2 of .*acc.csv has 3 values, the header 2. Name"):
        read_data(write(tmp_path / "t.csv", LINES, separator), id_accuracy=str(rated))


def test_a_first_line_that_is_no_header_is_read_or_named(tmp_path: Path, expected: CorrectnessData) -> None:
    path = tmp_path / "t.csv"
    for start, end in (("\n\n", "\n"), ("", "\r"), ("\r\n", ",\r\n")):
        path.write_bytes((start + end.join(LINES)).encode())
        assert read_data(path).hash == expected.hash
    for lines, message in (
        (["Results of June", *LINES], "line 2 of .*t.csv has 5 values, .* 1. .*remove lines before it"),
        (["a,b,a", "1,2,3"], "column 3 of .* is named 'a'; give it a name of its own"),
        (["a,,c", "1,2,3"], "column 2 of .* is named ''"),
        ([], "t.csv is empty"),
    ):
        with pytest.raises(FileFormatError, match=message):
            read_data(write(path, lines))


def test_utf_8_is_read_and_another_encoding_named(tmp_path: Path, expected: CorrectnessData) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(LINES), encoding="utf-8-sig")
    assert read_data(path).hash == expected.hash
    path.write_bytes("\n".join(LINES).replace("b,", "é,").encode("latin-1"))
    with pytest.raises(FileFormatError, match=r"line 3 of .*t.csv is not UTF-8 \(byte 0xe9\)"):
        read_data(path)


def test_a_compressed_table_is_read_up_to_a_limit(tmp_path, expected, monkeypatch):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress("\n".join(LINES).encode()))
    assert read_data(path).hash == expected.hash
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(FileFormatError, match="cannot read .*end-of-stream"):
        read_data(path)
    monkeypatch.setattr(files, "_MOST", 1_000_000)
    path.write_bytes(gzip.compress(b"model,x\n" + b"0" * 2_000_000))
    with pytest.raises(FileFormatError, match="holds more than 0.0 GB"):
        read_data(path)


def test_names_are_text_and_only_an_empty_one_is_missing(tmp_path: Path) -> None:
    rows = (f"{m},.{k + 5},{m},1,{k % 2}" for k, m in enumerate(["01", "NA", "None", "1e3"]))
    lines = ["model,id_accuracy,group,007,NA", *rows]
    data = read_data(write(tmp_path / "t.csv", lines))
    assert data.model_ids.tolist() == ["01", "NA", "None", "1e3"]
    assert data.example_ids.tolist() == ["007", "NA"]
    assert data.groups.tolist() == data.model_ids.tolist()
    with pytest.raises(InputError, match=r"model_ids\[0\] is nan; name every one"):
        read_data(write(tmp_path / "t.csv", [lines[0], ",.5,g,1,1", *lines[2:]]))


def test_a_decimal_comma_goes_with_a_semicolon(tmp_path: Path) -> None:
    lines = ["model;id_accuracy;x;y", *(f"m{k};0,{5 + k};1;{k % 2}" for k in range(4))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert read_data(tmp_path / "t.csv").id_accuracy.tolist() == [0.5, 0.6, 0.7, 0.8]


# ------------------------------------------------------------------------- other files, other sources


def test_runs_families_and_facts_come_from_files(tmp_path: Path, expected: CorrectnessData) -> None:
    table = write(tmp_path / "t.csv", LINES)
    runs = write(tmp_path / "runs.csv", ["model,run", "d,1", "c,1", "b,02", "a,02"])
    facts = write(tmp_path / "facts.csv", ["image,label,hour", "z,dog,3", "y,cat,2", "x,cat,1"])
    data = read_data(table, families=str(runs), groups="model", examples=facts)
    assert data.families.tolist() == ["02", "02", "1", "1"]
    assert data.groups.tolist() == MODELS
    assert data.label_names == ("cat", "dog")
    assert data.meta["hour"].tolist() == [1, 2, 3]
    archive = expected.save(tmp_path / "t.npz")
    assert read_data(archive).hash == expected.hash
    assert read_data(archive, families=str(runs), groups="model").hash == data.hash


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("none.csv", {}, "does not exist. Pass a correctness archive"),
        ("t.npz", {"columns": {"model": "m"}}, "--columns has no effect for an archive"),
        ("t.csv", {"checkpoints": "all"}, "--checkpoints has no effect for a table"),
        ("t.csv", {"log_filter": "first"}, "--filter.* is for sample logs"),
        ("t.csv", {"groups": "runs"}, "--groups is 'runs', neither a file nor a column"),
        ("empty", {}, "empty holds no answers. Pass tables"),
    ],
)
def test_an_option_without_effect_and_a_missing_file_are_named(tmp_path, expected, source, options, message):
    write(tmp_path / "t.csv", LINES)
    expected.save(tmp_path / "t.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(AssayError, match=message):
        read_data(tmp_path / source, **options)


def test_files_of_models_are_named_by_their_paths_and_name_their_examples(tmp_path: Path) -> None:
    folder = tmp_path / "v1.0"
    (folder / "deep").mkdir(parents=True)
    for name, row in zip(["a", "b", "deep/c.1", "d"], CORRECT, strict=True):
        pd.DataFrame({"example_id": list("pqr"), "correct": row}).to_csv(folder / f"{name}.csv", index=False)
    rated = write(tmp_path / "rated.csv", ["model,y", "a,.9", "b,.8", "d,.6", "deep/c.1,.7"])
    data = read_data(folder, id_accuracy=str(rated))
    assert data.model_ids.tolist() == ["a", "b", "d", "deep/c.1"]
    assert data.correct.tolist() == CORRECT[[0, 1, 3, 2]].tolist()
    pd.DataFrame({"correct": [1, 0, 1]}).to_csv(folder / "b.csv", index=False)
    with pytest.raises(AlignmentError, match="b.csv has no column 'example_id' .*--columns example=NAME"):
        read_data(folder, id_accuracy=str(rated))


# ------------------------------------------------------------------------------------------ sample logs


def sample(task: str, number: int, **metrics: Any) -> dict[str, Any]:
    return {"doc_id": number, "doc_hash": f"{task}{number}", "metrics": list(metrics), **metrics}


def write_logs(folder: Path) -> None:
    """Two tasks: `inside`, of which the models have 2, 2, 1, 0 right, and `outside`, which is CORRECT."""
    for place, name in enumerate(MODELS):
        (folder / name).mkdir(parents=True)
        inside = [sample("inside", k, acc=float(k < (2, 2, 1, 0)[place])) for k in range(2)]
        row = CORRECT[place]
        outside = [sample("outside", k, acc=float(row[k]), acc_norm=1.0) for k in range(3)]
        for task, samples in (("inside", inside), ("outside", outside)):
            rows = [{"filter": kept, **each} for kept in ("none", "strict") for each in samples]
            rows = [row | ({"acc": 0.0} if row["filter"] == "strict" else {}) for row in rows]
            write_log(folder / name / f"samples_{task}_2026-01-02T03-04-05.678.jsonl", rows)
            old = [row | {"acc": 0.5} for row in rows]
            write_log(folder / name / f"samples_{task}_2025-01-02T03-04-05.678.jsonl", old)


def write_log(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_logs(folder: Path, **options: Any) -> CorrectnessData:
    return read_data(folder, id_envs=["inside"], ood_env=["outside"], **options)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write_logs(tmp_path / "logs")
    return tmp_path / "logs"


def edit(logs: Path, change: Any, task: str = "outside", models: str = "abcd") -> None:
    """Change the samples of a task in the newest logs of some models."""
    for name in models:
        path = logs / name / f"samples_{task}_2026-01-02T03-04-05.678.jsonl"
        write_log(path, change([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]))


def test_sample_logs_are_a_table(logs: Path) -> None:
    data = read_logs(logs)
    assert data.correct.tolist() == CORRECT.tolist()
    assert data.model_ids.tolist() == MODELS
    assert data.example_ids.tolist() == ["outside/0", "outside/1", "outside/2"]
    assert data.id_accuracy.tolist() == [1, 1, 0.5, 0]
    notes = data.describe()["notes"]
    assert "inside: metric acc" in notes
    assert "8 older files" in notes
    with pytest.raises(InputError, match="which of inside, outside are in and out"):
        read_data(logs)


def test_null_in_a_log_is_a_missing_answer(logs: Path) -> None:
    edit(logs, lambda rows: [row | ({"acc": None} if row["doc_id"] == 1 else {}) for row in rows], models="b")
    with pytest.raises(InputError, match="model 'b' on example 'outside/1' is missing"):
        read_logs(logs)
    assert read_logs(logs, missing="drop-examples").correct.tolist() == CORRECT[:, [0, 2]].tolist()


def test_a_metric_that_a_task_lacks_is_chosen_per_task(logs: Path) -> None:
    with pytest.raises(InputError, match="no metric 'acc_norm'; it has acc. Tasks with it: outside"):
        read_logs(logs, columns={"correct": "acc_norm"})
    data = read_logs(logs, columns={"correct": "outside:acc_norm,inside:acc"})
    assert data.correct.tolist() == np.ones((4, 3)).tolist()
    assert data.id_accuracy.tolist() == [1, 1, 0.5, 0]
    assert read_logs(logs, columns={"correct": "outside:acc_norm"}).hash == data.hash
    with pytest.raises(InputError, match="unknown task 'outsid'; did you mean 'outside'"):
        read_logs(logs, columns={"correct": "outsid:acc_norm"})


def test_two_rows_a_sample_need_a_choice(logs: Path) -> None:
    edit(logs, lambda rows: [{k: v for k, v in row.items() if k != "filter"} for row in rows])
    with pytest.raises(InputError, match="has 6 rows for 3 samples .*--filter first"):
        read_logs(logs)
    first, last = (read_logs(logs, log_filter=each) for each in ("first", "last"))
    assert first.correct.tolist() == CORRECT.tolist()
    assert last.correct.tolist() == np.zeros((4, 3)).tolist()
    assert last.id_accuracy.tolist() == [0] * 4


def test_one_filter_of_a_task_is_read_of_all_models(logs: Path) -> None:
    edit(logs, lambda rows: rows[::-1], models="b")  # the filter where nothing is right comes first
    assert read_logs(logs).correct.tolist() == CORRECT.tolist()
    edit(logs, lambda rows: [row for row in rows if row["filter"] == "strict"], models="b")
    with pytest.raises(InputError, match="has 0 rows for 0 samples of the filter 'none'"):
        read_logs(logs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [row | {"doc_hash": "g"} for row in rows], "'outside/0' of 'b' is not that"),
        (lambda rows: [row | {"acc": [1, 2]} for row in rows], "'acc' of each sample .--columns correct=M"),
        (lambda rows: [{"acc": 1}], "is not a sample log of lm-eval"),
        (lambda rows: [], "it has no samples, .*evaluate again with --log_samples"),
    ],
)
def test_logs_that_cannot_be_compared_are_refused(logs: Path, change: Any, message: str) -> None:
    edit(logs, change, models="b")
    with pytest.raises((AlignmentError, FileFormatError), match=message):
        read_logs(logs)
