"""Falcon in its four shapes: sequential, parallel behind one norm or two, with rotary positions or slopes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from assay.models.adapter import FAMILIES
from assay.models.family import Family, Fused, Sizes, config_sizes


def _sizes(module: nn.Module) -> Sizes:
    config: Any = module.config
    sizes = config_sizes(config)
    shared = config.num_kv_heads if config.new_decoder_architecture else 1 if config.multi_query else None
    return Sizes(
        n_heads=sizes.n_heads,
        n_kv_heads=shared or sizes.n_heads,
        d_model=sizes.d_model,
        d_head=sizes.d_head,
    )


def _variant(module: Any) -> dict[str, Any]:
    config = module.config
    entries: dict[str, Any] = {}
    if not config.parallel_attn:
        entries["mlp_norm"] = "post_attention_layernorm"
    elif config.num_ln_in_parallel_attn == 2:
        entries |= {"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"}
    if not config.new_decoder_architecture and config.multi_query:
        entries["qkv"] = Fused(path="self_attention.query_key_value")
    return entries


def _alibi(module: Any, layer: int) -> Callable[[int], Tensor] | None:
    """Slopes, rounded to bfloat16 as the checkpoints were made with; scaled as the products are."""

    def table(length: int) -> Tensor:
        from transformers.models.falcon.modeling_falcon import build_alibi_tensor

        config, weight = module.config, module.lm_head.weight
        mask = torch.ones(1, length, device=weight.device)
        slopes: Tensor = build_alibi_tensor(mask, config.num_attention_heads, weight.dtype)
        scaled: Tensor = slopes * module.transformer.h[0].self_attention.inv_norm_factor
        return scaled

    return table if module.config.alibi else None


def _refuse(module: Any) -> str | None:
    if module.config.alibi and module.config._attn_implementation == "eager":
        return (
            "eager attention of transformers adds the slopes of alibi twice; load the model with "
            "attn_implementation='sdpa'"
        )
    return None


FAMILIES.add(
    "falcon",
    Family(
        key="falcon",
        serves="Falcon",
        model_types=("falcon",),
        backbone="transformer",
        blocks="transformer.h",
        attention_norm="input_layernorm",
        mlp_norm="input_layernorm",
        final_norm="transformer.ln_f",
        unembed="lm_head",
        attention="self_attention",
        qkv=Fused(path="self_attention.query_key_value", by_group=True),
        out="self_attention.dense",
        mlp="mlp",
        activation="mlp.act",
        norm="layer",
        overwrites=True,
        scaling=lambda attention: attention.inv_norm_factor,
        table=lambda module, layer: None if module.config.alibi else "rotary",
        position_bias=_alibi,
        parallel=lambda module: module.config.parallel_attn,
        variant=_variant,
        refuse=_refuse,
        sizes=_sizes,
    ),
)
