"""Depth bias, circuit shift, dependency matrix and motif under resamples, from sums kept while streaming.

Absolute values, ranks and layer sums are taken of the mean scores of each resample
(`discover(..., resamples=200)`), so nothing here needs the scores of single images.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from assay.analyses.generalization.circuit_view import WeightedCircuit
from assay.analyses.generalization.depth_bias import TARGETS, layer_sets, node_layers
from assay.analyses.generalization.intervals import log_ratios
from assay.analyses.generalization.motifs import motif
from assay.analyses.generalization.shift import DISTANCES, check_comparable
from assay.analyses.generalization.signatures import SIGNATURES
from assay.circuits import EdgeScores
from assay.core.errors import InputError, ShapeError, unknown_name
from assay.discovery.edges import OutputScores
from assay.graph import Graph
from assay.stats.resampled import ResampledValue


Rows = Float64[np.ndarray, "n_resamples n_edges"]
Numbers = Float64[np.ndarray, " n_edges"]
SURE = 0.9  # quantile of noise alone that a distance must exceed to count as distance


class Draws(NamedTuple):
    """Mean scores and their resamples, of some edges."""

    mean: Numbers
    departures: Rows
    n: int

    def sets(self, centre: Numbers) -> tuple[Rows, Rows]:
        """Scores of the draws and of the settled draws of `ResampledValue`."""
        return self.mean + self.departures, centre + self.departures

    def settled(self) -> Numbers:
        """The mean without its own noise, edge by edge: sign(m) sqrt(max(m^2 - var(d), 0))."""
        variance = np.nanvar(self.departures, axis=0)
        return np.asarray(np.sign(self.mean) * np.sqrt(np.maximum(self.mean**2 - variance, 0)))


def _draws(scores: EdgeScores | OutputScores, used: Bool[Tensor, " n_edges"] | None = None) -> Draws:
    """Those of all edges of the scores, or of some."""
    if scores.resampled is None:
        raise InputError(
            "the scores have no resamples; discover with resamples=200, or use the interval from per_example"
        )
    mean = scores.values[scores.graph.valid] if isinstance(scores, EdgeScores) else scores.values
    mean, drawn = mean.detach().cpu().double(), scores.resampled
    if used is not None:
        mean, drawn = mean[used], drawn[:, used]
    drawn = drawn.double()
    return Draws(mean.numpy(), (drawn - mean).numpy(), int(scores.details["n"]))


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
        scores: Made with `resamples`: of all edges, or, for `targets="output"`, of those into the logits.
        targets: As in `dependency_depth_bias`, like the next three.
        ratio: Fraction tau of the blocks on each side.
        include_input: Count the input as a shallow source.
        sets: `"symmetric"` or `"reference"`.

    Raises:
        InputError: Without resamples, or as `layer_sets`.
        ShapeError: For scores into the logits with other `targets`.
        UnknownNameError: For other `targets` or `sets`.

    Notes:
        For the mean bias of circuits of this many images. The replacement values of a mean ablation are those
        of all images in every resample. Coverage: docs/theory/intervals-verdicts.md.
    """
    if targets not in TARGETS:
        raise unknown_name("targets", targets, TARGETS)
    graph = scores.graph
    layers = layer_sets(graph.n_layers, ratio, include_input=include_input, sets=sets)
    first = {"output": graph.n_layers + 1, "deep": layers.high[0], "global": 1}[targets]
    if isinstance(scores, OutputScores):
        if targets != "output":
            raise ShapeError(
                f"these scores cover only the edges into the logits, but targets={targets!r} needs others "
                "too; use discover(..., resamples=200)"
            )
        source, read = graph.source_layer, torch.ones(graph.n_sources, dtype=torch.bool)
    else:
        rows, columns = graph.valid.nonzero(as_tuple=True)
        source, read = graph.source_layer[rows], graph.target_layer[columns] >= first
    deep, shallow = ((source >= low) & (source <= high) & read for low, high in (layers.high, layers.low))
    used = deep | shallow
    sides = deep[used].numpy()

    def bias(table: Float64[np.ndarray, "k n_edges"]) -> Float64[np.ndarray, " k"]:
        sizes = np.abs(table)
        return log_ratios(np.stack([sizes[:, sides].sum(1), sizes[:, ~sides].sum(1)], axis=1))

    drawn = _draws(scores, used)
    return _resampled(drawn, bias, drawn.settled())


