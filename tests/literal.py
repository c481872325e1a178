"""Slow, literal versions of the engine's quantities: node by node, one copy of the stream per target.

They share nothing with the fast paths but the model's own modules and weights.
"""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.models import Model
from assay.models.tracing import StopForward
from assay.objectives import get_objective


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
    scale = scale.detach() if model.post_norm == "frozen" else scale
    return [scale * each * norm.gain for each in written]


def routing_of(model: Model, tokens: Tensor) -> list[Tensor]:
    """The router's factor of every expert for every token, `[batch, pos, n_experts]` per block."""
    found: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, factors, chosen = output
        dense = torch.zeros(len(chosen), module.num_experts, dtype=factors.dtype)
        found.append(dense.scatter(1, chosen, factors).view(*tokens.shape, -1))

    with torch.no_grad(), ExitStack() as hooks:
        for block in model.blocks:
            hooks.callback(block.module.mlp.gate.register_forward_hook(keep).remove)
        model.module(tokens)
    return found


def expert(model: Model, layer: int, number: int, stream: Tensor, factors: Tensor) -> Tensor:
    """What one expert adds to the stream that it reads, by its matrices; zeros where no token goes to it."""
    block = model.blocks[layer].module
    experts = block.mlp.experts
    gate, up = (block.post_attention_layernorm(stream) @ experts.gate_up_proj[number].T).chunk(2, -1)
    return factors[..., number, None] * ((experts.act_fn(gate) * up) @ experts.down_proj[number].T)


def run(
    model: Model,
    tokens: Tensor,
    stream_of: Callable[[str, Outputs, Tensor], Tensor],
    *,
    embed: Tensor | None = None,
    override: dict[str, Tensor] | None = None,
    routing: list[Tensor] | None = None,
) -> tuple[Tensor, Outputs]:
    """Run node by node; `stream_of(target, outputs so far, biases so far)` gives each target's input.

    Where experts are nodes, `routing` is that of the clean input; None: `tokens` are clean.
    """
    if model.graph.experts and routing is None:
        routing = routing_of(model, tokens)
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
        if model.graph.experts:
            outputs.update(heads)
            names = model.graph.mlp_names(layer)
            read = [stream_of(name, outputs, after) for name in names]
            for number, (name, stream) in enumerate(zip(names, read, strict=True)):
                written = override.get(name, expert(model, layer, number, stream, routing[layer]))
                outputs[name] = written
            mlp_in = None
        elif model.graph.parallel:
            mlp_in = stream_of(f"m{layer}", outputs, biases)
            outputs.update(heads)
        else:
            outputs.update(heads)
            mlp_in = stream_of(f"m{layer}", outputs, after) if model.graph.mlps else None
        biases = after
        if mlp_in is not None:
            outputs[f"m{layer}"] = override.get(f"m{layer}", block.run_mlp(mlp_in))
    final = stream_of("logits", outputs, biases)
    return model.unembed(model.final_norm(final)), outputs


def plain_stream(target: str, outputs: Outputs, biases: Tensor) -> Tensor:
    """The whole stream: every source so far, plus biases."""
    return sum(outputs.values()) + biases  # type: ignore[return-value]


def run_plain(model: Model, tokens: Tensor, *, routing: list[Tensor] | None = None) -> tuple[Tensor, Outputs]:
    """The model itself, node by node."""
    with torch.no_grad():
        return run(model, tokens, plain_stream, routing=routing)


def placed(outputs: Outputs, alignment: Tensor) -> Outputs:
    """Outputs of a run on other prompts at the places of the clean tokens, token by token; else zeros."""
    rows, length = alignment.shape
    result = {name: torch.zeros(rows, length, value.shape[-1]).to(value) for name, value in outputs.items()}
    for row in range(rows):
        for place, other in enumerate(alignment[row].tolist()):
            if other >= 0:
                for name, value in outputs.items():
                    result[name][row, place] = value[row, other]
    return result


def keeping_nothing(model: Model, circuit: Circuit) -> list[str]:
    """Nodes that no kept edge reaches from a node which some kept edge, or the clean prompt, reaches."""
    graph, cut = circuit.graph, []
    for row, node in enumerate(graph.sources):
        targets = [target for column, target in enumerate(graph.targets) if graph.feeds[column, row]]
        block = f"{node.split('.')[0]}."
        if ".h" in node and model.coupling == "heads":
            targets = [target for target in graph.targets if target.startswith(block)]
        elif ".h" in node and model.coupling == "queries":
            targets += [t for t in graph.targets if t.startswith(block) and not t.endswith("v")]
        columns = [graph.target_index(target) for target in targets]
        kept = [source for i, source in enumerate(graph.sources) if bool(circuit.mask[i, columns].any())]
        if node != "input" and set(kept) <= set(cut):
            cut.append(node)
    return cut


def run_circuit(
    model: Model,
    circuit: Circuit,
    tokens: Tensor,
    ablated: Outputs,
    *,
    override: Outputs | None = None,
) -> Tensor:
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

    return run(model, tokens, stream_of, override=override)[0]


def run_aligned(
    model: Model, circuit: Circuit, tokens: Tensor, corrupted: Tensor, alignment: Tensor
) -> Tensor:
    """The same with prompts of another length: nodes that keep nothing write what they wrote there.

    `corrupted` holds prompts as they are, without padding, so all have one length.
    """
    ablated = placed(run_plain(model, corrupted)[1], alignment)
    override = {name: ablated[name] for name in keeping_nothing(model, circuit)}
    with torch.no_grad():
        return run_circuit(model, circuit, tokens, ablated, override=override)


def edge_gradients(
    model: Model,
    tokens: Tensor,
    loss: Callable[[Tensor], Tensor],
    *,
    embed: Tensor | None = None,
    override: dict[str, Tensor] | None = None,
    routing: list[Tensor] | None = None,
) -> dict[str, Tensor]:
    """Gradient of the summed loss at every target's own copy of the stream, by autograd."""
    copies: dict[str, Tensor] = {}

    def stream_of(target: str, outputs: Outputs, biases: Tensor) -> Tensor:
        if target not in copies:
            # A zero that is a leaf: its gradient is the gradient at this target's input.
            copies[target] = torch.zeros_like(outputs["input"], requires_grad=True)
        return sum(outputs.values()) + biases + copies[target]  # type: ignore[return-value]

    with torch.enable_grad():
        logits, _ = run(model, tokens, stream_of, embed=embed, override=override, routing=routing)
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
