"""StableLM: sequential, or parallel behind one norm; norms of queries and keys with a gain per head."""

from dataclasses import replace
from typing import Any

from assay.models.adapter import FAMILIES
from assay.models.families.llama import LLAMA


def _variant(module: Any) -> dict[str, Any]:
    return {"mlp_norm": "input_layernorm"} if module.config.use_parallel_residual else {}


FAMILIES.add(
    "stablelm",
    replace(
        LLAMA,
        key="stablelm",
        serves="StableLM",
        model_types=("stablelm",),
        norm="layer",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        norms_over="own",
        parallel=lambda module: module.config.use_parallel_residual,
        variant=_variant,
    ),
)
