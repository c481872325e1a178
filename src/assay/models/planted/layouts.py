"""Planted weights in native modules: GPT-2, GPT-NeoX with parallel blocks, Llama with grouped queries."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.models.planted.assembly import DECAY, TURNING
from assay.models.planted.registers import Layout, Weights


LAYOUTS = {
    "gpt2": Layout(name="gpt2", rotary=False),
    "gpt-neox": Layout(name="gpt-neox", rotary=True, partial=True, parallel=True),
    "llama": Layout(name="llama", rotary=True, group=2),
}


def build_module(layout: str, weights: Weights, length: int, dtype: torch.dtype) -> nn.Module:
    """A native module with these weights, in evaluation mode.

    Args:
        layout: Key of `LAYOUTS`.
        weights: What to put in.
        length: Longest prompt.
        dtype: Number type of the module.
    """
    # The constructor draws weights, all of which are overwritten: the caller's generator is left alone.
    with torch.random.fork_rng(devices=[]):
        module = _CONSTRUCTORS[layout](weights, length)
    module.to(torch.float64)
    with torch.no_grad():
        _WRITERS[layout](module, weights)
    return module.to(dtype).eval()


# ----------------------------------------------------------------------------------------------------- GPT-2


def _gpt2(weights: Weights, length: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(weights.embed),
            n_positions=length,
            n_embd=weights.d_model,
            n_layer=len(weights.attention),
            n_head=weights.n_heads,
            n_inner=weights.mlps[0].into.shape[1],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def _write_gpt2(module: Any, weights: Weights) -> None:
    backbone = module.transformer
    backbone.wte.weight.copy_(weights.embed)
    backbone.wpe.weight.copy_(weights.positions)
    for block, attention, mlp in zip(backbone.h, weights.attention, weights.mlps, strict=True):
        # Conv1D stores [in, out]; columns are ordered (q|k|v, head, entry).
        block.attn.c_attn.weight.copy_(
            torch.cat([_columns(each) for each in (attention.q, attention.k, attention.v)], 1)
        )
        block.attn.c_proj.weight.copy_(attention.o.flatten(0, 1))
        block.mlp.c_fc.weight.copy_(mlp.into)
        block.mlp.c_proj.weight.copy_(mlp.out)
        for bias in (
            block.attn.c_attn.bias,
            block.attn.c_proj.bias,
            block.mlp.c_fc.bias,
            block.mlp.c_proj.bias,
        ):
            bias.zero_()
        _set_norms(weights, block.ln_1, block.ln_2)
    _set_norms(weights, backbone.ln_f)
    module.lm_head.weight.copy_(weights.unembed)


# -------------------------------------------------------------------------------------------------- GPT-NeoX


def _neox(weights: Weights, length: int) -> nn.Module:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    turning = 2 * TURNING
    rope = {
        "rope_type": "default",
        "rope_theta": DECAY**-TURNING,
        # A little more than turning / d_head, which could round down to one entry less.
        "partial_rotary_factor": (turning + 0.5) / weights.d_head,
    }
    return GPTNeoXForCausalLM(GPTNeoXConfig(use_parallel_residual=True, **_rotary(weights, length, rope)))


def _write_neox(module: Any, weights: Weights) -> None:
    backbone = module.gpt_neox
    backbone.embed_in.weight.copy_(weights.embed)
    for block, attention, mlp in zip(backbone.layers, weights.attention, weights.mlps, strict=True):
        # Rows are ordered (head, q|k|v, entry).
        fused = torch.stack([attention.q, attention.k, attention.v], 1)
        block.attention.query_key_value.weight.copy_(_columns(fused.flatten(0, 1)).T)
        block.attention.dense.weight.copy_(attention.o.flatten(0, 1).T)
        block.mlp.dense_h_to_4h.weight.copy_(mlp.into.T)
        block.mlp.dense_4h_to_h.weight.copy_(mlp.out.T)
        for part in (
            block.attention.query_key_value,
            block.attention.dense,
            block.mlp.dense_h_to_4h,
            block.mlp.dense_4h_to_h,
        ):
            part.bias.zero_()
        _set_norms(weights, block.input_layernorm, block.post_attention_layernorm)
    _set_norms(weights, backbone.final_layer_norm)
    module.lm_head.weight.copy_(weights.unembed)


# ----------------------------------------------------------------------------------------------------- Llama


def _llama(weights: Weights, length: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    rope = {"rope_type": "default", "rope_theta": DECAY ** -(weights.d_head / 2)}
    return LlamaForCausalLM(
        LlamaConfig(
            num_key_value_heads=weights.n_kv_heads,
            head_dim=weights.d_head,
            **_rotary(weights, length, rope),
        )
    )


def _write_llama(module: Any, weights: Weights) -> None:
    backbone = module.model
    backbone.embed_tokens.weight.copy_(weights.embed)
    for block, attention, mlp in zip(backbone.layers, weights.attention, weights.mlps, strict=True):
        block.self_attn.q_proj.weight.copy_(_columns(attention.q).T)
        block.self_attn.k_proj.weight.copy_(_columns(attention.k).T)
        block.self_attn.v_proj.weight.copy_(_columns(attention.v).T)
        block.self_attn.o_proj.weight.copy_(attention.o.flatten(0, 1).T)
        block.mlp.gate_proj.weight.copy_(mlp.into.T)
        block.mlp.up_proj.weight.copy_(weights.one.expand_as(mlp.into.T))  # the gate does the work
        block.mlp.down_proj.weight.copy_(mlp.out.T)
        _set_norms(weights, block.input_layernorm, block.post_attention_layernorm)
    _set_norms(weights, backbone.norm)
    module.lm_head.weight.copy_(weights.unembed)


def _rotary(weights: Weights, length: int, rope: dict[str, Any]) -> dict[str, Any]:
    """What the configurations of both rotary layouts say in the same words."""
    return {
        "vocab_size": len(weights.embed),
        "max_position_embeddings": length,
        "hidden_size": weights.d_model,
        "num_hidden_layers": len(weights.attention),
        "num_attention_heads": weights.n_heads,
        "intermediate_size": weights.mlps[0].into.shape[1],
        "rope_parameters": rope,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def _columns(heads: Float[Tensor, "n_heads d_model d_head"]) -> Float[Tensor, "d_model columns"]:
    """Head-major columns of one projection."""
    return heads.transpose(0, 1).flatten(1)


def _set_norms(weights: Weights, *norms: Any) -> None:
    for norm in norms:
        norm.weight.fill_(weights.gain)
        if getattr(norm, "bias", None) is not None:
            norm.bias.zero_()


_CONSTRUCTORS: dict[str, Callable[[Weights, int], nn.Module]] = {
    "gpt2": _gpt2,
    "gpt-neox": _neox,
    "llama": _llama,
}
_WRITERS: dict[str, Callable[[Any, Weights], None]] = {
    "gpt2": _write_gpt2,
    "gpt-neox": _write_neox,
    "llama": _write_llama,
}
