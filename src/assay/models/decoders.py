"""Descriptions of the language models served; each is one `Family`."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from assay.models.attention import Tables
from assay.models.family import Family, Sizes, config_sizes, like, serve


def _parallel(module: Any) -> bool:
    """Whether a configuration lets attention and MLP read the same stream."""
    return bool(getattr(module.config, "use_parallel_residual", True))


# ---- GPT-2 and its relatives


GPT2 = serve(
    Family(
        key="gpt2",
        serves="GPT-2, DistilGPT-2",
        model_types=("gpt2",),
        backbone="transformer",
        blocks="transformer.h",
        attention_norm="ln_1",
        mlp_norm="ln_2",
        final_norm="transformer.ln_f",
        unembed="lm_head",
        learned_positions=True,
        attention="attn",
        qkv=("attn.c_attn",),
        out="attn.c_proj",
        mlp="mlp",
        activation="mlp.act",
        norm="layer",
    )
)
like(GPT2, "attention_only", "GPT-2 without MLPs", mlps=False, activation=None)


def _neo_window(module: Any, layer: int) -> int | None:
    config = module.config
    return config.window_size if config.attention_layers[layer] == "local" else None


like(
    GPT2,
    "gpt_neo",
    "GPT-Neo",
    attention="attn.attention",
    qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
    out="attn.attention.out_proj",
    scaling=lambda attention: 1.0,
    window=_neo_window,
)


def _gptj_tables(block: nn.Module, arguments: Mapping[str, Any]) -> Tables:
    """The block's own table at the positions of its call, each entry for the two that turn together."""
    positions: Tensor = arguments["position_ids"]
    table: Any = block.get_submodule("attn").embed_positions
    sin, cos = table.to(positions.device)[positions].chunk(2, -1)
    return cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)


like(
    GPT2,
    "gptj",
    "GPT-J",
    mlp_norm="ln_1",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    out="attn.out_proj",
    scaling=lambda attention: 1 / attention.scale_attn,
    table=lambda module, layer: "rotary",
    tables=_gptj_tables,
    adjacent=True,
    parallel=lambda module: True,
)
like(
    GPT2,
    "gpt_neox",
    "GPT-NeoX, Pythia",
    backbone="gpt_neox",
    blocks="gpt_neox.layers",
    attention_norm="input_layernorm",
    mlp_norm="post_attention_layernorm",
    final_norm="gpt_neox.final_layer_norm",
    learned_positions=False,
    attention="attention",
    qkv=("attention.query_key_value",),
    by_group=True,
    out="attention.dense",
    table=lambda module, layer: "rotary",
    parallel=_parallel,
)


# ---- BLOOM and Falcon: fused projections by group, positions as slopes of the attention


def _slopes(module: Any, layer: int) -> Callable[[int], Tensor] | None:
    """ALiBi from the function that the family's own code calls; Falcon scales it as it does the products."""
    config = module.config
    if not getattr(config, "alibi", True):
        return None
    native = importlib.import_module(f"transformers.models.{config.model_type}.modeling_{config.model_type}")

    def slopes(length: int) -> Tensor:
        weight, ones = module.lm_head.weight, torch.ones(1, length, device=module.lm_head.weight.device)
        made: Tensor = native.build_alibi_tensor(ones, config.num_attention_heads, weight.dtype)
        scaled = config.model_type == "falcon"
        return made * module.transformer.h[0].self_attention.inv_norm_factor if scaled else made

    return slopes


def _bloom_mlp(block: Any, normed: Tensor) -> Tensor:
    mlp = block.mlp
    output: Tensor = mlp.dense_4h_to_h(mlp.gelu_impl(mlp.dense_h_to_4h(normed)))
    return output


BLOOM = like(
    GPT2,
    "bloom",
    "BLOOM",
    attention_norm="input_layernorm",
    mlp_norm="post_attention_layernorm",
    learned_positions=False,
    attention="self_attention",
    qkv=("self_attention.query_key_value",),
    by_group=True,
    out="self_attention.dense",
    mlp_out="mlp.dense_4h_to_h",
    run_mlp=_bloom_mlp,
    activation="mlp.gelu_impl",
    scaling=lambda attention: attention.inv_norm_factor,
    position_bias=_slopes,
)


def _falcon_sizes(module: nn.Module) -> Sizes:
    config: Any = module.config
    sizes = config_sizes(config)
    shared = config.num_kv_heads if config.new_decoder_architecture else 1 if config.multi_query else None
    return replace(sizes, n_kv_heads=shared or sizes.n_heads)


def _falcon_variant(module: Any) -> dict[str, Any]:
    """Sequential, or parallel behind one norm or two; one key and value for all heads, or by group."""
    config = module.config
    entries: dict[str, Any] = {"by_group": config.new_decoder_architecture or not config.multi_query}
    if not config.parallel_attn:
        entries["mlp_norm"] = "post_attention_layernorm"
    elif config.num_ln_in_parallel_attn == 2:
        entries |= {"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"}
    return entries


like(
    BLOOM,
    "falcon",
    "Falcon",
    mlp_norm="input_layernorm",
    mlp_out=None,
    run_mlp=None,
    activation="mlp.act",
    overwrites=True,
    table=lambda module, layer: None if module.config.alibi else "rotary",
    parallel=lambda module: module.config.parallel_attn,
    variant=_falcon_variant,
    sizes=_falcon_sizes,
)


