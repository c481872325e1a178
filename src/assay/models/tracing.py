"""What a native pass leaves behind, and the hooks that pick it up."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from assay.models.block import Norm


@dataclass(kw_only=True, eq=False)
class Trace:
    """What one native pass left behind; tensors are detached unless the pass kept its graph.

    Attributes:
        block_in: Per block, the stream entering it, `[batch, pos, d_model]`.
        z: Per block, input of the output projection, `[batch, pos, n_heads * d_head]`; with a branch norm
            times its 1/rms (see `Block.rescaled`).
        mlp: Per block, output of the MLP.
        scale: Per block, that 1/rms, `[batch, pos, 1]`.
        attention_in, mlp_in: Per block, input of the norms.
        qkv: Per block, outputs of the projection modules.
        final_in: Stream entering the final norm.
        leaf: The stream entering block 0 as a leaf of the graph, when gradients are kept.
        calls: Per block, its positional (after the first) and keyword arguments.
        gradients: Filled during a backward pass: name of a site -> gradient.
        attached: Whether tensors stay in the autograd graph of the pass.
    """

    block_in: list[Tensor] = field(default_factory=list)
    z: list[Tensor] = field(default_factory=list)
    mlp: list[Tensor] = field(default_factory=list)
    scale: list[Tensor] = field(default_factory=list)
    attention_in: list[Tensor] = field(default_factory=list)
    mlp_in: list[Tensor] = field(default_factory=list)
    qkv: list[list[Tensor]] = field(default_factory=list)
    final_in: Tensor | None = None
    leaf: Tensor | None = None
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    gradients: dict[tuple[str, int, int], Tensor] = field(default_factory=dict)
    attached: bool = False

    def kept(self, value: Tensor) -> Tensor:
        """A tensor of the pass as the trace holds it."""
        return value if self.attached else value.detach()

    @property
    def input(self) -> Tensor:
        """What the `input` source writes: the stream entering block 0."""
        return self.block_in[0]

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


class BranchInput:
    """Forward pre-hook of a branch norm: the heads' outputs are kept times the scale they share."""

    def __init__(self, trace: Trace, norm: Norm) -> None:
        self.trace, self.norm = trace, norm

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        z, scale = self.trace.z[-1], self.norm.standardise(self.trace.kept(args[0]))[1]
        self.trace.z[-1] = z * scale.to(z.dtype)
        self.trace.scale.append(scale)


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
