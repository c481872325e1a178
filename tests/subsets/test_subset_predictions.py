"""The authors' prediction CSVs: matrix and accuracies worked by hand, and files that must be refused."""

from pathlib import Path
from typing import Any

import pytest

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.files import read_data
from assay.analyses.subsets.predictions import read_predictions
from assay.core.errors import AlignmentError, FileFormatError, InputError


RUNS = ("alexnet/a", "alexnet/b", "vit/a", "vit/b")

# Three environments, three classes. Right answers in this file: rows 1, 2, 4, 5, 7.
ROWS = (
    ("env0_in", 0, (9, 1, 1)),  # training part: counts for nothing
    ("env0_out", 1, (0, 2, 1)),  # right
    ("env1_out", 2, (0, 0, 1)),  # right
    ("env0_out", 0, (1, 2, 3)),  # wrong
    ("env2_in", 1, (-1, 5, 2)),  # right
    ("env2_out", 0, (4, 4, 0)),  # a tie: the first of equals, right
    ("env2_in", 1, (4, 4, 0)),  # a tie: the first of equals, wrong
    ("env1_out", 1, (0, 1, 0)),  # right
)


def from_predictions(folder: Path, **options: Any) -> CorrectnessData:
    return CorrectnessData.of(**read_predictions(folder, **options))


def text(rows: Any = ROWS, header: str = "domain,label,p_0,p_1,p_2") -> str:
    lines = [",".join(map(str, [domain, label, *scores])) for domain, label, scores in rows]
    return "\n".join([header, *lines, ""])


def folder(tmp_path: Path, **changed: str) -> Path:
    """Four runs with one checkpoint each; `changed` replaces the text of one, `/` written as `_`."""
    for run in RUNS:
        place = tmp_path / "runs" / run
        place.mkdir(parents=True, exist_ok=True)
        content = changed.get(run.replace("/", "_"), text())
        (place / "global_step_200_predictions.csv").write_text(content)
    return tmp_path / "runs"


def changed_row(place: int, domain: str, label: Any, scores: Any) -> str:
    return text([*ROWS[:place], (domain, label, scores), *ROWS[place + 1 :]])


def test_matrix_and_accuracy_are_those_worked_by_hand(tmp_path: Path) -> None:
    better = changed_row(3, "env0_out", 0, (3, 2, 1))
    data = from_predictions(folder(tmp_path, vit_b=better), ood_env=2)
    assert data.correct.tolist() == [[1, 1, 0]] * 4
    # Pooled over env0_out and env1_out: rows 1, 2, 3, 7.
    assert data.id_accuracy.tolist() == [0.75, 0.75, 0.75, 1.0]
    assert data.labels.tolist() == [1, 0, 1]
    assert data.example_ids.tolist() == ["row_0", "row_1", "row_2"]
    assert data.meta["domain"].tolist() == ["env2_in", "env2_out", "env2_in"]
    assert data.groups.tolist() == list(RUNS)
    assert data.families is None
    assert data.model_ids.tolist() == [f"{run}/200" for run in RUNS]
    assert data.source["id_envs"] == ["0", "1"]


def test_environments_are_pooled_in_and_put_side_by_side_out_of_distribution(tmp_path: Path) -> None:
    rows = [(domain, label, (c, b, a)) for domain, label, (a, b, c) in ROWS]
    mirrored = text(rows, "domain,label,p_2,p_1,p_0")  # scores are ordered by their numbers
    more = text([*ROWS, ("env1_out", 2, (0, 0, 1))])  # rows in distribution need not agree
    place = folder(tmp_path, alexnet_a=mirrored, vit_b=more)
    assert from_predictions(place, ood_env=2).id_accuracy.tolist() == [0.75, 0.75, 0.75, 0.8]
    data = from_predictions(folder(tmp_path, alexnet_a=mirrored), ood_env=[2, 1], id_envs=[0])
    assert data.id_accuracy.tolist() == [0.5] * 4  # rows 1 and 3
    assert data.correct.tolist() == [[1, 1, 0, 1, 1]] * 4
    assert data.meta["domain"].tolist() == ["env2_in", "env2_out", "env2_in", "env1_out", "env1_out"]
    for options, message in (
        ({"ood_env": 7}, r"\['7'\], and the file has env0_in, .*different environments that all have"),
        ({"ood_env": 2, "id_envs": [0, 5]}, r"id_envs is \['0', '5'\]"),
        ({"ood_env": 2, "id_envs": [2]}, r"id_envs is \['2'\]"),
        ({"ood_env": [0, 1, 2]}, r"id_envs is \[\]"),
    ):
        with pytest.raises(InputError, match=message):
            from_predictions(place, **options)


