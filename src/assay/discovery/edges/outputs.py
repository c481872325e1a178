"""Scores of the edges into `logits` alone: no backward pass through the blocks.

The gradient at the logits' input is that of the final norm and the head, so integrated gradients cost
one forward pass per quadrature node. The depth bias of the output needs nothing else.
(Hanna et al. 2024, arXiv:2403.17806; Peng et al. 2026, arXiv:2604.08192, Eq. 4 with the logits as target.)
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from assay.discovery.edges.eap_ig import EapIgInputs
from assay.discovery.edges.gradients import ActivationDifferences
from assay.discovery.edges.method import BatchScores, Choices, Sweep, provenance_of
from assay.discovery.edges.running import ScoreSums
from assay.execution import Ablation, Baseline, Prepared
from assay.execution.batches import choose_batch_size
from assay.execution.forward import check_finite
from assay.graph import Graph
from assay.models import Model, Trace
from assay.models.model import at_reads
from assay.objectives import Loss, Objective
from assay.tasks import Batch, Task


@dataclass(frozen=True, kw_only=True, eq=False)
class OutputScores:
    """What every source writes to the logits, by its effect on the objective.

    Attributes:
        graph: The graph of the model.
        values: Signed score of the edge from each source to `logits`, mean over examples, `[n_sources]`.
        per_example: The same for each example, `[n, n_sources]`; None if not asked for.
        resampled: The same in each resample, float32 `[B, n_sources]`, as those of `EdgeScores`; None if not
            asked for.
        provenance: How the scores came to be; as for the scores of all edges, with `targets: logits`.
        details: Passes spent, seconds, batch size.
    """

    graph: Graph
    values: Float[Tensor, " n_sources"]
    per_example: Float[Tensor, "n n_sources"] | None
    provenance: Mapping[str, Any]
    details: Mapping[str, Any]
    resampled: Float32[Tensor, "n_resamples n_sources"] | None = None


def output_scores(
    model: Model,
    task: Task,
    *,
    objective: str | Objective | Loss | None = None,
    ablation: str | Ablation | None = None,
    steps: int = 5,
    quadrature: str = "midpoint",
    batch_size: int | None = None,
    per_example: bool = True,
    resamples: int = 0,
    seed: int = 0,
) -> OutputScores:
    """The `logits` column of `discover(..., "eap-ig-inputs")`, for the price of forward passes.

    Args:
        model: The model.
        task: The examples.
        objective: Loss to attribute; default: the task's own.
        ablation: What a cut edge carries; default: the task's own.
        steps: Quadrature nodes, at least 1.
        quadrature: `midpoint`, `left` (the published rule), `right` or `gauss-legendre`.
        batch_size: Examples per pass; default: by free memory. Results do not depend on it.
        per_example: Also return the scores of each example.
        resamples: Also return the scores in so many resamples of the examples, as `discover` does.
        seed: Root seed (noise, resamples).

    Raises:
        InputError: For settings that cannot be served.
        NonFiniteError: If a logit or score is NaN or infinite.

    Notes:
        Cost with `steps=5`: 7 forward passes: over the clean inputs, for the ablated values, one per node.
    """
    method = EapIgInputs()
    settings = method.choices(
        task,
        objective=objective,
        ablation=ablation,
        steps=steps,
        quadrature=quadrature,
        per_example=per_example,
        resamples=resamples,
        seed=seed,
    )
    task = model.bind(task)
    extra = 8 * model.d_model * task.length * model.result_dtype.itemsize
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra)
    started = time.perf_counter()
    prepared = settings.ablation.prepare(model, task, batch_size=size, seed=seed)
    sums = OutputSums(model, settings, prepared)
    for batch in task.batches(size):
        sums.add(batch)
    provenance = {**provenance_of(model, task, method, settings), "targets": "logits"}
    return sums.scores(provenance, {"seconds": time.perf_counter() - started, "batch_size": size})


class _OutputGradient(EapIgInputs):
    """The same integral at the input of `logits` alone: no backward pass but through the final norm."""

    def score(self, model: Model, batch: Batch, prepared: Prepared, settings: Choices) -> BatchScores:
        nodes, reference = self.nodes(settings), settings.ablation.key != "zero"
        baseline, gradient = prepared.baseline(batch), torch.zeros(())
        with torch.no_grad(), model.tracing() as clean:
            hidden = model.forward(batch.clean)
            clean_logits = model.read(hidden, batch.positions).to(model.result_dtype)
            check_finite(clean_logits, f"{model.id} on the clean input", batch.indices)
        ablated = baseline.input.to(clean.input.dtype).expand_as(clean.input)
        for node in nodes:
            with torch.no_grad():
                start = ablated + node.alpha * (clean.input - ablated)
                stream = model.through(start, clean)
            leaf = (stream if model.pools else at_reads(stream, batch.positions)).requires_grad_()
            with model.frozen(), torch.enable_grad():
                logits = model.finish(leaf, batch.positions).to(model.result_dtype)
                loss = settings.objective(logits, clean_logits, batch)
                (found,) = torch.autograd.grad(loss.sum(), leaf)
            gradient = gradient.to(found.device) + node.weight * found.to(model.result_dtype)
        scores = _contract(model, clean, baseline, batch, gradient)
        return BatchScores(scores=scores, forward=1 + len(nodes) + reference)  # clean, each node, ablated


class OutputSums(ScoreSums):
    """`output_scores` over batches that are given one at a time, as `ScoreSums` is `discover`.

    Args:
        model: The model, in evaluation mode.
        settings: From `METHODS["eap-ig-inputs"].choices(...)`.
        prepared: The ablation.
    """

    def __init__(self, model: Model, settings: Choices, prepared: Prepared) -> None:
        super().__init__(model, _OutputGradient(), settings, prepared)
        self._sweep = Sweep(total=torch.zeros(model.graph.n_sources, dtype=torch.float64))

    def scores(  # type: ignore[override]  # of fewer edges
        self, provenance: Mapping[str, Any] | None = None, details: Mapping[str, Any] | None = None
    ) -> OutputScores:
        """The scores over all batches so far; more may be added afterwards."""
        n, sweep, resampled = self.counted(), self._sweep, None
        facts = {**(details or {}), "passes": {"forward": sweep.forward / n, "backward": 0.0}}
        if sweep.resampled is not None:
            resampled = sweep.resampled.means(sweep.total, n)
            facts |= {"n": n, "resamples_key": sweep.resampled.key}
        return OutputScores(
            graph=self.model.graph,
            values=(sweep.total / n).to(self.model.result_dtype),
            per_example=torch.cat(sweep.parts) if sweep.parts else None,
            resampled=resampled,
            provenance=provenance or {},
            details=facts,
        )


def _contract(
    model: Model, clean: Trace, baseline: Baseline, batch: Batch, gradient: Tensor
) -> Float[Tensor, "batch n_sources"]:
    """Difference of each source times the gradient, summed over the positions that the logits read."""
    graph, index = model.graph, torch.arange(len(batch.indices), device=gradient.device)
    differences = ActivationDifferences.between(model, clean, baseline, batch.lengths)

    def at(value: Float[Tensor, "blocks batch pos *width"]) -> Float[Tensor, "blocks batch reads *width"]:
        return value if model.pools else value[:, index, batch.positions][:, :, None]

    gradient = gradient.reshape(len(index), -1, model.d_model)
    scores = gradient.new_empty(len(index), graph.n_sources)
    scores[:, 0] = (at(differences.input[None])[0] * gradient).sum((1, 2))
    of_heads, of_mlps = at(differences.z), at(differences.mlp)
    for layer, block in enumerate(model.blocks):
        # A head writes z W_O, so its product with the gradient is that of z with W_O g: d_head numbers.
        through = torch.einsum("bpd,hcd->bphc", gradient, block.out_weight().to(gradient.dtype))
        first = graph.head_source(layer)
        scores[:, first : first + model.n_heads] = (of_heads[layer] * through).sum((1, 3))
        if graph.mlps:
            scores[:, graph.mlp_source(layer)] = (of_mlps[layer] * gradient).sum((1, 2))
    return scores
