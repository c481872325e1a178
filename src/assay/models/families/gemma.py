"""Gemma 1: Llama with gains of 1 + weight. Gemma 2 and 3 also normalise what each branch writes."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from assay.models.adapter import FAMILIES
from assay.models.families.llama import LLAMA


def _logits(module: Any, hidden: Tensor) -> Tensor:
    logits: Tensor = module.lm_head(hidden)
    cap = module.config.final_logit_softcapping
    return logits if cap is None else (logits / cap).tanh() * cap


GEMMA = FAMILIES.add(
    "gemma", replace(LLAMA, key="gemma", serves="Gemma 1", model_types=("gemma",), norm="rms1")
)
GEMMA2 = FAMILIES.add(
    "gemma2",
    replace(
        GEMMA,
        key="gemma2",
        serves="Gemma 2",
        model_types=("gemma2",),
        mlp_norm="pre_feedforward_layernorm",
        branch_norm="post_attention_layernorm",
        mlp_scale="post_feedforward_layernorm",
        softcap=lambda module: module.config.attn_logit_softcapping,
        head=_logits,
    ),
)
FAMILIES.add(
    "gemma3",
    replace(
        GEMMA2,
        key="gemma3",
        serves="Gemma 3, text",
        model_types=("gemma3_text",),
        softcap=lambda module: None,  # its configuration has the entry, its attention does not read it
        table=lambda module, layer: module.config.layer_types[layer],
    ),
)
