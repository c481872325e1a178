"""GPT-J: attention and MLP side by side behind one norm, adjacent entries rotated."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from assay.models.adapter import FAMILIES
from assay.models.attention import Tables
from assay.models.family import Family, Separate


def _tables(block: nn.Module, arguments: Mapping[str, Any]) -> Tables:
    """The block's own table at the positions of its call, each entry for the two that turn together."""
    positions: Tensor = arguments["position_ids"]
    table: Any = block.get_submodule("attn").embed_positions
    sin, cos = table.to(positions.device)[positions].chunk(2, -1)
    return cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)


FAMILIES.add(
    "gptj",
    Family(
        key="gptj",
        serves="GPT-J",
        model_types=("gptj",),
        backbone="transformer",
        blocks="transformer.h",
        attention_norm="ln_1",
        mlp_norm="ln_1",
        final_norm="transformer.ln_f",
        unembed="lm_head",
        learned_positions=True,
        attention="attn",
        qkv=Separate(q="attn.q_proj", k="attn.k_proj", v="attn.v_proj"),
        out="attn.out_proj",
        mlp="mlp",
        activation="mlp.act",
        norm="layer",
        scaling=lambda attention: 1 / attention.scale_attn,
        table=lambda module, layer: "rotary",
        tables=_tables,
        adjacent=True,
        parallel=lambda module: True,
    ),
)
