"""Jobs: the units of work of a sweep, each a pure function of its record.

A job's record holds all that its results are a function of: library version, weights, examples, settings
and the identities of what it builds on. The hash of kind and record is the job's id. What it needs to find
its inputs again (paths, names) is kept beside the record and does not count. The last thing a job writes is a
row of kind `job` under its id, so a job is done if and only if the store holds that row, and doing it twice
changes nothing.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.circuits import Circuit, EdgeScores, load_circuit
from assay.core.errors import FileFormatError, InputError
from assay.core.record import library_version, record_id
from assay.core.registry import Registry
from assay.discovery.edges import EdgeMethod, get_method
from assay.discovery.edges.method import Choices
from assay.execution.batches import assumed_memory
from assay.models import Model, load_model
from assay.pipeline.circuits import keep_circuit, stored_circuit
from assay.pipeline.discovery import discovery_stage
from assay.pipeline.gates import calibrate_measured
from assay.pipeline.inputs import draw_inputs
from assay.pipeline.models import model_at
from assay.pipeline.prompts import Division
from assay.pipeline.runs import RunSettings, measurement_stage
from assay.pipeline.sizing import size_circuit
from assay.pipeline.stage import Content, Stage, document_stage
from assay.pipeline.worst import PairCounts, pairs_of, worst_case_stage
from assay.store import About, Store
from assay.tasks import PairTask, Task


# Bytes that every job counts on, whatever is free: passes of another size round otherwise.
JOB_MEMORY = 2**32

JobKind = Callable[["Job", Store], tuple[str, ...]]
JOB_KINDS: Registry[JobKind] = Registry("job kind")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One unit of work.

    Attributes:
        name: For people, unique within a plan: `"measure mini ioi eap 200"`.
        kind: Key in `JOB_KINDS`.
        record: What its results are a function of, plain JSON.
        source: Where its inputs are found: model, task, files. Not part of its identity.
        needs: Ids of jobs that must be done before.
    """

    name: str
    kind: str
    record: Mapping[str, Any]
    source: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()

    @functools.cached_property
    def id(self) -> str:
        """Identity: 16 hex digits, and the id of the row that says it is done."""
        return record_id("job", self.provenance)

    @property
    def provenance(self) -> dict[str, Any]:
        """Provenance of the row that marks it as done."""
        return {"job": self.kind, **self.record}


def run_job(job: Job, store: Store) -> tuple[str, ...]:
    """Do a job, unless it is done; its results are in the store when this returns.

    Returns:
        Ids of its results.

    Raises:
        InputError: If model or examples are not those of the record any more.
        AssayError: Whatever the work raises; nothing of the job is then marked as done.
    """

    def compute() -> Content:
        with assumed_memory(JOB_MEMORY):
            results = JOB_KINDS[job.kind](job, store)
        return Content(payload={"results": list(results)}, about=_about(job))

    return tuple(document_stage("job", job.provenance, compute).run(store).value.payload["results"])


def _about(job: Job) -> About:
    """What the row of a job is found by."""
    record = job.record
    return About(
        model=record.get("model", {}).get("id"),
        task=record.get("measured", record.get("discovery", {})).get("name"),
        method=record.get("method", {}).get("key"),
        seed=record.get("seed"),
        name=job.name,
        ablation=record.get("ablation"),
    )


def work(job: Job, location: str) -> tuple[str, ...]:
    """`run_job` on the store at a location: what worker processes call."""
    return run_job(job, Store(location))


def warm_up() -> None:
    """Load what a job's first model brings with it, seconds of imports, before a worker says it is ready."""
    load_model("mini", device=None)


# ---- inputs, kept for the next job of the same worker --------------------------------------------


@functools.lru_cache(maxsize=1)
def _model(source: str, *how: Any) -> Model:
    return model_at(source, *how)


@functools.lru_cache(maxsize=4)
def _inputs(place: tuple[Any, ...], task: str, n: int | None, seed: int) -> Division:
    return draw_inputs(_model(*place), task, n=n, seed=seed)


def _place(job: Job) -> tuple[Any, ...]:
    """Where a job's model comes from, where it and its parts run, in which numbers, how its prompts begin."""
    return job.source["model"], *map(job.source.get, ("device", "dtype", "device_map", "bos"))


def model_of(job: Job) -> Model:
    """The job's model.

    Raises:
        InputError: If it is not the one of the record.
    """
    model = _model(*_place(job))
    _check(job, "model", model.describe())
    return model


def inputs_of(job: Job) -> Division:
    """The job's examples.

    Raises:
        InputError: If they are not those of the record.
    """
    inputs = _inputs(_place(job), job.source["task"], job.source["n"], job.record["seed"])
    for name in ("discovery", "measured"):
        if name in job.record:
            _check(job, name, getattr(inputs, name).describe())
    return inputs


def _check(job: Job, what: str, found: Any) -> None:
    if found != job.record[what]:
        raise InputError(
            f"the {what} of job {job.name!r} changed after the plan was read: it was {job.record[what]}, "
            f"now it is {found}; start the sweep again"
        )


