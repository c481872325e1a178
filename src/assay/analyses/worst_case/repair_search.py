"""How better circuits are looked for: learned masks and swaps, with every circuit validated on the way."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from assay.analyses.worst_case.explain import explain
from assay.analyses.worst_case.inputs import PairSample
from assay.analyses.worst_case.row_by_row import evaluator_of
from assay.circuits import Circuit, EdgeScores
from assay.circuits.slots import check_n_edges
from assay.core.random import stream
from assay.core.record import Record, same
from assay.discovery.edges.masks import LearnedMask, MaskSettings, PairLoss, learn_mask
from assay.execution import get_ablation
from assay.execution.soft import SoftPairs, SoftRunner
from assay.models import Model
from assay.stats import certificate


Pairs = Int64[np.ndarray, "n_pairs 2"]

TAIL_FROM = 2 / 3  # share of the steps made before the tail counts
WEIGHT_OF_WORST = 0.7  # of the worst pairs against ordinary ones where edges are swapped (section 12.2)
EXPLAINED = 64  # pairs behind the scores of a swap, half of them of the worst
BATCH_SIZE = 32  # pairs of a training step, and of a pass of the search
ROUNDS = 10  # of swaps
CHECKS = 4  # times that a training's circuit is validated, all of them once the tail counts
ALPHA = 0.95  # pairs beyond this quantile are the tail


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate(Record):
    """A circuit that was validated.

    Attributes:
        circuit: The circuit.
        origin: `start`, `step 300` or `round 2`.
        mean: Mean divergence of the validation pairs.
        tail_mean: Mean of the worst share 1 - alpha of them.
        bound: Upper bound on the chosen percentile; the largest value where there are too few pairs for one.
    """

    record_layout = {
        **same("origin", "mean", "tail_mean", "bound"),
        "circuit": "circuit.hash",
        "n_edges": "circuit.n_edges",
    }

    circuit: Circuit
    origin: str
    mean: float
    tail_mean: float
    bound: float


@dataclass(kw_only=True, eq=False)
class RepairSearch:
    """The pairs, the candidates so far, and what was spent."""

    model: Model
    limit: int
    alpha: float
    percentile: float
    divergence: Any
    loss: PairLoss
    discovery: PairSample
    validation: PairSample
    seed: int
    candidates: list[Candidate] = field(default_factory=list)
    cost: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.runner = SoftRunner(self.model)
        self.generator = stream(self.seed, "repair-batches")

    # ---- judging ----------------------------------------------------------------------------------

    def run(
        self, circuit: Circuit, sample: PairSample, pairs: Pairs | None = None
    ) -> tuple[Float64[np.ndarray, " n_pairs"], Float64[np.ndarray, " n_pairs"]]:
        """Divergence of the circuit and of the empty one on pairs of a sample."""
        pairs = sample.pairs if pairs is None else pairs
        assert pairs is not None
        evaluator = evaluator_of(
            self.model,
            circuit,
            sample.clean,
            sample.corrupted,
            ablation=sample.ablation,
            carried=get_ablation(sample.ablation),
            divergence=self.divergence,
        )
        values = evaluator.pairs(pairs[:, 0].copy(), pairs[:, 1].copy())
        self.cost["circuit"] += len(pairs)
        return values.divergence, values.empty

    def validate(self, circuit: Circuit, origin: str) -> Candidate:
        """Run a circuit on the validation pairs and remember it."""
        values, _ = self.run(circuit, self.validation)
        bound = certificate(values, self.percentile).bound
        candidate = Candidate(
            circuit=circuit,
            origin=origin,
            mean=float(values.mean()),
            tail_mean=float(values[self.worst(values)].mean()),
            bound=float(values.max()) if bound is None else bound,
        )
        self.candidates.append(candidate)
        return candidate

    def worst(self, values: Float64[np.ndarray, " n"]) -> Int64[np.ndarray, " k"]:
        """Rows of the worst share 1 - alpha, at least one."""
        count = n_worst(len(values), self.alpha)
        ordered: Int64[np.ndarray, " k"] = np.argsort(-values, kind="stable")[:count]
        return ordered

    def best(self) -> Candidate:
        """Smallest bound among the candidates whose mean is not above the start's; the start is one."""
        fair = [each for each in self.candidates if each.mean <= self.candidates[0].mean]
        return min(fair, key=lambda each: (each.bound, each.mean))

    # ---- drawing ----------------------------------------------------------------------------------

    def draw(self, n: int) -> Pairs:
        """Discovery pairs: inputs of both sides crossed where they are independent."""
        sample = self.discovery
        positions = sample.clean.positions
        if sample.protocol == "iid" and bool((positions == positions[0]).all()):
            return np.stack([self.generator.integers(sample.clean.n, size=n) for _ in range(2)], axis=1)
        assert sample.pairs is not None
        chosen: Pairs = sample.pairs[self.generator.integers(len(sample.pairs), size=n)]
        return chosen

    def prepare(self, pairs: Pairs) -> SoftPairs:
        clean, corrupted = (torch.from_numpy(pairs[:, side].copy()) for side in (0, 1))
        inputs = self.discovery
        self.cost["model"] += 2 * len(pairs)
        return self.runner.prepare(
            inputs.clean.tokens[clean], inputs.corrupted.tokens[corrupted], inputs.clean.positions[clean]
        )

    def hard(self, circuit: Circuit) -> Pairs:
        """The worst share of fresh discovery pairs under a circuit."""
        pairs = self.draw(self.discovery.clean.n)
        values, _ = self.run(circuit, self.discovery, pairs)
        worst: Pairs = pairs[self.worst(values)]
        return worst

    # ---- the two methods --------------------------------------------------------------------------

    def train(
        self,
        first: Circuit,
        scores: EdgeScores | None,
        tail: float,
        settings: MaskSettings,
        batch_size: int,
    ) -> LearnedMask:
        """Learn a mask, first on the mean, then on mean and tail; validate what it has become."""
        steps, checks = settings.steps, checked_steps(settings.steps)
        worst = self.draw(0)
        n_hard = batch_size // 2 if tail > 0 else 0

        def draw(step: int) -> SoftPairs:
            if len(worst) == 0:
                return self.prepare(self.draw(batch_size))
            chosen = worst[self.generator.integers(len(worst), size=n_hard)]
            return self.prepare(np.concatenate([self.draw(batch_size - n_hard), chosen]))

        def loss(divergences: Tensor, progress: float) -> Tensor:
            self.cost["soft_forward"] += len(divergences)
            self.cost["soft_backward"] += len(divergences)
            if len(worst) == 0:
                return divergences.mean()
            ordinary, hard = divergences.tensor_split([len(divergences) - n_hard])
            return (1 - tail) * ordinary.mean() + tail * hard.mean()

        def watch(step: int, ranking: Callable[[], EdgeScores]) -> None:
            nonlocal worst
            if step in checks:
                circuit = largest_top(ranking(), self.limit)
                self.validate(circuit, f"step {step + 1}")
                if n_hard and step + 1 < steps:
                    worst = self.hard(circuit)

        if scores is None:
            scores = self.explained(first, self.draw(EXPLAINED), None)
        return learn_mask(
            self.runner,
            draw,
            self.limit,
            divergence=self.loss,
            loss=loss,
            start=scores,
            settings=settings,
            watch=watch,
            seed=self.seed,
        )

    def explained(self, circuit: Circuit, pairs: Pairs, weights: Tensor | None) -> EdgeScores:
        clean, corrupted = (torch.from_numpy(pairs[:, side].copy()) for side in (0, 1))
        inputs = self.discovery
        explanation = explain(
            circuit,
            self.model,
            inputs.clean.tokens[clean],
            inputs.corrupted.tokens[corrupted],
            positions=inputs.clean.positions[clean],
            weights=weights,
            divergence=self.loss,
        )
        self.cost["model"] += 2 * len(pairs)
        self.cost["soft_forward"] += (2 * explanation.steps + 3) * len(pairs)
        self.cost["soft_backward"] += 2 * explanation.steps * len(pairs)
        return explanation.scores()

    def swap(self, first: Circuit, rounds: int) -> None:
        """Exchange edges as long as validation pairs agree that the tail gets lighter."""
        best, count = self.candidates[0], max(1, self.limit // 12)
        for number in range(1, rounds + 1):
            worst = self.hard(best.circuit)
            worst = worst[self.generator.permutation(len(worst))[: EXPLAINED // 2]]
            pairs = np.concatenate([worst, self.draw(len(worst))])
            weights = torch.tensor([WEIGHT_OF_WORST, 1 - WEIGHT_OF_WORST]).repeat_interleave(len(worst))
            scores = self.explained(best.circuit, pairs, weights).values
            proposal = self.validate(exchanged(best.circuit, scores, count, self.limit), f"round {number}")
            if proposal.tail_mean < best.tail_mean:
                best = proposal
            elif count == 1:
                break
            else:
                count //= 2


def checked_steps(steps: int) -> set[int]:
    """Steps of a training after which its circuit is validated."""
    begin = int(TAIL_FROM * steps)
    return {begin + (steps - 1 - begin) * check // max(CHECKS - 1, 1) for check in range(CHECKS)}


def n_worst(n: int, alpha: float) -> int:
    """How many of n pairs are the worst share 1 - alpha, at least one."""
    return max(1, round((1 - alpha) * n))


def exchanged(circuit: Circuit, scores: Tensor, count: int, limit: int) -> Circuit:
    """`count` kept edges of the smallest score out, the best missing ones in, up to `limit` edges.

    The result is connected; edges that this frees are filled with the next best missing ones, as far as
    those are connected themselves.
    """
    graph = circuit.graph
    ranked = scores.double().masked_fill(~circuit.mask, torch.inf).flatten()
    mask = circuit.mask.flatten().clone()
    out = min(count, circuit.n_edges - 1)
    mask[torch.sort(ranked, stable=True).indices[:out]] = False
    candidates = graph.valid & ~circuit.mask
    missing = scores.double().masked_fill(~candidates, -torch.inf).flatten()
    order = torch.sort(missing, descending=True, stable=True).indices[: int(candidates.sum())]

    def with_first(added: int) -> Circuit:
        trial = mask.clone()
        trial[order[:added]] = True
        return Circuit(graph=graph, mask=trial.view_as(graph.valid)).connected(warn=False)

    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        if with_first(middle).n_edges <= limit:
            low = middle
        else:
            high = middle - 1
    return with_first(low)


def largest_top(scores: EdgeScores, n_edges: int) -> Circuit:
    """The strongest edges whose connected form has at most `n_edges` edges, as many as possible.

    Edges that lie on no path from `input` to `logits` cost nothing and do nothing, so the plain top k of a
    ranking often spends some of its k on them.
    """
    check_n_edges(scores.graph, n_edges)
    low, high = n_edges, scores.graph.n_edges
    # The connected part only grows with k, so bisection finds the last k that fits.
    while low < high:
        middle = (low + high + 1) // 2
        if scores.top(middle).connected(warn=False).n_edges <= n_edges:
            low = middle
        else:
            high = middle - 1
    return scores.top(low).connected(warn=False)
