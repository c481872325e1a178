"""Workers on Ray: the same plan and the same results on one machine or on many.

Each worker is an actor that loads its work once. Attempts, time-outs and order stay with the scheduler:
Ray is asked for places to run and nothing else.
"""

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError
from assay.core.extras import needs_extra
from assay.core.machine import usable_cores
from assay.core.signals import handled
from assay.pipeline.failures import Fault
from assay.pipeline.limits import Limits
from assay.pipeline.schedule import Executor
from assay.pipeline.worker import Ended, Ready, Work, attempt, load_work, reference


if TYPE_CHECKING:
    from assay.pipeline.jobs import Job

LOCAL = "local"
MOST_STILLBORN = 5  # workers in a row that end before they are ready
READY_SECONDS = 600.0  # that a cluster may take to find room for the first worker
_STORE_BYTES = 100 << 20  # Ray's own store of objects, which hold no more than names here
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage reports
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # workers see the accelerators there are
}
# Read when Ray is imported: without a cluster its servers, which ask for no password, listen on the loopback
# address alone. They would on any, on Linux too.
_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class RayWorkers(Executor):
    """Actors on a Ray cluster.

    Args:
        address: `local` starts Ray on this machine, for this sweep alone; `auto` and `HOST:PORT` join a
            cluster that runs. Where Ray is in use in this process already, that is used.
        n: How many workers; default: what the limits say, and on a cluster as many as it has room for.
        gpus: How many GPUs each asks Ray for; it then sees those alone. None: one if the cluster has any.

    Raises:
        MissingExtraError: If Ray is not installed.
    """

    def __init__(self, address: str = "auto", n: int | None = None, gpus: int | None = None) -> None:
        self._address, self._n, self._gpus = address, n, gpus
        self._ray = _ray(alone=address == LOCAL)
        self._workers: list[_Actor] = []
        self._own = False

    def start(self, work: Work, location: str, limits: Limits, most: int) -> None:
        self._work, self._location, self._limits = reference(work), location, limits
        self.connect(limits)
        self._workers = [self._actor() for _ in range(min(self._n or self._room(limits), most))]
        self._none_since = time.monotonic()
        self._stillborn = 0

    def connect(self, limits: Limits) -> int:
        """Join the cluster, or start Ray here, unless that is done.

        Returns:
            GPUs that each worker asks for. This process may have none of those that the cluster has.

        Raises:
            AssayError: If the cluster cannot be reached, or has fewer than each worker was to have.
        """
        if not self._ray.is_initialized():
            self._connect(limits)
        there = int(self._ray.cluster_resources().get("GPU", 0))
        self._gpus = min(1, there) if self._gpus is None else self._gpus
        if self._gpus > there:
            raise AssayError(
                f"each worker is to have {self._gpus} GPU, but the Ray cluster has {there}; use --device "
                "cpu, or add a node with a GPU"
            )
        return self._gpus

    @property
    def free(self) -> int:
        return sum(worker.idle for worker in self._workers)

    def submit(self, job: "Job") -> None:
        worker = next(worker for worker in self._workers if worker.idle)
        worker.job, worker.answer = job, worker.actor.run.remote(job, self._location)

    def wait(self, seconds: float) -> list[Ended]:
        pending = {
            worker.answer: place for place, worker in enumerate(self._workers) if worker.answer is not None
        }
        if not pending:
            time.sleep(seconds)
            return []
        self._ray.wait(list(pending), timeout=seconds)
        answered, _ = self._ray.wait(list(pending), num_returns=len(pending), timeout=0)
        ended = [found for answer in answered if (found := self._hear(pending[answer], answer)) is not None]
        if any(worker.ready for worker in self._workers):
            self._none_since = time.monotonic()
        elif time.monotonic() - self._none_since > READY_SECONDS:
            raise AssayError(
                f"no worker started within {READY_SECONDS:.0f} s: each needs {self._limits.threads} CPUs "
                f"and {self._limits.memory or 0:,} bytes of memory, and the cluster has "
                f"{dict(self._ray.cluster_resources())}. Lower the limits, or add nodes of that size"
            )
        return ended

    def stop(self, job: str) -> None:
        for place, worker in enumerate(self._workers):
            if worker.job is not None and worker.job.id == job:
                self._replace(place)

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers = []
        if self._own:
            self._ray.shutdown()
            self._own = False

    def _hear(self, place: int, answer: Any) -> Ended | None:
        """What a worker answered: it is ready, or its job is over; without an answer it is gone."""
        worker = self._workers[place]
        try:
            message = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            job = worker.job
            reason = str(error).strip().splitlines()[0]
            self._stillborn = 0 if worker.ready else self._stillborn + 1
            if self._stillborn >= MOST_STILLBORN:
                raise AssayError(
                    f"{self._stillborn} workers in a row ended before they were ready, the last with: "
                    f"{reason}"
                ) from error
            self._replace(place)
            if job is None:
                return None
            return Ended(job=job.id, fault=Fault(kind="died", message=f"the worker died ({reason})"))
        worker.answer = None
        if isinstance(message, Ready):
            if message.broken:
                raise AssayError(f"workers cannot load their work:\n{message.broken}")
            worker.ready = True
            return None
        worker.job = None
        ended: Ended = message
        return ended

    def _replace(self, place: int) -> None:
        self._ray.kill(self._workers[place].actor)
        self._workers[place] = self._actor()

    def _actor(self) -> "_Actor":
        needs: dict[str, Any] = {"num_cpus": self._limits.threads, "max_restarts": 0, "max_task_retries": 0}
        if self._gpus:
            needs["num_gpus"] = self._gpus
        if self._limits.memory is not None:
            needs["memory"] = self._limits.memory
        return _Actor(self._ray.remote(_Worker).options(**needs).remote(self._work, self._limits.threads))

    def _room(self, limits: Limits) -> int:
        """Workers for a sweep that names no number."""
        if limits.workers is not None:
            return limits.n_workers
        there = self._ray.cluster_resources()
        room = limits.n_workers if self._address == LOCAL else there.get("CPU", 1) // limits.threads
        return max(1, int(min(room, there.get("GPU", 0) // self._gpus) if self._gpus else room))

    def _connect(self, limits: Limits) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        alone = self._address == LOCAL
        if alone:
            workers = self._n or limits.n_workers
            options |= {
                "include_dashboard": False,
                "num_cpus": max(usable_cores(), workers * limits.threads),
                "object_store_memory": _STORE_BYTES,
            }
            if (
                limits.memory is not None
            ):  # as for local processes: the budget of each, not a share of what is there
                options["_memory"] = workers * limits.memory
        # Ray puts a handler of its own in place, which ends the process at once.
        same_sigterm = handled(None, signal.SIGTERM)
        with _environment(_ENVIRONMENT | (_ALONE if alone else {})), same_sigterm:
            try:
                self._ray.init(address=self._address, **options)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise AssayError(
                    f"cannot reach a Ray cluster at {self._address!r}: {error}; start one with "
                    "`ray start --head`, or use --ray local for this machine alone"
                ) from error
        self._own = True


class _Actor:
    """One worker as the sweep sees it."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.answer: Any = actor.load.remote()  # what is waited for
        self.ready = False
        self.job: Job | None = None

    @property
    def idle(self) -> bool:
        return self.ready and self.job is None


class _Worker:
    """The inside of an actor."""

    def __init__(self, work: str, threads: int) -> None:
        self._name, self._threads = work, threads

    def load(self) -> Ready:
        try:
            self._work = load_work(self._name, self._threads)
        except Exception as error:  # noqa: BLE001 - the sweep says why no worker came up
            return Ready(broken="".join(traceback.format_exception(error)))
        return Ready()

    def run(self, job: Any, location: str) -> Ended:
        return attempt(self._work, job, location)


def _ray(*, alone: bool) -> Any:
    with (
        needs_extra("ray", "running on Ray needs Ray"),
        _environment(_ENVIRONMENT | (_ALONE if alone else {})),
    ):
        import ray
        import ray.exceptions
    return ray


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables for the processes that Ray starts; those that the user set stay."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
