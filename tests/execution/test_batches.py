"""How many examples go through a model at once."""

import pytest
import torch

from assay.core.errors import InputError
from assay.execution.batches import choose_batch_size, with_room
from assay.models import load_model
from assay.tasks import load_task


def test_a_full_accelerator_gets_half_as_many_examples() -> None:
    tried = []

    def run(size: int) -> int:
        tried.append(size)
        if size > 2:
            raise torch.OutOfMemoryError("no room")
        return size

    assert with_room(run, 11) == 2
    assert tried == [11, 5, 2]
    with pytest.raises(torch.OutOfMemoryError):
        with_room(lambda size: run(size + 2), 4)


def test_batches_obey_what_is_asked_and_what_memory_holds() -> None:
    model = load_model("mini")
    task = load_task("ioi", model, n=20, seed=0)
    assert choose_batch_size(model, task, asked=7) == 7
    assert choose_batch_size(model, task) == 20
    assert choose_batch_size(model, task, memory=1) == 1
    with pytest.raises(InputError, match="batch_size is 0; give a whole number"):
        choose_batch_size(model, task, asked=0)
