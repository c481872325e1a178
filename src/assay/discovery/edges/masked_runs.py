"""What the learned masks share: runs of drawn examples under masks, warm starts, when it is settled."""

import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.circuits import EdgeScores, Level, NodeScores
from assay.circuits.circuit import level_slots
from assay.core.errors import AssayWarning, GraphMismatchError, InputError, check_least
from assay.core.random import torch_stream
from assay.discovery.edges.method import (
    Choices,
    EdgeMethod,
    Sweep,
    check_differentiable,
    get_method,
    measures,
)
from assay.execution.batches import free_memory
from assay.execution.soft import SoftPairs, SoftRunner
from assay.models import Model
from assay.tasks import Batch, Task, map_tensors


SETTLED = 0.9  # Jaccard overlap of the kept edges over the last tenth of the updates, at least


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """Some examples ready to be run under masks.

    Attributes:
        runner: Runs the model under real-valued masks.
        batch: The examples.
        pairs: What the runs need of them.
        settings: The objective the runs are judged by.
    """

    runner: SoftRunner
    batch: Batch
    pairs: SoftPairs
    settings: Choices

    def take(self, rows: Int[Tensor, " k"]) -> "Drawn":
        """The examples in these rows, in this order; repeats are allowed."""
        rows = rows.to(self.pairs.read.device)
        return replace(
            self, batch=map_tensors(self.batch, lambda tensor: tensor[rows]), pairs=self.pairs.take(rows)
        )

    def losses(
        self,
        mask: Float[Tensor, "*batch n_sources n_targets"],
        cells: Float[Tensor, "*each n_sources d_model"] | None = None,
        *,
        wide: bool = False,
    ) -> Float[Tensor, " batch"]:
        """Objective of each example under a mask and `cells`, shared or its own; differentiable in both.

        `wide`: in float64, whatever the model's number type.
        """
        dtype = torch.float64 if wide else self.runner.dtype
        logits = self.runner.logits(self.pairs, mask, cells=cells).to(dtype)
        loss = self.settings.objective(logits, self.pairs.model_logits.to(dtype), self.batch)
        learned = mask.requires_grad or (cells is not None and cells.requires_grad)
        return check_differentiable(loss, self.settings) if learned else loss


