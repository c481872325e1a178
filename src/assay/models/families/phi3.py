"""Phi-3 and Phi-3.5: Llama with fused projections."""

from dataclasses import replace

from assay.models.adapter import FAMILIES
from assay.models.families.llama import LLAMA
from assay.models.family import Fused


FAMILIES.add(
    "phi3",
    replace(
        LLAMA,
        key="phi3",
        serves="Phi-3",
        model_types=("phi3",),
        qkv=Fused(path="self_attn.qkv_proj"),
        activation="mlp.activation_fn",
    ),
)
