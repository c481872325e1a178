"""One ranking of edges for two targets: the margin of the answer, and the distribution over all outputs.

A ranking by the attribution of a margin finds edges that move the answer, one by that of the divergence
edges that hold the rest of the distribution. The margin is attributed twice, by the gradients at both ends of
the path of `eap-ig-inputs` (c; under `zero`, where one end is a stream of zeros, at the clean one) and by
`gim` (g), which err on different edges; the divergence by `eap-ig-inputs` (d). With n(v) = |v| / sum |v| and
p(v) = max(v, 0) / sum max(v, 0) over the edges,

    rank = n(d) + (n(c) + n(g)) / 2 + lean (p(c) + p(g)) / 2.

The sum keeps what matters for either target with either sign; `lean` favours edges that help, which lifts the
margin where the plain sum falls short of it, and costs distribution where it is too large.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.circuits import Circuit, EdgeScores, NodeScores
from assay.core.errors import InputError
from assay.discovery.edges.eap_ig import Passes, quadrature_nodes
from assay.discovery.edges.gim import Gim
from assay.discovery.edges.gradients import GradientSums
from assay.discovery.edges.method import LEVELS, METHODS, Choices, EdgeMethod, Sweep, check_scores, measures
from assay.execution import run_circuit, run_model
from assay.execution.ablation import BaselineShelf, Prepared
from assay.models import Model, Trace
from assay.objectives import OBJECTIVES, get_objective
from assay.tasks import Batch, Task


LEANS = (0.0, 1.5)  # where the weight is searched
EXAMPLES = 16  # that circuits are run on for it
SIZES = (1 / 128, 1 / 2)  # shares of the whole graph between which the size of their circuits is searched
SIZE_RUNS, LEAN_RUNS = 4, 4  # circuits for the size, and for the weight
# Of distribution and of margin that circuits keep where the weight is chosen. More edges of one ranking keep
# more of both, but a margin that passes the model's comes back with most of the edges only: it is aimed low.
SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class TwoTarget(EdgeMethod):
    """One ranking for margin and distribution, from three attributions.

    Scores are positive: the rank above, a sum of shares, of nodes or neurons from their own attributions. The
    margin is the objective; where that is a divergence, the task's own.

    Attributes:
        lean: Weight of the edges that help, >= 0 (0 to 1.5 is useful). Default: chosen on at most 16 of the
            examples so that circuits keep .9 of the margin where they keep .9 of the distribution.

    Notes:
        Cost with 5 steps: 8 forward and 8 backward passes under `resample`; to choose `lean`, at most 9 runs
        of circuits and one of the model on the few examples.

    References:
        Hanna et al. 2024, arXiv:2403.17806 (c, d); Edin et al. 2025, arXiv:2505.17630 (g).
    """

    key = "two-target"
    needs_gradients = True
    integrates = True
    keeps_examples = False
    levels = LEVELS
    source = "this package"

    lean: float | None = None

    def check(self, settings: Choices) -> None:
        if all(node.alpha == 1 for node in quadrature_nodes(settings.steps, settings.quadrature)):
            raise InputError(
                "two-target takes the gradient of a divergence, which is 0 at the clean run, the only"
                " point of one step of quadrature='right'; give more steps, or 'midpoint'"
            )
        if self.lean is not None and not (type(self.lean) in (int, float) and 0 <= self.lean < math.inf):
            raise InputError(f"lean of two-target is {self.lean!r}; give a number of at least 0, or None")

    def sweep(self, model: Model, task: Task, settings: Choices, size: int) -> Sweep:
        margin = settings.objective
        margin = get_objective(task.objective) if margin.stationary else margin
        if margin.stationary:
            raise InputError(
                f"two-target needs a margin, but the objective of {task.name!r} is the divergence "
                f"{margin.key!r}; give objective='logit_diff' or 'ce'"
            )
        settings, level = replace(settings, objective=margin), settings.level
        prepared = settings.ablation.prepare(model, task, batch_size=size, seed=settings.seed)
        sweep = Sweep.empty(model.graph, model.d_model if level == "neuron" else None)
        totals = [sweep.total.clone() for _ in range(3)]
        for batch in (each.to(model.device) for each in task.batches(size)):
            found, forward, backward = attributions(model, batch, prepared, settings)
            for total, scores in zip(totals, found, strict=True):
                check_scores(scores, self, batch)
                total += scores[0].double().cpu()
            sweep.forward += forward * len(batch.indices)
            sweep.backward += backward * len(batch.indices)
        sweep.forward += task.n * measures(settings.ablation)
        divergence, ends, by_rules = (total.sum(1) if level == "node" else total for total in totals)
        lean = self.lean
        if lean is None:
            runs = _Runs(model, task, settings, size)
            kind = EdgeScores if level == "edge" else NodeScores

            def ranked(lean: float) -> EdgeScores | NodeScores:
                return kind(model.graph, rank(divergence, ends, by_rules, lean).float())

            def kept(lean: float, size: int) -> tuple[float, float]:
                return runs.kept(ranked(lean).top(size))

            lean = chosen_lean(kept, ranked(0.0).n_items)
            sweep.forward += runs.spent
        sweep.total, sweep.details = rank(divergence, ends, by_rules, lean) * task.n, {"lean": lean}
        return sweep

    def bytes_per_example(self, model: Model, length: int, settings: Choices) -> int:
        own = super().bytes_per_example(model, length, settings)
        # Three sets of sums rather than one take a quarter more (measured on SmolLM2).
        return max(own * 4 // 3, Gim().bytes_per_example(model, length, settings))


METHODS.add(TwoTarget.key, TwoTarget())


def attributions(
    model: Model, batch: Batch, prepared: Prepared, settings: Choices
) -> tuple[list[Float[Tensor, "1 n_sources *width"]], float, int]:
    """Scores of the divergence along the path, of the margin at its ends, and of the margin by `gim`.

    Returns:
        The three sums over the batch, and the forward and backward passes that they took.
    """
    rules = Gim()
    # A norm of zeros passes on its gradients times 1 / sqrt(eps).
    alphas = (1.0,) if settings.ablation.key == "zero" else (0.0, 1.0)
    path, ends = GradientSums(model), GradientSums(model)
    by_rules = GradientSums(model, constant_scale=rules.constant_scale)

    def add(sums: GradientSums, trace: Trace, weight: float) -> None:
        sums.add(trace, batch.positions, weight)
        trace.release()

    with model.frozen():
        passes = Passes(model, batch, prepared, settings, set(alphas))
        for alpha in alphas:
            add(ends, passes.between(alpha), 1 / len(alphas))
        for node in quadrature_nodes(settings.steps, settings.quadrature):
            add(path, passes.run(node.alpha, OBJECTIVES["kl"])[0], node.weight)
        with rules.rules(model):
            add(by_rules, passes.run(1.0)[0], 1.0)
    differences, neurons = passes.differences(), settings.level == "neuron"
    scores = [
        sums.contract(differences, batch.positions, per_example=False, neurons=neurons)
        for sums in (path, ends, by_rules)
    ]
    return scores, passes.forward, passes.backward


def rank(
    divergence: Float[Tensor, "n_sources *width"],
    ends: Float[Tensor, "n_sources *width"],
    by_rules: Float[Tensor, "n_sources *width"],
    lean: float,
) -> Float[Tensor, "n_sources *width"]:
    """The ranking of three attributions: shares of their sizes, and of what helps the margin.

    Args:
        divergence: Of the divergence along the path.
        ends: Of the margin at both ends of the path.
        by_rules: Of the margin by `gim`.
        lean: Weight of what helps.

    Returns:
        What sums to 2 + `lean`.
    """

    def shares(sizes: Tensor) -> Tensor:
        total = sizes.sum()
        return sizes / total if total > 0 else sizes

    size = (shares(ends.abs()) + shares(by_rules.abs())) / 2
    helping = (shares(ends.clamp(min=0)) + shares(by_rules.clamp(min=0))) / 2
    return shares(divergence.abs()) + size + lean * helping


class _Runs:
    """What circuits keep on the first few examples."""

    def __init__(self, model: Model, task: Task, settings: Choices, size: int) -> None:
        self.model, self.settings, self.size = model, settings, size
        self.objectives = settings.objective, OBJECTIVES["kl"]
        few: Any = task
        self.few = few.subset(torch.arange(min(task.n, EXAMPLES)))
        [self.batch] = self.few.batches(self.few.n)
        self.shelf, self.spent = BaselineShelf(), self.few.n
        self.clean = run_model(model, self.few, batch_size=size)
        self.full = self._losses(self.clean)
        self.empty = self._losses(self._logits(Circuit.empty(model.graph)))

    def _logits(self, circuit: Circuit) -> Tensor:
        self.spent += self.few.n
        return run_circuit(
            circuit,
            self.model,
            self.few,
            ablation=self.settings.ablation,
            batch_size=self.size,
            seed=self.settings.seed,
            shelf=self.shelf,
        )

    def _losses(self, logits: Tensor) -> list[float]:
        return [float(each(logits, self.clean, self.batch).mean()) for each in self.objectives]

    def kept(self, circuit: Circuit) -> tuple[float, float]:
        """Shares of margin and distribution that a circuit keeps: the empty one 0, the model 1."""
        losses = self._losses(self._logits(circuit.connected(warn=False)))
        margin, distribution = (
            1 - (loss - full) / (empty - full) if empty != full else math.nan
            for loss, full, empty in zip(losses, self.full, self.empty, strict=True)
        )
        return margin, distribution


def chosen_lean(kept: Callable[[float, int], tuple[float, float]], n_items: int) -> float:
    """The weight that keeps .9 of the margin, at the size where the middle one keeps .9 of the distribution.

    Args:
        kept: From a weight and a size to the shares of margin and distribution that are kept.
        n_items: Edges, nodes or neurons of the graph.
    """
    low, high = LEANS
    middle = (low + high) / 2
    smallest, largest = (math.log(max(1, n_items * share)) for share in SIZES)
    tried: dict[float, tuple[float, float]] = {}
    for _ in range(SIZE_RUNS):
        size = (smallest + largest) / 2
        shares = kept(middle, round(math.exp(size)))
        if shares[1] >= SHARE:
            largest, tried[middle] = size, shares
        else:
            smallest = size
    lean, n_chosen = middle, round(math.exp(largest))
    for _ in range(LEAN_RUNS):
        if lean not in tried:
            tried[lean] = kept(lean, n_chosen)
        low, high = (lean, high) if tried[lean][0] < SHARE else (low, lean)
        lean = (low + high) / 2
    return min(tried, key=lambda lean: abs(SHARE - tried[lean][0]) - tried[lean][1])
