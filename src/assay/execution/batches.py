"""How many examples go through a model at once: what suits the device, and what its memory holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from assay.core import machine
from assay.core.errors import InputError
from assay.execution.memory import Fit, Run, largest_batch, peak_bytes
from assay.models import Model
from assay.tasks import Task


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
    run: Run | None = None,
) -> int:
    """Examples per pass: what was asked for or suits the device, but never more than memory holds.

    Where the batch clearly fits it is taken as it is, and no time is spent on its peak. Else `run` says what
    it would take (see `peak_bytes`), and the largest batch that fits is taken.

    Args:
        model: The model.
        task: The length of its prompts counts.
        n: How many examples or pairs there are; default: those of the task.
        asked: Batch size the caller wants; a larger one than fits is split, not failed.
        bytes_per_example: Extra memory of one example beyond a plain pass, rather too much than too little.
        memory: Bytes to spend; default: 60 % of what is free on the model's device.
        run: What is done with the model and a batch of its task; without it the rough figure decides.

    Raises:
        InputError: If `asked` or `memory` is below 1, or if not even one example fits.
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
    if run is not None and most * each > memory:
        fit = largest_batch(lambda size: peak_bytes(model, task.stand_in(size), run), most, memory)
        if fit is not None:
            _check_fits(model, task, fit)
            return fit.size
    return max(1, min(memory // each, most))


def usual_batch(model: Model, task: Task) -> int:
    """Examples per pass that suit the device, where memory does not matter."""
    return max(1, TOKENS_PER_PASS // task.longest) if model.device.type == "cpu" else 4096


def _rough_pass(model: Model, task: Task, *, kept: bool) -> int:
    """Memory of a plain pass over one example, rather too much; `kept`: activations stay for later."""
    length, reads = task.longest, task.positions[0].numel()
    attention = 4 * model.n_heads * length**2 * (model.n_layers if kept else 1)  # as kernels that keep it do
    return 4 * (
        model.d_model * length * (12 * model.n_layers if kept else 24) + attention + model.n_vocab * 4 * reads
    )


def _check_fits(model: Model, task: Task, fit: Fit) -> None:
    """Refuse a run that does not even fit for a single example on its device, before it starts."""
    free = measured_free(model.device)
    spread = len({weight.device for weight in model.module.parameters()}) > 1
    if fit.size == 1 and fit.bytes > free and not spread:
        raise InputError(
            f"one example of {task.longest} positions needs about {fit.bytes / 2**30:.2f} GiB beyond the "
            f"weights of {model.id}, but {free / 2**30:.2f} GiB are free on {model.device}. Use shorter "
            "prompts, fewer steps, dtype='bfloat16', a device with more memory, or device_map='stream' where "
            "the weights take the rest"
        )


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
