"""Grids of recipes: which models a zoo is made of, as a value that a TOML file or a preset can state."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from assay.core.errors import FileFormatError, InputError, unknown_name
from assay.core.record import Record, named, same
from assay.core.untrusted import malformed, parse_json, parse_toml
from assay.zoo.initial import Factory, initial_module
from assay.zoo.recipe import Recipe
from assay.zoo.scoring import stated_size


@dataclass(frozen=True, kw_only=True)
class Initialisation(Record):
    """A named starting point.

    Attributes:
        source: `scratch`, a directory, a hub id, `timm:NAME` or a function, as `initial_module` takes it.
        architecture: For `scratch`: `timm:NAME` or settings of `transformers.ViTConfig`.
    """

    record_layout = {"source": "source_name", **same("architecture")}

    source: str | Factory
    architecture: str | Mapping[str, Any] | None = None

    @property
    def source_name(self) -> str:
        """The source; a function by its name."""
        return self.source if isinstance(self.source, str) else f"function:{self.source.__qualname__}"

    def image_size(self) -> tuple[int, int] | None:
        """Height and width that it reads; None where its architecture does not say, and for a function."""
        if not isinstance(self.source, str):
            return None
        if isinstance(self.architecture, Mapping) and self.source == "scratch":
            side = self.architecture.get("image_size")
            return (side, side) if isinstance(side, int) else None if side is None else tuple(side)
        start = initial_module(self.source, ("first", "second"), architecture=self.architecture)
        return stated_size(start.module)


@dataclass(frozen=True, kw_only=True)
class Grid(Record):
    """Every initialisation with every combination of the axes.

    Args:
        name: What the zoo is called.
        initialisations: Name to starting point; the name is the `init` of the recipes.
        axes: Field of a recipe to the values it takes; the grid is their product, the last axis fastest.
        fixed: Fields of a recipe that are the same in all.
        configurations: Combinations of fields to take instead of or times the product, e.g. those that
            `select_configurations` kept.
        skip: Combinations of fields to leave out, e.g. `{"init": "scratch", "mode": "linear"}`.

    Raises:
        InputError: If there is no initialisation, an axis is empty, or a field is set in two places.
        UnknownNameError: If a field of a recipe does not exist.

    Example:
        >>> grid = Grid.preset("inside-out")
        >>> grid.n_combinations, len(grid.recipes())
        (144, 132)
    """

    name: str
    initialisations: Mapping[str, Initialisation] = field(metadata=named("inits"))
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    configurations: Sequence[Mapping[str, Any]] = ({},)
    skip: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if not self.initialisations:
            raise InputError(f"the grid {self.name!r} has no initialisation; name at least one under inits")
        known = {each.name for each in fields(Recipe)} - {"init"}
        for axis, values in self.axes.items():
            if axis not in known:
                raise unknown_name("field of a recipe", axis, known)
            if not values:
                raise InputError(f"the axis {axis} is empty; give a list of at least one value")
        if not self.configurations:
            raise InputError(f"the grid {self.name!r} has an empty list of configurations")
        named = {name for each in self.configurations for name in each}
        places = [("axes", set(self.axes)), ("fixed", set(self.fixed)), ("configurations", named)]
        for (first, a), (second, b) in itertools.combinations(places, 2):
            if both := sorted(a & b):
                raise InputError(f"{both[0]} is set under both {first} and {second}; keep one of them")
        for rule in self.skip:
            for name in rule:
                if name not in known | {"init"}:
                    raise unknown_name("field of a recipe", name, known | {"init"})
        for name in {rule["init"] for rule in self.skip if "init" in rule}:
            if name not in self.initialisations:
                raise unknown_name("initialisation", name, self.initialisations)
        self.recipes()

    @classmethod
    def preset(cls, name: str) -> "Grid":
        """A published or embedded grid: `inside-out`, `inside-out-reduced`, `inside-out-code` or `tiny`.

        Raises:
            UnknownNameError: If there is no such preset.

        Notes:
            The printed values of the published grids are lost. `inside-out` is this library's default of 144
            combinations, 132 without training only the head of a random model; `inside-out-reduced` has one
            batch size, 72 combinations (66); `inside-out-code` holds the values that the authors' code still
            names, with two lengths of the warm-up instead of two batch sizes. `tiny` trains small ViTs on a
            CPU, for `shapes`.

        References:
            Peng et al. (CVPR 2026), section "model zoo" of the appendix, and the authors' code.
        """
        if name not in PRESETS:
            raise unknown_name("preset of a grid", name, PRESETS)
        return cls.from_dict(PRESETS[name])

    @classmethod
    def from_dict(cls, document: Any) -> "Grid":
        """The grid of a table as in a TOML file.

        Args:
            document: `name`; `inits`, a table of tables with `source` and `architecture`; `axes`, `fixed`,
                `configurations`, `skip` as the arguments of `Grid`. With `preset`, that grid is the start,
                and what the table says replaces its parts: whole `inits`, single axes and fixed fields.

        Raises:
            InputError: As for `Grid`.
            UnknownNameError: If a part, preset or field does not exist.
        """
        known = ("name", "preset", "inits", "axes", "fixed", "configurations", "skip")
        for part in document:
            if part not in known:
                raise unknown_name("part of a grid", part, known)
        merged: dict[str, Any] = {"name": "zoo", "inits": {}, "axes": {}, "fixed": {}}
        if (preset := document.get("preset")) is not None:
            if preset not in PRESETS:
                raise unknown_name("preset of a grid", preset, PRESETS)
            merged |= PRESETS[preset]
        given = {part: value for part, value in document.items() if part != "preset"}
        for part in ("inits", "axes", "fixed"):
            if not isinstance(given.get(part, {}), Mapping):
                raise InputError(f"{part} is {given[part]!r}; write a table [{part}]")
        for axis, values in given.get("axes", {}).items():
            if not isinstance(values, list | tuple):
                raise InputError(f"the axis {axis} is {values!r}; give a list of at least one value")
        given["axes"] = {
            name: values for name, values in merged["axes"].items() if name not in given.get("fixed", {})
        } | dict(given.get("axes", {}))
        given["fixed"] = {
            name: value for name, value in merged["fixed"].items() if name not in given["axes"]
        } | dict(given.get("fixed", {}))
        merged |= given
        return cls(
            name=merged["name"],
            initialisations={name: _initialisation(name, each) for name, each in merged["inits"].items()},
            axes=merged["axes"],
            fixed=merged["fixed"],
            configurations=tuple(merged.get("configurations", ({},))),
            skip=tuple(merged.get("skip", ())),
        )

    @classmethod
    def read(cls, source: str | Path) -> "Grid":
        """The grid of a TOML or JSON file, or of a preset's name.

        Raises:
            FileFormatError: If the file cannot be read.
            UnknownNameError: If there is neither such a file nor such a preset.
        """
        if str(source) in PRESETS:
            return cls.preset(str(source))
        path = Path(source)
        if not path.exists():
            raise unknown_name("grid file or preset", str(source), PRESETS)
        try:
            text = path.read_text(encoding="utf-8")
            content = parse_json(text) if path.suffix == ".json" else parse_toml(text)
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{path} is not a TOML or JSON file of a grid: {error}") from error
        with malformed(path, "a grid"):
            return cls.from_dict(content)

    @property
    def n_combinations(self) -> int:
        """Size of the product, skipped combinations included."""
        n = len(self.initialisations) * len(self.configurations)
        for values in self.axes.values():
            n *= len(values)
        return n

    def recipes(self) -> tuple[Recipe, ...]:
        """One recipe per model: initialisation by initialisation, the last axis fastest."""
        recipes = []
        for init, configuration in itertools.product(self.initialisations, self.configurations):
            for values in itertools.product(*self.axes.values()):
                chosen = dict(zip(self.axes, values, strict=True))
                settings = {**self.fixed, **configuration, **chosen, "init": init}
                if not any(all(settings.get(k) == v for k, v in rule.items()) for rule in self.skip if rule):
                    recipes.append(Recipe.from_dict(settings))
        keys = [recipe.key for recipe in recipes]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise InputError(f"the grid {self.name!r} holds a recipe twice: {twice[0]}")
        return tuple(recipes)

    def image_size(self) -> tuple[int, int] | None:
        """Height and width that the starts read, from their own configurations; None where they take any.

        Raises:
            InputError: If two starts read different sizes.
            AssayError: Of `initial_module`, which loads what a start is made from.
        """
        sizes = {name: each.image_size() for name, each in self.initialisations.items()}
        stated = {name: size for name, size in sizes.items() if size is not None}
        for name, size in stated.items():
            first, other = next(iter(stated.items()))
            if size != other:
                raise InputError(
                    f"the start {first!r} reads images of {other[0]} x {other[1]}, but {name!r} of "
                    f"{size[0]} x {size[1]}; make a grid for each size"
                )
        return next(iter(stated.values()), None)

    def with_configurations(self, configurations: Sequence[Mapping[str, Any]]) -> "Grid":
        """The same initialisations with these combinations of fields instead of the product of the axes."""
        return replace(self, axes={}, fixed={}, configurations=tuple(configurations))


def _initialisation(name: str, value: Any) -> Initialisation:
    if isinstance(value, Initialisation):
        return value
    if isinstance(value, str):
        return Initialisation(source=value)
    if (
        not isinstance(value, Mapping)
        or not set(value) <= {"source", "architecture"}
        or "source" not in value
    ):
        raise InputError(
            f"the initialisation {name!r} is {value!r}; write a source, or a table with source and "
            "architecture"
        )
    return Initialisation(source=value["source"], architecture=value.get("architecture"))


# --------------------------------------------------------------------------------------------- the presets

_PUBLISHED_INITS = {
    "scratch": {"source": "scratch", "architecture": "timm:vit_base_patch16_224"},
    "mae": {"source": "timm:vit_base_patch16_224.mae"},
    "clip-openai": {"source": "timm:vit_base_patch16_clip_224.openai"},
    "clip-laion2b": {"source": "timm:vit_base_patch16_clip_224.laion2b"},
    "in21k": {"source": "timm:vit_base_patch16_224.augreg_in21k"},
    "in1k": {"source": "timm:vit_base_patch16_224.orig_in21k_ft_in1k"},
}
_PUBLISHED = {
    "inits": _PUBLISHED_INITS,
    "axes": {
        "mode": ["full", "linear"],
        "lr": [0.003, 0.01, 0.03],
        "batch_size": [128, 256],
        "weight_decay": [0.0, 0.01],
    },
    "fixed": {
        "optimiser": "sgd",
        "momentum": 0.9,
        "steps": 1000,
        "warmup": 16,
        "clip": 1.0,
        "head_dropout": 0.1,
        "validate_every": 100,
        "augmentation": {"min_area": 0.08, "max_aspect": 4 / 3, "flip": 0.5, "jitter": 0.4},
        "seed": 0,
    },
    "skip": [{"init": "scratch", "mode": "linear"}],
}


def _changed(name: str, axes: Mapping[str, Any], fixed: Mapping[str, Any]) -> Mapping[str, Any]:
    kept = {key: value for key, value in _PUBLISHED["fixed"].items() if key not in axes}  # type: ignore[attr-defined]
    return {**_PUBLISHED, "name": name, "axes": dict(axes), "fixed": kept | dict(fixed)}


_AXES: Mapping[str, Any] = _PUBLISHED["axes"]  # type: ignore[assignment]
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "inside-out": _changed("inside-out", _AXES, {}),
        "inside-out-reduced": _changed("inside-out-reduced", {**_AXES, "batch_size": [256]}, {}),
        "inside-out-code": _changed(
            "inside-out-code",
            {
                "mode": _AXES["mode"],
                "lr": _AXES["lr"],
                "weight_decay": _AXES["weight_decay"],
                "warmup": [16, 20],
            },
            {"batch_size": 256},
        ),
        "tiny": {
            "name": "tiny",
            "inits": {
                "scratch": {
                    "source": "scratch",
                    "architecture": {
                        "hidden_size": 48,
                        "num_hidden_layers": 4,
                        "num_attention_heads": 4,
                        "intermediate_size": 96,
                        "patch_size": 8,
                    },
                }
            },
            "axes": {"lr": [0.001, 0.003], "weight_decay": [0.0, 0.05], "seed": [0, 1]},
            "fixed": {
                "optimiser": "adamw",
                "steps": 1200,
                "warmup": 50,
                "batch_size": 64,
                "validate_every": 100,
            },
        },
    }
)
