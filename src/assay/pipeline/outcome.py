"""What a sweep leaves behind: a row of its jobs and their results, and what became of each for reading."""

from collections.abc import Sequence
from typing import Any

from assay.pipeline.jobs import Job
from assay.pipeline.plan import Plan
from assay.pipeline.schedule import SweepOutcome
from assay.store import About, ResultSummary, Store


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


def job_rows(store: Store, jobs: Sequence[Job], outcome: SweepOutcome) -> list[dict[str, Any]]:
    """What became of each job, as JSON.

    Returns:
        Per job `id`, `name`, `kind`, `status` (`done`, `skipped`, `failed` or `blocked`), `results` (ids),
        and of those that failed `error` and `attempts`.
    """
    status = {job.id: "done" for job in outcome.done} | {job.id: "skipped" for job in outcome.skipped}
    status |= {job.id: "blocked" for job in outcome.blocked}
    failed = {each.job.id: each for each in outcome.failed}
    rows = []
    for job in jobs:
        row: dict[str, Any] = {"id": job.id, "name": job.name, "kind": job.kind, "results": []}
        if job.id in failed:
            row |= {
                "status": "failed",
                "error": failed[job.id].fault.message,
                "attempts": failed[job.id].attempts,
            }
        else:
            row["status"] = status[job.id]
        if row["status"] in ("done", "skipped"):
            row["results"] = results_of(store, job)
        rows.append(row)
    return rows


def summaries(store: Store, rows: Sequence[dict[str, Any]]) -> list[tuple[str, ResultSummary]]:
    """The numbers that jobs left, in brief: name of the job, and the result."""
    found = []
    for row in rows:
        if row["kind"] not in ("measure", "attack", "calibrate", "rank"):
            continue  # scores, circuits and parts are steps on the way
        for identity in row["results"]:
            found += [(row["name"], each) for each in store.query(where=[f'id = "{identity}"'], limit=1)]
    return found
