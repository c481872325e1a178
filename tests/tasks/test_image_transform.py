"""The evaluation transform against the image processors of transformers, and its own rules."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from assay.errors import InputError, ShapeError, UnknownNameError
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


def test_grey_and_transparent_images_become_rgb() -> None:
    transform = EvalTransform(resize=None)
    grey = Image.fromarray(np.full((4, 5), 77, dtype=np.uint8))
    assert (transform.pixels(grey) == 77).all()
    clear = Image.new("RGBA", (5, 4), (10, 20, 30, 0))
    assert transform.pixels(clear).tolist() == [[[10, 20, 30]] * 5] * 4


def test_settings_survive_json_and_make_an_equal_transform() -> None:
    transform = EvalTransform(resize=40, crop=(32, 32), resample="bicubic")
    kept = transform.to_dict()
    assert kept["crop"] == [32, 32]
    assert kept["resample"] == "bicubic"


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


@pytest.mark.usefixtures("unchecked")
def test_only_8_bit_rgb_is_normalised() -> None:
    with pytest.raises(ShapeError, match="float64"):
        EvalTransform().normalised(np.zeros((1, 4, 4, 3)))
