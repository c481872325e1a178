"""`assay select evaluate` and `export`: from a selection to a gate in a workflow, as a user types it."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from command_line import Outcome, invoke
from test_cli_json import PAGE, row_of
from test_cli_select import QUICK, planted
from type_checks import no_type_checks

import assay


HOWTO = Path(__file__).parents[1] / "docs" / "howto" / "select.md"


def table(path: Path, answers: np.ndarray, names: list[str]) -> Path:
    """New models, equally good in distribution, with what they get right of which examples."""
    frame = pd.DataFrame(answers.astype(int), columns=names)
    frame.insert(0, "model", [f"new-{place}" for place in range(len(frame))])
    frame.insert(1, "id_accuracy", 0.9)
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A selection with its files, and two new models: one as those before it, one that solves the subset."""
    path = tmp_path_factory.mktemp("gate")
    data = planted()
    data.save(path / "answers.npz")
    with no_type_checks():
        made = invoke(
            "select", path / "answers.npz", "--sizes", "20,40", *QUICK,
            "--store", path / "store", "--out", path / "finding",
        )  # fmt: skip
    assert made.exit_code == 0, made.output
    names = data.example_ids.tolist()
    night = np.array([name.startswith("night") for name in names])
    table(path / "worse.csv", ~night[None], names)
    table(path / "better.csv", np.ones((1, len(names))), names)
    table(path / "elsewhere.csv", np.ones((1, 3)), ["a", "b", "c"])
    return path


def evaluate(folder: Path, *arguments: str | Path) -> Outcome:
    with no_type_checks():
        return invoke("select", "evaluate", *arguments, "--store", folder / "store", "--quiet")


def test_a_gate_passes_and_fails_through_the_command_line(folder: Path) -> None:
    gate = ("--gate", "accuracy >= 0.6")
    ended = {
        name: evaluate(folder, folder / "finding" / "subset.json", folder / f"{name}.csv", *gate,
                       "--out", folder / f"of-{name}")
        for name in ("better", "worse")
    }  # fmt: skip
    assert (ended["better"].exit_code, ended["worse"].exit_code) == (0, 3), ended
    assert "gate: new-0 fails accuracy >= 0.6: 0.0" in ended["worse"].stderr
    document = json.loads((folder / "of-worse" / "evaluation.json").read_text())
    assert document["status"] == "fail"
    assert document["models"][0]["accuracy"]["value"] < 0.1
    assert document["models"][0]["residual"]["high"] < 0
    assert "Failed." in (folder / "of-worse" / "report.html").read_text()


def test_an_undecided_gate_does_not_fire_but_a_stricter_one_does(folder: Path) -> None:
    subset = assay.load_subset(folder / "finding" / "subset.json")
    half = np.arange(len(subset.example_ids)) < len(subset.example_ids) * 0.55
    path = table(folder / "half.csv", half[None], list(subset.example_ids))
    undecided = evaluate(folder, folder / "finding" / "subset.json", path, "--gate", "accuracy >= 0.6")
    assert undecided.exit_code == 0, undecided.output
    assert "Undecided." in undecided.stdout
    for gate in ("accuracy.value >= 0.6", "accuracy.low >= 0.6"):
        strict = evaluate(folder, folder / "finding" / "subset.json", path, "--gate", gate)
        assert strict.exit_code == 3, strict.output


def test_examples_that_do_not_match_are_an_error_with_both_numbers(folder: Path) -> None:
    found = evaluate(folder, folder / "finding" / "subset.json", folder / "elsewhere.csv")
    assert found.exit_code == 2
    assert "are missing from the 3 given examples: 0 match" in found.stderr
    assert "first given a" in found.stderr


def test_rows_without_names_are_not_matched_by_place_unasked(folder: Path) -> None:
    """A transposed table without a column of names, in the wrong order, passed for the same examples."""
    answers = assay.analyses.subsets.CorrectnessData.load(folder / "answers.npz")
    table_ = pd.DataFrame(answers.correct.T, columns=list(answers.model_ids))
    table_.to_csv(folder / "nameless.csv", index=False)
    table_[::-1].to_csv(folder / "turned.csv", index=False)
    rated = pd.DataFrame({"model": answers.model_ids, "id_accuracy": answers.id_accuracy})
    rated.to_csv(folder / "rated.csv", index=False)
    given = ("--id-accuracy", folder / "rated.csv", "--quiet")
    with no_type_checks():
        shown = invoke("select", "data", folder / "nameless.csv", *given)
        invoke(
            "select", folder / "nameless.csv", *given, "--size", "30", "--permutations", "0",
            "--store", folder / "store", "--subset", folder / "nameless.json",
        )  # fmt: skip
    assert "rows of the table are matched by place" in shown.stdout
    for subset, who in (("nameless.json", "examples of the subset"), ("finding/subset.json", "columns of")):
        refused = evaluate(folder, folder / subset, folder / "turned.csv", *given[:2])
        assert refused.exit_code == 2, refused.output
        assert f"the {who}" in refused.stderr
        assert "--order data" in refused.stderr
    asked = evaluate(folder, folder / "nameless.json", folder / "nameless.csv", *given[:2], "--order", "data")
    assert asked.exit_code == 0, asked.output


