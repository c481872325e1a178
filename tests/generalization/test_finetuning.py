"""Fine-tuning with a circuit loss: what is written, resuming after a kill, and bad input."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import assay
from assay.analyses.generalization import dependency_depth_bias
from assay.analyses.generalization.circuit_loss import CircuitSettings
from assay.analyses.generalization.dynamics import (
    training_dynamics,
)
from assay.analyses.generalization.finetuning import DEFAULT_RECIPE, FineTuning, finetune
from assay.core.errors import InputError
from assay.tasks import SHAPE_CLASSES, EvalTransform, ImageTask, draw_shapes
from assay.zoo import Recipe
from assay.zoo.models import weights_hash


TRANSFORM = EvalTransform(resize=(32, 32))
RECIPE = Recipe(
    lr=1e-3, batch_size=12, steps=6, warmup=1, optimiser="adamw", validate_every=2, head_dropout=0.0
)


def shapes_vit(seed: int = 0, dropout: float = 0.0) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ViTForImageClassification(
            ViTConfig(
                hidden_size=16,
                num_hidden_layers=2,
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


def tuned(folder: Path, circuit: CircuitSettings | None = None, recipe: Recipe = RECIPE) -> FineTuning:
    return finetune(
        shapes_vit(),
        images(),
        images(start=100, n=24),
        folder,
        circuit=circuit,
        recipe=recipe,
        watch={"sketch": images("sketch", 24)},
        transform=TRANSFORM,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FineTuning:
    return tuned(tmp_path_factory.mktemp("finetune") / "run")


def test_the_folder_is_a_model_with_its_history(finished: FineTuning) -> None:
    folder = finished.run.folder
    model = assay.load_model(folder)
    assert model.classes == SHAPE_CLASSES
    assert weights_hash(model.module) == finished.run.weights
    document = json.loads((folder / "circuit.json").read_text())
    assert document == json.loads(json.dumps(finished.to_dict()))
    assert document["schema"] == "assay-finetune/1"
    assert document["circuit"]["variant"] == "eap_ig_detach_g"
    assert document["selected"]["by"] == "validation"
    assert [reading["step"] for reading in document["dynamics"]["readings"]] == [0, 2, 4, 6]
    assert len(finished.run.history["deep"]) == len(finished.run.history["term"]) == 6


def test_readings_are_the_depth_bias_of_the_full_circuit(finished: FineTuning) -> None:
    reading = finished.dynamics.readings[-1]
    model = assay.load_model(finished.run.checkpoints[6])
    probe = images(start=100, n=24).sample(128).with_transform(TRANSFORM)
    scores = assay.discover(model, probe, "eap-ig-inputs", steps=5)
    column = scores.values[:, -1].abs()
    assert reading.deep == pytest.approx(float(column[4:].sum()), rel=1e-4)
    assert reading.shallow == pytest.approx(float(column[1:4].sum()), rel=1e-4)
    assert reading.depth_bias == pytest.approx(dependency_depth_bias(scores), rel=1e-4)
    assert reading.low is not None
    assert reading.high is not None
    assert reading.low < reading.depth_bias < reading.high


def test_the_step_is_chosen_in_distribution_and_watched_sets_choose_nothing(finished: FineTuning) -> None:
    curve = finished.run.curve
    best = max(curve, key=lambda row: row["score"])
    assert (finished.step, finished.score) == (best["step"], best["score"])
    assert finished.watched == {"sketch": best["watch"]["sketch"]}
    # Scores come from the training run where it has them, and are computed at step 0.
    assert finished.dynamics.at(best["step"]).scores["sketch"] == best["watch"]["sketch"]
    assert set(finished.dynamics.at(0).scores) == {"validation", "sketch"}


def test_the_loss_changes_the_weights_and_weight_zero_is_plain_training(
    finished: FineTuning, tmp_path: Path
) -> None:
    plain = tuned(tmp_path / "plain", CircuitSettings(weight=0))
    assert plain.circuit is None
    assert "term" not in plain.run.history
    assert plain.run.weights != finished.run.weights
    assert plain.dynamics.readings[0].depth_bias == finished.dynamics.readings[0].depth_bias


@pytest.mark.parametrize("variant", ["eap_ig_detach_g", "eap_ig_detach_actdiff"])
def test_a_run_that_was_killed_goes_on_to_identical_results(variant: str, tmp_path: Path) -> None:
    settings = CircuitSettings(variant=variant, loss="ratio")
    whole = tuned(tmp_path / "whole", settings)

    class Killed(Exception):  # noqa: N818 - stands for a signal
        pass

    def kill(stage: str, done: int, total: int) -> None:
        del stage, total
        if done == 5:
            raise Killed

    arguments = (shapes_vit(), images(), images(start=100, n=24), tmp_path / "killed")
    options = {
        "circuit": settings,
        "recipe": RECIPE,
        "watch": {"sketch": images("sketch", 24)},
        "transform": TRANSFORM,
    }
    with pytest.raises(Killed):
        finetune(*arguments, **options, progress=kill)
    assert not (tmp_path / "killed" / "circuit.json").exists()
    resumed = finetune(*arguments, **options)
    assert resumed.run.weights == whole.run.weights
    assert resumed.run.history == whole.run.history
    assert resumed.to_dict() == whole.to_dict()
    # And a finished run is read, not trained again.
    again = finetune(*arguments, **options)
    assert again.to_dict() == whole.to_dict()


def test_head_dropout_does_not_enter_the_circuit(tmp_path: Path) -> None:
    """The first batch's readings are those of the initial weights, with and without dropout in training."""
    first = [
        tuned(tmp_path / name, recipe=replace(RECIPE, head_dropout=share, steps=2)).run.history
        for name, share in (("none", 0.0), ("half", 0.5))
    ]
    assert first[0]["deep"][0] == first[1]["deep"][0]
    assert first[0]["shallow"][0] == first[1]["shallow"][0]
    assert first[0]["loss"][0] != first[1]["loss"][0]


