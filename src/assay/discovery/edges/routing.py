"""How often a mixture of experts sends the corrupted input to other experts than the clean one."""

from contextlib import ExitStack

import torch
from torch import Tensor, nn

from assay.execution.forward import check_finite
from assay.models import Model
from assay.models.family import submodule
from assay.objectives import Objective
from assay.tasks import Task


def routing_change(model: Model, task: Task, batch_size: int) -> dict[str, int]:
    """Choices of experts, and how many of them differ between the clean and the corrupted input.

    A choice is the set of experts of one token in one block. Gradients are taken with the choices fixed, so
    what their change does is missing from a path integral, however many steps it has.

    Args:
        model: A model whose family names a router.
        task: The examples, with corrupted counterparts.
        batch_size: Examples per pass.

    Returns:
        `choices`, tokens that both prompts have (padding left out) times blocks, and `changed`, how many of
        them differ.

    Notes:
        Costs two forward passes.
    """
    changed = choices = 0
    for batch in task.batches(batch_size):
        batch = batch.to(model.device)
        assert batch.corrupted is not None
        clean, corrupted = (_chosen(model, inputs) for inputs in (batch.clean, batch.corrupted))
        real = torch.arange(clean.shape[2], device=clean.device) < batch.lengths[:, None]
        if batch.alignment is not None:
            rows = torch.arange(len(real), device=real.device)[:, None]
            corrupted, real = corrupted[:, rows, batch.alignment.clamp(min=0)], batch.alignment >= 0
        changed += int(((clean != corrupted).any(-1) & real).sum())
        choices += int(real.sum()) * len(clean)
    return {"choices": choices, "changed": changed}


@torch.no_grad()
def routed_losses(model: Model, task: Task, objective: Objective, batch_size: int) -> dict[str, float]:
    """The corrupted input with its tokens sent where those of the clean one go, and as the model sends them.

    Where experts are nodes, the first is the circuit without edges under `resample`; the second is the model.

    Args:
        model: A model whose experts are nodes.
        task: The examples, with corrupted counterparts.
        objective: The loss.
        batch_size: Examples per pass.

    Returns:
        Mean losses over the examples, in the unit of the objective: `kept`, with the clean routing, and
        `followed`, with its own.

    Notes:
        Costs three forward passes.
    """
    sums = {"kept": 0.0, "followed": 0.0}
    for batch in task.batches(batch_size):
        batch = batch.to(model.device)
        with model.tracing() as clean:
            hidden = model.forward(batch.clean)
        full = model.read(hidden, batch.positions).to(model.result_dtype)
        for name, routing in (("kept", clean.routing), ("followed", [])):
            with model.tracing(routing=routing):
                hidden = model.forward(batch.corrupted)
            logits = model.read(hidden, batch.positions).to(model.result_dtype)
            check_finite(logits, f"{model.id} on the corrupted input", batch.indices)
            sums[name] += float(objective(logits, full, batch).double().sum())
    return {name: total / task.n for name, total in sums.items()}


def _chosen(model: Model, inputs: Tensor) -> Tensor:
    """Experts of each token in each block, in ascending order: `[blocks, batch, pos, chosen]`."""
    found: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        found.append(output[-1].view(*inputs.shape, -1).sort(-1).values.to(inputs.device))

    router = model.family.router
    assert router is not None
    with torch.no_grad(), ExitStack() as hooks:
        for block in model.blocks:
            hooks.callback(submodule(block.module, router).register_forward_hook(keep).remove)
        model.forward(inputs)
    return torch.stack(found)
