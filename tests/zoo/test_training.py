"""Training: what a run writes, that a killed one goes on to the same bytes, what it refuses."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import ViTForImageClassification
from zoo_cases import RECIPE, TRAIN, VALIDATION, StoppedError, stop_after, tiny

from assay.core.errors import FileFormatError, InputError, UnknownNameError
from assay.tasks import EvalTransform, ImageTask
from assay.zoo import LossTerm, Recipe, Term, TrainingRun, train
from assay.zoo.models import weights_hash
from assay.zoo.training import score_of


def trained(folder: Path, recipe: Recipe = RECIPE, **options: Any) -> TrainingRun:
    return train(tiny(), TRAIN, VALIDATION, recipe, folder, **options)


def module_of(run: TrainingRun) -> nn.Module:
    return ViTForImageClassification.from_pretrained(run.folder).eval()


class Flat(LossTerm):
    """Pulls the logits towards 0."""

    def on(self, module: nn.Module) -> Callable[[Tensor], Term]:
        def term(images: Tensor) -> Term:
            logits = module(images).logits
            return Term(0.1 * (logits**2).mean(), {"largest": float(logits.abs().max().detach())})

        return term

    def to_dict(self) -> dict[str, Any]:
        return {"term": "flat", "weight": 0.1}


def test_the_kept_model_is_the_one_with_the_best_validation_score(tmp_path: Path) -> None:
    rows: list[Any] = []
    run = trained(tmp_path / "run", validated=rows.append)
    scores = [row["score"] for row in run.curve]
    assert rows == run.curve
    transform, config = EvalTransform(resize=(32, 32)), (run.folder / "preprocessor_config.json").read_text()
    assert EvalTransform.from_config(json.loads(config)) == transform
    assert tuple(module_of(run).config.id2label.values()) == TRAIN.classes
    assert [row["step"] for row in run.curve] == [4, 8, 12]
    assert (run.best_score, run.best_step) == (max(scores), 4 * (1 + scores.index(max(scores))))
    score, loss = score_of(module_of(run), VALIDATION, EvalTransform())
    assert score == run.best_score
    assert loss == pytest.approx(run.curve[run.best_step // 4 - 1]["loss"])


def test_training_learns_what_is_easy_and_leaves_the_module_alone(tmp_path: Path) -> None:
    labels = np.arange(90) % 3
    noise = np.random.default_rng(0).integers(0, 60, (90, 32, 32, 3))
    shades = (noise + 90 * labels[:, None, None, None]).astype(np.uint8)
    images = ImageTask(pixels=shades, labels=torch.from_numpy(labels), classes=("dark", "grey", "bright"))
    module = tiny(n_classes=3)
    before = weights_hash(module)
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    recipe = dataclasses.replace(RECIPE, steps=60)
    run = train(module, images.subset(range(60)), images.subset(range(60, 90)), recipe, tmp_path / "run")
    assert torch.equal(torch.rand(1), wanted)  # the global generator stays where it was
    assert run.initial_weights == weights_hash(module) == before != run.weights
    assert run.best_score > 0.95
    assert np.mean(run.history["loss"][-5:]) < 0.5 * run.history["loss"][0]


@pytest.mark.parametrize(("optimiser", "stopped"), [("sgd", 3), ("adamw", 5)])
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, optimiser: str, stopped: int) -> None:
    recipe = dataclasses.replace(RECIPE, optimiser=optimiser)
    options: dict[str, Any] = {"loss_term": Flat(), "checkpoints": (0, 6, 12)}
    whole = trained(tmp_path / "whole", recipe, **options)
    with pytest.raises(StoppedError):
        trained(tmp_path / "parts", recipe, **options, progress=stop_after(stopped))
    parts = trained(tmp_path / "parts", recipe, **options)
    assert (parts.history, parts.curve) == (whole.history, whole.curve)
    assert set(whole.history) == {"loss", "term", "largest"}
    assert parts.checkpoints == (0, 6, 12)
    for place in ("", "checkpoints/0/", "checkpoints/6/", "checkpoints/12/"):
        one, other = (each.folder / f"{place}model.safetensors" for each in (parts, whole))
        assert one.read_bytes() == other.read_bytes()
    assert not (tmp_path / "parts" / "state.safetensors").exists()
    read = trained(tmp_path / "parts", recipe, **options, progress=stop_after(1))  # and not repeated
    assert read.to_dict() == parts.to_dict()


def test_linear_training_changes_the_head_alone_and_bfloat16_keeps_weights_in_float32(tmp_path: Path) -> None:
    head = trained(tmp_path / "head", dataclasses.replace(RECIPE, mode="linear"))
    old, new = tiny().state_dict(), module_of(head).state_dict()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed == {"classifier.weight", "classifier.bias"}
    half = trained(tmp_path / "half", precision="bfloat16")
    whole = trained(tmp_path / "whole")
    assert {each.dtype for each in module_of(half).parameters()} == {torch.float32}
    assert half.history["loss"] != whole.history["loss"]
    assert half.history["loss"] == pytest.approx(whole.history["loss"], rel=0.02)  # 8 bits of mantissa


def test_what_cannot_be_trained_is_refused_before_the_first_step(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    with pytest.raises(InputError, match=r"another training: recipe.lr is 0.01 there, 0.1 here"):
        trained(tmp_path / "run", dataclasses.replace(RECIPE, lr=0.1))
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "state.safetensors").write_bytes(b"half a file")
    with pytest.raises(FileFormatError, match=r"state\.safetensors is not a state of a training run"):
        trained(tmp_path / "half")
    place = tmp_path / "nowhere"
    for wrong, message in (
        (dataclasses.replace(VALIDATION, classes=tuple("abcdef")), "the validation images have the classes"),
        (dataclasses.replace(VALIDATION, labels=None), "have no labels"),
        (TRAIN.subset(range(24)), "24 validation images are also in the training set"),
    ):
        with pytest.raises(InputError, match=message):
            train(tiny(), TRAIN, wrong, RECIPE, place)
    with pytest.raises(InputError, match="a checkpoint after step 13 of 12"):
        trained(place, checkpoints=(13,))
    with pytest.raises(UnknownNameError, match="did you mean 'bfloat16'"):
        trained(place, precision="float16")
    assert not place.exists()
