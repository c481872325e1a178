"""Random pairs whose clean and corrupted prompts differ in length, with and without spans."""

import torch
from torch import Tensor

from assay.models import Model
from assay.tasks import PairTask, align_prompts


CLEAN, CORRUPTED = (7, 5, 6, 7), (8, 5, 4, 7)
# By their ends; one by one; a span that only the clean side has; a span that moves inside equal lengths.
SPANS = ((), (), (((1, 3), (1, 1)),), (((1, 3), (1, 2)), ((4, 5), (3, 5))))


def unequal_task(model: Model, rows: slice = slice(None)) -> PairTask:
    """Four pairs, or some of them; what stands behind a prompt is random too, so that reading it shows."""
    generator = torch.Generator().manual_seed(1)

    def ids(*shape: int) -> Tensor:
        return torch.randint(1, model.n_vocab, shape, generator=generator)

    answers = ids(4, 1)
    task = PairTask(
        clean=ids(4, 7),
        corrupted=ids(4, 8),
        answers=answers,
        wrong=(answers + 1 + torch.arange(2)) % model.n_vocab,
        lengths=torch.tensor(CLEAN),
        corrupted_lengths=torch.tensor(CORRUPTED),
        alignment=align_prompts(CLEAN, CORRUPTED, SPANS),
    )
    return task.subset(range(4)[rows])
