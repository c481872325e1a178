"""Edges on a kept path from `input` to `logits`: the others change no logit under resampling."""

import torch
from jaxtyping import Bool
from torch import Tensor

from assay.graph import Graph


def prune(
    graph: Graph,
    mask: Bool[Tensor, "*masks n_sources n_targets"],
    reach: Bool[Tensor, "n_spans n_spans"] | None = None,
) -> Bool[Tensor, "*masks n_sources n_targets"]:
    """Edges of each mask that lie on a path from `input` to `logits` inside it.

    Equal to dropping nodes without kept in- or out-edges until nothing changes. Two sweeps over the
    blocks, so the cost is that of a few reductions over the masks.

    Args:
        graph: The graph.
        mask: Kept edges, of any number of circuits; with `reach` those of one circuit, span by span.
        reach: Spans that attention carries something from (rows) to (columns); a path may change its span.
    """
    if reach is not None:
        return _prune_spans(graph, reach, mask)
    feeds, masks = graph.feeds.to(mask.device), mask.shape[:-2]
    reached = torch.zeros(*masks, graph.n_sources, dtype=torch.bool, device=mask.device)
    reached[..., 0] = True
    for columns, rows in graph.stages:
        read = (mask[..., columns] & reached[..., None]).any(-2)
        reached[..., rows] = (feeds[columns, rows] & read[..., None]).any(-2)
    needed = mask[..., -1].clone()
    wanted = torch.zeros(*masks, graph.n_targets, dtype=torch.bool, device=mask.device)
    wanted[..., -1] = True
    for columns, rows in reversed(graph.stages):
        wanted[..., columns] = (feeds[columns, rows] & needed[..., None, rows]).any(-1)
        needed |= (mask[..., columns] & wanted[..., None, columns]).any(-1)
    return mask & reached[..., None] & wanted[..., None, :]


def _prune_spans(
    graph: Graph, reach: Bool[Tensor, "n_spans n_spans"], mask: Bool[Tensor, "n_spans n_sources n_targets"]
) -> Bool[Tensor, "n_spans n_sources n_targets"]:
    """Pairs of an edge and a span on a path from `input` to `logits`: one sweep forward, one back.

    A head that reads k or v at one span writes at every span that `reach` allows.
    """
    moved = torch.zeros(graph.n_targets, dtype=torch.bool)  # targets whose positions attention carries on
    for layer in range(graph.n_layers):
        moved[graph.channel_target(layer, "k") : graph.mlp_target(layer)] = True
    stages = graph.stages

    def product(left: Tensor, right: Tensor) -> Tensor:
        """Boolean matrix product."""
        return (left.float() @ right.float()) > 0

    reached = torch.zeros(len(reach), graph.n_sources, dtype=torch.bool)
    reached[:, 0] = True
    for columns, rows in stages:
        read = (mask[:, :, columns] & reached[:, :, None]).any(1)
        read = torch.where(moved[columns], product(reach.T, read), read)
        reached[:, rows] = product(read, graph.feeds[columns, rows])
    needed = mask[:, :, -1].clone()
    wanted = torch.zeros(len(reach), graph.n_targets, dtype=torch.bool)
    wanted[:, -1] = True
    for columns, rows in reversed(stages):
        want = product(needed[:, rows], graph.feeds[columns, rows].T)
        wanted[:, columns] = torch.where(moved[columns], product(reach, want), want)
        needed |= (mask[:, :, columns] & wanted[:, None, columns]).any(2)
    return mask & reached[:, :, None] & wanted[:, None, :]
