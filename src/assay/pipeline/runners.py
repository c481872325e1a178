"""Who works on a store, by a name that tells others on the same machine whether it still lives."""

import contextlib
import os
import secrets
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from assay.core.errors import AssayError, AssayWarning
from assay.store import ClaimBook


BEAT_SECONDS = 1.0  # between two signs of life for others on the store
LEAVE_SECONDS = 5.0  # how long the end of a runner waits for a store that is away


def runner_name() -> str:
    """Name of a runner in this process, its own among all: machine, process, something random."""
    return f"{_machine()}/{os.getpid()}/{secrets.token_hex(8)}"


def is_gone(runner: str) -> bool:
    """Whether a runner's process on this machine has ended; False for other machines, which cannot be asked.

    A process number that was given out anew counts as alive: others then wait until the runner's silence has
    lasted, as they do for other machines.
    """
    machine, _, rest = runner.partition("/")
    number = rest.partition("/")[0]
    if machine != _machine() or not number.isdecimal():
        return False
    try:
        return psutil.Process(int(number)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def bury(claims: ClaimBook) -> None:
    """Give back what runners of this machine hold whose processes have ended: killed ones, above all."""
    for runner in set(claims.holders().values()):
        if is_gone(runner):
            claims.leave(runner)


@contextlib.contextmanager
def living(claims: ClaimBook, runner: str) -> Iterator[None]:
    """Show signs of life until the block ends, then give back what the runner holds.

    Where the store does not answer, the end does not wait for it: others take over once there is no sign of
    life.

    Warns:
        AssayWarning: At the end, of the first unexpected error of a sign; those that follow are tried anyway.
    """
    over, errors = threading.Event(), list[Exception]()

    def show(sign: Callable[[str], None]) -> None:
        try:
            with contextlib.suppress(AssayError):  # the store is away: what stays so fails the work
                sign(runner)
        except Exception as error:  # noqa: BLE001 - a thread that ended would give all work away unseen
            if not errors:
                errors.append(error)

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            show(claims.beat)
        show(claims.leave)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LEAVE_SECONDS)
        if errors:
            warnings.warn(
                f"a sign of life of this process failed with {errors[0]!r}; other processes may compute the "
                "same parts again, or wait until what it held has no sign of life, which changes no result",
                AssayWarning,
                stacklevel=3,
            )


def leave(claims: ClaimBook, runner: str) -> None:
    """Give back what is claimed; should that fail, others take it over once there is no sign of life."""
    with contextlib.suppress(AssayError):
        claims.leave(runner)


def _machine() -> str:
    """Host and, on Linux, its boot and the namespace of its process numbers: hosts may share a name."""
    host = socket.gethostname().replace("/", "-")[:40]
    namespace, boot = Path("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id")
    if not (namespace.exists() and boot.exists()):
        return host
    return f"{host}:{boot.read_text().strip()}:{namespace.stat().st_ino}"
