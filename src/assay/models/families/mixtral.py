"""Mixtral and OLMoE: Llama with a mixture of experts: one MLP node per block, or a node per expert."""

from dataclasses import replace

from assay.models.adapter import FAMILIES
from assay.models.families.llama import LLAMA


MIXTRAL = FAMILIES.add(
    "mixtral",
    replace(
        LLAMA,
        key="mixtral",
        serves="Mixtral",
        model_types=("mixtral",),
        router="mlp.gate",
        experts="mlp.experts",
        activation=None,
        gated=lambda block: None,
    ),
)
FAMILIES.add(
    "olmoe",
    replace(
        MIXTRAL,
        key="olmoe",
        serves="OLMoE",
        model_types=("olmoe",),
        norms_over="block",
        clip=lambda module: module.config.clip_qkv,
        overwrites=True,
    ),
)
