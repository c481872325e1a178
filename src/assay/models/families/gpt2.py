"""GPT-2, and its blocks without MLPs."""

from dataclasses import replace

from assay.models.adapter import FAMILIES
from assay.models.family import Family, Fused


GPT2 = FAMILIES.add(
    "gpt2",
    Family(
        key="gpt2",
        serves="GPT-2, DistilGPT-2",
        model_types=("gpt2",),
        backbone="transformer",
        blocks="transformer.h",
        attention_norm="ln_1",
        mlp_norm="ln_2",
        final_norm="transformer.ln_f",
        unembed="lm_head",
        learned_positions=True,
        attention="attn",
        qkv=Fused(path="attn.c_attn"),
        out="attn.c_proj",
        mlp="mlp",
        activation="mlp.act",
        norm="layer",
        refuse=lambda module: (
            "cross-attention adds a second reader per block that the graph does not have"
            if getattr(module.config, "add_cross_attention", False)
            else None
        ),
    ),
)
FAMILIES.add(
    "attention-only",
    replace(
        GPT2,
        key="attention-only",
        serves="GPT-2 without MLPs",
        model_types=("attention_only",),
        mlps=False,
        activation=None,
        refuse=lambda module: None,
    ),
)