def test_the_model_that_is_given_stays_as_it_is(tmp_path: Path) -> None:
    module = shapes_vit(dropout=0.1).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    finetune(module, images(), images(start=100, n=24), tmp_path / "run", recipe=RECIPE, transform=TRANSFORM)
    assert module.training
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_the_default_recipe_has_the_published_numbers() -> None:
    assert (DEFAULT_RECIPE.lr, DEFAULT_RECIPE.batch_size) == (1e-4, 32)
    assert (DEFAULT_RECIPE.weight_decay, DEFAULT_RECIPE.clip) == (5e-7, None)


# ---------------------------------------------------------------------------------------------- dynamics


def test_dynamics_of_a_folder_are_those_of_its_checkpoints(finished: FineTuning, tmp_path: Path) -> None:
    probe = images(start=100, n=24)
    by_folder = training_dynamics(finished.run.folder, probe, watch={"sketch": images("sketch", 24)})
    assert [each.step for each in by_folder.readings] == [0, 2, 4, 6]
    assert by_folder.readings[2].depth_bias == pytest.approx(finished.dynamics.at(4).depth_bias)
    assert by_folder.at(4).scores == {"sketch": finished.dynamics.at(4).scores["sketch"]}
    assert by_folder.facts["deep_blocks"] == [1, 1]
    # The kept model stands for its step where no checkpoint does.
    run = finished.run
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "0").symlink_to(run.checkpoints[0])
    for name in ("training.json", "config.json", "model.safetensors", "preprocessor_config.json"):
        (tmp_path / "run" / name).symlink_to(run.folder / name)
    fewer = training_dynamics(tmp_path / "run", probe)
    assert [each.step for each in fewer.readings] == [0, run.best_step]
    assert fewer.at(run.best_step).depth_bias == by_folder.at(run.best_step).depth_bias


