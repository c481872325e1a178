"""What the experiments of this folder run on: a ViT of the shape of ViT-Ti, and drawn images."""

import torch
from transformers import ViTConfig, ViTForImageClassification

import assay
from assay.tasks import EvalTransform, ImageTask, draw_shapes


SIDE = 96


def classifier() -> assay.Model:
    """12 blocks of 3 heads, width 192, random weights; images of 96 x 96 pixels are 37 tokens. One thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=SIDE,
        patch_size=16,
        num_labels=6,
    )
    return assay.load_model(ViTForImageClassification(config).eval())


def images(n: int) -> ImageTask:
    """Drawn images as it reads them."""
    return draw_shapes("flat", n, size=SIDE).with_transform(EvalTransform(resize=(SIDE, SIDE)))
