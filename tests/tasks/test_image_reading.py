"""From files to pixels: every kind of file, orientation, damage, sizes, workers; and transforms of models."""

import io
import queue
import struct
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from picture_files import PIXELS, png
from PIL import ExifTags, Image
from zoo.zoo_cases import tiny

from assay.core.errors import AssayWarning, FileFormatError, InputError, ShapeError, UnknownNameError
from assay.core.machine import DECODING, entered
from assay.models import load_model
from assay.tasks import EvalTransform, ImageTask, read_dataset, read_files
from assay.tasks.image_reading import ahead


TRANSFORM = EvalTransform(resize=(32, 32))
GREY = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10


def lazy(pixels: Sequence[np.ndarray] = PIXELS, **more: Any) -> ImageTask:
    """Pixels in place of files."""
    return replace(read_dataset([*pixels]), **{"transform": TRANSFORM, **more})


# ---- kinds of files -----------------------------------------------------------------------------------


def test_channels_and_bits_become_rgb_of_8_bits_or_a_named_error(tmp_path: Path) -> None:
    colour = np.dstack([GREY] * 3)
    Image.fromarray(GREY).save(tmp_path / "grey.png")
    Image.fromarray(colour).convert("CMYK").save(tmp_path / "cmyk.jpg", quality=100)
    Image.fromarray(GREY).convert("P").save(tmp_path / "palette.gif")
    Image.fromarray(np.dstack([GREY] * 4)).save(tmp_path / "alpha.png")
    read = read_files(sorted(tmp_path.iterdir())).held().pixels
    assert (read.shape, read.dtype) == ((4, 4, 6, 3), np.uint8)
    np.testing.assert_allclose(read.astype(int), [colour] * 4, atol=4)
    Image.fromarray(GREY.astype(np.uint16) * 100).save(tmp_path / "deep.png")
    with pytest.raises(FileFormatError, match=r"deep\.png cannot be decoded .*more than 8 bits"):
        read_files([tmp_path / "deep.png"]).held()


@pytest.mark.parametrize("workers", [0, 1])
def test_images_are_turned_as_their_orientation_says_and_counted(tmp_path: Path, workers: int) -> None:
    """Orientation 6: the first row of the file is the right side of the scene."""
    paths = [tmp_path / "1.jpg", tmp_path / "6.jpg"]
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[:, :3] = 200
    for path in paths:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = int(path.stem)
        Image.fromarray(pixels).save(path, quality=100, exif=exif)
    whole = replace(read_files(paths[1:], domain="x"), workers=workers)
    key, held = whole.describe("source_hash"), whole.held()
    assert (held.pixels.shape, held.pixels[0, :3].min() > 190, held.pixels[0, 3:].max() < 10) == (
        (1, 6, 4, 3), True, True
    )  # fmt: skip
    note = "1 images of x were turned as their EXIF orientation says"
    assert held.notes == (note,)
    assert (whole.describe()["notes"], whole.describe("source_hash")) == ([note], key)
    files = read_files(paths, domain="x").with_transform(TRANSFORM)
    dataset = read_dataset([(Image.open(path), 0) for path in paths]).with_transform(TRANSFORM)
    assert torch.equal(files.clean, dataset.clean)  # one rule for files and data sets
    with entered(DECODING, (None, False)):
        as_stored = read_files(paths).with_transform(TRANSFORM)
    assert (as_stored.held().pixels[0] == as_stored.held().pixels[1]).all()
    assert as_stored.held().notes == ()
    assert as_stored.source_hash != files.source_hash


# ---- damage -------------------------------------------------------------------------------------------


def saved(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind)
    return buffer.getvalue()


