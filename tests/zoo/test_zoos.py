"""Zoos: trained from a grid, whole, in shards and after a kill; opened, asked; what they start from."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from zoo_cases import CONTENT, GRID, SETS, SMALL, StoppedError, stop_after, tiny

from assay.core.errors import (
    AssayError,
    FileFormatError,
    InputError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
)
from assay.core.random import stream
from assay.execution import run_model
from assay.models import Model, load_model
from assay.tasks import EvalTransform, ImageTask, draw_shapes, find_domains
from assay.zoo import Grid, Recipe, Zoo, ZooEntry, initial_module, save_model, split, train, train_zoo
from assay.zoo.models import weights_hash
from assay.zoo.training import TrainingBatches


CLASSES = ("circle", "cross", "moon", "square", "star", "triangle")
IMAGES = draw_shapes("sketch", 18)
WITHIN = draw_shapes("flat", 12, start=100)
TRANSFORM = EvalTransform(resize=(32, 32))


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return train_zoo(GRID, *SETS, tmp_path_factory.mktemp("zoo") / "small", checkpoints=(3,))


# ----------------------------------------------------------------------------------------------- building


def test_a_zoo_holds_a_model_per_recipe(zoo: Zoo) -> None:
    assert zoo.keys == tuple(recipe.key for recipe in GRID.recipes())
    assert (zoo.id_domain, zoo.classes, zoo.name) == ("flat", CLASSES, "small")
    for entry in zoo.entries:
        assert entry.status == "done"
        assert 0 <= entry.id_accuracy <= 1
        assert entry.best_step in (3, 6)
        assert entry.recipe["start"] == {"source": "scratch", "architecture": SMALL}
        model = zoo.load(entry.key)
        assert (model.weight_hash, model.classes) == (entry.weight_hash, CLASSES)
        (checkpoint,) = entry.checkpoints
        assert checkpoint == {"step": 3, "path": f"{entry.path}/checkpoints/3"}
        assert load_model(zoo.path / checkpoint["path"]).graph == model.graph
    assert len({entry.weight_hash for entry in zoo.entries}) == 2
    again = Zoo.open(zoo.path)
    assert again.to_dict() == zoo.to_dict() == json.loads((zoo.path / "zoo.json").read_text())


def test_a_zoo_stopped_inside_a_model_goes_on_to_the_same_weights(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):  # in the fourth step of the second model
        train_zoo(GRID, *SETS, tmp_path, checkpoints=(3,), progress=stop_after(10))
    half = Zoo.open(tmp_path)
    assert [entry.status for entry in half.entries] == ["done", "pending"]
    with pytest.raises(InputError, match="is pending, so it has no model"):
        half.load(zoo.keys[1])
    seen: list[Any] = []
    told = {"progress": lambda stage, *_: seen.append(stage), "validated": lambda *row: seen.append(row[0])}
    assert train_zoo(GRID, *SETS, tmp_path, checkpoints=(3,), **told).entries == zoo.entries
    assert seen.count(f"train {zoo.keys[1]}") == 3
    assert seen.count(zoo.keys[1]) == 1


def test_shards_make_the_whole_zoo(zoo: Zoo, tmp_path: Path) -> None:
    def part(number: int) -> Zoo:
        return train_zoo(GRID, *SETS, tmp_path, checkpoints=(3,), shard=(number, 2))

    assert [entry.status for entry in part(2).entries] == ["pending", "done"]
    assert part(1).entries == zoo.entries
    with pytest.raises(InputError, match="the shard is 3/2; give i/n"):
        part(3)


def test_a_model_that_diverges_is_written_down_and_the_rest_is_trained(tmp_path: Path) -> None:
    wild = {"optimiser": "sgd", "clip": None, "warmup": 0}
    grid = Grid.from_dict(CONTENT | {"axes": {"lr": [1e30, 0.01]}, "fixed": CONTENT["fixed"] | wild})
    found = train_zoo(grid, *SETS, tmp_path / "zoo")
    failed, done = found.entries
    assert (failed.status, found.keys) == ("failed", (done.key,))
    assert "lower lr" in found.missing[failed.key]
    with pytest.raises(InputError, match=r"is failed: the loss of step"):
        found.load(failed.key)


def test_folders_that_are_no_zoo_and_data_that_do_not_fit_are_refused(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another training: id_domain is flat there, neon here"):
        train_zoo(GRID, draw_shapes("neon", 24), SETS[1], zoo.path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("not a zoo")
    with pytest.raises(InputError, match="is not empty and is not a zoo"):
        train_zoo(GRID, *SETS, tmp_path / "full")
    with pytest.raises(FileFormatError, match="is not a directory"):
        Zoo.open(tmp_path / "nowhere")
    (tmp_path / "zoo.json").write_text('{"schema": "assay-zoo/1"}')
    with pytest.raises(FileFormatError, match=r"zoo\.json: .* required field missing"):
        Zoo.open(tmp_path)
    with pytest.raises(UnknownNameError, match="unknown model of the zoo"):
        zoo.load("scratch-full")


def test_splitting_holds_out_a_share_of_every_class() -> None:
    images = draw_shapes("flat", 36)
    kept, held = split(images, 0.3, seed=1)
    assert np.bincount(held.labels).tolist() == [2] * 6
    assert np.bincount(kept.labels).tolist() == [4] * 6
    assert not set(kept.ids) & set(held.ids)
    assert np.array_equal(split(images, 0.3, seed=1)[1].ids, held.ids)
    assert not np.array_equal(split(images, 0.3, seed=2)[1].ids, held.ids)
    with pytest.raises(InputError, match="expected a fraction between 0 and 1"):
        split(images, 1.0)
    with pytest.raises(InputError, match="has only one image"):
        split(images.subset(range(6)), 0.5)


# ------------------------------------------------------------------------------------------ images in files


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 images of 60 x 40 in six class folders."""
    folder = tmp_path_factory.mktemp("images") / "photos"
    shapes = draw_shapes("flat", 36, size=60)
    for number, (pixels, label) in enumerate(zip(shapes.pixels, shapes.labels, strict=True)):
        place = folder / CLASSES[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[10:50]).save(place / f"{number:02}.png")
    return folder