def resampled_shift(
    reference_scores: EdgeScores, shifted_scores: EdgeScores, *, distance: str = "spearman"
) -> ResampledValue:
    """The circuit shift and its resamples over the images of the new data.

    Args:
        reference_scores: Scores on known data, taken as given.
        shifted_scores: Scores of the same model on other data, made with `resamples`.
        distance: As in `circuit_shift`.

    Raises:
        InputError: Without resamples, or for scores made in different ways.
        GraphMismatchError: For circuits of different graphs or models.
        UnknownNameError: For another distance.

    Notes:
        The settled draws lie around the reference if the new scores are at most as far from it as noise alone
        would be in one case of ten, else around what is left of the distance without the noise.
        `.interval(bounds=DISTANCES[distance].bounds)`; coverage: docs/theory/intervals-verdicts.md.
    """
    if distance not in DISTANCES:
        raise unknown_name("distance", distance, DISTANCES)
    check_comparable(reference_scores, shifted_scores)
    drawn, known = _draws(shifted_scores), WeightedCircuit(scores=reference_scores).weights
    graph = reference_scores.graph

    form = SIGNATURES[distance]
    signed = reference_scores.values.detach().cpu().double()[graph.valid].numpy()
    usual = form.vectors(graph, signed[None])[0]

    def shift(table: Float64[np.ndarray, "k n_edges"]) -> Float64[np.ndarray, " k"]:
        found, usable = np.full(len(table), np.nan), np.isfinite(table).all(1)
        found[usable] = form.distance(form.vectors(graph, table[usable]), usual)
        return found

    return _resampled(drawn, shift, _towards(drawn, known, scaled=distance != "l2"))


def _towards(drawn: Draws, known: Numbers, *, scaled: bool) -> Numbers:
    """The mean without its noise, as a point between it and the reference."""
    sizes = np.abs(drawn.mean)
    scale = float(sizes @ known / max(known @ known, np.finfo(np.float64).tiny)) if scaled else 1.0
    away = sizes - scale * known
    noise = (drawn.departures**2).sum(1)
    noise = noise[np.isfinite(noise)] * drawn.n / max(drawn.n - 1, 1)
    length = float(away @ away)
    share = 0.0
    if len(noise) and length > float(np.quantile(noise, SURE)):
        share = math.sqrt(max(1 - float(noise.mean()) / length, 0))
    return np.asarray(np.where(drawn.mean < 0, -1, 1) * (scale * known + share * away))


def _resampled(
    drawn: Draws,
    of_rows: Callable[[Float64[np.ndarray, "k n_edges"]], Float64[np.ndarray, " k"]],
    centre: Numbers,
) -> ResampledValue:
    draws, settled = (of_rows(each) for each in drawn.sets(centre))
    value = float(of_rows(drawn.mean[None])[0])
    return ResampledValue(value=value, draws=draws, settled=settled, n=drawn.n)


@dataclass(frozen=True, kw_only=True, eq=False)
class ResampledMatrix:
    """The dependency matrix and what it becomes under resamples; fields as those of `ResampledValue`.

    Attributes:
        value: `[L + 1, L + 1]`.
        draws, settled: `[B, L + 1, L + 1]`.
        n: Images.
    """

    value: Float64[np.ndarray, "layers layers"]
    draws: Float64[np.ndarray, "n_resamples layers layers"]
    settled: Float64[np.ndarray, "n_resamples layers layers"]
    n: int

    def entry(self, source: int, target: int) -> ResampledValue:
        """One entry: how strongly one layer writes to another."""
        draws, settled = (each[:, source, target] for each in (self.draws, self.settled))
        return ResampledValue(value=float(self.value[source, target]), draws=draws, settled=settled, n=self.n)


def resampled_dependency(scores: EdgeScores) -> ResampledMatrix:
    """The dependency matrix and its resamples.

    Args:
        scores: Made with `resamples`.

    Raises:
        InputError: Without resamples.
    """
    drawn = _draws(scores)
    draws, settled = (matrices(scores.graph, each) for each in drawn.sets(drawn.settled()))
    value = matrices(scores.graph, drawn.mean[None])[0]
    return ResampledMatrix(value=value, draws=draws, settled=settled, n=drawn.n)


def matrices(graph: Graph, means: Float64[np.ndarray, "k n_edges"]) -> Float64[np.ndarray, "k layers layers"]:
    """Dependency matrix of each row of mean scores (edges row-major over `graph.valid`)."""
    source, target, n_layers = node_layers(graph)
    rows, columns = graph.valid.nonzero(as_tuple=True)
    cells = source[rows] * n_layers + target[columns]
    order = torch.argsort(cells, stable=True)  # edges of one cell side by side: a sum is a difference of ends
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
    counts = {(len(each.draws), each.n) for each in models}
    if len(counts) > 1:
        raise InputError(
            f"the models have different (resamples, images): {sorted(counts)}; score all on the same images"
        )

    def of(name: str) -> Float64[np.ndarray, "n_resamples layers layers"]:
        per_model = np.stack([getattr(each, name) for each in models], axis=1)
        return np.stack([_motif(each, performance, kind) for each in per_model])

    value = _motif(np.stack([each.value for each in models]), performance, kind)
    return ResampledMatrix(value=value, draws=of("draws"), settled=of("settled"), n=models[0].n)


def _motif(
    stack: Float64[np.ndarray, "models layers layers"], performance: Sequence[float], kind: str
) -> Float64[np.ndarray, "layers layers"]:
    if not np.isfinite(stack).all():
        return np.full(stack.shape[1:], np.nan)
    found = motif([torch.from_numpy(each) for each in stack], performance, kind=kind)
    return np.asarray(found.values.numpy(), dtype=np.float64)
