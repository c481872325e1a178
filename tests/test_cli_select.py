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
        families=None,
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
    places = {name: folder / "new" / name for name in ("o.json", "page.html", "ids.csv", "subset.json")}
    result = run(
        archive, "--sizes", "20,40", *QUICK, "--store", folder / "store",
        "--save", places["o.json"], "--report", places["page.html"],
        "--ids", places["ids.csv"], "--subset", places["subset.json"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return folder, result


def test_files_hold_the_document_the_page_the_ids_and_the_subset(made: tuple[Path, Outcome]) -> None:
    folder = made[0] / "new"
    written = json.loads((folder / "o.json").read_text())
    assert written["kind"] == "subset-path"
    assert [row["size"] for row in written["rows"]] == [20, 40]
    assert "better models do worse" in (folder / "page.html").read_text()
    with (folder / "ids.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["example_id"] for row in rows] == written["example_ids"]
    assert [int(row["index"]) for row in rows] == written["indices"]
    assert [int(row["rank"]) for row in rows] == list(range(1, written["size"] + 1))
    subset = assay.load_subset(folder / "subset.json", planted())
    assert subset.indices.tolist() == written["indices"]
    assert subset.verdict.status == "supported"
    assert subset.correlation["test"].r == written["rows"][-1]["test"]["r"]


def test_the_same_command_again_is_a_look_up(made: tuple[Path, Outcome], archive: Path) -> None:
    folder = made[0]
    again = run(archive, "--sizes", "20,40", *QUICK, "--store", folder / "store")
    assert "(taken from the store)" in again.stdout
    first, second = (text.replace(" (taken from the store)", "") for text in (made[1].stdout, again.stdout))
    assert second.splitlines()[:-1] == first.splitlines()[: len(second.splitlines()) - 1]


def test_the_number_of_workers_changes_nothing(archive: Path, tmp_path: Path) -> None:
    given = (archive, "--size", "30", "--permutations", "3", "--folds", "3", "--quiet")
    one, two = (document(*given, "--workers", count, "--store", tmp_path / count) for count in ("1", "2"))
    assert one == two


def test_without_permutations_nothing_is_shown_as_found(archive: Path, tmp_path: Path) -> None:
    found = run(archive, "--size", "30", *UNTESTED, "--store", tmp_path)
    assert found.exit_code == 0, found.output
    assert "Inconclusive." in found.stdout


def test_unknown_training_runs_keep_a_verdict_from_being_supported(tmp_path: Path) -> None:
    planted(groups=False).save(tmp_path / "answers.npz")
    quick = ("--size", "30", "--permutations", "1", *QUICK[2:])
    given = (tmp_path / "answers.npz", *quick, "--store", tmp_path)
    found = run(*given)
    unknown = "groups and families are missing"
    assert unknown in " ".join(found.stdout.lower().split())
    own = document(*given, "--groups", "model")
    assert not any(unknown in reason for reason in own["verdict"]["reasons"])
    assert own["data"]["n_groups"] == N_MODELS


def test_units_come_from_a_file_of_models(archive: Path, tmp_path: Path) -> None:
    table = tmp_path / "families.csv"
    lines = [f"model-{place},{'abcdefghij'[place % 10]}" for place in range(N_MODELS)]
    table.write_text("\n".join(["model,family", *lines]) + "\n")
    given = (archive, "--size", "30", *UNTESTED, "--store", tmp_path / "store")
    found = document(*given, "--families", table, "--split", "family")
    assert found["data"]["n_families"] == 10
    assert found["split"]["kind"] == "family"
    table.write_text("\n".join(["model,family", *lines[:-1]]) + "\n")
    missing = run(*given, "--families", table)
    assert missing.exit_code == 2
    assert "lacks 1 of the 80 models, the first is 'model-79'" in missing.stderr


def test_a_gate_fires_where_a_subset_is_supported(
    archive: Path, made: tuple[Path, Outcome], tmp_path: Path
) -> None:
    given = (archive, "--sizes", "20,40", *QUICK, "--store", made[0] / "store")
    fired = run(*given, "--gate")
    assert fired.exit_code == 3
    assert "gate: better models do worse on 40 of the examples" in fired.stderr
    planted(turned=0).save(tmp_path / "sound.npz")
    sound = run(tmp_path / "sound.npz", "--size", "30", *QUICK, "--store", tmp_path / "store", "--gate")
    assert sound.exit_code == 0
    assert "Inconclusive." in sound.stdout


def test_a_gate_without_a_verdict_does_not_pass(tmp_path: Path) -> None:
    planted(groups=False).save(tmp_path / "answers.npz")
    given = (tmp_path / "answers.npz", "--size", "30", *QUICK, "--store", tmp_path / "store", "--gate")
    unknown = run(*given)
    assert unknown.exit_code == 3, unknown.output
    assert "gate: failed, since no verdict was possible" in unknown.stderr
    assert "groups and families are missing" in unknown.stderr


def test_digits_are_selected_from_without_any_file(tmp_path: Path) -> None:
    given = ("--digits-models", "32", "--size", "60", *UNTESTED, "--store", tmp_path)
    found = document(*given)
    assert found["data"]["n_models"] == 32
    assert found["data"]["n_families"] == 16
    assert found["rows"][0]["test"]["r"] < 0
    cue = {row["value"]: row for row in found["prevalence"]["rows"] if row["attribute"] == "cue"}
    assert cue["misleads"]["significant"]
    assert cue["misleads"]["selected"] > 2 * cue["misleads"]["pool"]
    (kept,) = (tmp_path / "select").iterdir()
    assert CorrectnessData.load(kept).n_models == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "20", "--size", "30"], "give one of them"),
        (["--sizes", "20,many"], "--sizes is '20,many'"),
        (["--size", "201"], "size is 201; expected 1 to 200"),
        (["--solver", "swop"], "did you mean 'swap'"),
        (["--strata", "lihgt"], "did you mean 'light'"),
        (["--trials", "3"], "trials is an option of the solver 'adam', but the solver is 'swap'"),
        (["--objective", "r2"], "the test that --permutations 99 asks for (0: none) presupposes"),
        (["--permutations", "18", "--gate"], "give --permutations 19 or more, or remove --gate"),
        (["--allowed", "absent.txt"], "--allowed: cannot read absent.txt"),
        (["--cross", "light"], "--cross is 'light'; give two or more"),
        (["--groups", "runs.csv"], "--groups is 'runs.csv', which is not a file"),
        (["--ids", "chosen.xlsx"], "give NAME.csv"),
        (["--table", "same.csv", "--ids", "./same.csv"], "same.csv is given for two outputs"),
        (["--digits-models", "40"], "remove one"),
    ],
)
def test_wrong_use_is_answered_with_what_to_type(
    archive: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    found = run(archive, "--store", tmp_path / "store", "--save", tmp_path / "o.json", "--quiet", *arguments)
    assert found.exit_code == 2, found.output
    assert message in found.stderr
    assert not (tmp_path / "o.json").exists()


def test_files_that_are_no_predictions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    (tmp_path / "empty").mkdir()
    for name in ("absent.npz", "broken.npz", "empty"):
        found = run(tmp_path / name, "--store", tmp_path / "store", "--quiet")
        assert found.exit_code == 1
        assert name in found.stderr
    assert not (tmp_path / "store").exists()


def test_a_place_that_cannot_be_written_is_refused_before_the_work(archive: Path, tmp_path: Path) -> None:
    found = run(archive, "--size", "30", "--report", tmp_path, "--store", tmp_path / "store")
    assert found.exit_code == 1
    assert "is a directory" in found.stderr
    assert not (tmp_path / "store").exists()


# ------------------------------------------------------------------------------------ the paper's settings

ANSWERED = (  # other values of every option on which the answer depends
    ("size", 20), ("sizes", "20,30"), ("refine", "bisection"), ("refine", 7), ("split", "random"),
    ("compat", True), ("path", "warm"), ("strata", "label"), ("objective", "r2"), ("clip", "half"),
    ("allowed", "half.txt"), ("must_include", "two.txt"), ("permutations", 1), ("folds", 4),
    ("cross", ("label,light",)), ("embeddings", "embeddings.npy"), ("id_embeddings", "embeddings.npy"),
)  # fmt: skip
OF_ADAM = (("trials", 3), ("epochs", 9), ("patience", 9), ("penalty", "squared"))


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of files about the examples, which is the working directory."""
    names = planted().example_ids.tolist()
    (tmp_path / "half.txt").write_text("\n".join(names[::2]))
    (tmp_path / "two.txt").write_text("\n".join(names[90:94:2]))
    np.save(tmp_path / "embeddings.npy", np.random.default_rng(0).normal(size=(N_EXAMPLES, 3)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_option_on_which_the_answer_depends_is_part_of_the_identity(
    archive: Path, beside: Path
) -> None:
    from typing import get_args

    from assay.app.cli.select import SELECTION, VERDICT, PoolSettings, SelectSettings, _sizes
    from assay.app.options import RARE
    from assay.core.record import record_id
    from assay.pipeline.subsets import KIND, job_record

    def identity(**changed: Any) -> str:
        given = {name: Path(value) if "." in str(value) else value for name, value in changed.items()}
        settings = SelectSettings(**({"size": 30} | given | ({"size": None} if "sizes" in given else {})))
        data = settings.read(archive, lambda *told: None).data
        sizes = _sizes(settings.sizes, settings.size)
        return record_id(KIND, job_record(data, sizes, **settings.solving(data)))

    more = {
        "id_embeddings": {"embeddings": Path("embeddings.npy")},
        "objective": {"permutations": 0},
        "refine": {"sizes": "20,30"},
    }
    adam = {"solver": "adam"}
    found = [identity(), identity(**adam)]
    found += [identity(**more.get(name, {}), **{name: value}) for name, value in ANSWERED]
    found += [identity(**adam, **{name: value}) for name, value in OF_ADAM]
    assert len(set(found)) == len(found)
    assert identity(objective="pearson", clip="eps") == found[0]
    groups, hints = {SELECTION, VERDICT, RARE}, SelectSettings.__annotations__
    own = {name for name, hint in hints.items() if groups & set(get_args(hint))}
    own -= {"layout", "endpoint_key", "endpoint_parameters"}
    own |= set(PoolSettings.__annotations__) - {"digits_models"}
    assert own == {name for name, _ in (*ANSWERED, *OF_ADAM)} | {"solver"}


def test_the_settings_of_the_paper_reach_the_solver(archive: Path, beside: Path) -> None:
    given = (archive, *UNTESTED, "--store", "store")
    found = document(
        *given, "--sizes", "30,100", "--allowed", "half.txt", "--must-include", "two.txt", "--clip", "half",
        "--cross", "label,light", "--embeddings", "embeddings.npy", "--id-embeddings", "embeddings.npy",
    )  # fmt: skip
    assert set(found["indices"]) <= set(range(0, N_EXAMPLES, 2))
    assert {"day-90", "day-92"} <= set(found["example_ids"])
    assert found["settings"]["clip"] == "half"
    assert all(row["distance"]["r"] is not None for row in found["rows"])
    crossed = {row["value"] for row in found["prevalence"]["rows"] if row["attribute"] == "label x light"}
    assert "dog x night" in crossed
    given = (*given, "--size", "30", "--solver", "adam", "--trials", "2", "--epochs", "40", "--patience", "9")
    adam = document(*given, "--penalty", "squared", "--objective", "r2")
    told = adam["settings"]
    assert told["options"] == {"trials": 2, "epochs": 40, "patience": 9, "penalty": "squared"}
    assert (told["solver"], told["objective"]) == ("adam", "r2")
