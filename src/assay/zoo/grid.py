"""Recipes and grids of them: which models a zoo is made of, as values that a TOML file or a preset states."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import UInt8
from torch.nn.functional import affine_grid, grid_sample

from assay.core.errors import InputError, check_name
from assay.core.record import Record, plain
from assay.core.untrusted import malformed, read_object
from assay.zoo.archive import Zoo
from assay.zoo.models import initial_module, stated_size


# What a recipe may choose from.
CHOICES = {"mode": ("full", "linear"), "optimiser": ("sgd", "adamw"), "score": ("accuracy", "macro-f1")}
# Its numbers, by what they may be.
RANGES: tuple[tuple[str, tuple[str, ...], Callable[[float], bool]], ...] = (
    ("above 0", ("lr", "batch_size", "validate_every", "clip"), lambda value: 0 < value < math.inf),
    ("of 0 or more", ("weight_decay", "seed"), lambda value: 0 <= value < math.inf),
    ("from 0, below 1", ("momentum", "head_dropout"), lambda value: 0 <= value < 1),
)

# Rec. 601, what Pillow and torchvision call grey.
_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


@final
@dataclass(frozen=True, kw_only=True)
class Augmentation(Record):
    """A random resized crop, a mirror image, and a change of brightness, contrast and saturation.

    The crop covers a share of the image drawn from `[min_area, 1]`, with an aspect drawn log-uniformly from
    `[1 / max_aspect, max_aspect]`, and is scaled back to the size of the image (bilinear). A crop never
    reaches beyond the image: a side that would is as long as the image. Brightness, contrast and saturation,
    in this order, are multiplied by factors drawn from `[1 - jitter, 1 + jitter]`.

    Args:
        min_area: Smallest share of the image that a crop covers, above 0, at most 1; 1 crops nothing.
        max_aspect: Widest aspect of a crop relative to the image, 1 or more.
        flip: Probability of the mirror image, 0 .. 1.
        jitter: Half-width of the colour factors, 0 .. 1; 0 leaves the colours.

    Raises:
        InputError: If a value is out of range.

    Notes:
        `Augmentation(min_area=0.08, jitter=0.4)` has timm's default ranges (crop scale, aspect 4/3, flip,
        colour jitter); timm cuts its crops from the original instead of the resized image, and also draws the
        order of the colour changes and each image's interpolation.
    """

    min_area: float | int = 0.6
    max_aspect: float | int = 4 / 3
    flip: float | int = 0.5
    jitter: float | int = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.min_area <= 1 and 1 <= self.max_aspect < math.inf):
            given = f"min_area is {self.min_area} and max_aspect {self.max_aspect}"
            raise InputError(f"{given}; give a min_area above 0 and at most 1, a max_aspect of 1 or more")
        if not (0 <= self.flip <= 1 and 0 <= self.jitter <= 1):
            raise InputError(f"flip is {self.flip} and jitter {self.jitter}; expected values between 0 and 1")

    def apply(
        self, pixels: UInt8[np.ndarray, "n h w 3"], rng: np.random.Generator
    ) -> UInt8[np.ndarray, "n h w 3"]:
        """The images, each with draws of its own; the arguments stay as they are.

        Args:
            pixels: 8-bit RGB images.
            rng: Source of the draws: the same state and images give the same result.
        """
        if self.min_area == self.max_aspect == 1 and self.flip == self.jitter == 0:
            return pixels
        n = len(pixels)
        area = rng.uniform(self.min_area, 1, n)
        aspect = np.exp(rng.uniform(-1, 1, n) * np.log(self.max_aspect))
        across, down = rng.uniform(-1, 1, n), rng.uniform(-1, 1, n)
        mirrored = np.where(rng.random(n) < self.flip, -1.0, 1.0)
        factors = rng.uniform(1 - self.jitter, 1 + self.jitter, (3, n, 1, 1, 1)).astype(np.float32)
        width, height = np.minimum(np.sqrt(area * aspect), 1), np.minimum(np.sqrt(area / aspect), 1)
        boxes = np.zeros((n, 2, 3), dtype=np.float32)
        boxes[:, 0, 0], boxes[:, 0, 2] = mirrored * width, across * (1 - width)
        boxes[:, 1, 1], boxes[:, 1, 2] = height, down * (1 - height)
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float()
        grid = affine_grid(torch.from_numpy(boxes), list(images.shape), align_corners=False)
        cropped = grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
        values = cropped.permute(0, 2, 3, 1).numpy()
        if self.jitter:
            values = values * factors[0]
            level = (values @ _GREY)[..., None].mean(axis=(1, 2), keepdims=True)
            values = level + factors[1] * (values - level)
            grey = (values @ _GREY)[..., None]
            values = grey + factors[2] * (values - grey)
        return np.asarray(np.rint(np.clip(values, 0, 255)).astype(np.uint8))


@final
@dataclass(frozen=True, kw_only=True)
class Recipe(Record):
    """One training run; the defaults are those of the published code (Peng et al. 2026).

    Args:
        init: What the weights start from; see `assay.zoo.initial_module`. In a record only: `train` is handed
            the module.
        mode: `full` trains every parameter, `linear` only the head.
        lr: Largest learning rate, above 0.
        batch_size: Images per step, at least 1; a smaller training set is one batch.
        weight_decay: 0 or more; applies to every parameter that trains.
        warmup: Steps of linear warm-up, 0 or more; the cosine decay to 0 follows.
        steps: Training steps, more than `warmup`.
        optimiser: `sgd` or `adamw` (betas 0.9 and 0.999, eps 1e-8).
        momentum: Of `sgd`, 0 .. 1.
        clip: Largest norm of the gradient, above 0; None does not clip.
        head_dropout: Share of the head's inputs that is dropped, 0 .. 1.
        augmentation: What is done to training images.
        seed: Seed of the order of images, the augmentation, dropout and new weights.
        validate_every: Steps between validations; the last step is always validated.
        score: What the best step is chosen by: `accuracy`, or `macro-f1` over the classes that occur.

    Raises:
        InputError: If a value is out of range.
        UnknownNameError: If a mode, optimiser or score does not exist.

    Example:
        >>> recipe = Recipe(lr=0.01, steps=200, warmup=20, batch_size=64)
        >>> recipe.learning_rate(0), recipe.learning_rate(19), recipe.learning_rate(110)
        (0.0005, 0.01, 0.005)
    """

    init: str = "scratch"
    mode: str = "full"
    lr: float | int = 0.01
    batch_size: int = 256
    weight_decay: float | int = 0.0
    warmup: int = 16
    steps: int = 1000
    optimiser: str = "sgd"
    momentum: float | int = 0.9
    clip: float | int | None = 1.0
    head_dropout: float | int = 0.1
    augmentation: Augmentation = field(default_factory=Augmentation)
    seed: int = 0
    validate_every: int = 100
    score: str = "accuracy"

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            check_name(name, getattr(self, name), known)
        for wanted, names, holds in RANGES:
            for name in names:
                if (value := getattr(self, name)) is not None and not holds(value):
                    raise InputError(f"{name} is {value}; give a number {wanted}")
        if not 0 <= self.warmup < self.steps:
            raise InputError(f"warmup is {self.warmup} of {self.steps} steps; give 0 to {self.steps - 1}")

    @property
    def key(self) -> str:
        """A readable name, unique by the hash of all fields at its end."""
        # 1 and 1.0 are one setting.
        settings = {k: float(v) if isinstance(v, int) else v for k, v in self.to_dict().items()}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:6]
        init = re.sub(r"[^A-Za-z0-9]+", "-", self.init.rstrip("/").rpartition("/")[2]).strip("-").lower()
        numbers = f"lr{self.lr:g}-b{self.batch_size}-wd{self.weight_decay:g}-s{self.seed}"
        return f"{init}-{self.mode}-{numbers}-{digest}"

    def learning_rate(self, step: int) -> float:
        """Learning rate of a step, 0 .. steps - 1: linear warm-up to `lr`, then half a cosine to 0."""
        if step < self.warmup:
            return float(self.lr * (step + 1) / self.warmup)
        share = (step - self.warmup) / (self.steps - self.warmup)
        return float(self.lr * 0.5 * (1 + np.cos(np.pi * share)))


# ---------------------------------------------------------------------------------------------------- grids


@final
@dataclass(frozen=True, kw_only=True)
class Initialisation(Record):
    """A named starting point.

    Attributes:
        source: `scratch`, a directory, a hub id or `timm:NAME`, as `initial_module` takes it.
        architecture: For `scratch`: `timm:NAME` or settings of `transformers.ViTConfig`.
    """

    source: str
    architecture: str | Mapping[str, Any] | None = None


@final
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
        InputError: If the grid is empty, a field is set in two places, or a recipe occurs twice.
        FileFormatError: If a recipe has an unknown field or a value out of range.
        UnknownNameError: If `skip` names a field that does not exist.

    Example:
        >>> len(Grid.read("inside-out").recipes())
        132
    """

    name: str = "zoo"
    initialisations: Mapping[str, Initialisation] = field(metadata={"key": "inits"})
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    configurations: Sequence[Mapping[str, Any]] = ({},)
    skip: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        for name in itertools.chain(*self.skip):
            check_name("field of a recipe", name, [each.name for each in fields(Recipe)])
        names = [*self.axes, *self.fixed, *{name for each in self.configurations for name in each}]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(f"{twice[0]} is set in two of axes, fixed and configurations; keep one of them")
        keys = [recipe.key for recipe in self.recipes()]
        if not keys or len({*keys}) < len(keys):
            what = f"the grid {self.name!r} has {len(keys)} recipes, {len({*keys})} of them different"
            raise InputError(f"{what}; give an init, and different values of each axis")

    @classmethod
    def from_dict(cls, document: Any) -> "Grid":
        """The grid of a table as in a TOML file.

        Args:
            document: `name`; `inits`, a table of tables with `source` and `architecture`;
                `axes`, `fixed`, `configurations`, `skip` as the arguments of `Grid`. With `preset`, that grid
                is the start, and what the table says replaces its parts: whole `inits`, single axes and fixed
                fields.

        Raises:
            InputError: As for `Grid`.
            FileFormatError: If a part is unknown or of another type.
            UnknownNameError: If there is no such preset.
        """
        with malformed("the grid", "a table of inits, axes and fixed fields"):
            whole: dict[str, Any] = {"axes": {}, "fixed": {}, **document}
            if (preset := whole.pop("preset", None)) is not None:
                check_name("preset of a grid", preset, PRESETS)
                start = cls.from_dict({"name": preset, **PRESETS[preset]}).to_dict()
                kept = {name: each for name, each in start["axes"].items() if name not in whole["fixed"]}
                axes = kept | whole["axes"]
                kept = {name: each for name, each in start["fixed"].items() if name not in axes}
                whole = start | whole | {"axes": axes, "fixed": kept | whole["fixed"]}
        return super().from_dict(whole)

    @classmethod
    def read(cls, source: str | Path) -> "Grid":
        """The grid of a TOML or JSON file, or of the name of a preset: a key of `PRESETS`.

        Raises:
            FileFormatError: If the file cannot be read.
            UnknownNameError: If there is neither such a file nor such a preset.
        """
        path = Path(source)
        if str(source) in PRESETS:
            return cls.from_dict({"preset": str(source)})
        if not path.exists():
            check_name("grid file or preset", str(source), PRESETS)
        return cls.from_dict(read_object(path, "a TOML or JSON file of a grid"))

    def recipes(self) -> tuple[Recipe, ...]:
        """One recipe per model: initialisation by initialisation, the last axis fastest."""
        recipes = []
        for init, configuration in itertools.product(self.initialisations, self.configurations):
            for values in itertools.product(*self.axes.values()):
                chosen = dict(zip(self.axes, values, strict=True))
                settings = {**self.fixed, **configuration, **chosen, "init": init}
                if not any(rule and rule.items() <= settings.items() for rule in self.skip):
                    recipes.append(Recipe.from_dict(plain(settings)))
        return tuple(recipes)

    def image_size(self) -> tuple[int, int]:
        """Height and width that the starts read, by their own configurations; 32 x 32 where they take any.

        Raises:
            InputError: If two starts read different sizes.
            AssayError: Of `initial_module`, which loads what a start is made from.
        """
        sizes = set()
        for each in self.initialisations.values():
            reads: dict[str, Any] = {"architecture": each.architecture, "image_size": (32, 32)}
            start = initial_module(each.source, ("first", "second"), **reads)
            sizes.add(stated_size(start.module) or (32, 32))
        if len(sizes) > 1:
            raise InputError(f"the starts read images of sizes {sorted(sizes)}; make a grid for each size")
        return sizes.pop()

    def with_configurations(self, configurations: Sequence[Mapping[str, Any]]) -> "Grid":
        """The same initialisations with these combinations of fields instead of the product of the axes."""
        return replace(self, axes={}, fixed={}, configurations=tuple(configurations))


