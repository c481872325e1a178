"""Training: what a run writes, that a killed one goes on to the same bytes, what it refuses."""

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import CONTEXT
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

from assay.core.errors import FileFormatError, InputError, NonFiniteError, ShapeError
from assay.tasks import EvalTransform, ImageSet, draw_shapes
from assay.zoo import LossTerm, Recipe, train
from assay.zoo.feeding import batch_rows
from assay.zoo.scoring import images_hash, logits_of, score_of, weights_hash


def tiny(seed: int = 0, n_classes: int = 6) -> ViTForImageClassification:
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=16,
        num_labels=n_classes,
    )
    torch.manual_seed(seed)
    return ViTForImageClassification(config).eval()


TRAIN = draw_shapes("flat", 48)
VALIDATION = draw_shapes("flat", 24, start=48)
RECIPE = Recipe(lr=0.01, steps=12, warmup=2, batch_size=16, validate_every=4, optimiser="adamw")


def bytes_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


class StoppedError(Exception):
    """Stands for a kill between two steps."""


def stop_after(step: int) -> Any:
    def progress(stage: str, done: int, total: int) -> None:
        if done == step:
            raise StoppedError

    return progress


class Pull(LossTerm):
    """Pulls the logits towards the mean of the batch before: a term with a memory."""

    def __init__(self) -> None:
        self.mean = torch.zeros(6)
        self.seen = 0.0

    def __call__(self, module: nn.Module, images: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
        term = 0.1 * ((logits - self.mean) ** 2).mean()
        self.mean = logits.detach().mean(dim=0)
        self.seen = float(self.mean.norm())
        return term

    def describe(self) -> dict[str, Any]:
        return {"term": "pull", "weight": 0.1}

    def readings(self) -> dict[str, float]:
        return {"norm": self.seen}

    def state(self) -> dict[str, Tensor]:
        return {"mean": self.mean}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.mean = state["mean"]


def test_the_kept_model_is_the_one_with_the_best_validation_score(tmp_path: Path) -> None:
    run = train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run")
    scores = [row["score"] for row in run.curve]
    assert [row["step"] for row in run.curve] == [4, 8, 12]
    assert run.best_score == max(scores)
    assert run.best_step == 4 * (1 + scores.index(max(scores)))
    found, loss = score_of(run.module, VALIDATION, EvalTransform())
    assert found == run.best_score
    assert loss == pytest.approx(run.curve[run.best_step // 4 - 1]["loss"])
    assert not run.module.training


def test_training_learns_what_is_easy_and_leaves_the_module_alone(tmp_path: Path) -> None:
    labels = np.arange(90) % 3
    noise = np.random.default_rng(0).integers(0, 60, (90, 32, 32, 3))
    shades = (noise + 90 * labels[:, None, None, None]).astype(np.uint8)
    images = ImageSet(pixels=shades, labels=labels, classes=("dark", "grey", "bright"))
    module = tiny(n_classes=3)
    before = weights_hash(module)
    recipe = dataclasses.replace(RECIPE, steps=60)
    run = train(module, images.subset(range(60)), images.subset(range(60, 90)), recipe, tmp_path / "run")
    assert weights_hash(module) == before != weights_hash(run.module)
    assert run.best_score > 0.95
    assert np.mean(run.history["loss"][-5:]) < 0.5 * run.history["loss"][0]


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.parametrize("stopped", [3, 5, 11])
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, optimiser: str, stopped: int) -> None:
    recipe = dataclasses.replace(RECIPE, optimiser=optimiser)

    def run(folder: Path, **more: Any) -> Any:
        return train(tiny(), TRAIN, VALIDATION, recipe, folder, loss_term=Pull(), save_every=2, **more)

    whole = run(tmp_path / "whole", checkpoints=(0, 6, 12))
    with pytest.raises(StoppedError):
        run(tmp_path / "parts", checkpoints=(0, 6, 12), progress=stop_after(stopped))
    parts = run(tmp_path / "parts", checkpoints=(0, 6, 12))
    assert bytes_of(parts.folder) == bytes_of(whole.folder)
    assert parts.history == whole.history
    assert parts.curve == whole.curve
    assert set(whole.history) == {"loss", "term", "norm"}
    assert list(parts.checkpoints) == [0, 6, 12]
    for step in (0, 6, 12):
        assert bytes_of(parts.checkpoints[step]) == bytes_of(whole.checkpoints[step])
    assert not (tmp_path / "parts" / "state.safetensors").exists()


def train_slowly(recipe: Recipe, folder: Path) -> None:
    torch.set_num_threads(1)  # as here: sums over another number of threads end in other bits
    train(tiny(), TRAIN, VALIDATION, recipe, folder, progress=lambda *_: time.sleep(0.05))


@pytest.mark.slow
def test_a_killed_process_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, steps=80)
    whole = train(tiny(), TRAIN, VALIDATION, recipe, tmp_path / "whole")
    process = CONTEXT.Process(target=train_slowly, args=(recipe, tmp_path / "killed"))
    process.start()
    state = tmp_path / "killed" / "state.safetensors"
    deadline = time.monotonic() + 120
    while not state.exists() and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.join()
    assert state.exists(), "the process was not caught while it was training"
    assert not (tmp_path / "killed" / "training.json").exists()
    resumed = train(tiny(), TRAIN, VALIDATION, recipe, tmp_path / "killed")
    assert bytes_of(resumed.folder) == bytes_of(whole.folder)
    assert resumed.history == whole.history


def test_a_finished_run_is_read_and_not_repeated(tmp_path: Path) -> None:
    first = train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run")
    second = train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run", progress=stop_after(1))
    assert weights_hash(second.module) == weights_hash(first.module)
    assert second.curve == first.curve


def test_the_folder_is_a_hugging_face_model_with_classes_and_transform(tmp_path: Path) -> None:
    transform = EvalTransform(resize=(32, 32), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    run = train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run", transform=transform)
    read = ViTForImageClassification.from_pretrained(run.folder)
    assert tuple(read.config.id2label.values()) == TRAIN.classes
    assert weights_hash(read) == weights_hash(run.module)
    config = json.loads((run.folder / "preprocessor_config.json").read_text())
    assert EvalTransform.from_config(config) == transform
    assert logits_of(read, VALIDATION, transform).shape == (24, 6)


def test_linear_training_changes_the_head_alone(tmp_path: Path) -> None:
    module = tiny()
    recipe = dataclasses.replace(RECIPE, mode="linear")
    run = train(module, TRAIN, VALIDATION, recipe, tmp_path / "run")
    old, new = module.state_dict(), run.module.state_dict()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed == {"classifier.weight", "classifier.bias"}


def test_watched_sets_are_scored_but_choose_nothing(tmp_path: Path) -> None:
    watched = {"sketch": draw_shapes("sketch", 12)}
    run = train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run", watch=watched)
    plain = train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "plain")
    assert all(set(row["watch"]) == {"sketch"} for row in run.curve)
    assert bytes_of(run.folder) == bytes_of(plain.folder)


def test_macro_f1_is_the_mean_over_classes_that_occur() -> None:
    logits = torch.tensor([[3.0, 0, 0], [3.0, 0, 0], [0, 3.0, 0], [3.0, 0, 0]])

    class Fixed(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return logits

    pixels = np.zeros((4, 32, 32, 3), dtype=np.uint8)
    images = ImageSet(pixels=pixels, labels=np.array([0, 0, 1, 1]))
    # Class 0: precision 2/3, recall 1; class 1: precision 1, recall 1/2; class 2 does not occur.
    assert score_of(Fixed(), images, EvalTransform(), score="macro-f1")[0] == pytest.approx((0.8 + 2 / 3) / 2)
    assert score_of(Fixed(), images, EvalTransform())[0] == 0.75


def test_an_epoch_shows_every_image_once() -> None:
    rows = np.concatenate([batch_rows(48, 16, step, seed=3) for step in range(3)])
    assert sorted(rows) == list(range(48))
    following = np.concatenate([batch_rows(48, 16, step, seed=3) for step in range(3, 6)])
    assert sorted(following) == list(range(48))
    assert list(following) != list(rows)
    assert len(batch_rows(5, 16, 7, seed=0)) == 5


def test_the_hash_of_images_sees_pixels_and_labels() -> None:
    other = dataclasses.replace(TRAIN, labels=(TRAIN.labels + 1) % 6)
    assert len({images_hash(TRAIN), images_hash(VALIDATION), images_hash(other)}) == 3


def test_the_global_generator_stays_where_it_was(tmp_path: Path) -> None:
    module = tiny()
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    train(module, TRAIN, VALIDATION, RECIPE, tmp_path / "run")
    assert torch.equal(torch.rand(1), wanted)


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run")
    with pytest.raises(InputError, match=r"another training run: recipe.lr is 0.01 there, but 0.1 here"):
        train(tiny(), TRAIN, VALIDATION, dataclasses.replace(RECIPE, lr=0.1), tmp_path / "run")
    with pytest.raises(StoppedError):
        train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "other", save_every=1, progress=stop_after(3))
    with pytest.raises(InputError, match="initial_weights is"):
        train(tiny(seed=1), TRAIN, VALIDATION, RECIPE, tmp_path / "other")


def test_a_damaged_state_and_a_damaged_model_are_named(tmp_path: Path) -> None:
    run = train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run")
    tiny(seed=9).save_pretrained(run.folder)
    with pytest.raises(FileFormatError, match=r"do not match .*training\.json"):
        train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "run")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "state.safetensors").write_bytes(b"half a file")
    with pytest.raises(FileFormatError, match=r"state\.safetensors is not a state of a training run"):
        train(tiny(), TRAIN, VALIDATION, RECIPE, tmp_path / "half")


