"""The one engine of work that is kept: a stage is computed once and read from the store after that.

The two that every other rests on, scores of edges and measurements of circuits, are here too, and what is
refused before any work begins: names, devices, places that cannot be written.
"""

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
from torch import Tensor

from assay.circuits import Circuit, EdgeScores, Level, NodeScores, Scores
from assay.core.errors import AssayWarning, UnknownNameError, writing
from assay.core.record import record_id
from assay.discovery.edges import discover, get_method
from assay.discovery.edges.method import provenance_of
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.execution import Ablation, CircuitRuns, get_ablation
from assay.execution.ablation import named
from assay.metrics import find_metric, measure, measurement_provenance
from assay.models import Model
from assay.models.loading import check_device
from assay.objectives import Objective, get_objective, is_registered
from assay.store import About, Store, StoredResult
from assay.tasks import TASKS, Task, digits_source, is_task_file


def check_writable(directory: Path, *, make: bool = False) -> None:
    """Refuse a directory in which no file can be made, before any work is done for it.

    Args:
        directory: It need not exist.
        make: Make it if it does not exist; otherwise nothing is left behind.

    Raises:
        OutputError: With the reason the system gives.
    """
    with writing(f"write to {directory}", "choose a writable directory"):
        if make:
            directory.mkdir(parents=True, exist_ok=True)
        existing = next(
            place for place in (directory, *directory.absolute().parents) if os.path.exists(place)
        )
        with tempfile.TemporaryFile(dir=existing):
            pass


def check_options(
    *,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    task: Task | str | None = None,
    ablation: str | None = None,
    objective: str | Objective | None = None,
    metrics: Sequence[str] | None = None,
    device: str | None = None,
) -> None:
    """Refuse unknown names before a model is loaded; the errors name near matches or all valid names."""
    if method is not None:
        get_method(method, **(options or {}))
    if isinstance(task, str) and not is_task_file(task) and digits_source(task) is None:
        TASKS[task.replace("_", "-")]
    if ablation is not None:
        get_ablation(ablation)
    if objective is not None:
        get_objective(objective)
    for key in metrics or ():
        find_metric(key)
    if device is not None:
        check_device(device)


def registered(objective: Objective, ablation: Ablation) -> bool:
    """Whether both are what their keys name; records hold keys, so a store can tell only these apart."""
    return is_registered(objective) and named(ablation)


def usual_replacement(ablation: str) -> str:
    """What gates replace single heads by under an ablation: `mean` where that is defined for edges alone."""
    return ablation if ablation in INTERVENTIONS else "mean"


