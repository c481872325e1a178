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

from assay.analyses.calibration.battery import gates_on_same_prompts
from assay.analyses.worst_case.attack import PREFIX, facts_of, run_part
from assay.analyses.worst_case.sampling import sample_pairs
from assay.circuits import Circuit, EdgeScores, load_circuit
from assay.core.errors import FileFormatError, InputError
from assay.core.record import library_version, record_id
from assay.core.registry import Registry
from assay.discovery.edges import EdgeMethod, discover, get_method
from assay.discovery.edges.method import Asked, join_parts, resolve
from assay.execution import CircuitRuns
from assay.execution.forward import assumed_memory
from assay.metrics import measurement_provenance
from assay.models import Model, load_model
from assay.pipeline import (
    Sizes,
    calibrate_stored,
    find_circuit,
    measure_stored,
    usual_prompts,
    worst_case_stored,
)
from assay.pipeline.circuits import keep_circuit, stored_circuit
from assay.pipeline.inputs import Inputs, draw_inputs
from assay.pipeline.ranking import Ranked, ranked
from assay.pipeline.shards import BatchShelf, PairShelf, dealt
from assay.pipeline.stages import keep_scores, kept_scores, recovery, scores_record, usual_replacement
from assay.store import Store
from assay.tasks import PairTask


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
        passes: Forward-equivalents over single examples, at most.
        bytes: Memory of one pass with the weights, roughly.
        stores: Bytes of the arrays it keeps, roughly.
    """

    name: str
    kind: str
    record: Mapping[str, Any]
    source: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    passes: int = 0
    bytes: int = 0
    stores: int = 0

    @functools.cached_property
    def id(self) -> str:
        """Identity: 16 hex digits, and the id of the row that says it is done."""
        return record_id("job", self.provenance)

    @property
    def provenance(self) -> dict[str, Any]:
        """Provenance of the row that marks it as done."""
        return {"job": self.kind, **self.record}


def is_done(store: Store, job: Job) -> bool:
    """Whether the store holds what the job makes."""
    return store.has(job.id)


def run_job(job: Job, store: Store) -> tuple[str, ...]:
    """Do a job, unless it is done; its results are in the store when this returns.

    Returns:
        Ids of its results.

    Raises:
        InputError: If model or examples are not those of the record any more.
        AssayError: Whatever the work raises; nothing of the job is then marked as done.
    """
    if store.has(job.id):
        return tuple(store.get(job.id).payload["results"])
    with assumed_memory(JOB_MEMORY):
        results = JOB_KINDS[job.kind](job, store)
    store.put("job", job.provenance, {"results": list(results)})
    return results


def work(job: Job, location: str) -> tuple[str, ...]:
    """`run_job` on the store at a location: what worker processes call."""
    return run_job(job, Store(location))


def warm_up() -> None:
    """Load what a job's first model brings with it, seconds of imports, before a worker says it is ready."""
    load_model("mini")


# ---- inputs, kept for the next job of the same worker --------------------------------------------


@functools.lru_cache(maxsize=1)
def _model(source: str, device: str | None) -> Model:
    return load_model(source, device=device)


@functools.lru_cache(maxsize=4)
def _inputs(source: str, device: str | None, task: str, n: int | None, seed: int) -> Inputs:
    return draw_inputs(_model(source, device), task, n=n, seed=seed)


def model_of(job: Job) -> Model:
    """The job's model.

    Raises:
        InputError: If it is not the one of the record.
    """
    model = _model(job.source["model"], job.source.get("device"))
    _check(job, "model", model.describe())
    return model


def inputs_of(job: Job) -> Inputs:
    """The job's examples.

    Raises:
        InputError: If they are not those of the record.
    """
    found = _inputs(
        job.source["model"], job.source.get("device"), job.source["task"], job.source["n"], job.record["seed"]
    )
    for name in ("discovery", "measured"):
        if name in job.record:
            _check(job, name, getattr(found, name).describe())
    return found


def _check(job: Job, what: str, found: Mapping[str, Any]) -> None:
    if found != job.record[what]:
        raise InputError(
            f"the {what} of job {job.name!r} changed since the plan was read: it was {job.record[what]}, and "
            f"is {dict(found)}; start the sweep again"
        )


