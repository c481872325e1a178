"""timm's `Beit` (BEiT 1 and 2): a bias by relative position, of each block or shared."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from assay.models.adapter import FAMILIES
from assay.models.families.timm_vit import TIMM_VIT
from assay.models.timm_reading import facts, fold, why_refused


def _bias(module: Any, layer: int) -> Callable[[int], Tensor] | None:
    attention, shared = module.blocks[layer].attn, module.rel_pos_bias
    if attention.relative_position_bias_table is None:
        return None if shared is None else lambda length: shared()

    def table(length: int) -> Tensor:
        own: Tensor = attention._get_rel_pos_bias()[0]
        return own if shared is None else own + shared()

    return table


FAMILIES.add(
    "timm-beit",
    replace(
        TIMM_VIT,
        key="timm-beit",
        serves="BEiT 1 and 2 of timm",
        classes=("Beit",),
        attention_scale=None,
        mlp_scale=None,
        position_bias=_bias,
        variant=lambda module: {},
        refuse=partial(why_refused, blocks=("Block",), post_norm="", attention="Attention"),
        facts=partial(facts, kind="Beit"),
        fold=fold,
    ),
)
