"""Edge pruning: a hard-concrete gate on every edge, trained under a goal for how many stay open.

Each gate is a hard-concrete variable (Louizos et al. 2018): with u uniform on (0, 1),

    z = clip( low + (high - low) sigmoid((ln u - ln(1 - u) + a) / temperature), 0, 1 ),
    Pr(z > 0) = sigmoid(a - temperature ln(-low / high)).

A step draws a gate for every edge and example, runs the examples under them, and descends on

    mean objective + price * (expected number of open gates - goal).

The price is the Lagrange multiplier: the one that leaves the expected number unchanged to first order,
-sum_e g_e p_e / sum_e p_e^2 with g the gradient of the loss and p that of the expected number, averaged over
steps and never negative. What the curvature leaves over is taken out by moving all gates alike. So there is
no penalty weight to tune, and the goal is met at every step. At the end the edges are ranked by a.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.circuits.scores import strongest
from assay.circuits.spans import check_n_edges
from assay.core.errors import InputError, NonFiniteError
from assay.core.random import torch_stream
from assay.discovery.edges.masked_runs import Drawn, LearnedMask, MaskedRuns, agreement
from assay.discovery.edges.method import METHODS, Choices, Sweep
from assay.models import Model
from assay.tasks import Task


TEMPERATURE, LOW, HIGH = 0.5, -0.1, 1.1  # of the gates
BOUND = 8.0  # |a| beyond this is certain for all purposes; without a bound it drifts and cannot come back
WIDEN = 2.0  # the goal starts at this many times the wanted size and reaches it half-way
AVERAGED = 0.2  # share of the updates, at the end, over which the openness is averaged
OPEN = 0.5  # mean probability that their gates are open, at least


def sample_gates(
    openness: Float[Tensor, "*edges"], uniform: Float[Tensor, "*batch_edges"]
) -> Float[Tensor, "*batch_edges"]:
    """Gates in [0, 1] from numbers uniform on (0, 1); differentiable in the openness a."""
    noise = uniform.log() - (-uniform).log1p()
    stretched = torch.sigmoid((noise + openness) / TEMPERATURE) * (HIGH - LOW) + LOW
    return stretched.clamp(0, 1)


def open_probability(openness: Float[Tensor, "*edges"]) -> Float[Tensor, "*edges"]:
    """Pr(z > 0)."""
    return torch.sigmoid(openness - TEMPERATURE * math.log(-LOW / HIGH))


@dataclass(frozen=True, kw_only=True)
class EdgePruning(LearnedMask):
    """Edge pruning: a gate on every edge, learned under a goal for the size of the circuit.

    Attributes:
        n_edges: Edges that should stay open. Default: `share` of all.
        share: The goal as a share of all edges, in (0, 1].
        updates: Gradient steps, >= 1.
        examples: Examples per step, >= 1; every one is run under gates of its own.
        rate: Step size of Adam, > 0; it falls linearly to 0 over the last 30 % of the updates.
        warm_start: Scores, or the method that gives them, to start from: strong edges begin open. Default:
            all gates start alike.

    Notes:
        Cost: one forward and backward pass of a run with a stream per target, per example and update.

    References:
        Louizos et al. 2018, arXiv:1712.01312; Cao et al. 2021, arXiv:2104.03514; Bhaskar et al. 2024,
        arXiv:2406.16778.
    """

    key = "edge-pruning"
    source = "Bhaskar et al. 2024, arXiv:2406.16778"

    n_edges: int | None = None
    share: float = 0.05
    updates: int = 400
    examples: int = 16
    rate: float = 0.15

    def check(self, settings: Choices) -> None:
        super().check(settings)
        if not 0 < self.share <= 1:
            raise InputError(f"share of edge-pruning is {self.share}; give a share of all edges in (0, 1]")
        if self.n_edges is not None and (type(self.n_edges) is not int or self.n_edges < 1):
            raise InputError(
                f"n_edges of edge-pruning is {self.n_edges!r}; give a whole number from 1, or None"
            )
        if not 0 < self.rate < math.inf:
            raise InputError(f"rate of edge-pruning is {self.rate}; give a step size above 0")

    def goal(self, model: Model) -> int:
        """Edges that should stay open.

        Raises:
            InputError: If it is less than what closed gates let through together, or more than all edges.
        """
        goal = max(1, round(self.share * model.graph.n_edges)) if self.n_edges is None else self.n_edges
        least = float(open_probability(torch.tensor(-BOUND))) * model.graph.n_edges
        if goal < least:
            raise InputError(
                f"edge-pruning cannot keep {goal} of {model.graph.n_edges} edges, because almost closed "
                f"gates already add up to {least:.1f}; give n_edges of at least {math.ceil(least)}"
            )
        check_n_edges(goal, model.graph.valid)
        return goal

    def sweep(self, model: Model, task: Task, settings: Choices, size: int) -> Sweep:
        n_edges = self.goal(model)
        start, spent = self.start(model, task, settings, size)
        runs = MaskedRuns(model, task, settings, size, examples=self.examples, updates=self.updates)
        training = _Training(self, model.graph.valid.to(model.device), n_edges, start)
        generator = torch_stream(settings.seed, "mask-gates")
        tenth = max(1, self.updates // 10)
        losses, before = [], torch.zeros_like(model.graph.valid)
        for step in range(self.updates):
            if step and step == self.updates - tenth:
                before = training.most_open()
            losses.append(training.step(runs.draw(step), step, generator))
        chosen, valid = training.most_open(), model.graph.valid
        probability = open_probability(training.averaged.cpu())
        openness = float(probability[chosen].mean())
        sweep = self.finished(
            training.ranking(),
            runs,
            spent,
            losses,
            masks=1,
            overlap=agreement(before, chosen),
            decided=openness >= OPEN,
            state=f"Its {n_edges} most open gates are open with a probability of {openness:.2f} (expected "
            f"{OPEN})",
        )
        between = (probability > 0.1) & (probability < 0.9)
        sweep.details |= {
            "open": openness,
            "expected_edges": training.size(training.openness.detach()),
            "undecided": float(between[valid].double().mean()),
            "n_edges": n_edges,
        }
        return sweep


METHODS.add(EdgePruning.key, EdgePruning())


class _Training:
    """The gates, their optimiser, and the goal for how many stay open."""

    def __init__(
        self,
        method: EdgePruning,
        valid: Bool[Tensor, "n_sources n_targets"],
        n_edges: int,
        start: Tensor | None,
    ) -> None:
        self.method, self.valid, self.n_edges = method, valid, n_edges
        self.most = 0.999 * int(valid.sum())
        self.worth = self.slack = 0.0
        self.averaged = torch.zeros_like(valid, dtype=torch.float32)
        self.n_averaged = 0
        self.openness = self.begin(start).requires_grad_()
        self.optimizer = torch.optim.Adam([self.openness], lr=method.rate, betas=(0.9, 0.98))

    def begin(self, start: Tensor | None) -> Tensor:
        """Openness from the logarithm of the scores, moved so that the goal is met."""
        if start is None:
            return self.centred(torch.zeros_like(self.valid, dtype=torch.float32), 0)
        magnitude = start.abs().double().to(self.valid.device)
        sorted_values = magnitude[self.valid].sort(descending=True).values
        if not float(sorted_values[0]) > 0:
            raise InputError("every starting score is 0; give other scores, or warm_start=None")
        # Ratios to the weakest kept edge; exact zeros count as the weakest positive score.
        least = float(sorted_values[sorted_values > 0][-1])
        pivot = max(float(sorted_values[self.n_edges - 1]), least)
        logarithm = (magnitude.clamp(min=least) / pivot).log()
        return self.centred(logarithm.float().clamp(-BOUND, BOUND), 0)

    def size(self, openness: Tensor) -> float:
        """Expected number of open gates."""
        return float(open_probability(openness)[self.valid].sum())

    def centred(self, openness: Tensor, step: int) -> Tensor:
        """All gates moved alike until the expected size is the goal of a step; bisection."""
        progress = min(1.0, 2 * step / self.method.updates)
        goal = min(self.n_edges * (WIDEN + (1 - WIDEN) * progress), self.most)
        low, high = -3 * BOUND, 3 * BOUND
        for _ in range(40):
            middle = (low + high) / 2
            if self.size(openness + middle) > goal:
                high = middle
            else:
                low = middle
        return (openness + low).clamp(-BOUND, BOUND)

    def step(self, drawn: Drawn, step: int, generator: torch.Generator) -> float:
        """Descend once; the mean objective of the examples under sampled gates."""
        # One gate per edge and example: the gradient is less noisy than with one draw for the batch.
        uniform = torch.rand((len(drawn.pairs), *self.valid.shape), generator=generator).clamp(1e-6, 1 - 1e-6)
        loss = drawn.losses(sample_gates(self.openness, uniform.to(self.valid.device)), wide=True).mean()
        if not bool(torch.isfinite(loss)):
            raise NonFiniteError(
                f"the loss of update {step} of edge-pruning is NaN or infinite; check the model's weights "
                "and dtype"
            )
        (gradient,) = torch.autograd.grad(loss, self.openness)
        probability = open_probability(self.openness.detach())
        pull = (probability * (1 - probability)).where(self.valid, 0)
        self.worth = 0.9 * self.worth - 0.1 * float((gradient * pull).sum())
        self.slack = 0.9 * self.slack + 0.1 * float(pull.square().sum())
        price = max(0.0, self.worth / self.slack) if self.slack else 0.0
        self.openness.grad = (gradient + price * pull).where(self.valid, 0)
        remaining = 1 - step / self.method.updates
        for group in self.optimizer.param_groups:
            group["lr"] = self.method.rate * min(1.0, remaining / 0.3)
        self.optimizer.step()
        with torch.no_grad():
            self.openness.copy_(self.centred(self.openness.detach(), step + 1))
            if remaining <= AVERAGED:
                self.n_averaged += 1
            # Before the averaging starts: the present state alone.
            self.averaged += (self.openness - self.averaged) / max(self.n_averaged, 1)
        return float(loss.detach())

    def ranking(self) -> Float[Tensor, "n_sources n_targets"]:
        """Openness above the least open edge."""
        lowest = self.averaged[self.valid].min()
        return (self.averaged - lowest + 1).where(self.valid, 0).cpu()

    def most_open(self) -> Bool[Tensor, "n_sources n_targets"]:
        """As many edges as should stay open."""
        return strongest(self.ranking(), self.valid.cpu(), self.n_edges, absolute=True)
