"""A reader under watch: what it writes, runs, allocates and how long it takes."""

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


SECONDS = 30
BYTES = 3 << 30  # above what the process has when the watch begins

_watching: list["Watch"] = []
_FORBIDDEN = frozenset(
    (
        "os.system",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.spawn",
        "os.posix_spawn",
        "subprocess.Popen",
        "pickle.find_class",
        "socket.connect",
        "socket.getaddrinfo",
        "ctypes.dlopen",
        "marshal.loads",
        "shutil.rmtree",
    )
)
# Event to the places of its paths among the arguments.
_CHANGING = {
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.link": (0, 1),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.utime": (0,),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Breach(BaseException):
    """What no file may bring about. Not an Exception: nothing may swallow it."""


class Watch:
    """What happened while a reader ran.

    Args:
        inside: The directory that may be written to; None: none may.
    """

    def __init__(self, inside: Path | None) -> None:
        self.inside = None if inside is None else inside.resolve()
        self.found: list[str] = []

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FORBIDDEN and not _imports():
            self.found.append(f"{event} {arguments!r}"[:300])
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            self._written(arguments[0], event)
        elif event in _CHANGING:
            for place in _CHANGING[event]:
                self._written(arguments[place], event)

    def _written(self, path: Any, event: str) -> None:
        if isinstance(path, int) or path in ("/dev/null", os.devnull):
            return
        place = Path(os.fsdecode(path)).resolve()
        if "__pycache__" in place.parts:
            return
        if self.inside is None or not place.is_relative_to(self.inside):
            self.found.append(f"{event} {place}")


def _imports() -> bool:
    """Whether an import is under way: modules that are loaded late read their own byte code."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for watch in _watching:
        watch.see(event, arguments)


_hooked = False


def _too_long(*_: object) -> None:
    raise Breach(f"no answer in {SECONDS} s")


@contextlib.contextmanager
def watched(inside: Path | None = None) -> Iterator[None]:
    """Fail with `Breach` for a write outside `inside`, a program, an unpickled class, a connection, or
    no end in time; memory beyond the limit fails as MemoryError does.
    """
    global _hooked
    if not _hooked:
        sys.addaudithook(_hook)  # it cannot be taken off again, so one serves all
        _hooked = True
    watch = Watch(inside)
    usual = resource.getrlimit(resource.RLIMIT_AS)
    here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (here + BYTES, usual[1]))
    _watching.append(watch)
    try:
        yield
    finally:
        _watching.remove(watch)
        resource.setrlimit(resource.RLIMIT_AS, usual)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if watch.found:
        raise Breach("; ".join(watch.found[:5]))
