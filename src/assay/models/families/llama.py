"""Llama 1 to 3 and what shares its layout: Mistral, Qwen 2 and 2.5, Qwen 3, SmolLM 1 and 2."""

from typing import Any

from assay.models.adapter import FAMILIES
from assay.models.family import Family, Separate


def window(module: Any, layer: int) -> int | None:
    """The window that a configuration gives all blocks, or those of type `sliding_attention`."""
    kinds = getattr(module.config, "layer_types", None)
    if kinds is not None and kinds[layer] != "sliding_attention":
        return None
    size: int | None = getattr(module.config, "sliding_window", None)
    return size


LLAMA = FAMILIES.add(
    "llama",
    Family(
        key="llama",
        serves="Llama 1 to 3, Mistral, Qwen 2, 2.5 and 3, SmolLM 1 and 2",
        model_types=("llama", "mistral", "qwen2", "qwen3"),
        backbone="model",
        blocks="model.layers",
        attention_norm="input_layernorm",
        mlp_norm="post_attention_layernorm",
        final_norm="model.norm",
        unembed="lm_head",
        attention="self_attn",
        qkv=Separate(q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj"),
        out="self_attn.o_proj",
        mlp="mlp",
        activation="mlp.act_fn",
        gated=lambda block: "mlp.down_proj",
        norm="rms",
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        window=window,
        table=lambda module, layer: "rotary",
    ),
)
