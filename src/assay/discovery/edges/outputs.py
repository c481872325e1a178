"""Scores of the edges into `logits` alone: no backward pass through the blocks.

The gradient at the logits' input is that of the final norm and the head, so integrated gradients cost
one forward pass per quadrature node. The depth bias of the output needs nothing else.
(Hanna et al. 2024, arXiv:2403.17806; Peng et al. 2026, arXiv:2604.08192, Eq. 4 with the logits as target.)
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.circuits.given import takes_text
from assay.core.errors import InputError, NonFiniteError
from assay.discovery.edges.eap_ig import EapIgInputs
from assay.discovery.edges.gradients import norm_backward
from assay.discovery.edges.method import Choices, provenance_of
from assay.discovery.edges.quadrature import Node, quadrature_nodes
from assay.execution import Ablation, Baseline, get_ablation
from assay.execution.batches import choose_batch_size
from assay.execution.forward import check_finite
from assay.graph import Graph
from assay.models import Model, Trace
from assay.objectives import Loss, Objective, get_objective
from assay.tasks import Batch, Task


@dataclass(frozen=True, kw_only=True, eq=False)
class OutputScores:
    """What every source writes to the logits, by its effect on the objective.

    Attributes:
        graph: The graph of the model.
        values: Signed score of the edge from each source to `logits`, mean over examples, `[n_sources]`.
        per_example: The same for each example, `[n, n_sources]`; None if not asked for.
        provenance: How the scores came to be; as for the scores of all edges, with `targets: logits`.
        details: Passes spent, seconds, batch size.
    """

    graph: Graph
    values: Float[Tensor, " n_sources"]
    per_example: Float[Tensor, "n n_sources"] | None
    provenance: Mapping[str, Any]
    details: Mapping[str, Any]


def output_passes(nodes: int, *, reference: bool = True) -> int:
    """Forward passes per example: clean, each node, and one for the ablated values unless they are zeros."""
    return 1 + nodes + reference


@takes_text(reads=True, lengths=True)
def output_scores(
    model: Model,
    task: Task,
    *,
    objective: str | Objective | Loss | None = None,
    ablation: str | Ablation | None = None,
    steps: int = 5,
    quadrature: str = "midpoint",
    batch_size: int | None = None,
    memory: int | None = None,
    per_example: bool = True,
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
        memory: Bytes that a pass may take; default: 60 % of what is free.
        per_example: Also return the scores of each example.
        seed: Root seed (noise ablations).

    Raises:
        InputError: For settings that cannot be served.
        NonFiniteError: If a logit or score is NaN or infinite.

    Notes:
        Cost with `steps=5`: 7 forward passes: over the clean inputs, for the ablated values, one per node.
    """
    model.check_together("output_scores")
    if isinstance(steps, bool):
        raise InputError(f"steps is {steps!r}; give a positive integer")
    method = EapIgInputs()
    settings = Choices(
        objective=get_objective(objective or task.objective),
        ablation=get_ablation(ablation or task.ablation),
        steps=steps,
        quadrature=quadrature,
        per_example=per_example,
        seed=seed,
    )
    method.check(settings)
    nodes = quadrature_nodes(steps, quadrature)
    task = model.bind(task)
    size = choose_batch_size(
        model, task, asked=batch_size, bytes_per_example=8 * model.d_model * task.longest * 4, memory=memory
    )
    started = time.perf_counter()
    prepared = settings.ablation.prepare(model, task, batch_size=size, seed=seed)
    rows = []
    with model.frozen():
        for batch in task.batches(size):
            batch = batch.to(model.device)
            rows.append(_batch(model, batch, prepared.baseline(batch), settings, nodes).double().cpu())
    table = torch.cat(rows)
    bad = (~torch.isfinite(table)).any(1).nonzero().flatten()
    if len(bad):
        raise NonFiniteError(
            f"the scores into the logits are NaN or infinite for example {int(bad[0])}; check the model's "
            "weights and dtype"
        )
    forward = float(output_passes(len(nodes), reference=settings.ablation.key != "zero"))
    return OutputScores(
        graph=model.graph,
        values=table.mean(0).to(model.result_dtype),
        per_example=table.to(model.result_dtype) if per_example else None,
        provenance={**provenance_of(model, task, method, settings), "targets": "logits"},
        details={
            "passes": {"forward": forward, "backward": 0.0},
            "seconds": time.perf_counter() - started,
            "batch_size": size,
        },
    )


def _batch(
    model: Model, batch: Batch, baseline: Baseline, settings: Choices, nodes: Sequence[Node]
) -> Float[Tensor, "batch n_sources"]:
    """Scores of one batch, example by example."""
    with torch.no_grad(), model.tracing() as clean:
        hidden = model.forward(batch.clean)
        clean_logits = model.read(hidden, batch.positions).to(model.result_dtype)
        check_finite(clean_logits, f"{model.id} on the clean input", batch.indices)
    ablated = baseline.far_end(baseline.input, clean.input)
    gradient = None
    for node in nodes:
        with torch.no_grad():
            start = ablated + node.alpha * (clean.input - ablated)
            stream = model.through(start, clean)
        whole = model.reads_all(batch.positions)
        leaf = (stream if whole else _read(stream, batch.positions)).requires_grad_()
        with torch.enable_grad():
            logits = model.finish(leaf, batch.positions).to(model.result_dtype)
            loss = settings.objective(logits, clean_logits, batch)
            (found,) = torch.autograd.grad(loss.sum(), leaf)
        part = node.weight * found.to(model.result_dtype)
        gradient = part if gradient is None else gradient + part
    assert gradient is not None
    return _contract(model, clean, baseline, batch, gradient)


def _read(value: Tensor, positions: Int[Tensor, " batch"]) -> Tensor:
    """The read position of `[batch or 1, pos, ...]`."""
    if len(value) == 1:
        return value[0][positions]
    return value[torch.arange(len(value), device=value.device), positions]


def _contract(
    model: Model, clean: Trace, baseline: Baseline, batch: Batch, gradient: Tensor
) -> Float[Tensor, "batch n_sources"]:
    """Difference of each source times the gradient, summed over the positions that the logits read."""
    wide, n = model.result_dtype, len(batch.indices)

    def at(value: Tensor) -> Tensor:
        """`[batch, read positions, width]`."""
        every = model.reads_all(batch.positions)
        return value.to(wide) if every else _read(value, batch.positions).to(wide)[:, None]

    def difference(ablated: Tensor, value: Tensor) -> Tensor:
        return at(ablated) - at(value)

    gradient = gradient.reshape(n, -1, model.d_model)
    columns = [(difference(baseline.input, clean.input) * gradient).sum((1, 2))[:, None]]
    for layer, block in enumerate(model.blocks):
        # A head writes z W_O, so its product with the gradient is that of z with W_O g: d_head numbers.
        heads = difference(baseline.z[layer], clean.z[layer]).unflatten(2, (model.n_heads, model.d_head))
        weight, reaching = block.out_weight().to(wide), gradient
        if model.post_norm == "per-target" and block.target_norm is not None:
            written = at(clean.z[layer]) @ weight.flatten(0, 1)
            reaching = norm_backward(block.target_norm, written, gradient, constant_scale=False)
        through = torch.einsum("bpd,hcd->bphc", reaching, weight)
        columns.append((heads * through).sum((1, 3)))
        if model.graph.mlps:
            mlp = difference(baseline.mlp[layer], clean.mlp[layer])
            columns.append((mlp * gradient).sum((1, 2))[:, None])
    return torch.cat(columns, 1)
