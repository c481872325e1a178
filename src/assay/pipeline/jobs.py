"""Jobs: the units of work of a sweep, each a pure function of its record, and those that a plan means.

A job's record holds all that its results are a function of: library version, weights, examples, settings
and the identities of what it builds on. The hash of kind and record is the job's id. What it needs to find
its inputs again (paths, names) is kept beside the record and does not count. The last result of a job is a
row of kind `job` under its id, so a job is done if and only if the store holds that row, and doing it twice
changes nothing.
"""

import functools
import gc
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.analyses.worst_case import PROTOCOLS
from assay.analyses.worst_case.sampling import check_ablation, grammar_of, usual_protocol
from assay.circuits import Circuit, Scores
from assay.core.errors import InputError, check_name
from assay.core.record import library_version, record_id
from assay.discovery.edges import get_method
from assay.execution.batches import assumed_memory
from assay.models import Model, load_model, prompted
from assay.models.loading import number_type
from assay.pipeline.circuits import keep_circuit, stored_circuit
from assay.pipeline.gates import calibrate_measured
from assay.pipeline.plan import Plan
from assay.pipeline.prompts import Division, draw_inputs
from assay.pipeline.sizing import RankedItems, Targets, size_circuit
from assay.pipeline.stage import RunSettings, Stage, discovery_stage, measurement_stage
from assay.pipeline.worst import pairs_of, sizes, worst_case_stage
from assay.store import About, Store
from assay.tasks import PairTask, Task


# Bytes that every job counts on, whatever is free: passes of another size round otherwise.
JOB_MEMORY = 2**32
_PLACE = ("model", "device", "dtype", "bos")  # of a job's source: what loads its model


@dataclass(frozen=True, kw_only=True)
class Job:
    """One unit of work.

    Attributes:
        name: For people, unique within a plan: `"measure mini ioi eap 200"`.
        kind: Key in `KINDS`.
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
    """Do a job: put its results into a store, unless they are there, and its own row last.

    Returns:
        Ids of its results.

    Raises:
        AssayError: Whatever the work raises; nothing of the job is then marked as done.
    """
    with assumed_memory(JOB_MEMORY):
        results = KINDS[job.kind](job, store)
    record = job.record
    about = About(
        model=record["model"]["id"],
        task=record.get("measured", record.get("discovery", {})).get("name"),
        method=record.get("method", {}).get("key"),
        seed=record["seed"],
        name=job.name,
        ablation=record["ablation"],
    )
    store.put("job", job.provenance, {"results": list(results)}, about=about)
    return results


# ---- inputs, kept for the next job of the same worker --------------------------------------------


def _load(model: str, device: str | None, dtype: str | None, bos: bool | None) -> Model:
    """The model of a job's source."""
    loaded = load_model(model, device=device, dtype=number_type(dtype))
    return loaded if bos is None else prompted(loaded, bos=bos)


_model = functools.lru_cache(maxsize=1)(_load)


@functools.lru_cache(maxsize=4)
def _inputs(place: tuple[Any, ...], task: str, n: int | None, seed: int) -> Division:
    return draw_inputs(_model(*place), task, n=n, seed=seed)


def model_of(job: Job) -> Model:
    """The job's model."""
    return _model(*map(job.source.get, _PLACE))


def inputs_of(job: Job) -> Division:
    """The job's examples."""
    place = tuple(map(job.source.get, _PLACE))
    return _inputs(place, job.source["task"], job.source["n"], job.record["seed"])


# ---- circuits -----------------------------------------------------------------------------------


def scores_stage(record: Mapping[str, Any], model: Model, task: Task) -> Stage[Scores]:
    """The scores of all edges that a job's record describes, as one result."""
    how = record["method"]
    settings = {key: record[key] for key in ("objective", "ablation", "seed", "batch_size")}
    settings |= {key: how[key] for key in ("steps", "quadrature", "options")}
    return discovery_stage(model, task, how["key"], **settings)


