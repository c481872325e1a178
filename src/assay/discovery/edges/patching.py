"""Methods that measure instead of estimating: exact edge ablation; and the random baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from assay.circuits import Circuit, EdgeScores
from assay.core.errors import InputError
from assay.core.random import torch_stream
from assay.discovery.edges.method import METHODS, BatchMethod, BatchScores, Choices, EdgeMethod
from assay.execution import CutRunner, Prepared
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
    into one target share a pass.

    Attributes:
        edges: Edges to measure: names (`input->a0.h0.q`), or a circuit. The others get 0. None: all.
    """

    key: ClassVar[str] = "exact"
    needs_gradients: ClassVar[bool] = False
    source: ClassVar[str] = "Conmy et al. 2023, arXiv:2304.14997"

    edges: Sequence[str] | str | Circuit | None = None

    def configured(self, /, **options: Any) -> EdgeMethod:
        """The same method with other options; a circuit and a text of names become names of edges."""
        chosen = options.get("edges", self.edges)
        if isinstance(chosen, Circuit):
            chosen = chosen.edges()
        elif isinstance(chosen, str):
            chosen = [name.strip() for name in chosen.split(",")]
        if chosen is None:
            return super().configured(**options)
        if not chosen:
            raise InputError("edges of exact is empty; name at least one edge, or leave it out for all")
        return super().configured(**options | {"edges": tuple(chosen)})

    def wanted(self, graph: Graph) -> Bool[Tensor, "n_sources n_targets"]:
        """The edges to measure.

        Raises:
            UnknownNameError: For an edge that the graph does not have.
        """
        if self.edges is None:
            return graph.valid
        assert not isinstance(self.edges, Circuit)  # `configured` made names of it
        return Circuit.from_edges(graph, list(self.edges)).mask

    def select(self, scores: EdgeScores, k: int) -> Circuit:
        """The k strongest of the edges that were measured."""
        return super().select(scores, min(k, int(self.wanted(scores.graph).sum())))

    @torch.no_grad()
    def score(self, model: Model, batch: Batch, prepared: Prepared, settings: Choices) -> BatchScores:
        wanted = self.wanted(model.graph)
        runner = CutRunner(model)
        clean_logits = runner.add(batch.clean, prepared.baseline(batch), batch.positions)
        check_finite(clean_logits, f"{model.id} on the clean input", batch.indices)
        clean_loss = settings.objective(clean_logits, clean_logits, batch)
        n = len(batch.indices)
        scores = clean_loss.new_zeros(n if settings.apart else 1, *wanted.shape)
        most = POSITIONS_PER_PASS["cpu" if model.device.type == "cpu" else "cuda"]
        for column in reversed(range(wanted.shape[1])):
            inlet, rows = runner.inlet(column), wanted[:, column].nonzero().squeeze(1)
            if inlet is None:  # nothing of what it computes is read
                continue
            width = batch.width if inlet.everywhere else 1
            for some in rows.split(max(1, most // (n * width))) if len(rows) else ():
                (runs,) = runner.logits(column, some.tolist(), torch.eye(len(some), dtype=torch.bool))
                for row, logits in zip(some.tolist(), runs, strict=True):
                    damage = settings.objective(logits, clean_logits, batch) - clean_loss
                    scores[:, row, column] = damage if settings.apart else damage.sum()
        return BatchScores(scores=scores, forward=int(wanted.sum()) + 1 + int(settings.ablation.paired))


class Random(BatchMethod):
    """Uniform scores on (-1, 1): the baseline that a method has to beat."""

    key = "random"
    needs_gradients = False
    source = "Mueller et al. 2025, arXiv:2504.13151"

    def score(self, model: Model, batch: Batch, prepared: Prepared, settings: Choices) -> BatchScores:
        graph = model.graph
        generator = torch_stream(settings.seed, "random-scores")
        draw = torch.rand(graph.n_sources, graph.n_targets, generator=generator) * 2 - 1
        scores = (draw * graph.valid).to(model.result_dtype)
        n = len(batch.indices)
        return BatchScores(scores=scores.expand(n, -1, -1) if settings.apart else scores[None] * n)


for _method in (Exact(), Random()):
    METHODS.add(_method.key, _method)
