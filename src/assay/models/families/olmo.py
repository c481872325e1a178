"""OLMo 2: Llama with norms behind the branches alone."""

from dataclasses import replace

from assay.models.adapter import FAMILIES
from assay.models.families.llama import LLAMA


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
