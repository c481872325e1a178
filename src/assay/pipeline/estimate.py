"""What a sweep will cost: jobs, passes, bytes; and, from a pass of each model timed here, about how long."""

from collections.abc import Collection, Sequence

import torch

from assay.pipeline.cost import Forecast, Workload, pass_seconds
from assay.pipeline.jobs import Job, inputs_of, model_of
from assay.pipeline.limits import Limits
from assay.pipeline.plan import Plan


def sweep_cost(plan: Plan, jobs: Sequence[Job], done: Collection[str]) -> Forecast:
    """What is left to do, a stage per kind of job, from a pass of each model on each task timed here.

    Args:
        plan: Its name, number of examples, workers and threads.
        jobs: Of the plan.
        done: Ids of jobs that need not run.

    Notes:
        The time is an estimate: passes are upper bounds, a backward pass counts as one, start-up and the
        order of jobs are left out.
    """
    left = [job for job in jobs if job.id not in done]
    stages = []
    for kind in dict.fromkeys(job.kind for job in jobs):
        own = [job for job in left if job.kind == kind]
        stages.append(Workload(stage=kind, runs=len(own), passes=sum(job.passes for job in own)))
    speed, passes = _pass_seconds(left, plan.limits), sum(stage.passes for stage in stages)
    usual = sum(speed.values()) / len(speed) if speed else 0.0
    seconds = sum(job.passes * speed.get(_place(job), usual) for job in left)
    return Forecast(
        model={"id": plan.name},
        n=plan.n,
        stages=tuple(stages),
        pass_seconds=seconds / max(passes, 1) if speed or not left else None,
        bytes=max((job.bytes for job in left), default=0),
        stored_bytes=sum(job.stores for job in left),
        workers=min(plan.limits.n_workers, max(1, len(left))),
    )


def _place(job: Job) -> str:
    """Model and task of a job; empty where it names none."""
    source = job.source
    return f"{source['model']} {source['task']}" if {"model", "task"} <= source.keys() else ""


def _pass_seconds(jobs: Sequence[Job], limits: Limits) -> dict[str, float]:
    """Seconds of a pass over one example, by model and task."""
    seconds: dict[str, float] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(limits.threads)
    try:
        for job in jobs:
            place = _place(job)
            if not place or place in seconds:
                continue
            model, task = model_of(job), inputs_of(job).discovery
            seconds[place] = pass_seconds(model, task, batch_size=limits.batch_size)
    finally:
        torch.set_num_threads(threads)
    return seconds
