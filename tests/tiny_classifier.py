"""Directory of a tiny untrained classifier of shapes, for commands that train one."""

from pathlib import Path

import torch
from transformers import ViTConfig, ViTForImageClassification

from assay.tasks import SHAPE_CLASSES, EvalTransform
from assay.zoo import save_model


def tiny_classifier(folder: Path, *, layers: int) -> Path:
    """Write a ViT of 32 x 32 pixels with so many blocks; returns its directory."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = ViTConfig(
            hidden_size=16,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=24,
            image_size=32,
            patch_size=16,
            num_labels=6,
            initializer_range=0.2,
        )
        module = ViTForImageClassification(config).eval()
    return save_model(module, folder, transform=EvalTransform(resize=(32, 32)), classes=SHAPE_CLASSES)
