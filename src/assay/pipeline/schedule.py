"""Which job runs when: needs first, each job once, failures retried, what is done left alone.

The scheduler knows neither models nor metrics. A job is done when the store holds its row, whoever put it
there and whatever became of the worker; so a sweep that was killed goes on where it was. Two sweeps on one
store may do the same job twice, which changes nothing. Durations are measured on the monotonic clock alone:
nothing depends on the time of day.
"""

import abc
import heapq
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import InputError
from assay.pipeline.failures import FailureLog, Fault
from assay.pipeline.limits import Limits
from assay.pipeline.order import in_order
from assay.pipeline.progress import Report, SweepProgress
from assay.pipeline.worker import Ended, Work
from assay.store import Store


if TYPE_CHECKING:
    from assay.pipeline.jobs import Job

BACK_OFF_SECONDS = 0.5  # before a second attempt; doubled before each further one
MOST_BACK_OFF_SECONDS = 30.0
TICK_SECONDS = 0.5  # longest rest of the loop


class Executor(abc.ABC):
    """Where jobs run. It is started once, serves one sweep, and is closed whatever happens."""

    @abc.abstractmethod
    def start(self, work: Work, location: str, limits: Limits, most: int) -> None:
        """Bring workers up; returns before they are ready.

        Args:
            work: Run in the workers with a job and the location.
            location: Of the store.
            limits: `workers`, `threads` and `memory` are the executor's to keep; attempts and times are not.
            most: Jobs that are left to do; more workers would have nothing to do.
        """

    @property
    @abc.abstractmethod
    def free(self) -> int:
        """Workers that would begin a job at once."""

    @abc.abstractmethod
    def submit(self, job: "Job") -> None:
        """Begin a job on a free worker."""

    @abc.abstractmethod
    def wait(self, seconds: float) -> list[Ended]:
        """What ended since the last call; rests for at most `seconds` until something happens.

        A worker that died is replaced, and its job among what ended.

        Raises:
            AssayError: If no worker can be brought up.
        """

    @abc.abstractmethod
    def stop(self, job: str) -> None:
        """End the worker of a job and replace it; nothing more is heard of the job."""

    @abc.abstractmethod
    def close(self) -> None:
        """End all workers, busy ones too."""


@dataclass(frozen=True, kw_only=True)
class FailedJob:
    """A job that was given up.

    Attributes:
        job: The job.
        fault: Of its last attempt.
        attempts: How many there were.
    """

    job: "Job"
    fault: Fault
    attempts: int


@dataclass(frozen=True, kw_only=True)
class SweepOutcome:
    """What became of the jobs of a sweep; each is in one of the four lists, in the order they were given.

    Attributes:
        done: Run here.
        skipped: Found in the store: done before, or by another sweep meanwhile.
        failed: Given up.
        blocked: Not run, since they need a job that failed.
        seconds: From first to last, monotonic.
        notes: Warnings by the name of the job that gave them.
    """

    done: "tuple[Job, ...]"
    skipped: "tuple[Job, ...]"
    failed: tuple[FailedJob, ...]
    blocked: "tuple[Job, ...]"
    seconds: float
    notes: Mapping[str, tuple[str, ...]]

    @property
    def ok(self) -> bool:
        """Whether every job's results are in the store."""
        return not (self.failed or self.blocked)

    @property
    def throughput(self) -> float:
        """Jobs run here per second."""
        return len(self.done) / self.seconds if self.seconds > 0 else 0.0


