"""What a native pass leaves behind, and the hooks that pick it up."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass(kw_only=True, eq=False)
class Trace:
    """What one native pass left behind; tensors are detached unless the pass kept its graph.

    Attributes:
        block_in: Per block, the stream entering it, `[batch, pos, d_model]`.
        z: Per block, input of the output projection, `[batch, pos, n_heads * d_head]`.
        mlp: Per block, output of the MLP.
        attention_in, mlp_in: Per block, input of the norms.
        qkv: Per block, outputs of the projection modules.
        final_in: Stream entering the final norm.
        leaf: The stream entering block 0 as a leaf of the graph, when gradients are kept.
        calls: Per block, its positional (after the first) and keyword arguments.
        gradients: Filled during a backward pass: name of a site -> gradient.
    """

    block_in: list[Tensor] = field(default_factory=list)
    z: list[Tensor] = field(default_factory=list)
    mlp: list[Tensor] = field(default_factory=list)
    attention_in: list[Tensor] = field(default_factory=list)
    mlp_in: list[Tensor] = field(default_factory=list)
    qkv: list[list[Tensor]] = field(default_factory=list)
    final_in: Tensor | None = None
    leaf: Tensor | None = None
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    gradients: dict[tuple[str, int, int], Tensor] = field(default_factory=dict)

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
        self.trace.block_in.append(args[0].detach())
        self.trace.calls.append((args[1:], kwargs))
        if self.stop:
            raise StopForward
        if self.leaf:
            # The stream entering block 0 becomes the leaf that a backward pass ends at.
            self.trace.leaf = args[0].detach().requires_grad_()
            return (self.trace.leaf, *args[1:]), kwargs
        return None


class ProjectionOutput:
    """Forward hook of a q/k/v projection."""

    def __init__(
        self, trace: Trace, layer: int, part: int, catch: Callable[[str, int, int, Tensor], None]
    ) -> None:
        self.trace, self.layer, self.part, self.catch = trace, layer, part, catch

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if self.part == 0:
            self.trace.qkv.append([])
        self.trace.qkv[-1].append(output.detach())
        self.catch("qkv", self.layer, self.part, output)


class FinalInput:
    """Forward pre-hook of the final norm: the stream leaving the last block."""

    def __init__(self, trace: Trace, catch: Callable[[str, int, int, Tensor], None]) -> None:
        self.trace, self.catch = trace, catch

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.trace.final_in = args[0].detach()
        self.catch("logits", 0, 0, args[0])
