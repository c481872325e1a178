"""Heads inside a run: what their replacement may look at, and the plain passes that replacements share."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from assay.core.random import stream
from assay.models import Block, Model
from assay.tasks import Batch, Task


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """The heads of one block in one batch, while the run passes through them.

    Attributes:
        layer: Block.
        block: Its description.
        z: Outputs of all its heads in this run, `[batch, pos, n_heads, d_head]`.
        values: Value vectors they mix, `[batch, pos, n_kv_heads, d_head]`.
        batch: The prompts.
    """

    layer: int
    block: Block
    z: Float[Tensor, "batch pos n_heads d_head"]
    values: Float[Tensor, "batch pos n_kv_heads d_head"]
    batch: Batch


# Outputs of all heads of a block, `[batch or 1, pos or 1, n_heads, d_head]`.
Replacement = Callable[[Site], Tensor]


@dataclass(kw_only=True, eq=False)
class Setting:
    """What interventions are prepared on; plain passes are made once for all of them.

    Attributes:
        model: The model.
        task: The prompts that are run.
        reference: The prompts that means are taken over.
        batch_size: Prompts per pass.
        seed: Root seed of donors and noise.
        draw: Number of the draw, for interventions that are averaged over several.
        donors: Row of the prompt that each prompt gets its activations from, instead of drawn ones.
    """

    model: Model
    task: Task
    reference: Task
    batch_size: int
    seed: int = 0
    draw: int = 0
    donors: Int64[np.ndarray, " n"] | None = None
    _outputs: dict[tuple[int, bool], list[Tensor]] = field(default_factory=dict)
    _logits: dict[tuple[int, bool], Tensor] = field(default_factory=dict)

    def outputs(self, task: Task, *, corrupted: bool = False) -> list[Float[Tensor, "n pos n_heads d_head"]]:
        """Outputs of the heads in a plain pass over a task, per block; kept for the next intervention."""
        key = (id(task), corrupted)
        if key not in self._outputs:
            parts: list[list[Tensor]] = [[] for _ in range(self.model.n_layers)]
            logits = []
            for batch in task.batches(self.batch_size):
                batch = batch.to(self.model.device)
                with torch.no_grad(), self.model.tracing() as trace:
                    hidden = self.model.forward(batch.corrupted if corrupted else batch.clean)
                    read = self.model.read(hidden, batch.positions)
                logits.append(read.to(self.model.result_dtype).cpu())
                for into, z in zip(parts, trace.head_z, strict=True):
                    into.append(z.unflatten(-1, (self.model.n_heads, self.model.d_head)))
            self._outputs[key] = [torch.cat(part) for part in parts]
            self._logits[key] = torch.cat(logits)
        return self._outputs[key]

    def logits(self, task: Task, *, corrupted: bool = False) -> Float[Tensor, "n d_vocab"]:
        """Logits of the same plain pass at the read positions, on the CPU."""
        self.outputs(task, corrupted=corrupted)
        return self._logits[id(task), corrupted]

    def finite(self, task: Task) -> Bool[Tensor, " n"]:
        """Prompts of a task that means and deviations are taken over: those on which all outputs are finite.

        All of them where there is none, so that the replacement is as undefined as they are.
        """
        rows = torch.stack([z.isfinite().flatten(1).all(1) for z in self.outputs(task)]).all(0)
        return rows if bool(rows.any()) else ~rows

    def rng(self, key: str, *more: object) -> np.random.Generator:
        """The stream of an intervention and a draw; independent of batches."""
        name = "/".join(map(str, (key, self.draw, *more)))
        return stream(self.seed, f"intervention/{name}")

    def noise(self, key: str, site: Site) -> Float64[Tensor, "batch pos n_heads d_head"]:
        """Standard normal noise for the heads of a block; each prompt has its own."""
        rows = [
            self.rng(key, site.layer, row).standard_normal(site.z.shape[1:])
            for row in site.batch.indices.tolist()
        ]
        return torch.from_numpy(np.stack(rows)).to(site.z.device)


def real_tokens(task: Task, used: Bool[Tensor, " n"]) -> Bool[Tensor, "n pos"]:
    """True at the tokens of the prompts that are used, False at padding."""
    place = torch.arange(task.length, device=used.device)
    return (place < task.lengths.to(used.device)[:, None]) & used[:, None]
