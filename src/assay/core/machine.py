"""What of this machine may be used: cores and memory, limits of containers included.

A container, or a service with a quota, sees the whole machine in `/proc` and in the count of cores. Its
limits are in its control group and in the groups around it, of which the strictest holds.

References:
    Linux kernel, Documentation/admin-guide/cgroup-v2.rst (`cpu.max`, `memory.max`) and cgroup-v1.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path


_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


_DECODING: ContextVar[tuple[int | None, bool]] = ContextVar("decoding", default=(None, True))


@contextmanager
def decoding_with(workers: int | None = None, *, turns: bool = True) -> Iterator[None]:
    """How images are decoded while entered.

    Args:
        workers: Processes wherever a reader is not told a number; None: as is usual.
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
    return max(1, min([cores, *(quota for group in _groups("cpu") if (quota := _cpu_quota(group)))]))


def free_memory() -> int:
    """Bytes of main memory that can be had without swapping, at least 0."""
    import psutil  # not above: commands show their help without it

    free = int(psutil.virtual_memory().available)
    for group in _groups("memory"):
        limit = _text(group / "memory.max", group / "memory.limit_in_bytes")
        used = _text(group / "memory.current", group / "memory.usage_in_bytes")
        if limit.isdigit() and used:
            free = min(free, int(limit) - int(used) + _given_back(group))
    return max(0, free)


def _groups(controller: str) -> Iterator[Path]:
    """The control group of this process and those around it, of the second version and of the first."""
    try:
        rows = _OWN.read_text(encoding="utf-8").splitlines()
    except OSError:  # a system without control groups
        return
    for row in rows:
        _, names, path = row.split(":", 2)
        if names and controller not in names.split(","):
            continue
        root = _GROUPS / (controller if names else "")
        # Inside a container the path may be the host's, and only the root is mounted.
        inner = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(inner), -1, -1):
            yield root.joinpath(*inner[:depth])


def _cpu_quota(group: Path) -> int:
    """Cores that a group gives, a part of one counted as one; 0 where nothing is limited."""
    first_version = " ".join(_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    quota, _, period = (_text(group / "cpu.max") or first_version).partition(" ")
    return math.ceil(int(quota) / int(period or 100_000)) if quota.isdigit() else 0


def _given_back(group: Path) -> int:
    """Bytes of cached files that the kernel gives back before it refuses memory."""
    facts = dict(line.split(" ", 1) for line in _text(group / "memory.stat").splitlines() if " " in line)
    return int(facts.get("total_inactive_file", facts.get("inactive_file", 0)))


def _text(*files: Path) -> str:
    """The text of the first of these files that is there; empty where none is."""
    for file in files:
        with suppress(OSError):
            return file.read_text(encoding="ascii").strip()
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