# ------------------------------------------------------------------------------------------ the second stage


@final
@dataclass(frozen=True, kw_only=True)
class Selection(Record):
    """Configurations kept from a sweep.

    Attributes:
        configurations: Fields of a recipe without its `init`; what `Grid.with_configurations` takes.
        shortfall: Per initialisation, how far its best kept configuration lies below its best of all, in
            accuracy, 0 .. 1.
    """

    configurations: tuple[Mapping[str, Any], ...]
    shortfall: Mapping[str, float]


def select_configurations(sweep: Zoo, *, tolerance: float | int = 0.02, size: int | None = None) -> Selection:
    """Few configurations such that each initialisation has at least one near-optimal one among them.

    A configuration is near-optimal for an initialisation if its validation accuracy lies at most `tolerance`
    below the best of that initialisation. Configurations are taken one by one: the one that serves most
    initialisations without one, then the one with the smaller mean shortfall, then the earlier one.

    Args:
        sweep: A zoo trained on one domain; models that failed are left out.
        tolerance: In accuracy, 0 or more.
        size: Number of configurations to keep; if the initialisations need fewer, those with the smallest
            mean shortfall are added. Default: as few as they need.

    Raises:
        InputError: If no model is done, a number is out of range, or `size` is too small to serve every
            initialisation.

    References:
        Peng et al. (CVPR 2026), appendix: a wide sweep on one domain, then configurations such that every
        initialisation has a near-optimal one. The order in which they are taken is not printed; it is ours.
    """
    import pandas as pd

    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance is {tolerance}; give an accuracy of at least 0 and below 1")
    rows = []
    for each in sweep.entries:
        if each.status == "done" and each.id_accuracy is not None and each.recipe:
            settings = {name: each.recipe[name] for name in each.recipe if name not in ("init", "start")}
            rows.append((str(each.recipe["init"]), json.dumps(settings, sort_keys=True), each.id_accuracy))
    if not rows:
        raise InputError(f"the zoo {sweep.name!r} has no trained model with a recipe; train the sweep first")
    frame = pd.DataFrame(rows, columns=["init", "configuration", "accuracy"])
    table = frame.pivot_table("accuracy", "init", "configuration", sort=False)
    short = table.rsub(table.max(axis=1), axis=0)
    near, mean = short <= tolerance, short.mean()
    kept: list[Any] = []
    while not (served := near[kept].any(axis=1)).all():
        kept.append(min(near.columns.tolist(), key=lambda each: (-near[~served][each].sum(), mean[each])))
    size = len(kept) if size is None else size
    if not len(kept) <= size <= len(mean):
        needed = f"each of {len(short)} starts needs a configuration within {tolerance:g}"
        raise InputError(f"size is {size}; {needed}: at least {len(kept)} of {len(mean)}")
    kept += mean.drop(kept).sort_values(kind="stable").index[: size - len(kept)].tolist()
    shortfall = {str(init): float(gap) for init, gap in short[kept].min(axis=1).items()}
    return Selection(configurations=tuple(json.loads(each) for each in kept), shortfall=shortfall)


