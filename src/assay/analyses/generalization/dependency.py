"""Which layers a circuit draws on (Eq. 2 to 4), and how far it moved from known to new data (Eq. 7).

Dependency matrix, depth bias and motif; distances of circuits. Every distance is a function of one vector per
circuit, so it is computed for many circuits at once.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Float64, Real
from torch import Tensor

from assay.circuits import EdgeScores, prune
from assay.core.errors import DegenerateDataWarning, GraphMismatchError, InputError, check_name
from assay.core.record import Plotted, plain
from assay.core.registry import Registry
from assay.discovery.edges import OutputScores, discover, get_method
from assay.graph import Graph
from assay.models import Model
from assay.stats.resampled import ResampledValue
from assay.tasks import ImageTask


if TYPE_CHECKING:
    import pandas as pd

Rows = Float64[np.ndarray, "k n_edges"]
Matrices = Float64[np.ndarray, "k layers layers"]
Vectors = Float64[np.ndarray, "k n"]

FLOOR = 1e-12  # eps of Eq. 4: keeps the logarithm finite where one side of the ratio vanishes
TARGETS = ("output", "deep", "global")
CONSTANT = 1e-12  # spread below which an entry does not vary, relative to the largest entry of all matrices
TOP_K = 200  # edges of the selected graphs, at most, as in the authors' code
TIMES = np.logspace(-2, 2, 250)  # diffusion times of NetLSD, with which its signatures are published
# Scores estimated in different ways differ by more than the data do.
SETTINGS = ("method", "objective", "ablation", "steps", "quadrature")


# ------------------------------------------------------------------------------------------------- layers


def edge_rows(scores: EdgeScores | OutputScores) -> Rows:
    """Signed scores as one row: of all edges, row-major over `graph.valid`, or of those into the logits."""
    values = scores.values.detach().double().cpu()
    return np.asarray((values[scores.graph.valid] if values.ndim == 2 else values).numpy()[None])


def layer_sums(graph: Graph, rows: Rows, *, mean: bool = False) -> Matrices:
    """Numbers of the edges added up by source layer and target layer, for many rows at once.

    Args:
        graph: Of the model.
        rows: A number per edge, row-major over `graph.valid`, or of the edges into the logits alone,
            `[k, n_sources]`: other columns are then 0.
        mean: Divide by the number of edges of each cell.

    Returns:
        `input` is layer 0, block l layer l + 1, the logits the last of `n_layers + 2`.
    """
    source_layer, target_layer, n = graph.source_layer.numpy(), graph.target_layer.numpy(), graph.n_layers + 2
    sources, targets = (each.numpy() for each in graph.valid.nonzero(as_tuple=True))
    if rows.shape[1] == graph.n_sources:
        sources, targets = (each[targets == graph.n_targets - 1] for each in (sources, targets))
    cells = source_layer[sources] * n + target_layer[targets]
    order = np.argsort(cells, kind="stable")  # edges of one cell side by side
    present, starts = np.unique(cells[order], return_index=True)
    sums = np.zeros((len(rows), n * n))
    sums[:, present] = np.add.reduceat(rows[:, order], starts, axis=1)
    if mean:
        sums[:, present] /= np.diff(starts, append=len(cells))
    return sums.reshape(len(rows), n, n)


def dependency_matrix(scores: EdgeScores, *, reduce: str = "sum") -> Float[Tensor, "n n"]:
    """The inter-layer dependency matrix: how strongly each layer writes to each later one.

    Lambda_ij = sum of |c(e)| over the edges e from layer i to layer j.

    Args:
        scores: Signed scores of the edges; magnitudes are taken here.
        reduce: `"sum"`, or `"mean"` to divide by the number of edges of each cell.

    Returns:
        float64 `[L + 1, L + 1]`, row = source layer, column = target layer, >= 0, in the unit of the scores;
        layer 0 is the input, l + 1 block l, L = n_layers + 1 the logits.
        0 where no edge joins two layers: everywhere but above the diagonal, and on it for the edges from the
        heads of a block to its own MLP.

    Raises:
        UnknownNameError: For another `reduce`.

    References:
        Peng et al. (2026), arXiv:2604.08192, Eq. 2.

    Example:
        >>> from assay.graph import build_graph
        >>> graph = build_graph(1, 1)
        >>> dependency_matrix(EdgeScores(graph, -torch.ones(3, 5)))
        tensor([[0., 4., 1.],
                [0., 1., 2.],
                [0., 0., 0.]], dtype=torch.float64)
    """
    check_name("reduce", reduce, ("sum", "mean"))
    (matrix,) = layer_sums(scores.graph, np.abs(edge_rows(scores)), mean=reduce == "mean")
    return torch.from_numpy(matrix)


# --------------------------------------------------------------------------------------------- depth bias


@dataclass(frozen=True, kw_only=True)
class DepthRule:
    """Which layers a depth bias compares, for models of any depth.

    Attributes:
        ratio: tau, the share of the blocks on each side, in (0, 0.5].
        include_input: Count layer 0, the input, as shallow.
        sets: `"symmetric"`, or `"reference"` for the sets of the authors' code (12 blocks). The two differ
            at the ratio 0.3 only, where the code has 4 shallow and 3 deep blocks.

    Raises:
        InputError: For a ratio outside (0, 0.5].
        UnknownNameError: For other `sets`.
    """

    ratio: float = 0.3
    include_input: bool = False
    sets: str = "symmetric"

    def __post_init__(self) -> None:
        check_name("sets", self.sets, ("symmetric", "reference"))
        if not 0 < self.ratio <= 0.5:
            raise InputError(f"ratio is {self.ratio}; expected a fraction of the blocks in (0, 0.5]")

    def layers(self, n_blocks: int) -> tuple[slice, slice]:
        """The shallow and the deep layers of a model with so many blocks, of which the first is layer 1.

        With k = max(1, floor(ratio n)): layers 1..k and n + 1 - k .. n.

        Raises:
            InputError: For a model of one block, or reference sets of another model size.
        """
        reference = self.sets == "reference"
        if n_blocks < 2 or (reference and n_blocks != 12):
            needs = "two sides need 2, and sets='reference' 12"
            raise InputError(f"a model of {n_blocks} blocks does not fit: {needs}")
        size = max(1, math.floor(self.ratio * n_blocks + 1e-9))  # 0.3 * 10 must be 3
        last = size + (reference and math.isclose(self.ratio, 0.3))
        return slice(0 if self.include_input else 1, last + 1), slice(n_blocks + 1 - size, n_blocks + 1)


def depth_biases(matrices: Matrices, targets: str, rule: DepthRule) -> Float64[np.ndarray, " k"]:
    """Eq. 4 of many dependency matrices at once, as `dependency_depth_bias`; NaN where both sides are 0."""
    check_name("targets", targets, TARGETS)
    low, high = rule.layers(matrices.shape[1] - 2)
    first = {"output": high.stop, "deep": high.start, "global": 1}[targets]  # the logits follow the blocks
    written = matrices[:, :, first:].sum(2)
    deep, shallow = written[:, high].sum(1), written[:, low].sum(1)
    logs = np.log(np.maximum(deep / (shallow + FLOOR), FLOOR))
    return np.where((deep > 0) | (shallow > 0), logs, math.nan)


def dependency_depth_bias(
    scores: EdgeScores | OutputScores | Float[Tensor, "n n"], *, targets: str = "output", **rule: Any
) -> float:
    """How much more a circuit draws on deep layers than on shallow ones (DDB).

    log(max(deep / (shallow + eps), eps)), where deep and shallow are the sums of Lambda_ij over the deep and
    the shallow source layers i and the layers j that `targets` names; eps = 1e-12.

    Args:
        scores: Scores of the edges (of those into the logits alone for `"output"`), or a dependency matrix of
            them (`"block"` layers).
        targets: `"output"`: edges into the logits only (the best on average); `"deep"`: into the deep
            layers and the logits; `"global"`: into every layer.
        rule: `ratio`, `include_input` and `sets` of `DepthRule`: which layers are shallow and deep.

    Returns:
        Natural logarithm of a ratio; any sign. Higher: more reliance on deep features, which predicts better
        generalization. Scaling all scores changes nothing (as long as sums stay far above 1e-12).

    Raises:
        InputError: For a ratio outside (0, 0.5], a model of one block, what is not a dependency matrix, or
            other `targets` than `"output"` of scores into the logits alone.
        UnknownNameError: For another `targets` or `sets`.

    Notes:
        No deep edges: log(1e-12). Neither deep nor shallow edges: NaN with a `DegenerateDataWarning`.
        `"output"` reads only the edges into the logits, whose gradient needs no backward pass through the
        blocks: see `assay.discovery.edges.output_scores`. No labels are used.

    References:
        Peng et al. (2026), arXiv:2604.08192, Eq. 4.

    Example:
        >>> from assay.graph import build_graph
        >>> values = torch.zeros(5, 9)
        >>> values[1, -1], values[3, -1] = -1.0, 2.0  # the heads to the logits
        >>> round(dependency_depth_bias(EdgeScores(build_graph(2, 1), values)), 6)
        0.693147
    """
    if isinstance(scores, Tensor):
        matrix = scores.detach().double().cpu().numpy()[None]
    else:
        matrix = _matrices(scores, targets)
    if matrix.ndim != 3 or len({*matrix.shape[1:]}) > 1 or not ((matrix >= 0) & (matrix < math.inf)).all():
        raise InputError("expected a square dependency matrix of finite sums of magnitudes, at least 0")
    (value,) = depth_biases(matrix, targets, DepthRule(**rule))
    if math.isnan(value):
        reason = "all scores of edges from deep or shallow layers into the targets are 0"
        warnings.warn(f"depth bias is undefined: {reason}", DegenerateDataWarning, stacklevel=2)
    return float(value)


def _matrices(scores: EdgeScores | OutputScores, targets: str, *drawn: np.ndarray) -> np.ndarray:
    """Dependency matrix of scores, and of further rows of them."""
    if isinstance(scores, OutputScores) and targets != "output":
        raise InputError(f"targets={targets!r} needs scores of other edges than those into the logits")
    return layer_sums(scores.graph, np.abs(np.concatenate([edge_rows(scores), *drawn])))


def resampled_depth_bias(
    scores: EdgeScores | OutputScores, *, targets: str = "output", **options: Any
) -> ResampledValue:
    """The depth bias and its resamples: `.interval()`, and `a - b` for two models on the same images.

    Args:
        scores: Made with `resamples`: of all edges, or, for `targets="output"`, of those into the logits.
        targets: As in `dependency_depth_bias`.
        options: `ratio`, `include_input` and `sets` of `dependency_depth_bias`.

    Raises:
        InputError: Without resamples, or as `dependency_depth_bias`.

    Notes:
        For the mean bias of circuits of this many images: the magnitude of a noisy mean is too large, so few
        images draw the bias towards that of noise. The replacement values of a mean ablation are those of all
        images in every resample. Coverage: docs/theory/intervals-verdicts.md.
    """
    if scores.resampled is None:
        raise InputError("the scores have no resamples; discover with resamples=200")
    matrices = _matrices(scores, targets, scores.resampled.double().numpy())
    value, *draws = depth_biases(matrices, targets, DepthRule(**options))
    key = str(scores.details.get("resamples_key", ""))
    return ResampledValue(value=float(value), draws=np.array(draws), n=int(scores.details["n"]), key=key)


# -------------------------------------------------------------------------------------------------- motif


@dataclass(frozen=True, kw_only=True, eq=False)
class Motif(Plotted):
    """How each entry of the dependency matrix goes with performance on one task.

    Attributes:
        loadings: float64 `[L + 1, L + 1]`: correlation of each entry with the canonical variate, in [-1, 1];
            0 where the entry does not vary.
        weights: float64 `[L + 1, L + 1]`: coefficients of the standardised entries in the variate.
        correlation: Canonical correlation of variate and performance, in [0, 1]. 1 says nothing where there
            are no more models than used entries and no ridge.
        used: True where the entry varies over the models.
        n: Number of models (or domains).
        kind: Which of the two `values` gives.
    """

    drawn_by = "assay.analyses.generalization.ranking_page:plot_motif"

    loadings: Float[Tensor, "n_layers n_layers"]
    weights: Float[Tensor, "n_layers n_layers"]
    correlation: float
    used: Bool[Tensor, "n_layers n_layers"]
    n: int
    kind: str

    @property
    def values(self) -> Float[Tensor, "n_layers n_layers"]:
        """The loadings or the weights, as `kind` says."""
        return self.loadings if self.kind == "loadings" else self.weights

    def to_frame(self) -> "pd.DataFrame":
        """One row per pair of layers: source, target (places), loading, weight, used."""
        import pandas as pd

        source, target = np.indices(self.used.shape).reshape(2, -1)
        columns = {"loading": self.loadings, "weight": self.weights, "used": self.used}
        flat = {name: each.flatten().numpy() for name, each in columns.items()}
        return pd.DataFrame({"source": source, "target": target, **flat})


def motif(
    matrices: Sequence[Float[Tensor, "layers layers"]] | Float[Tensor | np.ndarray, "n layers layers"],
    performance: Sequence[float] | Real[Tensor | np.ndarray, " n"],
    *,
    kind: str = "loadings",
    ridge: float = 0.0,
) -> Motif:
    """The generalization motif of one task: dependency matrices of its models against their performance.

    Or of one model: its matrices on several domains against its performance there, which need not look like
    the motif over models (the paper's contradictory patterns after deployment).

    With Z the standardised entries that vary and y the standardised performance: a = pinv(Z) y, or
    (Z'Z/n + ridge I)^-1 Z'y/n. The weights are a; the loading of entry j is Pearson(X_j, Z a).

    Args:
        matrices: Dependency matrix of each model, or of one model on each domain, all of one size.
        performance: True performance of each, in the same order; any unit, larger is better.
        kind: What `Motif.values` gives: `"loadings"` (stable under collinear entries) or `"weights"`.
        ridge: Penalty, >= 0, on standardised columns.

    Returns:
        The motif; positive entries: models that depend on this pair of layers more perform better, or the
        model performs better where it depends on it more.

    Raises:
        InputError: For fewer than 3 matrices, matrices of several sizes, not one performance per matrix, NaN
            or infinite numbers, a negative ridge, constant performance, or matrices that do not vary.
        UnknownNameError: For another `kind`.

    Notes:
        A picture, not a predictor: performance is one-dimensional, so the canonical correlation is the
        multiple correlation of a regression, which is 1 without ridge once entries are as many as models.
        Loadings are then still defined (minimum-norm weights). Where performance is uncorrelated with every
        entry, loadings are NaN with a `DegenerateDataWarning`.

    References:
        Peng et al. (2026), arXiv:2604.08192, Eq. 3.

    Example:
        >>> matrices = [torch.tensor([[0.0, each], [0.0, 0.0]]) for each in (1.0, 2.0, 4.0)]
        >>> motif(matrices, [0.9, 0.7, 0.3]).loadings
        tensor([[ 0., -1.],
                [ 0.,  0.]], dtype=torch.float64)
    """
    check_name("kind", kind, ("loadings", "weights"))
    x = np.array([np.asarray(each, dtype=np.float64).ravel() for each in matrices])
    y = np.asarray(performance, dtype=np.float64)
    if len(x) < 3 or y.shape != (len(x),) or not (np.isfinite(np.c_[x, y]).all() and ridge >= 0):
        text = f"got {len(x)} dependency matrices, performances of shape {y.shape}, ridge {ridge}"
        raise InputError(f"{text}; a motif needs 3 matrices or more, a performance of each, ridge >= 0")
    spread = x.std(0)
    used = spread > CONSTANT * np.abs(x).max()
    if not used.any() or np.ptp(y) <= CONSTANT * np.abs(y).max():
        raise InputError("all dependency matrices, or all performances, are equal, so nothing correlates")
    z, target = (x[:, used] - x[:, used].mean(0)) / spread[used], (y - y.mean()) / y.std()
    n, width = z.shape
    penalised = z.T @ z / n + ridge * np.eye(width)
    a = np.linalg.solve(penalised, z.T @ target / n) if ridge else np.linalg.pinv(z) @ target
    variate = z @ a
    length = float(np.linalg.norm(variate))
    if length <= CONSTANT * math.sqrt(n):
        reason = "the motif has no loadings: performance is uncorrelated with every entry"
        warnings.warn(reason, DegenerateDataWarning, stacklevel=2)
        correlation, loads = 0.0, np.full(width, np.nan)
    else:
        # variate and columns have mean 0; pinv and ridge both give a variate that points along performance
        correlation = float(np.clip(variate @ target / (length * np.linalg.norm(target)), 0.0, 1.0))
        loads = np.clip(z.T @ variate / (np.linalg.norm(z, axis=0) * length), -1.0, 1.0)
    placed = torch.zeros(2, *matrices[0].shape, dtype=torch.float64)
    shown = torch.from_numpy(used).view(placed.shape[1:])
    placed[:, shown] = torch.from_numpy(np.stack([loads, a]))
    return Motif(loadings=placed[0], weights=placed[1], correlation=correlation, used=shown, n=n, kind=kind)


def universal_motif(motifs: Sequence[Motif]) -> Float[Tensor, "n_layers n_layers"]:
    """The mean of the motifs of several tasks, each scaled by its largest magnitude first.

    Args:
        motifs: At least one, all of one size and kind.

    Returns:
        float64 `[L + 1, L + 1]`, in [-1, 1].

    Raises:
        InputError: For no motif, motifs of different kinds or sizes, or one that is NaN or 0 throughout.

    References:
        Peng et al. (2026), arXiv:2604.08192, section 4.
    """
    kinds = sorted({f"{each.kind} of shape {tuple(each.values.shape)}" for each in motifs})
    if len(kinds) != 1:
        raise InputError(f"a universal motif is the mean of motifs of one kind and size; got {kinds}")
    scaled = torch.stack([each.values / each.values.abs().max() for each in motifs])
    if bad := [index for index, each in enumerate(scaled) if bool(each.isnan().any())]:
        raise InputError(f"motif {bad[0]} is NaN, or 0 everywhere; remove it")
    return scaled.mean(0)


# ---------------------------------------------------------------------------------------- what is compared


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
    return torch.from_numpy(layer_sums(graph, np.abs(delta) if absolute else delta, mean=True)[0])


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
        raise GraphMismatchError(f"the models of the circuits have different weights ({first} and {second})")


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
    scores: EdgeScores = discover(model, task.for_model(model).held(), method, **settings)
    return scores
