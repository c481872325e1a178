"""OLMo 1: Llama with LayerNorms without parameters. OLMo 2: norms behind the branches alone."""

from dataclasses import replace

from assay.models.adapter import FAMILIES
from assay.models.families.llama import LLAMA


FAMILIES.add(
    "olmo",
    replace(
        LLAMA,
        key="olmo",
        serves="OLMo 1",
        model_types=("olmo",),
        norm="layer",
        eps=1e-5,
        clip=lambda module: module.config.clip_qkv,
        overwrites=True,
    ),
)
FAMILIES.add(
    "olmo2",
    replace(
        LLAMA,
        key="olmo2",
        serves="OLMo 2",
        model_types=("olmo2",),
        attention_norm=None,
        mlp_norm=None,
        branch_norm="post_attention_layernorm",
        mlp_scale="post_feedforward_layernorm",
        norms_over="block",
    ),
)
