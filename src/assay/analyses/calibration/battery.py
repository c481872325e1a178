"""`calibrate_all`: every gate on one shared table, whose columns are measured as they are asked for."""

import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from assay.analyses.calibration.gate import GATES, SEED, Gate, Undetermined, find_gate
from assay.analyses.calibration.invariance import Labels, choose_groups, group_labels
from assay.analyses.calibration.samples import ratio_estimate
from assay.circuits import Circuit
from assay.circuits.naming import named_circuit
from assay.core.errors import InputError, ShapeError, check_least, check_name, unknown_name
from assay.core.measurement import FEW_PROMPTS, FEWEST_PROMPTS, SAME_PROMPTS, Verdict
from assay.core.record import MACHINE, Plotted, Record, library_version, record_id, same
from assay.discovery.heads.effects import SMALLEST
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.discovery.heads.membership import predict_from_weights, weight_features
from assay.discovery.heads.table import AnyCircuit, MeasurementTable, usual_ablation
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.stats import Estimate
from assay.tasks import PairTask, is_task_file
from assay.tasks.examples import different_examples, found_on
from assay.tasks.load import draw_task, load_task


if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "assay-calibration/1"
USUAL_PROMPTS = 100  # most gates decide with so many; the published default is 40
# In the order in which the framework lists them; those of other packages follow.
ORDER = (
    *("C11", "C12", "C13", "C14", "C16", "C17", "C23", "C30", "C36", "F59", "S1", "S3", "M93", "M98"),
    *("E1b", "M3b"),
)
_WORDS = ("criterion", "question", "on_pass", "on_fail", "generalises_over", "weakness", "source", "counts")
_LAST = "multiple-comparisons"  # pools what the others found
_OF_NO_PROMPTS = {"nomological-validity"}  # judges the description of a circuit

Progress = Callable[[str, int, int], None]
Against = Sequence[tuple[PairTask, AnyCircuit]]


@dataclass(frozen=True, kw_only=True, eq=False)
class CalibrationReport(Plotted, Record, Mapping[str, Verdict]):
    """Verdicts of the gates on one circuit, and the table they were read off.

    A mapping from gate keys to verdicts in the framework's order; published codes are understood too.

    Attributes:
        verdicts: Gate key -> verdict, in the order of the registry.
        table: The measurements behind them.
        facts: Model, task, circuit, settings: the head of `to_dict`.
        missing: Column -> why it could not be measured.
        seconds: Time of the runs and of all gates.
    """

    drawn_by = "assay.analyses.calibration.page:plot_calibration"
    record_kind = "calibration"
    record_schema = SCHEMA
    record_layout = {**same("**facts", "missing", "seconds"), "gates": "gate_rows", "summary": "words"}

    verdicts: Mapping[str, Verdict]
    table: MeasurementTable
    facts: Mapping[str, Any]
    missing: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

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
        """Each gate with its words and its verdict."""
        return [
            {name: getattr(GATES[key], name) for name in ("key", "code", "name", *_WORDS)}
            | {"task": self.table.task.name, "verdict": verdict}
            for key, verdict in self.verdicts.items()
        ]

    @property
    def words(self) -> dict[str, dict[str, int]]:
        """The counts of both verdicts."""
        return {which: self.counts(which) for which in ("status", "published")}


