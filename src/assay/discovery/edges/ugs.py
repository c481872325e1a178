"""Uniform gradient sampling: every edge gets a probability of being kept, learned by gradient descent.

With p_e = sigmoid(theta_e) and u uniform on (0, 1), a sampled mask has the entries

    a_e = 1 - clamp( (u - p_e) / w_e + 1/2, 0, 1 ),     w_e = p_e (1 - p_e),

so it is 0 or 1 but for a window of width w_e around p_e, inside which it passes uniformly over (0, 1) and
its derivative in p_e is taken as 1. Most of a mask is therefore a real circuit, and an edge's gradient is
averaged over its whole range between cut and kept. (Li and Janson 2024, arXiv:2409.09951.)
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.circuits import prune
from assay.core.errors import InputError, NonFiniteError, check_least
from assay.core.random import torch_stream
from assay.discovery.edges.masked_runs import LearnedMask, MaskedRuns, agreement
from assay.discovery.edges.method import METHODS, Choices, Sweep
from assay.graph import Graph
from assay.models import Model
from assay.tasks import Task


CLIP = 5.0  # of the gradient's norm, for the edges into one block
STEEP = 4.0  # |theta| of a warm start at most: p from .02 to .98, so every gate can still turn
UNDECIDED = 1 / 3  # share of the edges with .1 < p < .9, at most


@dataclass(frozen=True, kw_only=True)
class Ugs(LearnedMask):
    """Uniform gradient sampling: a probability of being kept for every edge, learned with a price per edge.

    Attributes:
        price: Price of one edge in the unit of the objective, > 0 (lambda of the paper).
        updates: Gradient steps, >= 1.
        examples: Examples per step, >= 1.
        samples: Masks drawn for each of them, >= 1.
        rate: Step size of AdamW. Default: the paper's, .05 (.1 up to a price of 5e-4, .15 up to 1e-4), a
            fifth of that where the ablated value is the paired input's.
        warm_start: Scores, or the method that gives them, to start from: an edge whose score is the price
            starts at p = 1/2. Default: all start at sigmoid(1).
    """

    key = "ugs"
    source = "Li and Janson 2024, arXiv:2409.09951"

    price: float = 1e-3
    updates: int = 3000
    examples: int = 5
    samples: int = 12
    rate: float | None = None

    def check(self, settings: Choices) -> None:
        super().check(settings)
        check_least(1, **{"samples of ugs": self.samples})
        if not 0 < self.price < math.inf:
            raise InputError(f"price of ugs is {self.price}; give a finite number above 0, such as 1e-3")
        if self.rate is not None and (type(self.rate) not in (float, int) or not self.rate > 0):
            raise InputError(f"rate of ugs is {self.rate!r}; give a step size above 0, or None")

    def step_size(self, *, paired: bool) -> float:
        """Step size of AdamW: the given one, or the paper's for the price and ablation."""
        if self.rate is not None:
            return self.rate
        usual = 0.15 if self.price <= 1e-4 else 0.1 if self.price <= 5e-4 else 0.05
        return usual / 5 if paired else usual

    def sweep(self, model: Model, task: Task, settings: Choices, size: int) -> Sweep:
        start, spent = self.start(model, task, settings, size)
        runs = MaskedRuns(model, task, settings, size, examples=self.examples, updates=self.updates)
        training = _EdgeProbabilities(
            self, model.graph, model.device, paired=settings.ablation.paired, start=start
        )
        losses = [training.step(runs, number, settings.seed) for number in range(self.updates)]
        probability = training.probability().detach().cpu().double()
        undecided = float(((probability > 0.1) & (probability < 0.9)).sum() / model.graph.n_edges)
        sweep = self.finished(
            probability,
            runs,
            spent,
            losses,
            masks=self.samples,
            overlap=training.settled(),
            decided=undecided <= UNDECIDED,
            state=f"{undecided:.0%} of the edges are undecided (.1 < p < .9; allowed {UNDECIDED:.0%})",
        )
        sweep.details |= {"n_open": int((probability > 0.5).sum()), "undecided": undecided}
        return sweep


