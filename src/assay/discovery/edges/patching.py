"""Methods that measure instead of estimating: exact edge ablation; and the random baseline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.circuits import Circuit, EdgeScores
from assay.core.errors import InputError
from assay.core.random import torch_stream
from assay.discovery.edges.method import METHODS, BatchMethod, BatchScores, Choices
from assay.execution import Baseline, CircuitRunner, Prepared, SuffixRunner
from assay.execution.forward import check_finite
from assay.graph import Graph
from assay.models import Model
from assay.tasks import Batch


# Positions of all cuts and examples in one pass. More costs cache on a CPU, fewer leave cores idle.
POSITIONS_PER_PASS = {"cpu": 4096, "cuda": 2**17}


@dataclass(frozen=True, kw_only=True)
class Exact(BatchMethod):
    """The damage itself: J(run with this one edge ablated) - J(clean), for every edge.

    A run differs from the clean one behind its edge only, so it starts at the edge's target, and many edges
    into one target share a pass. Where the heads of a block depend on each other, each
    edge has a run of its own.

    Attributes:
        edges: Edges to measure: names (`input->a0.h0.q`), or a circuit. The others get 0. None: all.
    """

    key: ClassVar[str] = "exact"
    needs_gradients: ClassVar[bool] = False
    source: ClassVar[str] = "Conmy et al. 2023, arXiv:2304.14997"

    edges: Sequence[str] | str | Circuit | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen = self.edges
        if isinstance(chosen, Circuit):
            chosen = chosen.edges()
        elif isinstance(chosen, str):
            chosen = [name.strip() for name in chosen.split(",")]
        if chosen is not None:
            if not chosen:
                raise InputError("edges of exact is empty; name at least one edge, or leave it out for all")
            object.__setattr__(self, "edges", tuple(chosen))

    def wanted(self, graph: Graph) -> Bool[Tensor, "n_sources n_targets"]:
        """The edges to measure.

        Raises:
            UnknownNameError: For an edge that the graph does not have.
        """
        if self.edges is None:
            return graph.valid
        assert not isinstance(self.edges, Circuit)  # `__post_init__` made names of it
        return Circuit.from_edges(graph, list(self.edges)).mask

    def select(self, scores: EdgeScores, k: int) -> Circuit:
        """The k strongest of the edges that were measured."""
        return super().select(scores, min(k, int(self.wanted(scores.graph).sum())))

    @torch.no_grad()
    def score(self, model: Model, batch: Batch, prepared: Prepared, settings: Choices) -> BatchScores:
        wanted = self.wanted(model.graph)
        runs = runs_from_targets if _starts_at_targets(model) else runs_apart
        baseline = prepared.baseline(batch)
        scores = None
        for row, column, damage in runs(model, batch, baseline, settings, wanted):
            if scores is None:
                rows = len(damage) if settings.apart else 1
                scores = damage.new_zeros(rows, *wanted.shape)
            scores[:, row, column] = damage if settings.apart else damage.sum()
        assert scores is not None  # at least one edge is wanted
        return BatchScores(scores=scores, forward=int(wanted.sum()) + 1 + int(settings.ablation.paired))


Damages = Iterator[tuple[int, int, Float[Tensor, " batch"]]]


def _starts_at_targets(model: Model) -> bool:
    """Whether a change of one head, or of one query or key, leaves the rest of its block as it is."""
    return model.family.branch_norm is None and model.coupling == "none"


def runs_from_targets(
    model: Model, batch: Batch, baseline: Baseline, settings: Choices, wanted: Tensor
) -> Damages:
    """Source, target and damage per example of every wanted edge: runs from targets on, many edges a pass."""
    runner = SuffixRunner(model, keep=False, several=batch.positions.ndim == 2)
    clean_logits = runner.add(batch.clean, baseline, batch.positions)
    check_finite(clean_logits, f"{model.id} on the clean input", batch.indices)
    clean_loss = settings.objective(clean_logits, clean_logits, batch)
    most = POSITIONS_PER_PASS["cpu" if model.device.type == "cpu" else "cuda"]
    for column in reversed(range(wanted.shape[1])):
        rows = wanted[:, column].nonzero().squeeze(1)
        if len(rows) == 0 or not runner.live(column):
            yield from ((row, column, torch.zeros_like(clean_loss)) for row in rows.tolist())
            continue
        width = batch.width if runner.everywhere(column) else 1
        for some in rows.split(max(1, most // (len(batch.indices) * width))):
            (found,) = runner.alone(column, some.tolist())
            for row, logits in zip(some.tolist(), found, strict=True):
                yield row, column, settings.objective(logits, clean_logits, batch) - clean_loss


def runs_apart(model: Model, batch: Batch, baseline: Baseline, settings: Choices, wanted: Tensor) -> Damages:
    """The same with a run of its own for every edge, where a block cannot be entered in its middle."""
    with model.tracing() as clean:
        hidden = model.forward(batch.clean)
    clean_logits = model.read(hidden, batch.positions).to(model.result_dtype)
    check_finite(clean_logits, f"{model.id} on the clean input", batch.indices)
    clean_loss = settings.objective(clean_logits, clean_logits, batch)
    several = batch.positions.ndim == 2
    for row, column in wanted.nonzero().tolist():
        mask = model.graph.valid.clone()
        mask[row, column] = False
        circuit = Circuit(graph=model.graph, mask=mask)
        runner = CircuitRunner(model, circuit, resample=settings.ablation.paired, several=several)
        logits = runner.logits(clean, baseline, batch.positions).to(model.result_dtype)
        yield row, column, settings.objective(logits, clean_logits, batch) - clean_loss


class Random(BatchMethod):
    """Uniform scores on (-1, 1): the baseline that a method has to beat."""

    key = "random"
    needs_gradients = False
    source = "Mueller et al. 2025, arXiv:2504.13151"

    def score(self, model: Model, batch: Batch, prepared: Prepared, settings: Choices) -> BatchScores:
        graph = model.graph
        draw = (
            torch.rand(
                graph.n_sources, graph.n_targets, generator=torch_stream(settings.seed, "random-scores")
            )
            * 2
            - 1
        )
        scores = (draw * graph.valid).to(model.result_dtype)
        n = len(batch.indices)
        return BatchScores(scores=scores.expand(n, -1, -1) if settings.apart else scores[None] * n)


for _method in (Exact(), Random()):
    METHODS.add(_method.key, _method)
