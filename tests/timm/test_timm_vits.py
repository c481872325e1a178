"""Conformance of timm's vision transformers, on random small configurations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.layers import SwiGLU
from timm.models.beit import Beit
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from timm.models.vision_transformer_relpos import ResPostRelPosBlock, VisionTransformerRelPos
from torch import nn
from vit_conformance import Conformance, randomise


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
    "norm of all heads": {"scale_attn_norm": True},
    "norms of the branches": {"block_fn": ResPostBlock, "proj_bias": False},
}

EVA: dict[str, dict[str, Any]] = {
    "EVA": {"init_values": 0.1},
    "EVA02, tiny and small": {"use_rot_pos_emb": True, "swiglu_mlp": True, "ref_feat_shape": 3},
    "EVA02, base and large": {
        "use_rot_pos_emb": True,
        "swiglu_mlp": True,
        "scale_mlp": True,
        "qkv_fused": False,
        "global_pool": "token",
    },
    "EVA02 of CLIP": {
        "use_rot_pos_emb": True,
        "scale_attn_inner": True,
        "scale_mlp": True,
        "global_pool": "token",
    },
    "EVA with norms of the branches": {"use_post_norm": True, "global_pool": "token"},
    "DINOv3": {
        "attn_type": "rope",
        "rope_type": "dinov3",
        "use_rot_pos_emb": True,
        "use_abs_pos_emb": False,
        "rope_rotate_half": True,
        "num_reg_tokens": 2,
        "init_values": 0.1,
        "use_fc_norm": False,
    },
    "keys and values shared": {
        "attn_type": "rope",
        "use_rot_pos_emb": True,
        "qkv_fused": False,
        "num_heads": 4,
        "embed_dim": 32,
        "num_kv_heads": 2,
        "qk_norm": True,
        "init_values": 0.1,
        "attn_only_layer_scale": True,
        "use_pre_transformer_norm": True,
    },
}

BEIT: dict[str, dict[str, Any]] = {
    "BEiT": {"use_rel_pos_bias": True, "use_abs_pos_emb": False, "init_values": 0.1},
    "BEiT with one table": {"use_shared_rel_pos_bias": True, "global_pool": "token", "swiglu_mlp": True},
    "BEiT with both tables": {"use_rel_pos_bias": True, "use_shared_rel_pos_bias": True, "qkv_bias": False},
    "BEiT read at its class token": {"use_rel_pos_bias": True, "init_values": 0.1, "global_pool": "token"},
}

RELATIVE: dict[str, dict[str, Any]] = {
    "positions by an MLP": {"qk_norm": True, "init_values": 0.1},
    "positions by an MLP as in Swin": {"rel_pos_type": "mlp-swin", "class_token": True, "fc_norm": True},
    "positions by a table": {"rel_pos_type": "bias", "class_token": True, "global_pool": "token"},
    "one table for all blocks": {"rel_pos_type": "bias", "shared_rel_pos": True, "init_values": None},
    "norms of the branches, relative": {"block_fn": ResPostRelPosBlock, "init_values": None},
}

BUILDERS: dict[str, Callable[[], nn.Module]] = {
    **{
        name: lambda options=options: VisionTransformer(**{**SMALL, **options})
        for name, options in VARIANTS.items()
    },
    **{
        name: lambda options=options, cls=cls: cls(**{**SMALL, "embed_dim": 24, **options})
        for cls, variants in ((Eva, EVA), (Beit, BEIT), (VisionTransformerRelPos, RELATIVE))
        for name, options in variants.items()
    },
    "distilled": lambda: VisionTransformerDistilled(**SMALL),
    "distilled with dropout and LayerScale": lambda: VisionTransformerDistilled(
        **SMALL, drop_rate=0.3, init_values=0.1
    ),
}


def build(name: str) -> nn.Module:
    """A random module in float64."""
    with torch.random.fork_rng(devices=[]):
        built = randomise(BUILDERS[name]())
    if "norms of the branches" in name:
        for block in built.blocks:
            block.attn.qkv.weight.data *= 0.3  # attention reads the bare stream: else it is all but one-hot
            if block.attn.proj.bias is not None:  # such blocks are served where the attention writes no bias
                nn.init.zeros_(block.attn.proj.bias)
    return built


@pytest.fixture(params=BUILDERS, scope="module")
def module(request: pytest.FixtureRequest) -> nn.Module:
    return build(request.param)


class TestTimm(Conformance):
    pass
