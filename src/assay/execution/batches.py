"""How many examples go through a model at once: what suits the device, and what its memory holds."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TypeVar

import torch

from assay.core import machine
from assay.core.errors import check_least
from assay.models import Model
from assay.tasks import Task


T = TypeVar("T")

# Tokens per pass on a CPU: large enough for full matrix products, small enough for the cache.
TOKENS_PER_PASS = 2048


def choose_batch_size(
    model: Model,
    task: Task,
    *,
    n: int | None = None,
    asked: int | None = None,
    bytes_per_example: int = 0,
) -> int:
    """Examples per pass: what was asked for or suits the device, but not more than 60 % of the free memory.

    Args:
        model: The model.
        task: The length of its prompts counts.
        n: How many examples or pairs there are; default: those of the task.
        asked: Batch size the caller wants; a larger one than fits is split, not failed.
        bytes_per_example: Extra memory of one example beyond a plain pass, rather too much than too little.

    Raises:
        InputError: If `asked` is below 1.
    """
    if asked is None:
        asked = max(1, TOKENS_PER_PASS // task.length) if model.device.type == "cpu" else 4096
    check_least(1, batch_size=asked)
    length, kept = task.length, bytes_per_example > 0  # activations stay for later
    attention = 4 * model.n_heads * length**2 * (model.n_layers if kept else 1)  # as kernels that keep it do
    stream = model.d_model * length * (12 * model.n_layers if kept else 24)
    # Rather too much.
    each = bytes_per_example + model.result_dtype.itemsize * (stream + attention + 4 * model.n_vocab)
    return max(1, min(free_memory(model.device) * 6 // 10 // each, asked, task.n if n is None else n))


def with_room(run: Callable[[int], T], size: int) -> T:
    """What a run with some batch size gives, with half as many examples whenever an accelerator is full."""
    while True:
        try:
            return run(size)
        except torch.OutOfMemoryError:
            if size == 1:
                raise
        torch.cuda.empty_cache()
        size = max(1, size // 2)


_ASSUMED: ContextVar[int | None] = ContextVar("assumed_memory", default=None)


def assumed_memory(n_bytes: int) -> AbstractContextManager[None]:
    """Size passes as on a machine with so many bytes free, whatever is free here.

    Passes of another size round otherwise, so results that are to have the same bytes everywhere need it.
    """
    return machine.entered(_ASSUMED, n_bytes)


def free_memory(device: torch.device) -> int:
    """Bytes free on a device, or those that are assumed to be."""
    assumed = _ASSUMED.get()
    if assumed is not None:
        return assumed
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else machine.free_memory()
