"""Depth bias, circuit shift, dependency matrix and motif under resamples of the examples behind the scores.

Absolute values, ranks and layer sums are taken of the mean scores of each resample: kept while batches stream
past (`discover(..., resamples=200)`), or drawn from the scores of each example.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from assay.analyses.generalization.depth_bias import TARGETS, depth_biases, layer_sets, node_layers
from assay.analyses.generalization.motifs import motif
from assay.analyses.generalization.shift import DISTANCES, USUAL_VIEW, ShiftView, check_comparable
from assay.analyses.generalization.signatures import SIGNATURES
from assay.circuits import EdgeScores
from assay.core.errors import DegenerateDataWarning, InputError, ShapeError, unknown_name
from assay.discovery.edges import OutputScores
from assay.discovery.edges.sums import WeightedSums
from assay.graph import Graph
from assay.stats.resampled import UNBOUNDED, ResampledValue


Rows = Float64[np.ndarray, "n_resamples n_edges"]
Numbers = Float64[np.ndarray, " n_edges"]
RESAMPLES = 200  # drawn from scores of each example


class MeanScores(NamedTuple):
    """Mean scores of edges, the same in each resample, the number of examples, key of the resamples."""

    mean: Numbers
    drawn: Rows
    n: int
    key: str


def _mean_scores(scores: EdgeScores | OutputScores) -> MeanScores:
    of_edges = scores.graph.valid if isinstance(scores, EdgeScores) else slice(None)
    mean = scores.values.detach().cpu().double()[of_edges].numpy()
    if scores.resampled is not None:
        key = str(scores.details.get("resamples_key", ""))
        return MeanScores(mean, scores.resampled.double().numpy(), int(scores.details["n"]), key)
    if scores.per_example is None:
        raise InputError(
            "the scores have no resamples; discover with resamples=200, or with per_example=True where the "
            "scores of each example fit into memory"
        )
    each = scores.per_example.detach().cpu()[:, of_edges].double()
    sums = WeightedSums.of(each, torch.arange(len(each)), RESAMPLES, seed=0)
    drawn = sums.means(each.sum(0), len(each)).double().numpy()
    # Weights are by row here, so the rows must be those of one data set in one order.
    data = (scores.provenance.get("task") or {}).get("data_hash", "")
    return MeanScores(mean, drawn, len(each), f"rows {data}")


def resampled_depth_bias(
    scores: EdgeScores | OutputScores,
    *,
    targets: str = "output",
    ratio: float = 0.3,
    include_input: bool = False,
    sets: str = "symmetric",
) -> ResampledValue:
    """The depth bias and its resamples: `.interval()`, and `a - b` for two models on the same images.

    Args:
        scores: Made with `resamples` or `per_example`: of all edges, or, for `targets="output"`, of those
            into the logits.
        targets: As in `dependency_depth_bias`, like the next three.
        ratio: Fraction tau of the blocks on each side.
        include_input: Count the input as a shallow source.
        sets: `"symmetric"` or `"reference"`.

    Raises:
        InputError: Without resamples and scores of examples, or as `layer_sets`.
        ShapeError: For scores into the logits with other `targets`.
        UnknownNameError: For other `targets` or `sets`.

    Notes:
        For the mean bias of circuits of this many images: the magnitude of a noisy mean is too large, so few
        images draw the bias towards that of noise. The replacement values of a mean ablation are those of all
        images in every resample. Coverage: docs/theory/intervals-verdicts.md.

    Example:
        >>> from assay.graph import build_graph
        >>> generator = torch.Generator().manual_seed(0)
        >>> each = torch.ones(50, 5, 9) + 0.1 * torch.randn(50, 5, 9, generator=generator)
        >>> found = resampled_depth_bias(EdgeScores(build_graph(2, 1), each.mean(0), per_example=each))
        >>> 0.0 in found.interval()
        True
    """
    if targets not in TARGETS:
        raise unknown_name("targets", targets, TARGETS)
    if isinstance(scores, OutputScores) and targets != "output":
        raise ShapeError(
            f"these scores cover only the edges into the logits, but targets={targets!r} needs others too; "
            "use discover(..., resamples=200)"
        )
    layers = layer_sets(scores.graph.n_layers, ratio, include_input=include_input, sets=sets)
    mean, drawn, n, key = _mean_scores(scores)
    value, draws = (
        depth_biases(matrices(scores.graph, each), targets, layers) for each in (mean[None], drawn)
    )
    return ResampledValue(value=float(value[0]), draws=draws, n=n, key=key)


def resampled_shift(
    reference_scores: EdgeScores,
    shifted_scores: EdgeScores,
    *,
    distance: str = "spearman",
    view: ShiftView = USUAL_VIEW,
) -> ResampledValue:
    """The circuit shift and its resamples over the images of the new data.

    Args:
        reference_scores: Scores on known data, taken as given: their own error is the same for all batches.
        shifted_scores: Scores of the same model on other data, made with `resamples` or `per_example`.
        distance: As in `circuit_shift`.
        view: What it compares.

    Raises:
        InputError: Without resamples and scores of examples, or for scores made in different ways.
        GraphMismatchError: For circuits of different graphs or models.
        UnknownNameError: For another distance.

    Notes:
        Noise is distance, and a resample of m has it twice: near the reference its distances would vary twice
        as much as those of batches. So resamples depart from c, what is left of m without its noise: on the
        line from the reference to m, as far from the reference as m is less the mean length of a departure
        (squares subtracted; the reference itself if noise is longer). The interval is for the mean shift of
        batches of this many images. For `"jaccard"` and `"netlsd"`, which jump as edges enter the selection,
        it is rough. Coverage: docs/theory/intervals-verdicts.md.
    """
    if distance not in DISTANCES:
        raise unknown_name("distance", distance, DISTANCES)
    check_comparable(reference_scores, shifted_scores)
    scores, shift = _mean_scores(shifted_scores), _shifts(reference_scores, distance, view)
    known = reference_scores.values.detach().cpu().double()[reference_scores.graph.valid].abs().numpy()
    settled = _towards(scores, known, scaled=distance != "l2")
    return ResampledValue(
        value=float(shift(scores.mean[None])[0]),
        draws=shift(settled + (scores.drawn - scores.mean)),
        n=scores.n,
        bounds=DISTANCES[distance].bounds,
        key=scores.key,
    )


def _shifts(
    reference_scores: EdgeScores, distance: str, view: ShiftView
) -> Callable[[Rows], Float64[np.ndarray, " n_resamples"]]:
    """Distances of rows of scores from the reference; one by one for other views than the usual one."""
    graph, form = reference_scores.graph, SIGNATURES[distance]
    compare, usual = DISTANCES[distance].compare, view.of(reference_scores)
    known = form.vectors(graph, reference_scores.values.detach().cpu().double()[graph.valid].numpy()[None])[0]

    def one(row: Numbers) -> float:
        values = torch.zeros(graph.valid.shape, dtype=torch.float64)
        values[graph.valid] = torch.from_numpy(row)
        return compare(usual, view.of(EdgeScores(graph, values)))

    def shifts(rows: Rows) -> Float64[np.ndarray, " n_resamples"]:
        found, usable = np.full(len(rows), np.nan), np.isfinite(rows).all(1)
        if view == USUAL_VIEW:
            found[usable] = form.distance(form.vectors(graph, rows[usable]), known)
        else:
            with warnings.catch_warnings():  # a resample without a distance has none, and says no more
                warnings.simplefilter("ignore", DegenerateDataWarning)
                found[usable] = [one(row) for row in rows[usable]]
        return found

    return shifts


def _towards(scores: MeanScores, known: Numbers, *, scaled: bool) -> Numbers:
    """The mean without its noise, on the line from the reference to it."""
    sizes = np.abs(scores.mean)
    scale = float(sizes @ known / max(known @ known, np.finfo(np.float64).tiny)) if scaled else 1.0
    away = sizes - scale * known
    usable = np.isfinite(scores.drawn).all(1)
    length, noise = float(away @ away), float(scores.drawn[usable].var(0).sum()) if usable.any() else 0.0
    share = math.sqrt(max(1 - noise / length, 0.0)) if length > 0 else 0.0
    return np.asarray(np.where(scores.mean < 0, -1, 1) * (scale * known + share * away))


@dataclass(frozen=True, kw_only=True, eq=False)
class ResampledMatrix:
    """The dependency matrix and what it becomes under resamples; fields as those of `ResampledValue`.

    Attributes:
        value: `[L + 1, L + 1]`.
        draws: `[B, L + 1, L + 1]`.
        n: Images.
        bounds: Of every entry.
        key: Of the resamples.
    """

    value: Float64[np.ndarray, "layers layers"]
    draws: Float64[np.ndarray, "n_resamples layers layers"]
    n: int
    bounds: tuple[float, float]
    key: str = ""

    def entry(self, source: int, target: int) -> ResampledValue:
        """One entry: how strongly one layer writes to another."""
        value, draws = float(self.value[source, target]), self.draws[:, source, target]
        return ResampledValue(value=value, draws=draws, n=self.n, bounds=self.bounds, key=self.key)


def resampled_dependency(scores: EdgeScores) -> ResampledMatrix:
    """The dependency matrix and its resamples.

    Args:
        scores: Made with `resamples` or `per_example`.

    Raises:
        InputError: Without either.
    """
    mean, drawn, n, key = _mean_scores(scores)
    value, draws = (matrices(scores.graph, each) for each in (mean[None], drawn))
    return ResampledMatrix(value=value[0], draws=draws, n=n, bounds=(0.0, math.inf), key=key)


def matrices(graph: Graph, means: Float64[np.ndarray, "k n_edges"]) -> Float64[np.ndarray, "k layers layers"]:
    """Dependency matrix of each row of mean scores.

    Args:
        graph: Of the model.
        means: Signed scores of all edges, row-major over `graph.valid`, or of those into the logits alone,
            `[k, n_sources]`: other columns are then 0.
    """
    source, target, n_layers = node_layers(graph)
    rows, columns = graph.valid.nonzero(as_tuple=True)
    if means.shape[1] == graph.n_sources:
        rows, columns = rows[columns == graph.n_targets - 1], columns[columns == graph.n_targets - 1]
    cells = source[rows] * n_layers + target[columns]
    order = torch.argsort(cells, stable=True)  # edges of one cell side by side
    present, sizes = torch.unique_consecutive(cells[order], return_counts=True)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)[:-1]]).numpy()
    found = np.zeros((len(means), n_layers * n_layers))
    found[:, present.numpy()] = np.add.reduceat(np.abs(means)[:, order.numpy()], starts, axis=1)
    return found.reshape(len(means), n_layers, n_layers)


def resampled_motif(
    models: Sequence[ResampledMatrix], performance: Sequence[float], *, kind: str = "loadings"
) -> ResampledMatrix:
    """The generalization motif of a zoo and its resamples over the images that all models saw.

    Args:
        models: Dependency matrices of the models, from scores with the same `resamples`, seed and images.
        performance: True performance of each, held fixed.
        kind: As in `motif`.

    Returns:
        Entries are correlations (`kind="loadings"`). Its intervals are over images; that other models would
        give another motif is not in them.

    Raises:
        InputError: As `motif`, and for models with different resamples.
    """
    counts = {(len(each.draws), each.n, each.key) for each in models}
    if len(counts) > 1:
        raise InputError(
            f"the models have different (resamples, images, key): {sorted(counts)}; score all on the same "
            "images with one seed"
        )
    draws = np.stack([each.draws for each in models], axis=1)
    return ResampledMatrix(
        value=_motif(np.stack([each.value for each in models]), performance, kind),
        draws=np.stack([_motif(each, performance, kind) for each in draws]),
        n=models[0].n,
        key=models[0].key,
        bounds=(-1.0, 1.0) if kind == "loadings" else UNBOUNDED,
    )


def _motif(
    stack: Float64[np.ndarray, "models layers layers"], performance: Sequence[float], kind: str
) -> Float64[np.ndarray, "layers layers"]:
    if not np.isfinite(stack).all():
        return np.full(stack.shape[1:], np.nan)
    found = motif([torch.from_numpy(each) for each in stack], performance, kind=kind)
    return np.asarray(found.values.numpy(), dtype=np.float64)