def _discover(job: Job, store: Store) -> tuple[str, ...]:
    """Scores of all edges."""
    stage = scores_stage(job.record, model_of(job), inputs_of(job).discovery)
    stage.run(store)
    return (stage.id,)


def circuit_record(job_record: Mapping[str, Any], scores: Mapping[str, Any]) -> dict[str, Any]:
    """What a selected circuit is a function of."""
    asked = ("size", "target", "target_kl")
    chosen = {key: job_record[key] for key in asked if job_record.get(key) is not None}
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


def _select(job: Job, store: Store) -> tuple[str, ...]:
    """The connected circuit of the strongest edges: so many, or as few as meet a target."""
    stage = scores_stage(job.record, model_of(job), inputs_of(job).discovery)
    chosen: dict[str, Any] = {"size": job.record.get("size")}
    if "target" in job.record:
        target, share = job.record["target"], job.record["target_kl"]
        chosen["targets"] = Targets(faithfulness=target, distribution=share)
    ranking = RankedItems(scores=stage.run(store).value)
    sized = size_circuit([ranking], inputs_of(job), settings_of(job), **chosen)
    facts: dict[str, Any] = {"size": sized.size}
    if sized.kept is not None:
        facts |= {**vars(sized.kept), "confirmed": sized.confirmed}
    return (keep_circuit(store, circuit_record(job.record, stage.record), sized.circuit, facts),)


# ---- what is asked of a circuit -----------------------------------------------------------------


def _circuit_of(job: Job, store: Store) -> Circuit:
    return stored_circuit(store.get(job.record["circuit"]), model_of(job).graph)


def settings_of(job: Job) -> RunSettings:
    """How a job runs circuits."""
    record = job.record
    how = {key: record[key] for key in ("ablation", "batch_size", "seed")}
    return RunSettings(model=model_of(job), objective=record.get("judged_by", record["objective"]), **how)


def _measure(job: Job, store: Store) -> tuple[str, ...]:
    """Metrics of a circuit, which share its runs."""
    runs = settings_of(job).on(inputs_of(job).measured, _circuit_of(job, store))
    n_random = job.record["n_random"]
    stages = [measurement_stage(runs, metric, random_circuits=n_random) for metric in job.record["metrics"]]
    for stage in stages:
        stage.run(store)
    return tuple(stage.id for stage in stages)


def _calibrate(job: Job, store: Store) -> tuple[str, ...]:
    """Gates on a circuit."""
    measured, gates, seed = inputs_of(job).measured, job.record["gates"], job.record["seed"]
    assert isinstance(measured, PairTask)  # `expand` refuses others
    circuit, settings = _circuit_of(job, store), settings_of(job)
    calibration = calibrate_measured(circuit, measured, settings, gates=gates, seed=seed, store=store)
    return (str(calibration.document["id"]),)


def _attack(job: Job, store: Store) -> tuple[str, ...]:
    """The worst case of a circuit over pairs."""
    attack, model = job.record["attack"], model_of(job)
    size = attack["n_clean"], attack["n_corrupted"]
    task = model.bind(inputs_of(job).measured)
    how = {"ablation": job.record["ablation"], "seed": job.record["seed"]}
    sample = pairs_of(task, attack["protocol"], size, **how)
    stage = worst_case_stage(_circuit_of(job, store), model, sample)
    stage.run(store)
    return (stage.id,)


KINDS: dict[str, Callable[[Job, Store], tuple[str, ...]]] = {
    "discover": _discover,
    "select": _select,
    "measure": _measure,
    "calibrate": _calibrate,
    "attack": _attack,
}


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
    place = {"device": device, "dtype": dtype, "bos": plan.bos}
    jobs: dict[str, Job] = {}
    for name in plan.models:
        jobs |= {job.id: job for job in _product(plan, name, place, here or device)}
        gc.collect()  # before the next model is loaded
    return tuple(jobs.values())


