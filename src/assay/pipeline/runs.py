"""Runs of a circuit on examples, and measurements of them as a stage."""

from dataclasses import dataclass
from typing import Any

from assay.circuits import Circuit
from assay.core.measurement import Measurement
from assay.execution import CircuitRuns
from assay.metrics import measure, measurement_provenance
from assay.models import Model
from assay.objectives import Objective
from assay.pipeline.checks import registered
from assay.pipeline.stage import Content, Stage, document_stage
from assay.store import About, Store
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
    objective: str | Objective | None
    ablation: str | None
    batch_size: int | None
    seed: int

    def on(self, task: Task, circuit: Circuit) -> CircuitRuns:
        """Runs of a circuit on a task."""
        return CircuitRuns(
            self.model,
            task,
            circuit,
            ablation=self.ablation,
            objective=self.objective,
            batch_size=self.batch_size,
            seed=self.seed,
        )


def measurement_stage(runs: CircuitRuns, metric: str, *, random_circuits: int = 0) -> Stage[Content]:
    """One measurement: `Measurement.to_dict` with the size of the circuit."""

    def compute() -> Content:
        made = measure(
            runs.circuit, runs.model, runs.task, metric, runs=runs, random_circuits=random_circuits
        )
        payload = {**made.to_dict(), "n_edges": runs.circuit.n_edges}
        return Content(payload=payload, about=about_measurement(made, runs), arrays=made.arrays())

    return document_stage(
        "measurement",
        measurement_provenance(runs, metric, random_circuits=random_circuits),
        compute,
        identified=registered(runs.objective_object, runs.ablation_object),
    )


def about_measurement(made: Measurement, runs: CircuitRuns) -> About:
    """What a measurement is found by."""
    unsolved = "task not solved" if "task_not_solved" in made.warnings else ""
    interval = made.interval()
    return About(
        model=runs.model.id,
        task=runs.task.name,
        method=runs.circuit.provenance.get("method"),
        metric=made.name,
        n=made.n,
        seed=runs.seed,
        value=made.value,
        low=interval.low,
        high=interval.high,
        status=made.status,
        name=", ".join(part for part in (f"{runs.circuit.n_edges:,} edges", unsolved) if part),
        circuit=runs.circuit.hash,
        size=runs.circuit.n_edges,
        ablation=runs.ablation,
    )


def measure_stored(
    runs: CircuitRuns, metric: str, *, random_circuits: int = 0, store: Store | None = None
) -> dict[str, Any]:
    """The record of one measurement (`Measurement.to_dict`), from the store where it was made before.

    Under an objective or ablation that is not registered the store is left alone.
    """
    return measurement_stage(runs, metric, random_circuits=random_circuits).run(store).value.payload
