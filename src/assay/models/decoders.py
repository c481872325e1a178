"""Decoder families: language models of Hugging Face transformers."""

from assay.models.adapter import FAMILIES
from assay.models.family import Family, Fused, Separate


FAMILIES.add(
    "gpt2",
    Family(
        key="gpt2",
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
    Family(
        key="attention-only",
        model_types=("attention_only",),
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
        mlps=False,
        norm="layer",
    ),
)
FAMILIES.add(
    "gpt-neox",
    Family(
        key="gpt-neox",
        model_types=("gpt_neox",),
        backbone="gpt_neox",
        blocks="gpt_neox.layers",
        attention_norm="input_layernorm",
        mlp_norm="post_attention_layernorm",
        final_norm="gpt_neox.final_layer_norm",
        unembed="lm_head",
        attention="attention",
        qkv=Fused(path="attention.query_key_value", per_head=True),
        out="attention.dense",
        mlp="mlp",
        activation="mlp.act",
        norm="layer",
        parallel=lambda module: bool(getattr(module.config, "use_parallel_residual", True)),
    ),
)
FAMILIES.add(
    "llama",
    Family(
        key="llama",
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
    ),
)
