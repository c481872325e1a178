"""A tiny ViT, drawn images and a grid that the tests of zoos share."""

from typing import Any

import torch
from transformers import ViTConfig, ViTForImageClassification

from assay.tasks import ImageTask, draw_shapes
from assay.zoo import Grid, Recipe


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 16}
RECIPE = Recipe(lr=0.01, steps=12, warmup=2, batch_size=16, validate_every=4, optimiser="adamw")
TRAIN, VALIDATION = draw_shapes("flat", 48), draw_shapes("flat", 24, start=48)
CONTENT: dict[str, Any] = {
    "name": "small",
    "inits": {"scratch": {"source": "scratch", "architecture": SMALL}},
    "axes": {"lr": [0.01, 0.02]},
    "fixed": {"steps": 6, "warmup": 1, "batch_size": 12, "validate_every": 3, "optimiser": "adamw"},
}
GRID = Grid.from_dict(CONTENT)
SETS: tuple[ImageTask, ImageTask] = (draw_shapes("flat", 24), draw_shapes("flat", 12, start=24))


def tiny(seed: int = 0, n_classes: int = 6, **settings: Any) -> ViTForImageClassification:
    """A random classifier of 32 x 32 images."""
    given = {**SMALL, "intermediate_size": 32, "image_size": 32, "num_labels": n_classes, **settings}
    torch.manual_seed(seed)
    return ViTForImageClassification(ViTConfig(**given)).eval()


class StoppedError(Exception):
    """Stands for a kill between two steps."""


def stop_after(calls: int) -> Any:
    """A progress that raises at the call of this number."""
    count = 0

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal count
        count += 1
        if count == calls:
            raise StoppedError

    return progress
