"""Workers of a sweep: processes of this machine, or actors on Ray, each with threads and a GPU of its own.

Workers begin when there is a job for them and serve many. One that dies or takes too long is replaced. They
read the store and return what is to be put there; the driver alone writes. This module is loaded before
PyTorch is, so that the number of threads is set in time.
"""

import abc
import contextlib
import math
import os
import pickle
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from typing import TYPE_CHECKING, Any

from assay.core.errors import (
    AssayError,
    AssayWarning,
    InputError,
    StoreError,
    UnsupportedModelError,
    needs_extra,
)
from assay.core.machine import usable_cores


if TYPE_CHECKING:
    from assay.pipeline.jobs import Job
    from assay.pipeline.plan import Limits
    from assay.store import Content, Store

Work = Callable[["Job", "Store"], tuple[str, ...]]

READY = "ready"  # the first word of a worker: its work is loaded
READY_SECONDS = 600.0  # that loading may take, and on a cluster finding room
PARENT_GONE = 74  # exit status of a worker whose sweep is gone
LOCAL = "local"
PERMANENT = (InputError, ImportError, UnsupportedModelError)  # another attempt would fail alike
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of one attempt of a job.

    Attributes:
        job: Its id.
        contents: What is to be stored; the row of the job last, if it ended well.
        results: Ids of the results of a job that ended well.
        notes: Warnings it gave.
        fault: Empty if it ended well, else `error` (the job raised), `input` (it raised what it would raise
            again), `store` (the store cannot be reached), `died` (its worker ended) or `timeout`.
        message: The fault in one line.
        trace: Where it was raised, if it was.
    """

    job: str
    contents: "tuple[Content, ...]" = ()
    results: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fault: str = ""
    message: str = ""
    trace: str = ""


# ---- inside a worker ----------------------------------------------------------------------------


def load_work(work: bytes, threads: int) -> Work:
    """The pickled function, in a process that computes on so many threads."""
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))  # read once, when a library is loaded
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    torch.set_num_threads(threads)
    function: Work = pickle.loads(work)  # noqa: S301 - of the driver
    return function


def attempt(work: Work, job: "Job", location: str) -> Ended:
    """Run one job; whatever it raises becomes its fault."""
    from assay.store import Outbox

    contents: list[Content] = []
    end: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", AssayWarning)
        try:
            end["results"] = work(job, Outbox(location, contents))
        except StoreError as error:
            end = {"fault": "store", "message": str(error)}
        except Exception as error:  # noqa: BLE001 - it is reported with its job, and the worker lives on
            end = {"fault": "input" if isinstance(error, PERMANENT) else "error"}
            end["message"] = f"{type(error).__name__}: {error}"
            end["trace"] = "".join(traceback.format_exception(error))
    notes = tuple(dict.fromkeys(str(each.message) for each in raised))
    return Ended(job=job.id, contents=tuple(contents), notes=notes, **end)


def serve(pipe: connection.Connection, work: bytes, location: str, threads: int, gpu: str | None) -> None:
    """The life of a local worker: a job in, its end out, until the connection closes.

    Args:
        pipe: To the driver.
        work: Pickled function of jobs.
        location: Of the store.
        threads: Of each job.
        gpu: The only one it sees, as `CUDA_VISIBLE_DEVICES` names it; None: all.
    """
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    # A terminal sends it to all; the driver decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(2, 1)  # stdout belongs to the results of the command
    function = load_work(work, threads)
    with contextlib.suppress(EOFError, ConnectionError):
        pipe.send(READY)
        while True:
            pipe.send(attempt(function, pipe.recv(), location))


def _end_with_parent() -> None:
    """End when the driver does, however it ends."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(PARENT_GONE)


# ---- workers as the driver sees them ------------------------------------------------------------


class Worker(abc.ABC):
    """One place to run, and the job that it runs.

    Attributes:
        job: None while it is idle.
        ready: Whether it has loaded its work.
        deadline: When its job, or its start for that job, has taken too long; monotonic.
    """

    job: Any = None
    ready = False
    deadline = 0.0

    @abc.abstractmethod
    def send(self, job: "Job") -> None:
        """Begin a job on a ready worker."""

    @abc.abstractmethod
    def receive(self) -> Any:
        """`READY`, the end of the job, or None while there is nothing new."""

    @abc.abstractmethod
    def kill(self) -> None:
        """End it, whatever it does."""