def test_data_that_do_not_fit_are_refused_before_the_first_step(tmp_path: Path) -> None:
    place = tmp_path / "run"
    renamed = dataclasses.replace(VALIDATION, classes=("a", "b", "c", "d", "e", "f"))
    with pytest.raises(InputError, match="read both with the same classes"):
        train(tiny(), TRAIN, renamed, RECIPE, place)
    with pytest.raises(InputError, match="have no labels"):
        train(tiny(), TRAIN, dataclasses.replace(VALIDATION, labels=None), RECIPE, place)
    with pytest.raises(InputError, match="24 validation images are also in the training set"):
        train(tiny(), TRAIN, TRAIN.subset(range(24)), RECIPE, place)
    with pytest.raises(InputError, match="7 outputs, but the data 6 classes"):
        train(tiny(n_classes=7), TRAIN, VALIDATION, RECIPE, place)
    with pytest.raises(ShapeError, match="reads images of 32 x 32, but these are 16 x 16"):
        train(
            tiny(), draw_shapes("flat", 12, size=16), draw_shapes("flat", 6, start=12, size=16), RECIPE, place
        )
    with pytest.raises(InputError, match="a checkpoint after step 13 of 12"):
        train(tiny(), TRAIN, VALIDATION, RECIPE, place, checkpoints=(13,))
    assert not place.exists()


def test_a_run_that_diverges_says_at_which_step(tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, lr=1e30, clip=None, optimiser="sgd", warmup=0)
    with pytest.raises(NonFiniteError, match=r"the loss of step \d+ is .* lower lr"):
        train(tiny(), TRAIN, VALIDATION, recipe, tmp_path / "run")
    broken = tiny()
    with torch.no_grad():
        broken.classifier.bias[0] = torch.nan
    with pytest.raises(NonFiniteError, match="classifier.bias holds NaN"):
        train(broken, TRAIN, VALIDATION, RECIPE, tmp_path / "run")
