"""The circuit that a command judges: the one of `--circuit`, else one discovered for it."""

from pathlib import Path
from typing import TYPE_CHECKING

from assay.app.cli.border import TIMED
from assay.app.settings import DEFAULT_STORE, Discovering, OfCircuit, keywords
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.circuits import Circuit, HeadCircuit
    from assay.execution import CircuitRuns
    from assay.graph import Graph
    from assay.models import Model
    from assay.pipeline import Draws, Progress, Workload
    from assay.store import Store
    from assay.tasks import Task


def given_circuit(
    settings: OfCircuit, graph: "Graph", *, size: int | None, option: str = "--edges"
) -> "Circuit | HeadCircuit | None":
    """The circuit of `--circuit`, as it is described; None where one is to be discovered.

    Args:
        settings: Of the command.
        graph: The graph of the model.
        size: What another option says about the size of a discovered circuit.
        option: That option.
    """
    from assay.pipeline.circuits import read_circuit
    from assay.store import Store

    if settings.circuit is None:
        return None
    if size is not None:
        raise InputError(
            f"{option} sets the size of a discovered circuit, but --circuit gives a circuit; use only one"
        )
    exists = settings.store is not None or Path(DEFAULT_STORE).exists()
    return read_circuit(
        settings.circuit,
        graph,
        lambda: Store(settings.store or DEFAULT_STORE, create=False) if exists else None,
    )


def circuit_of(
    settings: OfCircuit, graph: "Graph", *, size: int | None, option: str = "--edges"
) -> "Circuit | None":
    """`given_circuit` as the edges to keep."""
    from assay.circuits import Circuit, HeadCircuit

    circuit = given_circuit(settings, graph, size=size, option=option)
    return Circuit.from_heads(graph, circuit) if isinstance(circuit, HeadCircuit) else circuit


def runs_of(
    settings: OfCircuit,
    model: "Model",
    prompts: "Task | Draws | str",
    circuit: "Circuit | None" = None,
    *,
    size: int | None,
    ablation: str | None,
    n: int | None = None,
    store: "Store",
    progress: "Progress",
) -> "CircuitRuns":
    """Runs of a circuit on prompts; without one, of the circuit that the settings discover."""
    from assay import pipeline

    asked = keywords(
        settings, pipeline.runs_of, top=size, ablation=ablation, n=n, store=store, progress=progress
    )
    return pipeline.runs_of(model, prompts, circuit, **asked)


def plan_discovery(settings: Discovering, model: "Model", n: int) -> "Workload":
    """What the discovery would run."""
    from assay import pipeline

    return pipeline.plan_discovery(model, method=settings.method, n=n, steps=settings.steps)


def some_inputs(model: "Model", task: str, images: str | None = None) -> "Task":
    """A few inputs, to time a pass on."""
    from assay.pipeline.inputs import read_inputs

    return read_inputs(task, images, model, n=None if Path(task).suffix == ".jsonl" else TIMED, seed=0)