T = TypeVar("T")
Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Progress that is not shown."""
    del stage, done, total


@contextmanager
def noted() -> Iterator[list[str]]:
    """The warnings of this package that are given meanwhile; they are shown as ever."""
    notes, show = list[str](), warnings.showwarning

    def keep(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, AssayWarning):
            notes.append(str(message))
        show(message, category, *where, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", AssayWarning)  # also one that this process has shown before
        warnings.showwarning = keep
        yield notes


@dataclass(frozen=True, kw_only=True, eq=False)
class Content:
    """What a stage leaves in a store.

    Attributes:
        payload: The result, JSON values.
        about: What it is found by.
        arrays: Its large parts by name.
    """

    payload: dict[str, Any]
    about: About = field(default_factory=About)
    arrays: Mapping[str, Tensor | np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Memo(Generic[T]):
    """The value of a stage, and whether a store already held it."""

    value: T
    cached: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage(Generic[T]):
    """One result as a function of its record.

    Attributes:
        kind: What it is; the kind of its row in a store.
        record: All that the result is a function of. Its hash under `kind` is the identity of the result.
        compute: Makes the value.
        write: What of the value is stored; default: the value is a `Content`.
        read: The value of a stored result; default: a `Content`, without arrays.
        identified: Whether the record tells the result from all others. Your own objective or ablation is
            known by a name that does not identify it, so nothing is stored under one.
    """

    kind: str
    record: Mapping[str, Any]
    compute: Callable[[], T]
    write: Callable[[T], Content] = lambda content: cast(Content, content)
    read: Callable[[StoredResult], T] = lambda stored: cast(
        Any, Content(payload=stored.payload, about=stored)
    )
    identified: bool = True

    @cached_property
    def id(self) -> str:
        """Identity of the result, and its key in a store."""
        return record_id(self.kind, self.record)

    def run(self, store: Store | None = None) -> Memo[T]:
        """The value from the store, else computed and stored there."""
        store = store if self.identified else None
        if store is not None and store.has(self.id):
            with suppress(UnknownNameError):  # removed since
                return Memo(value=self.read(store.get(self.id)), cached=True)
        value = self.compute()
        if store is not None:
            content = self.write(value)
            store.put(self.kind, self.record, content.payload, content.arrays, about=content.about)
        return Memo(value=value, cached=False)


# ---- scores and measurements --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class RunSettings:
    """How circuits of a model are run.

    Attributes:
        model: The model.
        objective: Loss whose negative is the margin; None: the task's own.
        ablation: What a cut edge carries; None: the task's own.
        batch_size: Examples per pass.
        seed: Root seed of all random draws.
    """

    model: Model
    objective: str | Objective | None = None
    ablation: str | None = None
    batch_size: int | None = None
    seed: int = 0

    def on(self, task: Task, circuit: Circuit) -> CircuitRuns:
        """Runs of a circuit on a task."""
        how = dict(vars(self))
        return CircuitRuns(how.pop("model"), task, circuit, **how)


def discovery_stage(
    model: Model,
    task: Task,
    method: str,
    *,
    level: Level = "edge",
    objective: str | Objective | None = None,
    ablation: str | Ablation | None = None,
    steps: int = 5,
    quadrature: str = "midpoint",
    seed: int = 0,
    batch_size: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Stage[Scores]:
    """Scores of all edges, nodes or neurons; arguments as of `assay.discover`, `options` those of the method.

    Under an objective or ablation that is not registered nothing is stored.
    """
    configured = get_method(method, **(options or {}))
    choices = configured.choices(
        task,
        objective=objective,
        ablation=ablation,
        steps=steps,
        quadrature=quadrature,
        level=level,
        seed=seed,
    )

    def compute() -> Scores:
        scores: Scores = discover(model, task, configured, **vars(choices), batch_size=batch_size)
        return scores

    def read(stored: StoredResult) -> Scores:
        values, details = stored.arrays["values"], stored.payload["details"]
        kind = EdgeScores if level == "edge" else NodeScores
        return kind(model.graph, values, provenance=stored.provenance, details=details)

    def write(scores: Scores) -> Content:
        of: dict[str, Any] = {"model": model.id, "task": task.name, "method": configured.key}
        about = About(**of, n=task.n, seed=seed, ablation=choices.ablation.key)
        payload = {"details": dict(scores.details), "graph": scores.graph.describe()}
        return Content(payload=payload, about=about, arrays={"values": scores.values})

    # Steps and quadrature count for methods without use for them too: identities rest on it.
    asked = {"steps": choices.steps, "quadrature": choices.quadrature}
    return Stage(
        kind="scores",
        record=provenance_of(model, task, configured, choices) | asked,
        compute=compute,
        write=write,
        read=read,
        identified=registered(choices.objective, choices.ablation),
    )


def measurement_stage(runs: CircuitRuns, metric: str, *, random_circuits: int = 0) -> Stage[Content]:
    """One measurement: `Measurement.to_dict` with the size of the circuit.

    Under an objective or ablation that is not registered nothing is stored.
    """
    circuit, task, model = runs.circuit, runs.task, runs.model

    def compute() -> Content:
        made = measure(circuit, model, task, metric, runs=runs, random_circuits=random_circuits)
        unsolved = ", task not solved" if "task_not_solved" in made.warnings else ""
        interval = made.interval()
        about = About(
            model=model.id,
            task=task.name,
            method=circuit.provenance.get("method"),
            metric=made.name,
            n=made.n,
            seed=runs.seed,
            value=made.value,
            low=interval.low,
            high=interval.high,
            status=made.status,
            name=f"{circuit.n_items:,} {circuit.level}s{unsolved}",
            circuit=circuit.hash,
            size=circuit.n_items,
            ablation=runs.ablation,
        )
        payload = {**made.to_dict(), "n_edges": circuit.n_edges}
        return Content(payload=payload, about=about, arrays=made.arrays())

    record = measurement_provenance(runs, metric, random_circuits=random_circuits)
    identified = registered(runs.objective_object, runs.ablation_object)
    return Stage(kind="measurement", record=record, compute=compute, identified=identified)


def measure_stored(
    runs: CircuitRuns, metric: str, *, random_circuits: int = 0, store: Store | None = None
) -> dict[str, Any]:
    """The record of one measurement (`Measurement.to_dict`), from the store where it was made before."""
    return measurement_stage(runs, metric, random_circuits=random_circuits).run(store).value.payload
