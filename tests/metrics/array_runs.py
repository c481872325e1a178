"""Runs made of given logits: what a metric sees, without a model."""

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from assay.circuits import Circuit
from assay.execution import CircuitRuns
from assay.execution.ablation import Resample
from assay.models import load_model
from assay.objectives import get_objective
from assay.tasks import PairTask


MODEL = load_model(
    GPT2LMHeadModel(
        GPT2Config(vocab_size=5, n_positions=4, n_embd=4, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )
)
GRAPH = MODEL.graph


def table(rows: Any) -> Tensor:
    return torch.as_tensor(np.asarray(rows, dtype=np.float64))


class ArrayRuns(CircuitRuns):
    """Logits `[n, d_vocab]` by run; `others` gives those of further circuits by hash."""

    ablation = "resample"
    ablation_object = Resample()
    objective = ""

    def __init__(
        self,
        *,
        answers: Sequence[Sequence[int]],
        wrong: Sequence[Sequence[int]] | None = None,
        circuit: Circuit | None = None,
        others: dict[str, Any] | None = None,
        objective: str = "logit_diff",
        tokenizer: Any = None,
        seed: int = 0,
        **logits: Any,
    ) -> None:
        self.given = {which: table(rows) for which, rows in logits.items()}
        self.others = {key: table(rows) for key, rows in (others or {}).items()}
        ids = torch.arange(len(answers))[:, None].repeat(1, 3)
        self.task = PairTask(
            clean=ids,
            corrupted=ids + 1,
            answers=torch.tensor(answers),
            wrong=None if wrong is None else torch.tensor(wrong),
            objective=objective,
        )
        self.model = MODEL if tokenizer is None else SimpleNamespace(tokenizer=tokenizer, post_norm="exact")
        self.circuit = circuit or Circuit.full(GRAPH)
        self.objective = objective
        self.seed = seed
        self.batch_size = None
        self.provenance = {"model": "arrays", "circuit": self.circuit.hash, "seed": seed}
        self.asked: list[str] = []

    def logits(self, which: str) -> Tensor:
        self.asked.append(which)
        return self.given[which]

    def margins(self, which: str) -> np.ndarray:
        return self.margins_from(self.logits(which))

    def of(self, circuit: Circuit) -> "ArrayRuns":
        other = copy.copy(self)
        other.circuit = circuit
        kept = {"keep": circuit.hash, "drop": circuit.dropped().hash}
        other.given = self.given | {
            which: self.others[key] for which, key in kept.items() if key in self.others
        }
        return other

    def logits_of(self, circuit: Circuit) -> Tensor:
        self.asked.append(circuit.hash)
        return self.others[circuit.hash]

    def margins_of(self, circuit: Circuit) -> np.ndarray:
        return self.margins_from(self.logits_of(circuit))

    def margins_from(self, logits: Tensor) -> np.ndarray:
        batch = next(iter(self.task.batches(self.task.n)))
        return -get_objective(self.objective)(logits, self.given["full"], batch).numpy()


def with_margins(answer_over_wrong: Sequence[float]) -> list[list[float]]:
    """Logits over four outputs in which output 0 leads output 1 by the given margins."""
    return [[margin, 0.0, -1.0, -2.0] for margin in answer_over_wrong]


def margin_runs(**margins: Sequence[float]) -> ArrayRuns:
    """Runs with the given margins of answer 0 over the wrong answer 1."""
    n = len(next(iter(margins.values())))
    logits = {which: with_margins(values) for which, values in margins.items()}
    return ArrayRuns(answers=[[0]] * n, wrong=[[1]] * n, **logits)
