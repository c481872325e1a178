"""`assay zoo`: train, go on, index, list, select, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Outcome, invoke
from small_runs import GRID, ZOO_OPTIONS, trained_zoo
from tiny_classifier import draw_files

from assay.tasks import draw_shapes
from assay.zoo import Grid, Zoo, edge_scores


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in an empty directory that holds a grid."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text(GRID)

    def call(*arguments: str, code: int = 0) -> Outcome:
        result = invoke("zoo", *arguments)
        assert result.exit_code == code, result.output
        return result

    return call


def small_zoo(folder: Path) -> Any:
    """The small zoo as if it had been trained here; what the command printed."""
    shutil.copytree(trained_zoo().folder / "zoo", folder / "zoo")
    return trained_zoo().document


def test_train_index_and_list_work_together(run: Run, tmp_path: Path) -> None:
    trained = small_zoo(tmp_path)
    assert [model["status"] for model in trained["models"]] == ["done", "done"]
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "zoo").rglob("model.safetensors")}
    again = json.loads(run("train", *ZOO_OPTIONS, "--quiet", "--json").stdout)
    assert again == trained
    assert written == {path: path.stat().st_mtime_ns for path in written}

    listed = run("list", "zoo").stdout
    assert "small: 2 of 2 models done, trained on flat" in listed
    assert all(model["key"] in listed for model in trained["models"])

    index = ("index", "zoo", "--shapes", "sketch", "--shapes", "neon", "--n", "12", "--quiet")
    records = json.loads(run(*index, "--circuits", "--steps", "1", "--json").stdout)
    assert [record["domain"] for record in records] == ["sketch", "neon"]
    with np.load(tmp_path / "zoo" / "correctness" / "sketch.npz", allow_pickle=False) as file:
        assert file["X"].shape == (2, 12)
        assert file["meta_id"].min() >= 36  # none of those trained on
        assert file["X"].mean(axis=1).tolist() == [model["accuracy"] for model in records[0]["models"]]
        assert file["y"].tolist() == [model["id_accuracy"] for model in trained["models"]]
    assert len(list((tmp_path / "zoo" / "circuits").glob("sketch-*/*.safetensors"))) == 2
    zoo = Zoo.open(tmp_path / "zoo")
    circuit = edge_scores(zoo, zoo.keys[0], draw_shapes("sketch", 12, start=20_000), steps=1)
    assert circuit.provenance["steps"] == 1
    assert len(list((tmp_path / "zoo" / "circuits").glob("sketch-*/*.safetensors"))) == 2  # read, not made


def test_folders_of_images_and_plain_directories_of_models_are_read(run: Run, tmp_path: Path) -> None:
    draw_files(tmp_path / "images" / "flat", "flat", 36, by_class=True)
    run("train", "grid.toml", "--images", "images/flat", "--out", "zoo", "--quiet")
    zoo = Zoo.open(tmp_path / "zoo")
    assert zoo.data["n_train"] + zoo.data["n_validation"] == 36
    plain = ("index", "zoo/models", "--images", "images/flat", "--quiet")
    failed = run(*plain, code=2)
    assert "in-distribution accuracy of 2 models is unknown" in failed.output
    run(*plain, "--id-images", "images/flat", "--out", "matrices")
    with np.load(tmp_path / "matrices" / "flat.npz", allow_pickle=False) as file:
        assert file["y"].tolist() == file["X"].mean(axis=1).tolist()


def test_select_writes_a_grid_that_train_reads(run: Run, tmp_path: Path) -> None:
    small_zoo(tmp_path)
    found = json.loads(run("select", "zoo", "grid.toml", "--save", "second.json", "--json").stdout)
    assert len(found["configurations"]) == 1
    assert found["shortfall"] == {"scratch": 0.0}
    (recipe,) = Grid.read(tmp_path / "second.json").recipes()
    assert recipe.key in Zoo.open(tmp_path / "zoo").keys


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "inside", "--shapes", "flat", "--out", "zoo"], 2, "did you mean 'inside-out'"),
        (["train", "grid.toml", "--out", "zoo"], 2, "images are missing"),
        (["train", "grid.toml", "--shapes", "flaat", "--out", "zoo"], 2, "did you mean 'flat'"),
        (["train", "grid.toml", "--shapes", "flat", "--shapes", "neon", "--out", "zoo"], 2, "trained on one"),
        (["list", "nowhere"], 1, "nowhere is not a directory"),
        (["index", "--shapes", "flat"], 2, "the embedded zoo is read-only"),
    ],
)
def test_bad_input_is_named(run: Run, arguments: list[str], code: int, message: str) -> None:
    assert message in run(*arguments, code=code).output


def test_an_empty_class_folder_of_a_domain_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "images" / "flat" / "circle").mkdir(parents=True)
    failed: Any = run("train", "grid.toml", "--images", "images/flat", "--out", "zoo", code=2)
    assert "has no image" in failed.output
    assert not (tmp_path / "zoo").exists()


def test_the_embedded_zoo_is_listed_by_default(run: Run) -> None:
    listed = json.loads(run("list", "--json").stdout)
    assert (listed["name"], listed["id_domain"], len(listed["models"])) == ("shapes", "flat", 12)
