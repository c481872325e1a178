"""What of this machine may be used: cores and memory, limits of containers included.

A container, or a service with a quota, sees the whole machine in `/proc` and in the count of cores. Its
limits are in its control group and in the groups around it, of which the strictest holds.

References:
    Linux kernel, Documentation/admin-guide/cgroup-v2.rst (`cpu.max`, `memory.max`).
"""

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path


_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


_DECODING: ContextVar[tuple[int | None, bool]] = ContextVar("decoding", default=(None, True))


@contextmanager
def decoding_with(workers: int | None = None, *, turns: bool = True) -> Iterator[None]:
    """How images are decoded while entered.

    Args:
        workers: Threads wherever a reader is not told a number; None: as is usual.
        turns: Turn images that are found meanwhile as their EXIF orientation says.
    """
    before = _DECODING.set((workers, turns))
    try:
        yield
    finally:
        _DECODING.reset(before)


def decoding_workers() -> int | None:
    """The `workers` of `decoding_with`; None outside of it."""
    return _DECODING.get()[0]


def turns_images() -> bool:
    """The `turns` of `decoding_with`; True outside of it."""
    return _DECODING.get()[1]


def usable_cores() -> int:
    """Cores that this process may use, at least 1: those it may run on, less where a quota gives it less.

    A quota of 2.5 cores counts as 3, so that none of it is lost.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups():
        quota, _, period = _text(group / "cpu.max").partition(" ")
        cores = min(cores, math.ceil(int(quota) / int(period or 100_000))) if quota.isdigit() else cores
    return max(1, cores)


def free_memory() -> int:
    """Bytes of main memory that can be had without swapping, at least 0."""
    import psutil  # not above: commands show their help without it

    free = int(psutil.virtual_memory().available)
    for group in _groups():
        limit, used = _text(group / "memory.max"), _text(group / "memory.current")
        if limit.isdigit() and used:
            # Cached files are given back before memory is refused.
            cached = re.search(r"^inactive_file (\d+)", _text(group / "memory.stat"), re.MULTILINE)
            free = min(free, int(limit) - int(used) + int(cached[1] if cached else 0))
    return max(0, free)


def _groups() -> Iterator[Path]:
    """The control group of this process and those around it."""
    # Inside a container the path may be the host's, and only the root is mounted.
    inner = [part for part in _text(_OWN).rpartition("0::")[2].split("/") if part not in ("", "..")]
    for depth in range(len(inner), -1, -1):
        yield _GROUPS.joinpath(*inner[:depth])


def _text(file: Path) -> str:
    """The text of a file of the system; empty where there is none."""
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""


# ---- how far a pass is --------------------------------------------------------------------------

_COUNTING: ContextVar[Callable[[int, int], object]] = ContextVar("counting", default=lambda done, n: None)


@contextmanager
def counting_examples(tell: Callable[[int, int], object]) -> Iterator[None]:
    """Tell how many prompts each pass over a task has read, and of how many, while entered."""
    before = _COUNTING.set(tell)
    try:
        yield
    finally:
        _COUNTING.reset(before)


def count_examples(done: int, n: int) -> None:
    """What `batches` of a task call behind each batch."""
    _COUNTING.get()(done, n)
