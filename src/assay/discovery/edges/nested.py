"""Nested masks: one learned ranking of edges, nodes or neurons that serves every size.

Each has a score s_i. A step draws a size k from 1 to their number n and runs some examples under the mask

    m_i = sigmoid((s_i - tau) / T),     tau such that sum_i m_i = k,

then moves the scores down the gradient of what the mask loses. There is no price and no goal: tau fixes how
much a mask keeps, and the scores decide what shares it. (Arora et al. 2026, arXiv:2609.25518.) A soft mask
keeps more of the model than the k edges that a circuit takes from it, so T falls to a fifth over the second
half of the steps.

A mask weighs edges; of nodes it weighs all edges out of each, of neurons the dimension of the source's output
before anything reads it.

A circuit has two targets, the model's margin and its distribution, so a mask is judged by both:

    (J - J_model)^2 / E[(J_empty - J_model)^2] + KL / E[KL_empty],

J the objective and the expectations over the examples: an empty mask loses 2, the model 0.

The scores start at -STEEP ln(rank) of an attribution. With T = 1/2 what has rank r then begins with about
1 / (1 + (r / k)^4), so the masks of all sizes are equally sharp.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.circuits import EdgeScores, Level, NodeScores
from assay.circuits.circuit import level_slots
from assay.core.errors import InputError, NonFiniteError, check_name
from assay.core.random import torch_stream
from assay.discovery.edges.eap_ig import EapIgInputs
from assay.discovery.edges.masked_runs import LearnedMask, MaskedRuns, agreement
from assay.discovery.edges.method import LEVELS, METHODS, Choices, EdgeMethod, Sweep
from assay.discovery.edges.two_target import TwoTarget
from assay.models import Model
from assay.objectives import OBJECTIVES, Objective
from assay.tasks import Task


SIZES = ("shares", "uniform", "log", "logit", "log_both")
START = TwoTarget()
SMALLEST = 1000.0  # of the sizes by shares: all but one part in so many is cut
SHARPER = 5  # times, at the end
STEEP = 2.0
GOLDEN = (math.sqrt(5) - 1) / 2  # steps of this size, modulo 1, fill (0, 1) evenly at any number of them
HALVINGS = 60  # of the bracket of tau
JUDGED = 0.05  # whether a ranking has settled is judged by this share of it, from the top


def draw_size(uniform: float, n: int, sizes: str) -> float:
    """Size of a mask over `n` scores, from 1 to n, of a number uniform on [0, 1].

    `shares`: n 1000^(u - 1), at least 1; `uniform`: 1 + (n - 1) u; `log`: n^u; `logit`: n sigmoid(L (2u - 1))
    with L = ln(n - 1), at which k and n - k are equally likely; `log_both`: n^(2u) up to u = 1/2, beyond it
    n - n^(2u - 1).
    """
    if sizes == "shares":
        return max(1.0, n * float(SMALLEST ** (uniform - 1)))
    if sizes == "uniform":
        return 1 + (n - 1) * uniform
    if sizes == "log":
        return float(n**uniform)
    if sizes == "logit":
        return n / (1 + math.exp(-math.log(n - 1) * (2 * uniform - 1)))
    return float(n ** (2 * uniform)) if uniform <= 0.5 else max(1.0, n - n ** (2 * uniform - 1))


class TopK(torch.autograd.Function):
    """Sigmoid top-k: a mask in (0, 1) whose sum is k, with the derivative of the threshold in it.

    With p = m (1 - m) and a cotangent c, the gradient is (p_j / T) (c_j - sum_i c_i p_i / sum_i p_i): its sum
    is 0, so only differences of scores are learned.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Float[Tensor, " n"], size: float, temperature: float
    ) -> Float[Tensor, " n"]:
        low, high = (float(end) for end in scores.aminmax())
        low, high = low - 40 * temperature, high + 40 * temperature
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if float(torch.sigmoid((scores - middle) / temperature).sum()) > size:
                low = middle
            else:
                high = middle
        mask = torch.sigmoid((scores - (low + high) / 2) / temperature)
        ctx.save_for_backward(mask)
        ctx.temperature = temperature
        return mask

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        slope, cotangent = mask * (1 - mask), cotangents[0]
        shared = (cotangent * slope).sum() / slope.sum().clamp(min=1e-8)
        return slope / ctx.temperature * (cotangent - shared), None, None


