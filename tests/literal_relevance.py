"""Relevance propagation written out: every rule is the product it stands for, its constant factor detached.

Text models run node by node from their weight matrices, vision transformers as `literal_vits` has them, with
norms, MLPs and attention replaced. Nothing of the library's hooks is used.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import literal_vits
import torch
from literal import Outputs
from literal_vits import Layer, LiteralVit
from torch import Tensor, nn

from assay.models import Block, Model


def ruled_norm(module: Any) -> Callable[[Tensor], Tensor]:
    """LN rule: divided by a constant."""
    if isinstance(module, nn.Identity):
        return lambda x: x
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon

    def norm(x: Tensor) -> Tensor:
        if isinstance(module, nn.LayerNorm):
            x = x - x.mean(-1, keepdim=True)
        scale = (x.square().mean(-1, keepdim=True) + eps).sqrt()
        y = x / scale.detach() * module.weight
        return y + module.bias if isinstance(module, nn.LayerNorm) else y

    return norm


def ruled_activation(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Identity rule: multiplied by a constant."""
    return lambda x: x * (module(x) / x).detach()


def halved(product: Tensor) -> Tensor:
    """Half rule: one half of the product counts, the other is a constant."""
    return product / 2 + (product / 2).detach()


# ---------------------------------------------------------------------------------------------- text models


