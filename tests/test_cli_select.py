"""`assay select` on planted data written by the test and on digits: files in; table, page and ids out."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Outcome, invoke
from type_checks import no_type_checks

import assay
from assay.analyses.subsets import CorrectnessData


N_MODELS, N_EXAMPLES, N_TURNED = 80, 200, 50
QUICK = ["--permutations", "19", "--folds", "3", "--workers", "1", "--quiet"]
UNTESTED = ["--permutations", "0", "--quiet"]  # where the verdict is not the point


def planted(*, turned: int = N_TURNED, groups: bool = True) -> CorrectnessData:
    """Models that are worse on the first examples, named turned, the better they are in distribution."""
    rng = np.random.default_rng(7)
    accuracy = rng.uniform(0.6, 0.95, N_MODELS)
    night = np.arange(N_EXAMPLES) < turned
    chance = np.where(night, 1.4 - accuracy[:, None], accuracy[:, None])
    return CorrectnessData.of(
        rng.uniform(size=(N_MODELS, N_EXAMPLES)) < chance,
        accuracy,
        groups=[f"run-{place}" for place in range(N_MODELS)] if groups else None,
        model_ids=[f"model-{place}" for place in range(N_MODELS)],
        example_ids=[f"{'night' if each else 'day'}-{place}" for place, each in enumerate(night)],
        labels=np.where(np.arange(N_EXAMPLES) % 3 == 0, "dog", "cat"),
        meta={"light": np.where(night, "night", "day")},
    )


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "answers.npz"
    planted().save(path)
    return path


def run(*arguments: str | Path) -> Outcome:
    with no_type_checks():  # each selects and judges; the parts are checked in their own tests
        return invoke("select", *arguments)


def document(*arguments: str | Path) -> dict[str, Any]:
    found = run(*arguments, "--json")
    assert found.exit_code == 0, found.output
    parsed: dict[str, Any] = json.loads(found.stdout)
    return parsed


@pytest.fixture(scope="module")
def made(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """Everything that one command writes."""
    folder = tmp_path_factory.mktemp("made")
    result = run(archive, "--sizes", "20,40", *QUICK, "--store", folder / "store", "--out", folder / "out")
    assert result.exit_code == 0, result.output
    return folder, result


def test_out_holds_the_document_the_page_the_ids_and_the_subset(made: tuple[Path, Outcome]) -> None:
    out = made[0] / "out"
    names = ("ids.csv", "report.html", "selection.json", "sizes.csv", "subset.json")
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    written = json.loads((out / "selection.json").read_text())
    assert written["kind"] == "subset-path"
    assert "better models do worse" in (out / "report.html").read_text()
    subset = assay.load_subset(out / "subset.json", planted())
    assert subset.size == written["size"]
    assert subset.verdict.status == "supported"
    with (out / "ids.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["index"]) for row in rows] == subset.indices.tolist()
    with (out / "sizes.csv").open() as file:
        assert [int(row["n"]) for row in csv.DictReader(file)] == [20, 40]


def test_how_a_table_is_read_is_shown_before_anything_is_selected(tmp_path: Path) -> None:
    lines = ["model,id_accuracy,x1,x2,x3,notes", *(f"m{k},0.{5 + k},1,0,{k % 2},1" for k in range(4))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    words = ["model,id_accuracy,x1,x2", *(f"m{k},0.{5 + k},yes,{'no' if k else 'yes'}" for k in range(4))]
    (tmp_path / "words.csv").write_text("\n".join(words))
    spelled = document("data", tmp_path / "words.csv", "--right", "yes", "--wrong", "no")
    assert spelled["accuracy on the examples"] == "50.0% to 100.0%"
    seen = document("data", tmp_path / "t.csv")
    assert (seen["orientation"], seen["models"]) == ("wide", "4: m0, m1, m2, ...")
    assert "'notes' counted as an example" in seen["notes"]
    roles = ("--columns", "model=model,id_accuracy=accuracy")
    wrong = run("data", tmp_path / "t.csv", *roles)
    assert wrong.exit_code == 2
    assert "did you mean 'id_accuracy'" in wrong.stderr
    absent = run(tmp_path / "absent.npz")
    assert (absent.exit_code, "absent.npz" in absent.stderr) == (1, True)
    assert "absent.json is not a subset: " in run("evaluate", tmp_path / "absent.json", "new.npz").stderr


def test_a_filter_and_a_metric_per_task_are_chosen_on_the_command_line(tmp_path: Path) -> None:
    for model in "abcd":
        (tmp_path / "logs" / model).mkdir(parents=True)
        for task, metric in (("inside", "acc"), ("outside", "f1")):
            samples = [{"doc_id": k, "metrics": [metric], metric: row} for row in (1, 0) for k in range(3)]
            text = "\n".join(map(json.dumps, samples))
            (tmp_path / "logs" / model / f"samples_{task}.jsonl").write_text(text)
    given = (tmp_path / "logs", "--id-envs", "inside", "--ood-env", "outside")
    for choice, shown in (("first", "100.0% to 100.0%"), ("last", "0.0% to 0.0%")):
        seen = document("data", *given, "--columns", "correct=inside:acc,outside:f1", "--filter", choice)
        assert seen["accuracy on the examples"] == shown


def test_a_gate_fires_on_support(archive: Path, made: tuple[Path, Outcome], tmp_path: Path) -> None:
    fired = run(archive, "--sizes", "20,40", *QUICK, "--store", made[0] / "store", "--gate")
    assert fired.exit_code == 3
    assert "(taken from the store)" in fired.stdout
    assert "gate: better models do worse on" in fired.stderr
    planted(turned=0).save(tmp_path / "sound.npz")
    planted(groups=False).save(tmp_path / "unknown.npz")
    given = ("--sizes", "30", *QUICK, "--store", tmp_path / "store", "--gate")
    assert run(tmp_path / "sound.npz", *given).exit_code == 0
    unknown = run(tmp_path / "unknown.npz", *given)
    assert unknown.exit_code == 3, unknown.output
    assert "gate: failed, since no verdict was possible" in unknown.stderr


def test_others_are_evaluated_and_gates_may_be_undecided(made: tuple[Path, Outcome], tmp_path: Path) -> None:
    new = planted().take(models=np.arange(3))
    new.save(tmp_path / "new.npz")
    subset = made[0] / "out" / "subset.json"
    found = document("evaluate", subset, tmp_path / "new.npz")
    indices = assay.load_subset(subset, planted()).indices
    np.testing.assert_allclose(found["accuracy"], new.accuracy(indices))
    half = f"accuracy >= {float(np.median(found['accuracy'])):.2f}"
    assert run("evaluate", subset, tmp_path / "new.npz", "--gate", "accuracy >= 0").exit_code == 0
    strict = run("evaluate", subset, tmp_path / "new.npz", "--gate", half, "--undecided", "fail")
    assert strict.exit_code == 3
    assert f"gate: {half} fails for" in strict.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "20,many"], "--sizes is '20,many'"),
        (["--sizes", "201"], "201"),
        (["--solver", "swop"], "did you mean 'swap'"),
        (["--strata", "lihgt"], "did you mean 'light'"),
        (["--permutations", "18", "--gate"], "give --permutations 19 or more, or remove --gate"),
        (["--groups", "runs.csv"], "--groups is 'runs.csv', neither a file nor a column"),
        (["--columns", "model"], "give ROLE=NAME"),
        (["--scores", "5"], "give two numbers, the worse end first"),
        (["--cells", "score"], "--cells has no effect for an archive"),
    ],
)
def test_wrong_use_is_answered(archive: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    found = run(archive, "--store", tmp_path / "store", "--out", tmp_path / "out", "--quiet", *arguments)
    assert found.exit_code == 2, found.output
    assert message in found.stderr
    assert not (tmp_path / "out").exists()
