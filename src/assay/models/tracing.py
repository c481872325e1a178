"""What a native pass leaves behind, and the hooks that pick it up."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from assay.models.block import Block, Norm


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
        gradients: Filled during a backward pass: name of a site -> gradient.
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
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    gradients: dict[tuple[str, int, int], Tensor] = field(default_factory=dict)
    attached: bool = False
    home: torch.device | None = None

    def kept(self, value: Tensor) -> Tensor:
        """A tensor of the pass as the trace holds it."""
        value = value if self.attached else value.detach()
        return value if self.home is None else value.to(self.home)

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


class BlockCall:
    """Forward pre-hook of a block: keeps its arguments and the stream entering it."""

    def __init__(self, trace: Trace, layer: int, *, stop: bool = False, leaf: bool = False) -> None:
        self.trace, self.layer, self.stop, self.leaf = trace, layer, stop, leaf

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        entering = args[0].detach().requires_grad_() if self.leaf else args[0]
        self.trace.block_in.append(self.trace.kept(entering))
        self.trace.calls.append((args[1:], kwargs))
        if self.stop:
            raise StopForward
        if self.leaf:
            # The stream entering block 0 becomes the leaf that a backward pass ends at.
            self.trace.leaf = entering
            return (entering, *args[1:]), kwargs
        return None


class ProjectionOutput:
    """Forward hook of a q/k/v projection; `copies` where the block would overwrite what it is given."""

    def __init__(
        self,
        trace: Trace,
        layer: int,
        part: int,
        catch: Callable[[str, int, int, Tensor], None],
        *,
        copies: bool,
    ) -> None:
        self.trace, self.layer, self.part, self.catch, self.copies = trace, layer, part, catch, copies

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if self.part == 0:
            self.trace.qkv.append([])
        self.trace.qkv[-1].append(self.trace.kept(output))
        self.catch("qkv", self.layer, self.part, output)
        return output.clone() if self.copies else None


class KeptHeads:
    """Forward pre-hook of an output projection: keep the heads' outputs."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        z = self.trace.kept(args[0])
        self.trace.head_z.append(z)
        self.trace.z.append(z)


class BranchInput:
    """Forward pre-hook of a branch norm: the heads' outputs are kept times the scale they share."""

    def __init__(self, trace: Trace, norm: Norm) -> None:
        self.trace, self.norm = trace, norm

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        z, scale = self.trace.head_z[-1], self.norm.standardise(self.trace.kept(args[0]))[1]
        self.trace.z[-1] = (z * scale).to(z.dtype)


class MlpOutput:
    """Forward hook of what an MLP adds to the stream; `copies` where the block would overwrite it."""

    def __init__(self, trace: Trace, *, copies: bool) -> None:
        self.trace, self.copies = trace, copies

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        batch = self.trace.block_in[-1].shape  # some MLPs are given the tokens of all examples in one row
        self.trace.mlp.append(self.trace.kept(output).view(batch))
        return output.clone() if self.copies else None


class MlpInput:
    """Forward pre-hook of an MLP's norm, or of the MLP itself where it shares the attention's or has none.

    In the second case the MLP gets an alias of what it reads: the gradient at the tensor itself would be the
    attention's too.
    """

    def __init__(
        self,
        trace: Trace,
        layer: int,
        catch: Callable[[str, int, int, Tensor], None],
        *,
        shared: bool,
        normed: bool,
    ) -> None:
        self.trace, self.layer, self.catch, self.shared, self.normed = trace, layer, catch, shared, normed

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        attention_in = self.trace.attention_in[-1]
        from_norm = self.shared and self.normed
        # Some MLPs are given the tokens of all examples in one row.
        self.trace.mlp_in.append(
            attention_in if from_norm else self.trace.kept(args[0]).view(attention_in.shape)
        )
        if not self.shared:
            return None
        alias = args[0].view_as(args[0])
        self.catch("mlp", self.layer, 0, alias)
        return (alias, *args[1:]), kwargs


