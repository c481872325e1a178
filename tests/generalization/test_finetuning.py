"""Fine-tuning with a circuit loss, and the circuit along a run: what is written, resuming, bad input."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import assay
from assay.analyses.generalization import (
    CircuitLoss,
    Dynamics,
    dependency_depth_bias,
    finetune,
    training_dynamics,
)
from assay.analyses.generalization.dependency import DepthRule
from assay.core.errors import InputError
from assay.tasks import SHAPE_CLASSES, EvalTransform, ImageTask, draw_shapes
from assay.zoo import Recipe, TrainingRun
from assay.zoo.models import weights_hash


TRANSFORM = EvalTransform(resize=(32, 32))
RECIPE = Recipe(
    lr=1e-3, batch_size=12, steps=6, warmup=1, optimiser="adamw", validate_every=2, head_dropout=0.0
)


def shapes_vit(layers: int = 2, dropout: float = 0.0) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ViTForImageClassification(
            ViTConfig(
                hidden_size=16,
                num_hidden_layers=layers,
                num_attention_heads=2,
                intermediate_size=24,
                image_size=32,
                patch_size=16,
                num_labels=6,
                initializer_range=0.2,
                hidden_dropout_prob=dropout,
                id2label=dict(enumerate(SHAPE_CLASSES)),
                label2id={name: number for number, name in enumerate(SHAPE_CLASSES)},
            )
        ).eval()


def images(domain: str = "flat", n: int = 36, start: int = 0) -> ImageTask:
    return draw_shapes(domain, n, start=start)


def tuned(
    folder: Path, circuit: CircuitLoss | None = None, recipe: Recipe = RECIPE, **more: Any
) -> TrainingRun:
    return finetune(
        shapes_vit(),
        images(),
        images(start=100, n=24),
        folder,
        circuit=circuit,
        recipe=recipe,
        transform=TRANSFORM,
        **more,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    return tuned(tmp_path_factory.mktemp("finetune") / "run")


@pytest.fixture(scope="module")
def course(finished: TrainingRun) -> Dynamics:
    probe = images(start=100, n=24)
    return training_dynamics(finished.folder, probe, watch={"validation": probe})


def test_the_folder_is_a_model_with_its_history(finished: TrainingRun) -> None:
    model = assay.load_model(finished.folder)
    assert model.classes == SHAPE_CLASSES
    assert weights_hash(model.module) == finished.weights
    assert finished.loss_term == CircuitLoss().to_dict()
    assert finished.checkpoints == (0, 2, 4, 6)
    assert len(finished.history["deep"]) == len(finished.history["term"]) == 6
    best = max(finished.curve, key=lambda row: row["score"])
    assert (finished.best_step, finished.best_score) == (best["step"], best["score"])


def test_the_loss_changes_the_weights_and_weight_zero_is_plain_training(
    finished: TrainingRun, tmp_path: Path
) -> None:
    plain = tuned(tmp_path / "plain", CircuitLoss(weight=0))
    assert plain.loss_term is None
    assert "term" not in plain.history
    assert plain.weights != finished.weights


@pytest.mark.parametrize("variant", ["eap_ig_detach_g", "eap_ig_detach_actdiff"])
def test_a_run_that_was_killed_goes_on_to_identical_results(variant: str, tmp_path: Path) -> None:
    settings = CircuitLoss(variant=variant, loss="ratio")
    whole = tuned(tmp_path / "whole", settings)

    class Killed(Exception):  # noqa: N818 - stands for a signal
        pass

    def kill(stage: str, done: int, total: int) -> None:
        if done == 5:
            raise Killed

    with pytest.raises(Killed):
        tuned(tmp_path / "killed", settings, progress=kill)
    resumed = tuned(tmp_path / "killed", settings)
    assert (resumed.weights, resumed.history) == (whole.weights, whole.history)
    again = tuned(tmp_path / "killed", settings, progress=kill)  # read, not trained again
    assert again.to_dict() == resumed.to_dict()


def test_dropout_does_not_enter_the_circuit(tmp_path: Path) -> None:
    """The first batch's readings are those of the initial weights, with and without dropout in training."""
    first = [
        tuned(tmp_path / name, recipe=replace(RECIPE, head_dropout=share, steps=2)).history
        for name, share in (("none", 0.0), ("half", 0.5))
    ]
    assert first[0]["deep"][0] == first[1]["deep"][0]
    assert first[0]["loss"][0] != first[1]["loss"][0]


