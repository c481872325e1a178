"""Phi-1, Phi-1.5 and Phi-2: attention and MLP side by side behind one norm."""

from assay.models.adapter import FAMILIES
from assay.models.family import Family, Separate


FAMILIES.add(
    "phi",
    Family(
        key="phi",
        serves="Phi-1, 1.5 and 2",
        model_types=("phi",),
        backbone="model",
        blocks="model.layers",
        attention_norm="input_layernorm",
        mlp_norm="input_layernorm",
        final_norm="model.final_layernorm",
        unembed="lm_head",
        attention="self_attn",
        qkv=Separate(q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj"),
        out="self_attn.dense",
        mlp="mlp",
        activation="mlp.activation_fn",
        norm="layer",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        table=lambda module, layer: "rotary",
        parallel=lambda module: True,
    ),
)
