"""The reference circuit: on known images, with what batches of them do by sampling alone."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from assay.analyses.generalization.batches import batch_task
from assay.analyses.generalization.noise_floor import NoiseFloor, block_means, rows_of, without_floor
from assay.circuits import EdgeScores
from assay.circuits.files import read_edges, write_edges
from assay.core.errors import InputError
from assay.core.untrusted import malformed
from assay.discovery.edges import EdgeMethod, discover
from assay.models import Model
from assay.tasks import ImageStream, ImageTask
from assay.tasks.seen import describe_discovery


MOST_BATCHES = 32  # whose blocks are kept: 33 MB for the 32,491 edges of a ViT-B


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """A reference circuit with the noise of its batches.

    Attributes:
        scores: Mean over the batches. The record holds `batches` and `batch`, their number and size.
        blocks: Mean scores of the 8 blocks of each batch, at most of the first 32, `[J, 8, n_edges]`; None
            where batches are too few or too small for a noise floor.
        batch: Images of a batch.
    """

    scores: EdgeScores
    blocks: Float32[np.ndarray, "batches 8 n_edges"] | None
    batch: int

    def floor(self, distance: str) -> NoiseFloor | None:
        """The noise floor under a distance; None where `without_floor` says why not."""
        if self.blocks is None:
            return None
        if distance not in self._floors:
            self._floors[distance] = NoiseFloor(
                graph=self.scores.graph,
                blocks=self.blocks.astype(np.float64),
                n=self.batch,
                distance=distance,
            )
        floor = self._floors[distance]
        return floor if floor.common else None

    @cached_property
    def _floors(self) -> dict[str, NoiseFloor]:
        return {}

    def without_floor(self, distance: str) -> str:
        """Why there is no noise floor under a distance; empty where there is one."""
        if self.blocks is None:
            return without_floor(self.batch, int(self.scores.provenance.get("batches", 1)))
        if self.floor(distance) is None:
            return (
                f"the batches of {self.batch} inputs of the reference have no {distance} similarity with "
                "each other; use larger batches, or another distance"
            )
        return ""

    def save(self, path: str | Path) -> Path:
        """Write one file, which `load_scores` reads, too."""
        arrays = {"values": self.scores.values}
        if self.blocks is not None:
            arrays["blocks"] = torch.from_numpy(self.blocks)
        return write_edges(
            path,
            self.scores.graph,
            arrays,
            kind="scores",
            provenance=dict(self.scores.provenance),
            details=dict(self.scores.details),
        )


def load_reference(path: str | Path, model: Model) -> Reference:
    """Read a reference, or edge scores, which have no noise floor.

    Raises:
        FileFormatError: If the file holds something else.
        GraphMismatchError: If it belongs to another graph.
    """
    graph, arrays, metadata = read_edges(path, "scores", model.graph)
    with malformed(path, "edge scores written by .save()"):
        record = dict(metadata["provenance"])
        scores = EdgeScores(graph, arrays["values"], provenance=record, details=dict(metadata["details"]))
        blocks = arrays.get("blocks")
        return Reference(
            scores=scores,
            blocks=None if blocks is None else blocks.float().numpy(),
            batch=int(record.get("batch") or (record.get("task") or {}).get("n") or 0),
        )


def discover_reference(
    model: Model,
    task: ImageTask | ImageStream,
    method: str | EdgeMethod = "eap-ig-inputs",
    *,
    batch: int,
    batch_size: int | None = None,
    **options: Any,
) -> Reference:
    """The reference circuit of known images: the mean over disjoint batches of the size to be watched.

    Each batch is discovered alone, with its own replacement values, as a watched one is. So the reference has
    the bias of a batch of this size and a fraction of its noise, and its batches are a sample of what batches
    do without any change.

    Args:
        model: The model to watch.
        task: Known images, in random order; those beyond the last whole batch are left out. Of a
            stream one batch at a time lies in memory.
        method: Of discovery.
        batch: Images of a batch, 2 or more: the window of the monitor.
        batch_size: Images per pass.
        options: Objective, ablation, steps and seed, as in `assay.discover`.

    Returns:
        With noise floor from 4 batches of 8 images on. A single batch is what `discover` gives.

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
        scores = discover(model, batch_task(model, part), method, batch_size=batch_size, **options)
        return Reference(scores=scores, blocks=None, batch=batch)
    valid = model.graph.valid
    keep_blocks = not without_floor(batch, n_batches)
    total, blocks, details = torch.zeros(valid.shape, dtype=torch.float64), [], {"seconds": 0.0}
    for number in range(n_batches):
        part = batch_task(model, task.subset(range(number * batch, (number + 1) * batch)))
        keep = keep_blocks and number < MOST_BATCHES
        scores = discover(model, part, method, batch_size=batch_size, per_example=keep, **options)
        total += scores.values.detach().cpu().double()
        details = {name: each + float(scores.details.get(name, 0.0)) for name, each in details.items()}
        if keep:
            blocks.append(block_means(rows_of(scores)))
    used = task.subset(range(n_batches * batch))
    record = {**scores.provenance, "task": describe_discovery(used), "batches": n_batches, "batch": batch}
    mean = EdgeScores(model.graph, (total / n_batches).float(), provenance=record, details=details)
    return Reference(scores=mean, blocks=np.stack(blocks).astype(np.float32) if blocks else None, batch=batch)
