"""Which columns of a measurement table each gate takes, measured as they are asked for."""

import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from assay.analyses.calibration.gate import GATES, find_gate
from assay.analyses.calibration.invariance import choose_groups, group_labels
from assay.analyses.calibration.multiplicity import pooled_results
from assay.analyses.calibration.samples import SEED
from assay.analyses.calibration.sensitivity import ratio_estimate
from assay.circuits import Circuit
from assay.core.errors import InputError, ShapeError, check_least, check_name
from assay.core.measurement import Verdict
from assay.core.random import stream
from assay.core.record import library_version, record_id
from assay.discovery.heads import MeasurementTable
from assay.discovery.heads.effects import SMALLEST
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.discovery.heads.membership import predict_from_weights, weight_features
from assay.discovery.heads.scores import ranking
from assay.discovery.heads.table import AnyCircuit
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.stats import Estimate
from assay.tasks import PairTask
from assay.tasks.examples import different_examples, found_on
from assay.tasks.load import draw_task


Against = Sequence[tuple[PairTask, AnyCircuit]]
Others = Mapping[str, Verdict]  # verdicts of the same run so far, which some gates forward


@dataclass(kw_only=True, eq=False)
class Columns:
    """What the gates are told of a circuit: the options of `calibrate_all`, checked, and columns of tables.

    Nothing is run before a gate asks for it.

    Attributes:
        circuit, model, ..., seed: As in `calibrate_all`.
        same_prompts: Keys of gates judged on prompts that a circuit was found on, beside those of circuits
            whose record names the prompts.
        measured: Columns of all prompts that were measured elsewhere; no pool is then drawn.
        table: Of the circuit under judgement.
        missing: Filled as columns turn out not to exist: column -> why.
        filling: Seconds spent on runs.
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
    signs: Mapping[tuple[int, int], int] = field(default_factory=dict)
    profile: str = "all"
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
        known = tuple(dict.fromkeys((*JUDGES, *GATES)))
        keys = set(known) if asked is None else {find_gate(name).key for name in asked}
        self.keys = tuple(key for key in known if key in keys)
        self.missing: dict[str, str] = {}
        self.filling = 0.0
        self._check()
        settings = {name: getattr(self, name) for name in ("objective", "ablation", "batch_size", "seed")}
        ablation = MeasurementTable(self.model, self.task, self.circuit, **settings).ablation
        paired = INTERVENTIONS[ablation].paired
        task, rows = different_examples(self.task, paired=paired)
        more = self.pool
        if more is None and self.measured is None:
            more = further_prompts(self.task, seed=self.seed)
        if more is not None:
            more, _ = different_examples(more, paired=paired, besides=(self.task,))
        measured = None if self.measured is None else {key: each[rows] for key, each in self.measured.items()}
        self.table = self._table(task, self.circuit, more=more, measured=measured, **settings)
        self.tables = tuple(
            self._table(different_examples(other, paired=paired)[0], its, **settings)
            for other, its in self.against
        )
        if foreign := sorted({*self.signs} - {*self.table.heads}):
            heads = self.table.heads
            raise InputError(f"signs has {foreign}, which are not heads of the circuit; its heads: {heads}")
        others = [(each.task, each.circuit) for each in self.tables]
        found = gates_on_same_prompts(self.table.circuit, self.task, others)
        self.same_prompts = found.union(self.same_prompts).intersection(keys)
        self.listed = None
        if self.published is not None:
            self.listed = MeasurementTable(self.model, task, self.published).members
        self.unit_id = None if self.unit_id is None else np.asarray(self.unit_id)[rows]

    def _check(self) -> None:
        """Refuse settings and labels that do not fit the prompts."""
        check_least(0, random_sets=self.random_sets)
        check_name("profile", self.profile, ("all", "circuit"))
        n, labels = self.task.n, self.unit_id
        if labels is not None and np.shape(labels) != (n,):
            raise ShapeError(f"unit_id has shape {np.shape(labels)}; one label per prompt, ({n},), is needed")
        for prompts, what in ((self.task, "task"), (self.pool, "pool")):
            if self.groups is not None and prompts is not None:
                check_name(f"field of {what} {prompts.name!r}", self.groups, prompts.fields)

    def _table(self, task: PairTask, circuit: AnyCircuit, **settings: Any) -> MeasurementTable:
        """A table in a folder of its own, named by its hash, within a folder of tables."""
        table = MeasurementTable(self.model, task, circuit, **settings)
        if self.folder is None:
            return table
        return MeasurementTable(self.model, task, circuit, folder=Path(self.folder) / table.hash, **settings)

    # ---- gates ----------------------------------------------------------------------------------

    def judge(self, key: str, others: Others) -> Verdict:
        """The verdict of one gate; of one of another package, on the columns that its `needs` name.

        Beside the columns of the table there are `members` and, for the runs of the circuit under the table's
        own ablation, `y_keep`.
        """
        if key in JUDGES:
            return JUDGES[key](self, others)
        gate = GATES[key]
        named = {"members": lambda: self.table.members, "y_keep": lambda: self.run(self.kept)}
        columns = [named[name]() if name in named else self.find(name) for name in gate.needs]
        # `missing` says why.
        return _not_applicable(gate.code) if any(each is None for each in columns) else gate(*columns)

    def ask(self, code: str, *arrays: Any, **options: Any) -> Verdict:
        """The verdict of a gate on arrays; of what is common to all, it is told what it has an option for."""
        gate, table = find_gate(code), self.table
        common = {"unit_id": self.unit_id, "task": table.task.name, "seed": table.seed}
        common |= {"circuit_size": table.k, "n_heads": table.H}
        known = {name: each for name, each in common.items() if name in gate.options}
        return gate(*arrays, **(known | options))

    # ---- columns --------------------------------------------------------------------------------

    def get(self, name: str, table: MeasurementTable | None = None) -> Float64[np.ndarray, "..."]:
        """A column, measured now if need be."""
        return np.array(self._timed(lambda: (table or self.table).column(name)))

    def _timed(self, measure: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        try:
            return measure()
        finally:
            self.filling += time.perf_counter() - began

    def find(self, name: str) -> Float64[np.ndarray, "..."] | None:
        """A column, or None with the reason noted where these prompts or this circuit do not have it."""
        try:
            return self.get(name)
        except InputError as error:
            self.missing[name] = str(error)
            return None

    def run(self, name: str) -> Float64[np.ndarray, " n"]:
        """A column of margins, its draws averaged where the method is random."""
        return _averaged(self.get(name))

    def keep(self, heads: Collection[tuple[int, int]]) -> Float64[np.ndarray, " P"]:
        """Margins of another head set alone."""
        return _averaged(self._timed(lambda: self.table.keep(heads)))

    @property
    def kept(self) -> str:
        """Column of the circuit's runs."""
        return f"y_keep/{self.table.ablation}"

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

    @cached_property
    def pool_units(self) -> Shaped[np.ndarray, " n_pool"] | None:
        """Units of the pool: further prompts are units of their own."""
        if self.unit_id is None:
            return None
        codes = np.unique(self.unit_id, return_inverse=True)[1]
        return np.concatenate([codes, np.arange(self.table.n_pool - self.table.P) + len(codes)])

    def labels(self, tasks: Sequence[PairTask]) -> dict[str, Shaped[np.ndarray, " n"]]:
        """What prompts of some tasks can be grouped by."""
        if self.groups is None:
            return group_labels(*tasks)
        return {"template": np.array([str(value) for each in tasks for value in each.fields[self.groups]])}

    @cached_property
    def record(self) -> dict[str, Any]:
        """What the verdicts are a function of."""
        table, described = self.table, self.table.head_circuit
        prompts = [table.task, *([] if table.more is None else [table.more])]
        return {
            "library": library_version(),
            "table": table.record,
            # Roles, pathways and fields of prompts are not part of what a table measures.
            "head_circuit": None if described is None else described.to_dict(),
            "fields": [
                record_id("fields", {key: each.tolist() for key, each in self.labels([one]).items()})
                for one in prompts
            ],
            "gates": list(self.keys),
            "against": [other.record for other in self.tables],
            "published": None if self.listed is None else np.flatnonzero(self.listed).tolist(),
            "profile": self.profile,
            "random_sets": self.random_sets,
            "signs": [[*head, sign] for head, sign in sorted(self.signs.items())],
            **({"same_prompts": sorted(self.same_prompts)} if self.same_prompts else {}),
            "groups": self.groups,
            "unit_id": None if self.unit_id is None else [str(label) for label in self.unit_id],
        }