# ---- Llama and what shares its layout


def _window(module: Any, layer: int) -> int | None:
    """The window that a configuration gives all blocks, or those of type `sliding_attention`."""
    kinds = getattr(module.config, "layer_types", None)
    if kinds is not None and kinds[layer] != "sliding_attention":
        return None
    size: int | None = getattr(module.config, "sliding_window", None)
    return size


LLAMA = like(
    GPT2,
    "llama",
    "Llama 1 to 3, Mistral, Qwen 2, 2.5 and 3, SmolLM 1 and 2",
    model_types=("llama", "mistral", "qwen2", "qwen3"),
    backbone="model",
    blocks="model.layers",
    attention_norm="input_layernorm",
    mlp_norm="post_attention_layernorm",
    final_norm="model.norm",
    learned_positions=False,
    attention="self_attn",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    out="self_attn.o_proj",
    activation="mlp.act_fn",
    gated=lambda block: "mlp.down_proj",
    norm="rms",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    window=_window,
    table=lambda module, layer: "rotary",
)
_PLAIN_MLP: dict[str, Any] = {"gated": lambda block: None}
like(LLAMA, "mixtral", "Mixtral", activation=None, **_PLAIN_MLP)
like(
    LLAMA,
    "smollm3",
    "SmolLM 3",
    table=lambda module, layer: "rotary" if module.config.no_rope_layers[layer] else None,
)
like(LLAMA, "starcoder2", "StarCoder 2", norm="layer", activation="mlp.act", **_PLAIN_MLP)
like(LLAMA, "phi3", "Phi-3", qkv=("self_attn.qkv_proj",), activation="mlp.activation_fn")
_HEAD_NORMS: dict[str, Any] = {
    "norm": "layer",
    "q_norm": "self_attn.q_layernorm",
    "k_norm": "self_attn.k_layernorm",
}
like(
    LLAMA,
    "phi",
    "Phi-1, 1.5 and 2",
    mlp_norm="input_layernorm",
    final_norm="model.final_layernorm",
    out="self_attn.dense",
    activation="mlp.activation_fn",
    parallel=lambda module: True,
    **_HEAD_NORMS,
    **_PLAIN_MLP,
)
like(
    LLAMA,
    "stablelm",
    "StableLM",
    norms_over="own",
    parallel=_parallel,
    variant=lambda module: {"mlp_norm": "input_layernorm"} if _parallel(module) else {},
    **_HEAD_NORMS,
)
like(
    LLAMA,
    "olmo2",
    "OLMo 2",
    attention_norm=None,
    mlp_norm=None,
    branch_norm="post_attention_layernorm",
    mlp_scale="post_feedforward_layernorm",
    norms_over="block",
)


# ---- OPT: the MLP's two layers are in the block itself


def _opt_refuses(module: Any) -> str | None:
    if not module.config.do_layer_norm_before:
        return (
            "its blocks normalise the stream itself behind each addition (do_layer_norm_before is False, as "
            "in OPT-350m), so the stream is not the sum of what its nodes write"
        )
    if module.model.decoder.project_out is not None:
        return "it projects the stream between blocks and embeddings (word_embed_proj_dim), as OPT-350m does"
    return None


def _opt_mlp(block: Any, normed: Tensor) -> Tensor:
    output: Tensor = block.fc2(block.activation_fn(block.fc1(normed)))
    return output


like(
    LLAMA,
    "opt",
    "OPT",
    backbone="model.decoder",
    blocks="model.decoder.layers",
    attention_norm="self_attn_layer_norm",
    mlp_norm="final_layer_norm",
    final_norm="model.decoder.final_layer_norm",
    learned_positions=True,
    out="self_attn.out_proj",
    mlp="fc1",
    mlp_out="fc2",
    run_mlp=_opt_mlp,
    activation="activation_fn",
    norm="layer",
    table=lambda module, layer: None,
    variant=lambda module: {"final_norm": None} if module.model.decoder.final_layer_norm is None else {},
    refuse=_opt_refuses,
    **_PLAIN_MLP,
)


# ---- Gemma 1: Llama with gains of 1 + weight. Gemma 2 and 3 also normalise what each branch writes


def _capped_logits(module: Any, hidden: Tensor) -> Tensor:
    logits: Tensor = module.lm_head(hidden)
    cap = module.config.final_logit_softcapping
    return logits if cap is None else (logits / cap).tanh() * cap


GEMMA = like(LLAMA, "gemma", "Gemma 1", norm="rms1")
GEMMA2 = like(
    GEMMA,
    "gemma2",
    "Gemma 2",
    mlp_norm="pre_feedforward_layernorm",
    branch_norm="post_attention_layernorm",
    mlp_scale="post_feedforward_layernorm",
    softcap=lambda module: module.config.attn_logit_softcapping,
    head=_capped_logits,
)
like(
    GEMMA2,
    "gemma3_text",
    "Gemma 3, text",
    key="gemma3",
    softcap=lambda module: None,  # its configuration has the entry, its attention does not read it
    table=lambda module, layer: module.config.layer_types[layer],
)