def run_jobs(
    jobs: "Sequence[Job]",
    location: str | os.PathLike[str],
    *,
    executor: Executor,
    limits: Limits | None = None,
    work: Work | None = None,
    log: str | None = None,
    progress: Report | None = None,
) -> SweepOutcome:
    """Run jobs until each is done, given up, or blocked by one that was given up.

    Args:
        jobs: In any order; jobs of the same id are one. What they need is among them or in the store.
        location: Of the store, a directory or a URL; every worker opens it.
        executor: Where they run; started and closed here.
        limits: Attempts, times, memory and threads; default: two retries, nothing else limited.
        work: Called in a worker with a job and the location; the job's row is the last thing it stores.
            Default: `assay.pipeline.jobs.work`.
        log: Name under which failures are logged beside the store; None: they are not.
        progress: Told of every change.

    Raises:
        InputError: For jobs that need each other in a circle, or what is nowhere.
        AssayError: If the store or the workers are lost for good.
        KeyboardInterrupt: After the workers have ended; running jobs are given up, and may be run again.
    """
    place = str(location) if "://" in str(location) else str(Path(location).absolute())
    sweep = _Dispatcher(jobs, Store(place), executor, limits or Limits(), log, progress)
    if sweep.unfinished:
        try:
            executor.start(work or _usual_work(), place, sweep.limits, sweep.unfinished)
            sweep.run()
        finally:
            executor.close()
    return sweep.outcome()


def _usual_work() -> Work:
    from assay.pipeline.jobs import work  # with every stage, which a custom `work` does without

    return work


