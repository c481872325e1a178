"""The evaluation transform against the image processors of transformers, and its own rules."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image

from assay.core.errors import AssayWarning, InputError, UnknownNameError
from assay.models import load_model
from assay.tasks import EvalTransform


def picture(height: int, width: int) -> Image.Image:
    rng = np.random.default_rng(height * 1000 + width)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def processors() -> dict[str, Any]:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    return {
        "vit": ViTImageProcessorPil(size={"height": 32, "width": 24}),
        "clip": CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 24, "width": 25}),
        "deit": DeiTImageProcessorPil(
            size={"height": 37, "width": 37}, crop_size={"height": 32, "width": 32}
        ),
    }


@pytest.mark.parametrize("name", ["vit", "clip", "deit"])
@pytest.mark.parametrize("size", [(50, 61), (61, 50), (33, 33), (20, 90)])
def test_it_agrees_with_the_processor_it_was_read_from(name: str, size: tuple[int, int]) -> None:
    processor = processors()[name]
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


def test_switches_of_a_config_are_followed() -> None:
    transform = EvalTransform.from_config(
        {"do_resize": False, "do_rescale": False, "do_normalize": False, "size": 10}
    )
    image = picture(9, 7)
    np.testing.assert_array_equal(transform.pixels(image), np.asarray(image))
    values = transform.normalised(np.asarray(image)[None])
    np.testing.assert_array_equal(values[0].permute(1, 2, 0).numpy(), np.asarray(image))


def test_a_number_as_size_means_what_it_means_in_transformers() -> None:
    assert EvalTransform.from_config({"size": 30}).resize == (30, 30)
    clip = EvalTransform.from_config({"size": 30, "feature_extractor_type": "CLIPFeatureExtractor"})
    assert clip.resize == 30
    assert EvalTransform.from_config({"size": [20, 30]}).resize == (20, 30)


def model_of(size: tuple[int, int], preprocessing: dict[str, Any] | None) -> SimpleNamespace:
    return SimpleNamespace(image_size=size, preprocessing=preprocessing)


@pytest.mark.parametrize("name", ["vit", "clip", "deit"])
def test_a_model_with_an_image_processor_gets_its_transform(name: str) -> None:
    stored = json.loads(processors()[name].to_json_string())
    expected = EvalTransform.from_config(stored)
    size = expected.crop or expected.resize
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EvalTransform.for_model(model_of(size, stored)) == expected


def test_a_saved_model_brings_its_transform_along(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32,
        patch_size=16, num_labels=3,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    with pytest.warns(AssayWarning, match="does not state how to prepare"):
        assert EvalTransform.for_model(load_model(tmp_path)) == EvalTransform(resize=(32, 32))
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    processor = ViTImageProcessorPil(size={"height": 32, "width": 32}, image_mean=[0.1, 0.2, 0.3], resample=3)
    processor.save_pretrained(tmp_path)
    transform = EvalTransform.for_model(load_model(tmp_path))
    ours = transform.normalised(transform.pixels(picture(40, 50))[None])
    theirs = processor(picture(40, 50), return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(ours.numpy(), theirs, atol=2e-6)


def test_a_model_of_timm_gets_the_transform_of_its_config() -> None:
    stored = {
        "architecture": "vit_tiny_patch16_224",
        "input_size": [3, 32, 32],
        "crop_pct": 0.8,
        "interpolation": "bilinear",
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
    }
    found = EvalTransform.for_model(model_of((32, 32), stored))
    assert (found.resize, found.crop, found.resample) == (40, (32, 32), "bilinear")
    assert (found.mean, found.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_a_model_that_knows_nothing_of_its_images_gets_the_defaults_and_a_warning() -> None:
    with pytest.warns(AssayWarning, match=r"does not state how.*resized to 24 x 32 and scaled to \[-1, 1\]"):
        found = EvalTransform.for_model(model_of((24, 32), None))
    assert found == EvalTransform(resize=(24, 32))
    values = found.normalised(found.pixels(Image.new("RGB", (50, 50), (255, 0, 51)))[None])
    assert values.shape == (1, 3, 24, 32)
    np.testing.assert_allclose(values[0, :, 0, 0].numpy(), [1, -1, -0.6], atol=1e-6)


def test_the_size_of_the_model_counts_more_than_the_stored_one() -> None:
    stored = {"size": {"height": 40, "width": 40}, "image_mean": [0.1, 0.2, 0.3], "resample": 3}
    with pytest.warns(
        AssayWarning, match=r"reads 32 x 32 pixels, but its stored image settings produce 40 x 40"
    ):
        found = EvalTransform.for_model(model_of((32, 32), stored))
    assert found == EvalTransform(resize=(32, 32), mean=(0.1, 0.2, 0.3), resample="bicubic")


def test_stored_descriptions_of_other_kinds_are_refused() -> None:
    with pytest.raises(InputError, match=r"have the keys \['sample_rate'\]; expected those of"):
        EvalTransform.for_model(model_of((32, 32), {"sample_rate": 16000}))


def test_timm_covers_sides_that_are_not_equal() -> None:
    """22 x 33 pixels for a crop of 10 x 20: as wide as needed, and the height sticks out."""
    transform = EvalTransform.from_timm({"input_size": (3, 10, 20), "crop_pct": 1.0})
    image = picture(22, 33)
    resized = np.asarray(image.resize((20, 13), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(transform.pixels(image), resized[2:12])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"resample": "bicubik"}, UnknownNameError, "bicubic"),
        ({"resize": 0}, InputError, "at least 1 pixel"),
        ({"crop": (4, 0)}, InputError, "at least 1 pixel"),
        ({"resize": 20, "crop": (24, 24)}, InputError, "larger than the image after resize=20"),
        ({"resize": (20, 30), "crop": (20, 31)}, InputError, "larger"),
        ({"std": (1.0, 0.0, 1.0)}, InputError, "std above 0"),
        ({"mean": (1.0, float("nan"), 1.0)}, InputError, "finite"),
    ],
)
def test_bad_settings_are_refused(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        EvalTransform(**arguments)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"size": {"longest_edge": 30}}, "height and width, or shortest_edge"),
        ({"do_pad": True}, "write an EvalTransform"),
        ({"crop_pct": 0.9}, "by a share, which is not supported; write an EvalTransform"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 9}}, "expected a height and a width"),
        ({"resample": 9}, "codes are 0 to 5"),
        ({"image_mean": [0.5, 0.5]}, "image_mean has 2 values"),
    ],
)
def test_configs_that_ask_for_more_are_refused(config: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        EvalTransform.from_config(config)


def test_timm_configs_that_ask_for_more_are_refused() -> None:
    with pytest.raises(InputError, match="1 channels"):
        EvalTransform.from_timm({"input_size": (1, 28, 28)})
    with pytest.raises(InputError, match="crop mode 'border'"):
        EvalTransform.from_timm({"crop_mode": "border"})


def test_images_smaller_than_the_crop_are_refused() -> None:
    with pytest.raises(InputError, match=r"9 x 7 is smaller than the crop \(8, 8\)"):
        EvalTransform(resize=None, crop=(8, 8)).pixels(picture(9, 7))
