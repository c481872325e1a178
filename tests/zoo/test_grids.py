"""Recipes, augmentations and grids: schedules, keys, draws, presets, bad values; the second stage."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.core.errors import AssayError, FileFormatError, InputError
from assay.core.random import stream
from assay.tasks import draw_shapes
from assay.zoo import Augmentation, Grid, Recipe, Zoo, ZooEntry, select_configurations


# ------------------------------------------------------------------------------------------------- recipes


def test_the_learning_rate_climbs_linearly_and_falls_as_half_a_cosine() -> None:
    recipe = Recipe(lr=0.8, warmup=4, steps=12)
    rates = [recipe.learning_rate(step) for step in range(12)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert rates[8] == pytest.approx(0.4)
    assert rates[-1] == pytest.approx(0.8 * 0.5 * (1 + np.cos(np.pi * 7 / 8)))


def test_keys_are_those_of_recipes_that_survive_their_dictionaries() -> None:
    assert Recipe(weight_decay=0).key == Recipe(weight_decay=0.0).key
    assert Recipe(warmup=20).key != Recipe(warmup=16).key
    for entry in Zoo.embedded().entries:
        recipe = {name: value for name, value in entry.recipe.items() if name != "start"}
        assert Recipe.from_dict(recipe).key == entry.key


def test_bad_values_of_a_recipe_are_named() -> None:
    for wrong, message in (
        ({"lr": 0}, "lr is 0; give a number above 0"),
        ({"warmup": 1000}, "warmup is 1000 of 1000 steps"),
        ({"augmentation": {"flip": 2}}, "flip is 2"),
        ({"optimiser": "adam"}, "did you mean 'adamw'"),
        ({"augmentation": {"flips": 0.5}}, "did you mean 'flip'"),
    ):
        with pytest.raises(FileFormatError, match=message):
            Recipe.from_dict(wrong)


PIXELS = draw_shapes("relief", 16).pixels


def test_an_augmentation_depends_on_its_stream_alone_and_crops_inside_the_image() -> None:
    first, again, other = (Augmentation().apply(PIXELS, stream(seed, "a")) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    whole = {"min_area": 1.0, "max_aspect": 1.0}
    assert np.array_equal(Augmentation(**whole, flip=0).apply(PIXELS, stream(0, "a")), PIXELS)
    mirrored = Augmentation(**whole, flip=1).apply(PIXELS, stream(0, "a"))
    assert np.array_equal(mirrored, PIXELS[:, :, ::-1])
    coloured = Augmentation(**whole, flip=0, jitter=0.5).apply(PIXELS, stream(0, "a"))
    ratio = coloured.mean(axis=(1, 2, 3)) / PIXELS.mean(axis=(1, 2, 3))
    assert ratio.min() < 0.9 < 1.1 < ratio.max()
    ramp = np.broadcast_to(8 * np.arange(32, dtype=np.uint8)[:, None, None], (200, 32, 32, 3)).copy()
    cropped = Augmentation(min_area=0.25, max_aspect=1.0, flip=0).apply(ramp, stream(0, "a")).astype(float)
    covered = (cropped[:, -1, :, 0] - cropped[:, 0, :, 0]).mean(axis=1) / (31 * 8)
    assert 0.45 < covered.min() < covered.max() < 1.01  # a quarter of the area is half of each side
    assert np.std(covered) > 0.08


# --------------------------------------------------------------------------------------------------- grids


def test_presets_have_the_published_sizes() -> None:
    sizes = {"inside-out": 132, "inside-out-reduced": 66, "inside-out-code": 132, "tiny": 8}
    for preset, trained in sizes.items():
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


def test_bad_grids_are_refused(tmp_path: Path) -> None:
    contents: tuple[tuple[dict[str, Any], str], ...] = (
        ({"preset": "insideout"}, "unknown preset of a grid 'insideout'; did you mean 'inside-out'"),
        ({"inits": {}}, "has 0 recipes, 0 of them different; give an init"),
        ({"inits": SCRATCH, "axes": {"rl": [1]}}, "unknown field 'rl'"),
        ({"inits": SCRATCH, "axes": {"lr": [0.1, 0.1]}}, "has 2 recipes, 1 of them different"),
        ({"inits": SCRATCH, "axes": {"lr": [0.1]}, "configurations": [{"lr": 0.2}]}, "set in two of"),
        ({"inits": SCRATCH, "skip": [{"lrr": 0.1}]}, "unknown field of a recipe 'lrr'; did you mean 'lr'"),
    )
    for content, message in contents:
        with pytest.raises(AssayError, match=message):
            Grid.from_dict(content)
    (tmp_path / "grid.toml").write_text("name = [")
    with pytest.raises(FileFormatError, match=r"grid\.toml is not a TOML or JSON file of a grid"):
        Grid.read(tmp_path / "grid.toml")


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
    exact = select_configurations(sweep(TABLE), tolerance=0, size=3).configurations
    assert [each["lr"] for each in exact] == [0.3, 0.1, 0.2]
    with pytest.raises(InputError, match="size is 1; each of 3 starts needs"):
        select_configurations(sweep(TABLE), tolerance=0, size=1)
    with pytest.raises(InputError, match="has no trained model with a recipe"):
        select_configurations(sweep({}))
    second = grid.with_configurations(found.configurations)
    assert [(r.init, r.lr) for r in second.recipes()] == [
        (init, lr) for init in ("scratch", "mae") for lr in (0.3, 0.2)
    ]