class _Dispatcher:
    """The state of one sweep: every unfinished job is waiting for others, ready, or running."""

    def __init__(
        self,
        jobs: "Sequence[Job]",
        store: Store,
        executor: Executor,
        limits: Limits,
        log: str | None,
        progress: Report | None,
    ) -> None:
        self.store, self.executor, self.limits, self.progress = store, executor, limits, progress
        self.log = None if log is None else FailureLog(store.directory, log)
        self.jobs = {job.id: job for job in jobs}
        self.began = time.monotonic()
        self.done: set[str] = set()
        self.skipped = {identity for identity in self.jobs if store.has(identity)}
        self.failed: dict[str, FailedJob] = {}
        self.blocked: set[str] = set()
        self.running: dict[str, float] = {}  # id -> when its attempt began
        self.attempts: dict[str, int] = dict.fromkeys(self.jobs, 0)
        self.not_before: dict[str, float] = {}
        self.notes: dict[str, tuple[str, ...]] = {}
        self.needs: dict[str, set[str]] = {}
        self.needed_by: dict[str, list[str]] = {identity: [] for identity in self.jobs}
        self.wire()
        self.rank = self.ranks()
        self.ready = [self.key(identity) for identity, needs in self.needs.items() if not needs]
        heapq.heapify(self.ready)

    # ---- before ---------------------------------------------------------------------------------

    def wire(self) -> None:
        """What each unfinished job still needs, and who needs it."""
        for identity, job in self.jobs.items():
            if identity in self.skipped:
                continue
            self.needs[identity] = set()
            for need in job.needs:
                if need in self.jobs:
                    self.needed_by[need].append(identity)
                    if need not in self.skipped:
                        self.needs[identity].add(need)
                elif not self.store.has(need):
                    raise InputError(
                        f"job {job.name!r} needs {need}, which is neither a job of the plan nor in the store"
                    )

    def ranks(self) -> dict[str, tuple[int, int]]:
        """Which of two ready jobs goes first: the one with the longer way behind it, then the earlier."""
        way: dict[str, int] = {}
        names = {identity: job.name for identity, job in self.jobs.items()}
        order = in_order({identity: job.needs for identity, job in self.jobs.items()}, names)
        for identity in reversed([each for each in order if each in self.jobs]):
            behind = max((way[each] for each in self.needed_by[identity]), default=0)
            way[identity] = 1 + behind
        return {identity: (-way[identity], place) for place, identity in enumerate(self.jobs)}

    def key(self, identity: str) -> tuple[tuple[int, int], str]:
        return self.rank[identity], identity

    # ---- the loop -------------------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        return len(self.jobs) - len(self.done) - len(self.skipped) - len(self.failed) - len(self.blocked)

    def run(self) -> None:
        self.tell()
        while self.unfinished:
            self.launch()
            for ended in self.executor.wait(self.pause()):
                if ended.job in self.running:
                    self.settle(ended)
            self.stop_overdue()
            self.tell()

    def launch(self) -> None:
        """Give free workers the jobs that are ready, and that no other sweep has done meanwhile."""
        now = time.monotonic()
        later = []
        while self.ready and self.executor.free:
            entry = heapq.heappop(self.ready)
            identity = entry[1]
            if self.not_before.get(identity, now) > now:
                later.append(entry)
            elif self.store.has(identity):
                self.finish(identity, self.skipped)
            else:
                self.running[identity] = time.monotonic()
                self.executor.submit(self.jobs[identity])
        for entry in later:
            heapq.heappush(self.ready, entry)

    def pause(self) -> float:
        """How long nothing can be due."""
        now = time.monotonic()
        due = [now + TICK_SECONDS]
        if self.executor.free:
            due += [self.not_before.get(identity, now) for _, identity in self.ready]
        if self.limits.timeout is not None:
            due += [began + self.limits.timeout for began in self.running.values()]
        return max(0.0, min(due) - now)

    def stop_overdue(self) -> None:
        limit = self.limits.timeout
        if limit is None:
            return
        now = time.monotonic()
        for identity in [each for each, began in self.running.items() if now - began > limit]:
            self.executor.stop(identity)
            fault = Fault(kind="timeout", message=f"it took longer than {limit:g} s (limits.timeout)")
            self.settle(Ended(job=identity, fault=fault))

    # ---- ends -----------------------------------------------------------------------------------

    def settle(self, ended: Ended) -> None:
        """An attempt is over: the store says whether the job is done."""
        identity = ended.job
        del self.running[identity]
        if self.store.has(identity):
            if ended.notes:
                self.notes[self.jobs[identity].name] = ended.notes
            self.finish(identity, self.done)
            return
        fault = ended.fault or Fault(kind="lost", message="it returned, but its row is not in the store")
        self.attempts[identity] += 1
        self.note(identity, fault)
        if fault.permanent or self.attempts[identity] > self.limits.retries:
            self.give_up(identity, fault)
        else:
            rest = BACK_OFF_SECONDS * 2 ** (self.attempts[identity] - 1)
            self.not_before[identity] = time.monotonic() + min(rest, MOST_BACK_OFF_SECONDS)
            heapq.heappush(self.ready, self.key(identity))

    def finish(self, identity: str, among: set[str]) -> None:
        """A job is done: others may now be ready."""
        among.add(identity)
        for other in self.needed_by[identity]:
            needs = self.needs.get(other)  # None: it is done
            if needs is not None and identity in needs:
                needs.remove(identity)
                if not needs:
                    heapq.heappush(self.ready, self.key(other))

    def give_up(self, identity: str, fault: Fault) -> None:
        """A job failed for good: nothing that needs it can run."""
        self.failed[identity] = FailedJob(
            job=self.jobs[identity], fault=fault, attempts=self.attempts[identity]
        )
        behind = list(self.needed_by[identity])
        while behind:
            other = behind.pop()
            if other not in self.blocked and other not in self.skipped:
                self.blocked.add(other)
                behind += self.needed_by[other]

    def note(self, identity: str, fault: Fault) -> None:
        if self.log is None:
            return
        job = self.jobs[identity]
        self.log.add(
            {
                "job": identity,
                "name": job.name,
                "attempt": self.attempts[identity],
                "fault": fault.kind,
                "message": fault.message,
                "trace": fault.trace,
            }
        )

    # ---- what is told ---------------------------------------------------------------------------

    def tell(self) -> None:
        if self.progress is None:
            return
        self.progress(
            SweepProgress(
                total=len(self.jobs),
                done=len(self.done) + len(self.skipped),
                running=tuple(self.jobs[identity].name for identity in self.running),
                failed=len(self.failed) + len(self.blocked),
            )
        )

    def outcome(self) -> SweepOutcome:
        def listed(among: Iterable[str]) -> "tuple[Job, ...]":
            members = set(among)
            return tuple(job for identity, job in self.jobs.items() if identity in members)

        return SweepOutcome(
            done=listed(self.done),
            skipped=listed(self.skipped),
            failed=tuple(self.failed[job.id] for job in listed(self.failed)),
            blocked=listed(self.blocked),
            seconds=time.monotonic() - self.began,
            notes=self.notes,
        )
