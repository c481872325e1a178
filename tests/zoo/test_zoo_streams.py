"""Zoos trained from images in files: crops cut from originals, workers that change nothing, sizes, errors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

from assay.core.errors import FileFormatError, InputError
from assay.core.random import stream
from assay.pipeline.zoo_training import training_images
from assay.tasks import EvalTransform, ImageStream, ReadOptions, draw_shapes
from assay.zoo import Augmentation, Grid, Recipe, split, train, train_zoo
from assay.zoo.feeding import TrainingBatches


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 16}
RECIPE = Recipe(lr=0.01, steps=4, warmup=1, batch_size=6, validate_every=2, optimiser="adamw")
GRID = Grid.from_dict(
    {
        "name": "files",
        "inits": {"scratch": {"source": "scratch", "architecture": SMALL}},
        "fixed": {"lr": 0.01, "steps": 4, "warmup": 1, "batch_size": 6, "validate_every": 2},
    }
)


def tiny() -> ViTForImageClassification:
    torch.manual_seed(0)
    return ViTForImageClassification(
        ViTConfig(**SMALL, intermediate_size=32, image_size=32, num_labels=6)
    ).eval()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 images of 60 x 40 in six class folders."""
    folder = tmp_path_factory.mktemp("images") / "photos"
    shapes = draw_shapes("flat", 36, size=60)
    for number, (pixels, label) in enumerate(zip(shapes.pixels, shapes.labels, strict=True)):
        place = folder / shapes.classes[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[10:50]).save(place / f"{number:02}.png")
    return folder


def streamed(folder: Path, workers: int = 0) -> ImageStream:
    images = training_images(folder, GRID, size=None, options=ReadOptions(workers=workers))
    assert isinstance(images, ImageStream)
    return images


def test_a_crop_of_an_original_is_resized_once_from_its_own_pixels() -> None:
    """By hand: the left half of an image, 40 pixels wide and 20 high, is a gradient of its own columns."""
    columns = np.repeat(np.arange(40, dtype=np.uint8) * 6, 20).reshape(40, 20).T
    image = Image.fromarray(np.stack([columns] * 3, axis=-1))

    class Fixed(np.random.Generator):
        """Draws of a square crop of half the area at the left edge, not mirrored."""

        def __init__(self) -> None:
            super().__init__(np.random.PCG64(0))
            self.values = iter((0.5, 0.0, -1.0, 0.0, 1.0))  # area, aspect, across, down, colours

        def uniform(self, low: float, high: float, size: object) -> np.ndarray:
            return np.full(size, next(self.values))

        def random(self, size: int) -> np.ndarray:
            return np.ones(size)

    cut = Augmentation(min_area=0.5, jitter=0.0).cut([image], Fixed(), size=(10, 10), resample="box")
    # Area 400 of 800 and aspect 1: a crop of 20 x 20, columns 0 .. 19, averaged in pairs.
    assert cut[0, :, :, 0].tolist() == [[round(6 * (2 * x + 0.5)) for x in range(10)]] * 10


def test_a_square_original_is_cropped_where_the_resized_image_would_be() -> None:
    shapes = draw_shapes("flat", 8, size=64)
    augmentation = Augmentation(min_area=0.3, jitter=0.3)
    resized = augmentation.apply(shapes.pixels, stream(0, "a"))
    originals = [Image.fromarray(pixels) for pixels in shapes.pixels]
    cut = augmentation.cut(originals, stream(0, "a"), size=(64, 64), resample="bilinear")
    differences = np.abs(cut.astype(float) - resized.astype(float))
    assert differences.mean() < 3  # two bilinear filters that place half pixels differently
    turned = np.abs(cut[:, :, ::-1].astype(float) - resized.astype(float))
    assert differences.mean() < turned.mean() / 3


def test_the_number_of_workers_changes_nothing(photos: Path, tmp_path: Path) -> None:
    runs = []
    for workers in (0, 2):
        training, validation = split(streamed(photos, workers), 0.5)
        runs.append(train(tiny(), training, validation, RECIPE, tmp_path / str(workers)))
    files = [(run.folder / "model.safetensors").read_bytes() for run in runs]
    assert files[0] == files[1]
    assert runs[0].history == runs[1].history


