"""`calibrate_all`: the sixteen gates on one shared table of measurements."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.analyses.calibration.columns import Columns
from assay.analyses.calibration.gate import GATES, find_gate
from assay.core.errors import unknown_name
from assay.core.measurement import FEW_PROMPTS, FEWEST_PROMPTS, SAME_PROMPTS, Verdict
from assay.core.record import Plotted, Record, record_id, same
from assay.discovery.heads import MeasurementTable
from assay.discovery.heads.table import AnyCircuit
from assay.models import Model
from assay.tasks import PairTask, is_task_file
from assay.tasks.load import load_task


if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "assay-calibration/1"
USUAL_PROMPTS = 100  # most gates decide with so many; the published default is 40
_WORDS = ("criterion", "question", "on_pass", "on_fail", "generalises_over", "weakness", "source", "counts")
_LAST = "multiple-comparisons"  # pools what the others found
OF_NO_PROMPTS = frozenset({"nomological-validity"})  # judges the description of a circuit

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class CalibrationReport(Plotted, Record, Mapping[str, Verdict]):
    """Verdicts of the gates on one circuit, and the table they were read off.

    A mapping from gate keys to verdicts in the framework's order; published codes are understood too.

    Attributes:
        verdicts: Gate key -> verdict, in the order of the registry.
        table: The measurements behind them.
        facts: Model, task, circuit, settings: the head of `to_dict`.
        missing: Column -> why it could not be measured.
        seconds: Gate key -> time of its statistics, and `table`: time of the runs.
    """

    drawn_by = "assay.analyses.calibration.page:plot_calibration"
    record_kind = "calibration"
    record_schema = SCHEMA
    record_layout = {
        **same("**facts"),
        "gates": "gate_rows",
        "summary": "words",
        "missing": "missing",
        "seconds": "total_seconds",
    }

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

    def __iter__(self) -> Iterator[str]:
        return iter(self.verdicts)

    def __len__(self) -> int:
        return len(self.verdicts)

    def __contains__(self, name: object) -> bool:
        return name in self.verdicts or name in {GATES[key].code for key in self.verdicts}

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

        judged = ("status", "published", "reason", "n_needed")
        rows = [
            {"code": GATES[key].code, "gate": key} | {name: getattr(verdict, name) for name in judged}
            for key, verdict in self.verdicts.items()
        ]
        return pd.DataFrame(rows)

    @property
    def gate_rows(self) -> list[dict[str, Any]]:
        """Each gate with its words, its verdict and its time."""
        return [
            {name: getattr(GATES[key], name) for name in ("key", "code", "name", *_WORDS)}
            | {"task": self.table.task.name, "verdict": verdict, "seconds": self.seconds.get(key)}
            for key, verdict in self.verdicts.items()
        ]

    @property
    def words(self) -> dict[str, dict[str, int]]:
        """The counts of both verdicts."""
        return {which: self.counts(which) for which in ("status", "published")}

    @property
    def total_seconds(self) -> float:
        """Time of the runs and of all gates."""
        return sum(self.seconds.values())


def calibrate_all(
    circuit: AnyCircuit,
    model: Model,
    task: PairTask | str | Path,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> CalibrationReport:
    """Whether the measurements of a circuit can be trusted: all sixteen calibrations.

    Args:
        circuit: Circuit, head circuit, (layer, head) pairs, name of a shipped head circuit or a file. Of an
            edge circuit the runs of its edges are judged, and tables over heads are of its heads.
        model: The model.
        task: P prompts; 100 or more make most gates decide, the published default is 40. Of a name of a
            registered task or a JSONL file 100 prompts are drawn, or all lines taken.
        pool: Further prompts of the same source, for what other samples would have given (C13, C16, C30).
            Default: as many as make three samples, and 120 in all, drawn from the task's grammar.
        against: Other tasks with circuits of their own in this model, for C17; with two or more, a head set
            is also predicted from weights for C14.
        published: A head list to compare the circuit's heads with, for C14.
        gates: Keys or codes of some gates only; default: all, those of other packages among them, which get
            the columns that their `needs` name.
        groups: Field of the task to compare prompts by in C13 and S3; default: the field `template`, `type`
            or `category`, else thirds of length.
        unit_id: Label per prompt of the task; prompts of one label count as one observation.
        signs: Head -> -1 for heads declared to oppose the task (M3b).
        profile: Heads whose effects C16 correlates between halves of the prompts: `all`, or those of the
            `circuit`, which needs fewer runs.
        random_sets: Random sets of heads, and as many matched by layer, that C36 compares with; each costs a
            run. 50 are customary.
        objective: Its negative is the margin; default: the task's own.
        ablation: How single heads are dropped, and the method of single-method gates; default: `mean` for a
            circuit of heads, the task's own for one of edges.
        folder: Folder of measurement tables; each has its own within, named by its hash, and is continued.
        batch_size: Prompts per pass.
        seed: Root of donors, noise and resampling.
        progress: Told of the gates as they are done.
        **options: The others.

    Returns:
        The sixteen verdicts (`report["C11"]`, `report.verdicts`), the table, `to_dict()` for files and pages.
        A circuit whose record names these very prompts was found on them: its verdicts are marked
        `same_prompts`, and none says `pass` or `fail` with confidence.

    Raises:
        InputError: For unknown gates, fields or settings; labels that do not fit the prompts; signs of heads
            outside the circuit.
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
    model.check_text("calibrate_all")
    if isinstance(task, str | Path):
        task = load_task(task, model, n=None if is_task_file(task) else USUAL_PROMPTS)
    return run(Columns(circuit=circuit, model=model, task=task, **options), progress)


