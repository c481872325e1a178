"""From files to pixels: every kind of file, orientation, damage, sizes, workers."""

import io
import os
import signal
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from picture_files import PIXELS, png
from PIL import ExifTags, Image

from assay.core.errors import FileFormatError, InputError, ShapeError, WorkerError
from assay.core.machine import decoding_with
from assay.tasks import EvalTransform, ImageTask, read_dataset, read_files
from assay.tasks.image_reading import Pictures, usual_workers


TRANSFORM = EvalTransform(resize=(32, 32))


class Given(Pictures):
    """Pixels in place of files."""

    def __init__(self, pixels: np.ndarray = PIXELS) -> None:
        super().__init__(len(pixels))
        self.pixels = pixels

    def name(self, row: int) -> str:
        return f"x, image {row}"

    def content(self, row: int) -> Any:
        return self.pixels[row]

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        yield str(list(rows))


def lazy(source: Pictures, **more: Any) -> ImageTask:
    return ImageTask(source=source, **{"transform": TRANSFORM, **more})


# ---- kinds of files -----------------------------------------------------------------------------------


def test_channels_and_bits_become_rgb_of_8_bits_or_a_named_error(tmp_path: Path) -> None:
    grey = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(np.dstack([grey] * 3)).convert("CMYK").save(tmp_path / "cmyk.jpg", quality=100)
    Image.fromarray(grey).convert("P").save(tmp_path / "palette.gif")
    Image.fromarray(np.dstack([grey] * 4)).save(tmp_path / "alpha.png")
    for name in ("grey.png", "cmyk.jpg", "palette.gif", "alpha.png"):
        pixels = read_files([tmp_path / name]).held().pixels
        assert pixels is not None
        assert (pixels.shape, pixels.dtype) == ((1, 4, 6, 3), np.uint8)
        np.testing.assert_allclose(pixels[0].astype(int), np.dstack([grey] * 3), atol=4)
    Image.fromarray(grey.astype(np.uint16) * 100).save(tmp_path / "deep.png")
    with pytest.raises(FileFormatError, match=r"deep\.png cannot be decoded .*more than 8 bits; scale it"):
        read_files([tmp_path / "deep.png"]).held()
    with pytest.raises(InputError, match="mode F, with more than 8 bits"):
        EvalTransform().pixels(Image.fromarray(np.ones((4, 6), dtype=np.float32)))


def oriented(path: Path, orientation: int) -> Path:
    """A file of 6 x 4 whose left half is bright, with an orientation."""
    pixels = np.zeros((4, 6, 3), dtype=np.uint8)
    pixels[:, :3] = 200
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    Image.fromarray(pixels).save(path, quality=100, exif=exif)
    return path


@pytest.mark.parametrize("workers", [0, 1])
def test_images_are_turned_as_their_orientation_says_and_counted(tmp_path: Path, workers: int) -> None:
    """Orientation 6: the first row of the file is the right side of the scene."""
    paths = [oriented(tmp_path / f"{code}.jpg", code) for code in (1, 6)]
    upright = EvalTransform(resize=None)
    whole = ImageTask(source=read_files(paths[1:]).source, transform=upright, domain="x", workers=workers)
    pixels = whole.held().pixels
    assert pixels is not None
    assert pixels.shape == (1, 6, 4, 3)
    assert pixels[0, :3].mean() > 190
    assert pixels[0, 3:].mean() < 10
    note = "1 images of x were turned as their EXIF orientation says"
    assert whole.held().notes == (note,)
    key = whole.describe("source_hash")
    list(whole.batches(1))
    assert whole.describe()["notes"] == [note]
    assert whole.describe("source_hash") == key
    square = [read_files(paths, domain="x").with_transform(TRANSFORM)]
    dataset = read_dataset([(Image.open(path), 0) for path in paths])
    square.append(dataset.with_transform(TRANSFORM))
    assert torch.equal(square[0].clean, square[1].clean)  # one rule for files and data sets
    with decoding_with(turns=False):
        as_stored = read_files(paths).with_transform(TRANSFORM)
    held = as_stored.held()
    assert held.pixels is not None
    assert (held.pixels[0] == held.pixels[1]).all()
    assert held.notes == ()
    assert as_stored.source_hash != read_files(paths).with_transform(TRANSFORM).source_hash


# ---- damage -------------------------------------------------------------------------------------------


