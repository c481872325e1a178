"""`assay dynamics`: what it prints, keeps, plans and refuses, on a run of four training steps."""

import json
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import invoke
from PIL import Image
from tiny_classifier import tiny_classifier

from assay.analyses.generalization.circuit_loss import CircuitSettings
from assay.analyses.generalization.dynamics import training_dynamics
from assay.core.record import record_id
from assay.tasks import EvalTransform, draw_shapes


Run = Callable[..., Any]
SHAPES = ("--shapes", "sketch", "--shapes", "flat", "--n", "18")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints at steps 0, 2 and 4."""
    root = tmp_path_factory.mktemp("run")
    start = tiny_classifier(root / "start", layers=4)
    made = invoke(
        *("finetune", "--model", start, "--shapes", "flat", "--n", "36", "--out", root / "tuned"),
        *("--train-steps", "4", "--validate-every", "2", "--train-batch", "8", "--quiet"),
    )
    assert made.exit_code == 0, made.output
    return root / "tuned"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Path) -> Run:
    """The command in an empty directory, on the run."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: invoke("dynamics", "--run", trained, *arguments)


def document(found: Any) -> dict[str, Any]:
    assert found.exit_code == 0, found.output
    parsed: dict[str, Any] = json.loads(found.stdout)
    return parsed


def test_a_row_per_checkpoint_a_picture_and_a_document(run: Run, tmp_path: Path, trained: Path) -> None:
    found = run(*SHAPES, "--figure", "course.png", "--out", "out", "--store", "store")
    assert found.exit_code == 0, found.output
    lines = [line.split() for line in found.stdout.splitlines()]
    header = next(line for line in lines if line[:1] == ["step"])
    assert header == ["step", "sketch", "flat", "bias", "interval", "deep", "shallow"]
    assert [line[0] for line in lines if line and line[0].isdigit()] == ["0", "2", "4"]
    with Image.open(tmp_path / "course.png") as picture:
        assert picture.size[0] > 300
    written = json.loads((tmp_path / "out" / "dynamics.json").read_text())
    twin = training_dynamics(
        trained,
        draw_shapes("sketch", 18, start=20_000, size=32),
        watch={style: draw_shapes(style, 18, start=20_000, size=32) for style in ("sketch", "flat")},
    )
    for row, other in zip(written["readings"], twin.to_dict()["readings"], strict=True):
        assert row.pop("scores") == other.pop("scores")
        assert row == pytest.approx(other)
    assert list(written["checkpoints"]) == ["0", "2", "4"]
    # The same again has the same id in the store.
    (identity,) = {line.split()[-1] for line in found.stdout.splitlines() if line.startswith("result")}
    shown = json.loads(invoke("show", identity, "--store", "store", "--json").stdout)
    assert shown["payload"]["checkpoints"] == written["checkpoints"]


def test_the_number_type_is_that_of_the_weights(run: Run) -> None:
    single, double = (document(run(*SHAPES, "--dtype", each, "--json")) for each in ("float32", "float64"))
    assert (single["estimator"]["model"]["dtype"], double["estimator"]["model"]["dtype"]) == (
        "float32",
        "float64",
    )
    for one, other in zip(single["readings"], double["readings"], strict=True):
        assert one["depth_bias"] == pytest.approx(other["depth_bias"], abs=1e-3)
        assert one["deep"] != other["deep"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "images are missing"),
        (("--shapes", "flat", "--shapes", "flat"), "two domains are named 'flat'"),
        ((*SHAPES, "--figure", "course.txt"), "give a name ending in .png or .svg"),
        ((*SHAPES, "--ratio", "0.7"), "ratio is 0.7"),
    ],
)
def test_bad_input_is_named(run: Run, arguments: tuple[str, ...], message: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 2
    assert message in found.stderr


def test_a_folder_without_checkpoints_is_named(run: Run, tmp_path: Path) -> None:
    found = invoke("dynamics", "--run", tmp_path, *SHAPES)
    assert "has no checkpoint" in found.stderr


CHANGED: dict[str, Any] = {
    "run": None,
    "images": draw_shapes("sketch", 17, size=32),
    "settings": CircuitSettings(ratio=0.5),
    "watch": {"flat": draw_shapes("flat", 12, size=32, seed=1)},
    "steps": 4,
    "transform": EvalTransform(resize=(32, 32), mean=(0.1, 0.1, 0.1)),
    "dtype": torch.float64,
}
ALIKE = {"batch_size", "device", "known"}  # scores that are known are those that would be computed


@pytest.mark.parametrize(
    "name", [each for each in signature(training_dynamics).parameters if each not in ALIKE]
)
def test_whatever_can_change_a_number_changes_the_id(trained: Path, name: str) -> None:
    usual: dict[str, Any] = {
        "run": trained,
        "images": draw_shapes("sketch", 18, size=32),
        "watch": {"flat": draw_shapes("flat", 12, size=32)},
    }
    changed = {"run": {0: trained / "checkpoints" / "0"}} if name == "run" else {name: CHANGED[name]}
    first, other = (training_dynamics(**asked) for asked in (usual, usual | changed))
    assert record_id("dynamics", first.facts) != record_id("dynamics", other.facts), name
