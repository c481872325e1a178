"""Mixtral: Llama with a mixture of experts, which is one MLP node per block."""

from dataclasses import replace

from assay.models.adapter import FAMILIES
from assay.models.families.llama import LLAMA


FAMILIES.add(
    "mixtral",
    replace(
        LLAMA,
        key="mixtral",
        serves="Mixtral",
        model_types=("mixtral",),
        activation=None,
        gated=lambda block: None,
    ),
)
