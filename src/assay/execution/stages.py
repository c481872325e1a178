"""Which targets and heads are live while edges are cut from `logits` towards `input`.

A stage is the attention or the MLP of a block, or `logits`. It is opened once, when every edge behind it is
decided: what is live there then stays as it is.
"""

from dataclasses import dataclass, field
from functools import cache

import torch
from jaxtyping import Bool
from torch import Tensor

from assay.models import Model


@dataclass(kw_only=True, eq=False)
class TargetGroup:
    """Live targets of one stage that are read at the same positions.

    Attributes:
        everywhere: Read at all positions, or at the read position only.
        columns: The targets, in order.
        weight, bias: Their projections `[columns, d_model, d_head]` and `[columns, 1, d_head]`, if channels.
        turned: How many of them are queries, and how many queries or keys; values come last.
    """

    everywhere: bool
    columns: tuple[int, ...]
    weight: Tensor | None = None
    bias: Tensor | None = None
    turned: tuple[int, int] = (0, 0)


@dataclass(kw_only=True, eq=False)
class HeadGroup:
    """Live heads of a block whose outputs are needed at the same positions.

    Attributes:
        everywhere: Needed at all positions, or at the read position only.
        heads: Their numbers.
        reads: Their query, key and value targets.
        weight: Their output projections `[heads, d_head, d_model]`.
    """

    everywhere: bool
    heads: tuple[int, ...]
    reads: tuple[tuple[int, int, int], ...]
    weight: Tensor


@dataclass(kw_only=True, eq=False)
class LiveStage:
    """The attention or the MLP of a block, or `logits`: what of it is live."""

    layer: int
    groups: list[TargetGroup] = field(default_factory=list)
    heads: list[HeadGroup] = field(default_factory=list)


class LiveStages:
    """Stages of a model, opened from the last one on.

    Args:
        model: The model.
        several: Whether several positions of an example are read.

    Attributes:
        kept: Edges that are not cut; whoever cuts clears them here.
        opened: The live part of each open stage, by its number.
        lowest: Number of the first open stage.
        last: Number of `logits`; attention of layer l is 2 l, its MLP 2 l + 1.
        stage_of: Stage of each target.
        somewhere: Live targets of open stages.
        everywhere: Those that are read at all positions, not at the read position only.
        out: From a block to its output projections `[heads, d_head, d_model]`.
    """

    def __init__(self, model: Model, *, several: bool = False) -> None:
        graph = model.graph
        self.model, self.several = model, several
        self.kept: Bool[Tensor, "n_sources n_targets"] = graph.valid.clone()
        self.out = cache(lambda layer: model.blocks[layer].out_weight().to(model.result_dtype))
        self.everywhere = torch.zeros(graph.n_targets, dtype=torch.bool)
        self.somewhere = torch.zeros(graph.n_targets, dtype=torch.bool)
        self.last = 2 * model.n_layers
        self.stage_of = [2 * (int(layer) - 1) for layer in graph.target_layer]
        if graph.mlps:
            for layer in range(graph.n_layers):
                self.stage_of[graph.mlp_target(layer)] += 1
        self.opened: dict[int, LiveStage] = {}
        self.lowest = self.last + 1

    def open_next(self) -> LiveStage | None:
        """Decide what is live at the stage before those that are open; None: nothing."""
        self.lowest -= 1
        stage = self._at(self.lowest)
        if stage is not None:
            self.opened[self.lowest] = stage
        return stage

    def _at(self, stage: int) -> LiveStage | None:
        graph, layer = self.model.graph, stage // 2
        if stage == self.last:
            whole = self.model.pools or self.several
            return LiveStage(layer=layer, groups=self._groups([(graph.n_targets - 1, whole)]))
        if stage % 2:
            if not graph.mlps:
                return None
            needed, everywhere = self._needed(graph.mlp_source(layer))
            column = graph.mlp_target(layer)
            groups = self._groups([(column, everywhere)] if needed else [])
            return LiveStage(layer=layer, groups=groups) if groups else None
        return self._attention(layer)

    def _needed(self, row: int) -> tuple[bool, bool]:
        """Whether the output of a source is needed at all, and whether at all positions."""
        return bool((self.kept[row] & self.somewhere).any()), bool((self.kept[row] & self.everywhere).any())

    def _groups(self, live: list[tuple[int, bool]]) -> list[TargetGroup]:
        """Live targets, sorted by where they are read; also noted as live."""
        groups = []
        for everywhere in (True, False):
            columns = tuple(sorted({column for column, where in live if where is everywhere}))
            if columns:
                self.somewhere[list(columns)] = True
                self.everywhere[list(columns)] = everywhere
                groups.append(TargetGroup(everywhere=everywhere, columns=columns))
        return groups

    def _attention(self, layer: int) -> LiveStage | None:
        graph, block = self.model.graph, self.model.blocks[layer]
        live: list[tuple[int, bool]] = []
        parts: dict[bool, list[tuple[int, tuple[int, int, int]]]] = {True: [], False: []}
        for head in range(graph.n_heads):
            needed, everywhere = self._needed(graph.head_source(layer, head))
            if not needed:
                continue
            shared = block.kv_head(head)
            reads = (
                graph.channel_target(layer, "q", head),
                graph.channel_target(layer, "k", shared),
                graph.channel_target(layer, "v", shared),
            )
            # A query is read where its head is needed, keys and values at all positions.
            live += [(reads[0], everywhere), (reads[1], True), (reads[2], True)]
            parts[everywhere].append((head, reads))
        if not live:
            return None
        stage = LiveStage(layer=layer, groups=self._groups(live))
        first = graph.channel_target(layer, "q")
        weight, bias = block.qkv_weight().permute(1, 0, 2), block.qkv_bias()
        for group in stage.groups:
            channels = [column - first for column in group.columns]
            group.weight = weight[channels].contiguous()
            group.bias = None if bias is None else bias[channels][:, None]
            n_queries = sum(channel < block.n_heads for channel in channels)
            n_values = sum(channel >= block.n_heads + block.n_kv_heads for channel in channels)
            group.turned = (n_queries, len(channels) - n_values)
        for where, members in parts.items():
            if members:
                heads = tuple(head for head, _ in members)
                stage.heads.append(
                    HeadGroup(
                        everywhere=where,
                        heads=heads,
                        reads=tuple(reads for _, reads in members),
                        weight=self.out(layer)[list(heads)],
                    )
                )
        return stage
