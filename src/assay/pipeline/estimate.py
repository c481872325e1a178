"""What a sweep will cost: jobs, passes, bytes; and, from a pass of each model timed here, about how long."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from assay.core.record import Record
from assay.pipeline.cost import pass_seconds
from assay.pipeline.jobs import Job, inputs_of, model_of
from assay.pipeline.limits import Limits
from assay.store import Store


@dataclass(frozen=True, kw_only=True)
class KindCost(Record):
    """The jobs of one kind.

    Attributes:
        kind: Key in `JOB_KINDS`.
        jobs: How many.
        done: Of them, those that the store holds.
        passes: Forward-equivalents over single examples of those still to be done, at most.
    """

    kind: str
    jobs: int
    done: int
    passes: int


@dataclass(frozen=True, kw_only=True)
class SweepCost(Record):
    """What is left to do of a sweep.

    Attributes:
        kinds: By kind of job, in order of their first job.
        largest_bytes: Memory of the largest job, roughly.
        stored_bytes: Arrays still to be stored, roughly.
        seconds: About how long it takes; None where no model could be timed, or was not asked for.
        workers: Workers that this assumes.
        pass_seconds: Seconds of one pass over one example, by model and task.
    """

    derived = ("jobs", "done", "passes")

    kinds: tuple[KindCost, ...]
    largest_bytes: int
    stored_bytes: int
    seconds: float | None
    workers: int
    pass_seconds: dict[str, float]

    @property
    def jobs(self) -> int:
        """All jobs."""
        return sum(kind.jobs for kind in self.kinds)

    @property
    def done(self) -> int:
        """Jobs that the store holds."""
        return sum(kind.done for kind in self.kinds)

    @property
    def passes(self) -> int:
        """Passes of all jobs still to be done."""
        return sum(kind.passes for kind in self.kinds)


def sweep_cost(jobs: Sequence[Job], store: Store | None, limits: Limits, *, timed: bool = True) -> SweepCost:
    """What is left to do.

    Args:
        jobs: Of the plan.
        store: What it holds is done; None: nothing is.
        limits: Workers and threads.
        timed: Time a pass of each model on each task, on this machine.

    Notes:
        The time is an estimate: passes are upper bounds, a backward pass counts as one, start-up and the
        order of jobs are left out. Jobs of models of a zoo count at the mean speed of the others.
    """
    done = {job.id for job in jobs if store is not None and store.has(job.id)}
    left = [job for job in jobs if job.id not in done]
    kinds = []
    for kind in dict.fromkeys(job.kind for job in jobs):
        own = [job for job in jobs if job.kind == kind]
        kinds.append(
            KindCost(
                kind=kind,
                jobs=len(own),
                done=sum(job.id in done for job in own),
                passes=sum(job.passes for job in own if job.id not in done),
            )
        )
    speed = _pass_seconds(left, limits) if timed else {}
    workers = min(limits.n_workers, max(1, len(left)))
    seconds = None
    if speed:
        usual = sum(speed.values()) / len(speed)
        seconds = sum(job.passes * speed.get(_place(job), usual) for job in left) / workers
    return SweepCost(
        kinds=tuple(kinds),
        largest_bytes=max((job.bytes for job in left), default=0),
        stored_bytes=sum(job.stores for job in left),
        seconds=0.0 if not left else seconds,
        workers=workers,
        pass_seconds=speed,
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
