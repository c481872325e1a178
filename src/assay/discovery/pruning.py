"""Edge pruning: a hard-concrete gate on every edge, trained under a goal for how many stay open."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from assay.circuits import EdgeScores
from assay.discovery.masked_runs import (
    Drawn,
    MaskedRuns,
    agreement,
    check_warm_start,
    start_scores,
    warm_start_passes,
)
from assay.discovery.masks import MaskSettings, learn_mask
from assay.discovery.method import METHODS, EdgeMethod, Settings, Sweep
from assay.errors import AssayWarning, InputError
from assay.execution.soft import SoftPairs
from assay.models import Model
from assay.tasks import Task


SETTLED = 0.9  # Jaccard overlap of the most open edges over the last tenth of the updates


@dataclass(frozen=True, kw_only=True)
class EdgePruning(EdgeMethod):
    """Edge pruning: a gate on every edge, learned under a goal for the size of the circuit.

    Attributes:
        n_edges: Edges that should stay open. Default: `share` of all.
        share: The goal as a share of all edges, in (0, 1].
        updates: Gradient steps, >= 1.
        examples: Examples per step, >= 1; every one is run under gates of its own.
        rate: Step size of Adam, > 0.
        warm_start: Scores, or the method that gives them, to start from: strong edges begin open. Default:
            all gates start alike.
    """

    key = "edge-pruning"
    needs_gradients = True
    objective = "kl"
    keeps_examples = False
    source = "Bhaskar et al. 2024, arXiv:2406.16778"

    n_edges: int | None = None
    share: float = 0.05
    updates: int = 400
    examples: int = 16
    rate: float = 0.15
    warm_start: str | EdgeScores | None = None

    def check(self, settings: Settings) -> None:
        if not 0 < self.share <= 1 or min(self.updates, self.examples) < 1 or not self.rate > 0:
            raise InputError(
                "edge-pruning needs a share in (0, 1], rate > 0 and updates and examples >= 1; got "
                f"{self.share}, {self.rate}, {self.updates} and {self.examples}"
            )
        check_warm_start(self.warm_start, settings)

    def most_passes(self, model: Model, nodes: int) -> int:
        # Per example of a task of at least one step's examples: clean, ablated, masked forward and backward.
        return 5 * self.updates + warm_start_passes(self.warm_start, model, nodes)

    def sweep(self, model: Model, task: Task, settings: Settings, size: int) -> Sweep:
        n_edges = self.n_edges or max(1, round(self.share * model.graph.n_edges))
        start, spent = start_scores(self.warm_start, model, task, settings, size)
        runs = MaskedRuns(model, task, settings, size, examples=min(self.examples, task.n))
        late = self.updates - max(1, self.updates // 10)
        drawn: list[Drawn] = []  # of the present step
        before: list[Tensor] = []  # the most open edges when the last tenth began

        def draw(step: int) -> SoftPairs:
            drawn[:] = [runs.draw(step)]
            return drawn[0].pairs

        def watch(step: int, ranking: Callable[[], EdgeScores]) -> None:
            if step == late - 1:
                before.append(ranking().top(n_edges).mask)

        learned = learn_mask(
            runs.runner,
            draw,
            n_edges,
            divergence=lambda full, run: settings.objective(run, full, drawn[0].batch),
            start=start,
            settings=MaskSettings(steps=self.updates, rate=self.rate),
            watch=watch,
            seed=settings.seed,
        )
        overlap = agreement(before[0], learned.scores.top(n_edges).mask) if before else 0.0
        if overlap < SETTLED:
            warnings.warn(
                f"edge-pruning has not settled after {self.updates} updates: over the last tenth of them the "
                f"{n_edges} most open edges overlap by {overlap:.2f} (Jaccard; {SETTLED} counts as settled); "
                f"give more, e.g. updates={2 * self.updates}",
                AssayWarning,
                stacklevel=5,
            )
        each = self.updates * runs.examples / task.n
        tenth = learned.history[-max(1, len(learned.history) // 10) :]
        return Sweep(
            total=learned.scores.values.double() * task.n,
            passes={
                "forward": spent.get("forward", 0.0) + 3 * each,
                "backward": spent.get("backward", 0.0) + each,
            },
            details={
                "converged": overlap >= SETTLED,
                "overlap": overlap,
                "loss": sum(step.mean for step in tenth) / len(tenth),
                "expected_edges": learned.history[-1].size,
                "undecided": _undecided(learned.openness, model),
                "n_edges": n_edges,
            },
        )


def _undecided(openness: Tensor, model: Model) -> float:
    """Share of the edges whose gate is open with a probability between .1 and .9."""
    probability = MaskSettings().gates.open_probability(openness)[model.graph.valid]
    return float(((probability > 0.1) & (probability < 0.9)).double().mean())


METHODS.add(EdgePruning.key, EdgePruning())
