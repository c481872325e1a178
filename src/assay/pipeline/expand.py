"""From a plan to its jobs, in an order in which each comes after what it needs."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.analyses.worst_case.image_inputs import no_counterparts
from assay.analyses.worst_case.sampling import check_ablation, grammar_of, usual_protocol
from assay.circuits import load_circuit
from assay.circuits.hub_file import HubFile, is_address
from assay.core.errors import InputError
from assay.core.record import library_version, record_id
from assay.discovery.edges import get_method
from assay.models import Model
from assay.models.placing import SPREADING
from assay.pipeline.inputs import draw_inputs
from assay.pipeline.jobs import Job, Scoring, circuit_record, file_record
from assay.pipeline.models import model_at
from assay.pipeline.plan import DEFAULT_TARGET, AttackChoice, MethodChoice, Plan, SingleJob
from assay.pipeline.prompts import Division
from assay.pipeline.worst import PairCounts, sizes
from assay.tasks import ImageTask, PairTask, Task


def expand(plan: Plan, *, device: str | None = None, dtype: str | None = None) -> tuple[Job, ...]:
    """The jobs of a plan, each after those it needs.

    Every model is loaded once, one at a time, and every task drawn: a job's record holds the hashes of both.

    Args:
        plan: The plan.
        device: Where jobs run their models.
        dtype: Number type of the weights, e.g. `float64`; None: as of `load_model`.

    Raises:
        InputError: If parts of the plan do not fit each other: several workers where every model is spread
            over all devices, gates on images, an attack whose protocol the ablation has no
            use for, a circuit of another graph, a size beyond a model's graph.
        AssayError: What loading a model or drawing a task raises.
    """
    found: dict[str, Job] = {}
    _check_device_map(plan)
    placed: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "device_map": plan.limits.device_map,
        "bos": plan.bos,
    }

    def add(jobs: Iterator[Job]) -> None:
        for job in jobs:
            found.setdefault(job.id, job)

    for name in plan.models:
        location = plan.locate(name)
        source = {"model": location, **placed}
        model = model_at(location, **placed)
        _check_sizes(plan, model, name)
        for task in plan.tasks:
            for seed in plan.seeds:
                made = _Made(plan=plan, model=model, model_name=name, task=task, seed=seed, source=source)
                for method in plan.methods:
                    add(made.product(method))
        del model
        gc.collect()  # before the next one is loaded
    single: dict[str, tuple[str, ...]] = {}
    for job in plan.jobs:
        needs = tuple(each for other in job.needs for each in single[other])
        jobs = list(_single(plan, job, {"model": plan.locate(job.model), **placed}, needs))
        single[job.name] = tuple(each.id for each in jobs)
        add(iter(jobs))
    return tuple(found.values())


@dataclass(frozen=True, kw_only=True, eq=False)
class _Made:
    """Jobs of one model on one task under one seed."""

    plan: Plan
    model: Model
    model_name: str
    task: str
    seed: int
    source: Mapping[str, Any]

    @cached_property
    def inputs(self) -> Division:
        return draw_inputs(self.model, self.plan.locate(self.task), n=self.plan.n, seed=self.seed)

    @property
    def objective(self) -> str:
        return self.plan.objective or self.inputs.measured.objective

    @property
    def ablation(self) -> str:
        return self.plan.ablation or self.inputs.measured.ablation

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

    def job(self, kind: str, label: str, record: Mapping[str, Any], **facts: Any) -> Job:
        """A job; the seed is in its name only where there are several."""
        seeds = [f"seed {self.seed}"] if len(self.plan.seeds) > 1 else []
        source = {**self.source, "task": self.plan.locate(self.task), "n": self.plan.n}
        verb = "read" if kind == "circuit-file" else kind
        return Job(
            name=" ".join([verb, self.model_name, self.task, label, *seeds]),
            kind=kind,
            record=record,
            source=source | facts.pop("source", {}),
            **facts,
        )

    def product(self, choice: MethodChoice) -> Iterator[Job]:
        """Scores, circuits and what is asked of them, for one method."""
        method = get_method(choice.method, **choice.options)
        task = self.inputs.discovery
        record = {
            **self.base,
            "discovery": task.describe(),
            "method": {
                "key": method.key,
                "options": choice.options,
                "steps": choice.steps,
                "quadrature": choice.quadrature,
            },
            # The method's own objective, such as `kl` of learned masks, unless the plan names one.
            "objective": self.plan.objective or method.objective or task.objective,
            "ablation": self.ablation,
        }
        scoring = Scoring(record=record, model=self.model, task=task)
        discover = self.job("discover", choice.label, record)
        yield discover
        wanted: Sequence[dict[str, Any]] = [{"size": size} for size in self.plan.sizes]
        for chosen in wanted or [{"target": self.plan.target or DEFAULT_TARGET}]:
            yield from self.circuit(choice, discover, scoring.stage.record, chosen)

    def circuit(
        self, choice: MethodChoice, discover: Job, scores: Mapping[str, Any], chosen: Mapping[str, Any]
    ) -> Iterator[Job]:
        """One circuit out of the scores, and what is asked of it."""
        record = {**discover.record, "measured": self.inputs.measured.describe(), **chosen}
        if "target" in chosen:
            record["judged_by"] = self.objective
        size = f"{chosen['size']} edges" if "size" in chosen else f"target {chosen['target']:g}"
        label = f"{choice.label} {size}"
        select = self.job("select", label, record, needs=(discover.id,))
        yield select
        identity = record_id("circuit", circuit_record(record, scores))
        yield from self.asked_of(identity, select, label, self.plan.metrics)

    def asked_of(self, circuit: str, made: Job, label: str, metrics: Sequence[str]) -> Iterator[Job]:
        """Measurements, gates and the attack on one circuit."""
        measured = self.inputs.measured
        record = {
            **self.base,
            "measured": measured.describe(),
            "circuit": circuit,
            "objective": self.objective,
            "ablation": self.ablation,
        }
        needs = (made.id,)
        if metrics:
            asked = {"metrics": list(metrics), "n_random": self.plan.n_random}
            yield self.job("measure", label, {**record, **asked}, needs=needs)
        if self.plan.gates:
            if not isinstance(measured, PairTask):
                raise InputError(
                    f"gates are defined on prompts, but task {self.task!r} has images; make a separate plan "
                    "for the images"
                )
            yield self.job("calibrate", label, {**record, "gates": list(self.plan.gates)}, needs=needs)
        if self.plan.attack is not None:
            yield self.attacked(self.plan.attack, measured, record, label, needs)

    def attacked(
        self,
        attack: AttackChoice,
        measured: Task,
        record: Mapping[str, Any],
        label: str,
        needs: tuple[str, ...],
    ) -> Job:
        """The worst case of a circuit under the plan's ablation."""
        protocol = attack.protocol or usual_protocol(measured, self.ablation)
        check_ablation(self.ablation, protocol, enumerate=False)
        if isinstance(measured, ImageTask) and measured.corrupted is None and self.ablation == "resample":
            raise no_counterparts(measured)
        size = sizes(protocol, n_clean=attack.n_clean, n_corrupted=attack.n_corrupted, n_pairs=attack.n_pairs)
        if protocol == "file" or (grammar_of(measured) is None and protocol == "inputs"):
            size = PairCounts(n_clean=measured.n, n_corrupted=measured.n)
        asked = {"attack": {"protocol": protocol, **vars(size)}}
        return self.job("attack", label, {**record, **asked}, needs=needs)


