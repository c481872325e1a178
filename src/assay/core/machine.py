"""What of this machine may be used: cores and memory, limits of containers included.

A container, or a service with a quota, sees the whole machine in `/proc` and in the count of cores. Its
limits are in its control group and in the groups around it, of which the strictest holds.

References:
    Linux kernel, Documentation/admin-guide/cgroup-v2.rst (`cpu.max`, `memory.max`) and cgroup-v1.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path


_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


_DECODING: ContextVar[int | None] = ContextVar("decoding_workers", default=None)


@contextmanager
def decoding_with(workers: int | None) -> Iterator[None]:
    """Decode images in so many processes wherever a reader is not told a number; None: as is usual."""
    before = _DECODING.set(workers)
    try:
        yield
    finally:
        _DECODING.reset(before)


def decoding_workers() -> int | None:
    """What `decoding_with` says; None outside of it."""
    return _DECODING.get()


def usable_cores() -> int:
    """Cores that this process may use, at least 1: those it may run on, less where a quota gives it less.

    A quota of 2.5 cores counts as 3, so that none of it is lost.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups("cpu"):
        quota, period = _cpu_quota(group)
        if quota > 0 and period > 0:
            cores = min(cores, math.ceil(quota / period))
    return max(1, cores)


def free_memory() -> int:
    """Bytes of main memory that can be had without swapping, at least 0."""
    import psutil  # not above: commands show their help without it

    free = int(psutil.virtual_memory().available)
    for group in _groups("memory"):
        limit = _number(group / "memory.max", group / "memory.limit_in_bytes")
        used = _number(group / "memory.current", group / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            free = min(free, limit - used + _given_back(group))
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


def _cpu_quota(group: Path) -> tuple[int, int]:
    """Microseconds of computing in a period of so many; 0 where nothing is limited."""
    text = _text(group / "cpu.max")
    if text is not None:
        quota, _, period = text.partition(" ")
        return (0, 0) if quota == "max" else (int(quota), int(period or 100_000))
    return _number(group / "cpu.cfs_quota_us") or 0, _number(group / "cpu.cfs_period_us") or 0


def _given_back(group: Path) -> int:
    """Bytes of cached files that the kernel gives back before it refuses memory."""
    text = _text(group / "memory.stat") or ""
    facts = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    return int(facts.get("total_inactive_file", facts.get("inactive_file", 0)))


def _number(*files: Path) -> int | None:
    """The number in the first of these files that is there; None for `max`."""
    text = next((text for file in files if (text := _text(file)) is not None), None)
    return None if text is None or text == "max" else int(text)


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return None


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
