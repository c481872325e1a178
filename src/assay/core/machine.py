"""Cores and memory that may be used, container limits included, and two settings that readers look up.

A container, or a service with a quota, sees the whole machine in `/proc` and in the count of cores. Its
limits are in its control group and in the groups around it, of which the strictest holds.

References:
    Linux kernel, Documentation/admin-guide/cgroup-v2.rst (`cpu.max`, `memory.max`).
"""

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar


_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
T = TypeVar("T")

# Threads that decode images where a reader does not set them (None: the usual number), and whether images are
# turned as their EXIF orientation says.
DECODING: ContextVar[tuple[int | None, bool]] = ContextVar("decoding", default=(None, True))
# Called by each pass over a task after every batch, with the prompts read so far and their total.
COUNTING: ContextVar[Callable[[int, int], object]] = ContextVar("counting", default=lambda done, n: None)


@contextmanager
def entered(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give a context variable another value inside the `with` block."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


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
    with suppress(OSError):
        return file.read_text(encoding="ascii").strip()
    return ""
