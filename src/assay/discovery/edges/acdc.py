"""ACDC: cut edge after edge from the logits to the input, and keep those whose loss is felt."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from assay.circuits import Circuit, EdgeScores, Level
from assay.core.errors import InputError, NonFiniteError, check_name
from assay.discovery.edges.method import METHODS, Choices, EdgeMethod, Sweep, measures
from assay.execution import CutRunner
from assay.execution.forward import check_finite
from assay.models import Model
from assay.tasks import Batch, Task


ORDERS = ("reverse", "forward")

# Positions of all hypotheses and examples in one pass. More costs cache on a CPU, fewer leave cores idle.
POSITIONS_PER_PASS = {"cpu": 4096, "cuda": 2**17}


@dataclass(frozen=True, kw_only=True)
class Acdc(EdgeMethod):
    """Greedy removal of edges whose loss is not felt.

    Starts with every edge kept and visits targets in reverse order: `logits`, then block by block from the
    last to the first the MLP, the values, keys and queries, the last head first. Each edge into the target is
    cut, given all cuts so far; it stays cut if the mean objective over all examples rises by less than
    `threshold`, else it is restored. Edges into a target without a kept way to `logits` change nothing and
    count as a rise of 0. A score is the rise that was measured when the edge was visited.

    Attributes:
        threshold: Rise that saves an edge, in the unit of the objective; at least 0. With 0 only edges whose
            loss lowers the objective are cut.
        order: Order of the sources within a target: `reverse`, the last written first, or `forward`.

    Notes:
        `scores.threshold(threshold, absolute=False)` is the circuit. `scores.details` has `n_kept`, `tested`
        (edges that were measured), `skipped_dead` (edges into dead targets), `loss` (mean objective of the
        circuit), `clean_loss` (of the whole model), `runs` (hypotheses evaluated, each at most one forward
        pass over all examples). Scores belong to the visit, so they rank edges only roughly.

    References:
        Conmy et al. 2023, arXiv:2304.14997, algorithm 1.
    """

    key: ClassVar[str] = "acdc"
    needs_gradients: ClassVar[bool] = False
    source: ClassVar[str] = "Conmy et al. 2023, arXiv:2304.14997"
    objective: ClassVar[str | None] = "kl"
    keeps_examples: ClassVar[bool] = False
    levels: ClassVar[tuple[Level, ...]] = ("edge",)

    threshold: float | int = 0.01
    order: str = "reverse"

    def check_options(self) -> None:
        """Refuse a threshold below 0 and an unknown order."""
        super().check_options()
        if math.isnan(self.threshold) or self.threshold < 0:
            raise InputError(
                f"threshold is {self.threshold}; give the rise of the objective that keeps an edge, a "
                "number of at least 0"
            )
        check_name("order", self.order, ORDERS)

    def select(self, scores: EdgeScores, k: int) -> Circuit:
        """The circuit that the search kept, whatever its size."""
        return scores.threshold(self.threshold, absolute=False)

    def sweep(self, model: Model, task: Task, settings: Choices, size: int) -> Sweep:
        return _Search(self, model, task, settings, size).run()


def _hypotheses(guess: Sequence[bool]) -> Bool[Tensor, "edges edges"]:
    """Row i cuts edge i and the edges before it that are guessed to be cut."""
    before = torch.ones(len(guess), len(guess), dtype=torch.bool).tril(-1)
    return torch.eye(len(guess), dtype=torch.bool) | (before & torch.tensor(guess))


class _Search:
    """One search: the runner, the data, what was decided so far."""

    def __init__(self, method: Acdc, model: Model, task: Task, settings: Choices, size: int) -> None:
        self.method, self.model, self.task, self.settings = method, model, task, settings
        self.graph = model.graph
        self.size = min(size, task.n)
        self.runner = CutRunner(model)
        self.total = torch.zeros(self.graph.n_sources, self.graph.n_targets, dtype=torch.float64)
        self.tested = self.dead = self.runs = 0
        self.batches: list[Batch] = []
        self.clean: list[Tensor] = []
        prepared = settings.ablation.prepare(model, task, batch_size=size, seed=settings.seed)
        for batch in task.batches(size):
            batch = batch.to(model.device)
            logits = self.runner.add(batch.clean, prepared.baseline(batch), batch.positions)
            check_finite(logits, f"{model.id} on the clean input", batch.indices)
            self.batches.append(batch)
            self.clean.append(logits)
        batches = zip(self.batches, self.clean, self.clean, strict=True)
        self.clean_loss = self.loss = sum(self._loss(*each) for each in batches)

    def run(self) -> Sweep:
        for target in reversed(range(self.graph.n_targets)):
            sources = self.graph.valid[:, target].nonzero().squeeze(1).tolist()
            if self.runner.inlet(target) is None:
                self.dead += len(sources)
            else:
                self._decide(target, sources[::-1] if self.method.order == "reverse" else sources)
        n, ablation = self.task.n, self.settings.ablation
        measured = ablation.paired or measures(ablation)
        # Decisions are made on the scores as the caller will see them.
        scores = (self.total / n).to(self.model.result_dtype)
        kept = (scores >= self.method.threshold) & self.graph.valid
        return Sweep(
            total=self.total,
            forward=n * (1.0 + measured + self.runs),
            details={
                "n_kept": int(kept.sum()),
                "tested": self.tested,
                "skipped_dead": self.dead,
                "loss": self.loss / n,
                "clean_loss": self.clean_loss / n,
                "runs": self.runs,
            },
        )

    # ---- one target -------------------------------------------------------------------------------

    def _decide(self, target: int, sources: Sequence[int]) -> None:
        """Test the edges into a target in order, several ahead of the decisions they depend on.

        Each hypothesis cuts one edge and those before it that are guessed to be cut. As far as the guesses
        turn out right it is the run of the definition; the first wrong one ends the pass, and what the rest
        of the pass says, now beside the point, is the next guess.
        """
        wanted = list(sources)
        guesses = dict.fromkeys(wanted, True)
        while wanted:
            ahead = wanted[: self._width(target)]
            guess = [guesses[row] for row in ahead]
            cuts = _hypotheses(guess)
            losses = self._losses(target, ahead, cuts)
            before, chosen, last, right = self.loss, None, 0, True
            for place, (row, guessed) in enumerate(zip(ahead, guess, strict=True)):
                rise = losses[place] - before
                cut = self._falls_short(rise)
                if right:
                    self.total[row, target] = rise
                    last, chosen = place, place if cut else chosen
                    right = cut == guessed
                else:
                    guesses[row] = cut
                before = losses[place] if guessed else before
            if chosen is not None:
                self.loss = losses[chosen]
                self.runner.cut(
                    target, [row for row, gone in zip(ahead, cuts[chosen].tolist(), strict=True) if gone]
                )
            self.tested += last + 1
            wanted = wanted[last + 1 :]

    def _falls_short(self, rise: float) -> bool:
        """Whether a rise of the summed objective is below the threshold, in the precision of the scores."""
        value = (torch.tensor(rise, dtype=torch.float64) / self.task.n).to(self.model.result_dtype)
        return bool(value < self.method.threshold)

    def _width(self, target: int) -> int:
        """How many hypotheses share a pass. The result does not depend on it."""
        inlet = self.runner.inlet(target)
        length = self.task.length if inlet is not None and inlet.everywhere else 1
        kind = "cpu" if self.model.device.type == "cpu" else "cuda"
        most = 1 + self.graph.n_edges - (self.runs - self.tested)
        return max(1, min(POSITIONS_PER_PASS[kind] // (self.size * length), most))

    def _losses(self, target: int, sources: Sequence[int], cuts: Tensor) -> list[float]:
        """Objective summed over all examples, under each hypothesis."""
        losses = [0.0] * len(cuts)
        for batch, clean, logits in zip(
            self.batches, self.clean, self.runner.logits(target, sources, cuts), strict=True
        ):
            for place, found in enumerate(logits):
                losses[place] += self._loss(batch, clean, found)
        self.runs += len(cuts)
        return losses

    def _loss(self, batch: Batch, clean: Tensor, logits: Tensor) -> float:
        loss = self.settings.objective(logits.double(), clean.double(), batch)
        total = float(loss.sum())
        if not math.isfinite(total):
            row = int(batch.indices[(~torch.isfinite(loss)).nonzero()[0, 0]])
            raise NonFiniteError(
                f"objective {self.settings.objective.key!r} is NaN or infinite for example {row} with some "
                "edges cut; use another objective or ablation, or check the model's weights and dtype"
            )
        return total


METHODS.add(Acdc.key, Acdc())
