"""StarCoder 2: Llama with LayerNorms and a plain MLP."""

from dataclasses import replace

from assay.models.adapter import FAMILIES
from assay.models.families.llama import LLAMA


FAMILIES.add(
    "starcoder2",
    replace(
        LLAMA,
        key="starcoder2",
        serves="StarCoder 2",
        model_types=("starcoder2",),
        norm="layer",
        activation="mlp.act",
        gated=lambda block: None,
    ),
)
