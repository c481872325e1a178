"""A small vision transformer with untrained weights large enough that its circuits differ between styles."""

import functools

import torch
from torch import nn
from zoo.zoo_cases import tiny


@functools.cache
def untrained_vit(seed: int = 0, layers: int = 3, classes: int = 6) -> nn.Module:
    """HF ViT for 32-pixel images, in evaluation mode; shared, do not change it."""
    size = {"hidden_size": 24, "num_hidden_layers": layers, "num_attention_heads": 3, "patch_size": 8}
    with torch.random.fork_rng(devices=[]):
        return tiny(seed, classes, **size, intermediate_size=48, initializer_range=0.2)
