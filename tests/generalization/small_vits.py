"""A small vision transformer with untrained weights large enough that its circuits differ between styles."""

import functools

import torch
from torch import nn


@functools.cache
def untrained_vit(seed: int = 0, layers: int = 3, classes: int = 6) -> nn.Module:
    """HF ViT for 32-pixel images, in evaluation mode; shared, do not change it."""
    from transformers import ViTConfig, ViTForImageClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = ViTConfig(
            hidden_size=24,
            num_hidden_layers=layers,
            num_attention_heads=3,
            intermediate_size=48,
            image_size=32,
            patch_size=8,
            num_labels=classes,
            initializer_range=0.2,
        )
        return ViTForImageClassification(config).eval()
