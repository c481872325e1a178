"""SmolLM3: Llama with blocks that do not rotate."""

from dataclasses import replace

from assay.models.adapter import FAMILIES
from assay.models.families.llama import LLAMA


FAMILIES.add(
    "smollm3",
    replace(
        LLAMA,
        key="smollm3",
        serves="SmolLM 3",
        model_types=("smollm3",),
        table=lambda module, layer: "rotary" if module.config.no_rope_layers[layer] else None,
    ),
)
