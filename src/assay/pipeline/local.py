"""Worker processes on this machine: warmed once, used for many jobs, replaced when they end or are ended."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any

import psutil

from assay.core.errors import AssayError
from assay.pipeline.failures import Fault
from assay.pipeline.limits import Limits
from assay.pipeline.schedule import Executor
from assay.pipeline.worker import Ended, Ready, Work, reference, serve


if TYPE_CHECKING:
    from assay.pipeline.jobs import Job


WARM_SECONDS = 600.0  # a worker that has not loaded its work by then is replaced
MEMORY_SECONDS = 0.1  # between two looks at how much workers hold
END_SECONDS = 2.0  # that idle workers get to end by themselves
MOST_STILLBORN = 5  # workers in a row that end before they are ready


class LocalWorkers(Executor):
    """Processes of their own, begun by `spawn`: a forked PyTorch can hang.

    Args:
        n: How many; default: what the limits say.
        devices: CUDA devices dealt to the workers in turn. A worker sees its own alone, as `cuda:0`.
    """

    def __init__(self, n: int | None = None, devices: Sequence[str] = ()) -> None:
        self._n, self._devices = n, devices
        self._workers: list[_Process] = []
        self._ended: list[Ended] = []
        self._stillborn = 0

    def start(self, work: Work, location: str, limits: Limits, most: int) -> None:
        self._arguments = (reference(work), location, limits.threads)
        self._memory = limits.memory
        many = min(self._n or limits.n_workers, most)
        self._workers = [self._process(place) for place in range(many)]

    @property
    def free(self) -> int:
        return sum(worker.idle for worker in self._workers)

    def submit(self, job: "Job") -> None:
        worker = next(worker for worker in self._workers if worker.idle)
        worker.give(job)

    def wait(self, seconds: float) -> list[Ended]:
        pause = seconds if self._memory is None else min(seconds, MEMORY_SECONDS)
        if not self._ended:
            wait([part for worker in self._workers for part in worker.waitable], pause)
        for place, worker in enumerate(self._workers):
            ended = worker.hear()
            if ended is None and self._memory is not None and worker.holds > self._memory:
                ended = worker.end_above(self._memory)
            if ended is not None:
                self._ended.append(ended)
            if worker.overdue:
                worker.kill()
            if worker.gone:
                self._check_births(worker)
                self._workers[place] = self._process(place)
            elif worker.ready:
                self._stillborn = 0
        found, self._ended = self._ended, []
        return found

    def stop(self, job: str) -> None:
        for place, worker in enumerate(self._workers):
            if worker.job is not None and worker.job.id == job:
                worker.kill()
                self._workers[place] = self._process(place)

    def close(self) -> None:
        for worker in self._workers:
            worker.dismiss()
        until = time.monotonic() + END_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            worker.kill()
        self._workers = []

    def _process(self, place: int) -> "_Process":
        device = self._devices[place % len(self._devices)] if self._devices else None
        return _Process((*self._arguments, None if device is None else visible_index(device)))

    def _check_births(self, worker: "_Process") -> None:
        """Replacing workers that cannot come up would go on for ever."""
        if worker.broken:
            raise AssayError(f"workers cannot load their work:\n{worker.broken}")
        self._stillborn += not worker.ready
        if self._stillborn >= MOST_STILLBORN:
            raise AssayError(
                f"{self._stillborn} workers in a row ended before they were ready, the last with "
                f"{_status(worker.process.exitcode)}; check the memory for {len(self._workers)} of them"
            )


def visible_index(device: str) -> str:
    """A device such as `cuda:1` for `CUDA_VISIBLE_DEVICES`, which may be set for this process already."""
    index = int(device.partition(":")[2] or 0)
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[index] if index < len(visible) else str(index)


class _Process:
    """One process with the connection to it and the job it runs."""

    def __init__(self, arguments: tuple[str, str, int, str | None]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=serve, args=(theirs, *arguments), name="assay-worker", daemon=True
        )
        self.process.start()
        theirs.close()  # so that its end is heard
        self.begun = time.monotonic()
        self.ready = False
        self.broken = ""
        self.job: "Job | None" = None
        self.gone = False

    @property
    def idle(self) -> bool:
        return self.ready and self.job is None and not self.gone

    @property
    def waitable(self) -> Iterable[Connection | int]:
        return () if self.gone else (self.connection, self.process.sentinel)

    @property
    def overdue(self) -> bool:
        return not self.ready and not self.gone and time.monotonic() - self.begun > WARM_SECONDS

    @property
    def holds(self) -> int:
        """Bytes resident, of a worker that runs a job."""
        if self.job is None or self.gone:
            return 0
        try:
            return int(psutil.Process(self.process.pid).memory_info().rss)
        except psutil.NoSuchProcess:  # its end is heard next time
            return 0

    def give(self, job: "Job") -> None:
        self.job = job
        try:
            self.connection.send(job)
        except OSError:  # it ended just now, which is heard next time
            return

    def hear(self) -> Ended | None:
        """What the worker says; its own end ends its job too."""
        if self.gone:
            return None
        message: Any = None
        try:
            if self.connection.poll():
                message = self.connection.recv()
            elif self.process.is_alive():
                return None
        except (EOFError, OSError):
            message = None
        if isinstance(message, Ended):
            self.job = None
            return message
        if isinstance(message, Ready):
            self.broken, self.ready = message.broken, not message.broken
            if self.broken:
                self.kill()
            return None
        job = self.job
        self.kill()
        if job is None:
            return None
        why = f"the worker died ({_status(self.process.exitcode)})"
        return Ended(job=job.id, fault=Fault(kind="died", message=why))

    def end_above(self, budget: int) -> Ended:
        assert self.job is not None
        held = self.holds or budget
        ended = Ended(
            job=self.job.id,
            fault=Fault(
                kind="memory",
                message=f"the worker held {held / 2**20:,.0f} MiB, above its budget of "
                f"{budget / 2**20:,.0f} MiB (limits.memory)",
            ),
        )
        self.kill()
        return ended

    def dismiss(self) -> None:
        """Ask an idle worker to end; end another."""
        if self.idle:
            try:
                self.connection.send(None)
            except OSError:  # gone already
                self.kill()
        else:
            self.kill()

    def kill(self) -> None:
        """End the process and all that it began."""
        if self.gone:
            return
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            below = []
        self.process.kill()
        self.process.join()
        for child in below:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        self.connection.close()
        self.job = None
        self.gone = True


def _status(code: int | None) -> str:
    """A sentence on an exit status."""
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"
