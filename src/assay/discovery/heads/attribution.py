"""Attribution patching of heads: a first-order estimate of what corrupting each of them would do."""

import torch
from torch import Tensor

from assay.discovery.heads.recording import recording
from assay.discovery.heads.scores import HeadScores, provenance_of
from assay.execution.batches import choose_batch_size
from assay.models import Model
from assay.objectives import Loss, Objective, get_objective
from assay.tasks import Task


def attribution_patching(
    model: Model,
    task: Task,
    *,
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
    memory: int | None = None,
) -> HeadScores:
    """First-order estimate of what the margin loses when a head gets its output on the corrupted input.

    A_ij = sum_t < z_itj - z~_itj, dy_i / dz_itj >, with z the head's output before the output projection, z~
    that of the corrupted run, y the margin (the negative loss), and the gradient taken at the clean run.

    Args:
        model: The model.
        task: Clean and corrupted inputs of equal length.
        objective: Loss whose negative is y; default: the task's own.
        batch_size: Examples per pass; default: by free memory. Results do not depend on it.
        memory: Bytes that a pass may take; default: 60 % of what is free.

    Returns:
        Per example and head, in the unit of the objective; positive: the head helps (corrupting it lowers y).
        Published scores have the other sign and are ranked by magnitude: `scores.top(k, magnitude=True)`.

    Raises:
        InputError: If the task lacks what the objective reads.

    Notes:
        Cost per example: a forward and a backward pass on the clean input, a forward pass on the corrupted
        one. Exact where y is linear in the head; poor where attention saturates. Examples whose activations
        or gradients are not finite have NaN rows.

    References:
        Nanda (2023), Attribution Patching; Syed et al. (2023), arXiv:2310.10348.
    """
    chosen = get_objective(objective or task.objective)
    model, task = model.uncut, model.bind(task)
    extra = 30 * model.n_layers * model.d_model * task.length * 4
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra, memory=memory)
    rows = []
    for batch in task.batches(size):
        batch = batch.to(model.device)
        with torch.no_grad(), model.tracing() as corrupted:
            model.forward(batch.corrupted)
        with recording(model) as clean:
            logits = model.read(model.forward(batch.clean), batch.positions).to(model.result_dtype)
            margin = -chosen(logits, logits.detach(), batch)
            gradients = torch.autograd.grad(margin.sum(), clean.z)
        real = torch.arange(batch.width, device=model.device) < batch.lengths[:, None]
        layers = [
            _effect(model, before.detach().to(model.device) - after, gradient, real)
            for before, after, gradient in zip(clean.z, corrupted.head_z, gradients, strict=True)
        ]
        rows.append(torch.cat(layers, 1).cpu())
    table = torch.cat(rows).numpy()
    return HeadScores.from_flat(
        "attribution-patching",
        model.n_heads,
        per_example=table,
        sign="positive = helps the margin",
        unit=chosen.unit,
        provenance=provenance_of(model, task, score="attribution-patching", objective=chosen.key),
    )


def _effect(model: Model, difference: Tensor, gradient: Tensor, real: Tensor) -> Tensor:
    """Inner product per example and head over real positions, in float64."""
    product = difference.double() * gradient.to(model.device).double() * real[..., None]
    by_head: Tensor = product.unflatten(2, (model.n_heads, model.d_head))
    return by_head.sum((1, 3))
