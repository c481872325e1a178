"""The grid of models: which features, estimator, settings and training images each of them gets."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from images import FEATURES, ID_DOMAINS, SEED

from assay.core.random import stream


DRAWS = 6
# Estimator -> settings to draw from.
ESTIMATORS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "logistic": {"C": (1e-4, 1e-3, 1e-2, 1e-1, 1.0)},
    "ridge": {"alpha": (1.0, 10.0, 100.0, 1e3, 1e4)},
    "discriminant": {"shrinkage": ("auto", 0.03, 0.1, 0.3, 0.7)},
    "linear-svm": {"alpha": (1e-4, 1e-3, 1e-2, 1e-1), "epochs": (5, 20)},
    "neighbours": {"k": (1, 3, 5, 10, 25, 60), "metric": ("euclidean", "cosine")},
    "naive-bayes": {"smoothing": (1e-9, 1e-3, 1e-1)},
    "tree": {"depth": (4, 6, 8, 12, 20), "leaf": (1, 5, 20)},
    "forest": {"trees": (10, 30, 60), "depth": (6, 10, 20)},
    "extra-trees": {"trees": (10, 30, 100), "depth": (6, 10, 20)},
    "kernel": {"map": ("nystroem", "fourier"), "width": (0.1, 0.3, 1.0), "alpha": (0.1, 1.0, 10.0)},
    "perceptron": {"hidden": (16, 64, 128), "epochs": (3, 10, 25), "decay": (1e-4, 1e-2, 1.0)},
}
# Network -> kinds of 32 x 32 inputs, settings.
NETWORKS: Mapping[str, tuple[tuple[str, ...], Mapping[str, tuple[Any, ...]]]] = {
    "cnn": (
        ("rgb", "grey", "edges"),
        {"width": (8, 12, 16), "rate": (1e-3, 3e-3), "epochs": (2, 5, 10), "pool": ("mean", "flat")},
    ),
    "residual-cnn": (
        ("rgb", "grey", "edges"),
        {"width": (8, 12), "rate": (1e-3, 3e-3), "epochs": (2, 5, 9), "pool": ("mean", "flat")},
    ),
    "vit": (
        ("rgb", "grey", "edges"),
        {"width": (32, 64), "rate": (5e-4, 1e-3, 2e-3), "epochs": (4, 8, 14), "depth": (2, 4)},
    ),
    "mixer": (("rgb",), {"width": (32, 64), "rate": (1e-3, 2e-3), "epochs": (4, 8, 14), "depth": (2, 4)}),
}
NETWORK_DRAWS = 10
AUGMENTATION = ("none", "flip-shift", "flip-shift-grey")
# Training images: all of the three domains, a random share of them, or all of two domains.
SUBSETS = ("all", "half", "quarter", "eighth", "sixteenth", *(f"without-{domain}" for domain in ID_DOMAINS))
SUBSET_WEIGHTS = (0.34, 0.14, 0.14, 0.1, 0.07, 0.07, 0.07, 0.07)
SHARES = {"half": 1 / 2, "quarter": 1 / 4, "eighth": 1 / 8, "sixteenth": 1 / 16}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One model, apart from the images."""

    estimator: str
    kind: str
    features: str
    subset: str
    settings: Mapping[str, Any]
    draw: int

    @property
    def family(self) -> str:
        """Estimator and kind of feature."""
        return f"{self.estimator}/{self.kind}"

    @property
    def name(self) -> str:
        """Unique, and fit for a file."""
        return f"{self.estimator}-{self.features}-{self.draw}"

    def to_dict(self) -> dict[str, Any]:
        """For the list of models."""
        return {"name": self.name, "family": self.family, **asdict(self)}


def recipes() -> list[Recipe]:
    """All models, shuffled; the networks, which take most of the time, after the others."""
    found = []
    for estimator, settings in ESTIMATORS.items():
        for kind, variants in FEATURES.items():
            found += [_drawn(estimator, kind, variants, settings, draw) for draw in range(DRAWS)]
    for network, (inputs, settings) in NETWORKS.items():
        options = {**settings, "augmentation": AUGMENTATION}
        for each in inputs:
            variants = (f"{each}-image",)
            found += [_drawn(network, each, variants, options, draw) for draw in range(NETWORK_DRAWS)]
    order = stream(SEED, "order").permutation(len(found))
    return sorted((found[row] for row in order), key=lambda each: each.estimator in NETWORKS)


def _drawn(
    estimator: str, kind: str, variants: tuple[str, ...], settings: Mapping[str, tuple[Any, ...]], draw: int
) -> Recipe:
    rng = stream(SEED, f"recipe/{estimator}/{kind}/{draw}")
    return Recipe(
        estimator=estimator,
        kind=kind,
        # Variants take turns, everything else is drawn.
        features=variants[draw % len(variants)],
        subset=str(rng.choice(SUBSETS, p=SUBSET_WEIGHTS)),
        settings={name: values[int(rng.integers(len(values)))] for name, values in settings.items()},
        draw=draw,
    )


def rows_of(subset: str, domains: np.ndarray, train: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The training rows of a subset; a share is drawn anew for every model."""
    rows = np.flatnonzero(train)
    if subset.startswith("without-"):
        return rows[domains[rows] != subset.removeprefix("without-")]
    if subset == "all":
        return rows
    return np.sort(rng.choice(rows, round(SHARES[subset] * len(rows)), replace=False))
