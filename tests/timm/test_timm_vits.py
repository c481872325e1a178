"""Conformance of timm's vision transformers, on random small configurations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conformance import Conformance, Twin
from small_models import randomise
from timm.layers import SwiGLU
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from assay.models import load_model


SMALL: dict[str, Any] = {
    "img_size": 16,
    "patch_size": 8,
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 3,
    "mlp_ratio": 1.5,
    "num_classes": 5,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mean of patches": {"global_pool": "avg"},
    "mean of patches after the norm": {"global_pool": "avg", "fc_norm": False},
    "mean of all tokens": {"global_pool": "avg", "pool_include_prefix": True},
    "mean without class token": {"global_pool": "avg", "class_token": False},
    "max of patches": {"global_pool": "max"},
    "mean and max of patches": {"global_pool": "avgmax", "fc_norm": False},
    "norm before the blocks": {"pre_norm": True, "act_layer": "quick_gelu"},
    "LayerScale": {"init_values": 1e-1},
    "registers": {"reg_tokens": 2, "no_embed_class": True, "init_values": 1e-1},
    "registers with positions, pooled": {"reg_tokens": 3, "global_pool": "avg"},
    "norms of queries and keys": {"qk_norm": True},
    "oblong": {"img_size": (16, 24), "patch_size": (8, 6)},
    "dropout": {"drop_rate": 0.4, "proj_drop_rate": 0.3, "attn_drop_rate": 0.3, "drop_path_rate": 0.2},
    "no biases": {"qkv_bias": False, "proj_bias": False},
    "norm of the class token alone": {"fc_norm": True},
    "no final norm": {"final_norm": False},
    "no positions": {"pos_embed": "none", "reg_tokens": 1},
    "gated MLP with a norm": {"mlp_layer": SwiGLU, "scale_mlp_norm": True},
}

BUILDERS: dict[str, Callable[[], nn.Module]] = {
    **{
        name: lambda options=options: VisionTransformer(**{**SMALL, **options})
        for name, options in VARIANTS.items()
    },
    "distilled": lambda: VisionTransformerDistilled(**SMALL),
    "distilled with dropout and LayerScale": lambda: VisionTransformerDistilled(
        **SMALL, drop_rate=0.3, init_values=0.1
    ),
}


def build(name: str) -> nn.Module:
    """A random module in float64."""
    with torch.random.fork_rng(devices=[]):
        return randomise(BUILDERS[name]())


@pytest.fixture(params=BUILDERS, scope="module")
def twin(request: pytest.FixtureRequest) -> Twin:
    return Twin(load_model(build(request.param)))


class TestTimm(Conformance):
    pass
