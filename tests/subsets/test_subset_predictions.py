"""The authors' prediction CSVs: matrix and accuracies worked by hand, and files that must be refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.analyses.subsets import _contents, load_predictions
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.layouts import PackedMatrix
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
    data = load_predictions(folder(tmp_path, vit_b=better), ood_env=2)
    assert isinstance(data.correct, np.ndarray)
    assert data.correct.tolist() == [[1, 1, 0]] * 4
    # Pooled over env0_out and env1_out: rows 1, 2, 3, 7.
    assert data.id_accuracy.tolist() == [0.75, 0.75, 0.75, 1.0]
    assert data.n_id is not None
    assert data.n_id.tolist() == [4] * 4
    assert data.labels is not None
    assert data.labels.tolist() == [1, 0, 1]
    assert data.example_ids.tolist() == ["row_0", "row_1", "row_2"]
    assert data.meta["domain"].tolist() == ["env2_in", "env2_out", "env2_in"]
    assert data.groups == RUNS
    assert data.families is None
    assert data.model_ids == tuple(f"{run}/200" for run in RUNS)
    assert data.source["id_envs"] == [0, 1]


def test_accuracy_is_pooled_over_the_environments_asked_for(tmp_path: Path) -> None:
    data = load_predictions(folder(tmp_path), ood_env=2, id_envs=[0])
    assert data.id_accuracy.tolist() == [0.5] * 4  # rows 1 and 3
    assert data.n_id is not None
    assert data.n_id.tolist() == [2] * 4


def test_several_environments_are_put_side_by_side(tmp_path: Path) -> None:
    data = load_predictions(folder(tmp_path), ood_env=[2, 1], id_envs=[0])
    assert isinstance(data.correct, np.ndarray)
    assert data.correct[0].tolist() == [1, 1, 0, 1, 1]
    assert data.meta["domain"].tolist() == ["env2_in", "env2_out", "env2_in", "env1_out", "env1_out"]


def test_the_order_of_score_columns_is_that_of_their_numbers(tmp_path: Path) -> None:
    rows = [(domain, label, (c, b, a)) for domain, label, (a, b, c) in ROWS]
    mirrored = text(rows, "domain,label,p_2,p_1,p_0")
    data = load_predictions(folder(tmp_path, alexnet_a=mirrored), ood_env=2)
    assert isinstance(data.correct, np.ndarray)
    assert data.correct[0].tolist() == [1, 1, 0]


def test_the_last_checkpoint_is_the_highest_step_not_the_last_name(tmp_path: Path) -> None:
    place = folder(tmp_path)
    wrong = changed_row(4, "env2_in", 1, (7, 5, 2))
    (place / "vit/b/global_step_1000_predictions.csv").write_text(wrong)
    data = load_predictions(place, ood_env=2)
    assert data.model_ids[-1] == "vit/b/1000"
    assert isinstance(data.correct, np.ndarray)
    assert data.correct[-1].tolist() == [0, 1, 0]
    everything = load_predictions(place, ood_env=2, checkpoints="all")
    # Sorted paths, hence 1000 before 200.
    assert everything.model_ids[-2:] == ("vit/b/1000", "vit/b/200")
    assert everything.groups is not None
    assert everything.groups[-2:] == ("vit/b", "vit/b")
    assert load_predictions(place, ood_env=2, checkpoints=[200]).model_ids[-1] == "vit/b/200"
    with pytest.raises(InputError, match=r"no file has step 300; available steps: \[200, 1000\]"):
        load_predictions(place, ood_env=2, checkpoints=[200, 300])


def test_runs_families_ids_and_names_can_be_given(tmp_path: Path) -> None:
    data = load_predictions(
        folder(tmp_path),
        ood_env=2,
        run_of=lambda path: path.parent.as_posix().rpartition("runs/")[2],
        family_of=lambda path: path.parent.parent.name,
        example_ids=["a", "b", "c"],
        label_names=["dog", "cat", "elk"],
    )
    assert data.groups == RUNS
    assert data.families == ("alexnet", "alexnet", "vit", "vit")
    assert data.example_ids.tolist() == ["a", "b", "c"]
    assert data.label_names == ("dog", "cat", "elk")


def test_files_may_be_listed_in_any_order(tmp_path: Path) -> None:
    place = folder(tmp_path)
    files = sorted(place.rglob("*.csv"), reverse=True)
    assert load_predictions(files, ood_env=2).hash == CorrectnessData.from_predictions(place, ood_env=2).hash


def test_progress_counts_files(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    load_predictions(folder(tmp_path), ood_env=2, progress=lambda *facts: seen.append(facts))
    assert seen == [("read", count, 4) for count in range(1, 5)]


def test_a_matrix_too_large_for_memory_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder(tmp_path)
    for step in range(300, 306):
        (place / f"vit/b/global_step_{step}_predictions.csv").write_text(text())
    plain = load_predictions(place, ood_env=2, checkpoints="all")
    monkeypatch.setattr(_contents, "free_memory", lambda: 50)
    packed = load_predictions(place, ood_env=2, checkpoints="all")
    assert plain.n_models == 10
    assert isinstance(packed.correct, PackedMatrix)
    assert packed.hash == plain.hash


# ----------------------------------------------------------------------------------------------- alignment


@pytest.mark.parametrize(
    ("content", "message"),
    [
        # The two first rows out of distribution change places.
        (
            text([*ROWS[:4], ROWS[5], ROWS[4], *ROWS[6:]]),
            r"row 1 out of distribution of .*vit/a.* label 0, .* it is 1",
        ),
        (
            changed_row(6, "env2_in", 2, (4, 4, 0)),
            r"row 3 out of distribution of .*vit/a.* label 2, .* it is 1",
        ),
        (changed_row(6, "env2_out", 1, (4, 4, 0)), "row 3 out of distribution of .* domain env2_out"),
        (text([*ROWS[:6], *ROWS[7:]]), "vit/a.* has 2 rows out of distribution, .*alexnet/a.* has 3"),
    ],
)
def test_files_that_do_not_agree_on_the_rows_are_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(AlignmentError, match=message):
        load_predictions(folder(tmp_path, vit_a=content), ood_env=2)


def test_rows_in_distribution_need_not_agree(tmp_path: Path) -> None:
    shuffled = text([ROWS[7], ROWS[2], *ROWS[3:7], ROWS[1]])
    data = load_predictions(folder(tmp_path, vit_a=shuffled), ood_env=2)
    assert data.id_accuracy.tolist() == [0.75] * 4


# ----------------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            changed_row(4, "env2_in", 1, ("nan", 5, 2)),
            r"vit/a.*, row 5: p_0 is nan, not a number \(1 such rows\)",
        ),
        (changed_row(0, "env0_in", 0, (9, "", 1)), "row 1: p_1 is nan"),
        (changed_row(4, "env2_in", 1, ("high", 5, 2)), "row 5: p_0 is 'high', not a number"),
        (changed_row(4, "env2_in", "", (1, 5, 2)), "row 5: label is nan"),
        (changed_row(4, "env2_in", "dog", (1, 5, 2)), "row 5: label is 'dog'"),
        (changed_row(4, "env2_in", 3, (1, 5, 2)), "row 5: the label is 3; .* whole number from 0 to 2"),
        (changed_row(4, "env2_in", -1, (1, 5, 2)), "row 5: the label is -1"),
        (changed_row(4, "env2_in", 0.5, (1, 5, 2)), "row 5: the label is 0.5"),
        (changed_row(4, "sketch", 1, (1, 5, 2)), "row 5: the domain is 'sketch'"),
        (changed_row(4, "", 1, (1, 5, 2)), "row 5: the domain is ''"),
        (text()[:-4], "p_2 is nan|p_1 is nan"),  # cut off inside the last row
        (text(header="domain,label,p_0,p_1,p_3"), "lacks the column 'p_2'"),
        (text(header="domain,y,p_0,p_1,p_2"), "lacks the column 'label'; .* it has domain, y, p_0"),
        (text(header="domain,label,a,b,c"), "lacks the column 'p_0'"),
        ("domain,label,p_0,p_1\n", "has no row"),
        ("", "as a table of predictions"),
    ],
)
def test_a_bad_file_is_named_with_its_row(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        load_predictions(folder(tmp_path, vit_a=content), ood_env=2)
    assert "vit/a/global_step_200_predictions.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"ood_env": 3},
            r"lacks rows of env3_in or env3_out.* it has env0_in, env0_out, env1_out, env2_in, env2_out",
        ),
        ({"ood_env": 2, "id_envs": [0, 5]}, "lacks rows of env5_out, though 5 is among id_envs"),
        ({"ood_env": 2, "id_envs": [0, 2]}, "environment 2 is among id_envs and ood_env"),
        ({"ood_env": 2, "id_envs": []}, "id_envs is empty"),
        ({"ood_env": []}, "ood_env is empty"),
        ({"ood_env": [2, 2]}, "listed twice"),
        ({"ood_env": [0, 1, 2]}, "no environment besides"),
        ({"ood_env": 2, "checkpoints": "first"}, "checkpoints is 'first'; expected 'last', 'all'"),
        ({"ood_env": 2, "example_ids": ["a", "b"]}, r"example_ids has shape \(2,\)"),
        ({"ood_env": 2, "example_ids": ["a", "b", "a"]}, "'a' 2 times"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load_predictions(folder(tmp_path), **options)


def test_files_of_one_folder_count_as_one_run_unless_told_otherwise(tmp_path: Path) -> None:
    for step in range(100, 600, 100):
        (tmp_path / f"global_step_{step}_predictions.csv").write_text(text())
    with pytest.raises(InputError, match="count as checkpoints of one run.*each run a folder of its own"):
        load_predictions(tmp_path, ood_env=2)
    assert load_predictions(tmp_path, ood_env=2, run_of=lambda path: path.name).n_models == 5
    assert load_predictions(tmp_path, ood_env=2, checkpoints="all").n_models == 5


def test_files_of_other_names_have_no_step(tmp_path: Path) -> None:
    files = []
    for name in "abcd":
        files.append(tmp_path / f"{name}.csv")
        files[-1].write_text(text())
    with pytest.raises(InputError, match="its training step is not known"):
        load_predictions(files, ood_env=2)
    data = load_predictions(files, ood_env=2, run_of=lambda path: path.stem)
    assert data.model_ids == ("a", "b", "c", "d")


def test_paths_that_hold_nothing_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"does not contain a file named global_step_\*_predictions.csv"):
        load_predictions(tmp_path, ood_env=2)
    with pytest.raises(FileFormatError, match=r"nowhere.csv is not a file or a folder"):
        load_predictions(tmp_path / "nowhere.csv", ood_env=2)
    with pytest.raises(InputError, match="prediction files are missing"):
        load_predictions([], ood_env=2)
    place = folder(tmp_path)
    twice = [place, place / "vit/b/global_step_200_predictions.csv"]
    with pytest.raises(InputError, match="is given twice"):
        load_predictions(twice, ood_env=2)
