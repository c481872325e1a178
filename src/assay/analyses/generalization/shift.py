"""How far the circuit of a model on new data is from its circuit on known data (Eq. 7).

Every distance is a function of one vector per circuit, so it is computed for many circuits at once.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Float64
from torch import Tensor

from assay.analyses.generalization.dependency import Rows, edge_rows, layer_sums
from assay.circuits import EdgeScores, prune
from assay.core.errors import DegenerateDataWarning, GraphMismatchError, InputError, check_name
from assay.core.record import plain
from assay.core.registry import Registry
from assay.discovery.edges import discover, get_method
from assay.graph import Graph
from assay.models import Model
from assay.tasks import ImageTask


TOP_K = 200  # edges of the selected graphs, at most, as in the authors' code
TIMES = np.logspace(-2, 2, 250)  # diffusion times of NetLSD, with which its signatures are published
# Scores estimated in different ways differ by more than the data do.
SETTINGS = ("method", "objective", "ablation", "steps", "quadrature")

Vectors = Float64[np.ndarray, "k n"]


@dataclass(frozen=True, kw_only=True)
class ShiftView:
    """What a distance compares.

    Attributes:
        weights: `"abs"`: magnitudes; `"signed"`: vectors and the choice of the strongest edges take signs
            into account. Graphs always carry magnitudes.
        top_k: Number of strongest edges, 1 to n_edges. None: 200, at most all, for `"netlsd"` and
            `"jaccard"`, and all for `"laplacian"`. The vector distances use every edge whatever is said here.
        prune: Drop chosen edges that lie on no path from input to logits inside the choice.
        normalized: For `laplacian`, scale by the degrees: I - D^(-1/2) W D^(-1/2) rather than D - W. NetLSD
            is defined on the scaled one.

    Raises:
        UnknownNameError: For other `weights`.
    """

    weights: str = "abs"
    top_k: int | None = None
    prune: bool = False
    normalized: bool = True

    def __post_init__(self) -> None:
        check_name("weights", self.weights, ("abs", "signed"))

    def of(self, rows: Rows) -> Rows:
        """The compared number of each edge."""
        return rows if self.weights == "signed" else np.abs(rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class Distance:
    """A way to compare two circuits of one model.

    Attributes:
        key: What `circuit_shift` calls it.
        summary: One line.
        published: Its name in the source.
        vectors: From signed scores `[k, n_edges]` of a graph to what is compared of them, `[k, n]`; NaN where
            it is undefined.
        between: The distance of pairs of vectors, rows against rows, >= 0, 0 for equal circuits.
    """

    key: str
    summary: str
    published: str
    vectors: Callable[[Graph, Rows, ShiftView], Vectors]
    between: Callable[[Vectors, Vectors], Float64[np.ndarray, " k"]]


# ------------------------------------------------------------------------------------------------ vectors


def _units(rows: Vectors) -> Vectors:
    size = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(np.divide(rows, size, out=np.full_like(rows, np.nan), where=size > 0))


def _ranks(graph: Graph, rows: Rows, view: ShiftView) -> Vectors:
    return _units(scipy.stats.rankdata(view.of(rows), axis=-1) - (graph.n_edges + 1) / 2)


def _directions(graph: Graph, rows: Rows, view: ShiftView) -> Vectors:
    largest = np.abs(rows).max(-1, keepdims=True)  # squares of tiny scores would vanish
    if not largest.all():
        raise InputError("every score is 0, so the direction is undefined; use another distance")
    return _units(view.of(rows) / largest)


def _strongest(graph: Graph, rows: Rows, view: ShiftView) -> Vectors:
    """1 for the strongest edges of each row, the first of equals."""
    k = min(TOP_K, graph.n_edges) if view.top_k is None else view.top_k
    if not 1 <= k <= graph.n_edges:
        raise InputError(f"top_k is {k}; expected 1 to {graph.n_edges}, the number of edges of this graph")
    chosen = np.zeros(rows.shape)
    np.put_along_axis(chosen, np.argsort(-view.of(rows), axis=-1, kind="stable")[:, :k], 1.0, axis=-1)
    for row in chosen if view.prune else ():
        mask = torch.zeros(graph.valid.shape, dtype=torch.bool)
        mask[graph.valid] = torch.from_numpy(row > 0)
        row[:] = prune(graph, mask)[graph.valid].numpy()
    return chosen


def _laplacian(graph: Graph, rows: Rows, view: ShiftView) -> Vectors:
    kept = rows if view.top_k is None else rows * _strongest(graph, rows, view)
    return np.stack([_spectrum(_between_nodes(graph, np.abs(row)), view.normalized) for row in kept])


def _heat(graph: Graph, rows: Rows, view: ShiftView) -> Vectors:
    """NetLSD: mean over the eigenvalues of exp(-t lambda), normalised by the empty graph; chosen edges alone.

    References:
        Tsitsulin et al. (2018), arXiv:1805.10712.
    """
    signatures = []
    for row, chosen in zip(np.abs(rows), _strongest(graph, rows, view), strict=True):
        joined = _between_nodes(graph, chosen).any(0)
        weights = _between_nodes(graph, row * chosen)[np.ix_(joined, joined)]
        signatures.append(np.exp(-np.outer(TIMES, _spectrum(weights))).sum(1) / (joined.sum() or math.nan))
    return np.stack(signatures)


def _between_nodes(graph: Graph, row: np.ndarray) -> Float64[np.ndarray, "n n"]:
    """Numbers of the edges between two nodes, of those that write and the logits, added up.

    A shared key or value counts as equal parts.
    """
    feeds = graph.feeds.double().numpy()
    nodes = np.zeros((graph.n_targets, graph.n_sources + 1))  # share of each target in each node
    nodes[:, :-1] = feeds / np.maximum(feeds.sum(1, keepdims=True), 1)
    nodes[-1, -1] = 1
    table = np.zeros(graph.valid.shape)
    table[graph.valid.numpy()] = row
    adjacency = np.zeros((graph.n_sources + 1,) * 2)
    adjacency[:-1] = table @ nodes
    return adjacency + adjacency.T


def _spectrum(weights: Float64[np.ndarray, "n n"], normalized: bool = True) -> Float64[np.ndarray, " n"]:
    """Eigenvalues of the Laplacian of an undirected graph, I - D^(-1/2) W D^(-1/2) or D - W.

    A node without edges has zeros in both.
    """
    degrees = weights.sum(1)
    laplacian = np.diag(degrees) - weights
    if normalized:
        scale = np.divide(1.0, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
        laplacian = np.diag((degrees > 0).astype(np.float64)) - scale[:, None] * weights * scale
    return np.asarray(scipy.linalg.eigvalsh(laplacian)) if len(weights) else degrees


def _overlap(a: Vectors, b: Vectors) -> Float64[np.ndarray, " k"]:
    either = np.maximum(a, b).sum(-1)
    shared = np.divide(np.minimum(a, b).sum(-1), either, out=np.ones_like(either), where=either > 0)
    return np.asarray(1 - shared)


def _angle(a: Vectors, b: Vectors) -> Float64[np.ndarray, " k"]:
    return np.asarray(1 - np.clip((a * b).sum(-1), -1.0, 1.0))


def _euclidean(a: Vectors, b: Vectors) -> Float64[np.ndarray, " k"]:
    return np.asarray(np.linalg.norm(a - b, axis=-1))


DISTANCES: Registry[Distance] = Registry("distance", holds=Distance)
for _key, _summary, _published, _vectors, _between in (
    ("spearman", "1 - rank correlation", "CSS_v,SRCC", _ranks, _angle),
    ("cosine", "1 - cosine of the weights", "CSS_v,cos", _directions, _angle),
    ("l2", "Euclidean distance of the weights", "CSS_v,l2", lambda _, rows, view: view.of(rows), _euclidean),
    ("laplacian", "distance of the Laplacian spectra", "CSS_g", _laplacian, _euclidean),
    ("netlsd", "distance of the heat signatures", "CSS_g", _heat, _euclidean),
    ("jaccard", "1 - overlap of the strongest edges", "CSS_g", _strongest, _overlap),
):
    entry = Distance(key=_key, summary=_summary, published=_published, vectors=_vectors, between=_between)
    DISTANCES.add(_key, entry)


# ------------------------------------------------------------------------------------------------- shifts


def circuit_shift(
    reference_scores: EdgeScores, shifted_scores: EdgeScores, *, distance: str = "spearman", **view: Any
) -> float:
    """Distance of a model's circuit on new data from its circuit on known data (CSS).

    With w, w' the scores of the edges in row-major order:

    - `"spearman"`: 1 - rank correlation of w and w' (average ranks); in [0, 2].
    - `"cosine"`: 1 - <w, w'> / (|w| |w'|); in [0, 2], at most 1 for magnitudes.
    - `"l2"`: |w - w'|, in the unit of the scores.
    - `"laplacian"`: |lambda(w) - lambda(w')|, all eigenvalues in ascending order, of the undirected graph of
      all nodes: input, heads, MLPs, logits; edges of a pair of nodes (q, k, v) add up.
    - `"netlsd"`: |h - h'|, heat signatures of the graphs of the strongest edges; untouched nodes left out.
    - `"jaccard"`: 1 - overlap / union of the sets of the strongest edges; in [0, 1].

    Args:
        reference_scores: Scores on known (in-distribution) data.
        shifted_scores: Scores of the same model on other data, made with the same settings.
        distance: One of the keys above.
        view: `weights`, `top_k`, `prune` and `normalized` of `ShiftView`.

    Returns:
        >= 0; larger means more shift. 0 for equal circuits.

    Raises:
        GraphMismatchError: For circuits of different graphs or models.
        InputError: For scores made in different ways, `top_k` outside the graph, or scores that are all 0
            under `"cosine"`.
        UnknownNameError: For another `distance` or `weights`.

    Notes:
        `"spearman"` is NaN with a `DegenerateDataWarning` where the scores are constant, `"netlsd"` where
        pruning leaves nothing; two empty choices have Jaccard distance 0. A key or value head that several
        query heads share counts as equal parts of them. Vectors cost O(E log E), spectra O(n_nodes^3);
        no model runs. The two circuits should rest on equally many examples: noise is distance, too.

    References:
        Peng et al. (2026), arXiv:2604.08192, Eq. 7.

    Example:
        >>> from assay.graph import build_graph
        >>> values = torch.arange(15.0).view(3, 5)
        >>> before, after = (EdgeScores(build_graph(1, 1), each) for each in (values, 100 - values))
        >>> round(circuit_shift(before, after), 6)
        2.0
    """
    check_comparable(reference_scores, shifted_scores)
    how, rows = DISTANCES[distance], np.concatenate([*map(edge_rows, (reference_scores, shifted_scores))])
    vectors = how.vectors(reference_scores.graph, rows, ShiftView(**view))
    (value,) = how.between(vectors[:1], vectors[1:])
    if math.isnan(value):
        reason = "the scores are constant, or no chosen edge lies on a path from input to logits"
        warnings.warn(f"{distance} is undefined: {reason}", DegenerateDataWarning, stacklevel=2)
    return float(value)


def circuit_shifts(reference_scores: EdgeScores, shifted_scores: EdgeScores, **view: Any) -> dict[str, float]:
    """The shift under every registered distance: key -> value; arguments as of `circuit_shift`."""
    return {key: circuit_shift(reference_scores, shifted_scores, distance=key, **view) for key in DISTANCES}


def output_shift(known: Float64[np.ndarray, "m c"], new: Float64[np.ndarray, "n c"]) -> float:
    """How far the outputs on new data are from those on known data: the largest distance of any class.

    max_c sup_t |F_c(t) - F'_c(t)|, F_c and F'_c the distribution functions of the probability of class c
    (Kolmogorov distance): black-box shift detection.

    Args:
        known: Probabilities on m known images.
        new: On n others.

    Returns:
        In [0, 1]; larger means more shift. Positive by sampling alone, the more so for few images.

    References:
        Lipton, Wang and Smola (2018), arXiv:1802.03916; Rabanser, Guennemann and Lipton (2019),
        arXiv:1810.11953.

    Example:
        >>> output_shift(np.array([[0.1, 0.9], [0.2, 0.8]]), np.array([[0.15, 0.85], [0.9, 0.1]]))
        0.5
    """
    largest = 0.0
    for one, other in zip(np.sort(known, axis=0).T, np.sort(new, axis=0).T, strict=True):
        places = np.concatenate([one, other])
        shares = (np.searchsorted(each, places, side="right") / len(each) for each in (one, other))
        largest = max(largest, float(np.abs(np.subtract(*shares)).max()))
    return largest


def rank_shift_map(
    reference_scores: EdgeScores, shifted_scores: EdgeScores, *, absolute: bool = False
) -> Float64[Tensor, "n n"]:
    """Where in the network a circuit moved: mean change of the edges' ranks from layer to layer.

    delta(e) = (rank'(e) - rank(e)) / n_edges, ranks 1..n_edges of |score|, ascending, ties averaged.

    Args:
        reference_scores: Scores on known data.
        shifted_scores: Scores of the same model on other data, made with the same settings.
        absolute: Average |delta| instead.

    Returns:
        float64 `[L + 1, L + 1]`, layers of source and target as in `dependency_matrix`, in (-1, 1); positive:
        these edges gained weight against the others. 0 where no edge joins two layers.

    Raises:
        GraphMismatchError: For circuits of different graphs or models.
        InputError: For scores made in different ways.

    References:
        Peng et al. (2026), arXiv:2604.08192, Fig. 7.
    """
    check_comparable(reference_scores, shifted_scores)
    graph = reference_scores.graph
    rows = np.concatenate([*map(edge_rows, (reference_scores, shifted_scores))])
    delta = np.diff(scipy.stats.rankdata(np.abs(rows), axis=-1), axis=0) / graph.n_edges
    moved = layer_sums(graph, np.abs(delta) if absolute else delta)[0]
    return torch.from_numpy(moved / np.maximum(layer_sums(graph, np.ones_like(delta))[0], 1))


def check_comparable(a: EdgeScores, b: EdgeScores, *, same_model: bool = True) -> None:
    """Refuse scores that differ in more than the data.

    Args:
        a: Scores of one circuit.
        b: Scores of another.
        same_model: Require the same weights, too; False to compare models.

    Raises:
        GraphMismatchError: For different graphs, or models of different weights.
        InputError: For different estimators; settings that a record does not hold are not compared.
    """
    if a.graph != b.graph:
        both = f"{a.graph.describe()} and {b.graph.describe()}"
        raise GraphMismatchError(f"the circuits belong to different graphs: {both}")
    one, other = settings_of(a), settings_of(b)
    for name in one:
        if name in other and one[name] != other[name]:
            text = f"different settings: {name} is {one[name]!r} and {other[name]!r}; use the same for both"
            raise InputError(f"the circuits were discovered with {text}")
    first, second = (each.provenance.get("model", {}).get("weight_hash") for each in (a, b))
    if same_model and first and second and first != second:
        text = f"models with different weights ({first} and {second}); measure a shift on one model"
        raise GraphMismatchError(f"the circuits belong to {text}")


def settings_of(scores: EdgeScores) -> dict[str, Any]:
    """How scores were found, as far as their record holds it.

    A record names only the options of a method that are not the defaults, so one that holds none has the
    defaults.
    """
    record = scores.provenance
    settings = {name: record[name] for name in SETTINGS if name in record}
    return settings | ({"options": plain(record.get("options", {}))} if "method" in record else {})


def check_reference(model: Model, reference: EdgeScores) -> dict[str, Any]:
    """The settings that a reference circuit was found with, which every further circuit must share.

    Args:
        model: The model to watch.
        reference: Its circuit on known data, as `discover` returns it.

    Raises:
        GraphMismatchError: If the scores belong to another graph or to other weights.
        InputError: If their record does not say how they were found.
    """
    nothing = torch.zeros(model.graph.valid.shape)
    check_comparable(reference, EdgeScores(model.graph, nothing, provenance={"model": model.describe()}))
    record = reference.provenance
    if missing := [name for name in ("model", "seed", *SETTINGS) if name not in record]:
        text = f"the record of the reference circuit lacks {', '.join(missing)}"
        raise InputError(f"{text}, which every new circuit must share; make it with assay.discover")
    settings = settings_of(reference) | {"seed": record["seed"]}
    return {name: value for name, value in settings.items() if name != "options" or value}


def circuit_like(model: Model, task: ImageTask, reference: EdgeScores) -> EdgeScores:
    """The circuit of new images, found with the settings of the reference: one discovery.

    Args:
        model: The model of the reference.
        task: The images, two or more under a mean ablation. Those in files are decoded once, and held in
            8 bits meanwhile.
        reference: What gives the settings.

    Raises:
        InputError, NonFiniteError: As `discover`.
    """
    settings = check_reference(model, reference)
    method = get_method(settings.pop("method"), **settings.pop("options", {}))
    if settings["steps"] is None:  # a method without quadrature
        del settings["steps"], settings["quadrature"]
    return discover(model, task.for_model(model).held(), method, **settings)
