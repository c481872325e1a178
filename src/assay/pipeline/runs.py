"""Runs of a circuit on examples; scores of edges, and measurements of circuits, as stages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.circuits import Circuit, EdgeScores
from assay.discovery.edges import discover, get_method
from assay.discovery.edges.method import provenance_of
from assay.execution import Ablation, CircuitRuns
from assay.metrics import measure, measurement_provenance
from assay.models import Model
from assay.objectives import Objective
from assay.pipeline.checks import registered
from assay.pipeline.stage import Content, Stage, document_stage
from assay.store import About, Store, StoredResult
from assay.tasks import Task


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
    objective: str | Objective | None = None,
    ablation: str | Ablation | None = None,
    steps: int | str = 5,
    quadrature: str = "midpoint",
    seed: int = 0,
    batch_size: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Stage[EdgeScores]:
    """Scores of all edges; the arguments are those of `assay.discover`, `options` those of the method.

    Under an objective or ablation that is not registered nothing is stored.
    """
    configured = get_method(method, **(options or {}))
    choices = configured.choices(
        task, objective=objective, ablation=ablation, steps=steps, quadrature=quadrature, seed=seed
    )

    def compute() -> EdgeScores:
        return discover(model, task, configured, **vars(choices), batch_size=batch_size)

    def read(stored: StoredResult) -> EdgeScores:
        values, details = stored.arrays["values"], stored.payload["details"]
        return EdgeScores(model.graph, values, provenance=stored.provenance, details=details)

    def write(scores: EdgeScores) -> Content:
        about = About(
            model=model.id,
            task=task.name,
            method=configured.key,
            n=task.n,
            seed=seed,
            ablation=choices.ablation.key,
        )
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
            name=f"{circuit.n_edges:,} edges{unsolved}",
            circuit=circuit.hash,
            size=circuit.n_edges,
            ablation=runs.ablation,
        )
        payload = {**made.to_dict(), "n_edges": circuit.n_edges}
        return Content(payload=payload, about=about, arrays=made.arrays())

    record = measurement_provenance(runs, metric, random_circuits=random_circuits)
    identified = registered(runs.objective_object, runs.ablation_object)
    return document_stage("measurement", record, compute, identified=identified)


def measure_stored(
    runs: CircuitRuns, metric: str, *, random_circuits: int = 0, store: Store | None = None
) -> dict[str, Any]:
    """The record of one measurement (`Measurement.to_dict`), from the store where it was made before."""
    return measurement_stage(runs, metric, random_circuits=random_circuits).run(store).value.payload