def test_all_sizes_of_a_stored_selection_are_evaluated(folder: Path) -> None:
    found = evaluate(folder, _id_of(folder), folder / "better.csv", "--json")
    document = json.loads(found.stdout)
    assert row_of("select evaluate", document) in PAGE.read_text(encoding="utf-8")
    held = json.loads((folder / "finding" / "selection.json").read_text())
    assert document["sizes"][0]["size"] == held["size"]
    assert sorted(each["size"] for each in document["sizes"]) == [20, 40]
    again = evaluate(folder, folder / "finding" / "subset.json", folder / "better.csv", "--json")
    assert json.loads(again.stdout)["models"] == document["models"]
    shown = invoke("show", document["id"], "--store", folder / "store")
    assert "1 model on a subset of" in shown.stdout


def _id_of(folder: Path) -> str:
    return str(json.loads((folder / "finding" / "selection.json").read_text())["id"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["finding/selection.json", "better.csv"],
            "is a path document (of --save); give the file of --subset",
        ),
        (["finding/ids.csv", "better.csv"], "is a table; give the file of --subset"),
        (["finding/subset.json", "finding/selection.json"], "is a path document (of --save); give a table"),
        (["nowhere.json", "better.csv"], "nowhere.json does not exist; give the file of --subset"),
        (["finding/subset.json", "better.csv", "--gate", "accuracy >= 60"], "between 0 and 1"),
        (["finding/subset.json", "better.csv", "--order", "dat"], "did you mean 'data'"),
    ],
)
def test_wrong_use_of_evaluate_is_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    found = evaluate(folder, *arguments)
    assert found.exit_code == 2
    assert message in found.stderr


def test_a_damaged_or_absent_file_is_a_problem_of_the_disk(folder: Path) -> None:
    (folder / "cut.json").write_text((folder / "finding" / "subset.json").read_text()[:500])
    for given in (["cut.json", "better.csv"], ["finding/subset.json", "nowhere.csv"]):
        found = evaluate(folder, *(folder / each for each in given))
        assert found.exit_code == 1
    cut = evaluate(folder, folder / "cut.json", folder / "better.csv").stderr
    assert "cut.json cannot be read as JSON" in cut


@pytest.mark.parametrize("given", ["finding/selection.json", "id"])
def test_the_card_and_the_ids_are_written_for_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(folder)
    source = _id_of(folder) if given == "id" else given
    ids = invoke("select", "export", source, "--save", "chosen.csv", "--store", "store")
    assert ids.exit_code == 0, ids.output
    assert (folder / "chosen.csv").read_text() == (folder / "finding" / "ids.csv").read_text()
    card = invoke("select", "export", source, "--licence", "CC-BY-4.0", "--store", "store", "--json")
    assert json.loads(card.stdout)["saved"] == "card.md"
    text = (folder / "card.md").read_text()
    assert "| licence of the data | CC-BY-4.0 |" in text
    assert "**night**" in text or "| light | night |" in text
    for name, kind in (("finding/subset.json", "a subset file (of --subset)"), ("worse.csv", "a table")):
        wrong = invoke("select", "export", name, "--store", "store")
        assert wrong.exit_code == 2
        assert f"{name} is {kind}; give the file of --save" in wrong.stderr


# ---- the workflow of the guide ------------------------------------------------------------------


def test_the_workflow_of_the_guide_runs_as_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands, with the subset and the table that it names; the gate stops it."""
    (text,) = re.findall(r"```yaml\n(.*?)```", HOWTO.read_text(encoding="utf-8"), re.DOTALL)
    (job,) = yaml.safe_load(text)["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "assay select evaluate" in step.get("run", "")]
    (words,) = [command.replace("\\\n", " ").strip() for command in commands]
    monkeypatch.chdir(folder)
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests" / "night.json").write_bytes((folder / "finding" / "subset.json").read_bytes())
    import shlex

    for name, code in (("better", 0), ("worse", 3)):
        (folder / "answers.csv").write_bytes((folder / f"{name}.csv").read_bytes())
        with no_type_checks():
            found = invoke(*shlex.split(words)[1:])
        assert found.exit_code == code, found.output
