"""Recipes, augmentations and grids: schedules, keys, draws, presets, bad values; the second stage."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo_cases import SMALL, tiny

from assay.core.errors import AssayError, FileFormatError, InputError, UnknownNameError
from assay.core.random import stream
from assay.tasks import EvalTransform, draw_shapes
from assay.zoo import Augmentation, Grid, Recipe, Zoo, ZooEntry, save_model, select_configurations


# ------------------------------------------------------------------------------------------------- recipes


def test_the_learning_rate_climbs_linearly_and_falls_as_half_a_cosine() -> None:
    recipe = Recipe(lr=0.8, warmup=4, steps=12)
    rates = [recipe.learning_rate(step) for step in range(12)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert rates[8] == pytest.approx(0.4)
    assert rates[-1] == pytest.approx(0.8 * 0.5 * (1 + np.cos(np.pi * 7 / 8)))


def test_a_recipe_survives_its_dictionary_and_has_one_key() -> None:
    augmentation = Augmentation(flip=0)
    recipe = Recipe(init="somewhere/mae", lr=0.03, weight_decay=0.01, clip=None, augmentation=augmentation)
    again = Recipe.from_dict(recipe.to_dict())
    assert (again, again.key) == (recipe, recipe.key)
    assert recipe.key.startswith("mae-full-lr0.03-b256-wd0.01-s0-")
    assert Recipe(weight_decay=0).key == Recipe(weight_decay=0.0).key
    assert Recipe(warmup=20).key != Recipe(warmup=16).key


def test_keys_of_the_embedded_zoo_are_those_of_its_recipes() -> None:
    for entry in Zoo.embedded().entries:
        recipe = {name: value for name, value in entry.recipe.items() if name != "start"}
        assert Recipe.from_dict(recipe).key == entry.key


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lr": 0}, "lr is 0; give a number above 0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"weight_decay": -1}, "weight_decay is -1; give a number of 0 or more"),
        ({"warmup": 1000}, "warmup is 1000 of 1000 steps"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"clip": 0}, "clip is 0"),
        ({"steps": "many"}, "'many' is not an int"),
        ({"augmentation": {"flip": 2}}, "flip is 2"),
        ({"augmentation": {"min_area": 0}}, "min_area is 0"),
        ({"optimiser": "adam"}, "did you mean 'adamw'"),
        ({"learning_rate": 0.1}, "unknown field 'learning_rate'"),
        ({"augmentation": {"flips": 0.5}}, "did you mean 'flip'"),
    ],
)
def test_bad_values_of_a_recipe_are_named(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        Recipe.from_dict(wrong)


PIXELS = draw_shapes("relief", 16).pixels


def test_an_augmentation_depends_on_its_stream_alone() -> None:
    kept = PIXELS.copy()
    light = Augmentation(jitter=0.4)
    first = light.apply(PIXELS, stream(0, "a"))
    assert np.array_equal(first, light.apply(PIXELS, stream(0, "a")))
    assert not np.array_equal(first, light.apply(PIXELS, stream(1, "a")))
    assert np.array_equal(PIXELS, kept)


def test_limits_of_an_augmentation() -> None:
    whole = {"min_area": 1.0, "max_aspect": 1.0}
    assert np.array_equal(Augmentation(**whole, flip=0).apply(PIXELS, stream(0, "a")), PIXELS)
    mirrored = Augmentation(**whole, flip=1).apply(PIXELS, stream(0, "a"))
    assert np.array_equal(mirrored, PIXELS[:, :, ::-1])
    coloured = Augmentation(**whole, flip=0, jitter=0.5).apply(PIXELS, stream(0, "a"))
    ratio = coloured.mean(axis=(1, 2, 3)) / PIXELS.mean(axis=(1, 2, 3))
    assert ratio.min() < 0.9 < 1.1 < ratio.max()


def test_a_crop_lies_inside_the_image() -> None:
    rows, columns = np.mgrid[0:32, 0:32].astype(np.uint8) * 8
    ramp = np.stack([rows, columns, rows], axis=-1)[None].repeat(200, axis=0)
    cropped = Augmentation(min_area=0.25, max_aspect=1.0, flip=0).apply(ramp, stream(0, "a")).astype(float)
    covered = (cropped[:, -1, :, 0] - cropped[:, 0, :, 0]).mean(axis=1) / (31 * 8)
    assert covered.min() > 0.45  # a quarter of the area is half of each side
    assert covered.max() < 1.01
    assert np.std(covered) > 0.08


# --------------------------------------------------------------------------------------------------- grids


@pytest.mark.parametrize(
    ("preset", "trained"),
    [("inside-out", 132), ("inside-out-reduced", 66), ("inside-out-code", 132), ("tiny", 8)],
)
def test_presets_have_the_published_sizes(preset: str, trained: int) -> None:
    grid = Grid.read(preset)
    recipes = grid.recipes()
    assert len({recipe.key for recipe in recipes}) == trained
    assert not [each for each in recipes if each.init == "scratch" and each.mode == "linear"]
    assert Grid.from_dict(json.loads(json.dumps(grid.to_dict()))) == grid


def test_a_file_changes_single_parts_of_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text("""
preset = "inside-out-reduced"
name = "mine"
skip = []
[inits]
random = {source = "scratch", architecture = {hidden_size = 16}}
mae = {source = "checkpoints/mae"}
[axes]
lr = [0.1]
[fixed]
steps = 20
weight_decay = 0.5
""")
    grid = Grid.read(path)
    assert [(r.init, r.mode, r.lr, r.weight_decay, r.steps, r.batch_size) for r in grid.recipes()] == [
        (init, mode, 0.1, 0.5, 20, 256) for init in ("random", "mae") for mode in ("full", "linear")
    ]
    assert grid.initialisations["mae"].source == "checkpoints/mae"
    assert grid.initialisations["random"].architecture == {"hidden_size": 16}


SCRATCH = {"scratch": {"source": "scratch"}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"preset": "insideout"}, "unknown preset of a grid 'insideout'; did you mean 'inside-out'"),
        ({"inits": {}}, "has 0 recipes, 0 of them different; give an init"),
        ({"inits": SCRATCH, "axes": {"lr": []}}, "has 0 recipes"),
        ({"inits": SCRATCH, "axis": {}}, "did you mean 'axes'"),
        ({"inits": SCRATCH, "axes": {"rl": [1]}}, "unknown field 'rl'"),
        ({"inits": SCRATCH, "axes": {"lr": 0.1}}, r"not iterable @ \$\.axes"),
        ({"inits": SCRATCH, "axes": {"lr": [0.1, 0.1]}}, "has 2 recipes, 1 of them different"),
        ({"inits": SCRATCH, "axes": {"lr": [-1.0]}}, r"lr is -1\.0"),
        ({"inits": SCRATCH, "fixed": 3}, r"expected a mapping @ \$\.fixed"),
        ({"preset": "tiny", "fixed": 3}, "is not a table of inits, axes and fixed fields"),
        ({"inits": {"a": {"path": "x"}}}, "unknown field 'path'"),
        ({"inits": SCRATCH, "axes": {"lr": [0.1]}, "configurations": [{"lr": 0.2}]}, "lr is set in two of"),
        ({"inits": SCRATCH, "skip": [{"lrr": 0.1}]}, "unknown field of a recipe 'lrr'; did you mean 'lr'"),
    ],
)
def test_bad_grids_are_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(AssayError, match=message):
        Grid.from_dict(content)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text("name = [")
    with pytest.raises(FileFormatError, match=r"grid\.toml is not a TOML or JSON file of a grid"):
        Grid.read(tmp_path / "grid.toml")
    with pytest.raises(UnknownNameError, match="unknown grid file or preset 'tinny'; did you mean 'tiny'"):
        Grid.read("tinny")


def test_the_size_of_images_comes_from_what_models_start_from(tmp_path: Path) -> None:
    free = {"source": "scratch", "architecture": SMALL}
    stated = {"source": "scratch", "architecture": {**SMALL, "image_size": 48}}
    place = save_model(tiny(image_size=48), tmp_path / "start", transform=EvalTransform(resize=(48, 48)))
    assert Grid.from_dict({"inits": {"a": free}}).image_size() == (32, 32)
    assert Grid.from_dict({"inits": {"a": {"source": str(place)}, "b": stated}}).image_size() == (48, 48)
    with pytest.raises(InputError, match="make a grid for each size"):
        Grid.from_dict({"inits": {"a": free, "b": stated}}).image_size()


# ---------------------------------------------------------------------------------------- the second stage


def sweep(table: dict[str, dict[float, float]]) -> Zoo:
    """A zoo of given accuracies: initialisation -> learning rate -> accuracy."""
    entries = []
    for init, accuracies in table.items():
        for lr, accuracy in accuracies.items():
            recipe = Recipe(init=init, lr=lr)
            facts = {**recipe.to_dict(), "start": {"source": init}}
            entries.append(ZooEntry(key=recipe.key, path=recipe.key, recipe=facts, id_accuracy=accuracy))
    return Zoo(path=Path("sweep"), name="sweep", entries=tuple(entries), id_domain="flat")


TABLE = {
    "a": {0.1: 0.90, 0.2: 0.89, 0.3: 0.50},
    "b": {0.1: 0.60, 0.2: 0.79, 0.3: 0.80},
    "c": {0.1: 0.20, 0.2: 0.30, 0.3: 0.70},
}


def test_each_initialisation_keeps_a_near_optimal_configuration() -> None:
    found = select_configurations(sweep(TABLE), tolerance=0.02)
    # 0.2 and 0.3 each serve two; 0.3 loses 0.4 and 0 and 0, 0.2 loses 0.01, 0.01 and 0.4: means .133 and .14.
    assert [each["lr"] for each in found.configurations] == [0.3, 0.2]
    assert found.shortfall == pytest.approx({"a": 0.01, "b": 0.0, "c": 0.0})
    grid = Grid.from_dict({"inits": SCRATCH | {"mae": {"source": "mae"}}, "axes": {"lr": [0.1, 0.2, 0.3]}})
    second = grid.with_configurations(found.configurations)
    assert [(r.init, r.lr) for r in second.recipes()] == [
        (init, lr) for init in ("scratch", "mae") for lr in (0.3, 0.2)
    ]


def test_a_tolerance_of_zero_keeps_every_best_and_a_size_adds_the_next() -> None:
    def rates(**options: Any) -> list[float]:
        return [each["lr"] for each in select_configurations(sweep(TABLE), **options).configurations]

    assert rates(tolerance=0) == [0.3, 0.1]
    assert rates(tolerance=0, size=3) == [0.3, 0.1, 0.2]
    for size in (1, 4):
        with pytest.raises(InputError, match=f"size is {size}; each of 3 starts needs"):
            rates(tolerance=0, size=size)
    with pytest.raises(InputError, match="tolerance is -1"):
        rates(tolerance=-1)
    with pytest.raises(InputError, match="has no trained model with a recipe"):
        select_configurations(sweep({}))
