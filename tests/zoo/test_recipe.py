"""Recipes and augmentations: schedules, keys, draws, bad values."""

import numpy as np
import pytest

from assay.core.errors import InputError, UnknownNameError
from assay.core.random import stream
from assay.tasks import draw_shapes
from assay.zoo import Augmentation, Recipe


def test_the_learning_rate_climbs_linearly_and_falls_as_half_a_cosine() -> None:
    recipe = Recipe(lr=0.8, warmup=4, steps=12)
    rates = [recipe.learning_rate(step) for step in range(12)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert rates[8] == pytest.approx(0.4)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == pytest.approx(0.8 * 0.5 * (1 + np.cos(np.pi * 7 / 8)))


def test_a_recipe_survives_its_dictionary_and_has_one_key() -> None:
    recipe = Recipe(
        init="somewhere/mae", lr=0.03, weight_decay=0.01, clip=None, augmentation=Augmentation(flip=0)
    )
    again = Recipe.from_dict(recipe.to_dict())
    assert again == recipe
    assert again.key == recipe.key
    assert recipe.key.startswith("mae-full-lr0.03-b256-wd0.01-s0-")
    assert Recipe(weight_decay=0).key == Recipe(weight_decay=0.0).key
    assert Recipe(warmup=20).key != Recipe(warmup=16).key


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lr": 0}, "lr is 0; give a number above 0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"weight_decay": -1}, "weight_decay is -1"),
        ({"warmup": 1000}, "warmup is 1000 of 1000 steps"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"head_dropout": -0.1}, "head_dropout is -0.1"),
        ({"clip": 0}, "clip is 0"),
        ({"steps": "many"}, "steps is 'many'; a recipe needs int"),
        ({"augmentation": {"flip": 2}}, "flip is 2"),
        ({"augmentation": {"flip": "yes"}}, r"augmentation.flip is 'yes'; give a number"),
        ({"augmentation": {"min_area": 0}}, "min_area is 0"),
    ],
)
def test_values_out_of_range_are_named(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Recipe.from_dict(wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"optimiser": "adam"}, "did you mean 'adamw'"),
        ({"mode": "linaer"}, "did you mean 'linear'"),
        ({"learning_rate": 0.1}, "unknown field of a recipe 'learning_rate'"),
        ({"augmentation": {"flips": 0.5}}, "did you mean 'flip'"),
    ],
)
def test_unknown_names_list_near_ones(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        Recipe.from_dict(wrong)


PIXELS = draw_shapes("relief", 16).pixels


def test_an_augmentation_depends_on_its_stream_alone() -> None:
    kept = PIXELS.copy()
    light = Augmentation(jitter=0.4)
    first = light.apply(PIXELS, stream(0, "a"))
    assert np.array_equal(first, light.apply(PIXELS, stream(0, "a")))
    assert not np.array_equal(first, light.apply(PIXELS, stream(1, "a")))
    assert np.array_equal(PIXELS, kept)
    assert first.dtype == np.uint8


def test_limits_of_an_augmentation() -> None:
    whole = {"min_area": 1.0, "max_aspect": 1.0}
    assert np.array_equal(Augmentation(**whole, flip=0).apply(PIXELS, stream(0, "a")), PIXELS)
    mirrored = Augmentation(**whole, flip=1).apply(PIXELS, stream(0, "a"))
    assert np.array_equal(mirrored, PIXELS[:, :, ::-1])
    coloured = Augmentation(**whole, flip=0, jitter=0.5).apply(PIXELS, stream(0, "a"))
    ratio = coloured.mean(axis=(1, 2, 3)) / PIXELS.mean(axis=(1, 2, 3))
    assert ratio.min() < 0.9
    assert ratio.max() > 1.1


def test_a_crop_lies_inside_the_image() -> None:
    rows, columns = np.mgrid[0:32, 0:32].astype(np.uint8) * 8
    ramp = np.stack([rows, columns, rows], axis=-1)[None].repeat(200, axis=0)
    cropped = Augmentation(min_area=0.25, max_aspect=1.0, flip=0).apply(ramp, stream(0, "a")).astype(float)
    covered = (cropped[:, -1, :, 0] - cropped[:, 0, :, 0]).mean(axis=1) / (31 * 8)
    assert covered.min() > 0.45  # a quarter of the area is half of each side
    assert covered.max() < 1.01
    assert np.std(covered) > 0.08