def _averaged(runs: Float64[np.ndarray, "n *draws"]) -> Float64[np.ndarray, " n"]:
    """One number per prompt: the mean over draws, where there are any."""
    return np.array(runs.mean(axis=1) if runs.ndim > 1 else runs)


def _means(table: Float64[np.ndarray, "P H"]) -> Float64[np.ndarray, " H"]:
    usable = np.isfinite(table).all(axis=1)
    return table[usable].mean(axis=0) if usable.any() else np.full(table.shape[1], np.nan)


def _not_applicable(code: str, **details: Any) -> Verdict:
    return find_gate(code).worded(
        Verdict(status="inconclusive", published="inconclusive", reason="not_applicable", details=details)
    )


def usable_fields(task: PairTask) -> list[str]:
    """Fields whose values repeat often enough to group prompts by: at most 12 values, two of them thrice."""
    counts = {
        name: np.unique([str(value) for value in values], return_counts=True)[1]
        for name, values in task.fields.items()
        if not name.startswith("corrupted.")
    }
    return [name for name, found in counts.items() if len(found) <= 12 and (found >= 3).sum() > 1]


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


# ---- gate by gate -----------------------------------------------------------------------------------


def _c11(c: Columns, others: Others) -> Verdict:
    kept = c.ask("C11", c.get("y_full"), c.run(c.kept))
    if "derived-metrics" not in c.keys:
        return kept
    # C14 reads the circuit's absence anyway, so completeness is judged at no cost.
    dropped = c.ask("C11", c.get("y_full"), c.run(f"y_drop/{c.table.ablation}"), inner="completeness")
    return replace(kept, sub_results={**kept.sub_results, "completeness": dropped})


