"""Edge pruning: a hard-concrete gate on every edge, trained under a goal for how many stay open."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.circuits import EdgeScores
from assay.core.errors import AssayWarning, InputError
from assay.discovery.edges.masked_runs import (
    Drawn,
    MaskedRuns,
    agreement,
    check_warm_start,
    start_scores,
    uses_steps,
)
from assay.discovery.edges.masks import BOUND, MaskSettings, learn_mask
from assay.discovery.edges.method import METHODS, Choices, EdgeMethod, check_differentiable
from assay.discovery.edges.sums import Sweep
from assay.execution.soft import SoftPairs
from assay.models import Model
from assay.tasks import Task


SETTLED = 0.9  # Jaccard overlap of the most open edges over the last tenth of the updates, at least
OPEN = 0.5  # mean probability that their gates are open, at least


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
    warm_start: str | EdgeMethod | EdgeScores | None = None

    def check(self, settings: Choices) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"share of edge-pruning is {self.share}; give a share of all edges in (0, 1]")
        if self.n_edges is not None and (type(self.n_edges) is not int or self.n_edges < 1):
            raise InputError(
                f"n_edges of edge-pruning is {self.n_edges!r}; give a whole number from 1, or None"
            )
        for name in ("updates", "examples"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} of edge-pruning is {getattr(self, name)}; give at least 1")
        if not 0 < self.rate < math.inf:
            raise InputError(f"rate of edge-pruning is {self.rate}; give a step size above 0")
        check_warm_start(self.warm_start, settings)

    def uses_steps(self) -> bool:
        return uses_steps(self.warm_start)

    def goal(self, model: Model) -> int:
        """Edges that should stay open.

        Raises:
            InputError: If it is less than what closed gates let through together.
        """
        goal = max(1, round(self.share * model.graph.n_edges)) if self.n_edges is None else self.n_edges
        gates = MaskSettings().gates
        least = float(gates.open_probability(torch.tensor(-BOUND))) * model.graph.n_edges
        if goal < least:
            raise InputError(
                f"edge-pruning cannot keep {goal} of {model.graph.n_edges} edges, because almost closed "
                f"gates already add up to {least:.1f}; give n_edges of at least {math.ceil(least)}"
            )
        return goal

    def sweep(self, model: Model, task: Task, settings: Choices, size: int) -> Sweep:
        n_edges = self.goal(model)
        start, spent = start_scores(self.warm_start, model, task, settings, size)
        runs = MaskedRuns(model, task, settings, size, examples=self.examples, updates=self.updates)
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
            divergence=lambda full, run: check_differentiable(
                settings.objective(run, full, drawn[0].batch), settings
            ),
            start=start,
            settings=MaskSettings(steps=self.updates, rate=self.rate),
            watch=watch,
            seed=settings.seed,
        )
        chosen = learned.scores.top(n_edges).mask
        overlap = agreement(before[0], chosen) if before else 0.0
        openness = float(MaskSettings().gates.open_probability(learned.openness)[chosen].mean())
        settled = overlap >= SETTLED and openness >= OPEN
        if not settled:
            warnings.warn(
                f"edge-pruning has not settled after {self.updates} updates. Its {n_edges} most open gates "
                f"are open with a probability of {openness:.2f} (expected {OPEN}); over the last tenth of "
                f"the updates they overlap by {overlap:.2f} (Jaccard; expected {SETTLED}). Give more "
                f"updates, e.g. updates={2 * self.updates}",
                AssayWarning,
                stacklevel=5,
            )
        passes = {
            name: spent.get(name, 0.0) + count for name, count in runs.passes(self.updates, masks=1).items()
        }
        tenth = learned.history[-max(1, len(learned.history) // 10) :]
        return Sweep(
            total=learned.scores.values.double() * task.n,
            passes=passes,
            details={
                "converged": settled,
                "overlap": overlap,
                "open": openness,
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
