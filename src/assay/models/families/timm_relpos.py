"""timm's `VisionTransformerRelPos`: a bias by relative position, from a table or a small MLP."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from assay.models.adapter import FAMILIES
from assay.models.families.timm_vit import TIMM_VIT
from assay.models.timm_reading import branch_norms, facts, why_refused


_POST_NORM = "ResPostRelPosBlock"


def _bias(module: Any, layer: int) -> Callable[[int], Tensor]:
    positions = module.blocks[layer].attn.rel_pos or module.shared_rel_pos

    def table(length: int) -> Tensor:
        bias: Tensor = positions.get_bias()[0]
        return bias

    return table


def _facts(module: Any) -> dict[str, Any]:
    positions = module.shared_rel_pos or module.blocks[0].attn.rel_pos
    kind = type(positions).__name__, getattr(positions, "mode", None), module.shared_rel_pos is not None
    return {**facts(module, "VisionTransformerRelPos"), "rel_pos": list(kind)}


FAMILIES.add(
    "timm-relpos",
    replace(
        TIMM_VIT,
        key="timm-relpos",
        serves="timm's VisionTransformerRelPos",
        classes=("VisionTransformerRelPos",),
        position_bias=_bias,
        variant=partial(branch_norms, post_norm=_POST_NORM),
        refuse=partial(
            why_refused, blocks=("RelPosBlock", _POST_NORM), post_norm=_POST_NORM, attention="RelPosAttention"
        ),
        facts=_facts,
    ),
)
