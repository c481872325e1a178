"""The images that the planted ViT reads: patches with a lit quadrant and a colour."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.random import stream
from assay.models.planted.planted import PlantedExamples


PATCH, GRID = 4, 4
SIDE = PATCH * GRID


# Quadrant number to (across, down): left is +1, top is +1.
QUADRANTS = ((1.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0))


def draw_patches(n: int, seed: int = 0) -> PlantedExamples:
    """Images of `patch-marker` in [-1, 1], each with another image of the other class.

    Classes alternate. Where the marked and the fitting patch lie, what quadrant they light, and the quadrant
    and colour of all others come from the streams `planted/patch-marker/clean/ID` and `.../corrupted/ID`.

    Args:
        n: Number of pairs.
        seed: Root seed of all random draws.
    """
    labels = [number % 2 for number in range(n)]
    scenes = [
        [
            _scene(label ^ int(side == "corrupted"), stream(seed, f"planted/patch-marker/{side}/{number}"))
            for number, label in enumerate(labels)
        ]
        for side in ("clean", "corrupted")
    ]
    clean, corrupted = (torch.stack([_paint(scene) for scene in side]) for side in scenes)
    return PlantedExamples(
        clean=clean,
        corrupted=corrupted,
        labels=torch.tensor(labels),
        fields={
            "marked": [scene.marked for scene in scenes[0]],
            "fitting": [scene.fitting for scene in scenes[0]],
            "quadrant": [int(scene.quadrants[scene.marked]) for scene in scenes[0]],
        },
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _LitPatches:
    """One image: the marked and the fitting patch, and of every patch the lit quadrant and the colour."""

    marked: int
    fitting: int
    quadrants: np.ndarray
    colours: np.ndarray


def _scene(label: int, rng: np.random.Generator) -> _LitPatches:
    n = GRID * GRID
    marked, fitting = (int(place) for place in rng.choice(n, 2, replace=False))
    quadrant = int(rng.integers(4))
    quadrants = (quadrant + rng.integers(1, 4, n)) % 4  # any of the three others
    quadrants[[marked, fitting]] = quadrant
    colours = rng.integers(2, size=n)
    colours[fitting] = label
    return _LitPatches(marked=marked, fitting=fitting, quadrants=quadrants, colours=colours)


def _paint(scene: _LitPatches) -> Float[Tensor, "3 h w"]:
    image = -torch.ones(3, SIDE, SIDE)
    half = PATCH // 2
    for place in range(GRID * GRID):
        top, left = (PATCH * part for part in divmod(place, GRID))
        patch = image[:, top : top + PATCH, left : left + PATCH]
        if place == scene.marked:
            patch[1] = 1.0
        across, down = QUADRANTS[scene.quadrants[place]]
        rows = slice(0, half) if down > 0 else slice(half, PATCH)
        columns = slice(0, half) if across > 0 else slice(half, PATCH)
        patch[0 if scene.colours[place] == 0 else 2, rows, columns] = 1.0
    return image
