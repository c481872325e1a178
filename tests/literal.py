"""Slow, literal versions of the engine's quantities: node by node, one copy of the stream per target.

They share nothing with the fast paths but the model's own modules and weights. Logits of prompts are at all
positions.
"""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.execution import ABLATIONS
from assay.models import Model
from assay.models.tracing import StopForward
from assay.objectives import get_objective
from assay.tasks import Task


# node name -> output in the stream, [batch, pos, d_model]
Outputs = dict[str, Tensor]
Call = tuple[tuple[Any, ...], dict[str, Any]]  # what a block is given besides the stream


def _heads(model: Model, layer: int, streams: dict[str, Tensor], call: Call) -> list[Tensor]:
    """Output of every head of a block from a copy of the stream for each of its targets.

    The native block computes them: its projections are made to give what each target projects, and it is
    stopped before its output projection.
    """
    block = model.blocks[layer]
    names = [name for name in model.graph.targets if name.startswith(f"a{layer}.")]
    projected = [[part(block.attention_norm(streams[name])) for part in block.qkv] for name in names]
    channels = [block.channels(parts)[..., place, :] for place, parts in enumerate(projected)]
    widths = [part.shape[-1] for part in projected[0]]
    numbers = block.channels(list(torch.arange(float(sum(widths))).split(widths)))
    columns = torch.stack(channels, -2).flatten(-2)[..., numbers.flatten().argsort()]
    z: list[Tensor] = []

    def stop(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        z.append(args[0])
        raise StopForward

    with ExitStack() as hooks:
        for part, given in zip(block.qkv, columns.split(widths, -1), strict=True):
            handle = part.register_forward_hook(lambda module, args, output, given=given: given.clone())
            hooks.callback(handle.remove)
        hooks.callback(block.out.register_forward_pre_hook(stop).remove)
        with suppress(StopForward):
            args, kwargs = call
            block.module(streams[names[0]], *args, **kwargs)
    weight = block.out.weight.T if isinstance(block.out, nn.Linear) else block.out.weight
    if block.attention_scale is not None:
        weight = weight * next(block.attention_scale.parameters())
    by_head = z[0].unflatten(-1, (model.n_heads, model.d_head))
    written = [
        by_head[..., head, :] @ weight.unflatten(0, (model.n_heads, -1))[head]
        for head in range(model.n_heads)
    ]
    if block.branch_norm is None:
        return written
    # What the norm makes of their sum, shared out: 1/rms of the sum times the gain, on each.
    norm = block.branch_norm
    scale = (sum(written).square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    scale = scale.detach() if getattr(norm.module, "constant_scale", False) else scale
    return [scale * each * norm.gain for each in written]


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
    with model.tracing() as trace, torch.no_grad():
        model.forward(tokens)
    embed = trace.input if embed is None else embed
    outputs["input"] = override.get("input", embed)
    biases = torch.zeros(model.d_model, dtype=embed.dtype)
    for layer, block in enumerate(model.blocks):
        names = [name for name in model.graph.targets if name.startswith(f"a{layer}.")]
        streams = {name: stream_of(name, outputs, biases) for name in names}
        written = _heads(model, layer, streams, trace.calls[layer])
        heads = {f"a{layer}.h{head}": output for head, output in enumerate(written)}
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
            outputs[f"m{layer}"] = override.get(f"m{layer}", block.run_mlp(mlp_in))
    final = model.final_norm(stream_of("logits", outputs, biases))
    if model.vision is None:
        return model.unembed(final), outputs
    return model.read(final, torch.zeros(len(final), dtype=torch.long)), outputs


def plain_stream(target: str, outputs: Outputs, biases: Tensor) -> Tensor:
    """The whole stream: every source so far, plus biases."""
    return sum(outputs.values()) + biases  # type: ignore[return-value]


def run_plain(model: Model, tokens: Tensor) -> tuple[Tensor, Outputs]:
    """The model itself, node by node."""
    with torch.no_grad():
        return run(model, tokens, plain_stream)


def run_circuit(
    model: Model,
    circuit: Circuit,
    tokens: Tensor,
    ablated: Outputs,
) -> Tensor:
    """Equation (1): every target reads kept sources of this run and ablated values of the others."""
    graph = circuit.graph

    def stream_of(target: str, outputs: Outputs, biases: Tensor) -> Tensor:
        column = graph.target_index(target)
        total = biases
        for name, value in outputs.items():
            row = graph.source_index(name)
            if graph.valid[row, column]:
                kept = circuit.mask[row, column] * (circuit.cells[row] if circuit.level == "neuron" else 1)
                total = total + torch.where(kept.bool(), value, ablated[name])
        return total

    return run(model, tokens, stream_of)[0]


def ablated_outputs(model: Model, task: Task, ablation: str) -> Outputs:
    """Ablated value of every node as the stream sees it, from the package's own replacement activations."""
    batch = next(iter(task.batches(task.n)))
    baseline = ABLATIONS[ablation].prepare(model, task, batch_size=2, seed=0).baseline(batch)
    shape = (task.n, task.length, -1)
    outputs = {"input": baseline.input.expand(shape)}
    for layer, block in enumerate(model.blocks):
        z = baseline.z[layer].expand(shape).unflatten(-1, (model.n_heads, model.d_head))
        for head in range(model.n_heads):
            outputs[f"a{layer}.h{head}"] = z[:, :, head] @ block.out_weight()[head]
        outputs[f"m{layer}"] = baseline.mlp[layer].expand(shape)
    return outputs


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