class Workers(abc.ABC):
    """Where the jobs of one sweep run."""

    def __init__(self) -> None:
        self.workers: dict[int, Worker] = {}  # by place
        self.count = 0  # at most

    def open(self, work: Work, location: str, limits: "Limits") -> None:
        """Make ready for jobs.

        Args:
            work: Called in a worker with a job and the store as the worker sees it; importable.
            location: Of the store.
            limits: What a worker may use, and how many there are by default.
        """
        self.work, self.location, self.limits = pickle.dumps(work), location, limits
        self.count = self.room(limits)

    def room(self, limits: "Limits") -> int:
        """How many workers there may be."""
        return limits.n_workers

    @abc.abstractmethod
    def begin(self, place: int) -> Worker:
        """Begin a worker; returns before it is ready."""

    @abc.abstractmethod
    def rest(self, busy: Sequence[Any], seconds: float) -> None:
        """Rest until one of some busy workers says something, at most so long."""

    @property
    def free(self) -> int:
        """Jobs that could be begun now."""
        return self.count - sum(worker.job is not None for worker in self.workers.values())

    def submit(self, job: "Job") -> None:
        """Begin a job on a free worker."""
        worker = next((worker for worker in self.workers.values() if worker.job is None), None)
        if worker is None:
            place = min(set(range(self.count)) - self.workers.keys())
            worker = self.workers[place] = self.begin(place)
        worker.job = job
        self._send(worker)

    def _send(self, worker: Worker) -> None:
        """Hand a worker its job once it is ready."""
        seconds = (self.limits.timeout or math.inf) if worker.ready else READY_SECONDS
        worker.deadline = time.monotonic() + seconds
        if worker.ready:
            worker.send(worker.job)

    def wait(self, seconds: float) -> list[Ended]:
        """What ended since the last call; rests for at most `seconds` until something happens."""
        busy = {place: worker for place, worker in self.workers.items() if worker.job is not None}
        due = min(worker.deadline for worker in busy.values()) - time.monotonic()
        self.rest(list(busy.values()), max(0.0, min(seconds, due)))
        ends = []
        for place, worker in busy.items():
            message = worker.receive()
            if message == READY:
                worker.ready = True
                self._send(worker)
                continue
            if message is None and time.monotonic() > worker.deadline:
                limit = f"{self.limits.timeout:g} s (limits.timeout)" if worker.ready else "10 min to start"
                message = Ended(job=worker.job.id, fault="timeout", message=f"it took longer than {limit}")
            if message is not None:
                if message.fault in ("died", "timeout"):
                    self.workers.pop(place).kill()
                worker.job = None
                ends.append(message)
        return ends

    def close(self) -> None:
        """End all workers, busy ones too."""
        while self.workers:
            self.workers.popitem()[1].kill()


class LocalWorkers(Workers):
    """Processes of their own, begun by `spawn`: a forked PyTorch can hang.

    Args:
        devices: CUDA devices dealt to the workers in turn. A worker sees its own alone, as `cuda:0`.
    """

    def __init__(self, devices: Sequence[str] = ()) -> None:
        super().__init__()
        self._devices = devices

    def begin(self, place: int) -> Worker:
        """Begin a process."""
        gpu = visible_index(self._devices[place % len(self._devices)]) if self._devices else None
        return _Process(self.work, self.location, self.limits.threads, gpu)

    def rest(self, busy: Sequence[Any], seconds: float) -> None:
        """Rest until a process says something or ends."""
        connection.wait([part for worker in busy for part in (worker.pipe, worker.process.sentinel)], seconds)


def visible_index(device: str) -> str:
    """A device such as `cuda:1` for `CUDA_VISIBLE_DEVICES`, which may be set for this process already."""
    index = int(device.partition(":")[2] or 0)
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[index] if index < len(visible) else str(index)


class _Process(Worker):
    def __init__(self, *arguments: Any) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()  # so that its end is heard

    def send(self, job: "Job") -> None:
        with contextlib.suppress(OSError):  # it ended just now, which is heard next time
            self.pipe.send(job)

    def receive(self) -> Any:
        with contextlib.suppress(EOFError, OSError):
            if self.pipe.poll():
                return self.pipe.recv()
            if self.process.is_alive():
                return None
        self.process.join(timeout=5)
        code = self.process.exitcode
        status = signal.Signals(-code).name if code and code < 0 else f"exit status {code}"
        return Ended(job=self.job.id, fault="died", message=f"the worker died ({status})")

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