@dataclass(frozen=True, kw_only=True)
class Nested(LearnedMask):
    """Nested masks: one learned ranking that serves every size.

    The objective is the margin that circuits shall keep; beside it they shall keep the distribution. A
    divergence, such as `objective="kl"`, is minimised alone.

    Attributes:
        updates: Gradient steps, >= 1.
        examples: Examples per step, >= 1; they share one mask.
        sizes: Distribution of the size of a mask: `shares`, `uniform`, `log`, `logit` or `log_both`
            (`draw_size`).
        temperature: T of the mask in the first half of the updates, > 0, in the unit of the scores.
        rate: Step size of Adam, > 0; it falls linearly to 0 over the last 30 % of the updates.
        warm_start: Scores, or the method that gives them, to start from: by the rank of their size, so their
            unit does not matter; by default `two-target`, for a divergence `eap-ig-inputs`. None: all edges
            start alike.

    Notes:
        Cost: one forward and backward pass of a run under a real-valued mask, per example and update.

    References:
        Arora et al. 2026, arXiv:2609.25518. There: the task's objective alone, sizes `uniform`, one T,
        rate .05 throughout, 5,000 updates of one example, and no warm start.
    """

    key = "nested"
    source = "Arora et al. 2026, arXiv:2609.25518"
    objective = None
    levels = LEVELS

    updates: int = 600
    examples: int = 8
    sizes: str = "shares"
    temperature: float = 0.5
    rate: float = 0.1
    warm_start: str | EdgeMethod | EdgeScores | NodeScores | None = START

    def check(self, settings: Choices) -> None:
        super().check(settings)
        check_name("sizes of nested", self.sizes, SIZES)
        for name in ("temperature", "rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} of nested is {getattr(self, name)}; give a finite number above 0")

    def sweep(self, model: Model, task: Task, settings: Choices, size: int) -> Sweep:
        alone = settings.objective.stationary and self.warm_start is START
        method = replace(self, warm_start=EapIgInputs()) if alone else self
        start, spent = method.start(model, task, settings, size)
        runs = MaskedRuns(model, task, settings, size, examples=self.examples, updates=self.updates)
        rounds = math.ceil(task.n / runs.examples)
        judged = replace(settings, objective=both_targets(runs, rounds))
        spent.forward += runs.passes(rounds, masks=1)[0] - runs.passes(0, masks=1)[0]
        slots = level_slots(model.graph, settings.level, model.d_model).to(model.device)
        top_k: Any = TopK.apply  # PyTorch does not annotate it
        scores = initial_scores(start, slots).requires_grad_()
        optimizer = torch.optim.Adam([scores], lr=self.rate)
        first = float(torch.rand((), generator=torch_stream(settings.seed, "mask-sizes")))
        losses, before = [], first_of(scores.detach())
        for step in range(self.updates):
            remaining = 1 - step / self.updates
            if step == self.updates - max(1, self.updates // 10):
                before = first_of(scores.detach())
            sharper = SHARPER ** max(0.0, 1 - 2 * remaining)
            k = draw_size((first + step * GOLDEN) % 1, len(scores), self.sizes)
            shares = in_place(top_k(scores, k, self.temperature / sharper), slots)
            kept = weights_of(model, settings.level, shares)
            loss = replace(runs.draw(step), settings=judged).losses(*kept, wide=True).mean()
            if not bool(torch.isfinite(loss)):
                raise NonFiniteError(
                    f"the loss of update {step} of nested is NaN or infinite; check the model's weights and "
                    "dtype, and that runs with all edges cut differ from the model's"
                )
            (scores.grad,) = torch.autograd.grad(loss, scores)
            for group in optimizer.param_groups:
                group["lr"] = self.rate * min(1.0, remaining / 0.3)
            optimizer.step()
            losses.append(float(loss.detach()))
        final = scores.detach()
        return self.finished(
            in_place(final - final.min() + 1, slots).cpu(),
            runs,
            spent,
            losses,
            masks=1,
            overlap=agreement(before, first_of(final)),
            decided=True,
            state=f"It is judged by the first {JUDGED:.0%} of the {settings.level}s",
        )


@torch.no_grad()
def both_targets(runs: MaskedRuns, rounds: int) -> Objective:
    """The squared departure of the objective and KL, in units of those of runs with all edges cut.

    These runs are over the examples of the first `rounds` steps. Of a divergence: the divergence alone.
    """
    objective, model = runs.settings.objective, runs.runner.model
    if objective.stationary:
        return objective

    def parts(logits: Tensor, clean_logits: Tensor, batch: Any) -> Float[Tensor, "2 batch"]:
        departure = objective(logits, clean_logits, batch) - objective(clean_logits, clean_logits, batch)
        return torch.stack([departure.square(), OBJECTIVES["kl"](logits, clean_logits, batch)])

    empty = torch.zeros(model.graph.valid.shape, device=model.device)
    lost = []
    for drawn in map(runs.draw, range(rounds)):
        logits, clean_logits = drawn.runner.logits(drawn.pairs, empty), drawn.pairs.model_logits
        lost.append(parts(logits.double(), clean_logits.double(), drawn.batch).mean(1))
    scale = torch.stack(lost).mean(0)
    return Objective(key=objective.key, loss=lambda *run: (parts(*run) / scale[:, None]).sum(0))


def weights_of(
    model: Model, level: Level, shares: Float[Tensor, "n_sources *width"]
) -> tuple[Float[Tensor, "n_sources n_targets"], Float[Tensor, "n_sources d_model"] | None]:
    """The weights of edges and of single dimensions that keep so much of each edge, node or neuron."""
    valid = model.graph.valid.to(shares)
    if level == "neuron":
        return valid, shares
    return (shares, None) if level == "edge" else (shares[:, None] * valid, None)


def initial_scores(
    start: Float[Tensor, "n_sources *width"] | None, slots: Bool[Tensor, "n_sources *width"]
) -> Float[Tensor, " n"]:
    """-STEEP ln(rank) by the size of the starting scores, float64; all 0 without them."""
    scores = torch.zeros(int(slots.sum()), dtype=torch.float64, device=slots.device)
    if start is not None:
        size = start.to(slots.device)[slots].abs().nan_to_num(torch.inf)
        order = size.argsort(descending=True, stable=True)
        scores[order] = -STEEP * torch.arange(1, len(order) + 1).to(scores).log()
    return scores


def in_place(
    values: Float[Tensor, " n"], slots: Bool[Tensor, "n_sources *width"]
) -> Float[Tensor, "n_sources *width"]:
    """One value for each slot, row by row; 0 elsewhere."""
    return torch.zeros(slots.shape, dtype=values.dtype, device=slots.device).masked_scatter(slots, values)


def first_of(scores: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """The first `JUDGED` of a ranking."""
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen[scores.topk(max(1, round(JUDGED * len(scores)))).indices] = True
    return chosen


METHODS.add(Nested.key, Nested())
