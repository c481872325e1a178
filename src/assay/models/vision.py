"""Descriptions of the image classifiers served, and how timm's are run and read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import UnsupportedModelError
from assay.models.decoders import GPT2
from assay.models.family import (
    Config,
    Sizes,
    Vision,
    config_facts,
    config_sizes,
    height_and_width,
    like,
    tower_config,
)


def _facts(module: nn.Module) -> dict[str, Any]:
    """The configuration without class names, which change no number."""
    return {key: v for key, v in config_facts(module).items() if key not in ("id2label", "label2id")}


# ---- transformers


VIT = like(
    GPT2,
    "vit",
    "ViT",
    backbone="vit",
    blocks="vit.layers",
    attention_norm="layernorm_before",
    mlp_norm="layernorm_after",
    final_norm="vit.layernorm",
    unembed="classifier",
    learned_positions=False,
    attention="attention",
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    out="attention.o_proj",
    activation="mlp.activation_fn",
    sizes=lambda module: config_sizes(tower_config(module)),
    facts=_facts,
    vision=Vision(backbone="vit"),
)

_DEIT = Vision(backbone="deit", n_prefix=lambda config: 2)
_TAUGHT = replace(
    _DEIT,
    heads=("cls_classifier", "distillation_classifier"),
    parts=lambda module, hidden: (hidden[:, 0], hidden[:, 1]),
    pooled=True,
)
like(
    VIT,
    "deit",
    "DeiT",
    backbone="deit",
    blocks="deit.layers",
    final_norm="deit.layernorm",
    vision=_DEIT,
    variant=lambda module: {"vision": _TAUGHT} if hasattr(module, "cls_classifier") else {},
)


def _dinov2_prefix(config: Config) -> int:
    return 1 + int(getattr(config, "num_register_tokens", 0))


def _dinov2_parts(module: Any, hidden: Tensor) -> tuple[Tensor, ...]:
    """CLS beside the mean of the patches; registers are not read."""
    return (torch.cat([hidden[:, 0], hidden[:, _dinov2_prefix(module.config) :].mean(1)], 1),)


_SWIGLU: Mapping[str, Any] = {"activation": "mlp.act_fn", "gated": lambda block: "mlp.down_proj"}
for _backbone in ("dinov2", "dinov2_with_registers"):
    like(
        VIT,
        _backbone,
        "DINOv2" + " with registers" * _backbone.endswith("registers"),
        backbone=_backbone,
        blocks=f"{_backbone}.encoder.layer",
        attention_norm="norm1",
        mlp_norm="norm2",
        final_norm=f"{_backbone}.layernorm",
        attention_scale="layer_scale1",
        mlp_scale="layer_scale2",
        variant=lambda module: _SWIGLU if module.config.use_swiglu_ffn else {},
        vision=Vision(backbone=_backbone, parts=_dinov2_parts, pooled=True, n_prefix=_dinov2_prefix),
    )

_CLIP = Vision(backbone="vision_model", parts=lambda module, hidden: (hidden[:, 1:].mean(1),), pooled=True)
CLIP = like(
    VIT,
    "clip",
    "CLIP, vision tower",
    backbone="vision_model",
    blocks="vision_model.encoder.layers",
    attention_norm="layer_norm1",
    mlp_norm="layer_norm2",
    final_norm=None,
    attention="self_attn",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    out="self_attn.out_proj",
    scaling=lambda attention: attention.scale,
    vision=_CLIP,
)
like(
    CLIP,
    "siglip",
    "SigLIP, vision tower",
    final_norm="vision_model.post_layernorm",
    vision=replace(_CLIP, parts=lambda module, hidden: (hidden.mean(1),), n_prefix=lambda config: 0),
)


# ---- timm


class TimmVision(Vision):
    """A `VisionTransformer` of timm, which has methods of its own for its parts."""

    def refuse(self, module: Any) -> str | None:
        """The first thing that makes the stream something else than a sum of node outputs, or unreadable."""
        pooling, size = module.global_pool, module.patch_embed.img_size
        if getattr(module, "attn_pool", None) is not None:
            return "it pools with attention (attn_pool), a reader that the graph does not have"
        if pooling not in ("token", "avg", "max", "avgmax"):
            return f"global_pool is {pooling!r}; served are 'token', 'avg', 'max' and 'avgmax'"
        if isinstance(module.head, nn.Identity):
            return "it has no classification head (num_classes is 0); create it with one"
        if size is None or getattr(module, "dynamic_img_size", False):
            return "it takes images of any size; create it with a fixed img_size"
        if not isinstance(getattr(module, "patch_drop", None), nn.Identity | None):
            return "it drops patches (patch_drop); create it with patch_drop_rate=0"
        if module.grad_checkpointing:
            return "it runs its blocks twice (grad_checkpointing); call module.set_grad_checkpointing(False)"
        others = sorted({type(block).__name__ for block in module.blocks} - {"Block"})
        return f"it has blocks of type {', '.join(others)}; supported is timm's Block" if others else None

    def hidden(self, module: Any, images: Tensor) -> Tensor:
        return module.forward_features(images)  # type: ignore[no-any-return]  # a tensor

    def features(self, module: Any, hidden: Tensor) -> Tensor:
        return module.forward_head(hidden, pre_logits=True)  # type: ignore[no-any-return]  # a tensor

    def logits(self, module: Any, hidden: Tensor) -> Tensor:
        return module.forward_head(hidden)  # type: ignore[no-any-return]  # a tensor

    def pools(self, module: Any) -> bool:
        return module.global_pool != "token" or hasattr(module, "head_dist")

    def image_size(self, module: Any) -> tuple[int, int]:
        return height_and_width(module.patch_embed.img_size)

    def n_tokens(self, module: Any) -> int:
        return int(module.patch_embed.num_patches) + int(module.num_prefix_tokens)

    def n_classes(self, module: Any) -> int:
        return int(module.num_classes)

    def classes(self, module: Any) -> tuple[str, ...] | None:
        stored, n_classes = getattr(module, "pretrained_cfg", None), int(module.num_classes)
        names = stored.get("label_names") if isinstance(stored, Mapping) else None
        if isinstance(names, Mapping):  # class number, a string once it has been through JSON, to name
            numbered = {int(number): name for number, name in names.items()}
            names = [numbered[number] for number in range(n_classes) if number in numbered]
        return tuple(str(name) for name in names) if names and len(names) == n_classes else None


def _timm_gated(block: nn.Module) -> str | None:
    """Where a gated MLP's product is read: its norm, which is a placeholder where it has none."""
    kind = type(block.get_submodule("mlp")).__name__
    if kind not in ("Mlp", "GluMlp", "SwiGLU"):
        raise UnsupportedModelError(
            f"the MLP is a {kind}, which is not supported, because the place of its gate is unknown; "
            "supported are Mlp, GluMlp and SwiGLU"
        )
    return None if kind == "Mlp" else "mlp.norm"


