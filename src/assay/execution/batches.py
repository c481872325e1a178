"""How many examples go through a model at once: what suits the device, and what its memory holds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

from assay.core import machine
from assay.core.errors import InputError
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
    memory: int | None = None,
) -> int:
    """Examples per pass: what was asked for or suits the device, but not more than memory seems to hold.

    Args:
        model: The model.
        task: The length of its prompts counts.
        n: How many examples or pairs there are; default: those of the task.
        asked: Batch size the caller wants; a larger one than fits is split, not failed.
        bytes_per_example: Extra memory of one example beyond a plain pass, rather too much than too little.
        memory: Bytes to spend; default: 60 % of what is free on the model's device.

    Raises:
        InputError: If `asked` or `memory` is below 1.
    """
    limits: tuple[tuple[str, object], ...] = (("batch_size", asked), ("memory", memory))
    for name, value in limits:
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InputError(
                f"{name} is {value}; give a whole number of at least 1, or None to choose by free memory"
            )
    memory = free_memory(model.device) * 6 // 10 if memory is None else memory
    asked = usual_batch(model, task) if asked is None else asked
    most = max(1, min(asked, task.n if n is None else n))
    each = bytes_per_example + _rough_pass(model, task, kept=bytes_per_example > 0)
    return max(1, min(memory // each, most))


def usual_batch(model: Model, task: Task) -> int:
    """Examples per pass that suit the device, where memory does not matter."""
    return max(1, TOKENS_PER_PASS // task.length) if model.device.type == "cpu" else 4096


def _rough_pass(model: Model, task: Task, *, kept: bool) -> int:
    """Memory of a plain pass over one example, rather too much; `kept`: activations stay for later."""
    length, reads = task.length, task.positions[0].numel()
    attention = 4 * model.n_heads * length**2 * (model.n_layers if kept else 1)  # as kernels that keep it do
    return 4 * (
        model.d_model * length * (12 * model.n_layers if kept else 24) + attention + model.n_vocab * 4 * reads
    )


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


@contextmanager
def assumed_memory(n_bytes: int) -> Iterator[None]:
    """Size passes as on a machine with so many bytes free, whatever is free here.

    Passes of another size round otherwise, so results that are to have the same bytes everywhere need it.
    """
    before = _ASSUMED.set(n_bytes)
    try:
        yield
    finally:
        _ASSUMED.reset(before)


def free_memory(device: torch.device) -> int:
    """Bytes free on a device, or those that are assumed to be."""
    assumed = _ASSUMED.get()
    return measured_free(device) if assumed is None else assumed


def measured_free(device: torch.device) -> int:
    """Bytes free on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return machine.free_memory()
