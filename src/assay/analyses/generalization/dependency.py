"""Which layers a circuit draws on: dependency matrix (Eq. 2), depth bias (Eq. 4), motif (Eq. 3)."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Real
from torch import Tensor

from assay.circuits import EdgeScores
from assay.core.errors import DegenerateDataWarning, InputError, check_name
from assay.core.record import Plotted
from assay.discovery.edges import OutputScores
from assay.graph import Graph
from assay.stats.resampled import ResampledValue


if TYPE_CHECKING:
    import pandas as pd

Rows = Float64[np.ndarray, "k n_edges"]
Matrices = Float64[np.ndarray, "k layers layers"]

FLOOR = 1e-12  # eps of Eq. 4: keeps the logarithm finite where one side of the ratio vanishes
TARGETS = ("output", "deep", "global")
CONSTANT = 1e-12  # spread below which an entry does not vary, relative to the largest entry of all matrices


# ------------------------------------------------------------------------------------------------- layers


def edge_rows(scores: EdgeScores | OutputScores) -> Rows:
    """Signed scores as one row: of all edges, row-major over `graph.valid`, or of those into the logits."""
    values = scores.values.detach().double().cpu()
    return np.asarray((values[scores.graph.valid] if values.ndim == 2 else values).numpy()[None])


def layer_sums(graph: Graph, rows: Rows) -> Matrices:
    """Numbers of the edges added up by source layer and target layer, for many rows at once.

    Args:
        graph: Of the model.
        rows: A number per edge, row-major over `graph.valid`, or of the edges into the logits alone,
            `[k, n_sources]`: other columns are then 0.

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
    rows = np.abs(edge_rows(scores))
    (matrix,) = layer_sums(scores.graph, rows)
    if reduce == "mean":
        matrix = matrix / np.maximum(layer_sums(scores.graph, np.ones_like(rows))[0], 1)
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
        needs = "3 matrices or more, a performance of each, all finite, and a ridge of 0 or more"
        raise InputError(f"{text}; a motif needs {needs}")
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
