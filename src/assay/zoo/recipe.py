"""How one model of a zoo is trained: a frozen recipe, and the values it may hold."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from assay.core.errors import InputError, unknown_name
from assay.core.record import Record
from assay.zoo.augmentation import Augmentation


MODES = ("full", "linear")
OPTIMISERS = ("sgd", "adamw")
SCORES = ("accuracy", "macro-f1")


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
        for kind, value, known in (
            ("fine-tune mode", self.mode, MODES),
            ("optimiser", self.optimiser, OPTIMISERS),
            ("score", self.score, SCORES),
        ):
            if value not in known:
                raise unknown_name(kind, value, known)
        positive = {"lr": self.lr, "batch_size": self.batch_size, "validate_every": self.validate_every}
        if self.clip is not None:
            positive["clip"] = self.clip
        for name, number in positive.items():
            if not (np.isfinite(number) and number > 0):
                raise InputError(f"{name} is {number}; give a number above 0")
        for name, number in {"weight_decay": self.weight_decay, "seed": self.seed}.items():
            if not (np.isfinite(number) and number >= 0):
                raise InputError(f"{name} is {number}; give 0 or more")
        if not 0 <= self.warmup < self.steps:
            raise InputError(f"warmup is {self.warmup} of {self.steps} steps; give 0 to {self.steps - 1}")
        for name, number in {"momentum": self.momentum, "head_dropout": self.head_dropout}.items():
            if not 0 <= number < 1:
                raise InputError(f"{name} is {number}; expected at least 0 and below 1")

    @property
    def key(self) -> str:
        """A readable name, unique by the hash of all fields at its end."""
        content = json.dumps({k: _number(v) for k, v in self.to_dict().items()}, sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:6]
        init = re.sub(r"[^A-Za-z0-9]+", "-", self.init.rstrip("/").rpartition("/")[2]).strip("-").lower()
        numbers = f"lr{self.lr:g}-b{self.batch_size}-wd{self.weight_decay:g}-s{self.seed}"
        return f"{init}-{self.mode}-{numbers}-{digest}"

    def learning_rate(self, step: int) -> float:
        """Learning rate of a step, 0 .. steps - 1: linear warm-up to `lr`, then half a cosine to 0."""
        if step < self.warmup:
            return float(self.lr * (step + 1) / self.warmup)
        share = (step - self.warmup) / (self.steps - self.warmup)
        return float(self.lr * 0.5 * (1 + np.cos(np.pi * share)))

    @classmethod
    def from_dict(cls, document: object) -> "Recipe":
        """The recipe of a record or a table of a TOML file; fields left out have their defaults.

        Raises:
            InputError: If a value is out of range or of the wrong type.
            UnknownNameError: If there is no such field.
        """
        if not isinstance(document, Mapping):
            raise InputError(f"a recipe is a table of fields; got {type(document).__name__}")
        known = {each.name for each in fields(cls)}
        for name in document:
            if name not in known:
                raise unknown_name("field of a recipe", name, known)
        return cls(**{name: _checked(name, value) for name, value in document.items()})


def _number(value: Any) -> Any:
    """1 and 1.0 are one setting."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("init", "mode", "optimiser", "score"), (str,)),
    **dict.fromkeys(("batch_size", "warmup", "steps", "seed", "validate_every"), (int,)),
    **dict.fromkeys(("lr", "weight_decay", "momentum", "head_dropout"), (int, float)),
    "clip": (int, float, type(None)),
    "augmentation": (Mapping, Augmentation),
}


def _checked(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, _TYPES[name]):
        wanted = " or ".join("nothing" if t is type(None) else t.__name__ for t in _TYPES[name])
        raise InputError(f"{name} is {value!r}; a recipe needs {wanted}")
    return _augmentation(value) if name == "augmentation" and isinstance(value, Mapping) else value


def _augmentation(settings: Mapping[str, Any]) -> Augmentation:
    known = {each.name for each in fields(Augmentation)}
    for setting, number in settings.items():
        if setting not in known:
            raise unknown_name("setting of the augmentation", setting, known)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise InputError(f"augmentation.{setting} is {number!r}; give a number")
    return Augmentation(**settings)
