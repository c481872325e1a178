"""The inside of a worker: loads the work once, then runs one job after another.

It knows neither models nor stores, and it is loaded before PyTorch is, so that the number of threads is set
in time.
"""

import contextlib
import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any

from assay.core.errors import AssayWarning, InputError, MissingExtraError, UnsupportedModelError
from assay.pipeline.failures import Fault


PARENT_GONE = 74  # exit status of a worker whose sweep is gone
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

Work = Callable[[Any, str], tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of one attempt of a job.

    Attributes:
        job: Its id.
        results: Ids of what it stored.
        notes: Warnings it gave.
        fault: None if it ended well.
    """

    job: str
    results: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fault: Fault | None = None


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A worker has loaded its work; with `broken`, it could not, and why."""

    broken: str = ""


def reference(work: Work) -> str:
    """A function by module and name, as a worker finds it.

    Raises:
        InputError: For a function that another process cannot import.
    """
    if work.__module__ == "__main__" or "<" in work.__qualname__:
        raise InputError(
            f"workers cannot import {work.__qualname__!r}: define it at the top level of a module other than "
            "the script itself"
        )
    return f"{work.__module__}:{work.__qualname__}"


def load_work(name: str, threads: int) -> Work:
    """The function of a reference, in a process that computes on so many threads.

    A function `warm_up` of the same module is called first: what it loads counts neither for the time limit
    of the first job nor as time that a job took.
    """
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))  # read once, when a library is loaded
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    warm_up = getattr(found, "warm_up", None)
    for part in path.split("."):
        found = getattr(found, part)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    if warm_up is not None:
        warm_up()
    work: Work = found
    return work


def attempt(work: Work, job: Any, location: str) -> Ended:
    """Run one job; whatever it raises becomes its fault."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", AssayWarning)
        try:
            results, fault = tuple(work(job, location)), None
        except Exception as error:  # noqa: BLE001 - it is reported with its job, and the worker lives on
            results, fault = (), _fault(error)
    notes = tuple(dict.fromkeys(str(each.message) for each in raised))
    return Ended(job=job.id, results=results, notes=notes, fault=fault)


def _fault(error: Exception) -> Fault:
    again = isinstance(error, InputError | MissingExtraError | UnsupportedModelError)
    return Fault(
        kind="input" if again else "error",
        message=f"{type(error).__name__}: {error}",
        trace="".join(traceback.format_exception(error)),
    )


def serve(connection: Connection, work: str, location: str, threads: int, gpu: str | None = None) -> None:
    """The life of a local worker: ready, then a job in and its end out, until the connection closes.

    Args:
        connection: To the sweep.
        work: What it loads (`reference`).
        location: Of the results.
        threads: Of each job.
        gpu: The only one it sees, as `CUDA_VISIBLE_DEVICES` names it; None: all.
    """
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal sends it to all; what it means the sweep decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with_parent()
    os.dup2(2, 1)  # stdout belongs to the results of the command
    try:
        function = load_work(work, threads)
    except Exception as error:  # noqa: BLE001 - the sweep says why no worker came up
        connection.send(Ready(broken="".join(traceback.format_exception(error))))
        return
    # A connection that ends takes the sweep with it: no one is waiting for results.
    with contextlib.suppress(EOFError, ConnectionError):
        connection.send(Ready())
        while (job := connection.recv()) is not None:
            connection.send(attempt(function, job, location))


def _end_with_parent() -> None:
    """End when the sweep does, however it ends.

    The kernel sees to it on Linux, even while C code holds the interpreter; elsewhere a thread watches.
    """
    parent = parent_process()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(PARENT_GONE)

    # Also where the kernel would: the parent may have ended before it was asked.
    threading.Thread(target=watch, name="parent", daemon=True).start()
