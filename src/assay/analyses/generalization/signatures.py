"""What a distance reads off a circuit as a vector, for many circuits at once.

Every registered distance is a function of one vector per circuit: of an inner product (`spearman`, `cosine`,
`jaccard`), or of a difference (`l2`, `laplacian`, `netlsd`). Left-out images and halves then cost one vector
each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from jaxtyping import Float64

from assay.analyses.generalization.circuit_view import WeightedCircuit
from assay.analyses.generalization.shift import heat_signature
from assay.circuits import EdgeScores
from assay.graph import Graph


Scores = Float64[np.ndarray, "... n_edges"]
Vectors = Float64[np.ndarray, "... n"]
Closeness = Float64[np.ndarray, "..."]


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The vector of a circuit under one distance.

    Attributes:
        vectors: From signed scores `[m, n_edges]` of a graph to vectors `[m, n]`; NaN where undefined.
        similarity: Of pairs of vectors, 1 for equal circuits: the distance is 1 minus it. None where the
            distance is the Euclidean distance of the vectors.
    """

    vectors: Callable[[Graph, Scores], Vectors]
    similarity: Callable[[Vectors, Vectors], Closeness] | None = None

    def distance(self, a: Vectors, b: Vectors) -> Closeness:
        """Distances of pairs of vectors, rows against rows."""
        if self.similarity is None:
            return np.asarray(np.linalg.norm(a - b, axis=-1))
        return np.asarray(1 - self.similarity(a, b))


def _ranks(graph: Graph, rows: Scores) -> Vectors:
    del graph
    ranks = np.asarray(scipy.stats.rankdata(np.abs(rows), axis=-1), dtype=np.float64)
    return _units(ranks - (rows.shape[-1] + 1) / 2)


def _directions(graph: Graph, rows: Scores) -> Vectors:
    del graph
    weights = np.abs(rows)  # squares of tiny scores would vanish
    return _units(weights / np.maximum(weights.max(-1, keepdims=True), np.finfo(np.float64).tiny))


def _units(rows: Vectors) -> Vectors:
    size = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(np.divide(rows, size, out=np.full_like(rows, np.nan), where=size > 0))


def _magnitudes(graph: Graph, rows: Scores) -> Vectors:
    del graph
    return np.asarray(np.abs(rows))


def _view(graph: Graph, row: Float64[np.ndarray, " n_edges"]) -> WeightedCircuit:
    values = torch.zeros(graph.valid.shape, dtype=torch.float64)
    values[graph.valid] = torch.from_numpy(row)
    return WeightedCircuit(scores=EdgeScores(graph, values))


def _one_by_one(
    read: Callable[[WeightedCircuit], Float64[np.ndarray, " n"]],
) -> Callable[[Graph, Scores], Vectors]:
    def vectors(graph: Graph, rows: Scores) -> Vectors:
        flat = rows.reshape(-1, rows.shape[-1])
        found = np.stack([read(_view(graph, row)) for row in flat])
        return found.reshape(*rows.shape[:-1], -1)

    return vectors


def _selection(view: WeightedCircuit) -> Float64[np.ndarray, " n"]:
    return np.asarray(view.selected[view.graph.valid].numpy(), dtype=np.float64)


def _spectrum(view: WeightedCircuit) -> Float64[np.ndarray, " n"]:
    return view.spectrum(view.graph.valid, touched=False, normalized=True)


def _heat(view: WeightedCircuit) -> Float64[np.ndarray, " n"]:
    return heat_signature(view.selected_spectrum)


def _product(a: Vectors, b: Vectors) -> Closeness:
    return np.asarray(np.clip((a * b).sum(-1), -1.0, 1.0))


def _overlap(a: Vectors, b: Vectors) -> Closeness:
    both = (a * b).sum(-1)
    either = (a + b).sum(-1) - both
    return np.asarray(np.divide(both, either, out=np.ones_like(both), where=either > 0))


SIGNATURES: Mapping[str, Signature] = {
    "spearman": Signature(vectors=_ranks, similarity=_product),
    "cosine": Signature(vectors=_directions, similarity=_product),
    "l2": Signature(vectors=_magnitudes),
    "laplacian": Signature(vectors=_one_by_one(_spectrum)),
    "netlsd": Signature(vectors=_one_by_one(_heat)),
    "jaccard": Signature(vectors=_one_by_one(_selection), similarity=_overlap),
}
