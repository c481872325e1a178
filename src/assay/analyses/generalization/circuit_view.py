"""What distances read off the scores of one circuit: weights, the strongest edges, spectra of their graph."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from assay.circuits import EdgeScores, prune
from assay.graph import Graph


TOP_K = 200  # edges of the selected graphs, as in the authors' code


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightedCircuit:
    """What a distance reads off the scores of one circuit.

    Attributes:
        scores: Signed scores of the edges.
        signed: Compare and rank signed scores instead of magnitudes.
        top_k: Edges of the selected graph; None leaves the choice to the distance.
        prune: Drop selected edges that lie on no path from `input` to `logits` inside the selection.
        normalized: Scale Laplacians by the degrees.
        reference: Select edges and build graphs as the authors' code does.
    """

    scores: EdgeScores
    signed: bool = False
    top_k: int | None = None
    prune: bool = False
    normalized: bool = True
    reference: bool = False

    @property
    def graph(self) -> Graph:
        return self.scores.graph

    @cached_property
    def weights(self) -> Float64[np.ndarray, " n_edges"]:
        """The compared number of each edge, row-major over `graph.valid`."""
        values: Float64[np.ndarray, " n_edges"] = (
            self.scores.values.detach().cpu().double()[self.graph.valid].numpy()
        )
        return values if self.signed else np.abs(values)

    @cached_property
    def selected(self) -> Bool[Tensor, "n_sources n_targets"]:
        """The `top_k` strongest edges; 200, at most all of them, where no number was given."""
        k = min(TOP_K, self.graph.n_edges) if self.top_k is None else self.top_k
        if self.reference:
            return _pruned_once(self.graph, self.scores.top(k, absolute=False).mask)
        mask = self.scores.top(k, absolute=not self.signed).mask
        return prune(self.graph, mask) if self.prune else mask

    @cached_property
    def selected_spectrum(self) -> Float64[np.ndarray, " n"]:
        """Eigenvalues of the graph that the selected edges span, of the normalised Laplacian."""
        return self.spectrum(self.selected, touched=True, normalized=True)

    def spectrum(
        self, mask: Bool[Tensor, "n_sources n_targets"], *, touched: bool, normalized: bool
    ) -> Float64[np.ndarray, " n"]:
        """Eigenvalues of the Laplacian of the undirected graph of these edges, ascending.

        Args:
            mask: The edges that count, each with the magnitude of its score.
            touched: Leave out the nodes without such an edge.
            normalized: Scale the Laplacian by the degrees.
        """
        weights = self.scores.values.detach().cpu().double().abs().where(mask, 0)
        present = mask.double()
        n_sources = self.graph.n_sources
        if self.reference:  # what reads are nodes of their own, behind those that write
            first, n = n_sources, n_sources + self.graph.n_targets
        else:
            to_node = _node_of_target(self.graph)
            weights, present = weights @ to_node, present @ to_node
            first, n = 0, n_sources + 1
        adjacency, joined = np.zeros((n, n)), np.zeros((n, n), dtype=bool)
        adjacency[:n_sources, first:] = weights.numpy()
        adjacency += adjacency.T
        if touched:
            joined[:n_sources, first:] = present.numpy() > 0
            kept = joined.any(0) | joined.any(1)
            adjacency = adjacency[np.ix_(kept, kept)]
        if not len(adjacency):
            return np.zeros(0)
        return np.asarray(
            scipy.linalg.eigvalsh(laplacian(adjacency, normalized=normalized)), dtype=np.float64
        )


def _pruned_once(
    graph: Graph, mask: Bool[Tensor, "n_sources n_targets"]
) -> Bool[Tensor, "n_sources n_targets"]:
    """Edges between nodes that have a selected edge on either side.

    The authors' loop compares its nodes with those of the same selection and so ends after one round: edges
    into or out of a node that this round has emptied stay.
    """
    alive = mask.any(1) & (graph.feeds & mask.any(0)[:, None]).any(0)
    alive[0] = bool(mask[0].any())  # nothing reads for the input
    reads = (graph.feeds & alive).any(1)
    reads[-1] = True
    return mask & alive[:, None] & reads


def laplacian(adjacency: Float64[np.ndarray, "n n"], *, normalized: bool) -> Float64[np.ndarray, "n n"]:
    """D - W, or I - D^(-1/2) W D^(-1/2); a node without edges has a row of zeros in both."""
    degrees = np.asarray(adjacency.sum(1))
    if not normalized:
        return np.asarray(np.diag(degrees) - adjacency)
    scale = np.divide(1.0, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
    return np.asarray(np.diag((degrees > 0).astype(np.float64)) - scale[:, None] * adjacency * scale)


def _node_of_target(graph: Graph) -> Float[Tensor, "n_targets n_nodes"]:
    """Share of each target in each node (sources, then logits): 1, or equal parts of a shared k or v."""
    feeds = graph.feeds.double()
    shares = torch.zeros(graph.n_targets, graph.n_sources + 1, dtype=torch.float64)
    shares[:, :-1] = feeds / feeds.sum(1, keepdim=True).clamp_min(1)
    shares[-1, -1] = 1
    return shares
