"""A tiny untrained classifier of shapes, and drawn images as files, for commands that take directories."""

import os
import time
from pathlib import Path

import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

from assay.tasks import SHAPE_CLASSES, EvalTransform, draw_shapes
from assay.zoo import save_model


def tiny_classifier(folder: Path, *, layers: int = 3, seed: int = 1, patch: int = 8) -> Path:
    """Write a ViT of 32 x 32 pixels with so many blocks; returns its directory."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = ViTConfig(
            hidden_size=24,
            num_hidden_layers=layers,
            num_attention_heads=3,
            intermediate_size=48,
            image_size=32,
            patch_size=patch,
            num_labels=len(SHAPE_CLASSES),
            initializer_range=0.3,
        )
        module = ViTForImageClassification(config).eval()
    return save_model(module, folder, transform=EvalTransform(resize=(32, 32)), classes=SHAPE_CLASSES)


def draw_files(folder: Path, domain: str, n: int, *, start: int = 0, by_class: bool = False) -> list[Path]:
    """Drawn images as files, older with each, so that they arrive in order."""
    paths = []
    drawn = draw_shapes(domain, n, start=start)
    assert drawn.labels is not None
    for place, pixels in enumerate(drawn.pixels):
        parent = folder / SHAPE_CLASSES[drawn.labels[place]] if by_class else folder
        parent.mkdir(parents=True, exist_ok=True)
        path = parent / f"{start + place:05}.png"
        Image.fromarray(pixels).save(path)
        changed = time.time() - 1000 + place
        os.utime(path, (changed, changed))
        paths.append(path)
    return paths
