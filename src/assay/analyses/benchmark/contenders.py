"""Which methods compete, each with its options, and one competitor's turn: its scores and what they cost.

Cost is seconds, the same in plain forward passes, and the memory that a method adds. A forward-equivalent is
the time of one plain forward pass over the same examples, in batches of the same size, with logits at every
position; it is timed beside the method in the same run.
"""

import contextlib
import ctypes
import statistics
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from assay.analyses.benchmark.results import BenchmarkRow
from assay.circuits import EdgeScores
from assay.core.errors import AssayError, AssayWarning, InputError, unknown_name
from assay.core.record import plain
from assay.discovery.edges import discover
from assay.discovery.edges.method import METHODS, get_method
from assay.models import Model
from assay.tasks import Task


# Arguments of `discover` that a benchmark may set method by method.
SHARED_OPTIONS = ("steps", "quadrature", "objective", "batch_size")
# Information-flow routes are grown from the logits, as published; of other methods, the best edges are taken.
GREEDY = ("ifr",)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One competitor.

    Attributes:
        name: What results call it: the key of its method, or `KEY@WORD` where one method enters twice.
        key: Registered key of the method.
        options: Keyword arguments of `discover`: options of the method, and `steps`, `quadrature`,
            `objective`, `batch_size`.
    """

    name: str
    key: str
    options: Mapping[str, Any] = field(default_factory=dict)


def choose_entries(
    methods: Sequence[str] | None = None, options: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[Contender, ...]:
    """The competitors that names and options describe, checked before any work is done.

    Args:
        methods: Keys of registered methods; `KEY@WORD` enters the method KEY under a name of its own, so that
            one method can compete with two settings. Default: every registered method, in order of
            registration, and every `KEY@WORD` that `options` names.
        options: Options by name of the competitor, e.g. `{"ugs": {"updates": 300}}`.

    Raises:
        UnknownNameError: For a method or option that does not exist; near matches are named.
        InputError: For a method named twice, none at all, or options of one that does not compete.

    Example:
        >>> entries = choose_entries(["eap", "eap-ig-inputs@ten"], {"eap-ig-inputs@ten": {"steps": 10}})
        >>> [each.key for each in entries]
        ['eap', 'eap-ig-inputs']
    """
    own_options = dict(options or {})
    variants = [name for name in own_options if "@" in name]
    names = [*METHODS, *variants] if methods is None else list(methods)
    if not names:
        raise InputError("methods is empty; name at least one, or leave it out to judge every method")
    entries = []
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"method {name!r} is named twice; name the second, e.g. {name}@second")
        key = name.partition("@")[0]
        settings = dict(own_options.pop(name, {}))
        METHODS[key]
        get_method(key, **{each: value for each, value in settings.items() if each not in SHARED_OPTIONS})
        entries.append(Contender(name=name, key=key, options=settings))
    if own_options:
        raise unknown_name("method with options among those judged", next(iter(own_options)), names)
    return tuple(entries)


# ---- cost ----


TURNS, LEAST_SECONDS, MOST_TURNS = 3, 0.2, 25  # of the plain pass: its median is the unit
LOGIT_BYTES = 2**28  # logits that a plain pass holds at a time
_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


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
def measured(model: Model) -> Iterator[dict[str, Any]]:
    """Measures the work done inside; the record is filled in when it ends.

    `seconds` is by the clock of `clock_of`. `peak_memory` is the growth of the peak of allocated bytes over
    what was allocated before: of the accelerator where the model is on one, else of the process's resident
    memory; None where it cannot be known.

    Notes:
        On a CPU, memory is the growth of the peak resident memory over the resident memory at the start.
        Memory that the allocator holds free is handed back first, since work that finds it would seem to need
        none. It counts pages, allocator overhead included, and needs Linux; elsewhere it is None.
    """
    cost: dict[str, Any] = {}
    before, started = _start_peak(model), now(model)
    yield cost
    cost["seconds"] = now(model) - started
    cost["peak_memory"] = None if before is None else max(0, _peak(model) - before)


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
    _plain(model, task, batch_size)
    turns: list[float] = []
    while len(turns) < TURNS or (sum(turns) < LEAST_SECONDS and len(turns) < MOST_TURNS):
        started = now(model)
        _plain(model, task, batch_size)
        turns.append(now(model) - started)
    return statistics.median(turns)


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


# ---- a turn ----


def take_turn(
    entry: Contender, model: Model, task: Task, **asked: Any
) -> tuple[BenchmarkRow, EdgeScores | None]:
    """Let one method score the edges; a refusal of these settings is a result, not a failure.

    Args:
        entry: The method; its options win over `asked`.
        model: The model.
        task: The examples, bound to the model.
        asked: Arguments of `discover`: objective, ablation, batch_size, seed.

    Returns:
        What it did and what that cost, and its scores: None where it gave none, the row says why. Errors that
        are not the package's own pass through.
    """
    with warnings.catch_warnings(record=True) as caught, measured(model) as cost:
        warnings.simplefilter("always")
        scores, reason = None, None
        try:
            scores = discover(model, task, entry.key, **asked | dict(entry.options))
        except AssayError as error:
            reason = str(error)
    said = (str(each.message) for each in caught if issubclass(each.category, AssayWarning))
    row = BenchmarkRow(
        name=entry.name,
        method=entry.key,
        options=plain(entry.options),
        selection="greedy" if entry.key in GREEDY else "top",
        reason=reason,
        warnings=tuple(dict.fromkeys(said)),
    )
    if scores is None:
        return row, None
    details: dict[str, Any] = plain(dict(scores.details))
    row = replace(
        row,
        objective=str(scores.provenance.get("objective", "")) or None,
        passes=dict(details.pop("passes", {})),
        details={key: value for key, value in details.items() if key != "seconds"},
        **cost,
    )
    return row, scores
