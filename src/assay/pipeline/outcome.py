"""What a sweep leaves behind: a row of its jobs and their results, and what became of each for reading."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.core.record import BRIEF, Record
from assay.pipeline.jobs import Job
from assay.pipeline.plan import Plan
from assay.pipeline.schedule import SweepOutcome
from assay.store import About, Store


KIND = "sweep"


def keep_sweep(store: Store, plan: Plan, jobs: Sequence[Job]) -> str:
    """Store the row of a sweep whose jobs are all done; what it holds depends on nothing but plan and jobs.

    Args:
        store: Where the results are.
        plan: The plan.
        jobs: As the plan was expanded.

    Returns:
        The row's id. A report builds the page of a sweep from it.
    """
    provenance = {"name": plan.name, "plan": plan.record(), "jobs": [job.id for job in jobs]}
    listed = [
        {"id": job.id, "name": job.name, "kind": job.kind, "results": results_of(store, job)} for job in jobs
    ]
    return store.put(KIND, provenance, {"name": plan.name, "jobs": listed}, about=About(name=plan.name))


def results_of(store: Store, job: Job) -> list[str]:
    """Ids of what a finished job stored."""
    return [str(each) for each in store.get(job.id).payload["results"]]


@dataclass(frozen=True, kw_only=True)
class JobRow(Record):
    """What became of a job.

    Attributes:
        id, name, kind: Of the job.
        status: `done`, `skipped`, `failed` or `blocked`.
        results: Ids of what it stored.
        error, attempts: Of one that failed.
    """

    id: str
    name: str
    kind: str
    status: str
    results: tuple[str, ...] = ()
    error: str | None = field(default=None, metadata=BRIEF)
    attempts: int | None = field(default=None, metadata=BRIEF)


def job_rows(store: Store, jobs: Sequence[Job], outcome: SweepOutcome) -> list[JobRow]:
    """What became of each job."""
    status = {job.id: "done" for job in outcome.done} | {job.id: "skipped" for job in outcome.skipped}
    failed = {each.job.id: each for each in outcome.failed}
    rows = []
    for job in jobs:
        facts: dict[str, Any] = {"id": job.id, "name": job.name, "kind": job.kind}
        if job.id in failed:
            fault, attempts = failed[job.id].fault, failed[job.id].attempts
            rows.append(JobRow(**facts, status="failed", error=fault.message, attempts=attempts))
        elif job.id in status:
            rows.append(JobRow(**facts, status=status[job.id], results=tuple(results_of(store, job))))
        else:
            rows.append(JobRow(**facts, status="blocked"))
    return rows
