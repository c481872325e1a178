"""How layers depend on each other in a circuit, and how far the dependence leans to the deep ones."""

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from assay.circuits import EdgeScores
from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError, ShapeError, unknown_name
from assay.graph import Graph


Granularity = Literal["block", "sublayer"]
FLOOR = 1e-12  # eps of Eq. 4: keeps the logarithm finite where one side of the ratio vanishes
TARGETS = ("output", "deep", "global")
SETS = ("symmetric", "reference")
# Block indices of the authors' code for models of 12 blocks: the last shallow one and the first deep one.
REFERENCE_BLOCKS = {0.1: (0, 11), 0.2: (1, 10), 0.3: (3, 9), 0.4: (3, 8), 0.5: (5, 6)}


def node_layers(
    graph: Graph, granularity: str = "block"
) -> tuple[Int[Tensor, " n_sources"], Int[Tensor, " n_targets"], int]:
    """Layer index of every source and every target, and the number of layers.

    Args:
        graph: Any graph; `input` is layer 0.
        granularity: `"block"`: l + 1 for the nodes of block l, `logits` last; `n_layers + 2` layers.
            `"sublayer"`: 2 l + 1 for the heads and 2 l + 2 for the MLP of block l; `2 n_layers + 2` layers.
    """
    if granularity == "block":
        return graph.source_layer, graph.target_layer, graph.n_layers + 2
    if granularity != "sublayer":
        raise unknown_name("granularity", granularity, ("block", "sublayer"))
    is_mlp = torch.tensor([name.startswith("m") for name in graph.sources])
    reads_mlp = torch.tensor([name.startswith("m") for name in graph.targets])
    # Layer 0 of the blocks is the input, which has no halves.
    sources = (2 * graph.source_layer - 1 + is_mlp.long()).clamp_min(0)
    targets = 2 * graph.target_layer - 1 + reads_mlp.long()
    return sources, targets, 2 * graph.n_layers + 2


