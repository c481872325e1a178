"""Tasks read at several positions, and the same reads as prompts of their own: their slow twin."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from assay.models import Model
from assay.tasks import PairTask


def several_reads(model: Model, n: int = 4, length: int = 7, reads: int = 3, *, ragged: bool) -> PairTask:
    """Random prompts, each read at some positions with answers of its own; the last ones may have fewer."""
    generator = torch.Generator().manual_seed(3)

    def ids(*shape: int) -> Tensor:
        return torch.randint(1, model.n_vocab, shape, generator=generator)

    positions = torch.stack([torch.randperm(length, generator=generator)[:reads] for _ in range(n)])
    answers = ids(n, reads, 1)
    wrong = (answers + 1 + torch.arange(2)) % model.n_vocab
    if ragged:
        positions[-1, 1:] = positions[-2, 0] = -1
        wrong[0, 1] = -1  # a read position without a wrong answer
        wrong[1, 0, 1] = -1
    filled = positions < 0
    answers[filled], wrong[filled] = -1, -1
    lengths = torch.full((n,), length)
    return PairTask(
        clean=ids(n, length),
        corrupted=ids(n, length),
        answers=answers,
        wrong=wrong,
        positions=positions,
        lengths=lengths,
    )


@dataclass(frozen=True)
class OneRead:
    """A task of one row per read position.

    Attributes:
        task: The rows.
        row: The prompt that each belongs to.
    """

    task: PairTask
    row: Tensor

    def mean(self, values: Tensor | np.ndarray) -> Tensor:
        """Mean over the reads of each prompt, by a plain loop."""
        numbers = torch.as_tensor(values)
        prompts = sorted(set(self.row.tolist()))
        return torch.stack([numbers[self.row == prompt].mean(0) for prompt in prompts])


def one_read_each(task: PairTask, *, with_wrong: bool = False) -> OneRead:
    """Each read position as a prompt of its own; those without a wrong answer left out if told."""
    counted = task.positions >= 0
    assert task.wrong is not None
    if with_wrong:
        counted = counted & (task.wrong >= 0).any(2)
    row, place = counted.nonzero(as_tuple=True)
    wrong = task.wrong[row, place]
    return OneRead(
        PairTask(
            clean=task.clean[row],
            corrupted=task.corrupted[row],
            answers=task.answers[row, place],
            wrong=wrong if bool((wrong >= 0).any(1).all()) else None,
            positions=task.positions[row, place],
            lengths=task.lengths[row],
        ),
        row,
    )
