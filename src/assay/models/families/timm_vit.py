"""timm's `VisionTransformer`."""

from typing import Any

from torch import nn

from assay.models.adapter import FAMILIES
from assay.models.family import Family, Fused
from assay.models.timm_reading import TIMM_VISION, facts, gated, sizes, why_refused


def _facts(module: nn.Module) -> dict[str, Any]:
    distilled = hasattr(module, "head_dist")
    return facts(module, "VisionTransformerDistilled" if distilled else "VisionTransformer")


FAMILIES.add(
    "timm-vit",
    Family(
        key="timm-vit",
        serves="timm's VisionTransformer, any pooling but attention",
        model_types=(),
        classes=("VisionTransformer",),
        backbone="",
        blocks="blocks",
        attention_norm="norm1",
        mlp_norm="norm2",
        final_norm="norm",
        unembed="head",
        attention="attn",
        qkv=Fused(path="attn.qkv"),
        out="attn.proj",
        mlp="mlp",
        activation="mlp.act",
        gated=gated,
        norm="layer",
        q_norm="attn.q_norm",
        k_norm="attn.k_norm",
        attention_scale="ls1",
        mlp_scale="ls2",
        scaling=lambda attention: attention.scale,
        refuse=why_refused,
        sizes=sizes,
        facts=_facts,
        vision=TIMM_VISION,
    ),
)