def run(columns: Columns, progress: Progress | None = None) -> CalibrationReport:
    """The verdicts of the gates that some columns are for."""
    verdicts: dict[str, Verdict] = {}
    seconds: dict[str, float] = {}
    told = progress or (lambda *step: None)
    for place, key in enumerate(sorted(columns.keys, key=lambda key: key == _LAST)):
        told("calibrate", place, len(columns.keys))
        began, filled = time.perf_counter(), columns.filling
        verdict = columns.judge(key, verdicts)
        verdicts[key] = replace(verdict, table_hash=columns.table.hash)
        seconds[key] = time.perf_counter() - began - (columns.filling - filled)
    told("calibrate", len(columns.keys), len(columns.keys))
    few = set() if columns.table.P >= FEWEST_PROMPTS else {*columns.keys} - OF_NO_PROMPTS
    for why, keys in ((SAME_PROMPTS, columns.same_prompts), (FEW_PROMPTS, few)):
        verdicts |= {key: verdicts[key].without_confidence(why) for key in keys}
    return CalibrationReport(
        verdicts={key: GATES[key].worded(verdicts[key]) for key in columns.keys},
        table=columns.table,
        facts=_facts(columns, verdicts.get("bootstrap-stability")),
        missing=columns.missing,
        seconds={**seconds, "table": columns.filling},
    )


def _facts(columns: Columns, stability: Verdict | None) -> dict[str, Any]:
    table = columns.table
    model, circuit = table.model, table.circuit
    score = None if stability is None else stability.values.get("faithfulness")
    bounds = {} if stability is None else stability.details.get("interval", {})
    return {
        "id": record_id("calibration", columns.record),
        "model": {**model.describe(), "n_layers": model.n_layers, "n_heads": model.n_heads},
        "task": {**table.task.describe(), "objective": table.objective.key},
        "circuit": {
            "hash": circuit.hash,
            "name": circuit.provenance.get("published"),
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
            "ablation": table.ablation,
        },
        "score": None
        if score is None
        else {"value": score, **{end: bounds.get(end) for end in ("low", "high", "level")}},
        "against": [other.task.name for other in columns.tables],
        "groups": columns.groups,
        "seed": table.seed,
        "provenance": columns.record,
    }
