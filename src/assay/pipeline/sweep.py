"""A sweep: the jobs of a plan, and the driver that runs them and alone writes to the store.

A job is done when the store holds its row, whoever put it there and whatever became of the workers; so a
sweep that was killed and is run again goes on where it was. Two sweeps on one store may do the same job
twice, which changes nothing.
"""

import gc
import graphlib
import heapq
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from assay.analyses.worst_case import PROTOCOLS
from assay.analyses.worst_case.sampling import check_ablation, grammar_of, usual_protocol
from assay.core.errors import InputError, StoreError, check_name, writing
from assay.core.record import BRIEF, Record, library_version, record_id
from assay.discovery.edges import get_method
from assay.models import Model
from assay.pipeline.jobs import Job, circuit_record, model_at, run_job, scores_stage
from assay.pipeline.plan import Limits, MethodChoice, Plan
from assay.pipeline.prompts import Division, draw_inputs
from assay.pipeline.stage import Progress, silent
from assay.pipeline.workers import Ended, Work, Workers
from assay.pipeline.worst import PairCounts, sizes
from assay.store import About, Store
from assay.tasks import PairTask


TICK_SECONDS = 0.5  # longest rest of the loop
USUAL_LIMITS = Limits()


# ---- the jobs of a plan -------------------------------------------------------------------------


def expand(
    plan: Plan, *, device: str | None = None, dtype: str | None = None, here: str | None = None
) -> tuple[Job, ...]:
    """The jobs of a plan, each after those it needs.

    Every model is loaded once, one at a time, and every task drawn: a job's record holds the hashes of both.

    Args:
        plan: The plan.
        device: Where jobs run their models.
        dtype: Number type of the weights, e.g. `float64`; None: as of `load_model`.
        here: Where this process runs them; default: `device`.

    Raises:
        InputError: If parts of the plan do not fit each other: gates on images, an attack whose protocol the
            ablation has no use for, a size beyond a model's graph.
        AssayError: What loading a model or drawing a task raises.
    """
    place = {"device": device, "dtype": dtype, "device_map": plan.limits.device_map, "bos": plan.bos}
    jobs: dict[str, Job] = {}
    for name in plan.models:
        jobs |= {job.id: job for job in _product(plan, name, place, here or device)}
        gc.collect()  # before the next model is loaded
    return tuple(jobs.values())


def _product(plan: Plan, name: str, place: Mapping[str, Any], here: str | None) -> Iterator[Job]:
    """The jobs of one model on all tasks, under all seeds."""
    source = {"model": plan.locate(name), **place}
    model = model_at(source | {"device": here})
    n_edges = model.graph.n_edges
    if beyond := [size for size in plan.sizes if size > n_edges]:
        raise InputError(f"sizes has {beyond[0]:,}, but model {name!r} has {n_edges:,} edges; plan it apart")
    for task, seed in itertools.product(plan.tasks, plan.seeds):
        where = {**source, "task": plan.locate(task), "n": plan.n}
        cell = _Cell(plan=plan, model=model, name=f"{name} {task}", seed=seed, source=where)
        for choice in plan.methods:
            yield from cell.product(choice)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cell:
    """One model on one task under one seed."""

    plan: Plan
    model: Model
    name: str  # of model and task
    seed: int
    source: Mapping[str, Any]  # of its jobs

    @cached_property
    def inputs(self) -> Division:
        return draw_inputs(self.model, self.source["task"], n=self.plan.n, seed=self.seed)

    @property
    def base(self) -> dict[str, Any]:
        """What every record of these jobs holds."""
        return {
            "library": library_version(),
            "model": self.model.describe(),
            "batch_size": self.plan.limits.batch_size,
            "threads": self.plan.limits.threads,
            "seed": self.seed,
        }

    def job(self, kind: str, label: str, record: Mapping[str, Any], needs: tuple[str, ...] = ()) -> Job:
        """A job; the seed is in its name only where there are several."""
        seeds = [f"seed {self.seed}"] if len(self.plan.seeds) > 1 else []
        name = " ".join([kind, self.name, label, *seeds])
        return Job(name=name, kind=kind, record=record, source=self.source, needs=needs)

    def product(self, choice: MethodChoice) -> Iterator[Job]:
        """Scores, circuits and what is asked of them, for one method."""
        plan, task, measured = self.plan, self.inputs.discovery, self.inputs.measured
        method = get_method(choice.method, **choice.options)
        how = {key: getattr(choice, key) for key in ("options", "steps", "quadrature")}
        record = {
            **self.base,
            "discovery": task.describe(),
            "method": {"key": method.key, **how},
            # The method's own objective, such as `kl` of learned masks, unless the plan names one.
            "objective": plan.objective or method.objective or task.objective,
            "ablation": plan.ablation or measured.ablation,
        }
        discover = self.job("discover", choice.label, record)
        yield discover
        scores = scores_stage(record, self.model, task).record
        for size in plan.sizes or (None,):
            facts: dict[str, Any] = {"size": size}
            label = f"{choice.label} {size} edges"
            if size is None:
                facts = {"target": plan.target, "judged_by": plan.objective or measured.objective}
                label = f"{choice.label} target {plan.target:g}"
            wanted = {**record, "measured": measured.describe(), **facts}
            select = self.job("select", label, wanted, (discover.id,))
            yield select
            identity = record_id("circuit", circuit_record(wanted, scores))
            yield from self.questions(identity, select, label)

    def questions(self, circuit: str, origin: Job, label: str) -> Iterator[Job]:
        """Measurements, gates and the attack on one circuit."""
        plan, measured, needs = self.plan, self.inputs.measured, (origin.id,)
        record = {
            **self.base,
            "measured": measured.describe(),
            "circuit": circuit,
            "objective": plan.objective or measured.objective,
            "ablation": plan.ablation or measured.ablation,
        }
        if plan.metrics:
            wanted = {"metrics": list(plan.metrics), "n_random": plan.n_random}
            yield self.job("measure", label, {**record, **wanted}, needs)
        if plan.gates:
            if not isinstance(measured, PairTask):
                raise InputError(f"gates need prompts, but task {measured.name!r} has images; plan it apart")
            yield self.job("calibrate", label, {**record, "gates": list(plan.gates)}, needs)
        if plan.attack is not None:
            yield self.job("attack", label, {**record, "attack": self.attack(record["ablation"])}, needs)

    def attack(self, ablation: str) -> dict[str, Any]:
        """The pairs of a worst case under an ablation, which must have a use for them."""
        choice, measured = self.plan.attack, self.inputs.measured
        assert choice is not None
        protocol = choice.protocol or usual_protocol(measured, ablation)
        check_name("protocol", protocol, PROTOCOLS)
        check_ablation(ablation, protocol, enumerate=False)
        counts = {key: getattr(choice, key) for key in ("n_clean", "n_corrupted", "n_pairs")}
        size = sizes(protocol, **counts)
        if protocol == "file" or (grammar_of(measured) is None and protocol == "inputs"):
            size = PairCounts(n_clean=measured.n, n_corrupted=measured.n)
        return {"protocol": protocol, **vars(size)}


# ---- the driver ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JobOutcome(Record):
    """What became of a job.

    Attributes:
        id, name, kind: Of the job.
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
