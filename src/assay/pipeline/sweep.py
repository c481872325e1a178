"""A sweep: the driver that runs the jobs of a plan, and alone writes to the store.

A job is done when the store holds its row, whoever put it there and whatever became of the workers; so a
sweep that was killed and is run again goes on where it was. Two sweeps on one store may do the same job
twice, which changes nothing.
"""

import graphlib
import heapq
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from assay.core.errors import InputError, StoreError, writing
from assay.core.record import BRIEF, Record
from assay.pipeline.jobs import Job, run_job
from assay.pipeline.plan import Limits, Plan
from assay.pipeline.stage import Progress, silent
from assay.pipeline.workers import Ended, Work, Workers
from assay.store import About, Store


TICK_SECONDS = 0.5  # longest rest of the loop
USUAL_LIMITS = Limits()


@dataclass(frozen=True, kw_only=True)
class JobOutcome(Record):
    """What became of a job.

    Attributes:
        id: Of the job.
        name: Of the job.
        kind: Of the job.
        status: `done` (here), `skipped` (found in the store), `failed` (given up) or `blocked` (it needs a
            job that failed).
        results: Ids of what it stored.
        notes: Warnings that it gave.
        error, attempts: Of one that failed.
    """

    id: str
    name: str
    kind: str
    status: str
    results: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), metadata=BRIEF)
    error: str | None = field(default=None, metadata=BRIEF)
    attempts: int | None = field(default=None, metadata=BRIEF)


@dataclass(frozen=True, kw_only=True)
class SweepOutcome:
    """What became of a sweep.

    Attributes:
        jobs: In the order they were given.
        seconds: From first to last, monotonic.
    """

    jobs: tuple[JobOutcome, ...]
    seconds: float

    def names(self, status: str) -> list[str]:
        """Names of the jobs of a status."""
        return [job.name for job in self.jobs if job.status == status]

    @property
    def ok(self) -> bool:
        """Whether every job's results are in the store."""
        return not (self.names("failed") or self.names("blocked"))


def run_jobs(
    jobs: Sequence[Job],
    location: str | os.PathLike[str],
    *,
    workers: Workers,
    limits: Limits = USUAL_LIMITS,
    work: Work = run_job,
    log: str = "jobs",
    progress: Progress = silent,
) -> SweepOutcome:
    """Run jobs until each is done, given up, or blocked by one that was given up.

    Args:
        jobs: In any order; jobs of the same id are one. What they need is among them or in the store.
        location: Of the store, a directory or a URL; every worker reads it.
        workers: Where they run; opened and closed here.
        limits: Attempts, times and threads.
        work: Called in a worker with a job and the store as the worker sees it.
        log: Name under which failures are logged beside the store, a line each in `sweeps/NAME.jsonl`.
        progress: Told how many jobs are over.

    Raises:
        InputError: For a job that needs what is nowhere.
        StoreError: If the store cannot be reached; what is done is kept.
        AssayError: If the cluster is lost for good.
        KeyboardInterrupt: After the workers have ended; running jobs are given up, and may be run again.
    """
    store, began = Store(location), time.monotonic()
    sweep = _Driving(jobs, store, limits, log)
    try:
        sweep.look()
        if sweep.ready:
            workers.open(work, store.location, limits)
        while sweep.ready or sweep.running:
            while sweep.ready and workers.free:
                workers.submit(sweep.next_job())
            for ended in sorted(workers.wait(TICK_SECONDS), key=lambda ended: ended.fault == "store"):
                sweep.settle(ended)
            sweep.look()
            progress("jobs", len(sweep.outcomes), len(sweep.jobs))
    finally:
        workers.close()
    return SweepOutcome(jobs=sweep.end(), seconds=time.monotonic() - began)


class _Driving:
    """The state of a sweep: a job has an outcome, runs, is ready to run, or needs others."""

    def __init__(self, jobs: Sequence[Job], store: Store, limits: Limits, log: str) -> None:
        self.store, self.limits = store, limits
        self.log = store.directory / "sweeps" / f"{log}.jsonl"
        self.jobs = {job.id: job for job in jobs}
        self.places = {identity: place for place, identity in enumerate(self.jobs)}
        self.order = graphlib.TopologicalSorter({job.id: job.needs for job in jobs})
        self.order.prepare()
        self.stored = {row.id: tuple(row.payload["results"]) for row in store.results("job")}
        self.ready: list[tuple[int, int, str]] = []  # heap of attempts made, place in the plan, id
        self.running: dict[str, int] = {}  # id -> attempts made before
        self.outcomes: dict[str, JobOutcome] = {}

    def look(self) -> None:
        """Find the jobs whose needs are done now; those that the store held at the start are skipped."""
        while identities := self.order.get_ready():
            for identity in identities:
                if identity in self.stored:
                    self.finish(identity, "skipped", results=self.stored[identity])
                elif identity in self.jobs:
                    heapq.heappush(self.ready, (0, self.places[identity], identity))
                else:
                    raise InputError(f"jobs need {identity}, which is neither among them nor in the store")

    def finish(self, identity: str, status: str, **facts: Any) -> None:
        """Note the outcome of a job; what the store alone holds has none."""
        if job := self.jobs.get(identity):
            outcome = JobOutcome(id=identity, name=job.name, kind=job.kind, status=status, **facts)
            self.outcomes[identity] = outcome
        if status in ("done", "skipped"):
            self.order.done(identity)

    def next_job(self) -> Job:
        """The first of the plan, as those of one model follow each other; those that failed come last."""
        attempts, _, identity = heapq.heappop(self.ready)
        self.running[identity] = attempts
        return self.jobs[identity]

    def settle(self, ended: Ended) -> None:
        """Store what an attempt leaves; after a failure try again, or give up.

        Without its store no job can end well, so none is given up for that.
        """
        if ended.fault == "store":
            raise StoreError(f"{ended.message}; what is done is kept: run the sweep again to go on")
        self.store.add(ended.contents)
        identity, attempts = ended.job, self.running.pop(ended.job) + 1
        if not ended.fault:
            self.finish(identity, "done", results=ended.results, notes=ended.notes)
            return
        self.note(ended, attempts)
        if ended.fault == "input" or attempts > self.limits.retries:
            self.finish(identity, "failed", error=ended.message, attempts=attempts)
        else:
            heapq.heappush(self.ready, (attempts, self.places[identity], identity))

    def note(self, ended: Ended, attempt: int) -> None:
        """Append a failure to the log."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"time": now, "job": ended.job, "name": self.jobs[ended.job].name, "attempt": attempt}
        facts |= {name: getattr(ended, name) for name in ("fault", "message", "trace")}
        with writing(f"write the log of failures {self.log}"):
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a") as file:
                file.write(f"{json.dumps(facts)}\n")

    def end(self) -> tuple[JobOutcome, ...]:
        """What became of each job; one that was never ready is blocked."""
        for identity in self.jobs.keys() - self.outcomes.keys():
            self.finish(identity, "blocked")
        return tuple(self.outcomes[identity] for identity in self.jobs)


def keep_sweep(store: Store, plan: Plan, jobs: Sequence[JobOutcome]) -> str:
    """Store the row of a sweep whose jobs are all done; what it holds depends on nothing but plan and jobs.

    Returns:
        The row's id. A report builds the page of a sweep from it.
    """
    provenance = {"name": plan.name, "plan": plan.record(), "jobs": [job.id for job in jobs]}
    rows = [{"id": job.id, "name": job.name, "kind": job.kind, "results": job.results} for job in jobs]
    return store.put("sweep", provenance, {"name": plan.name, "jobs": rows}, about=About(name=plan.name))