# ---- discovery ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _Discovery:
    """What a job of discovery, or one that builds on it, scores edges by."""

    job: Job
    model: Model
    inputs: Inputs

    @classmethod
    def of(cls, job: Job) -> "_Discovery":
        return cls(job=job, model=model_of(job), inputs=inputs_of(job))

    @property
    def method(self) -> EdgeMethod:
        how = self.job.record["method"]
        return get_method(how["key"], **how["options"])

    @property
    def settings(self) -> dict[str, Any]:
        record = self.job.record
        return {
            "objective": record["objective"],
            "ablation": record["ablation"],
            "steps": record["method"]["steps"],
            "quadrature": record["method"]["quadrature"],
            "seed": record["seed"],
        }

    @property
    def record(self) -> dict[str, Any]:
        return scores_record(self.model, self.inputs.discovery, self.method, **self.settings)


@JOB_KINDS.register("discover")
def _discover(job: Job, store: Store) -> tuple[str, ...]:
    """Scores of all edges; put together from the parts, where these were dealt to jobs of their own."""
    asked = _Discovery.of(job)
    record = asked.record
    if kept_scores(store, asked.model.graph, record) is not None:
        return (record_id("scores", record),)
    whole = resolve(
        asked.model,
        asked.inputs.discovery,
        asked.method,
        batch_size=job.record["batch_size"],
        **asked.settings,
    )
    if not job.source.get("parts"):
        return (keep_scores(store, record, _scored(whole)),)
    shelf = BatchShelf(store, record, whole.size)
    parts = shelf.all(whole)
    scores = whole.scores(join_parts(whole.model, whole.settings, parts), {"seconds": shelf.seconds(whole)})
    return (keep_scores(store, record, scores),)


def _scored(whole: Asked) -> EdgeScores:
    """Scores of all edges in one piece."""
    settings = whole.settings
    return discover(
        whole.model,
        whole.task,
        whole.method,
        objective=settings.objective,
        ablation=settings.ablation,
        steps=settings.steps,
        quadrature=settings.quadrature,
        batch_size=whole.size,
        seed=settings.seed,
    )


@JOB_KINDS.register("discover-part")
def _discover_part(job: Job, store: Store) -> tuple[str, ...]:
    """What every k-th batch of examples gives to the scores."""
    asked = _Discovery.of(job)
    whole = resolve(
        asked.model,
        asked.inputs.discovery,
        asked.method,
        batch_size=job.record["batch_size"],
        **asked.settings,
    )
    return BatchShelf(store, asked.record, whole.size).fill(whole, dealt(job.record["part"]))


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
    asked = _Discovery.of(job)
    scores = kept_scores(store, asked.model.graph, asked.record)
    if scores is None:
        raise FileFormatError(
            f"the store says that the scores of {job.name!r} were made, and does not hold them; run "
            "`store.verify()`, then start the sweep with another store"
        )
    record = circuit_record(job.record, asked.record)
    if job.record.get("size") is not None:
        size = job.record["size"]
        return (keep_circuit(store, record, scores.top(size).connected(), {"size": size}),)
    sweep, other = (
        _runs(job, asked.model, task, Circuit.full(asked.model.graph))
        for task in (asked.inputs.discovery, asked.inputs.measured)
    )
    found = find_circuit(
        scores,
        lambda circuit: recovery(sweep, circuit),
        target=job.record["target"],
        progress=lambda stage, done, total: None,
        elsewhere=(lambda circuit: recovery(other, circuit)) if asked.inputs.held_out else None,
    )
    facts = {"size": found.size, "faithfulness": found.faithfulness, "confirmed": found.confirmed}
    return (keep_circuit(store, record, found.circuit, facts),)


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


def kept_circuit(store: Store, identity: str, model: Model) -> Circuit:
    """A stored circuit."""
    return stored_circuit(store.get(identity), model.graph)


# ---- what is asked of a circuit -----------------------------------------------------------------


def _runs(job: Job, model: Model, task: Any, circuit: Circuit) -> CircuitRuns:
    record = job.record
    return CircuitRuns(
        model,
        task,
        circuit,
        ablation=record["ablation"],
        objective=record.get("judged_by", record["objective"]),
        batch_size=record["batch_size"],
        seed=record["seed"],
    )


