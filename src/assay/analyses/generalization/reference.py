"""The reference circuit of a monitor: the mean over batches of known images."""

from typing import Any

import torch

from assay.analyses.generalization.batches import batch_task
from assay.circuits import EdgeScores
from assay.core.errors import InputError
from assay.discovery.edges import EdgeMethod, discover
from assay.models import Model
from assay.tasks import ImageStream, ImageTask
from assay.tasks.seen import describe_discovery


def discover_reference(
    model: Model,
    task: ImageTask | ImageStream,
    method: str | EdgeMethod = "eap-ig-inputs",
    *,
    batch: int,
    batch_size: int | None = None,
    **options: Any,
) -> EdgeScores:
    """The reference circuit of known images: the mean over disjoint batches of the size to be watched.

    Each batch is discovered alone, with its own replacement values, as a watched one is. So the reference has
    the bias of a batch of this size and a fraction of its noise.

    Args:
        model: The model to watch.
        task: Known images, in random order; those beyond the last whole batch are left out. Of a
            stream one batch at a time lies in memory.
        method: Of discovery.
        batch: Images of a batch, 2 or more: the window of the monitor.
        batch_size: Images per pass.
        options: Objective, ablation, steps and seed, as in `assay.discover`.

    Returns:
        Their mean; the record holds `batches` and `batch`, their number and size. A single batch is what
        `discover` gives.

    Raises:
        InputError: For fewer images than a batch, or a batch of fewer than 2.
    """
    if batch < 2:
        raise InputError(f"a batch of the reference holds {batch} image; it needs 2 or more")
    n_batches = task.n // batch
    if not n_batches:
        raise InputError(
            f"the reference holds {task.n} images, fewer than the {batch} of a batch; give more images"
        )
    if n_batches == 1:
        part = task if task.n == batch else task.subset(range(batch))
        return discover(model, batch_task(model, part), method, batch_size=batch_size, **options)
    total = torch.zeros(model.graph.valid.shape, dtype=torch.float64)
    details = {"seconds": 0.0}
    for number in range(n_batches):
        part = batch_task(model, task.subset(range(number * batch, (number + 1) * batch)))
        scores = discover(model, part, method, batch_size=batch_size, **options)
        total += scores.values.detach().cpu().double()
        details = {name: each + float(scores.details.get(name, 0.0)) for name, each in details.items()}
    used = task.subset(range(n_batches * batch))
    record = {**scores.provenance, "task": describe_discovery(used), "batches": n_batches, "batch": batch}
    return EdgeScores(model.graph, (total / n_batches).float(), provenance=record, details=details)