# --------------------------------------------------------------------------------------------- the presets

# The printed values of the published grids (Peng et al., CVPR 2026, section "model zoo" of the appendix) are
# lost. `inside-out` is our default of 144 combinations, 132 without training only the head of a random model;
# `inside-out-reduced` has one batch size, 72 combinations (66); `inside-out-code` holds the values that the
# authors' code still names, with two lengths of the warm-up instead of two batch sizes. `tiny` trains small
# ViTs on a CPU, for `shapes`. What they do not state is the default of a recipe.
_TINY = {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "patch_size": 8}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "inside-out": {
        "inits": {
            "scratch": {"source": "scratch", "architecture": "timm:vit_base_patch16_224"},
            "mae": {"source": "timm:vit_base_patch16_224.mae"},
            "clip-openai": {"source": "timm:vit_base_patch16_clip_224.openai"},
            "clip-laion2b": {"source": "timm:vit_base_patch16_clip_224.laion2b"},
            "in21k": {"source": "timm:vit_base_patch16_224.augreg_in21k"},
            "in1k": {"source": "timm:vit_base_patch16_224.orig_in21k_ft_in1k"},
        },
        "axes": {
            "mode": ["full", "linear"],
            "lr": [0.003, 0.01, 0.03],
            "batch_size": [128, 256],
            "weight_decay": [0.0, 0.01],
        },
        "fixed": {"augmentation": {"min_area": 0.08, "max_aspect": 4 / 3, "flip": 0.5, "jitter": 0.4}},
        "skip": [{"init": "scratch", "mode": "linear"}],
    },
    "inside-out-reduced": {"preset": "inside-out", "axes": {"batch_size": [256]}},
    "inside-out-code": {"preset": "inside-out", "axes": {"warmup": [16, 20]}, "fixed": {"batch_size": 256}},
    "tiny": {
        "inits": {"scratch": {"source": "scratch", "architecture": {**_TINY, "intermediate_size": 96}}},
        "axes": {"lr": [0.001, 0.003], "weight_decay": [0.0, 0.05], "seed": [0, 1]},
        "fixed": {"optimiser": "adamw", "steps": 1200, "warmup": 50, "batch_size": 64},
    },
}