@JOB_KINDS.register("measure")
def _measure(job: Job, store: Store) -> tuple[str, ...]:
    """Metrics of a circuit, which share its runs."""
    model, measured = model_of(job), inputs_of(job).measured
    runs = _runs(job, model, measured, kept_circuit(store, job.record["circuit"], model))
    found = []
    for metric in job.record["metrics"]:
        n_random = job.record["n_random"]
        measure_stored(runs, metric, random_circuits=n_random, store=store)
        found.append(record_id("measurement", measurement_provenance(runs, metric, random_circuits=n_random)))
    return tuple(found)


@JOB_KINDS.register("calibrate")
def _calibrate(job: Job, store: Store) -> tuple[str, ...]:
    """Gates on a circuit."""
    model, measured = model_of(job), _prompts(job)
    circuit = kept_circuit(store, job.record["circuit"], model)
    table = usual_prompts(measured, seed=job.record["seed"])
    found = calibrate_stored(
        circuit,
        model,
        table.task,
        pool=table.pool,
        same_prompts=gates_on_same_prompts(circuit, measured),
        gates=job.record["gates"],
        objective=job.record["objective"],
        ablation=usual_replacement(job.record["ablation"] or measured.ablation),
        batch_size=job.record["batch_size"],
        seed=job.record["seed"],
        store=store,
    )
    return (str(found.document["id"]),)


@JOB_KINDS.register("attack")
def _attack(job: Job, store: Store) -> tuple[str, ...]:
    """The worst case of a circuit over pairs; blocks that parts have run are taken from the store."""
    model, circuit, sample = _attacked(job, store)
    attack = job.record["attack"]
    facts = facts_of(circuit, model, sample, "kl", ())
    found = worst_case_stored(
        circuit,
        model,
        _prompts(job),
        attack["protocol"],
        Sizes(n_clean=attack["n_clean"], n_corrupted=attack["n_corrupted"]),
        seed=job.record["seed"],
        shelf=PairShelf(store, facts) if job.source.get("parts") else None,
        store=store,
    )
    return (record_id("worst_case", found.result.facts["provenance"]),)


@JOB_KINDS.register("attack-part")
def _attack_part(job: Job, store: Store) -> tuple[str, ...]:
    """Every k-th block of pairs of an attack."""
    model, circuit, sample = _attacked(job, store)
    shelf = PairShelf(store, facts_of(circuit, model, sample, "kl", ()))
    first, step = job.record["part"]
    run_part(circuit, model, sample, (first, step), shelf=shelf)
    return shelf.ids


def _attacked(job: Job, store: Store) -> tuple[Model, Circuit, Any]:
    model = model_of(job)
    attack = job.record["attack"]
    sample = sample_pairs(
        _prompts(job),
        attack["protocol"],
        attack["n_clean"],
        attack["n_corrupted"],
        seed=job.record["seed"],
        prefix=PREFIX,
    )
    return model, kept_circuit(store, job.record["circuit"], model), sample


def _prompts(job: Job) -> PairTask:
    measured = inputs_of(job).measured
    assert isinstance(measured, PairTask)  # `expand` refuses others
    return measured


# ---- models of a zoo ----------------------------------------------------------------------------


def ranked_of(job: Job) -> Ranked:
    """Models, images and settings of a ranking."""
    return ranked(**job.source["rank"])


@JOB_KINDS.register("inspect")
def _inspect(job: Job, store: Store) -> tuple[str, ...]:
    """What one model of a zoo shows on the target images and on known ones: files beside the store.

    They are a cache: a ranking that does not find one makes it again.
    """
    found, key = ranked_of(job), job.record["key"]
    model = found.zoo.load(key, device=found.device)
    _check(job, "model", model.describe())
    _check(job, "task", found.target.read(model).describe())
    found.inspect(key, cache=store.directory / "inspections")
    return ()


@JOB_KINDS.register("rank")
def _rank(job: Job, store: Store) -> tuple[str, ...]:
    """The ranking of all models of a zoo, from what each showed."""
    ranking = ranked_of(job).rank(cache=store.directory / "inspections")
    document = ranking.to_dict()
    return (store.put(document["kind"], document["provenance"], document),)