def streamed(folder: Path, workers: int = 0) -> ImageTask:
    (domain,) = find_domains(folder).values()
    return dataclasses.replace(domain.with_transform(TRANSFORM), workers=workers)


FILES = Recipe(lr=0.01, steps=4, warmup=1, batch_size=6, validate_every=2, optimiser="adamw")


def test_the_number_of_workers_changes_nothing(photos: Path, tmp_path: Path) -> None:
    runs = [train(tiny(), *split(streamed(photos, n), 0.5), FILES, tmp_path / str(n)) for n in (0, 2)]
    assert runs[0].weights == runs[1].weights
    assert runs[0].history == runs[1].history


def test_batches_of_a_stream_are_those_of_its_files(photos: Path) -> None:
    """The slow way: open each file, resize it, augment it, normalise it."""
    images = streamed(photos)
    batches = list(TrainingBatches(images, FILES, TRANSFORM).from_step(2, "cpu"))
    assert len(batches) == 2
    rows = stream(0, "zoo/epoch/0").permutation(36)[12:18]
    files = [sorted(photos.rglob("*.png"))[row] for row in rows]
    resized = [Image.open(file).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR) for file in files]
    pixels = FILES.augmentation.apply(
        np.stack([np.asarray(each) for each in resized]), stream(0, "zoo/augment/2")
    )
    expected = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
    torch.testing.assert_close(batches[0][0], expected, atol=1e-6, rtol=0)
    assert batches[0][1].tolist() == [sorted(CLASSES).index(file.parent.name) for file in files]


def test_a_checkpoint_reads_a_stream_with_its_own_transform(photos: Path, tmp_path: Path) -> None:
    """Images in memory have their size: of a checkpoint's transform, the arithmetic holds for them."""
    stored = EvalTransform(resize=(40, 40), crop=(32, 32), resample="bicubic", mean=(0.1, 0.2, 0.3))
    save_model(tiny(), tmp_path / "start", transform=stored)
    start = {"old": {"source": str(tmp_path / "start")}}
    grid = Grid.from_dict(CONTENT | {"inits": start, "axes": {"mode": ["linear"]}})
    held = dataclasses.replace(stored, resize=(32, 32), crop=None)
    for name, sets, expected in (("held", SETS, held), ("files", split(streamed(photos), 0.5), stored)):
        found = train_zoo(grid, *sets, tmp_path / name)
        assert EvalTransform.for_model(found.load(found.keys[0])) == expected


# -------------------------------------------------------------------------------------------- what it says


@pytest.fixture
def pair(tmp_path: Path) -> Zoo:
    """Two random models with known accuracies."""
    entries = []
    for number, accuracy in enumerate((0.5, 0.25)):
        key = f"model-{number}"
        module = tiny(number, initializer_range=0.3)
        save_model(module, tmp_path / "models" / key, transform=TRANSFORM, classes=CLASSES)
        recipe = {"init": "random"}
        entries.append(ZooEntry(key=key, path=f"models/{key}", id_accuracy=accuracy, recipe=recipe))
    facts: dict[str, Any] = {"id_domain": "flat", "classes": CLASSES, "data": {"n_validation": 40}}
    zoo = Zoo(path=tmp_path, name="pair", entries=tuple(entries), **facts)
    zoo.save()
    return zoo


def logits_by_hand(model: Model) -> np.ndarray:
    return run_model(model, IMAGES.with_transform(EvalTransform.for_model(model))).numpy()