def _mlp(block: Block, x: Tensor) -> Tensor:
    mlp: Any = block.mlp
    if hasattr(mlp, "gate_proj"):
        gate = ruled_activation(mlp.act_fn)(x @ mlp.gate_proj.weight.T)
        return halved(gate * (x @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T
    if hasattr(mlp, "c_fc"):
        hidden = ruled_activation(mlp.act)(x @ mlp.c_fc.weight + mlp.c_fc.bias)
        return hidden @ mlp.c_proj.weight + mlp.c_proj.bias
    hidden = ruled_activation(mlp.act)(x @ mlp.dense_h_to_4h.weight.T + mlp.dense_h_to_4h.bias)
    return hidden @ mlp.dense_4h_to_h.weight.T + mlp.dense_4h_to_h.bias


def _rotate(model: Model, x: Tensor) -> Tensor:
    """Rotary embedding of [batch, pos, d_head], written out pair by pair."""
    backbone = model.module.get_submodule(model.family.backbone)
    if not hasattr(backbone, "rotary_emb"):
        return x
    cos, sin = backbone.rotary_emb(x, torch.arange(x.shape[1])[None])
    half = cos.shape[-1] // 2
    result = x.clone()
    for i in range(half):
        a, b = x[..., i], x[..., half + i]
        result[..., i] = a * cos[..., i] - b * sin[..., i]
        result[..., half + i] = b * cos[..., half + i] + a * sin[..., half + i]
    return result


def _head(model: Model, layer: int, head: int, streams: dict[str, Tensor]) -> Tensor:
    block = model.blocks[layer]
    kv = block.kv_head(head)
    column = {"q": head, "k": model.n_heads + kv, "v": model.n_heads + model.n_kv_heads + kv}
    parts = {}
    for channel in "qkv":
        parts[channel] = ruled_norm(block.attention_norm.module)(streams[channel])
        parts[channel] = parts[channel] @ block.qkv_weight()[:, column[channel]]
        bias = block.qkv_bias()
        if bias is not None:
            parts[channel] = parts[channel] + bias[column[channel]]
    rule = block.rule
    if rule.q_norm is not None:
        for channel, norm in (("q", rule.q_norm), ("k", rule.k_norm)):
            parts[channel] = ruled_norm(norm.module)(parts[channel])
    logits = _rotate(model, parts["q"]) @ _rotate(model, parts["k"]).transpose(1, 2) * rule.scaling
    length = logits.shape[-1]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    pattern = logits.masked_fill(later, -math.inf).softmax(-1)
    return pattern @ parts["v"] @ block.out_weight()[head]


def coefficients(model: Model, tokens: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Outputs, Tensor]:
    """What arrives at every target's own copy of the stream, and the logits at all positions."""
    copies: Outputs = {}
    outputs: Outputs = {}
    with model.tracing(until=0) as trace, torch.no_grad():
        model.forward(tokens)
    outputs["input"] = trace.input
    biases = torch.zeros(model.d_model, dtype=trace.input.dtype)

    def read(target: str) -> Tensor:
        if target not in copies:
            copies[target] = torch.zeros_like(trace.input, requires_grad=True)
        return torch.stack(list(outputs.values())).sum(0) + biases + copies[target]

    with torch.enable_grad():
        for layer, block in enumerate(model.blocks):
            heads = {}
            for head in range(model.n_heads):
                kv = block.kv_head(head)
                name = model.graph.channel_name
                names = {"q": name(layer, "q", head), "k": name(layer, "k", kv), "v": name(layer, "v", kv)}
                streams = {channel: read(name) for channel, name in names.items()}
                heads[f"a{layer}.h{head}"] = _head(model, layer, head, streams)
            after = biases if block.out_bias() is None else biases + block.out_bias()
            if model.graph.parallel:
                mlp_in = read(f"m{layer}")
                outputs.update(heads)
                biases = after
            else:
                outputs.update(heads)
                biases = after
                mlp_in = read(f"m{layer}")
            outputs[f"m{layer}"] = _mlp(block, ruled_norm(block.mlp_norm.module)(mlp_in))
        logits = model.unembed(ruled_norm(model.final_norm.module)(read("logits")))
        found = torch.autograd.grad(loss(logits).sum(), list(copies.values()), allow_unused=True)
    arrived = {
        target: torch.zeros_like(trace.input) if gradient is None else gradient
        for target, gradient in zip(copies, found, strict=True)
    }
    return arrived, logits.detach()


# -------------------------------------------------------------------------------------- vision transformers


def vit_with_rules(module: nn.Module) -> LiteralVit:
    """The literal form of a Hugging Face or timm classifier, its backward pass by the rules."""
    native: Any = module
    plain = literal_vits.literal(module)
    if hasattr(native, "patch_embed"):
        blocks, read = native.blocks, _timm_read(native)
        parts = [(block.norm1, *_query_key_norms(block.attn), _timm_mlp(block)) for block in blocks]
    else:
        backbone = native.vit if hasattr(native, "vit") else native.deit
        blocks, read = backbone.layers, _hugging_face_read(native, backbone)
        parts = [(block.layernorm_before, None, None, _hugging_face_mlp(block)) for block in blocks]
    layers = []
    for layer, (norm, q_norm, k_norm, mlp) in zip(plain.layers, parts, strict=True):
        adjust = {"q": ruled_norm(q_norm), "k": ruled_norm(k_norm)} if layer.adjust else {}
        fields = {**vars(layer), "norm": ruled_norm(norm), "adjust": adjust, "mlp": mlp}
        layers.append(Layer(**fields))
    return replace(plain, layers=tuple(layers), read=read)


def _query_key_norms(attention: Any) -> tuple[nn.Module | None, ...]:
    return getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)


def _hugging_face_mlp(block: Any) -> Callable[[Tensor], Tensor]:
    mlp, norm = block.mlp, ruled_norm(block.layernorm_after)
    return lambda x: mlp.fc2(ruled_activation(mlp.activation_fn)(mlp.fc1(norm(x))))


def _hugging_face_read(module: Any, backbone: Any) -> Callable[[Tensor], Tensor]:
    norm = ruled_norm(backbone.layernorm)

    def read(stream: Tensor) -> Tensor:
        x = norm(stream)
        if hasattr(module, "distillation_classifier"):
            return (module.cls_classifier(x[:, 0]) + module.distillation_classifier(x[:, 1])) / 2
        return module.classifier(x[:, 0])

    return read


def _timm_mlp(block: Any) -> Callable[[Tensor], Tensor]:
    mlp = block.mlp
    act, inner = ruled_activation(mlp.act), ruled_norm(mlp.norm)

    def run(stream: Tensor) -> Tensor:
        x = ruled_norm(block.norm2)(stream)
        if hasattr(mlp, "fc1_g"):
            hidden = halved(act(mlp.fc1_g(x)) * mlp.fc1_x(x))
        elif hasattr(mlp, "gate_last"):
            first, second = mlp.fc1(x).chunk(2, -1)
            hidden = halved(first * act(second) if mlp.gate_last else act(first) * second)
        else:
            hidden = act(mlp.fc1(x))
        return mlp.fc2(inner(hidden)) * literal_vits.branch_factors(block, 2)

    return run


def _timm_read(module: Any) -> Callable[[Tensor], Tensor]:
    norm = ruled_norm(module.norm)

    def read(stream: Tensor) -> Tensor:
        x = norm(stream)
        if hasattr(module, "head_dist"):
            return (module.head(x[:, 0]) + module.head_dist(x[:, 1])) / 2
        patches = x if getattr(module, "pool_include_prefix", False) else x[:, module.num_prefix_tokens :]
        pooled = {
            "token": lambda: x[:, 0],
            "avg": lambda: patches.mean(1),
            "max": lambda: patches.amax(1),
            "avgmax": lambda: (patches.mean(1) + patches.amax(1)) / 2,
        }[module.global_pool]()
        return module.head(ruled_norm(module.fc_norm)(pooled))

    return read
