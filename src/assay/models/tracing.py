"""What a native pass leaves behind, and the hooks that pick it up."""

from collections.abc import Callable
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
        leaves: Where a backward pass ends: in block 0, outputs of the projections and, where it reads the
            stream that they read, what the MLP is given.
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
    leaves: list[Tensor] = field(default_factory=list)
    calls: list[Arguments] = field(default_factory=list)
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
        self.attention_in, self.mlp_in, self.qkv, self.leaves = [], [], [], []
        self.final_in = None


class StopForward(Exception):  # noqa: N818 - control flow, never an error
    """Ends a native pass early; caught by the `tracing` that asked for it."""


class Recorder(ExitStack):
    """Hooks that fill a trace in the next pass, until this is closed; see `Model.tracing`.

    Args:
        trace: Where everything is kept.
        gradients: Whether gradients are kept too, once a backward pass has run.
    """

    def __init__(self, trace: Trace, *, gradients: bool) -> None:
        super().__init__()
        self.trace, self.gradients = trace, gradients

    def before(self, module: nn.Module, keep: Callable[..., Arguments | None]) -> None:
        """Call `keep` with the arguments of a module; what it returns takes their place."""
        handle = module.register_forward_pre_hook(
            lambda _, args, kwargs: keep(args, kwargs), with_kwargs=True
        )
        self.callback(handle.remove)

    def behind(self, module: nn.Module, keep: Callable[[Any], Tensor | None]) -> None:
        """Call `keep` with the output of a module; what it returns takes its place."""
        self.callback(module.register_forward_hook(lambda _, args, output: keep(output)).remove)

    def catch(self, name: str, layer: int, part: int, tensor: Tensor) -> None:
        """Keep the gradient at a tensor, by a hook of the tensor: that of a module sees other uses too."""
        trace, key = self.trace, (name, layer, part)
        if self.gradients and name != "logits" and layer == 0 and not tensor.requires_grad:
            trace.leaves.append(tensor.requires_grad_())
        if self.gradients and tensor.requires_grad:
            tensor.register_hook(lambda gradient: trace.gradients.__setitem__(key, trace.kept(gradient)))

    def entering(self, block: Block, *, last: bool) -> None:
        """The stream entering a block, and the arguments of its call; the last one ends the pass there."""
        trace = self.trace

        def keep(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            trace.block_in.append(trace.kept(args[0]))
            trace.calls.append((args[1:], kwargs))
            if last:
                raise StopForward

        self.before(block.module, keep)

    def written(self, block: Block) -> None:
        """What the heads of a block give to their output projection, and what its MLP writes."""
        trace, norm = self.trace, block.branch_norm

        def heads(args: tuple[Any, ...], _: object) -> None:
            z = trace.kept(args[0])
            trace.head_z.append(z)
            trace.z.append(z)

        def rescaled(args: tuple[Any, ...], _: object) -> None:
            """Before a branch norm: the heads' outputs are kept times the scale they share."""
            assert norm is not None
            z, scale = trace.head_z[-1], norm.standardise(trace.kept(args[0]))[1]
            trace.z[-1] = (z * scale).to(z.dtype)

        def mlp(output: Tensor) -> Tensor | None:
            # Some MLPs are given the tokens of all examples in one row.
            trace.mlp.append(trace.kept(output).view(trace.block_in[-1].shape))
            return output.clone() if block.family.overwrites else None

        self.before(block.out, heads)
        if norm is not None and norm.module is not None:
            self.before(norm.module, rescaled)
        self.behind(block.mlp_out, mlp)

    def read(self, block: Block, layer: int) -> None:
        """What the norms of a block are given, and what its projections make of it."""
        trace, norm = self.trace, block.mlp_norm.module
        own_norm = None if block.shares_norm else norm

        def attention(args: tuple[Any, ...], _: object) -> None:
            trace.attention_in.append(trace.kept(args[0]))

        def projected(part: int, output: Tensor) -> Tensor | None:
            if part == 0:
                trace.qkv.append([])
            trace.qkv[-1].append(trace.kept(output))
            self.catch("qkv", layer, part, output)
            return output.clone() if block.family.overwrites else None

        def mlp(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
            """What the MLP's norm is given, or the MLP where it shares the attention's norm or has none.

            In the second case the MLP gets an alias of what it reads: the gradient at the tensor itself would
            be the attention's too.
            """
            before, shared = trace.attention_in[-1], norm is not None and own_norm is None
            trace.mlp_in.append(before if shared else trace.kept(args[0]).view(before.shape))
            if own_norm is not None:
                return None
            alias = args[0].view_as(args[0])
            self.catch("mlp", layer, 0, alias)
            return (alias, *args[1:]), kwargs

        self.before(block.attention_norm.module or block.module, attention)
        for part, projection in enumerate(block.qkv):
            self.behind(projection, partial(projected, part))
        self.before(own_norm or block.mlp, mlp)
        if block.family.mlps and own_norm is not None:
            self.behind(own_norm, partial(self.catch, "mlp", layer, 0))

    def final(self, block: Block, norm: Norm) -> None:
        """The stream entering the final norm, or leaving the last block where there is none."""

        def keep(stream: Tensor) -> None:
            self.trace.final_in = self.trace.kept(stream)
            self.catch("logits", 0, 0, stream)

        if norm.module is None:
            self.behind(block.module, lambda out: keep(out[0] if isinstance(out, tuple) else out))
        else:
            self.before(norm.module, lambda args, _: keep(args[0]))