def test_logits_are_those_of_the_model_and_are_kept(pair: Zoo) -> None:
    direct = logits_by_hand(pair.load("model-0"))
    assert np.array_equal(pair.predict("model-0", IMAGES), direct)
    (path,) = (pair.path / "records" / "model-0").glob("*.npz")
    np.savez(path, logits=direct + 1)
    assert np.array_equal(pair.predict("model-0", IMAGES), direct + 1)
    path.write_bytes(path.read_bytes()[:200])
    assert np.array_equal(pair.predict("model-0", IMAGES), direct)
    save_model(tiny(7), pair.folder("model-0"), transform=TRANSFORM, classes=CLASSES)
    assert np.array_equal(pair.predict("model-0", IMAGES), logits_by_hand(pair.load("model-0")))


def test_the_matrix_says_who_is_right_where(pair: Zoo) -> None:
    matrix = pair.correctness(IMAGES)
    within = pair.correctness(IMAGES, id_images=WITHIN)
    assert within.id_accuracy.tolist() == pair.correctness(WITHIN).accuracy.tolist()
    with pytest.raises(InputError, match=r"accuracy of 2 models is unknown, e\.g\. of model-0"):
        Zoo.open(pair.path / "models").correctness(IMAGES).save(pair.path / "matrix.npz")
    assert (matrix.correct.shape, matrix.correct.dtype) == ((2, 18), np.uint8)
    for row, key in zip(matrix.correct, matrix.keys, strict=True):
        logits = logits_by_hand(pair.load(key))
        assert row.tolist() == [
            int(a == b) for a, b in zip(logits.argmax(axis=1), IMAGES.labels, strict=True)
        ]
    with np.load(matrix.save(pair.path / "sketch.npz"), allow_pickle=False) as file:
        assert np.array_equal(file["X"], matrix.correct)
        assert (file["X"].dtype, file["y"].tolist(), int(file["n_id"])) == (np.uint8, [0.5, 0.25], 40)
        assert file["model_id"].tolist() == file["group"].tolist() == ["model-0", "model-1"]
        assert file["example_id"].tolist() == [f"sketch/{number}" for number in IMAGES.ids]
        assert file["label"].tolist() == IMAGES.labels.tolist()
    with pytest.raises(InputError, match="two images of 'sketch' have the same id"):
        dataclasses.replace(matrix, ids=matrix.ids * 0).save(pair.path / "sketch.npz")
    assert (matrix.n_id, matrix.domain, matrix.families) == (40, "sketch", ("random", "random"))


def test_models_and_images_that_do_not_fit_are_named(pair: Zoo) -> None:
    with pytest.raises(ShapeError, match="model 'model-0' of the zoo 'pair': .*16 x 16"):
        pair.predict("model-0", draw_shapes("flat", 6, size=16))
    renamed = dataclasses.replace(IMAGES, classes=("a", "b", "c", "d", "e", "f"))
    with pytest.raises(InputError, match="model 'model-0' of the zoo 'pair': .*the same classes"):
        pair.correctness(renamed)
    broken = tiny(3)
    with torch.no_grad():
        broken.classifier.bias[2] = torch.nan
    save_model(broken, pair.folder("model-1"), transform=TRANSFORM, classes=CLASSES)
    with pytest.raises(NonFiniteError, match="model 'model-1' of the zoo 'pair'"):
        pair.correctness(IMAGES)


# ----------------------------------------------------------------------------------------- starting points


def test_a_checkpoint_keeps_its_body_and_gets_a_new_head(tmp_path: Path) -> None:
    stored = EvalTransform(resize=(32, 32), mean=(0.1, 0.2, 0.3))
    save_model(tiny(), tmp_path / "old", transform=stored, classes=CLASSES)
    start = initial_module(str(tmp_path / "old"), ["cat", "dog"], seed=3)
    assert start.transform == stored
    old, new = tiny().state_dict(), start.module.state_dict()
    assert new["classifier.weight"].shape == (2, 16)
    assert float(new["classifier.bias"].abs().max()) == 0
    assert all(torch.equal(new[name], old[name]) for name in old if not name.startswith("classifier"))
    options: dict[str, Any] = {"architecture": SMALL, "image_size": (32, 32)}
    one, again, other = (initial_module("scratch", CLASSES, **options, seed=seed) for seed in (0, 0, 1))
    assert weights_hash(one.module) == weights_hash(again.module) != weights_hash(other.module)


def test_what_cannot_be_started_from_is_refused() -> None:
    for source, architecture, message in (
        ("scratch", "vit_base", "write timm:NAME, or a table"),
        ("scratch", {"hidden": 8}, "setting of a ViT 'hidden'; did you mean .*'hidden_size'"),
        ("mini", None, "mini reads text"),
    ):
        with pytest.raises(AssayError, match=message):
            initial_module(source, CLASSES, architecture=architecture)
    with pytest.raises(InputError, match="needs at least two"):
        initial_module("scratch", ["one"])
