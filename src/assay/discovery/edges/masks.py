"""Learned masks: a gate on every edge, trained by gradient descent on what the masked run gets wrong.

Each gate is a hard-concrete variable (Louizos et al. 2018): with u uniform on (0, 1),

    z = clip( low + (high - low) sigmoid((ln u - ln(1 - u) + a) / temperature), 0, 1 ),
    Pr(z > 0) = sigmoid(a - temperature ln(-low / high)).

A step draws a gate for every edge and pair, runs the pairs under them, and descends on

    mean divergence + price * (expected number of open gates - goal).

The price is the Lagrange multiplier: the one that leaves the expected number unchanged to first order,
-sum_e g_e p_e / sum_e p_e^2 with g the gradient of the loss and p that of the expected number, averaged over
steps and never negative. What the curvature leaves over is taken out by moving all gates alike. So there is
no penalty weight to tune, and the goal is met at every step. At the end the edges are ranked by a.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.circuits import EdgeScores
from assay.circuits.slots import check_n_edges
from assay.core.errors import GraphMismatchError, InputError, NonFiniteError
from assay.core.random import torch_stream
from assay.core.record import Record
from assay.execution.soft import SoftPairs, SoftRunner
from assay.graph import Graph
from assay.objectives import mean_over_reads


PairLoss = Callable[[Tensor, Tensor], Tensor]

BOUND = 8.0  # |a| beyond this is certain for all purposes; without a bound it drifts and cannot come back


@dataclass(frozen=True, kw_only=True)
class HardConcrete:
    """A stretched and clipped concrete variable, a gate that is exactly 0 or 1 with positive probability.

    Attributes:
        temperature: Of the concrete variable, > 0.
        low: Lower end of the stretch, < 0.
        high: Upper end, > 1.
    """

    temperature: float = 0.5
    low: float = -0.1
    high: float = 1.1

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and self.low < 0 and self.high > 1):
            raise InputError(
                f"hard-concrete gates need temperature > 0, low < 0 and high > 1; got {self.temperature}, "
                f"{self.low} and {self.high}"
            )

    def sample(
        self, openness: Float[Tensor, "*edges"], uniform: Float[Tensor, "*batch_edges"]
    ) -> Float[Tensor, "*batch_edges"]:
        """Gates in [0, 1] from numbers uniform on (0, 1); differentiable in the openness a."""
        noise = uniform.log() - (-uniform).log1p()
        stretched = torch.sigmoid((noise + openness) / self.temperature) * (self.high - self.low) + self.low
        return stretched.clamp(0, 1)

    def open_probability(self, openness: Float[Tensor, "*edges"]) -> Float[Tensor, "*edges"]:
        """Pr(z > 0)."""
        return torch.sigmoid(openness - self.temperature * math.log(-self.low / self.high))


@dataclass(frozen=True, kw_only=True)
class MaskSettings:
    """How a mask is trained.

    Attributes:
        steps: Gradient steps.
        rate: Step size of Adam on the openness; it falls linearly to 0 over the last 30 % of the steps.
        widen: The goal starts at this many times the wanted size and reaches it half-way, >= 1.
        slope: Openness per factor e of the starting scores: how much the start is trusted.
        average: Share of the steps, at the end, over which the openness is averaged.
        gates: The gate distribution.
    """

    steps: int = 400
    rate: float = 0.15
    widen: float = 2.0
    slope: float = 1.0
    average: float = 0.2
    gates: HardConcrete = field(default_factory=HardConcrete)

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.rate > 0 or not self.widen >= 1 or not 0 < self.average <= 1:
            raise InputError(
                "a mask needs steps >= 1, rate > 0, widen >= 1 and average in (0, 1]; got "
                f"{self.steps}, {self.rate}, {self.widen} and {self.average}"
            )


@dataclass(frozen=True, kw_only=True)
class MaskStep(Record):
    """One step of the training, for histories.

    Attributes:
        step: Counted from 0.
        loss: What was descended on, without the price.
        mean: Mean divergence of the batch under sampled gates.
        largest: Largest divergence of the batch.
        size: Expected number of open gates.
        price: The multiplier: what one edge is worth, in the unit of the loss.
    """

    step: int
    loss: float
    mean: float
    largest: float
    size: float
    price: float


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedMask:
    """What `learn_mask` found.

    Attributes:
        scores: The ranking: openness above that of the least open edge, so `scores.top(k)` keeps the k most
            open edges.
        openness: `[n_sources, n_targets]`, the averaged a of every gate.
        history: One entry per step.
        seconds: Time taken.
    """

    scores: EdgeScores
    openness: Float[Tensor, "n_sources n_targets"]
    history: list[MaskStep]
    seconds: float


def learn_mask(
    runner: SoftRunner,
    draw: Callable[[int], SoftPairs],
    n_edges: int,
    *,
    divergence: PairLoss,
    start: EdgeScores | None = None,
    settings: MaskSettings | None = None,
    watch: Callable[[int, Callable[[], EdgeScores]], None] | None = None,
    seed: int = 0,
) -> LearnedMask:
    """Train a gate on every edge so that about `n_edges` stay open.

    Args:
        runner: Runs of the model under real-valued masks.
        draw: The pairs of step s, from `runner.prepare`; fresh ones each time where there are enough.
        n_edges: Edges wanted, 1 to all.
        divergence: What a run gets wrong: the model's and the run's logits `[batch, d_vocab]` to `[batch]`,
            differentiable. Of pairs that are read at several positions the mean over these counts.
        start: Scores to start from: gates of strong edges begin open. Default: all alike.
        settings: Steps, rate, gates.
        watch: Called after every step with its number and a function that gives the ranking so far.
        seed: Root seed of the gates' stream `mask-gates`.

    Raises:
        InputError: If `n_edges` is out of range.
        GraphMismatchError: If `start` belongs to another graph.
        NonFiniteError: If the loss is NaN or infinite; the step is named.

    Notes:
        Cost: one forward and backward pass of a run with a stream per target, per pair and step.

    References:
        Louizos et al. 2018, arXiv:1712.01312; Cao et al. 2021, arXiv:2104.03514; Bhaskar et al. 2024,
        arXiv:2406.16778.
    """
    settings = settings or MaskSettings()
    graph = runner.model.graph
    check_n_edges(graph, n_edges)
    if start is not None and start.graph.fingerprint != graph.fingerprint:
        raise GraphMismatchError(
            f"start holds scores of another graph, {start.graph.describe()}, but the graph of the model is "
            f"{graph.describe()}"
        )
    began = time.perf_counter()
    device = runner.model.device
    valid = graph.valid.to(device)
    gates, training = settings.gates, _SizeGoal(settings, valid, n_edges)
    openness = training.begin(start).to(device, torch.float32).requires_grad_()
    optimizer = torch.optim.Adam([openness], lr=settings.rate, betas=(0.9, 0.98))
    generator = torch_stream(seed, "mask-gates")
    history = []
    for step in range(settings.steps):
        pairs = draw(step)
        # One gate per edge and pair: the gradient is less noisy than with one draw for the batch.
        uniform = torch.rand((len(pairs), *openness.shape), generator=generator).clamp(1e-6, 1 - 1e-6)
        mask = gates.sample(openness, uniform.to(device))
        found = loss_over_reads(divergence, pairs, runner.logits(pairs, mask))
        value = found.mean()
        if not bool(torch.isfinite(value)):
            raise NonFiniteError(
                f"the loss of step {step} is {value.item()}; check the divergence, the model's weights and "
                "dtype"
            )
        (gradient,) = torch.autograd.grad(value, openness)
        size, price = training.step(optimizer, openness, gradient, step)
        history.append(
            MaskStep(
                step=step,
                loss=float(value.detach()),
                mean=float(found.detach().mean()),
                largest=float(found.detach().max()),
                size=size,
                price=price,
            )
        )
        if watch is not None:
            watch(step, lambda: training.ranking(graph))
    return LearnedMask(
        scores=training.ranking(graph),
        openness=training.averaged.cpu(),
        history=history,
        seconds=time.perf_counter() - began,
    )


def loss_over_reads(
    loss: PairLoss, pairs: SoftPairs, logits: Float[Tensor, "batch *reads d_vocab"]
) -> Float[Tensor, " batch"]:
    """Loss of each pair in float64: where it is read at several positions, its mean over them."""
    model, run = pairs.model_logits.double(), logits.double()
    if pairs.read.ndim == 1:
        return loss(model, run)
    counted = pairs.read >= 0
    return mean_over_reads(loss(model[counted], run[counted]), counted)


class _SizeGoal:
    """Size goal, price and average of one training."""

    def __init__(
        self, settings: MaskSettings, valid: Bool[Tensor, "n_sources n_targets"], n_edges: int
    ) -> None:
        self.settings, self.valid, self.n_edges = settings, valid, n_edges
        self.most = 0.999 * int(valid.sum())
        self.worth = self.slack = 0.0
        self.averaged = torch.zeros_like(valid, dtype=torch.float32)
        self.n_averaged = 0

    def goal(self, step: int) -> float:
        """Expected size after a step."""
        progress = min(1.0, 2 * step / self.settings.steps)
        widen = self.settings.widen
        return min(self.n_edges * (widen + (1 - widen) * progress), self.most)

    def begin(self, start: EdgeScores | None) -> Tensor:
        """Openness from the logarithm of the scores, moved so that the goal is met."""
        if start is None:
            return self.centred(torch.zeros_like(self.valid, dtype=torch.float32), 0)
        magnitude = start.values.abs().double().to(self.valid.device)
        strongest = magnitude[self.valid].sort(descending=True).values
        if not float(strongest[0]) > 0:
            raise InputError("every starting score is 0; give other scores, or start=None")
        # Ratios to the weakest kept edge; exact zeros count as the weakest positive score.
        least = float(strongest[strongest > 0][-1])
        pivot = max(float(strongest[min(self.n_edges, len(strongest)) - 1]), least)
        logarithm = (magnitude.clamp(min=least) / pivot).log() * self.settings.slope
        return self.centred(logarithm.float().clamp(-BOUND, BOUND), 0)

    def size(self, openness: Tensor) -> float:
        return float(self.settings.gates.open_probability(openness)[self.valid].sum())

    def centred(self, openness: Tensor, step: int) -> Tensor:
        """All gates moved alike until the expected size is the goal; bisection."""
        goal, low, high = self.goal(step), -3 * BOUND, 3 * BOUND
        for _ in range(40):
            middle = (low + high) / 2
            if self.size(openness + middle) > goal:
                high = middle
            else:
                low = middle
        return (openness + low).clamp(-BOUND, BOUND)

    def step(
        self, optimizer: torch.optim.Optimizer, openness: Tensor, gradient: Tensor, step: int
    ) -> tuple[float, float]:
        """Descend once; the expected size and the price."""
        probability = self.settings.gates.open_probability(openness.detach())
        pull = (probability * (1 - probability)).where(self.valid, 0)
        self.worth = 0.9 * self.worth - 0.1 * float((gradient * pull).sum())
        self.slack = 0.9 * self.slack + 0.1 * float(pull.square().sum())
        price = max(0.0, self.worth / self.slack) if self.slack else 0.0
        openness.grad = (gradient + price * pull).where(self.valid, 0)
        remaining = 1 - step / self.settings.steps
        for group in optimizer.param_groups:
            group["lr"] = self.settings.rate * min(1.0, remaining / 0.3)
        optimizer.step()
        with torch.no_grad():
            openness.copy_(self.centred(openness.detach(), step + 1))
            if remaining <= self.settings.average:
                self.n_averaged += 1
            # Before the averaging starts: the present state alone.
            self.averaged += (openness - self.averaged) / max(self.n_averaged, 1)
        return self.size(openness.detach()), price

    def ranking(self, graph: Graph) -> EdgeScores:
        """Openness above the least open edge, as scores."""
        lowest = self.averaged[self.valid].min()
        values = (self.averaged - lowest + 1).where(self.valid, 0).cpu()
        return EdgeScores(graph, values, provenance={"method": "learned-mask", "n_edges": self.n_edges})