def _timm_sizes(module: Any) -> Sizes:
    attention = module.blocks[0].attn
    out, n_heads = attention.proj, int(attention.num_heads)
    return Sizes(
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_model=int(out.out_features),
        d_head=int(out.in_features) // n_heads,
    )


def _timm_facts(module: Any) -> dict[str, Any]:
    """What, besides names, shapes and numbers of the weights, decides what a module computes."""
    first = module.blocks[0]
    names = ("global_pool", "num_prefix_tokens", "no_embed_class", "pool_include_prefix")
    return {
        **{name: getattr(module, name, None) for name in names},
        "image_size": height_and_width(module.patch_embed.img_size),
        "heads": first.attn.num_heads,
        "mlp": [type(first.mlp).__name__, str(first.mlp.act), getattr(first.mlp, "gate_last", None)],
        "eps": first.norm1.eps,
    }


like(
    VIT,
    "timm-vit",
    "timm's VisionTransformer, any pooling but attention",
    model_types=(),
    classes=("VisionTransformer",),
    backbone="",
    blocks="blocks",
    attention_norm="norm1",
    mlp_norm="norm2",
    final_norm="norm",
    unembed="head",
    attention="attn",
    qkv=("attn.qkv",),
    out="attn.proj",
    activation="mlp.act",
    gated=_timm_gated,
    q_norm="attn.q_norm",
    k_norm="attn.k_norm",
    attention_scale="ls1",
    mlp_scale="ls2",
    scaling=lambda attention: attention.scale,
    sizes=_timm_sizes,
    facts=_timm_facts,
    vision=TimmVision(backbone=""),
)
