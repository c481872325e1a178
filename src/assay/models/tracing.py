"""What a native pass leaves behind, and the hooks that pick it up."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from assay.models.block import Block, Norm


Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # of a call: by position, by keyword


@dataclass(kw_only=True, eq=False)
class Trace:
    """What one native pass left behind; tensors are detached unless the pass kept its graph.

    Attributes:
        block_in: Per block, the stream entering it, `[batch, pos, d_model]`.
        head_z: Per block, input of the output projection, `[batch, pos, n_heads * d_head]`.
        z: The same; with a branch norm times its 1/rms (see `Block.rescaled`).
        mlp: Per block, output of the MLP, `[batch, pos, d_model]`.
        attention_in, mlp_in: Per block, input of the norms.
        qkv: Per block, outputs of the projection modules.
        final_in: Stream entering the final norm.
        leaf: The stream entering block 0 as a leaf of the graph, when gradients are kept.
        calls: Per block, its positional (after the first) and keyword arguments.
        gradients: Filled during a backward pass: name, block and part of a tensor -> gradient.
        attached: Whether tensors stay in the autograd graph of the pass.
        home: Device of all that is kept; None: each tensor where it was.
    """

    block_in: list[Tensor] = field(default_factory=list)
    head_z: list[Tensor] = field(default_factory=list)
    z: list[Tensor] = field(default_factory=list)
    mlp: list[Tensor] = field(default_factory=list)
    attention_in: list[Tensor] = field(default_factory=list)
    mlp_in: list[Tensor] = field(default_factory=list)
    qkv: list[list[Tensor]] = field(default_factory=list)
    final_in: Tensor | None = None
    leaf: Tensor | None = None
    calls: list[Arguments] = field(default_factory=list)
    gradients: dict[tuple[str, int, int], Tensor] = field(default_factory=dict)
    attached: bool = False
    home: torch.device | None = None

    def kept(self, value: Tensor) -> Tensor:
        """A tensor of the pass as the trace holds it."""
        value = value if self.attached else value.detach()
        return value if self.home is None else value.to(self.home)

    def catch(self, name: str, layer: int, part: int, tensor: Tensor) -> None:
        """Keep the gradient at a tensor once a backward pass has run.

        By a tensor hook, not a module backward hook: it sees exactly this tensor's gradient.
        """
        if tensor.requires_grad:
            tensor.register_hook(
                lambda gradient: self.gradients.__setitem__((name, layer, part), self.kept(gradient))
            )

    @property
    def input(self) -> Tensor:
        """What the `input` source writes: the stream entering block 0."""
        return self.block_in[0]

    @property
    def nbytes(self) -> int:
        """Memory of the activations."""
        parts = (*self.block_in, *self.z, *self.mlp, *self.attention_in, *self.mlp_in, *chain(*self.qkv))
        return sum(part.nbytes for part in (*parts, *([] if self.final_in is None else [self.final_in])))

    def release(self) -> None:
        """Forget everything that only a backward pass needed."""
        self.gradients.clear()
        self.attention_in, self.mlp_in, self.qkv = [], [], []
        self.final_in = self.leaf = None


class StopForward(Exception):  # noqa: N818 - control flow, never an error
    """Ends a native pass early; caught by the `tracing` that asked for it."""


def hooks_of(
    blocks: Sequence[Block],
    final_norm: Norm,
    trace: Trace,
    *,
    sources: bool,
    gradients: bool,
    streams: bool,
    until: int | None,
) -> ExitStack:
    """Hooks that fill a trace in the next pass, until the stack is closed; see `Model.tracing`."""
    hooks = ExitStack()

    def on_input(module: nn.Module, function: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None:
        handle = module.register_forward_pre_hook(
            lambda _, args, kwargs: function(args, kwargs), with_kwargs=True
        )
        hooks.callback(handle.remove)

    def on_output(module: nn.Module, function: Callable[[Any], Tensor | None]) -> None:
        hooks.callback(module.register_forward_hook(lambda _, args, output: function(output)).remove)

    def catch(name: str, layer: int, part: int, tensor: Tensor) -> None:
        if gradients:
            trace.catch(name, layer, part, tensor)

    def enters(layer: int) -> Callable[..., Arguments | None]:
        """The stream entering a block, and the arguments of its call."""

        def keep(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
            first = gradients and layer == 0
            entering = args[0].detach().requires_grad_() if first else args[0]
            trace.block_in.append(trace.kept(entering))
            trace.calls.append((args[1:], kwargs))
            if layer == until:
                raise StopForward
            if not first:
                return None
            trace.leaf = entering  # a backward pass ends there
            return (entering, *args[1:]), kwargs

        return keep

    def heads(args: tuple[Any, ...], _: object) -> None:
        z = trace.kept(args[0])
        trace.head_z.append(z)
        trace.z.append(z)

    def rescaled_by(norm: Norm) -> Callable[..., None]:
        """Before a branch norm: the heads' outputs are kept times the scale they share."""

        def keep(args: tuple[Any, ...], _: object) -> None:
            z, scale = trace.head_z[-1], norm.standardise(trace.kept(args[0]))[1]
            trace.z[-1] = (z * scale).to(z.dtype)

        return keep

    def mlp_gives(block: Block) -> Callable[[Tensor], Tensor | None]:
        def keep(output: Tensor) -> Tensor | None:
            # Some MLPs are given the tokens of all examples in one row.
            trace.mlp.append(trace.kept(output).view(trace.block_in[-1].shape))
            return output.clone() if block.family.overwrites else None

        return keep

    def projects(layer: int, part: int, block: Block) -> Callable[[Tensor], Tensor | None]:
        def keep(output: Tensor) -> Tensor | None:
            if part == 0:
                trace.qkv.append([])
            trace.qkv[-1].append(trace.kept(output))
            catch("qkv", layer, part, output)
            return output.clone() if block.family.overwrites else None

        return keep

    def mlp_reads(layer: int, block: Block) -> Callable[..., Arguments | None]:
        """What the MLP's norm is given, or the MLP itself where it shares the attention's norm or has none.

        In the second case the MLP gets an alias of what it reads: the gradient at the tensor itself would be
        the attention's too.
        """
        normed = block.mlp_norm.module is not None
        shared = not normed or block.shares_norm

        def keep(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
            before = trace.attention_in[-1]
            trace.mlp_in.append(before if shared and normed else trace.kept(args[0]).view(before.shape))
            if not shared:
                return None
            alias = args[0].view_as(args[0])
            catch("mlp", layer, 0, alias)
            return (alias, *args[1:]), kwargs

        return keep

    def final(stream: Tensor) -> None:
        trace.final_in = trace.kept(stream)
        catch("logits", 0, 0, stream)

    for layer, block in enumerate(blocks):
        if layer == until:
            on_input(block.module, enters(layer))
            return hooks
        norm = block.mlp_norm.module
        if sources:
            on_input(block.module, enters(layer))
            on_input(block.out, heads)
            if block.branch_norm is not None and block.branch_norm.module is not None:
                on_input(block.branch_norm.module, rescaled_by(block.branch_norm))
            on_output(block.mlp_out, mlp_gives(block))
        if streams or gradients:
            on_input(
                block.attention_norm.module or block.module,
                lambda args, _: trace.attention_in.append(trace.kept(args[0])),
            )
            for part, projection in enumerate(block.qkv):
                on_output(projection, projects(layer, part, block))
            own_norm = norm is not None and not block.shares_norm
            on_input(norm if norm is not None and own_norm else block.mlp, mlp_reads(layer, block))
            if block.family.mlps and norm is not None and own_norm:
                on_output(norm, partial(catch, "mlp", layer, 0))
    if final_norm.module is None:
        on_output(
            blocks[-1].module,
            lambda output: final(output[0] if isinstance(output, tuple) else output),
        )
    else:
        on_input(final_norm.module, lambda args, _: final(args[0]))
    return hooks
