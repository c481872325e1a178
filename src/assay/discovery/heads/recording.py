"""A native pass whose attention sites stay in the autograd graph, so gradients can be taken at them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from assay.models import Model


@dataclass(kw_only=True, eq=False)
class Recording:
    """Tensors of one pass, per layer from `first` on, attached to its graph.

    Attributes:
        stream: Input of the query/key/value projections (the normed stream), `[batch, pos, d_model]`.
        qkv: Outputs of the projection modules.
        z: Input of the output projection, `[batch, pos, n_heads * d_head]`.
        out: Its output.
    """

    stream: list[Tensor] = field(default_factory=list)
    qkv: list[list[Tensor]] = field(default_factory=list)
    z: list[Tensor] = field(default_factory=list)
    out: list[Tensor] = field(default_factory=list)


@contextmanager
def recording(model: Model) -> Iterator[Recording]:
    """Record the pass made inside; the stream entering block 0 becomes a leaf that gradients end at.

    No parameter asks for a gradient meanwhile, so a backward pass costs about one forward pass.
    """
    record = Recording()

    def leaf(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (args[0].detach().requires_grad_(), *args[1:]), kwargs

    def projected(part: int) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if part == 0:
                record.stream.append(args[0])
                record.qkv.append([])
            record.qkv[-1].append(output)

        return hook

    def wrote(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        record.z.append(args[0])
        record.out.append(output)

    with ExitStack() as stack:
        stack.enter_context(model.frozen())
        stack.enter_context(torch.enable_grad())
        handles = [model.blocks[0].module.register_forward_pre_hook(leaf, with_kwargs=True)]
        for block in model.blocks:
            handles += [
                projection.register_forward_hook(projected(part)) for part, projection in enumerate(block.qkv)
            ]
            handles.append(block.out.register_forward_hook(wrote))
        for handle in handles:
            stack.callback(handle.remove)
        yield record