@dataclass(kw_only=True, eq=False)
class Columns:
    """What the gates are told of a circuit: the options of `calibrate_all`, checked, and columns of tables.

    Nothing is run before a gate asks for it.

    Attributes:
        circuit, model, ..., seed: As in `calibrate_all`.
        same_prompts: Keys of gates judged on prompts that a circuit was found on, beside those of circuits
            whose record names the prompts.
        measured: Columns of all prompts that were measured elsewhere; no pool is then drawn.
        table: Of the circuit under judgement; `tables`: of the circuits of the other tasks.
        verdicts: Of the gates that were asked so far.
        missing: Filled as columns turn out not to exist: column -> why.
    """

    circuit: AnyCircuit
    model: Model
    task: PairTask
    pool: PairTask | None = None
    against: Against = ()
    published: AnyCircuit | None = None
    gates: Collection[str] | str | None = None
    groups: str | None = None
    unit_id: Shaped[np.ndarray, " P"] | None = None
    random_sets: int = 0
    objective: str | Objective | Loss | None = None
    ablation: str | None = None
    folder: str | Path | None = None
    batch_size: int | None = None
    seed: int = SEED
    same_prompts: Collection[str] = ()
    measured: Mapping[str, np.ndarray] | None = None

    def __post_init__(self) -> None:
        asked = [self.gates] if isinstance(self.gates, str) else self.gates
        known = tuple(dict.fromkeys((*(find_gate(code).key for code in ORDER), *GATES)))
        keys = set(known) if asked is None else {find_gate(name).key for name in asked}
        self.keys = tuple(key for key in known if key in keys)
        self.verdicts: dict[str, Verdict] = {}
        self.missing: dict[str, str] = {}
        self._check()
        if isinstance(self.circuit, str | Path):
            self.circuit = named_circuit(self.circuit, self.model.graph)
        paired = INTERVENTIONS[self.ablation or usual_ablation(self.circuit, self.task)].paired
        task, rows = different_examples(self.task, paired=paired)
        more = self.pool
        if more is None and self.measured is None:
            more = further_prompts(self.task, seed=self.seed)
        if more is not None:
            more, _ = different_examples(more, paired=paired, besides=(self.task,))
        measured = None if self.measured is None else {key: each[rows] for key, each in self.measured.items()}
        # Asked once for all tables: it looks at all weights, which may change from one report to the next.
        self.described = self.model.describe()
        self.table = self._table(task, self.circuit, more=more, measured=measured)
        self.tables = [
            self._table(different_examples(other, paired=paired)[0], its) for other, its in self.against
        ]
        others = [(each.task, each.circuit) for each in self.tables]
        found = gates_on_same_prompts(self.table.circuit, self.task, others)
        self.same_prompts = found.union(self.same_prompts).intersection(keys)
        self.listed = None  # flags of the published heads
        if self.published is not None:
            self.listed = MeasurementTable(self.model, task, self.published, described=self.described).members
        self.unit_id = None if self.unit_id is None else np.asarray(self.unit_id)[rows]

    def _check(self) -> None:
        """Refuse settings and labels that do not fit the prompts."""
        check_least(0, random_sets=self.random_sets)
        n, labels = self.task.n, self.unit_id
        if labels is not None and np.shape(labels) != (n,):
            raise ShapeError(f"unit_id has shape {np.shape(labels)}; one label per prompt, ({n},), is needed")
        for prompts, what in ((self.task, "task"), (self.pool, "pool")):
            if self.groups is not None and prompts is not None:
                check_name(f"field of {what} {prompts.name!r}", self.groups, prompts.fields)

    def _table(self, task: PairTask, circuit: AnyCircuit, **prompts: Any) -> MeasurementTable:
        """A table in a folder of its own, named by its hash, within a folder of tables."""
        names = ("objective", "ablation", "folder", "batch_size", "seed", "described")
        settings = {name: getattr(self, name) for name in names}
        return MeasurementTable(self.model, task, circuit, nested=True, **prompts, **settings)

    # ---- gates ----------------------------------------------------------------------------------

    def judge(self, key: str) -> Verdict:
        """The verdict of a gate on what it asks for, and on what else goes with it; without words."""
        gate = GATES[key]
        try:
            told = dict(gate.columns(self))
            details, warnings = told.pop("details", {}), told.pop("warnings", ())
            found = self._ask(gate, told)
        except Undetermined as why:
            word, reason = "inconclusive", why.found.reason
            return Verdict(status=word, published=word, reason=reason, details=why.found.details)
        parts = dict(found.sub_results)
        for name, others in gate.beside(self).items():
            if next(iter(others.values())) is not None:
                parts[name] = self._ask(gate, {**told, **others})
        details = {**found.details, **details}
        return replace(found, sub_results=parts, details=details, warnings=(*found.warnings, *warnings))

    def _ask(self, gate: Gate, told: Mapping[str, Any]) -> Verdict:
        """The verdict on what a gate is told; what it needs beside that are columns, by their names."""
        table = self.table
        common = {"unit_id": self.unit_id, "task": table.task.name, "seed": table.seed}
        common |= {"circuit_size": table.k, "n_heads": table.H, "members": table.members}
        own = {name: each for name, each in common.items() if name in (*gate.options, *gate.needs)} | {**told}
        arrays = [own.pop(name) if name in own else self._needed(name) for name in gate.needs]
        return gate.judge(*arrays, **own)

    def _needed(self, name: str) -> Any:
        """The runs of the circuit as `y_keep` or `y_circuit`, its description, or a column by its name."""
        if name in ("y_keep", "y_circuit"):
            return self.run(f"y_keep/{self.table.ablation}")
        described = name == "circuit"
        found = self.table.head_circuit if described else self.find(name)
        if found is None:  # `missing` says why a column is not there
            details = {"needs": "a head circuit with roles and pathways"} if described else {}
            raise Undetermined("not_applicable", details=details)
        return found

    # ---- columns --------------------------------------------------------------------------------

    def get(self, name: str, table: MeasurementTable | None = None) -> Float64[np.ndarray, "..."]:
        """A column, measured now if need be."""
        return np.array((table or self.table).column(name))

    def find(self, name: str) -> Float64[np.ndarray, "..."] | None:
        """A column, or None with the reason noted where these prompts or this circuit do not have it."""
        try:
            return self.get(name)
        except InputError as error:
            self.missing[name] = str(error)
            return None

    def own(self, name: str) -> Float64[np.ndarray, "P k"] | None:
        """The columns of the circuit's heads in a table over heads, or None as `find`."""
        table = self.find(name)
        return None if table is None else table[:, self.table.places]

    def known(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Those of some columns that there are."""
        return {name: column for name, column in columns.items() if column is not None}

    def run(self, name: str) -> Float64[np.ndarray, " n"]:
        """A column of margins, its draws averaged where the method is random."""
        return _averaged(self.get(name))

    def keep(self, heads: Collection[tuple[int, int]]) -> Float64[np.ndarray, " P"]:
        """Margins of another head set alone."""
        return _averaged(self.table.keep(heads))

    def under(self, *methods: str) -> dict[str, Float64[np.ndarray, "P *draws"]]:
        """The circuit's runs under several methods, the table's and the task's own among them.

        By these two C11 and `measure` judge the circuit. A method that these prompts do not allow is a run
        without a finite margin: the gate flags it.
        """
        compared = dict.fromkeys((*methods, self.table.ablation, self.table.task.ablation))
        found = {key: self.find(f"y_keep/{key}") for key in compared if key in INTERVENTIONS}
        absent = np.full(self.table.P, np.nan)
        return {key: absent if column is None else column for key, column in found.items()}

    @property
    def pool_runs(self) -> dict[str, Any]:
        """Margins of model and circuit on the pool, and its units: further prompts are units of their own."""
        prefix, units = "" if self.table.more is None else "pool/", None
        if self.unit_id is not None:
            codes = np.unique(self.unit_id, return_inverse=True)[1]
            units = np.concatenate([codes, np.arange(self.table.n_pool - self.table.P) + len(codes)])
        full, kept = self.run(f"{prefix}y_full"), self.run(f"{prefix}y_keep/{self.table.ablation}")
        return {"y_full": full, "y_circuit": kept, "unit_id": units}

    def gap(self, table: MeasurementTable | None = None) -> Float64[np.ndarray, " P"]:
        """Margin lost by corrupting each prompt; NaN where it is not a scale for what a head restores."""
        gap = self.get("y_full", table) - self.get("y_cor", table)
        return np.where(np.abs(gap) >= SMALLEST, gap, np.nan)

    def restored(self, table: MeasurementTable | None = None) -> Float64[np.ndarray, "P H"]:
        """Margin that each head's clean output restores in the corrupted run, not yet over the gap."""
        margin = self.get("y_patch", table) - self.get("y_cor", table)[:, None]
        margin[np.isnan(self.gap(table))] = np.nan
        return np.asarray(margin)

    def effects(self, column: str = "y_drop1") -> Float64[np.ndarray, "P H"]:
        """What dropping each head costs on each prompt; of the circuit's alone, `y_drop1/circuit`."""
        return np.asarray(self.get("y_full")[:, None] - self.get(column))

    @property
    def restored_shares(self) -> Float64[np.ndarray, " H"]:
        """What each head restores over all prompts, of the gap there."""
        restored, gap = self.restored(), self.gap()
        usable = np.isfinite(gap) & np.isfinite(restored[:, np.isfinite(restored).any(axis=0)]).all(axis=1)
        return np.asarray(restored[usable].sum(axis=0) / (gap[usable].sum() or np.nan))

    @property
    def lost_shares(self) -> Float64[np.ndarray, " k"] | None:
        """Faithfulness that the circuit loses without each of its heads; None without any."""
        if not self.table.k:
            return None
        full, kept, without = self.get("y_full"), self._needed("y_keep"), self.get("y_minus1")
        usable = np.isfinite(without).all(axis=1) & np.isfinite(full) & np.isfinite(kept)
        return np.asarray((kept[usable].sum() - without[usable].sum(axis=0)) / (full[usable].sum() or np.nan))

    def ratio(self, name: str, inner: str = "faithfulness") -> Estimate | None:
        """Faithfulness or completeness of a column of runs with its bounds, where there is one."""
        if self.find(name) is None:
            return None
        return ratio_estimate(self.run(name), self.get("y_full"), inner, unit_id=self.unit_id, seed=self.seed)

    @property
    def predicted(self) -> Bool[np.ndarray, " H"] | None:
        """Heads predicted from weights by a rule learnt from the circuits of two or more other tasks."""
        circuits = {f"other-{place}": other.members for place, other in enumerate(self.tables)}
        circuits["own"] = self.table.members
        if len(circuits) < 3 or any(not 0 < members.sum() < self.table.H for members in circuits.values()):
            return None
        found = predict_from_weights(weight_features(self.model), circuits)["own"]
        return None if found.reason else found.predicted

    def grouping(self, *, pool: bool = False, lengths: bool = False) -> tuple[Labels | None, str]:
        """How prompts, of the pool too, can be grouped: by the field that was named, else as usual."""
        more = self.table.more if pool else None
        tasks = [self.table.task, *([] if more is None else [more])]
        long = np.concatenate([each.lengths.numpy() for each in tasks]).astype(np.float64)
        labels, source = choose_groups(
            self._labels(*tasks), long if lengths and self.groups is None else None
        )
        return labels, self.groups or source

    def _labels(self, *tasks: PairTask) -> dict[str, Shaped[np.ndarray, " n"]]:
        if self.groups is None:
            return group_labels(*tasks)
        return {"template": np.array([str(value) for each in tasks for value in each.fields[self.groups]])}

    # ---- the report -----------------------------------------------------------------------------

    def report(self, progress: Progress | None = None) -> CalibrationReport:
        """The verdicts of all the gates that were asked for."""
        began, told = time.perf_counter(), progress or (lambda *step: None)
        for place, key in enumerate(sorted(self.keys, key=lambda key: key == _LAST)):
            told("calibrate", place, len(self.keys))
            self.verdicts[key] = replace(self.judge(key), table_hash=self.table.hash)
        told("calibrate", len(self.keys), len(self.keys))
        verdicts = dict(self.verdicts)
        few = set() if self.table.P >= FEWEST_PROMPTS else {*self.keys} - _OF_NO_PROMPTS
        for why, keys in ((SAME_PROMPTS, self.same_prompts), (FEW_PROMPTS, few)):
            verdicts |= {key: verdicts[key].without_confidence(why) for key in keys}
        return CalibrationReport(
            verdicts={key: GATES[key].worded(verdicts[key]) for key in self.keys},
            table=self.table,
            facts=self._facts(),
            missing=self.missing,
            seconds=time.perf_counter() - began,
        )

    def _facts(self) -> dict[str, Any]:
        """The head of the document: what was judged, on what, and what the verdicts are a function of."""
        table, score = self.table, None
        model, circuit, stability = table.model, table.circuit, self.verdicts.get("bootstrap-stability")
        if stability is not None and (value := stability.values.get("faithfulness")) is not None:
            bounds = stability.details.get("interval", {})
            score = {"value": value, **{end: bounds.get(end) for end in ("low", "high", "level")}}
        return {
            "id": record_id("calibration", self.record),
            "model": {**table.record["model"], "n_layers": model.n_layers, "n_heads": model.n_heads},
            "task": {**table.task.describe(), "objective": table.objective.key},
            "circuit": {
                "hash": circuit.hash,
                "name": circuit.provenance.get("published"),
                "kind": "heads" if circuit.heads is not None else f"{circuit.level}s",
                "k": table.k,
                "heads": [list(head) for head in table.heads],
                "n_heads": table.H,
                "n_edges": circuit.n_edges,
                **circuit.level_facts,
            },
            "table": {
                "hash": table.hash,
                "n_prompts": table.P,
                "n_pool": table.n_pool,
                "ablation": table.ablation,
                MACHINE: {"columns": list(table.columns), "passes": table.passes},  # of this run
            },
            "score": score,
            "against": [other.task.name for other in self.tables],
            "groups": self.groups,
            "seed": table.seed,
            "provenance": self.record,
        }

    @cached_property
    def record(self) -> dict[str, Any]:
        """What the verdicts are a function of."""
        table, described = self.table, self.table.head_circuit
        labels = [self._labels(one) for one in (table.task, table.more) if one is not None]
        return {
            "library": library_version(),
            "table": table.record,
            # Roles, pathways and fields of prompts are not part of what a table measures.
            "head_circuit": None if described is None else described.to_dict(),
            "fields": [
                record_id("fields", {key: each.tolist() for key, each in of.items()}) for of in labels
            ],
            "gates": list(self.keys),
            "against": [other.record for other in self.tables],
            "published": None if self.listed is None else np.flatnonzero(self.listed).tolist(),
            "random_sets": self.random_sets,
            **({"same_prompts": sorted(self.same_prompts)} if self.same_prompts else {}),
            "groups": self.groups,
            "unit_id": None if self.unit_id is None else [str(label) for label in self.unit_id],
        }


def _averaged(runs: Float64[np.ndarray, "n *draws"]) -> Float64[np.ndarray, " n"]:
    """One number per prompt: the mean over draws, where there are any."""
    return np.array(runs.mean(axis=1) if runs.ndim > 1 else runs)


def gates_on_same_prompts(circuit: AnyCircuit, task: PairTask, against: Against = ()) -> frozenset[str]:
    """Keys of the gates that judge a circuit on prompts that its record says it was discovered on.

    Args:
        circuit: What is judged.
        task: All prompts that it could be measured on.
        against: Other tasks with their circuits, which two of the gates look at.
    """
    own, *others = (
        isinstance(its, Circuit) and found_on(its.provenance, prompts)
        for prompts, its in ((task, circuit), *against)
    )
    if own:
        return frozenset(GATES)
    return frozenset({"discriminant-validity", "derived-metrics"} if any(others) else ())


def further_prompts(task: PairTask, *, seed: int) -> PairTask | None:
    """Prompts from the grammar of a task that make, with its own, three samples of its size and 120.

    None for a task that no grammar made.
    """
    if task.grammar is None:
        return None
    n = max(3 * task.n, 120) - task.n
    number = zlib.crc32(f"calibration-pool/{seed}/{task.data_hash}".encode())
    drawn = draw_task(task.grammar, n, seed=number, options=task.config.get("options"))
    return replace(drawn, objective=task.objective, ablation=task.ablation)


# ---- all of them ----------------------------------------------------------------------------------------


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
    model.check_text("calibrate_all")
    if isinstance(task, str | Path):
        task = load_task(task, model, n=None if is_task_file(task) else USUAL_PROMPTS)
    return Columns(circuit=circuit, model=model, task=task, **options).report(progress)
