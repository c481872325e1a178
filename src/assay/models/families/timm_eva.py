"""timm's `Eva`: EVA, EVA02 and DINOv3, whose patches (not their prefix) have rotary positions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from assay.models.adapter import FAMILIES
from assay.models.attention import Tables
from assay.models.families.timm_vit import TIMM_VIT
from assay.models.family import Separate
from assay.models.timm_reading import branch_norms, digest, facts, fold, why_refused


_POST_NORM = "EvaBlockPostNorm"


def _variant(module: Any) -> dict[str, Any]:
    attention = module.blocks[0].attn
    apart = Separate(q="attn.q_proj", k="attn.k_proj", v="attn.v_proj")
    return {
        **branch_norms(module, _POST_NORM),
        **({"qkv": apart} if attention.qkv is None else {}),
        "adjacent": not attention.rotate_half,
    }


def _refuse(module: Any) -> str | None:
    if module.rope_mixed:
        return "each head turns by a table of its own (rope_type 'mixed'); served are tables that heads share"
    blocks = ("EvaBlock", _POST_NORM)
    return why_refused(module, blocks=blocks, post_norm=_POST_NORM, attention="EvaAttention")


def _tables(block: Any, arguments: Mapping[str, Any]) -> Tables | None:
    rope: Tensor | None = arguments.get("rope")
    if rope is None:
        return None
    sin, cos = (
        nn.functional.pad(table, (0, 0, block.attn.num_prefix_tokens, 0)) for table in rope.chunk(2, -1)
    )
    cos[: block.attn.num_prefix_tokens] = 1
    return cos[None], sin[None]


def _facts(module: Any) -> dict[str, Any]:
    """The tables too, which are buffers at most."""
    rope = module.rope
    if rope is None:
        return facts(module, "Eva")
    shape = () if hasattr(rope, "feat_shape") else (module.patch_embed.grid_size,)
    with torch.no_grad():
        table = digest(rope.get_embed(*shape))
    return {**facts(module, "Eva"), "rope": table, "half": bool(module.blocks[0].attn.rotate_half)}


FAMILIES.add(
    "timm-eva",
    replace(
        TIMM_VIT,
        key="timm-eva",
        serves="EVA, EVA02 and DINOv3 of timm",
        classes=("Eva",),
        attention_scale=None,
        mlp_scale=None,
        table=lambda module, layer: None if module.rope is None else "rope",
        tables=_tables,
        variant=_variant,
        refuse=_refuse,
        facts=_facts,
        fold=fold,
    ),
)