def hostile() -> dict[str, bytes]:
    """Files that are no images that can be used, by name."""
    bomb, jpeg = bytearray(png(PIXELS[0])), saved(Image.fromarray(PIXELS[0]), "JPEG")
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2  # declares 3.6 billion pixels
    tiff = bytearray(saved(Image.new("RGB", (6, 4), (9, 9, 9)), "TIFF"))
    entry = tiff.index(struct.pack("<HH", 273, 4))  # StripOffsets, a long number
    tiff[entry + 2 : entry + 4] = struct.pack("<H", 11)  # a float: its first strip lies at no whole place
    long = saved(Image.new("RGB", (60_000, 1)), "PNG")  # 3.8 million wide with a shorter side of 64
    whole = png(PIXELS[0])
    cut = {"cut": whole[: len(whole) // 2], "jpeg": jpeg[: len(jpeg) // 2], "empty": b"", "text": b"<html>"}
    return {**cut, "bomb": bytes(bomb), "long": long, "tiff": bytes(tiff)}


@pytest.mark.parametrize("workers", [0, 2])
def test_hostile_images_are_named_or_skipped_and_shift_nothing(tmp_path: Path, workers: int) -> None:
    shorter = EvalTransform(resize=64, crop=(32, 32))
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(png(PIXELS[number]))
    bad = [f"{number}-{name}.png" for number, name in enumerate(hostile())]
    for name, content in zip(bad, hostile().values(), strict=True):
        (tmp_path / name).write_bytes(content)
    paths = sorted(tmp_path.iterdir())
    whole = ImageTask(source=read_files(paths).source, transform=shorter, domain="x", workers=workers)
    kept, held = whole.readable(), whole.held(skip_bad=True)
    assert [paths[number].name for number in kept.ids.tolist()] == [f"{number}.png" for number in range(6)]
    good = read_files([paths[number] for number in kept.ids.tolist()]).with_transform(shorter)
    for each in (kept, held, held.subset(range(6))):
        assert [Path(name).name for name in each.skipped] == bad
        shown = ", ".join(each.skipped[:5])
        note = f"7 files of x were skipped: {shown}, ..."
        assert (each.config["skipped"], each.notes) == (7, (note,))
        assert torch.equal(each.clean, good.clean)
    first = sorted(whole.ids.tolist(), key=lambda row: paths[row].name in bad)  # the good ones lead
    batches = whole.subset(first).batches(3)
    assert [len(next(batches).ids), len(next(batches).ids)] == [3, 3]
    for read in (lambda: next(batches), whole.held):
        with pytest.raises(FileFormatError, match=r"0-cut\.png cannot be decoded .* skip_bad"):
            read()
    with pytest.raises(FileFormatError, match="none of the images of 'x' can be decoded, e.g. .*cut.png"):
        whole.subset(first[6:]).held(skip_bad=True)


def test_decoding_may_be_ended_in_one_of_its_threads() -> None:
    """Garbage is collected in any thread, and closes what was left half-read."""
    begun, said = threading.Event(), queue.SimpleQueue[Exception | None]()

    def decode(item: int) -> int:
        if item == 1:
            begun.wait(10)
            try:
                made.close()
                said.put(None)
            except RuntimeError as error:
                said.put(error)
        return item

    made: Any = ahead(decode, range(2), 1)
    assert next(made) == 0
    begun.set()
    assert said.get(timeout=10) is None


def test_images_that_do_not_fit_are_named() -> None:
    growing = [np.zeros((8 if row < 40 else 9, 8, 3), np.uint8) for row in range(50)]
    whole = lazy(growing, transform=None)
    for read in (lambda: list(whole.batches(20)), whole.held):
        with pytest.raises(ShapeError, match="40 of list is 9 x 8, but 0 of list is 8 x 8"):
            read()
    assert whole.readable().n == whole.n
    with pytest.raises(FileFormatError, match=r"0 of list cannot be decoded \(an image of 8 x 8 is smaller"):
        lazy(growing, transform=EvalTransform(resize=None, crop=(9, 9))).held()


def test_few_images_are_decoded_without_workers_unless_they_are_asked_for() -> None:
    with entered(DECODING, (3, True)):
        assert lazy().decoding_workers == 3
    assert lazy().decoding_workers == 0 < lazy().subset([0] * 1000).decoding_workers <= 8


# ---- transforms ---------------------------------------------------------------------------------------


def picture(height: int, width: int) -> Image.Image:
    rng = np.random.default_rng(height * 1000 + width)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def processors() -> list[Any]:
    """Of the three kinds: squashed; by the shorter side, cropped; squashed, cropped."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    cropped = {"height": 24, "width": 25}
    return [
        ViTImageProcessorPil(size={"height": 32, "width": 24}),
        CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size=cropped),
        DeiTImageProcessorPil(size={"height": 37, "width": 37}, crop_size=cropped),
    ]


@pytest.mark.parametrize("size", [(50, 61), (20, 90)])
def test_it_agrees_with_the_processors_it_was_read_from(size: tuple[int, int]) -> None:
    for processor in processors():
        transform = EvalTransform.from_config(processor.to_dict())
        ours = transform.normalised(transform.pixels(picture(*size))[None])
        theirs = processor(picture(*size), return_tensors="np")["pixel_values"]
        np.testing.assert_allclose(ours.numpy(), theirs, atol=2e-6)


def test_a_timm_config_resizes_by_the_crop_share() -> None:
    transform = EvalTransform.from_timm(
        {"input_size": (3, 24, 24), "crop_pct": 0.9, "interpolation": "bicubic", "mean": 0.5, "std": 0.25}
    )
    assert (transform.resize, transform.crop, transform.centre) == (26, (24, 24), "round")
    # 26 x 39: 15 columns over, 7.5 on each side, which torchvision rounds to the even 8.
    image = picture(26, 39)
    np.testing.assert_array_equal(transform.pixels(image), np.asarray(image)[1:25, 8:32])
    squashed = EvalTransform.from_timm({"input_size": (3, 20, 20), "crop_mode": "squash", "crop_pct": 1.0})
    assert squashed.resize == (20, 20)
    # As wide as needed, and the height sticks out.
    covering = EvalTransform.from_timm({"input_size": (3, 10, 20), "crop_pct": 1.0})
    resized = np.asarray(picture(22, 33).resize((20, 13), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(covering.pixels(picture(22, 33)), resized[2:12])


def test_switches_and_nulls_of_a_config_are_followed() -> None:
    off = {"do_resize": False, "do_rescale": False, "do_normalize": False, "size": 10}
    transform, image = EvalTransform.from_config(off), picture(9, 7)
    np.testing.assert_array_equal(transform.pixels(image), np.asarray(image))
    unchanged = transform.normalised(np.asarray(image)[None])[0].permute(1, 2, 0)
    np.testing.assert_array_equal(unchanged.numpy(), np.asarray(image))
    # A number means what it means in transformers, and null what the class of the processor has.
    clip = {"size": 30, "feature_extractor_type": "CLIPFeatureExtractor"}
    assert [EvalTransform.from_config(each).resize for each in ({"size": 30}, clip)] == [(30, 30), 30]
    nulls = dict.fromkeys(("image_mean", "crop_size", "size", "do_center_crop"))
    found = EvalTransform.from_config({"image_processor_type": "CLIPImageProcessor", **nulls})
    assert (found.resize, found.crop) == (224, (224, 224))
    assert found.mean == pytest.approx((0.4815, 0.4578, 0.4082), abs=1e-4)


def test_a_model_brings_its_transform_along_and_its_size_counts_more(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path)
    with pytest.warns(
        AssayWarning, match=r"does not state how.*scaled to \[-1, 1\] and resized to the 32 x 32"
    ):
        found = EvalTransform.for_model(load_model(tmp_path))
    assert found == EvalTransform(resize=(32, 32))
    values = found.normalised(found.pixels(Image.new("RGB", (50, 50), (255, 0, 51)))[None])
    np.testing.assert_allclose(values[0, :, 0, 0].numpy(), [1, -1, -0.6], atol=1e-6)
    stored = {"size": {"height": 32, "width": 32}, "image_mean": [0.1, 0.2, 0.3], "resample": 3}
    type(processors()[0])(**stored).save_pretrained(tmp_path)
    wanted = EvalTransform(resize=(32, 32), mean=(0.1, 0.2, 0.3), resample="bicubic")
    assert EvalTransform.for_model(load_model(tmp_path)) == wanted
    stored["size"] = {"height": 40, "width": 40}
    with pytest.warns(AssayWarning, match="make 40 x 40 pixels; images are resized to the 32 x 32 that"):
        found = EvalTransform.for_model(SimpleNamespace(image_size=(32, 32), preprocessing=stored))
    assert found == wanted


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        ("made", {"resample": "bicubik"}, "bicubic"),
        ("made", {"resize": (20, 30), "crop": (20, 31)}, "a crop that fits into resize"),
        ("made", {"std": (1.0, 0.0, 1.0)}, "std above 0"),
        ("from_config", {"size": {"longest_edge": 30}}, "height and width, or shortest_edge"),
        ("from_config", {"crop_pct": 0.9}, "by a share, which is not supported; write an EvalTransform"),
        ("from_config", {"do_center_crop": True, "crop_size": {"shortest_edge": 9}}, "a height and a width"),
        ("from_config", {"resample": 9}, "unknown resampling filter '9'"),
        ("from_timm", {"input_size": (1, 28, 28)}, "1 channels .* not supported"),
        ("from_timm", {"crop_mode": "border"}, "crop mode 'border' are not supported"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(make: str, arguments: dict, message: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=message):
        EvalTransform(**arguments) if make == "made" else getattr(EvalTransform, make)(arguments)
