"""Who runs a sweep, by a name that tells others on the same machine whether it still lives."""

import os
import secrets
import socket
from pathlib import Path

import psutil


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


def _machine() -> str:
    """Host and, on Linux, its boot and the namespace of its process numbers: hosts may share a name."""
    host = socket.gethostname().replace("/", "-")[:40]
    namespace, boot = Path("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id")
    if not (namespace.exists() and boot.exists()):
        return host
    return f"{host}:{boot.read_text().strip()}:{namespace.stat().st_ino}"