def _c12(c: Columns, others: Others) -> Verdict:
    scores = {"C2": c.restored(), "C5": c.effects("y_cross"), "C7": c.find("ocse"), "C10": c.get("llc")}
    # Causation entropy is one of tasks with wrong answers.
    scores = {name: table for name, table in scores.items() if table is not None}
    return c.ask("C12", scores, members=c.table.members)


def _c13(c: Columns, others: Others) -> Verdict:
    more = c.table.more
    prefix, tasks = ("", [c.table.task]) if more is None else ("pool/", [c.table.task, more])
    lengths = np.concatenate([each.lengths.numpy() for each in tasks]).astype(np.float64)
    grouping = choose_groups(c.labels(tasks), lengths if c.groups is None else None)
    verdict = c.ask(
        "C13",
        c.run(f"{prefix}y_full"),
        c.run(f"{prefix}{c.kept}"),
        None if grouping is None else grouping.labels,
        unit_id=c.pool_units if prefix else c.unit_id,
    )
    about = (
        {"fields": usable_fields(c.table.task)}
        if grouping is None
        else {"groups_from": c.groups or grouping.source}
    )
    return replace(verdict, details={**verdict.details, **about})


def _c14(c: Columns, others: Others) -> Verdict:
    table, full, kept, attribution = c.table, c.get("y_full"), c.run(c.kept), c.find("attribution")
    edges = () if table.head_circuit is None else table.head_circuit.head_edges
    minimality = None
    if table.k > 0:
        without = c.get("y_minus1")
        usable = np.isfinite(without).all(axis=1) & np.isfinite(full) & np.isfinite(kept)
        lost, total = kept[usable].sum() - without[usable].sum(axis=0), float(full[usable].sum())
        minimality = lost / total if total else np.full(table.k, np.nan)

    def ratio(column: str, inner: str = "faithfulness") -> Estimate | None:
        run = c.find(column)
        if run is None:
            return None
        return ratio_estimate(_averaged(run), full, inner, unit_id=c.unit_id, seed=table.seed)

    restored, gap = c.restored(), c.gap()
    usable = np.isfinite(gap) & np.isfinite(restored[:, np.isfinite(restored).any(axis=0)]).all(axis=1)
    total = float(gap[usable].sum())
    return c.ask(
        "C14",
        table.members,
        restored[usable].sum(axis=0) / total if total else np.full(table.H, np.nan),
        llc=c.get("llc"),
        attribution=None if attribution is None else np.abs(_means(attribution)),
        predicted=_predicted(c),
        published_members=c.listed,
        spectral_norm=c.get("spectral_norm"),
        sv_entropy=c.get("sv_entropy"),
        composition={key: c.get(f"composition/{key}") for key in "qkv"} if edges else None,
        head_edges=edges,
        n_heads=table.model.n_heads,
        minimality=minimality,
        partial_eta_sq=others.get("measurement-invariance"),
        faithfulness=ratio(c.kept),
        completeness=ratio(f"y_drop/{table.ablation}", "completeness"),
        # Scrub recovery: faithfulness with the complement's activations from other prompts.
        logit_diff_recovery=ratio("y_keep/resample-donor"),
        n_prompts=table.P,
    )


