"""Slow, literal versions of the engine's quantities: node by node, one copy of the stream per target.

They share nothing with the fast paths but the model's own modules and weights.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from assay.circuits import Circuit
from assay.models import Model
from assay.objectives import get_objective


# node name -> output in the stream, [batch, pos, d_model]
Outputs = dict[str, Tensor]


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
    """Output of one head from its own three copies of the stream."""
    block = model.blocks[layer]
    kv = block.kv_head(head)
    column = {"q": head, "k": model.n_heads + kv, "v": model.n_heads + model.n_kv_heads + kv}
    weight, bias = block.qkv_weight(), block.qkv_bias()
    parts = {}
    for channel in "qkv":
        normed = block.attention_norm.module(streams[channel])
        parts[channel] = normed @ weight[:, column[channel]]
        if bias is not None:
            parts[channel] = parts[channel] + bias[column[channel]]
    if block.q_norm is not None and block.k_norm is not None:
        parts["q"], parts["k"] = block.q_norm(parts["q"]), block.k_norm(parts["k"])
    parts["q"], parts["k"] = _rotate(model, parts["q"]), _rotate(model, parts["k"])
    logits = parts["q"] @ parts["k"].transpose(1, 2) * block.scaling
    length = logits.shape[-1]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    hidden = (distance < 0) | (distance >= (block.window or length + 1))
    pattern = logits.masked_fill(hidden, -math.inf).softmax(-1)
    return pattern @ parts["v"] @ block.out_weight()[head]


def run(
    model: Model,
    tokens: Tensor,
    stream_of: Callable[[str, Outputs, Tensor], Tensor],
    *,
    embed: Tensor | None = None,
    override: dict[str, Tensor] | None = None,
) -> tuple[Tensor, Outputs]:
    """Run node by node; `stream_of(target, outputs so far, biases so far)` gives each target's input."""
    outputs: Outputs = {}
    override = override or {}
    if embed is None:
        with model.tracing(until=0) as trace, torch.no_grad():
            model.forward(tokens)
        embed = trace.input
    outputs["input"] = override.get("input", embed)
    biases = torch.zeros(model.d_model, dtype=embed.dtype)
    for layer, block in enumerate(model.blocks):
        heads = {}
        for head in range(model.n_heads):
            kv = block.kv_head(head)
            streams = {
                "q": stream_of(f"a{layer}.h{head}.q", outputs, biases),
                "k": stream_of(model.graph.channel_name(layer, "k", kv), outputs, biases),
                "v": stream_of(model.graph.channel_name(layer, "v", kv), outputs, biases),
            }
            heads[f"a{layer}.h{head}"] = _head(model, layer, head, streams)
        heads = {name: override.get(name, value) for name, value in heads.items()}
        after = biases if block.out_bias() is None else biases + block.out_bias()
        if model.graph.parallel:
            mlp_in = stream_of(f"m{layer}", outputs, biases)
            outputs.update(heads)
        else:
            outputs.update(heads)
            mlp_in = stream_of(f"m{layer}", outputs, after) if model.graph.mlps else None
        biases = after
        if mlp_in is not None:
            mlp = block.mlp(block.mlp_norm.module(mlp_in))
            outputs[f"m{layer}"] = override.get(f"m{layer}", mlp)
    final = stream_of("logits", outputs, biases)
    return model.unembed(model.final_norm.module(final)), outputs


def plain_stream(target: str, outputs: Outputs, biases: Tensor) -> Tensor:
    """The whole stream: every source so far, plus biases."""
    return sum(outputs.values()) + biases  # type: ignore[return-value]


def run_plain(model: Model, tokens: Tensor) -> tuple[Tensor, Outputs]:
    """The model itself, node by node."""
    with torch.no_grad():
        return run(model, tokens, plain_stream)


def run_circuit(model: Model, circuit: Circuit, tokens: Tensor, ablated: Outputs) -> Tensor:
    """Equation (1): every target reads kept sources of this run and ablated values of the others."""
    graph = circuit.graph

    def stream_of(target: str, outputs: Outputs, biases: Tensor) -> Tensor:
        column = graph.target_index(target)
        total = biases
        for name, value in outputs.items():
            row = graph.source_index(name)
            if graph.valid[row, column]:
                total = total + (value if circuit.mask[row, column] else ablated[name])
        return total

    return run(model, tokens, stream_of)[0]


def edge_gradients(
    model: Model,
    tokens: Tensor,
    loss: Callable[[Tensor], Tensor],
    *,
    embed: Tensor | None = None,
    override: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Gradient of the summed loss at every target's own copy of the stream, by autograd."""
    copies: dict[str, Tensor] = {}

    def stream_of(target: str, outputs: Outputs, biases: Tensor) -> Tensor:
        if target not in copies:
            # A zero that is a leaf: its gradient is the gradient at this target's input.
            copies[target] = torch.zeros_like(outputs["input"], requires_grad=True)
        return sum(outputs.values()) + biases + copies[target]  # type: ignore[return-value]

    with torch.enable_grad():
        logits, _ = run(model, tokens, stream_of, embed=embed, override=override)
        gradients = torch.autograd.grad(loss(logits).sum(), list(copies.values()), allow_unused=True)
    return {
        name: torch.zeros_like(copy) if gradient is None else gradient
        for (name, copy), gradient in zip(copies.items(), gradients, strict=True)
    }


def scores(model: Model, differences: Outputs, gradients: dict[str, Tensor], lengths: Tensor) -> Tensor:
    """sum_t difference . gradient over real positions, per example: [batch, S, R]."""
    graph = model.graph
    n, length = next(iter(gradients.values())).shape[:2]
    real = (torch.arange(length) < lengths[:, None])[..., None]
    result = torch.zeros(n, graph.n_sources, graph.n_targets, dtype=next(iter(gradients.values())).dtype)
    for row, column in graph.valid.nonzero().tolist():
        product = differences[graph.sources[row]] * gradients[graph.targets[column]]
        result[:, row, column] = (product * real).sum((1, 2))
    return result


def loss_of(
    model: Model, objective: str, batch: object, positions: Tensor, clean_logits: Tensor
) -> Callable[[Tensor], Tensor]:
    """Objective on all-position logits."""
    chosen = get_objective(objective)
    index = torch.arange(len(positions))
    return lambda logits: chosen(logits[index, positions], clean_logits, batch)
