"""BLOOM: no positions in the stream, a slope per head in the attention."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from assay.models.adapter import FAMILIES
from assay.models.family import Family, Fused


def _alibi(module: Any, layer: int) -> Callable[[int], Tensor]:
    def table(length: int) -> Tensor:
        from transformers.models.bloom.modeling_bloom import build_alibi_tensor

        config, weight = module.config, module.lm_head.weight
        mask = torch.ones(1, length, device=weight.device)
        return build_alibi_tensor(mask, config.n_head, weight.dtype)

    return table


def _run_mlp(block: Any, normed: Tensor) -> Tensor:
    mlp = block.mlp
    output: Tensor = mlp.dense_4h_to_h(mlp.gelu_impl(mlp.dense_h_to_4h(normed)))
    return output


def _refuse(module: Any) -> str | None:
    if module.config.apply_residual_connection_post_layernorm:
        return (
            "its blocks add to the output of their norm (apply_residual_connection_post_layernorm), so the "
            "stream is not the sum of what its nodes write"
        )
    if module.config.pretraining_tp > 1 and module.config.slow_but_exact:
        return "it splits its products (slow_but_exact); set pretraining_tp to 1"
    return None


FAMILIES.add(
    "bloom",
    Family(
        key="bloom",
        serves="BLOOM",
        model_types=("bloom",),
        backbone="transformer",
        blocks="transformer.h",
        attention_norm="input_layernorm",
        mlp_norm="post_attention_layernorm",
        final_norm="transformer.ln_f",
        unembed="lm_head",
        attention="self_attention",
        qkv=Fused(path="self_attention.query_key_value", by_group=True),
        out="self_attention.dense",
        mlp="mlp",
        mlp_out="mlp.dense_4h_to_h",
        run_mlp=_run_mlp,
        activation="mlp.gelu_impl",
        norm="layer",
        scaling=lambda attention: attention.inv_norm_factor,
        position_bias=_alibi,
        refuse=_refuse,
    ),
)