class MaskedRuns:
    """Draws the examples of every step of a training, each example once per round.

    Where examples come again and a quarter of the free memory holds all of them, each is prepared once.

    Args:
        model: The model.
        task: The examples, bound to the model.
        settings: Objective, ablation and seed.
        size: Examples per pass of what the ablation measures.
        examples: Examples of a step; at most all of them.
        updates: Steps of the training.
    """

    def __init__(
        self, model: Model, task: Task, settings: Choices, size: int, *, examples: int, updates: int
    ) -> None:
        self.runner = SoftRunner(model)
        self.task, self.settings = task, settings
        self.examples = min(examples, task.n)
        self.prepared = settings.ablation.prepare(model, task, batch_size=size, seed=settings.seed)
        kept = task.n * self.runner.bytes_prepared(task.length) <= free_memory(model.device) // 4
        again = updates * self.examples > task.n
        self._all = self._prepared(torch.arange(task.n)) if again and kept else None
        bytes_each = self.runner.bytes_per_pair(task.length)
        self.most_rows = max(1, free_memory(model.device) // 2 // bytes_each)

    def passes(self, updates: int, *, masks: int) -> tuple[float, float]:
        """Forward and backward passes of some updates, with `masks` masked runs of each example drawn."""
        ablation, n = self.settings.ablation, self.task.n
        drawn = float(updates * self.examples)
        prepared = drawn if self._all is None else n
        return n * measures(ablation) + prepared * (1 + ablation.paired) + drawn * masks, drawn * masks

    @property
    def repeats_at_once(self) -> int:
        """How many times the examples of a step fit into one pass."""
        return max(1, self.most_rows // self.examples)

    def rows_of(self, step: int) -> Tensor:
        """Row numbers of the examples of a step; rounds are cut from seeded orders of all examples."""
        n, seed = self.task.n, self.settings.seed
        places = range(step * self.examples, (step + 1) * self.examples)
        rounds = {place // n: f"mask-examples/{place // n}" for place in places}
        orders = {
            each: torch.randperm(n, generator=torch_stream(seed, name)) for each, name in rounds.items()
        }
        return torch.stack([orders[place // n][place % n] for place in places])

    def draw(self, step: int) -> Drawn:
        """The examples of a step."""
        rows = self.rows_of(step)
        return self._prepared(rows) if self._all is None else self._all.take(rows)

    def _prepared(self, rows: Tensor) -> Drawn:
        few: Any = self.task.subset(rows)
        batch = replace(next(iter(few.batches(few.n))), indices=rows).to(self.runner.model.device)
        return Drawn(
            runner=self.runner,
            batch=batch,
            pairs=self.runner.prepare_batch(batch, self.prepared),
            settings=self.settings,
        )


@dataclass(frozen=True, kw_only=True)
class LearnedMask(EdgeMethod):
    """Abstract: a mask over the edges, learned by gradient descent on runs of drawn examples.

    Attributes:
        updates: Gradient steps, >= 1.
        examples: Examples per step, >= 1.
        warm_start: Scores, or the method that gives them, to start from. Default: all edges start alike.
    """

    needs_gradients = True
    objective: ClassVar[str | None] = "kl"
    levels: ClassVar[tuple[Level, ...]] = ("edge",)
    keeps_examples = False

    updates: int
    examples: int
    warm_start: str | EdgeMethod | EdgeScores | NodeScores | None = None

    def uses_steps(self) -> bool:
        """By way of the scores that the mask starts from."""
        start = self.warm_start
        return isinstance(start, str | EdgeMethod) and get_method(start).uses_steps()

    def check(self, settings: Choices) -> None:
        check_least(1, **{f"{name} of {self.key}": getattr(self, name) for name in ("updates", "examples")})
        if isinstance(self.warm_start, str | EdgeMethod):
            method = get_method(self.warm_start)
            if settings.level not in method.levels:
                raise InputError(f"warm_start {method.key} does not score {settings.level}s; give another")
            method.check(settings)
        elif not isinstance(self.warm_start, EdgeScores | NodeScores | None):
            raise InputError(
                f"warm_start of {self.key} is a {type(self.warm_start).__name__}; give scores, a "
                "method or its key, or None"
            )

    def start(
        self, model: Model, task: Task, settings: Choices, size: int
    ) -> tuple[Float[Tensor, "n_sources *width"] | None, Sweep]:
        """Scores to start from, and the sweep that gave them here, empty where none was needed.

        Raises:
            GraphMismatchError: For scores of another graph.
            UnknownNameError: For an unknown method.
            InputError: For scores of another level or width or at spans, or if the method cannot serve the
                objective or ablation.
        """
        start, level = self.warm_start, settings.level
        if start is None:
            return None, Sweep.empty(model.graph)
        if isinstance(start, EdgeScores | NodeScores):
            if start.graph.fingerprint != model.graph.fingerprint:
                raise GraphMismatchError(
                    f"warm_start holds scores of another graph, {start.graph.describe()}, but the graph of "
                    f"the model is {model.graph.describe()}"
                )
            shape, expected = start.values.shape, level_slots(model.graph, level, model.d_model).shape
            if shape != expected:
                raise InputError(
                    f"warm_start holds scores of {start.level}s, of shape {tuple(shape)}; give scores of "
                    f"{level}s, of shape {tuple(expected)}"
                )
            return start.values, Sweep.empty(model.graph)
        sweep = get_method(start).sweep(model, task, settings, size)
        values = sweep.total.sum(1) if level == "node" and sweep.total.ndim == 2 else sweep.total
        return (values / task.n).float(), sweep

    def finished(
        self,
        openness: Float[Tensor, "n_sources *width"],
        runs: MaskedRuns,
        spent: Sweep,
        losses: list[float],
        *,
        masks: int,
        overlap: float,
        decided: bool,
        state: str,
    ) -> Sweep:
        """The sweep of a training; with a warning where it has not settled, of which `state` tells more.

        Args:
            openness: What the edges, nodes or neurons are ranked by.
            runs: The runs of the updates.
            spent: What the scores took that the mask started from.
            losses: Mean objective of each update.
            masks: Masked runs of each example drawn.
            overlap: Jaccard overlap of the kept edges over the last tenth of the updates.
            decided: Whether the gates are as far open or closed as they should be.
            state: How far they are.
        """
        settled = decided and overlap >= SETTLED
        if not settled:
            warnings.warn(
                f"{self.key} has not settled after {self.updates} updates. {state}; over the last tenth of "
                f"the updates the kept edges overlap by {overlap:.2f} (Jaccard; expected {SETTLED}). Give "
                f"more updates, e.g. updates={2 * self.updates}",
                AssayWarning,
                stacklevel=6,
            )
        forward, backward = runs.passes(self.updates, masks=masks)
        tenth = max(1, self.updates // 10)
        return Sweep(
            total=openness.double() * runs.task.n,
            forward=spent.forward + forward,
            backward=spent.backward + backward,
            details={"converged": settled, "overlap": overlap, "loss": sum(losses[-tenth:]) / tenth},
        )


def agreement(first: Bool[Tensor, "*edges"], second: Bool[Tensor, "*edges"]) -> float:
    """Jaccard overlap of two sets of edges; 1 where both are empty."""
    union = int((first | second).sum())
    return int((first & second).sum()) / union if union else 1.0
