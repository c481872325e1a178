"""Running a position-aware circuit: what a target reads differs from position to position."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from assay.circuits.positions import PositionCircuit
from assay.execution.ablation import Ablation, get_ablation
from assay.execution.forward import check_circuit, check_finite, choose_batch_size
from assay.execution.soft import SoftRunner
from assay.models import Model
from assay.tasks import Task


def run_position_circuit(
    model: Model,
    task: Task,
    circuit: PositionCircuit,
    *,
    labels: Int64[Tensor, "n pos"] | None = None,
    ablation: str | Ablation | None = None,
    batch_size: int | None = None,
    memory: int | None = None,
    seed: int = 0,
    check: bool = True,
) -> Float[Tensor, "n d_vocab"]:
    """Logits of the model with every (edge, span) pair outside the circuit ablated, at the read position.

    Args:
        model: The model.
        task: The examples; their positions are labelled by the rule that made the circuit's spans.
        circuit: The pairs to keep.
        labels: Span of every position `[N, T]`, -1 at padding; needed for spans that were given as labels.
        ablation: What a cut edge carries; default: the task's own.
        batch_size: Examples per pass; default: by free memory.
        memory: Bytes that a pass may take; default: 60 % of what is free.
        seed: Root seed of the noise.
        check: Refuse NaN or infinite logits; False returns them.

    Returns:
        `[N, V]`; CPU, float32 (float64 for a float64 model). Full circuit: the model's logits. The same edges
        at every span: the logits of `run_circuit`.

    Raises:
        GraphMismatchError: If the circuit belongs to another graph.
        InputError: If the task's positions cannot be labelled.
        NonFiniteError: If a logit is NaN or infinite.

    Notes:
        Every target has its own stream at every position, so a run costs what one under a real-valued mask
        does: two passes to prepare a batch, and a product over all sources per target. The mask of an example
        takes T S R numbers; prompts whose spans stand at the same places share one.
    """
    chosen = get_ablation(ablation or task.ablation)
    check_circuit(model, circuit.edge_circuit())
    task = model.bind(task)
    where = circuit.spans.label(task, labels).clamp(min=0)  # what stands at padding is never read
    shared = bool((where == where[0]).all())
    runner = SoftRunner(model)
    masks = 2 * task.length * model.graph.valid.numel() * model.result_dtype.itemsize
    extra = runner.bytes_per_pair(task.length) + (0 if shared else masks)
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra, memory=memory)
    prepared = chosen.prepare(model, task, batch_size=size, seed=seed)
    weights = circuit.mask.to(device=model.device, dtype=model.result_dtype)
    results = []
    with torch.no_grad():
        for batch in task.batches(size):
            batch = batch.to(model.device)
            rows = where[:1] if shared else where[batch.indices.cpu()]
            mask = weights[rows.to(model.device)]
            logits = runner.logits(runner.prepare_batch(batch, prepared), mask).cpu()
            if check:
                check_finite(logits, "the circuit run", batch.indices)
            results.append(logits)
    return torch.cat(results)
