"""GPT-NeoX, the architecture of Pythia."""

from assay.models.adapter import FAMILIES
from assay.models.family import Family, Fused


FAMILIES.add(
    "gpt-neox",
    Family(
        key="gpt-neox",
        serves="GPT-NeoX, Pythia",
        model_types=("gpt_neox",),
        backbone="gpt_neox",
        blocks="gpt_neox.layers",
        attention_norm="input_layernorm",
        mlp_norm="post_attention_layernorm",
        final_norm="gpt_neox.final_layer_norm",
        unembed="lm_head",
        attention="attention",
        qkv=Fused(path="attention.query_key_value", by_group=True),
        out="attention.dense",
        mlp="mlp",
        activation="mlp.act",
        norm="layer",
        table=lambda module, layer: "rotary",
        parallel=lambda module: bool(getattr(module.config, "use_parallel_residual", True)),
    ),
)
