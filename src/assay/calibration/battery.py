"""`calibrate_all`: the sixteen gates on one shared table of measurements."""

import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

from assay.calibration.gate import GATES, find_gate
from assay.calibration.judges import JUDGES, Battery
from assay.errors import InputError, ShapeError, unknown_name
from assay.heads import MeasurementTable
from assay.heads.table import AnyCircuit
from assay.measurement import Verdict, library_version, plain, record_id
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.tasks import PairTask
from assay.tasks.load import draw_task


if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "assay-calibration/1"
POOL = 3  # samples of the task's size in the pool that other samples are drawn from
FEWEST_IN_POOL = 120
_GATE_FACTS = ("key", "code", "name", "criterion", "question", "on_pass", "on_fail", "weakness", "source")
_LAST = "multiple-comparisons"  # pools what the others found

Progress = Callable[[str, int, int], None]
Against = Sequence[tuple[PairTask, AnyCircuit]]


@dataclass(frozen=True, kw_only=True, eq=False)
class CalibrationReport:
    """Verdicts of the gates on one circuit, and the table they were read off.

    Attributes:
        verdicts: Gate key -> verdict, in the order of the registry.
        table: The measurements behind them.
        facts: Model, task, circuit, settings: the head of `to_dict`.
        missing: Column -> why it could not be measured.
        seconds: Gate key -> time of its statistics, and `table`: time of the runs.
    """

    verdicts: Mapping[str, Verdict]
    table: MeasurementTable
    facts: Mapping[str, Any]
    missing: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Verdict:
        """The verdict of a gate, by key or published code."""
        key = find_gate(name).key
        if key not in self.verdicts:
            raise unknown_name("gate of this report", name, self.verdicts)
        return self.verdicts[key]

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {status}" for status, n in self.counts().items())
        return f"CalibrationReport({counts}; table {self.table.hash})"

    def counts(self, which: str = "status") -> dict[str, int]:
        """How many gates have each word, of the `status` or of the `published` verdict."""
        words = [getattr(verdict, which) for verdict in self.verdicts.values()]
        return {word: words.count(word) for word in sorted(set(words))}

    def to_frame(self) -> "pd.DataFrame":
        """One row per gate: code, key, status, published, reason, n_needed."""
        import pandas as pd

        rows = [
            {
                "code": GATES[key].code,
                "gate": key,
                "status": verdict.status,
                "published": verdict.published,
                "reason": verdict.reason,
                "n_needed": verdict.n_needed,
            }
            for key, verdict in self.verdicts.items()
        ]
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Finite JSON: what pages, files and stores hold."""
        gates = []
        for key, verdict in self.verdicts.items():
            gate = GATES[key]
            names = (
                "key",
                "code",
                "name",
                "criterion",
                "question",
                "on_pass",
                "on_fail",
                "weakness",
                "source",
            )
            facts = {name: getattr(gate, name) for name in names}
            gates.append(
                {
                    **facts,
                    "task": self.table.task.name,
                    "verdict": verdict.to_dict(),
                    "seconds": self.seconds.get(key),
                }
            )
        document: dict[str, Any] = plain(
            {
                "schema": SCHEMA,
                "kind": "calibration",
                **self.facts,
                "gates": gates,
                "summary": {which: self.counts(which) for which in ("status", "published")},
                "missing": dict(self.missing),
                "seconds": sum(self.seconds.values()),
            }
        )
        return document


def calibrate_all(
    circuit: AnyCircuit,
    model: Model,
    task: PairTask,
    *,
    pool: PairTask | None = None,
    against: Against = (),
    published: AnyCircuit | None = None,
    gates: Collection[str] | None = None,
    groups: str | Shaped[np.ndarray, " P"] | None = None,
    unit_id: Shaped[np.ndarray, " P"] | None = None,
    signs: Mapping[tuple[int, int], int] | None = None,
    random_sets: int = 0,
    objective: str | Objective | Loss | None = None,
    ablation: str | None = None,
    folder: str | Path | None = None,
    batch_size: int | None = None,
    seed: int = 42,
    max_passes: float | int | None = None,
    progress: Progress | None = None,
) -> CalibrationReport:
    """Whether the measurements of a circuit can be trusted: all sixteen calibrations.

    Args:
        circuit: Circuit, head circuit, (layer, head) pairs, name of a shipped head circuit or a file. Of an
            edge circuit the runs of its edges are judged, and tables over heads are of its heads.
        model: The model.
        task: P prompts; 100 or more make most gates decide, the published default is 40.
        pool: Further prompts of the same source, for what other samples would have given (C13, C16, C30).
            Default: as many as make three samples, and 120 in all, drawn from the task's grammar.
        against: Other tasks with circuits of their own in this model, for C17; with two or more, a head set
            is also predicted from weights for C14.
        published: A head list to compare the circuit's heads with, for C14.
        gates: Keys or codes of some gates only; default: all.
        groups: Field of the task, or a label per prompt of the task, to compare prompts by in C13 and S3;
            default: the field `template`, `type` or `category`, else thirds of length.
        unit_id: Label per prompt of the task; prompts of one label count as one observation.
        signs: Head -> -1 for heads declared to oppose the task (M3b).
        random_sets: Random sets of heads, and as many matched by layer, that C36 compares with; each costs a
            run. 50 are customary.
        objective: Its negative is the margin; default: the task's own.
        ablation: How single heads are dropped, and the method of single-method gates; default: `mean` for a
            circuit of heads, the task's own for one of edges.
        folder: Folder of measurement tables; each has its own within, named by its hash, and is continued.
        batch_size: Prompts per pass.
        seed: Root of donors, noise and resampling.
        max_passes: Budget of the tables over all heads in whole passes; see `MeasurementTable`.
        progress: Told of the gates as they are done.

    Returns:
        The sixteen verdicts (`report["C11"]`, `report.verdicts`), the table, `to_dict()` for files and pages.

    Raises:
        InputError: For unknown gates, fields or settings; labels that do not fit the prompts.
        GraphMismatchError: For a circuit of another model.

    Example:
        >>> import assay
        >>> model = assay.load_model("mini")
        >>> task = assay.load_task("ioi", model, n=20)
        >>> report = calibrate_all([(0, 1), (2, 3)], model, task, gates=["C11", "M3b"])
        >>> sorted(report.verdicts)
        ['bootstrap-stability', 'certified-stability']

    References:
        The mechanistic-validity framework's calibrations; each gate names its own sources.
    """
    asked = set(JUDGES) if gates is None else {find_gate(name).key for name in gates}
    chosen = sorted((key for key in JUDGES if key in asked), key=lambda key: key == _LAST)
    if random_sets < 0:
        raise InputError(f"random_sets is {random_sets}; give a count from 0")
    settings: dict[str, Any] = {
        "objective": objective,
        "ablation": ablation,
        "batch_size": batch_size,
        "seed": seed,
        "max_passes": max_passes,
    }
    more = further_prompts(task, seed=seed) if pool is None else pool
    table = _table(model, task, circuit, folder, more=more, **settings)
    battery = Battery(
        table=table,
        against=tuple(_table(model, other, its, folder, **settings) for other, its in against),
        published=None if published is None else _table(model, task, published, None).members,
        groups=_labels(task, groups),
        unit_id=unit_id,
        signs=dict(signs or {}),
        random_sets=random_sets,
    )
    verdicts: dict[str, Verdict] = {}
    seconds: dict[str, float] = {"table": 0.0}
    for place, key in enumerate(chosen):
        if progress is not None:
            progress(f"gate {GATES[key].code}", place, len(chosen))
        began, filled = time.perf_counter(), battery.filling
        verdict = battery.judge(key, verdicts)
        verdicts[key] = replace(verdict, table_hash=table.hash)
        seconds[key] = time.perf_counter() - began - (battery.filling - filled)
    seconds["table"] = battery.filling
    ordered = {key: verdicts[key] for key in JUDGES if key in verdicts}
    return CalibrationReport(
        verdicts=ordered,
        table=table,
        facts=_facts(table, battery, published is not None),
        missing=battery.missing,
        seconds=seconds,
    )


def further_prompts(task: PairTask, *, seed: int) -> PairTask | None:
    """Prompts from the grammar of a task that make, with its own, three samples of its size and 120.

    None for a task that no grammar made.
    """
    if task.grammar is None:
        return None
    n = max(POOL * task.n, FEWEST_IN_POOL) - task.n
    number = zlib.crc32(f"calibration-pool/{seed}/{task.data_hash}".encode())
    drawn = draw_task(
        task.grammar,
        n,
        seed=number,
        options=task.config.get("options"),
        bos=bool(task.config.get("bos", False)),
    )
    return replace(drawn, objective=task.objective, ablation=task.ablation)


def _table(
    model: Model, task: PairTask, circuit: AnyCircuit, folder: str | Path | None, **settings: Any
) -> MeasurementTable:
    """A table in a folder of its own, named by its hash, within a folder of tables."""
    table = MeasurementTable(model, task, circuit, **settings)
    if folder is None:
        return table
    return MeasurementTable(model, task, circuit, folder=Path(folder) / table.hash, **settings)


def _labels(task: PairTask, groups: "str | Shaped[np.ndarray, ' P'] | None") -> Mapping[str, Any] | None:
    """What prompts are grouped by: given labels, a field, or None for the usual keys."""
    if groups is None:
        return None
    if isinstance(groups, str):
        if groups not in task.fields:
            raise unknown_name(f"field of task {task.name!r}", groups, task.fields)
        return {"field": groups}
    if np.shape(groups) != (task.n,):
        raise ShapeError(f"groups has shape {np.shape(groups)}; one label per prompt, ({task.n},), is needed")
    return {"labels": np.asarray(groups)}


def _facts(table: MeasurementTable, battery: "Battery", published: bool) -> dict[str, Any]:
    model, circuit = table.model, table.circuit
    provenance = {
        "library": library_version(),
        "table": table.record,
        "against": [other.record for other in battery.against],
        "published": published,
        "groups": battery.group_source,
        "random_sets": battery.random_sets,
    }
    return {
        "id": record_id("calibration", provenance),
        "model": {**model.describe(), "n_layers": model.n_layers, "n_heads": model.n_heads},
        "task": {**table.task.describe(), "objective": table.objective.key},
        "circuit": {
            "hash": circuit.hash,
            "name": table.head_circuit.id
            if table.head_circuit is not None
            else circuit.provenance.get("published"),
            "kind": "heads" if circuit.heads is not None else "edges",
            "k": table.k,
            "heads": [list(head) for head in table.heads],
            "n_heads": table.H,
            "n_edges": circuit.n_edges,
        },
        "table": {
            "hash": table.hash,
            "n_prompts": table.P,
            "n_pool": table.n_pool,
            "columns": list(table.columns),
            "passes": table.passes,
            "partial_heads": table.partial,
            "ablation": table.ablation,
        },
        "against": [other.task.name for other in battery.against],
        "groups": battery.group_source,
        "seed": table.seed,
        "warnings": ["partial_heads"] if table.partial else [],
        "provenance": provenance,
    }