class FinalInput:
    """The stream leaving the last block: pre-hook of the final norm, or hook of that block without one."""

    def __init__(self, trace: Trace, catch: Callable[[str, int, int, Tensor], None]) -> None:
        self.trace, self.catch = trace, catch

    def __call__(self, module: nn.Module, args: tuple[Any, ...], value: Any) -> None:
        stream = args[0] if isinstance(value, dict) else value[0] if isinstance(value, tuple) else value
        self.trace.final_in = self.trace.kept(stream)
        self.catch("logits", 0, 0, stream)


class _Hooks:
    """The hooks of one traced pass."""

    def __init__(self, trace: Trace, *, gradients: bool) -> None:
        self.trace, self.gradients, self.placed = trace, gradients, ExitStack()

    def catch(self, site: str, layer: int, part: int, tensor: Tensor) -> None:
        """Keep the gradient at a tensor once a backward pass has run.

        By a tensor hook, not a module backward hook: it sees exactly this tensor's gradient.
        """
        if self.gradients and tensor.requires_grad:
            trace = self.trace
            tensor.register_hook(
                lambda gradient: trace.gradients.__setitem__((site, layer, part), trace.kept(gradient))
            )

    def on_input(self, module: nn.Module, function: Callable[..., object]) -> None:
        self.placed.callback(module.register_forward_pre_hook(function, with_kwargs=True).remove)

    def on_output(self, module: nn.Module, function: Callable[..., object]) -> None:
        self.placed.callback(module.register_forward_hook(function).remove)

    def on_sources(self, layer: int, block: Block) -> None:
        """Keep what a block's sources write, and the arguments of its call."""
        trace = self.trace
        self.on_input(block.module, BlockCall(trace, layer, leaf=self.gradients and layer == 0))
        self.on_input(block.out, KeptHeads(trace))
        if block.branch_norm is not None and block.branch_norm.module is not None:
            self.on_input(block.branch_norm.module, BranchInput(trace, block.branch_norm))
        self.on_output(block.mlp_out, MlpOutput(trace, copies=block.family.overwrites))

    def on_streams(self, layer: int, block: Block, *, mlps: bool) -> None:
        """Keep what a block's norms read and its projections give."""
        trace, norm = self.trace, block.mlp_norm.module
        self.on_input(
            block.attention_norm.module or block.module,
            lambda module, args, kwargs: trace.attention_in.append(trace.kept(args[0])),
        )
        for part, projection in enumerate(block.qkv):
            copies = block.family.overwrites
            self.on_output(projection, ProjectionOutput(trace, layer, part, self.catch, copies=copies))
        shared = norm is None or block.shares_norm
        read = MlpInput(trace, layer, self.catch, shared=shared, normed=norm is not None)
        self.on_input(block.mlp if norm is None or shared else norm, read)
        if mlps and norm is not None and not shared:
            self.on_output(norm, lambda module, args, output: self.catch("mlp", layer, 0, output))


def hooks_of(
    blocks: Sequence[Block],
    final_norm: Norm,
    trace: Trace,
    *,
    mlps: bool,
    sources: bool,
    gradients: bool,
    streams: bool,
    until: int | None,
) -> ExitStack:
    """Hooks that fill a trace in the next pass, until the stack is closed; see `Model.tracing`."""
    hooks = _Hooks(trace, gradients=gradients)
    for layer, block in enumerate(blocks):
        if layer == until:
            hooks.on_input(block.module, BlockCall(trace, layer, stop=True))
            return hooks.placed
        if sources:
            hooks.on_sources(layer, block)
        if streams or gradients:
            hooks.on_streams(layer, block, mlps=mlps)
    final = FinalInput(trace, hooks.catch)
    if final_norm.module is None:
        hooks.on_output(blocks[-1].module, final)
    else:
        hooks.on_input(final_norm.module, final)
    return hooks.placed
