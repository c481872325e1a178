"""Methods that measure instead of estimating: exact edge ablation; and the random baseline."""

import torch

from assay.circuits import Circuit
from assay.core.random import torch_stream
from assay.discovery.edges.method import METHODS, BatchMethod, BatchScores, Choices
from assay.execution import CircuitRunner, Prepared
from assay.execution.forward import check_finite
from assay.models import Model
from assay.tasks import Batch


class Exact(BatchMethod):
    """The damage itself: J(run with this one edge ablated) - J(clean), one run per edge."""

    key = "exact"
    aligns = True
    splits = True
    needs_gradients = False
    source = "Conmy et al. 2023, arXiv:2304.14997"

    def most_passes(self, model: Model, nodes: int) -> int:
        return model.graph.n_edges + 3

    @torch.no_grad()
    def score(self, model: Model, batch: Batch, prepared: Prepared, settings: Choices) -> BatchScores:
        graph = model.graph
        with model.tracing() as clean:
            hidden = model.forward(batch.clean)
        baseline = prepared.baseline(batch)
        clean_logits = model.read(hidden, batch.positions).to(model.result_dtype)
        check_finite(clean_logits, f"{model.id} on the clean input", batch.indices)
        clean_loss = settings.objective(clean_logits, clean_logits, batch)
        rows, several = len(batch.indices) if settings.apart else 1, batch.positions.ndim == 2
        scores = clean_logits.new_zeros(rows, graph.n_sources, graph.n_targets)
        for row, column in graph.valid.nonzero().tolist():
            mask = graph.valid.clone()
            mask[row, column] = False
            runner = CircuitRunner(
                model, Circuit(graph=graph, mask=mask), resample=settings.ablation.paired, several=several
            )
            logits = runner.logits(clean, baseline, batch.positions).to(model.result_dtype)
            damage = settings.objective(logits, clean_logits, batch) - clean_loss
            scores[:, row, column] = damage if settings.apart else damage.sum()
        return BatchScores(scores=scores, forward=graph.n_edges + 1 + int(settings.ablation.paired))


class Random(BatchMethod):
    """Uniform scores on (-1, 1): the baseline that a method has to beat."""

    key = "random"
    aligns = True
    splits = True
    needs_gradients = False
    source = "Mueller et al. 2025, arXiv:2504.13151"

    def most_passes(self, model: Model, nodes: int) -> int:
        return 1  # the pass that measures the means, where the ablation has some

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