def _predicted(c: Columns) -> Bool[np.ndarray, " H"] | None:
    """A head set predicted from weights by a rule learnt from the circuits of two or more other tasks."""
    circuits = {f"other-{place}": other.members for place, other in enumerate(c.tables)}
    circuits["own"] = c.table.members
    if len(c.tables) < 2 or any(not 0 < members.sum() < c.table.H for members in circuits.values()):
        return None
    found = predict_from_weights(weight_features(c.table.model), circuits)["own"]
    return None if found.reason else found.predicted


def _c16(c: Columns, others: Others) -> Verdict:
    whole = c.profile == "all"
    return c.ask(
        "C16",
        c.get("pool/y_full"),
        c.run(f"pool/{c.kept}"),
        c.effects() if whole else c.effects("y_drop1/circuit"),
        c.table.members if whole else np.ones(c.table.k, dtype=np.bool_),
        unit_id=c.pool_units,
        effect_units=c.unit_id,
    )


def _c17(c: Columns, others: Others) -> Verdict:
    own = c.table.task.name
    tables = {own: c.table}
    for other in c.tables:
        name = other.task.name
        while name in tables:
            name += "'"
        tables[name] = other
    if len(tables) < 2:
        return _not_applicable("C17", needs="another task with a circuit of its own")
    return c.ask(
        "C17",
        {name: c.restored(each) for name, each in tables.items()},
        {name: each.members for name, each in tables.items()},
        own=own,
        gaps={name: c.gap(each) for name, each in tables.items()},
        unit_id=None if c.unit_id is None else {own: c.unit_id},
    )


def _c23(c: Columns, others: Others) -> Verdict:
    described = c.table.head_circuit
    if described is None:
        return _not_applicable("C23", needs="a head circuit with roles and pathways")
    return c.ask("C23", described)


def _c30(c: Columns, others: Others) -> Verdict:
    runs = c.get("pool/y_full"), c.run(f"pool/{c.kept}")
    return c.ask("C30", *runs, n_prompts=c.table.P, unit_id=c.pool_units)


def _c36(c: Columns, others: Others) -> Verdict:
    table, width = c.table, c.table.model.n_heads

    def top(column: Float64[np.ndarray, "P H"]) -> Bool[np.ndarray, " H"]:
        """As many best heads as the circuit has."""
        flags = np.zeros(table.H, dtype=np.bool_)
        flags[ranking(np.abs(_means(column)))[: table.k]] = True
        return flags

    def keep(flags: Bool[np.ndarray, " H"]) -> Float64[np.ndarray, " P"]:
        return c.keep([divmod(int(place), width) for place in np.flatnonzero(flags)])

    full, by_size = c.get("y_full"), top(c.get("magnitude"))
    # Baselines are head sets, so of an edge circuit its heads are compared with them.
    own = c.run(c.kept) if table.by_heads else c.keep(table.heads)
    further: dict[str, Any] = {}
    if (attribution := c.find("attribution")) is not None:
        further["attribution"] = keep(top(attribution))
    if c.random_sets and 0 < table.k < table.H:
        for kind in ("random", "layer-matched"):
            rng = stream(table.seed, f"calibration/C36/{kind}")
            sets = [_drawn(rng, table, kind) for _ in range(c.random_sets)]
            further[kind] = np.stack([c.keep(each) for each in sets], axis=1)
    verdict = c.ask(
        "C36", full, own, keep(by_size), members=table.members, baseline_members=by_size, others=further
    )
    return verdict if table.by_heads else replace(verdict, warnings=(*verdict.warnings, "heads_of_edges"))