# ---- discovery ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Scoring:
    """How a job of discovery, or one that builds on it, scores edges.

    Attributes:
        record: The job's.
        model: Its model.
        task: The examples of discovery.
    """

    record: Mapping[str, Any]
    model: Model
    task: Task

    @classmethod
    def of(cls, job: Job) -> "Scoring":
        """That of a job."""
        return cls(record=job.record, model=model_of(job), task=inputs_of(job).discovery)

    @property
    def stage(self) -> Stage[EdgeScores]:
        """The scores as one result."""
        method, settings = self._chosen
        return discovery_stage(self.model, self.task, method, settings, batch_size=self.record["batch_size"])

    @property
    def _chosen(self) -> tuple[EdgeMethod, Choices]:
        how = self.record["method"]
        method = get_method(how["key"], **how["options"])
        chosen = {key: self.record[key] for key in ("objective", "ablation", "seed")}
        chosen |= {key: how[key] for key in ("steps", "quadrature")}
        return method, method.choices(self.task, **chosen)


@JOB_KINDS.register("discover")
def _discover(job: Job, store: Store) -> tuple[str, ...]:
    """Scores of all edges."""
    stage = Scoring.of(job).stage
    stage.run(store)
    return (stage.id,)


# ---- circuits -----------------------------------------------------------------------------------


def circuit_record(job_record: Mapping[str, Any], scores: Mapping[str, Any]) -> dict[str, Any]:
    """What a selected circuit is a function of."""
    chosen = {key: job_record[key] for key in ("size", "target") if job_record.get(key) is not None}
    record = {
        "library": library_version(),
        "model": job_record["model"],
        "graph": scores["graph"],
        "task": job_record["discovery"],
        "method": scores["method"],
        "scores": record_id("scores", scores),
        **chosen,
    }
    if "target" in chosen:  # the size depends on runs under these
        found_under = ("measured", "judged_by", "ablation", "batch_size", "seed")
        record |= {key: job_record[key] for key in found_under}
    return record


@JOB_KINDS.register("select")
def _select(job: Job, store: Store) -> tuple[str, ...]:
    """The connected circuit of the strongest edges: so many, or as few as meet a target."""
    scoring = Scoring.of(job)
    scores = scoring.stage.stored(store)
    if scores is None:
        raise FileFormatError(
            f"the store lists the scores of {job.name!r} as done, but does not hold them; run "
            "`store.verify()`, then start the sweep with another store"
        )
    record = circuit_record(job.record, scoring.stage.record)
    chosen = {key: job.record[key] for key in ("size", "target") if key in job.record}
    sized = size_circuit(scores, inputs_of(job), settings_of(job), **chosen)
    told = ("size", "faithfulness", "confirmed") if "target" in chosen else ("size",)
    return (keep_circuit(store, record, sized.circuit, {key: getattr(sized, key) for key in told}),)


@JOB_KINDS.register("circuit-file")
def _circuit_file(job: Job, store: Store) -> tuple[str, ...]:
    """A circuit out of a file."""
    model = model_of(job)
    circuit = load_circuit(job.source["circuit"], model.graph)
    _check(job, "circuit", {"hash": circuit.hash})
    return (keep_circuit(store, file_record(job.record), circuit, {}),)


def file_record(job_record: Mapping[str, Any]) -> dict[str, Any]:
    """What a circuit out of a file is a function of."""
    return {"model": job_record["model"], "circuit": job_record["circuit"]["hash"]}


# ---- what is asked of a circuit -----------------------------------------------------------------


def circuit_of(job: Job, store: Store) -> Circuit:
    """The stored circuit that a job is about."""
    return stored_circuit(store.get(job.record["circuit"]), model_of(job).graph)


def settings_of(job: Job) -> RunSettings:
    """How a job runs circuits."""
    record = job.record
    return RunSettings(
        model=model_of(job),
        objective=record.get("judged_by", record["objective"]),
        ablation=record["ablation"],
        batch_size=record["batch_size"],
        seed=record["seed"],
    )


@JOB_KINDS.register("measure")
def _measure(job: Job, store: Store) -> tuple[str, ...]:
    """Metrics of a circuit, which share its runs."""
    runs = settings_of(job).on(inputs_of(job).measured, circuit_of(job, store))
    n_random = job.record["n_random"]
    stages = [measurement_stage(runs, metric, random_circuits=n_random) for metric in job.record["metrics"]]
    for stage in stages:
        stage.run(store)
    return tuple(stage.id for stage in stages)


@JOB_KINDS.register("calibrate")
def _calibrate(job: Job, store: Store) -> tuple[str, ...]:
    """Gates on a circuit."""
    found = calibrate_measured(
        circuit_of(job, store),
        _prompts(job),
        settings_of(job),
        gates=job.record["gates"],
        seed=job.record["seed"],
        store=store,
    )
    return (str(found.document["id"]),)


@JOB_KINDS.register("attack")
def _attack(job: Job, store: Store) -> tuple[str, ...]:
    """The worst case of a circuit over pairs."""
    attack = job.record["attack"]
    size = PairCounts(n_clean=attack["n_clean"], n_corrupted=attack["n_corrupted"])
    model = model_of(job)
    task = model.bind(inputs_of(job).measured)
    how = {"ablation": job.record["ablation"], "seed": job.record["seed"]}
    sample = pairs_of(task, attack["protocol"], size, **how)
    stage = worst_case_stage(circuit_of(job, store), model, sample)
    stage.run(store)
    return (stage.id,)


def _prompts(job: Job) -> PairTask:
    measured = inputs_of(job).measured
    assert isinstance(measured, PairTask)  # `expand` refuses others
    return measured
