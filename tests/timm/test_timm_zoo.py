"""Zoos of timm models: trained, written as timm writes them, read again, started from."""

import dataclasses
from pathlib import Path

import pytest
import torch

from assay.models import load_model
from assay.tasks import EvalTransform, ImageTask, draw_shapes
from assay.zoo import Recipe, TrainingRun, Zoo, initial_module, train
from assay.zoo.models import weights_hash


TRANSFORM = EvalTransform(
    resize=(32, 32), crop=(32, 32), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), centre="round"
)
RECIPE = Recipe(steps=4, warmup=1, batch_size=8, validate_every=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    import timm

    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 16, "embed_dim": 16, "depth": 2, "num_heads": 2}
    module = timm.create_model("vit_tiny_patch16_224", **sizes, num_classes=6).eval()
    sets = draw_shapes("flat", 24), draw_shapes("flat", 12, start=24)
    folder = tmp_path_factory.mktemp("timm") / "run"
    return train(module, *sets, RECIPE, folder, transform=TRANSFORM, checkpoints=(2,))


def test_a_trained_timm_model_is_read_with_its_classes_and_transform(run: TrainingRun) -> None:
    model = load_model(run.folder)
    assert weights_hash(model.module) == run.weights
    assert model.classes == draw_shapes("flat", 1).classes
    stored = EvalTransform.for_model(model)
    assert (stored.mean, stored.std, stored.resample) == (TRANSFORM.mean, TRANSFORM.std, TRANSFORM.resample)
    assert stored.crop == (32, 32)
    assert load_model(run.folder / "checkpoints" / "2").graph == model.graph
    zoo = Zoo.open(run.folder.parent)
    assert (zoo.keys, zoo.correctness(draw_shapes("neon", 12)).correct.shape) == (("run",), (1, 12))


def test_a_timm_checkpoint_gets_a_new_head_that_alone_is_trained(run: TrainingRun, tmp_path: Path) -> None:
    start = initial_module(str(run.folder), ["a", "b", "c"])
    assert start.module.get_classifier().out_features == 3
    assert start.transform is not None
    assert start.transform.mean == TRANSFORM.mean

    def thirds(images: ImageTask) -> ImageTask:
        return dataclasses.replace(images, labels=images.labels % 3, classes=("a", "b", "c"))

    sets = thirds(draw_shapes("flat", 24)), thirds(draw_shapes("flat", 12, start=24))
    linear = dataclasses.replace(RECIPE, mode="linear")
    trained = load_model(train(start.module, *sets, linear, tmp_path / "run").folder).module.state_dict()
    before = start.module.state_dict()
    changed = {name for name in before if not torch.equal(before[name], trained[name])}
    assert changed == {"head.weight", "head.bias"}
