"""What training leaves in a directory, and when an earlier run is taken up."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import nn

from assay.core.errors import FileFormatError, InputError
from assay.core.untrusted import parse_json
from assay.zoo.folders import load_weights
from assay.zoo.recipe import Recipe
from assay.zoo.scoring import weights_hash


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingRun:
    """A finished run.

    Attributes:
        module: The model at its best step, on the CPU, in evaluation mode.
        folder: Where it lies, as `load_model` reads it.
        recipe: How it was trained.
        best_step: Number of steps after which the validation score was best (the first of equals).
        best_score: That score, 0 .. 1.
        curve: A row per validation: `step`, `score`, `loss` (mean cross entropy, nats), and the score of each
            watched set under `watch`.
        history: A value per step of `loss` (cross entropy of the batch, nats) and, with a loss term, of
            `term` and each of its readings.
        checkpoints: Step to directory of the models kept on the way.
        record: The content of `training.json`.
    """

    module: nn.Module
    folder: Path
    recipe: Recipe
    best_step: int
    best_score: float
    curve: tuple[Mapping[str, Any], ...]
    history: Mapping[str, tuple[float, ...]]
    checkpoints: Mapping[int, Path]
    record: Mapping[str, Any]


@final
@dataclass(frozen=True, kw_only=True)
class Validation:
    """What a validation on the way showed.

    Attributes:
        step: Steps done.
        steps: All steps.
        training_loss: Mean cross entropy of the batches since the validation before, nats.
        loss: Mean cross entropy of the validation images, nats.
        measure: What the score is: `accuracy` or `macro-f1`.
        score: Score of the validation images, 0 .. 1.
    """

    step: int
    steps: int
    training_loss: float
    loss: float
    measure: str
    score: float

    def __str__(self) -> str:
        return (
            f"step {self.step:,} of {self.steps:,}: training loss {self.training_loss:.3f}, validation loss "
            f"{self.loss:.3f}, {self.measure} {self.score:.3f}"
        )


def state_file(folder: Path) -> Path:
    """Where the state of an unfinished run lies."""
    return folder / "state.safetensors"


def finished(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of a finished run in this folder, None if there is none."""
    path = folder / "training.json"
    if not path.exists():
        return None
    try:
        record: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"cannot read {path} ({error}); remove the folder to train again") from error
    check_same(folder, {name: record.get(name) for name in identity}, identity)
    return record


def check_same(folder: Path, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was made otherwise."""
    there = {"precision": "float32", **{name: value for name, value in there.items() if value is not None}}
    for name, value in json.loads(json.dumps(wanted)).items():
        if there.get(name) != value:
            old, new = there.get(name), value
            if isinstance(old, dict) and isinstance(new, dict):
                changed = next(key for key in {**old, **new} if old.get(key) != new.get(key))
                name, old, new = f"{name}.{changed}", old.get(changed), new.get(changed)
            raise InputError(
                f"{folder} holds another training run: {name} is {old} there, but {new} here; give another "
                "folder"
            )


def finished_run(record: Mapping[str, Any], module: nn.Module, recipe: Recipe, folder: Path) -> TrainingRun:
    """The run of a folder that holds a finished one."""
    best = load_weights(module, folder)
    if weights_hash(best) != record["weights"]:
        raise FileFormatError(
            f"the weights in {folder} do not match {folder / 'training.json'}; remove the folder to train "
            "again"
        )
    return TrainingRun(
        module=best.eval(),
        folder=folder,
        recipe=recipe,
        best_step=record["best_step"],
        best_score=record["best_score"],
        curve=tuple(record["curve"]),
        history={name: tuple(values) for name, values in record["history"].items()},
        checkpoints={step: folder / "checkpoints" / str(step) for step in record["checkpoints"]},
        record=record,
    )
