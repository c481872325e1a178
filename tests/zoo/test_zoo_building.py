"""Building a zoo, opening one, starting points; the same for plain directories of models."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

from assay.core.errors import FileFormatError, InputError, UnknownNameError, UnsupportedModelError
from assay.tasks import EvalTransform, draw_shapes
from assay.zoo import Grid, Zoo, initial_module, save_model, select_configurations, split, train_zoo
from assay.zoo.scoring import weights_hash


SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "patch_size": 16,
}
CONTENT = {
    "name": "small",
    "inits": {"scratch": {"source": "scratch", "architecture": SMALL}},
    "axes": {"lr": [0.01, 0.02]},
    "fixed": {"steps": 6, "warmup": 1, "batch_size": 12, "validate_every": 3, "optimiser": "adamw"},
}
GRID = Grid.from_dict(CONTENT)
IMAGES = draw_shapes("flat", 36)
CLASSES = ("circle", "cross", "moon", "square", "star", "triangle")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    folder = tmp_path_factory.mktemp("zoo") / "small"
    return train_zoo(GRID, IMAGES, folder, holdout=0.3, checkpoints=(3,))


def test_a_zoo_holds_a_model_per_recipe(zoo: Zoo) -> None:
    assert zoo.keys == tuple(recipe.key for recipe in GRID.recipes())
    assert (zoo.id_domain, zoo.classes, zoo.name) == ("flat", CLASSES, "small")
    for entry in zoo.entries:
        assert entry.status == "done"
        assert entry.id_accuracy is not None
        assert 0 <= entry.id_accuracy <= 1
        assert entry.best_step in (3, 6)
        assert entry.recipe["start"] == {"source": "scratch", "architecture": SMALL}
        model = zoo.load(entry.key)
        assert model.weight_hash == entry.weight_hash
        assert model.classes == CLASSES
        assert zoo.load(entry.key, step=3).graph == model.graph
    assert len({entry.weight_hash for entry in zoo.entries}) == 2


def test_the_description_on_disk_is_the_zoo(zoo: Zoo) -> None:
    again = Zoo.open(zoo.path)
    assert again.entries == zoo.entries
    assert (again.id_domain, again.classes, again.data) == (zoo.id_domain, zoo.classes, zoo.data)
    content = json.loads((zoo.path / "zoo.json").read_text())
    assert content["schema"] == "assay-zoo/1"
    assert content["models"][0]["checkpoints"] == [{"step": 3, "path": f"models/{zoo.keys[0]}/checkpoints/3"}]


def test_a_zoo_stopped_between_and_inside_models_goes_on_to_the_same_weights(
    zoo: Zoo, tmp_path: Path
) -> None:
    calls = 0

    class StoppedError(Exception):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 10:  # in the fourth step of the second model
            raise StoppedError

    folder = tmp_path / "other"
    with pytest.raises(StoppedError):
        train_zoo(GRID, IMAGES, folder, holdout=0.3, checkpoints=(3,), progress=stop)
    half = Zoo.open(folder)
    assert [entry.status for entry in half.entries] == ["done", "pending"]
    assert half.keys == zoo.keys[:1]
    with pytest.raises(InputError, match="is pending, so it has no model"):
        half.load(zoo.keys[1])
    done: list[str] = []
    whole = train_zoo(
        GRID, IMAGES, folder, holdout=0.3, checkpoints=(3,), progress=lambda stage, *_: done.append(stage)
    )
    assert done == [f"train {zoo.keys[1]}"] * 3
    assert [entry.weight_hash for entry in whole.entries] == [entry.weight_hash for entry in zoo.entries]
    for key in zoo.keys:
        mine, other = (each.path / "models" / key / "model.safetensors" for each in (zoo, whole))
        assert mine.read_bytes() == other.read_bytes()


def test_another_grid_adds_to_a_zoo_and_a_selection_is_written_down(zoo: Zoo, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(zoo.path, folder)
    kept = select_configurations(zoo, tolerance=0.5)
    more = GRID.with_configurations([{**dict(kept.configurations[0]), "seed": 5}])
    grown = train_zoo(more, IMAGES, folder, holdout=0.3, selection=kept)
    assert grown.keys == (*zoo.keys, more.recipes()[0].key)
    selection = Zoo.open(folder).selection
    assert selection is not None
    assert selection["sweep"] == "small"


def test_a_model_that_diverges_is_written_down_and_the_rest_is_trained(tmp_path: Path) -> None:
    wild = {"optimiser": "sgd", "clip": None, "warmup": 0}
    grid = Grid.from_dict(CONTENT | {"axes": {"lr": [1e30, 0.01]}, "fixed": CONTENT["fixed"] | wild})
    found = train_zoo(grid, IMAGES, tmp_path / "zoo", holdout=0.3)
    assert [entry.status for entry in found.entries] == ["failed", "done"]
    assert "lower lr" in found.entries[0].reason
    assert found.keys == (found.entries[1].key,)
    with pytest.raises(InputError, match=r"is failed \(the loss of step"):
        found.load(found.entries[0].key)


def test_folders_and_data_that_do_not_fit_are_refused(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another zoo, 'small': id_domain is flat there, but neon here"):
        train_zoo(GRID, draw_shapes("neon", 36), zoo.path, holdout=0.3)
    with pytest.raises(InputError, match="train_hash is"):
        train_zoo(GRID, draw_shapes("flat", 36, seed=1), zoo.path, holdout=0.3)
    other = CONTENT | {
        "inits": {"scratch": {"source": "scratch", "architecture": SMALL | {"hidden_size": 8}}}
    }
    with pytest.raises(InputError, match="rename the initialisation"):
        train_zoo(Grid.from_dict(other), IMAGES, zoo.path, holdout=0.3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("not a zoo")
    with pytest.raises(InputError, match="is not empty and is not a zoo"):
        train_zoo(GRID, IMAGES, tmp_path / "full")
    with pytest.raises(InputError, match="have no class names"):
        train_zoo(GRID, dataclasses.replace(IMAGES, classes=None), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_splitting_holds_out_a_share_of_every_class() -> None:
    kept, held = split(IMAGES, 0.3, seed=1)
    assert np.bincount(held.labels).tolist() == [2] * 6
    assert np.bincount(kept.labels).tolist() == [4] * 6
    assert not set(kept.ids) & set(held.ids)
    assert np.array_equal(split(IMAGES, 0.3, seed=1)[1].ids, held.ids)
    assert not np.array_equal(split(IMAGES, 0.3, seed=2)[1].ids, held.ids)
    with pytest.raises(InputError, match="expected a fraction between 0 and 1"):
        split(IMAGES, 1.0)
    with pytest.raises(InputError, match="has only one image, which cannot"):
        split(IMAGES.subset(range(6)), 0.5)
    with pytest.raises(InputError, match="have no labels"):
        split(dataclasses.replace(IMAGES, labels=None), 0.5)


def test_a_plain_directory_of_models_is_a_zoo(zoo: Zoo, tmp_path: Path) -> None:
    for name, key in (("second", zoo.keys[0]), ("first", zoo.keys[1])):
        shutil.copytree(zoo.folder(key), tmp_path / "plain" / name)
    (tmp_path / "plain" / "notes").mkdir()
    plain = Zoo.open(tmp_path / "plain")
    assert plain.keys == ("first", "second")
    assert plain.entry("first").id_accuracy is None
    assert plain.load("second").weight_hash == zoo.entry(zoo.keys[0]).weight_hash


def test_what_is_no_zoo_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="is not a directory"):
        Zoo.open(tmp_path / "nowhere")
    with pytest.raises(FileFormatError, match=r"has neither zoo\.json nor directories"):
        Zoo.open(tmp_path)
    (tmp_path / "zoo.json").write_text('{"schema": "assay-zoo/1"}')
    with pytest.raises(FileFormatError, match=r"zoo\.json is not a description of a zoo"):
        Zoo.open(tmp_path)
    (tmp_path / "zoo.json").write_text('{"schema": "assay-zoo/9"}')
    with pytest.raises(FileFormatError, match="this version reads 'assay-zoo/1'"):
        Zoo.open(tmp_path)
    with pytest.raises(UnknownNameError, match="unknown model of the zoo"):
        zoo.load("scratch-full")
    with pytest.raises(InputError, match=r"no checkpoint after step 4; available steps: \[3\]"):
        zoo.load(zoo.keys[0], step=4)


def test_a_model_that_cannot_be_read_is_named(zoo: Zoo, tmp_path: Path) -> None:
    shutil.copytree(zoo.path, tmp_path / "copy")
    (tmp_path / "copy" / "models" / zoo.keys[1] / "model.safetensors").write_bytes(b"short")
    copy = Zoo.open(tmp_path / "copy")
    with pytest.raises(FileFormatError, match=f"model '{zoo.keys[1]}' of the zoo 'small': cannot load"):
        copy.load(copy.keys[1])
    with pytest.raises(FileFormatError, match=f"model '{zoo.keys[1]}' of the zoo 'small': cannot load"):
        copy.correctness(draw_shapes("sketch", 12))


# -------------------------------------------------------------------------------------------- starting points


def test_random_weights_depend_on_the_seed_alone() -> None:
    def start(seed: int) -> str:
        options: dict[str, Any] = {"architecture": SMALL, "image_size": (32, 32), "seed": seed}
        return weights_hash(initial_module("scratch", CLASSES, **options).module)

    torch.manual_seed(1)
    first = start(0)
    torch.manual_seed(2)
    assert start(0) == first != start(1)


def test_a_checkpoint_keeps_its_body_and_gets_a_new_head(zoo: Zoo, tmp_path: Path) -> None:
    stored = EvalTransform(resize=(32, 32), mean=(0.1, 0.2, 0.3))
    old = zoo.load(zoo.keys[0]).module
    save_model(old, tmp_path / "old", transform=stored, classes=CLASSES)
    start = initial_module(str(tmp_path / "old"), ["cat", "dog"], seed=3)
    assert start.transform == stored
    new = start.module.state_dict()
    assert new["classifier.weight"].shape == (2, 16)
    assert float(new["classifier.bias"].abs().max()) == 0
    body = {name: value for name, value in old.state_dict().items() if not name.startswith("classifier")}
    assert all(torch.equal(new[name], value) for name, value in body.items())
    images = start.module(torch.zeros(1, 3, 32, 32)).logits
    assert images.shape == (1, 2)


def test_the_arithmetic_of_a_checkpoint_is_kept_and_its_geometry_is_not(zoo: Zoo, tmp_path: Path) -> None:
    stored = EvalTransform(resize=(40, 40), crop=(32, 32), resample="bicubic", mean=(0.1, 0.2, 0.3))
    save_model(zoo.load(zoo.keys[0]).module, tmp_path / "old", transform=stored, classes=CLASSES)
    grid = Grid.from_dict(CONTENT | {"inits": {"old": str(tmp_path / "old")}, "axes": {"mode": ["linear"]}})
    found = train_zoo(grid, IMAGES, tmp_path / "zoo", holdout=0.3)
    kept = EvalTransform.for_model(found.load(found.keys[0]))
    assert kept == EvalTransform(resize=(32, 32), resample="bicubic", mean=(0.1, 0.2, 0.3))


def test_a_zoo_starts_from_checkpoints_and_functions(zoo: Zoo, tmp_path: Path) -> None:
    def build(n_classes: int, seed: int) -> nn.Module:
        return ViTForImageClassification(ViTConfig(**SMALL, image_size=32, num_labels=n_classes))

    inits = {"tuned": str(zoo.folder(zoo.keys[0])), "made": {"source": build}}
    grid = Grid.from_dict(CONTENT | {"inits": inits, "axes": {"mode": ["linear"]}})
    found = train_zoo(grid, IMAGES, tmp_path / "zoo", holdout=0.3)
    assert [entry.recipe["init"] for entry in found.entries] == ["tuned", "made"]
    tuned, before = (each.module.state_dict() for each in (found.load(found.keys[0]), zoo.load(zoo.keys[0])))
    changed = {name for name in tuned if not torch.equal(tuned[name], before[name])}
    assert changed == {"classifier.weight", "classifier.bias"}
    start = found.entries[1].recipe["start"]["source"]
    assert start.startswith("function:")


def test_what_cannot_be_started_from_is_refused() -> None:
    with pytest.raises(InputError, match="scratch needs an architecture"):
        initial_module("scratch", CLASSES)
    with pytest.raises(InputError, match="write timm:NAME or a table"):
        initial_module("scratch", CLASSES, architecture="vit_base")
    with pytest.raises(
        UnknownNameError, match="unknown setting of a ViT 'hidden'; did you mean .*'hidden_size'"
    ):
        initial_module("scratch", CLASSES, architecture={"hidden": 8})
    with pytest.raises(InputError, match="needs at least two"):
        initial_module("scratch", ["one"], architecture=SMALL)
    with pytest.raises(UnsupportedModelError, match="mini reads text"):
        initial_module("mini", CLASSES)


def test_images_that_patches_do_not_cover_are_refused() -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
    with pytest.raises(InputError, match="do not cover images of side 33.*side of 32 or 40"):
        initial_module("scratch", ["cat", "dog"], architecture=small, image_size=(33, 33))