def test_the_last_checkpoint_is_the_highest_step_not_the_last_name(tmp_path: Path) -> None:
    place = folder(tmp_path)
    wrong = changed_row(4, "env2_in", 1, (7, 5, 2))
    (place / "vit/b/global_step_1000_predictions.csv").write_text(wrong)
    data = from_predictions(place, ood_env=2)
    assert data.model_ids[-1] == "vit/b/1000"
    assert data.correct[-1].tolist() == [0, 1, 0]
    everything = from_predictions(place, ood_env=2, checkpoints="all")
    # Sorted paths, hence 1000 before 200.
    assert everything.model_ids[-2:].tolist() == ["vit/b/1000", "vit/b/200"]
    assert everything.groups[-2:].tolist() == ["vit/b", "vit/b"]
    with pytest.raises(InputError, match="unknown choice of checkpoints 'first'"):
        from_predictions(place, ood_env=2, checkpoints="first")


def test_the_command_reads_them(tmp_path: Path) -> None:
    data = read_data(folder(tmp_path), ood_env=["2"], id_envs=["0"])
    assert data.hash == from_predictions(folder(tmp_path), ood_env=2, id_envs=[0]).hash
    with pytest.raises(InputError, match="holds prediction CSVs; give --ood-env"):
        read_data(folder(tmp_path))
    with pytest.raises(InputError, match=r"ood_env is \['sketch'\]"):
        read_data(folder(tmp_path), ood_env=["sketch"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (text(ROWS[:-3] + ROWS[-2:]), "vit/b/.* has 2 rows out of distribution, .*alexnet/a.* has 3"),
        (changed_row(5, "env2_out", 2, (4, 4, 0)), "vit/b/.* or labels or domains differ. Rows have no id"),
        (changed_row(5, "env2_in", 0, (4, 4, 0)), "vit/b/.* or labels or domains differ. Rows have no id"),
    ],
)
def test_files_that_do_not_agree_on_the_rows_are_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(AlignmentError, match=message):
        from_predictions(folder(tmp_path, vit_b=content), ood_env=2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a table of predictions"),
        (text(()), "has no rows"),
        (text(header="domain,class,p_0,p_1,p_2"), "is not a table of predictions"),
        (text(header="domain,label,p_0,p_1,p_3"), "is not a table of predictions"),
        (changed_row(2, "photo", 1, (1, 2, 3)), "row 3: .*'domain': 'photo'.*a domain env<number>_in"),
        (changed_row(2, "env1_out", 3, (1, 2, 3)), r"row 3: .*'label': 3.*from 0 to 2"),
        (changed_row(2, "env1_out", 0.5, (1, 2, 3)), r"row 3: .*'label': 0\.5"),
        (changed_row(2, "env1_out", 1, (1, "nan", 3)), r"row 3: .*'p_1': nan.*numbers as scores"),
    ],
)
def test_a_bad_file_is_named_with_its_row(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        from_predictions(folder(tmp_path, alexnet_b=content), ood_env=2)
    assert "alexnet/b/global_step_200_predictions.csv" in str(caught.value)


def test_files_of_one_folder_are_one_run(tmp_path: Path) -> None:
    for step in range(4):
        (tmp_path / f"global_step_{step}_predictions.csv").write_text(text())
    with pytest.raises(InputError, match="count as checkpoints of one run.*--checkpoints all"):
        from_predictions(tmp_path, ood_env=2)
    data = from_predictions(tmp_path, ood_env=2, checkpoints="all")
    assert data.model_ids.tolist() == ["0", "1", "2", "3"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no file global_step_K_predictions.csv"):
        from_predictions(tmp_path / "empty", ood_env=2)
