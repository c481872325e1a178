"""What the sources of a run wrote: each by itself where a target asks for it, and the sum of all."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from assay.execution.feeds import Feed
from assay.execution.plan import Inlet
from assay.models import Model, Trace


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What some inlets ask for.

    Attributes:
        every: A slot for each source that is needed by itself at all positions.
        last: The same at the read position.
        total_every: Whether the sum at all positions is needed.
        total_last: Whether the sum at the read position is.
    """

    every: dict[int, int]
    last: dict[int, int]
    total_every: bool
    total_last: bool

    @classmethod
    def by(cls, inlets: Sequence[Inlet] | Sequence[Feed]) -> "Wanted":
        """What these inlets ask for."""
        every = [inlet for inlet in inlets if inlet.everywhere]
        last = [inlet for inlet in inlets if not inlet.everywhere]
        return cls(
            every=_slots(every),
            last=_slots(last),
            total_every=any(inlet.from_total for inlet in every),
            total_last=any(inlet.from_total for inlet in last),
        )


def _slots(inlets: Sequence[Inlet | Feed]) -> dict[int, int]:
    """A place for each source, in forward order."""
    rows = {row for inlet in inlets for row in inlet.terms}
    return {row: slot for slot, row in enumerate(sorted(rows))}


class Written:
    """Outputs of sources in one batch, or their differences from ablated ones.

    Args:
        wanted: What is kept.
        like: A tensor of the number type and device of the run.
        shape: Pairs, positions, width of the stream.
        read: Read position of each pair; None: the last of all.
    """

    def __init__(
        self, wanted: Wanted, like: Tensor, shape: tuple[int, int, int], read: Int[Tensor, " n"] | None
    ) -> None:
        n, _, width = shape
        self.wanted, self.read = wanted, read
        self.index = torch.arange(n, device=like.device)
        self.every = like.new_empty(len(wanted.every), *shape)
        self.last = like.new_empty(len(wanted.last), n, width)
        self.total = like.new_zeros(shape) if wanted.total_every else None
        self.total_last = like.new_zeros(n, width) if wanted.total_last else None

    def at_read(self, value: Num[Tensor, "rows pos *axes"]) -> Num[Tensor, "n *axes"]:
        """The read position of values of all pairs, or of one row that they share."""
        if self.read is None:
            return value[:, -1]
        return value[0][self.read] if value.shape[0] == 1 else value[self.index, self.read]

    def at(self, *, everywhere: bool) -> tuple[dict[int, int], Tensor, Tensor | None]:
        """Slots, single sources and their sum, at all positions or at the read position."""
        if everywhere:
            return self.wanted.every, self.every, self.total
        return self.wanted.last, self.last, self.total_last

    def put(self, row: int, value: Tensor) -> None:
        """Keep what one source writes, at all positions or at the read position."""
        if value.ndim == 3:
            if row in self.wanted.every:
                self.every[self.wanted.every[row]] = value
            if self.total is not None:
                self.total += value
        if row in self.wanted.last or self.total_last is not None:
            at_read = self.at_read(value) if value.ndim == 3 else value
            if row in self.wanted.last:
                self.last[self.wanted.last[row]] = at_read
            if self.total_last is not None:
                self.total_last += at_read


def written_by(
    model: Model, trace: Trace, rows: Sequence[int], *, behind: int = 0
) -> Float[Tensor, "rows n pos d_model"]:
    """What some sources of a traced pass wrote into the stream, behind the first positions."""
    graph, dtype, first = model.graph, model.result_dtype, trace.input[:, behind:]
    writes = torch.empty(len(rows), *first.shape, dtype=dtype, device=first.device)
    place = {row: index for index, row in enumerate(rows)}
    if 0 in place:
        writes[place[0]] = first
    for layer, block in enumerate(model.blocks):
        start = graph.head_source(layer)
        heads = [head for head in range(model.n_heads) if start + head in place]
        if heads:
            z = trace.z[layer][:, behind:].to(dtype).unflatten(-1, (model.n_heads, model.d_head))
            z = z[:, :, heads].permute(2, 0, 1, 3).flatten(1, 2)
            begin = place[start + heads[0]]
            into = writes[begin : begin + len(heads)].flatten(1, 2)
            torch.bmm(z, block.out_weight()[heads].to(dtype), out=into)
        if graph.mlps and (row := graph.mlp_source(layer)) in place:
            writes[place[row]] = trace.mlp[layer][:, behind:]
    return writes