def hostile() -> dict[str, bytes]:
    """Files that are no images that can be used, by name."""
    long = io.BytesIO()
    Image.new("RGB", (60_000, 1)).save(long, format="PNG")  # 3.8 million wide with a shorter side of 64
    deep = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(deep, format="PNG")
    bomb = bytearray(png(PIXELS[0]))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2  # declares 3.6 billion pixels
    cut_jpeg = io.BytesIO()
    Image.fromarray(PIXELS[0]).save(cut_jpeg, format="JPEG")
    tiff = io.BytesIO()  # its first strip is said to lie at a floating-point place
    Image.new("RGB", (6, 4), (9, 9, 9)).save(tiff, "TIFF")
    content = bytearray(tiff.getvalue())
    entry = content.index(struct.pack("<HH", 273, 4))  # StripOffsets, a long number
    content[entry + 2 : entry + 4] = struct.pack("<H", 11)  # a float
    return {
        "cut": png(PIXELS[0])[: len(png(PIXELS[0])) // 2],
        "empty": b"",
        "text": b"<html>",
        "bomb": bytes(bomb),
        "long": long.getvalue(),
        "deep": deep.getvalue(),
        "jpeg": cut_jpeg.getvalue()[: len(cut_jpeg.getvalue()) // 2],
        "tiff": bytes(content),
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_hostile_images_are_named_or_skipped_and_shift_nothing(tmp_path: Path, workers: int) -> None:
    shorter = EvalTransform(resize=64, crop=(32, 32))
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(png(PIXELS[number]))
    bad = [f"{number}-{name}.png" for number, name in enumerate(hostile())]
    for name, content in zip(bad, hostile().values(), strict=True):
        (tmp_path / name).write_bytes(content)
    paths = sorted(tmp_path.iterdir())
    whole = ImageTask(source=read_files(paths).source, transform=shorter, workers=workers)
    kept = whole.readable()
    assert [Path(name).name for name in kept.skipped] == bad
    assert [paths[number].name for number in kept.ids.tolist()] == [f"{number}.png" for number in range(6)]
    good = read_files([paths[number] for number in kept.ids.tolist()]).with_transform(shorter)
    assert torch.equal(kept.clean, good.clean)
    assert torch.equal(whole.held(skip_bad=True).clean, good.clean)
    with pytest.raises(FileFormatError, match=r"0-cut\.png cannot be decoded .* skip_bad"):
        list(whole.batches(4))


def test_what_was_read_before_a_bad_image_is_given(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.png").write_bytes(png(PIXELS[number]))
    whole = read_files([*sorted(tmp_path.iterdir()), tmp_path / "gone.png"]).with_transform(TRANSFORM)
    batches = whole.batches(2)
    assert [next(batches).indices.tolist(), next(batches).indices.tolist()] == [[0, 1], [2, 3]]
    with pytest.raises(FileFormatError, match=r"gone\.png cannot be decoded"):
        next(batches)


def test_images_that_do_not_fit_are_named() -> None:
    class Growing(Given):
        def content(self, row: int) -> Any:
            return np.zeros((8 if row < 40 else 9, 8, 3), np.uint8)

    whole = lazy(Growing(), transform=None)
    for read in (lambda: list(whole.batches(20)), whole.held):
        with pytest.raises(ShapeError, match="x, image 40 is 9 x 8, but x, image .* is 8 x 8"):
            read()
    with pytest.raises(InputError, match="x, image 0: an image of 8 x 8 is smaller than the crop"):
        lazy(Growing(), transform=EvalTransform(resize=None, crop=(9, 9))).held()


# ---- workers ------------------------------------------------------------------------------------------


class Dying(Given):
    """Ends the worker that asks for a late image, as a kernel out of memory does."""

    def content(self, row: int) -> Any:
        if row == 60:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().content(row)


def test_a_worker_that_dies_says_what_to_do() -> None:
    batches = lazy(Dying(), workers=1).batches(16)
    assert next(batches).indices.tolist() == list(range(16))
    with pytest.raises(WorkerError, match=r"process that decodes images ended .*\(--workers 0\)"):
        list(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_change_nothing(workers: int) -> None:
    expected = ImageTask(pixels=PIXELS, transform=TRANSFORM)
    for size in (9, 70):
        images = [batch.images for batch in lazy(Given(), workers=workers).batches(size)]
        assert torch.equal(torch.cat(images), expected.clean)
    assert lazy(Given(), workers=workers).data_hash == expected.data_hash


def test_few_images_start_no_workers() -> None:
    assert usual_workers(10) == 0
    assert 1 <= usual_workers(100_000) <= 8
    with decoding_with(3):
        assert usual_workers(10) == 3