def _product(plan: Plan, name: str, place: Mapping[str, Any], here: str | None) -> Iterator[Job]:
    """The jobs of one model on all tasks, under all seeds."""
    source = {"model": plan.locate(name), **place}
    model = _load(**source | {"device": here})
    n_edges = model.graph.n_edges
    if beyond := [size for size in plan.sizes if size > n_edges]:
        raise InputError(f"sizes has {beyond[0]:,}, but model {name!r} has {n_edges:,} edges; plan it apart")
    for task, seed in itertools.product(plan.tasks, plan.seeds):
        where = {**source, "task": plan.locate(task), "n": plan.n}
        yield from _on_task(plan, model, f"{name} {task}", where, seed)


def _on_task(plan: Plan, model: Model, name: str, source: Mapping[str, Any], seed: int) -> Iterator[Job]:
    """Scores, circuits and what is asked of them, of one model on one task under one seed."""
    draws = draw_inputs(model, source["task"], n=plan.n, seed=seed)
    task, measured = draws.discovery, draws.measured
    base: dict[str, Any] = {"library": library_version(), "model": model.describe(), "seed": seed}
    base |= {key: getattr(plan.limits, key) for key in ("batch_size", "threads")}
    ablation = plan.ablation or measured.ablation
    judged: dict[str, Any] = {
        "measured": measured.describe(),
        "objective": plan.objective or measured.objective,
    }
    questions = [*_questions(plan, measured, ablation)]

    def job(kind: str, label: str, record: dict[str, Any], *needs: Job) -> Job:
        seeds = [f"seed {seed}"] if len(plan.seeds) > 1 else []
        whole, before = " ".join([kind, name, label, *seeds]), tuple(each.id for each in needs)
        return Job(name=whole, kind=kind, record=base | record, source=source, needs=before)

    for choice in plan.methods:
        method = get_method(choice.method, **choice.options)
        how = {key: getattr(choice, key) for key in ("options", "steps", "quadrature")}
        # The method's own objective, such as `kl` of learned masks, unless the plan names one.
        objective = plan.objective or method.objective or task.objective
        record: dict[str, Any] = {"discovery": task.describe(), "method": {"key": method.key, **how}}
        record |= {"objective": objective, "ablation": ablation}
        discover = job("discover", choice.label, record)
        yield discover
        scores = scores_stage(discover.record, model, task).record
        for size in plan.sizes or (None,):
            facts: dict[str, Any] = {"size": size}
            label = f"{choice.label} {size} edges"
            if size is None:
                facts = {"target": plan.target, "target_kl": plan.target_kl, "judged_by": judged["objective"]}
                label = f"{choice.label} target {plan.target:g}"
            select = job("select", label, {**record, "measured": judged["measured"], **facts}, discover)
            yield select
            circuit = record_id("circuit", circuit_record(select.record, scores))
            for kind, question in questions:
                of_circuit = {**judged, "circuit": circuit, "ablation": ablation}
                yield job(kind, label, of_circuit | question, select)


def _questions(plan: Plan, measured: Task, ablation: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is asked of each circuit: kinds of jobs, with their part of the record."""
    if plan.metrics:
        yield "measure", {"metrics": list(plan.metrics), "n_random": plan.n_random}
    if plan.gates:
        if not isinstance(measured, PairTask):
            raise InputError(f"gates need prompts, but task {measured.name!r} has images; plan it apart")
        yield "calibrate", {"gates": list(plan.gates)}
    if (choice := plan.attack) is not None:
        protocol = choice.protocol or usual_protocol(measured, ablation)
        check_name("protocol", protocol, PROTOCOLS)
        check_ablation(ablation, protocol)
        counts = {key: getattr(choice, key) for key in ("n_clean", "n_corrupted", "n_pairs")}
        size = sizes(protocol, **counts)
        if protocol == "file" or (grammar_of(measured) is None and protocol == "inputs"):
            size = measured.n, measured.n
        yield "attack", {"attack": {"protocol": protocol, "n_clean": size[0], "n_corrupted": size[1]}}