def test_batches_of_a_stream_are_those_of_its_files(photos: Path) -> None:
    """The slow way: open each file, cut it, normalise it."""
    images = streamed(photos)
    batches = list(TrainingBatches(images, RECIPE, images.transform).from_step(2, "cpu"))
    assert len(batches) == 2
    order = stream(0, "zoo/epoch/0").permutation(36)[12:18]
    files = sorted(photos.rglob("*.png"))
    originals = [Image.open(files[row]).convert("RGB") for row in order]
    cut = RECIPE.augmentation.cut(originals, stream(0, "zoo/augment/2"), size=(32, 32), resample="bilinear")
    expected = torch.from_numpy(cut).permute(0, 3, 1, 2).float() / 127.5 - 1
    torch.testing.assert_close(batches[0][0], expected, atol=1e-6, rtol=0)
    classes = sorted(each.name for each in photos.iterdir())
    assert batches[0][1].tolist() == [classes.index(files[row].parent.name) for row in order]


def test_images_that_need_no_crop_are_those_of_the_evaluation(photos: Path) -> None:
    images = streamed(photos)
    plain = Augmentation(min_area=1.0, max_aspect=1.0, flip=0.0)
    recipe = Recipe.from_dict({**RECIPE.to_dict(), "augmentation": plain, "batch_size": 36, "steps": 2})
    (first, labels), _ = TrainingBatches(images, recipe, images.transform).from_step(0, "cpu")
    order = stream(0, "zoo/epoch/0").permutation(36)
    assert torch.equal(first, images.loaded().images[torch.from_numpy(order)])
    assert images.labels is not None
    assert torch.equal(labels, images.labels[torch.from_numpy(order)])


def test_a_zoo_is_trained_from_a_stream_and_opened_again(photos: Path, tmp_path: Path) -> None:
    zoo = train_zoo(GRID, streamed(photos), tmp_path / "zoo")
    (entry,) = zoo.entries
    assert entry.status == "done"
    assert zoo.data["image_size"] == [32, 32]
    again = train_zoo(GRID, streamed(photos, workers=1), tmp_path / "zoo")
    assert again.entries == zoo.entries


def test_images_that_both_sets_hold_are_refused(photos: Path, tmp_path: Path) -> None:
    images = streamed(photos)
    with pytest.raises(InputError, match="18 validation images are also in the training set"):
        train(tiny(), images, images.subset(range(18)), RECIPE, tmp_path / "run")


def test_images_of_equal_names_are_told_apart_by_their_pictures(photos: Path, tmp_path: Path) -> None:
    """As in `train/dog/01.png` and `validation/dog/01.png`; one of the files is copied."""
    others = draw_shapes("sketch", 36, size=60)
    files = sorted(photos.rglob("*.png"))
    for file, pixels in zip(files, others.pixels, strict=True):
        place = tmp_path / "validation" / file.relative_to(photos)
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[10:50]).save(place)
    train(tiny(), streamed(photos), streamed(tmp_path / "validation"), RECIPE, tmp_path / "run")
    copy = tmp_path / "validation" / files[7].relative_to(photos)
    copy.write_bytes(files[7].read_bytes())
    with pytest.raises(InputError, match=r"1 validation images are also .* e\.g\. number 7"):
        train(tiny(), streamed(photos), streamed(tmp_path / "validation"), RECIPE, tmp_path / "again")


def test_a_broken_image_is_named_also_from_a_worker(photos: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "photos"
    shutil.copytree(photos, copy)
    broken = sorted(copy.rglob("*.png"))[5]
    broken.write_bytes(b"not an image")
    for workers in (0, 1):
        images = streamed(copy, workers)
        with pytest.raises(FileFormatError, match=broken.name):
            for _ in TrainingBatches(images, RECIPE, images.transform).from_step(0, "cpu"):
                pass


def test_several_domains_are_refused(photos: Path) -> None:
    with pytest.raises(InputError, match=r"holds 5 domains .*; a zoo is trained on one, name it"):
        training_images("shapes", GRID, size=None, options=ReadOptions())


def test_a_checkpoint_reads_a_stream_with_its_own_transform(photos: Path, tmp_path: Path) -> None:
    from assay.zoo import save_model

    stored = EvalTransform(resize=(40, 40), crop=(32, 32), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    save_model(tiny(), tmp_path / "start", transform=stored)
    inits = {"start": {"source": str(tmp_path / "start")}}
    grid = Grid.from_dict({**GRID.to_dict(), "inits": inits})
    zoo = train_zoo(grid, streamed(photos), tmp_path / "zoo")
    model = zoo.load(zoo.keys[0])
    read = EvalTransform.for_model(model)
    assert (read.resize, read.crop, read.mean) == ((40, 40), (32, 32), (0.1, 0.2, 0.3))
