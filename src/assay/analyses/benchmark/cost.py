"""What a method costs: seconds, the same in plain forward passes, and the memory that it adds.

A forward-equivalent is the time of one plain forward pass over the same examples, in batches of the same
size, with logits at every position; it is timed beside the method in the same run.
"""

import contextlib
import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from assay.models import Model
from assay.tasks import Task


TURNS, LEAST_SECONDS, MOST_TURNS = 3, 0.2, 25  # of the plain pass: its median is the unit
LOGIT_BYTES = 2**28  # logits that a plain pass holds at a time
_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@dataclass(kw_only=True)
class Cost:
    """Cost of one piece of work; filled in when it ends.

    Attributes:
        seconds: By the clock of `clock_of`; NaN until the work is done.
        peak_bytes: Growth of the peak of allocated memory over what was allocated before: of the accelerator
            where the model is on one, else of the process's resident memory. None where it cannot be known.
    """

    seconds: float = float("nan")
    peak_bytes: int | None = None


def clock_of(model: Model) -> str:
    """Which clock times work on this model: `processor` or `wall`.

    Processor time is what other programs on the machine cannot change. Where one thread computes, it is the
    time that passes; with several threads, or an accelerator, only the wall clock says how long one waits.
    """
    return "processor" if model.device.type == "cpu" and torch.get_num_threads() == 1 else "wall"


def now(model: Model) -> float:
    """Seconds on the clock of `clock_of`, after everything queued on the device is done."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.process_time() if clock_of(model) == "processor" else time.perf_counter()


@contextlib.contextmanager
def measured(model: Model) -> Iterator[Cost]:
    """Measures the work done inside.

    Notes:
        On a CPU, memory is the growth of the peak resident memory over the resident memory at the start.
        Memory that the allocator holds free is handed back first, since work that finds it would seem to need
        none. It counts pages, allocator overhead included, and needs Linux; elsewhere it is None.
    """
    cost = Cost()
    before = _start_peak(model)
    started = now(model)
    yield cost
    cost.seconds = now(model) - started
    if before is not None:
        cost.peak_bytes = max(0, _peak(model) - before)


def _start_peak(model: Model) -> int | None:
    """Bytes in use now, from which the peak will be counted; None where peaks cannot be measured."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
        torch.cuda.reset_peak_memory_stats(model.device)
        return int(torch.cuda.memory_allocated(model.device))
    if model.device.type != "cpu" or not _CLEAR.exists():
        return None
    with contextlib.suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR.write_text("5", encoding="ascii")  # the peak starts anew at what is resident
    except OSError:  # a system that does not allow it
        return None
    return _status("VmRSS")


def _peak(model: Model) -> int:
    if model.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(model.device))
    return _status("VmHWM")


def _status(name: str) -> int:
    """A memory figure of this process in bytes."""
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    line = next(line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def plain_seconds(model: Model, task: Task, batch_size: int) -> float:
    """Seconds of one plain forward pass over every example, with logits at every position.

    The median of at least three turns after one to warm up. An image classifier gives its one row of logits.

    Args:
        model: The model.
        task: The examples, bound to the model.
        batch_size: Examples per pass.
    """
    _turn(model, lambda: _plain(model, task, batch_size))
    turns: list[float] = []
    while len(turns) < TURNS or (sum(turns) < LEAST_SECONDS and len(turns) < MOST_TURNS):
        turns.append(_turn(model, lambda: _plain(model, task, batch_size)))
    return statistics.median(turns)


def _turn(model: Model, run: Callable[[], None]) -> float:
    started = now(model)
    run()
    return now(model) - started


@torch.no_grad()
def _plain(model: Model, task: Task, batch_size: int) -> None:
    for batch in task.batches(batch_size):
        hidden = model.forward(batch.clean.to(model.device))
        if model.vision is not None:
            model.vision.logits(model.module, hidden)
            continue
        rows = max(1, LOGIT_BYTES // (4 * model.n_vocab * hidden.shape[1]))
        for part in hidden.split(rows):
            model.unembed(part)