def test_explicit_blocks_are_compared() -> None:
    settings = CircuitSettings(shallow=(1, 1), deep=(2, 3))
    from transformers import ViTConfig, ViTForImageClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = ViTConfig(
            hidden_size=16,
            num_hidden_layers=4,
            num_attention_heads=2,
            intermediate_size=24,
            image_size=32,
            patch_size=16,
            num_labels=6,
        )
        model = assay.load_model(ViTForImageClassification(config).eval())
    found = training_dynamics({0: model}, images(), settings=settings, transform=TRANSFORM)
    scores = assay.discovery.edges.output_scores(model, images().with_transform(TRANSFORM)).values.abs()
    assert found.readings[0].shallow == pytest.approx(float(scores[4:7].sum()), rel=1e-5)
    assert found.readings[0].deep == pytest.approx(float(scores[7:].sum()), rel=1e-5)
    assert found.readings[0].low is None
    assert found.facts["shallow_blocks"] == [1, 1]


def test_a_zero_head_has_no_depth_bias() -> None:
    module = shapes_vit()
    nn.init.zeros_(module.classifier.weight)
    found = training_dynamics({0: assay.load_model(module)}, images(), transform=TRANSFORM)
    assert math.isnan(found.readings[0].depth_bias)
    assert found.to_dict()["readings"][0]["depth_bias"] is None


# ---------------------------------------------------------------------------------------------- bad input


def test_what_cannot_be_trained_is_refused_before_the_first_step(tmp_path: Path) -> None:
    sets = images(), images(start=100, n=24)
    common = {"transform": TRANSFORM}
    with pytest.raises(InputError, match="batches of 1 image cannot be used"):
        finetune(shapes_vit(), *sets, tmp_path / "run", recipe=replace(RECIPE, batch_size=1), **common)
    with pytest.raises(InputError, match="trains the head alone"):
        finetune(shapes_vit(), *sets, tmp_path / "run", recipe=replace(RECIPE, mode="linear"), **common)
    with pytest.raises(InputError, match="n_images is 1 of 24"):
        finetune(shapes_vit(), *sets, tmp_path / "run", recipe=RECIPE, n_images=1, **common)
    with pytest.raises(InputError, match="mini is a language model"):
        finetune("mini", *sets, tmp_path / "run", recipe=RECIPE, **common)
    with pytest.raises(InputError, match="deep blocks end at 3, but the model has 2"):
        finetune(
            shapes_vit(),
            *sets,
            tmp_path / "run",
            circuit=CircuitSettings(shallow=(0, 0), deep=(3, 3)),
            **common,
        )
    with pytest.raises(InputError, match="also in the training set"):
        finetune(shapes_vit(), images(), images(), tmp_path / "run", recipe=RECIPE, **common)
    other = replace(images(), classes=tuple(reversed(SHAPE_CLASSES)))
    with pytest.raises(InputError, match="in the same order"):
        finetune(shapes_vit(), other, other, tmp_path / "run", recipe=RECIPE, **common)
    assert not (tmp_path / "run").exists()


def test_another_run_in_the_folder_is_refused(finished: FineTuning) -> None:
    with pytest.raises(InputError, match=r"loss_term.weight is 0.1 there, 0.2 here"):
        tuned(finished.run.folder, CircuitSettings(weight=0.2))


def test_dynamics_without_checkpoints_images_or_labels_are_refused(
    finished: FineTuning, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="has no checkpoint"):
        training_dynamics(tmp_path, images())
    with pytest.raises(InputError, match="give at least one step"):
        training_dynamics({}, images())
    with pytest.raises(InputError, match="1 image is too few for circuits"):
        training_dynamics(finished.run.folder, images(n=1))
    with pytest.raises(InputError, match="'sketch' has no labels"):
        training_dynamics(finished.run.folder, images(), watch={"sketch": replace(images(), labels=None)})
    with pytest.raises(InputError, match="step 3 has no checkpoint; available steps: 0, 2, 4, 6"):
        finished.dynamics.at(3)
