"""Edge scores as a stage."""

from collections.abc import Mapping
from typing import Any

from assay.circuits import EdgeScores
from assay.discovery.edges import EdgeMethod, discover, get_method
from assay.discovery.edges.method import Choices, provenance_of
from assay.execution import Ablation
from assay.models import Model
from assay.objectives import Objective
from assay.pipeline.checks import registered
from assay.pipeline.stage import Content, Stage
from assay.store import About, Store, StoredResult
from assay.tasks import Task


def discovery_stage(
    model: Model, task: Task, method: EdgeMethod, settings: Choices, *, batch_size: int | None = None
) -> Stage[EdgeScores]:
    """Scores of all edges by a method."""

    def compute() -> EdgeScores:
        return discover(model, task, method, **vars(settings), batch_size=batch_size)

    def read(stored: StoredResult) -> EdgeScores:
        values, details = stored.arrays["values"], stored.payload["details"]
        return EdgeScores(model.graph, values, provenance=stored.provenance, details=details)

    def write(scores: EdgeScores) -> Content:
        payload = {"details": dict(scores.details), "graph": scores.graph.describe()}
        return Content(payload=payload, about=about, arrays={"values": scores.values})

    about = About(
        model=model.id,
        task=task.name,
        method=method.key,
        n=task.n,
        seed=settings.seed,
        ablation=settings.ablation.key,
    )

    # Steps and quadrature count for methods without use for them too: identities rest on it.
    asked = {"steps": settings.steps, "quadrature": settings.quadrature}
    return Stage(
        kind="scores",
        record=provenance_of(model, task, method, settings) | asked,
        compute=compute,
        write=write,
        read=read,
        identified=registered(settings.objective, settings.ablation),
    )


def discover_stored(
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
    store: Store | None = None,
) -> EdgeScores:
    """`assay.discover`, taken from the store where the same scores were computed before.

    Under an objective or ablation that is not registered the store is left alone.

    Args:
        model: The model.
        task: The examples.
        method: Key of the method.
        objective: As in `assay.discover`.
        ablation: As there.
        steps: As there.
        quadrature: As there.
        seed: As there.
        batch_size: Examples per pass.
        options: Options of the method.
        store: Where scores are taken from and kept.
    """
    configured = get_method(method, **(options or {}))
    settings = configured.choices(
        task, objective=objective, ablation=ablation, steps=steps, quadrature=quadrature, seed=seed
    )
    return discovery_stage(model, task, configured, settings, batch_size=batch_size).run(store).value