def test_the_model_that_is_given_stays_as_it_is(tmp_path: Path) -> None:
    module = shapes_vit(dropout=0.1).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    finetune(module, images(), images(start=100, n=24), tmp_path / "run", recipe=RECIPE, transform=TRANSFORM)
    assert module.training
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


# ---------------------------------------------------------------------------------------------- dynamics


def test_readings_are_the_depth_bias_of_the_full_circuit(finished: TrainingRun, course: Dynamics) -> None:
    reading = course.readings[-1]
    model = assay.load_model(finished.folder / "checkpoints" / "6")
    probe = images(start=100, n=24).with_transform(TRANSFORM)
    scores = assay.discover(model, probe, "eap-ig-inputs", steps=5)
    column = scores.values[:, -1].abs()
    assert reading["deep"] == pytest.approx(float(column[4:].sum()), rel=1e-4)
    assert reading["shallow"] == pytest.approx(float(column[1:4].sum()), rel=1e-4)
    assert reading["depth_bias"] == pytest.approx(dependency_depth_bias(scores), rel=1e-4)
    assert reading["low"] < reading["depth_bias"] < reading["high"]


def test_dynamics_of_a_folder_are_those_of_its_checkpoints(
    finished: TrainingRun, course: Dynamics, tmp_path: Path
) -> None:
    assert course.to_frame()["step"].tolist() == [0, 2, 4, 6]
    scores = {row["step"]: row["score"] for row in finished.curve}
    assert {row["step"]: row["scores"]["validation"] for row in course.readings[1:]} == scores
    assert course.facts["deep_blocks"] == [1, 1]
    # The kept model stands for its step where no checkpoint does.
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "0").symlink_to(finished.folder / "checkpoints" / "0")
    for name in ("training.json", "config.json", "model.safetensors", "preprocessor_config.json"):
        (tmp_path / name).symlink_to(finished.folder / name)
    fewer = training_dynamics(tmp_path, images(start=100, n=24)).readings
    assert [row["step"] for row in fewer] == [0, finished.best_step]
    whole = {row["step"]: row["depth_bias"] for row in course.readings}
    assert fewer[1]["depth_bias"] == whole[finished.best_step]


def test_a_rule_says_which_blocks_are_compared() -> None:
    model = assay.load_model(shapes_vit(layers=4))
    found = training_dynamics({0: model}, images(), rule=DepthRule(ratio=0.5), transform=TRANSFORM)
    scores = assay.discovery.edges.output_scores(model, images().with_transform(TRANSFORM)).values.abs()
    assert found.readings[0]["shallow"] == pytest.approx(float(scores[1:7].sum()), rel=1e-5)
    assert found.readings[0]["deep"] == pytest.approx(float(scores[7:].sum()), rel=1e-5)
    assert found.facts["shallow_blocks"] == [0, 1]


def test_a_zero_head_has_no_depth_bias() -> None:
    module = shapes_vit()
    nn.init.zeros_(module.classifier.weight)
    found = training_dynamics({0: assay.load_model(module)}, images(), transform=TRANSFORM)
    assert math.isnan(found.to_frame()["depth_bias"][0])
    assert found.to_dict()["readings"][0]["depth_bias"] is None


# ---------------------------------------------------------------------------------------------- bad input


def test_what_cannot_be_trained_is_refused_before_the_first_step(tmp_path: Path) -> None:
    linear = replace(RECIPE, mode="linear")
    with pytest.raises(InputError, match="trains the head alone"):
        tuned(tmp_path / "run", recipe=linear)
    with pytest.raises(InputError, match="reference sets exist for 12 blocks, not for 2"):
        tuned(tmp_path / "run", CircuitLoss(sets="reference"))
    other = replace(images(), classes=tuple(reversed(SHAPE_CLASSES)))
    with pytest.raises(InputError, match="in the same order"):
        finetune(shapes_vit(), other, other, tmp_path / "run", recipe=RECIPE, transform=TRANSFORM)
    assert not (tmp_path / "run").exists()


def test_another_run_in_the_folder_is_refused(finished: TrainingRun) -> None:
    with pytest.raises(InputError, match=r"loss_term.weight is 0.1 there, 0.2 here"):
        tuned(finished.folder, CircuitLoss(weight=0.2))


def test_dynamics_without_checkpoints_images_or_labels_are_refused(
    finished: TrainingRun, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="has no checkpoint"):
        training_dynamics(tmp_path, images())
    with pytest.raises(InputError, match="and 1 images; give 1, and 2 images, or more"):
        training_dynamics(finished.folder, images(n=1))
    with pytest.raises(InputError, match="have no labels"):
        training_dynamics(finished.folder, images(), watch={"sketch": replace(images(), labels=None)})