class _EdgeProbabilities:
    """The probabilities and their optimiser."""

    def __init__(
        self, method: Ugs, graph: Graph, device: torch.device, *, paired: bool, start: Tensor | None
    ) -> None:
        self.method, self.graph = method, graph
        self.valid = graph.valid.to(device)
        theta = torch.ones(graph.valid.shape)
        if start is not None:
            ratio = start.abs().float().clamp(min=1e-12) / method.price
            theta = ratio.log().clamp(-STEEP, STEEP)
        self.theta = theta.to(device).requires_grad_()
        rate = method.step_size(paired=paired)
        self.optimizer = torch.optim.AdamW([self.theta], lr=rate, betas=(0.9, 0.995), weight_decay=0.0)
        self.kept_before: Tensor | None = None

    def probability(self) -> Tensor:
        """p_e of every edge, 0 where there is none."""
        return torch.sigmoid(self.theta) * self.valid

    def step(self, runs: MaskedRuns, number: int, seed: int) -> float:
        """One update; the mean loss of its runs, without the price."""
        if number == self.method.updates - max(1, self.method.updates // 10):
            self.kept_before = self.probability().detach() > 0.5
        generator = torch_stream(seed, f"ugs-masks/{number}")
        inputs, samples = runs.draw(number), self.method.samples
        n_masks = samples * len(inputs.pairs)
        drawn = torch.arange(len(inputs.pairs)).repeat(samples)
        uniform = torch.rand((n_masks, *self.valid.shape), generator=generator).to(self.theta.device)
        probability = torch.sigmoid(self.theta)
        masks, inside = _sample(probability, uniform, self.valid)
        gradient, loss = torch.zeros_like(self.theta), 0.0
        for first in range(0, samples, runs.repeats_at_once):
            times = min(runs.repeats_at_once, samples - first)
            rows = slice(first * len(inputs.pairs), (first + times) * len(inputs.pairs))
            mask = masks[rows].requires_grad_()
            losses = inputs.take(drawn[rows]).losses(mask * prune(self.graph, mask.detach() > 0))
            if not bool(torch.isfinite(losses).all()):
                raise NonFiniteError(
                    f"the loss of update {number} of ugs is NaN or infinite; check the model's weights and "
                    "dtype"
                )
            (found,) = torch.autograd.grad(losses.sum() / n_masks, mask)
            gradient += (found * inside[rows]).sum(0)  # da/dp = 1 inside the window, else 0
            loss += float(losses.detach().sum()) / n_masks
        gradient = reweighted(gradient, inside)
        self._descend(gradient, probability)
        return loss

    def _descend(self, gradient: Tensor, probability: Tensor) -> None:
        price = self.method.price * (probability * self.valid).sum()
        (charged,) = torch.autograd.grad(price, probability, retain_graph=True)
        self.optimizer.zero_grad()
        probability.backward(torch.where(self.valid, gradient + charged, 0))
        assert self.theta.grad is not None
        for layer in range(self.graph.n_layers + 1):
            block = (self.graph.target_layer == layer + 1).to(self.theta.device)
            norm = self.theta.grad[:, block].norm()
            if float(norm) > CLIP:
                self.theta.grad[:, block] *= CLIP / norm
        self.optimizer.step()

    def settled(self) -> float:
        """Overlap of the kept edges with those before the last tenth of the updates."""
        assert self.kept_before is not None
        return agreement(self.kept_before, self.probability().detach() > 0.5)


def reweighted(
    gradient: Float[Tensor, "n_sources n_targets"], inside: Bool[Tensor, "rows n_sources n_targets"]
) -> Float[Tensor, "n_sources n_targets"]:
    """The mean gradient over the draws that fell inside an edge's window, from that over all draws.

    Only draws inside tell anything of an edge; one that had none gets 0.
    """
    share = inside.to(gradient.dtype).mean(0)
    return torch.where(share > 0, gradient / share.clamp(min=1e-9), 0)


def _sample(probability: Tensor, uniform: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Masks of uniform numbers, one per row, 0 where there is no edge; and where they lie in the window."""
    p = probability.detach()
    width = (p * (1 - p)).clamp(min=1e-6)
    mask = (1 - ((uniform - p) / width + 0.5).clamp(0, 1)) * valid
    return mask, (mask > 1e-3) & (mask < 1 - 1e-3)


METHODS.add(Ugs.key, Ugs())