def _drawn(rng: np.random.Generator, table: MeasurementTable, kind: str) -> list[tuple[int, int]]:
    """As many random heads as the circuit has, in all or in each layer."""
    width, layers = table.model.n_heads, [layer for layer, _ in table.heads]
    if kind == "random":
        return [divmod(int(place), width) for place in rng.choice(table.H, size=table.k, replace=False)]
    return [
        (layer, int(head))
        for layer in sorted(set(layers))
        for head in rng.choice(width, size=layers.count(layer), replace=False)
    ]


def _f59(c: Columns, others: Others) -> Verdict:
    scores = {"drop-effect": c.effects(), "dla": c.find("dla"), "ov-norm": c.find("ov_norm")}
    scores = {name: table for name, table in scores.items() if table is not None}
    return c.ask("F59", scores, members=c.table.members)


def _s1(c: Columns, others: Others) -> Verdict:
    def ask(attributions: Float64[np.ndarray, "P H"], **more: Any) -> Verdict:
        return c.ask("S1", attributions, c.table.members, n_heads=c.table.model.n_heads, **more)

    return _with_difference(c, ask(c.get("dla_correct"), outputs=c.get("z_last")), ask)


def _s3(c: Columns, others: Others) -> Verdict:
    grouping = choose_groups(c.labels([c.table.task]))
    groups = None if grouping is None else grouping.labels

    def ask(attributions: Float64[np.ndarray, "P H"]) -> Verdict:
        return c.ask("S3", attributions[:, c.table.places], groups=groups)

    return _with_difference(c, ask(c.get("dla_correct")), ask)


def _with_difference(c: Columns, verdict: Verdict, ask: Callable[..., Verdict]) -> Verdict:
    """Beside the published attribution (correct output, no final norm) that to the margin, norm frozen."""
    difference = c.find("dla")
    if difference is None:
        return verdict
    return replace(verdict, sub_results={**verdict.sub_results, "difference": ask(difference)})


def _m93(c: Columns, others: Others) -> Verdict:
    return c.ask("M93", pooled_results(others, c.table.task.name, heads=c.table.heads))


def _under(code: str, *methods: str) -> Callable[[Columns, Others], Verdict]:
    """A gate on the circuit's runs under several methods, the table's and the task's own among them.

    By these two C11 and `measure` judge the circuit. A method that these prompts do not allow is a
    run without a finite margin: the gate flags it.
    """

    def judged(c: Columns, others: Others) -> Verdict:
        compared = dict.fromkeys((*methods, c.table.ablation, c.table.task.ablation))
        columns = {key: c.find(f"y_keep/{key}") for key in compared if key in INTERVENTIONS}
        absent = np.full(c.table.P, np.nan)
        runs = {key: absent if column is None else column for key, column in columns.items()}
        return c.ask(code, c.get("y_full"), runs)

    return judged


def _m3b(c: Columns, others: Others) -> Verdict:
    signs = np.array([c.signs.get(head, 1) for head in c.table.heads], dtype=np.float64)
    gap = c.get("y_full") - c.get("y_cor")
    lost = float(gap[np.isfinite(gap)].mean()) if np.isfinite(gap).any() else 0.0
    # An effect below a hundredth of the margin lost by corrupting is negligible.
    smallest = 0.01 * lost if lost > 0 else None
    return c.ask("M3b", c.effects("y_drop1/circuit"), smallest=smallest, signs=signs)


# In the order in which the framework lists them.
JUDGES: Mapping[str, Callable[[Columns, Others], Verdict]] = {
    "bootstrap-stability": _c11,
    "convergent-validity": _c12,
    "measurement-invariance": _c13,
    "derived-metrics": _c14,
    "reliability-suite": _c16,
    "discriminant-validity": _c17,
    "nomological-validity": _c23,
    "seed-variance": _c30,
    "incremental-validity": _c36,
    "inter-rater": _f59,
    "distributional-characterization": _s1,
    "distributional-stability": _s3,
    "multiple-comparisons": _m93,
    "ablation-invariance": _under("M98", "zero", "mean", "resample-donor"),
    "method-invariance": _under("E1b", "zero", "mean", "noise-additive"),
    "certified-stability": _m3b,
}