# ---- Ray ----------------------------------------------------------------------------------------

# No usage reports; workers see the accelerators there are.
_ENVIRONMENT = dict.fromkeys(("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"), "0")
# Read when Ray is imported: without a cluster its servers, which ask for no password, listen on the loopback
# address alone. They would on any, on Linux too.
_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class RayWorkers(Workers):
    """Actors on a Ray cluster.

    Args:
        address: `local` starts Ray on this machine, for this sweep alone; `auto` and `HOST:PORT` join a
            cluster that runs. Where Ray is in use in this process already, that is used.
        gpus: How many GPUs each asks Ray for; it then sees those alone. None: one if the cluster has any.

    Raises:
        MissingExtraError: If Ray is not installed.
    """

    def __init__(self, address: str = "auto", gpus: int | None = None) -> None:
        super().__init__()
        for name, value in (_ENVIRONMENT | (_ALONE if address == LOCAL else {})).items():
            os.environ.setdefault(name, value)
        with needs_extra("ray", "running on Ray needs Ray"):
            import ray
        self._ray: Any = ray
        self._address, self._gpus, self._own = address, gpus, False

    def connect(self, limits: "Limits") -> int:
        """Join the cluster, or start Ray here, unless that is done.

        Returns:
            GPUs that each worker asks for. This process may have none of those that the cluster has.

        Raises:
            AssayError: If the cluster cannot be reached, or has fewer than each worker was to have.
        """
        if not self._ray.is_initialized():
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
            if self._address == LOCAL:
                cpus = max(usable_cores(), limits.n_workers * limits.threads)
                options |= {"num_cpus": cpus, "object_store_memory": 100 << 20, "include_dashboard": False}
            try:
                before = signal.getsignal(signal.SIGTERM)
                self._ray.init(address=self._address, **options)
                with contextlib.suppress(ValueError):  # Ray's own handler, of the main thread, ends at once
                    signal.signal(signal.SIGTERM, before)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise AssayError(
                    f"cannot reach a Ray cluster at {self._address!r}: {error}; start one with `ray start "
                    "--head`, or use --ray local"
                ) from error
            self._own = True
        there = int(self._ray.cluster_resources().get("GPU", 0))
        self._gpus = min(1, there) if self._gpus is None else self._gpus
        if self._gpus > there:
            raise AssayError(
                f"each worker needs {self._gpus} GPU, but the Ray cluster has {there}; use --device cpu"
            )
        return self._gpus

    def room(self, limits: "Limits") -> int:
        """As many as asked for, but no more than there is room for: they would keep their jobs waiting."""
        gpus, there = self.connect(limits), self._ray.cluster_resources()
        room = int(there.get("CPU", 1) // limits.threads)
        room = min(room, int(there["GPU"] // gpus)) if gpus else room
        usual = limits.n_workers if limits.workers or self._address == LOCAL else room
        return max(1, min(usual, room))

    def begin(self, place: int) -> Worker:
        """Begin an actor."""
        actor = self._ray.remote(_Remote).options(num_cpus=self.limits.threads, num_gpus=self._gpus or None)
        return _Actor(self._ray, actor.remote(self.work, self.location, self.limits.threads))

    def rest(self, busy: Sequence[Any], seconds: float) -> None:
        """Rest until an actor answers."""
        self._ray.wait([worker.answer for worker in busy], timeout=seconds)

    def close(self) -> None:
        """End all workers, and Ray where it was started here."""
        super().close()
        if self._own:
            self._ray.shutdown()
            self._own = False


class _Actor(Worker):
    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.answer = actor.load.remote()  # what is waited for

    def send(self, job: "Job") -> None:
        self.answer = self._actor.run.remote(job)

    def receive(self) -> Any:
        if not self._ray.wait([self.answer], timeout=0)[0]:
            return None
        try:
            return self._ray.get(self.answer)
        except self._ray.exceptions.RayError as error:
            cause = str(error).strip().splitlines()[0]
            return Ended(job=self.job.id, fault="died", message=f"the worker died ({cause})")

    def kill(self) -> None:
        self._ray.kill(self._actor)


class _Remote:
    """The inside of an actor."""

    def __init__(self, work: bytes, location: str, threads: int) -> None:
        self._arguments, self._location = (work, threads), location

    def load(self) -> str:
        self._work = load_work(*self._arguments)
        return READY

    def run(self, job: Any) -> Ended:
        return attempt(self._work, job, self._location)
