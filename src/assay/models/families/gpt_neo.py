"""GPT-Neo: GPT-2 with a window in every other block and products that are not scaled."""

from dataclasses import replace
from typing import Any

from assay.models.adapter import FAMILIES
from assay.models.families.gpt2 import GPT2
from assay.models.family import Separate


def _window(module: Any, layer: int) -> int | None:
    config = module.config
    return config.window_size if config.attention_layers[layer] == "local" else None


FAMILIES.add(
    "gpt-neo",
    replace(
        GPT2,
        key="gpt-neo",
        serves="GPT-Neo",
        model_types=("gpt_neo",),
        attention="attn.attention",
        qkv=Separate(q="attn.attention.q_proj", k="attn.attention.k_proj", v="attn.attention.v_proj"),
        out="attn.attention.out_proj",
        scaling=lambda attention: 1.0,
        window=_window,
        refuse=lambda module: None,
    ),
)
