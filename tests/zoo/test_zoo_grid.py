"""Grids: presets, files, what is skipped, what is refused; and the second stage of a selection."""

import json
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import FileFormatError, InputError, UnknownNameError
from assay.zoo import PRESETS, Grid, Recipe, Zoo, ZooEntry, select_configurations


@pytest.mark.parametrize(
    ("preset", "combinations", "trained"),
    [
        ("inside-out", 144, 132),
        ("inside-out-reduced", 72, 66),
        ("inside-out-code", 144, 132),
        ("tiny", 8, 8),
    ],
)
def test_presets_have_the_published_sizes(preset: str, combinations: int, trained: int) -> None:
    grid = Grid.preset(preset)
    recipes = grid.recipes()
    assert (grid.n_combinations, len(recipes)) == (combinations, trained)
    assert len({recipe.key for recipe in recipes}) == trained
    assert not [each for each in recipes if each.init == "scratch" and each.mode == "linear"]


def test_the_published_grid_has_the_recoverable_values() -> None:
    recipes = Grid.preset("inside-out").recipes()
    assert {recipe.lr for recipe in recipes} == {0.003, 0.01, 0.03}
    assert {recipe.weight_decay for recipe in recipes} == {0.0, 0.01}
    assert {recipe.batch_size for recipe in recipes} == {128, 256}
    assert {(r.optimiser, r.momentum, r.steps, r.clip, r.head_dropout) for r in recipes} == {
        ("sgd", 0.9, 1000, 1.0, 0.1)
    }
    assert {recipe.warmup for recipe in Grid.preset("inside-out-code").recipes()} == {16, 20}
    assert len({recipe.init for recipe in recipes}) == 6


def test_every_preset_survives_its_dictionary() -> None:
    for name in PRESETS:
        grid = Grid.preset(name)
        again = Grid.from_dict(json.loads(json.dumps(grid.to_dict())))
        assert [r.key for r in again.recipes()] == [r.key for r in grid.recipes()]


CONFIG = """
preset = "inside-out-reduced"
name = "mine"

[inits]
random = {source = "scratch", architecture = {hidden_size = 16}}
mae = "checkpoints/mae"

[axes]
lr = [0.1]

[fixed]
steps = 20
weight_decay = 0.5
"""


def test_a_file_changes_single_parts_of_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(
        CONFIG.replace('preset = "inside-out-reduced"', 'preset = "inside-out-reduced"\nskip = []')
    )
    grid = Grid.read(path)
    assert [(r.init, r.mode, r.lr, r.weight_decay, r.steps, r.batch_size) for r in grid.recipes()] == [
        (init, mode, 0.1, 0.5, 20, 256) for init in ("random", "mae") for mode in ("full", "linear")
    ]
    assert grid.initialisations["mae"].source == "checkpoints/mae"
    assert grid.initialisations["random"].architecture == {"hidden_size": 16}


SCRATCH = {"scratch": {"source": "scratch"}}


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (
            {"preset": "insideout"},
            UnknownNameError,
            "unknown preset of a grid 'insideout'; did you mean 'inside-out'",
        ),
        ({"inits": {}}, InputError, "has no initialisation"),
        ({"inits": SCRATCH, "axis": {}}, UnknownNameError, "did you mean 'axes'"),
        ({"inits": SCRATCH, "axes": {"rl": [1]}}, UnknownNameError, "unknown field of a recipe 'rl'"),
        ({"inits": SCRATCH, "axes": {"lr": []}}, InputError, "the axis lr is empty"),
        ({"inits": SCRATCH, "axes": {"lr": 0.1}}, InputError, "give a list of at least one value"),
        ({"inits": SCRATCH, "axes": {"lr": [0.1, 0.1]}}, InputError, "holds a recipe twice"),
        ({"inits": SCRATCH, "axes": {"lr": [-1.0]}}, InputError, r"lr is -1\.0"),
        ({"inits": SCRATCH, "fixed": 3}, InputError, r"write a table \[fixed\]"),
        ({"inits": {"a": {"path": "x"}}}, InputError, "the initialisation 'a' is"),
        (
            {"inits": SCRATCH, "axes": {"lr": [0.1]}, "configurations": [{"lr": 0.2}]},
            InputError,
            "lr is set under both axes and configurations",
        ),
        ({"inits": SCRATCH, "skip": [{"init": "scrtach"}]}, UnknownNameError, "did you mean 'scratch'"),
        ({"inits": SCRATCH, "configurations": []}, InputError, "empty list of configurations"),
    ],
)
def test_bad_grids_are_refused(content: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Grid.from_dict(content)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text("name = [")
    with pytest.raises(FileFormatError, match=r"grid\.toml is not a TOML or JSON file of a grid"):
        Grid.read(tmp_path / "grid.toml")
    with pytest.raises(UnknownNameError, match="unknown grid file or preset 'tinny'; did you mean 'tiny'"):
        Grid.read("tinny")


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
    assert all("init" not in each and "start" not in each for each in found.configurations)


def test_a_tolerance_of_zero_keeps_every_best_and_a_size_adds_the_next() -> None:
    assert [each["lr"] for each in select_configurations(sweep(TABLE), tolerance=0).configurations] == [
        0.3,
        0.1,
    ]
    three = select_configurations(sweep(TABLE), tolerance=0, size=3)
    assert [each["lr"] for each in three.configurations] == [0.3, 0.1, 0.2]
    with pytest.raises(InputError, match="2 configurations are needed"):
        select_configurations(sweep(TABLE), tolerance=0, size=1)
    with pytest.raises(InputError, match="the sweep has 3 configurations"):
        select_configurations(sweep(TABLE), size=4)
    with pytest.raises(InputError, match="tolerance is -1"):
        select_configurations(sweep(TABLE), tolerance=-1)
    with pytest.raises(InputError, match="does not have a trained model with a recipe"):
        select_configurations(sweep({}))


def test_the_second_stage_trains_the_kept_configurations_from_every_start() -> None:
    kept = select_configurations(sweep(TABLE))
    grid = Grid.from_dict({"inits": SCRATCH | {"mae": "mae"}, "axes": {"lr": [0.1, 0.2, 0.3]}})
    second = grid.with_configurations(kept.configurations)
    assert [(r.init, r.lr) for r in second.recipes()] == [
        (init, lr) for init in ("scratch", "mae") for lr in (0.3, 0.2)
    ]