def _check_device_map(plan: Plan) -> None:
    """Refuse what does not go with a model whose parts are placed apart."""
    way, workers = plan.limits.device_map, plan.limits.workers
    if way in SPREADING and (workers or 1) > 1:
        raise InputError(
            f"device_map {way!r} spreads every model over all devices, and {workers} workers would share "
            "them; give 1 worker, or leave the map out, so that each job has a device of its own"
        )


def _check_sizes(plan: Plan, model: Model, name: str) -> None:
    """Refuse sizes that no circuit of a model has."""
    n_edges = model.graph.n_edges
    if beyond := [size for size in plan.sizes if size > n_edges]:
        raise InputError(
            f"sizes: a circuit of {beyond[0]:,} edges was requested, but the graph of model {name!r} has "
            f"{n_edges:,}; give sizes from 1 to {n_edges:,}, or make a separate plan for this model"
        )


def _single(plan: Plan, job: SingleJob, source: Mapping[str, Any], needs: tuple[str, ...]) -> Iterator[Job]:
    """A circuit from a file, and its measurements."""
    model = model_at(source["model"], *map(source.get, ("device", "dtype", "device_map", "bos")))
    path = plan.locate(job.circuit)
    if not is_address(path) and not Path(path).is_file():
        raise InputError(f"[[job]] {job.name!r}: circuit file {path} does not exist")
    circuit = load_circuit(path, model.graph)
    if is_address(path):  # the job must find what the plan was made for, whatever is pushed meanwhile
        path = str(HubFile.parse(path).at(circuit.provenance["hub"]["revision"]))
    for seed in plan.seeds:
        made = _Made(plan=plan, model=model, model_name=job.model, task=job.task, seed=seed, source=source)
        record = {**made.base, "circuit": {"hash": circuit.hash}}
        read = made.job(
            "circuit-file",
            job.name,
            record,
            source={"circuit": path},
            needs=needs,
        )
        yield read
        yield from made.asked_of(record_id("circuit", file_record(record)), read, job.name, job.metrics)
