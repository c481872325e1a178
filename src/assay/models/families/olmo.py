"""OLMo 1: Llama with LayerNorms that have no parameters."""

from dataclasses import replace

from assay.models.adapter import FAMILIES
from assay.models.families.llama import LLAMA


FAMILIES.add(
    "olmo",
    replace(
        LLAMA,
        key="olmo",
        model_types=("olmo",),
        norm="layer",
        eps=1e-5,
        clip=lambda module: module.config.clip_qkv,
        overwrites=True,
    ),
)
