"""Calibrations as a job: kept in the store under their record, continued from the tables beside it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.analyses.calibration.battery import USUAL_PROMPTS, Columns, gates_on_same_prompts
from assay.circuits import Circuit
from assay.core.random import stream
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.discovery.heads.table import AnyCircuit
from assay.execution import CircuitRuns
from assay.models import Model
from assay.objectives import get_objective, is_registered
from assay.pipeline.stage import Content, Progress, RunSettings, Stage, usual_replacement
from assay.store import About, Store
from assay.tasks import PairTask


TABLES = "tables"  # folder of measurement tables inside a store
# Gates that read the runs of model and circuit that every audit has, and no others.
FREE_GATES = ("C11", "C13", "C23", "M93")


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredCalibration:
    """The document of a calibration, and whether a store already held it."""

    document: dict[str, Any]
    cached: bool

    @property
    def failed(self) -> tuple[str, ...]:
        """Published codes of the gates that fail."""
        return tuple(gate["code"] for gate in self.document["gates"] if gate["verdict"]["status"] == "fail")


def calibrate_stored(
    circuit: AnyCircuit,
    model: Model,
    task: PairTask,
    *,
    store: Store | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> StoredCalibration:
    """`assay.calibrate_all`, its verdicts and its table taken from the store where they were made before.

    Args:
        circuit: What is judged.
        model: The model.
        task: The prompts.
        store: Where verdicts are kept; tables lie in its folder `tables`. Under an objective that is not
            registered it is left alone.
        progress: Told of the gates.
        options: Further arguments of `calibrate_all`.
    """
    objective = get_objective(options.get("objective") or task.objective)
    kept = store is not None and is_registered(objective)
    folder = Path(store.directory) / TABLES if store is not None and kept else None
    columns = Columns(circuit=circuit, model=model, task=task, folder=folder, **options)
    return _judged(columns, store if kept else None, progress)


def _judged(columns: Columns, store: Store | None, progress: Progress | None) -> StoredCalibration:
    """The verdicts of gates on their columns as a stage."""

    def compute() -> Content:
        report, table = columns.report(progress), columns.table
        counts, document = report.counts(), report.to_dict()
        found = [word for word in ("fail", "moderate", "inconclusive", "pass") if counts.get(word)]
        about = About(
            model=table.model.id,
            task=table.task.name,
            n=table.task.n,
            seed=table.seed,
            status=found[0] if found else None,
            name=columns.keys[0] if len(columns.keys) == 1 else f"{len(columns.keys)} gates",
            circuit=table.circuit.hash,
            size=table.circuit.n_edges,
            ablation=table.ablation,
        )
        return Content(payload=document, about=about)

    memo = Stage(kind="calibration", record=columns.record, compute=compute).run(store)
    return StoredCalibration(document=dict(memo.value.payload), cached=memo.cached)


def calibrate_runs(
    runs: CircuitRuns, *, store: Store | None = None, progress: Progress | None = None
) -> StoredCalibration:
    """The gates that need no other runs than those of model and circuit, which exist already.

    The ablation must be one that is defined for heads, too.
    """
    assert isinstance(runs.task, PairTask)
    kept = f"y_keep/{INTERVENTIONS[runs.ablation].key}"
    columns = Columns(
        circuit=runs.circuit,
        model=runs.model,
        task=runs.task,
        gates=FREE_GATES,
        objective=runs.objective_object,
        ablation=runs.ablation,
        batch_size=runs.batch_size,
        measured={"y_full": runs.margins("full"), kept: runs.margins("keep")},
    )
    return _judged(columns, store if is_registered(runs.objective_object) else None, progress)


def calibrate_measured(
    circuit: Circuit, measured: PairTask, settings: RunSettings, **options: Any
) -> StoredCalibration:
    """The gates on the prompts that a circuit was measured on, under the same objective and ablation.

    An ablation that is defined for edges alone cannot replace single heads; `mean` is used instead. Further
    arguments are those of `calibrate_stored`.
    """
    task, pool = usual_prompts(measured, seed=settings.seed)
    return calibrate_stored(
        circuit,
        settings.model,
        task,
        pool=pool,
        same_prompts=gates_on_same_prompts(circuit, measured),
        objective=settings.objective,
        ablation=usual_replacement(settings.ablation or measured.ablation),
        batch_size=settings.batch_size,
        **options,
    )


def usual_prompts(
    task: PairTask, n: int = USUAL_PROMPTS, *, seed: int = 0
) -> tuple[PairTask, PairTask | None]:
    """As many prompts of a task as calibrations usually take, and what is left as the pool.

    Prompts of a grammar were drawn one after the other, so the first are taken, and the pool is drawn from
    the grammar when it is needed. Prompts of any other task may be ordered, so they are drawn at random.

    Args:
        task: Prompts that a circuit may be measured on.
        n: Prompts of the table, at most.
        seed: Root seed of the draw.

    Returns:
        The table's prompts, and the others; None where there is none or a grammar gives more.
    """
    if task.n <= n or task.grammar is not None:
        return task if task.n <= n else task.subset(range(n)), None
    order = stream(seed, "table prompts").permutation(task.n).tolist()
    return task.subset(order[:n]), task.subset(order[n:])
