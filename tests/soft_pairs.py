"""Pairs of prompts, ready for runs under real-valued masks with resampling."""

import torch
from torch import Tensor

from assay.execution import ABLATIONS
from assay.execution.soft import SoftPairs, SoftRunner
from assay.tasks import PairTask


def soft_pairs(
    runner: SoftRunner, clean: Tensor, corrupted: Tensor, positions: Tensor | None = None
) -> SoftPairs:
    """Clean and corrupted prompts, read at their last position or where it is said."""
    read = torch.full((len(clean),), clean.shape[1] - 1) if positions is None else positions
    answers = torch.zeros(len(clean), 1, dtype=torch.long)
    task = PairTask(clean=clean, corrupted=corrupted, answers=answers, positions=read, lengths=read + 1)
    prepared = ABLATIONS["resample"].prepare(runner.model, task, batch_size=task.n, seed=0)
    return runner.prepare_batch(next(iter(task.batches(task.n))).to(runner.model.device), prepared)