def dependency_matrix(
    scores: EdgeScores, *, reduce: str = "sum", granularity: str = "block"
) -> Float[Tensor, "n n"]:
    """The inter-layer dependency matrix: how strongly each layer writes to each later one.

    Lambda_ij = sum of |c(e)| over the edges e from layer i to layer j.

    Args:
        scores: Signed scores of the edges; magnitudes are taken here.
        reduce: `"sum"`, or `"mean"` to divide by the number of edges of each cell.
        granularity: `"block"` (layers 0 = input, l + 1 = block l, L = n_layers + 1 = logits) or `"sublayer"`
            (attention and MLP of a block apart; for drawing).

    Returns:
        float64 `[L + 1, L + 1]`, row = source layer, column = target layer, >= 0, in the unit of the scores.
        0 where no edge joins two layers: everywhere but above the diagonal, and on it for the edges from the
        heads of a block to its own MLP.

    Raises:
        UnknownNameError: For another `reduce` or `granularity`.

    Notes:
        One pass over the edges; no run of the model. Scores that are not finite cannot be here: `EdgeScores`
        refuses them by the name of the edge.

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
    if reduce not in ("sum", "mean"):
        raise unknown_name("reduce", reduce, ("sum", "mean"))
    weights = scores.values.detach().abs().double().cpu()[scores.graph.valid]
    matrix = sum_by_layers(scores.graph, weights, granularity)
    if reduce == "sum":
        return matrix
    counts = sum_by_layers(scores.graph, torch.ones_like(weights), granularity)
    return matrix / counts.clamp_min(1)


def at_relative_layers(
    matrix: Float64[np.ndarray, "layers layers"], positions: int
) -> Float64[np.ndarray, "n n"]:
    """A dependency matrix at equal shares of the depth, for models of different depth side by side.

    Block l of B covers [(l - 1) / B, l / B] of the depth. What it writes or reads goes to the shares that it
    overlaps, in proportion; input and logits stay as they are. The sum of all entries does not change.

    Args:
        matrix: Of `"block"` layers.
        positions: Shares, 1 or more; as many as blocks gives the matrix itself.

    Example:
        >>> matrix = np.triu(np.ones((6, 6)), 1)
        >>> at_relative_layers(matrix, 2)[0].tolist()  # the input writes to 2 halves, and to the logits
        [0.0, 2.0, 2.0, 1.0]
    """
    blocks = len(matrix) - 2
    if positions == blocks:
        return np.asarray(matrix, dtype=np.float64)
    ends, cuts = np.arange(blocks + 1) / blocks, np.arange(positions + 1) / positions
    overlap = np.minimum(ends[1:], cuts[1:, None]) - np.maximum(ends[:-1], cuts[:-1, None])
    spread = np.zeros((positions + 2, blocks + 2))
    spread[0, 0] = spread[-1, -1] = 1.0
    spread[1:-1, 1:-1] = np.clip(overlap, 0.0, None) * blocks
    return np.asarray(spread @ matrix @ spread.T)


def sum_by_layers(
    graph: Graph, weights: Float[Tensor, " n_edges"], granularity: str = "block"
) -> Float[Tensor, "n n"]:
    """Numbers of the edges (row-major over `graph.valid`) added up by source layer and target layer."""
    source_layer, target_layer, n = node_layers(graph, granularity)
    rows, columns = graph.valid.nonzero(as_tuple=True)
    cells = source_layer[rows] * n + target_layer[columns]
    return torch.bincount(cells, weights=weights.double(), minlength=n * n).view(n, n)


class LayerSets(NamedTuple):
    """Layers on the two sides of the ratio of the depth bias: first and last, both included."""

    low: tuple[int, int]
    high: tuple[int, int]


def layer_sets(
    n_layers: int, ratio: float = 0.3, *, include_input: bool = False, sets: str = "symmetric"
) -> LayerSets:
    """The shallow and the deep layers that the dependency depth bias compares.

    With k = max(1, floor(ratio n_layers)): layers 1..k and n_layers + 1 - k .. n_layers.

    Args:
        n_layers: Blocks of the model, >= 2.
        ratio: tau, in (0, 0.5].
        include_input: Count layer 0, the input, as shallow.
        sets: `"symmetric"`, or `"reference"` for the sets of the authors' code (12 blocks, ratio one of
            0.1 to 0.5). The two differ at 0.3 only, where the code has 4 shallow and 3 deep blocks.

    Raises:
        InputError: For a ratio outside (0, 0.5], sets that overlap, or reference sets of another model size.
        UnknownNameError: For another `sets`.
    """
    if not 0 < ratio <= 0.5:
        raise InputError(f"ratio is {ratio}; expected a fraction of the blocks in (0, 0.5]")
    if sets == "symmetric":
        size = max(1, math.floor(ratio * n_layers + 1e-9))  # 0.3 * 10 must be 3
        if 2 * size > n_layers:
            raise InputError(
                f"{n_layers} block(s) are too few for two separate sets of {size}; use a model with 2 or more"
            )
        low, high = (1, size), (n_layers + 1 - size, n_layers)
    elif sets == "reference":
        known = [blocks for tau, blocks in REFERENCE_BLOCKS.items() if math.isclose(tau, ratio)]
        if n_layers != 12 or not known:
            raise InputError(
                f"reference sets exist for 12 blocks and ratios {sorted(REFERENCE_BLOCKS)}, but this is "
                f"{n_layers} blocks and {ratio}; use sets='symmetric'"
            )
        low, high = (1, known[0][0] + 1), (known[0][1] + 1, n_layers)
    else:
        raise unknown_name("sets", sets, SETS)
    return LayerSets((0 if include_input else 1, low[1]), high)


@dataclass(frozen=True, kw_only=True)
class DepthRule:
    """Which layers a depth bias compares, for models of any depth; see `layer_sets`.

    Attributes:
        ratio: tau, the share of the blocks on each side, in (0, 0.5].
        include_input: Count layer 0, the input, as shallow.
        sets: `"symmetric"` or `"reference"`.
    """

    ratio: float = 0.3
    include_input: bool = False
    sets: str = "symmetric"

    def layers(self, n_layers: int) -> LayerSets:
        """The layers of a model with so many blocks."""
        return layer_sets(n_layers, self.ratio, **self.options)

    def check(self) -> None:
        """Refuse what no model can serve; the reference sets exist for 12 blocks only."""
        self.layers(12 if self.sets == "reference" else 2)

    @property
    def options(self) -> dict[str, Any]:
        """The rule without its ratio, by names of arguments."""
        return {"include_input": self.include_input, "sets": self.sets}


def dependency_depth_bias(
    scores: EdgeScores | Float[Tensor, "n n"],
    *,
    targets: str = "output",
    ratio: float = 0.3,
    include_input: bool = False,
    sets: str = "symmetric",
) -> float:
    """How much more a circuit draws on deep layers than on shallow ones (DDB).

    log(max(deep / (shallow + eps), eps)), where deep and shallow are the sums of Lambda_ij over the deep and
    the shallow source layers i and the layers j that `targets` names; eps = 1e-12.

    Args:
        scores: Scores of the edges, or a dependency matrix of them (`"block"` layers).
        targets: `"output"`: edges into the logits only (the best on average); `"deep"`: into the deep
            layers and the logits; `"global"`: into every layer.
        ratio: Fraction tau of the blocks on each side, in (0, 0.5].
        include_input: Count the input as a shallow source.
        sets: Which layers are shallow and deep, see `layer_sets`.

    Returns:
        Natural logarithm of a ratio; any sign. Higher: more reliance on deep features, which predicts better
        generalization. Scaling all scores changes nothing (as long as sums stay far above 1e-12).

    Raises:
        InputError: For a ratio outside (0, 0.5] or sets that overlap.
        UnknownNameError: For another `targets` or `sets`.
        ShapeError, NonFiniteError: For a matrix that is not a dependency matrix.

    Notes:
        No deep edges: log(1e-12). Neither deep nor shallow edges: NaN with a `DegenerateDataWarning`.
        `"output"` reads only the last column of the scores, so edges into anything but the logits may be
        left at 0; `output_depth_bias` takes that column alone. No labels are used.

    References:
        Peng et al. (2026), arXiv:2604.08192, Eq. 4.

    Example:
        >>> from assay.graph import build_graph
        >>> values = torch.zeros(5, 9)
        >>> values[1, -1], values[3, -1] = -1.0, 2.0  # the heads to the logits
        >>> round(dependency_depth_bias(EdgeScores(build_graph(2, 1), values)), 6)
        0.693147
    """
    if targets not in TARGETS:
        raise unknown_name("targets", targets, TARGETS)
    if isinstance(scores, EdgeScores):
        if targets == "output":
            return output_depth_bias(
                scores.graph, scores.values[:, -1], ratio=ratio, include_input=include_input, sets=sets
            )
        matrix = dependency_matrix(scores)
    else:
        matrix = _checked(scores)
    layers = layer_sets(len(matrix) - 2, ratio, include_input=include_input, sets=sets)
    return _log_ratio(matrix[:, _first_target(targets, layers) :].sum(1), layers)


def _first_target(targets: str, layers: LayerSets) -> int:
    """The first layer whose edges count; the logits come right after the deep layers."""
    return {"output": layers.high[1] + 1, "deep": layers.high[0], "global": 1}[targets]


def depth_biases(
    matrices: Float64[np.ndarray, "k layers layers"], targets: str, layers: LayerSets
) -> Float64[np.ndarray, " k"]:
    """Eq. 4 of many dependency matrices at once, as `dependency_depth_bias`; NaN where both sides are 0."""
    written = matrices[:, :, _first_target(targets, layers) :].sum(2)
    deep, shallow = (written[:, first : last + 1].sum(1) for first, last in (layers.high, layers.low))
    logs = np.log(np.maximum(deep / (shallow + FLOOR), FLOOR))
    return np.where((deep > 0) | (shallow > 0), logs, math.nan)


def output_depth_bias(
    graph: Graph,
    contributions: Float[Tensor, " n_sources"],
    *,
    ratio: float = 0.3,
    include_input: bool = False,
    sets: str = "symmetric",
) -> float:
    """The depth bias of the edges into the logits, from the scores of these edges alone.

    Equal to `dependency_depth_bias(scores, targets="output")`, without scores of any other edge: the gradient
    of these needs no backward pass through the blocks.

    Args:
        graph: The graph of the model.
        contributions: Signed score of the edge from each source to `logits`, `[n_sources]`.
        ratio: Fraction tau of the blocks on each side, in (0, 0.5].
        include_input: Count the input as a shallow source.
        sets: Which layers are shallow and deep, see `layer_sets`.

    Returns:
        As `dependency_depth_bias`.

    Raises:
        ShapeError: If there is not one number per source.
        NonFiniteError: If one is NaN or infinite; the message names the edge.
        InputError: As `layer_sets`.

    References:
        Peng et al. (2026), arXiv:2604.08192, Eq. 4.
    """
    if tuple(contributions.shape) != (graph.n_sources,):
        raise ShapeError(
            f"contributions have shape {tuple(contributions.shape)}, but this graph has "
            f"{graph.n_sources} sources"
        )
    weights = contributions.detach().abs().double().cpu()
    bad = (~torch.isfinite(weights)).nonzero()
    if len(bad):
        row = int(bad[0])
        raise NonFiniteError(
            f"score of {graph.edge_name(row, graph.n_targets - 1)} is {contributions[row].item()}; check the "
            "model's logits and weights for NaN"
        )
    written = torch.bincount(graph.source_layer, weights=weights, minlength=graph.n_layers + 2)
    return _log_ratio(written, layer_sets(graph.n_layers, ratio, include_input=include_input, sets=sets))


def _log_ratio(written: Float[Tensor, " n"], chosen: LayerSets) -> float:
    """Eq. 4 from what each source layer writes to the targets in question."""
    deep, shallow = (float(written[first : last + 1].sum()) for first, last in (chosen.high, chosen.low))
    if deep == 0 and shallow == 0:
        warnings.warn(
            "depth bias is undefined: all scores of edges from deep or shallow layers into the targets are 0",
            DegenerateDataWarning,
            stacklevel=3,
        )
        return math.nan
    return math.log(max(deep / (shallow + FLOOR), FLOOR))


def _checked(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 3:
        raise ShapeError(
            f"the dependency matrix has shape {tuple(matrix.shape)}; expected a square matrix with a row "
            "for input, each block and logits"
        )
    matrix = matrix.detach().double().cpu()
    if not bool(torch.isfinite(matrix).all()):
        raise NonFiniteError("the dependency matrix holds NaN or infinite entries")
    if bool((matrix < 0).any()):
        raise InputError("the dependency matrix has negative entries; expected sums of magnitudes of scores")
    return matrix
