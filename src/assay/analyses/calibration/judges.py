"""Which columns of a measurement table each gate takes."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from assay.analyses.calibration.ablations import ablation_invariance, method_invariance
from assay.analyses.calibration.agreement import convergent_validity, inter_rater
from assay.analyses.calibration.discriminant import discriminant_validity
from assay.analyses.calibration.distribution import distributional_characterization
from assay.analyses.calibration.gate import GATES, Gate, undefined
from assay.analyses.calibration.invariance import choose_groups, measurement_invariance
from assay.analyses.calibration.multiplicity import multiple_comparisons
from assay.analyses.calibration.pooling import pooled_results
from assay.analyses.calibration.reliability import reliability_suite
from assay.analyses.calibration.resampling import bootstrap_stability, seed_variance
from assay.analyses.calibration.signal import derived_metrics, ratio_estimate
from assay.analyses.calibration.stability import certified_stability, distributional_stability
from assay.analyses.calibration.validity import incremental_validity, nomological_validity
from assay.core.errors import InputError
from assay.core.measurement import Verdict
from assay.core.random import stream
from assay.core.record import library_version, record_id
from assay.discovery.heads import MeasurementTable, predict_from_weights, weight_features
from assay.discovery.heads.effects import SMALLEST
from assay.discovery.heads.scores import ranking
from assay.stats import Estimate
from assay.tasks import PairTask


ABLATIONS = ("zero", "mean", "resample-donor")
METHODS = ("zero", "mean", "noise-additive")
GROUPED_BY = ("template", "type", "category")
MOST_GROUPS, FEWEST_PER_GROUP = 12, 3  # of a field that prompts could be grouped by
NEGLIGIBLE = 0.01  # share of the margin lost by corrupting, below which the effect of a head is negligible


@dataclass(kw_only=True, eq=False)
class Battery:
    """Hands each gate its columns of the tables.

    Attributes:
        table: Of the circuit under judgement.
        gates: Keys of those to be judged.
        against: Of other circuits on other tasks.
        published: `[H]` heads of a published list.
        groups: Field, or label per prompt of the task, to group prompts by; None: the usual fields.
        unit_id: `[P]` which prompts belong together.
        signs: -1 for heads that oppose the task.
        profile: Heads whose effects C16 correlates between halves: `all`, or those of the `circuit`.
        random_sets: Random sets of heads for C36.
        same_prompts: Keys of gates judged on prompts that a circuit was found on.
        missing: Filled as columns turn out not to exist: column -> why.
        filling: Seconds spent on runs.
    """

    table: MeasurementTable
    gates: tuple[str, ...] = ()
    against: tuple[MeasurementTable, ...] = ()
    published: Bool[np.ndarray, " H"] | None = None
    groups: str | Shaped[np.ndarray, " P"] | None = None
    unit_id: Shaped[np.ndarray, " P"] | None = None
    signs: Mapping[tuple[int, int], int] = field(default_factory=dict)
    profile: str = "all"
    random_sets: int = 0
    same_prompts: frozenset[str] = frozenset()
    missing: dict[str, str] = field(default_factory=dict)
    filling: float = 0.0

    def judge(self, key: str, others: Mapping[str, Verdict]) -> Verdict:
        """The verdict of one gate; `others` are those of this run so far, which some gates forward."""
        judged = JUDGES[key](self, others) if key in JUDGES else self._by_needs(GATES[key])
        if self.table.partial and key in _OVER_ALL_HEADS:
            judged = replace(judged, warnings=(*judged.warnings, "partial_heads"))
        return judged

    def _by_needs(self, gate: Gate) -> Verdict:
        """The verdict of a gate of another package, on the columns that its `needs` name, in their order.

        Beside the columns of the table there are `members` and, for the runs of the circuit under the table's
        own ablation, `y_keep`.
        """
        named = {"members": lambda: self.table.members, "y_keep": lambda: self.run(self.kept)}
        columns = [named[name]() if name in named else self.find(name) for name in gate.needs]
        if any(column is None for column in columns):
            return undefined("not_applicable")  # `missing` says why
        return gate(*columns)

    # ---- columns --------------------------------------------------------------------------------

    def get(self, name: str, table: MeasurementTable | None = None) -> Float64[np.ndarray, "..."]:
        """A column, measured now if need be."""
        began = time.perf_counter()
        try:
            column: Float64[np.ndarray, "..."] = np.array((table or self.table).column(name))
            return column
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
        column = self.get(name)
        return np.asarray(column.mean(axis=1) if column.ndim > 1 else column)

    def keep(self, heads: Collection[tuple[int, int]]) -> Float64[np.ndarray, " P"]:
        """Margins of another head set alone."""
        began = time.perf_counter()
        kept = np.array(self.table.keep(heads))
        self.filling += time.perf_counter() - began
        return np.asarray(kept.mean(axis=1) if kept.ndim > 1 else kept)

    @property
    def name(self) -> str:
        """Task, which names random streams."""
        return self.table.task.name

    @property
    def size(self) -> dict[str, int]:
        """Heads in the circuit and in the model, for flags of odd circuits."""
        return {"circuit_size": self.table.k, "n_heads": self.table.H}

    @property
    def kept(self) -> str:
        """Column of the circuit's runs."""
        return f"y_keep/{self.table.ablation}"

    @cached_property
    def effects(self) -> Float64[np.ndarray, "P H"]:
        """What dropping each head costs on each prompt."""
        effects: Float64[np.ndarray, "P H"] = self.get("y_full")[:, None] - self.get("y_drop1")
        return effects

    @cached_property
    def member_effects(self) -> Float64[np.ndarray, "P k"]:
        """The same of the circuit's heads, which alone cost less."""
        effects: Float64[np.ndarray, "P k"] = self.get("y_full")[:, None] - self.get("y_drop1/circuit")
        return effects

    @cached_property
    def pool_units(self) -> Shaped[np.ndarray, " n_pool"] | None:
        """Units of the pool: further prompts are units of their own."""
        if self.unit_id is None:
            return None
        codes = np.unique(self.unit_id, return_inverse=True)[1].reshape(-1)
        further = np.arange(self.table.n_pool - self.table.P) + len(codes)
        return np.concatenate([codes, further])

    def labels(self, tasks: Sequence[PairTask]) -> dict[str, Shaped[np.ndarray, " n"]]:
        """What prompts of some tasks can be grouped by."""
        if self.groups is not None and not isinstance(self.groups, str):
            return {"template": np.asarray(self.groups)}
        names = {key: key for key in GROUPED_BY} if self.groups is None else {"template": self.groups}
        if self.groups is None and "template" not in tasks[0].fields:
            names["template"] = "template_id"
        return {
            key: np.array([str(value) for each in tasks for value in each.fields[name]])
            for key, name in names.items()
            if all(name in each.fields for each in tasks)
        }

    @property
    def grouped_by(self) -> str | None:
        """The field asked for, `given` for labels, None for the usual ones."""
        return self.groups if self.groups is None or isinstance(self.groups, str) else "given"

    @cached_property
    def record(self) -> dict[str, Any]:
        """What the verdicts are a function of."""
        labels = {"groups": self.groups, "unit_id": self.unit_id}
        table, described = self.table, self.table.head_circuit
        prompts = [table.task, *([] if table.more is None else [table.more])]
        return {
            "library": library_version(),
            "table": table.record,
            # Roles, pathways and fields of prompts are no part of what a table measures.
            "head_circuit": None if described is None else described.to_dict(),
            "fields": [
                record_id("fields", {key: each.tolist() for key, each in self.labels([one]).items()})
                for one in prompts
            ],
            "gates": list(self.gates),
            "against": [other.record for other in self.against],
            "published": None if self.published is None else np.flatnonzero(self.published).tolist(),
            "profile": self.profile,
            "random_sets": self.random_sets,
            "signs": [[*head, sign] for head, sign in sorted(self.signs.items())],
            **({"same_prompts": sorted(self.same_prompts)} if self.same_prompts else {}),
            **{
                name: value if value is None or isinstance(value, str) else [str(label) for label in value]
                for name, value in labels.items()
            },
        }


# ---- the gates --------------------------------------------------------------------------------------

Others = Mapping[str, Verdict]


def _c11(battery: Battery, others: Others) -> Verdict:
    data: dict[str, Any] = {"unit_id": battery.unit_id, "task": battery.name, "seed": battery.table.seed}
    full = battery.get("y_full")
    kept = bootstrap_stability(full, battery.run(battery.kept), **battery.size, **data)
    if "derived-metrics" not in battery.gates:
        return kept
    # C14 reads the circuit's absence anyway, so completeness is judged at no cost.
    dropped = bootstrap_stability(
        full, battery.run(f"y_drop/{battery.table.ablation}"), inner="completeness", **battery.size, **data
    )
    return replace(kept, sub_results={**kept.sub_results, "completeness": dropped})


def _patching(battery: Battery, table: MeasurementTable) -> Float64[np.ndarray, "P H"]:
    """Margin that each head's clean output restores in the corrupted run, not yet over the gap."""
    restored: Float64[np.ndarray, "P H"] = (
        battery.get("y_patch", table) - battery.get("y_cor", table)[:, None]
    )
    restored[np.isnan(_gap(battery, table))] = np.nan
    return restored


def _gap(battery: Battery, table: MeasurementTable) -> Float64[np.ndarray, " P"]:
    """Margin lost by corrupting each prompt; NaN where it is no scale for what a head restores."""
    gap = battery.get("y_full", table) - battery.get("y_cor", table)
    return np.where(np.abs(gap) >= SMALLEST, gap, np.nan)


def _c12(battery: Battery, others: Others) -> Verdict:
    table = battery.table
    scores: dict[str, Any] = {
        "C2": _patching(battery, table),
        "C5": battery.get("y_full")[:, None] - battery.get("y_cross"),
    }
    causation = battery.find("ocse")  # of tasks with wrong answers
    if causation is not None:
        scores["C7"] = causation
    scores["C10"] = battery.get("llc")
    return convergent_validity(
        scores, members=table.members, unit_id=battery.unit_id, task=battery.name, seed=table.seed
    )


def _c13(battery: Battery, others: Others) -> Verdict:
    table = battery.table
    given = battery.grouped_by == "given"  # labels of the task's own prompts: the pool has none
    prefix = "" if given or table.more is None else "pool/"
    tasks = [table.task] if not prefix or table.more is None else [table.task, table.more]
    lengths = np.concatenate([each.lengths.numpy() for each in tasks]).astype(np.float64)
    grouping = choose_groups(battery.labels(tasks), lengths if battery.groups is None else None)
    verdict = measurement_invariance(
        battery.run(f"{prefix}y_full"),
        battery.run(f"{prefix}{battery.kept}"),
        None if grouping is None else grouping.labels,
        unit_id=battery.pool_units if prefix else battery.unit_id,
        **battery.size,
        task=battery.name,
        seed=table.seed,
    )
    if grouping is None:
        return replace(verdict, details={**verdict.details, "fields": usable_fields(table.task)})
    return replace(verdict, details={**verdict.details, "groups_from": battery.grouped_by or grouping.source})


def usable_fields(task: PairTask) -> list[str]:
    """Fields whose values repeat often enough to group prompts by."""
    found = []
    for name, values in task.fields.items():
        counts = np.unique([str(value) for value in values], return_counts=True)[1]
        repeated = len(counts) <= MOST_GROUPS and (counts >= FEWEST_PER_GROUP).sum() > 1
        if repeated and not name.startswith("corrupted."):
            found.append(name)
    return found


def _c14(battery: Battery, others: Others) -> Verdict:
    table = battery.table
    k, n, seed = table.k, table.P, table.seed
    full, kept = battery.get("y_full"), battery.run(battery.kept)
    attribution = battery.find("attribution")
    head_edges = () if table.head_circuit is None else table.head_circuit.head_edges
    composition = {key: battery.get(f"composition/{key}") for key in "qkv"} if head_edges else None
    minimality = None
    if k > 0:
        without = battery.get("y_minus1")
        usable = np.isfinite(without).all(axis=1) & np.isfinite(full) & np.isfinite(kept)
        total = float(full[usable].sum())
        minimality = (
            (kept[usable].sum() - without[usable].sum(axis=0)) / total if total else np.full(k, np.nan)
        )
    return derived_metrics(
        table.members,
        _shares(battery, table),
        llc=battery.get("llc"),
        attribution=None if attribution is None else np.abs(_means(attribution)),
        predicted=_predicted(battery),
        published_members=battery.published,
        spectral_norm=battery.get("spectral_norm"),
        sv_entropy=battery.get("sv_entropy"),
        composition=composition,
        head_edges=head_edges,
        n_heads=table.model.n_heads,
        minimality=minimality,
        partial_eta_sq=others.get("measurement-invariance"),
        faithfulness=_ratio(battery, battery.kept),
        completeness=_ratio(battery, f"y_drop/{table.ablation}", "completeness"),
        # Scrub recovery: faithfulness with the complement's activations from other prompts.
        logit_diff_recovery=_ratio(battery, "y_keep/resample-donor"),
        n_prompts=n,
        task=battery.name,
        seed=seed,
    )


def _shares(battery: Battery, table: MeasurementTable) -> Float64[np.ndarray, " H"]:
    """Patching scores: restored margin over the gap, ratio of sums over prompts where both are finite."""
    restored = _patching(battery, table)
    gap = _gap(battery, table)
    usable = np.isfinite(gap) & np.isfinite(restored[:, np.isfinite(restored).any(axis=0)]).all(axis=1)
    total = float(gap[usable].sum())
    return np.asarray(restored[usable].sum(axis=0) / total if total else np.full(table.H, np.nan))


def _means(table: Float64[np.ndarray, "P H"]) -> Float64[np.ndarray, " H"]:
    usable = np.isfinite(table).all(axis=1)
    return table[usable].mean(axis=0) if usable.any() else np.full(table.shape[1], np.nan)


def _ratio(battery: Battery, column: str, inner: str = "faithfulness") -> Estimate | None:
    """Faithfulness or completeness of runs with bounds, as C14 forwards it; None without such runs."""
    run = battery.find(column)
    if run is None:
        return None
    return ratio_estimate(
        run.reshape(len(run), -1).mean(axis=1),
        battery.get("y_full"),
        inner,
        unit_id=battery.unit_id,
        seed=battery.table.seed,
    )


def _predicted(battery: Battery) -> Bool[np.ndarray, " H"] | None:
    """A head set predicted from weights by a rule learnt from the circuits of two or more other tasks."""
    if len(battery.against) < 2:
        return None
    circuits = {f"other-{place}": other.members for place, other in enumerate(battery.against)}
    circuits["own"] = battery.table.members
    if any(not 0 < members.sum() < battery.table.H for members in circuits.values()):
        return None
    found = predict_from_weights(weight_features(battery.table.model), circuits)["own"]
    return None if found.reason else found.predicted


def _c16(battery: Battery, others: Others) -> Verdict:
    table = battery.table
    whole = battery.profile == "all"
    return reliability_suite(
        battery.get("pool/y_full"),
        battery.run(f"pool/{battery.kept}"),
        battery.effects if whole else battery.member_effects,
        table.members if whole else np.ones(table.k, dtype=np.bool_),
        unit_id=battery.pool_units,
        effect_units=battery.unit_id,
        n_heads=table.H,
        task=battery.name,
        seed=table.seed,
    )


def _c17(battery: Battery, others: Others) -> Verdict:
    tables = {battery.name: battery.table}
    for other in battery.against:
        name = other.task.name
        while name in tables:
            name += "'"
        tables[name] = other
    if len(tables) < 2:
        return undefined("not_applicable", details={"needs": "another task with a circuit of its own"})
    return discriminant_validity(
        {name: _patching(battery, each) for name, each in tables.items()},
        {name: each.members for name, each in tables.items()},
        own=battery.name,
        gaps={name: _gap(battery, each) for name, each in tables.items()},
        unit_id=None if battery.unit_id is None else {battery.name: battery.unit_id},
        seed=battery.table.seed,
    )


def _c23(battery: Battery, others: Others) -> Verdict:
    if battery.table.head_circuit is None:
        return undefined("not_applicable", details={"needs": "a head circuit with roles and pathways"})
    return nomological_validity(battery.table.head_circuit, task=battery.name, seed=battery.table.seed)


def _c30(battery: Battery, others: Others) -> Verdict:
    return seed_variance(
        battery.get("pool/y_full"),
        battery.run(f"pool/{battery.kept}"),
        n_prompts=battery.table.P,
        unit_id=battery.pool_units,
        **battery.size,
        task=battery.name,
    )


def _c36(battery: Battery, others: Others) -> Verdict:
    table = battery.table
    full = battery.get("y_full")
    # Baselines are head sets, so of an edge circuit its heads are compared with them.
    own = battery.run(battery.kept) if table.by_heads else battery.keep(table.heads)
    by_size = _top(_means(battery.get("magnitude")), table)
    further: dict[str, Any] = {}
    attribution = battery.find("attribution")
    if attribution is not None:
        further["attribution"] = battery.keep(_pairs(_top(np.abs(_means(attribution)), table), table))
    if battery.random_sets and 0 < table.k < table.H:
        for kind in ("random", "layer-matched"):
            rng = stream(table.seed, f"calibration/C36/{kind}")
            sets = [_drawn(rng, table, kind) for _ in range(battery.random_sets)]
            further[kind] = np.stack([battery.keep(each) for each in sets], axis=1)
    verdict = incremental_validity(
        full,
        own,
        battery.keep(_pairs(by_size, table)),
        members=table.members,
        baseline_members=by_size,
        others=further,
        unit_id=battery.unit_id,
    )
    return verdict if table.by_heads else replace(verdict, warnings=(*verdict.warnings, "heads_of_edges"))


def _top(scores: Float64[np.ndarray, " H"], table: MeasurementTable) -> Bool[np.ndarray, " H"]:
    flags = np.zeros(table.H, dtype=np.bool_)
    flags[ranking(scores)[: table.k]] = True
    return flags


def _pairs(flags: Bool[np.ndarray, " H"], table: MeasurementTable) -> list[tuple[int, int]]:
    width = table.model.n_heads
    return [(int(place) // width, int(place) % width) for place in np.flatnonzero(flags)]


def _drawn(rng: np.random.Generator, table: MeasurementTable, kind: str) -> list[tuple[int, int]]:
    """As many random heads as the circuit has, in all or in each layer."""
    width = table.model.n_heads
    if kind == "random":
        chosen = rng.choice(table.H, size=table.k, replace=False)
        return [(int(place) // width, int(place) % width) for place in chosen]
    layers = [layer for layer, _ in table.heads]
    return [
        (layer, int(head))
        for layer in sorted(set(layers))
        for head in rng.choice(width, size=layers.count(layer), replace=False)
    ]


def _f59(battery: Battery, others: Others) -> Verdict:
    scores: dict[str, Any] = {"drop-effect": battery.effects}
    for name, column in (("dla", "dla"), ("ov-norm", "ov_norm")):
        found = battery.find(column)
        if found is not None:
            scores[name] = found
    table = battery.table
    return inter_rater(
        scores, members=table.members, unit_id=battery.unit_id, task=battery.name, seed=table.seed
    )


def _s1(battery: Battery, others: Others) -> Verdict:
    table = battery.table

    def judge(attributions: Float64[np.ndarray, "P H"], **more: Any) -> Verdict:
        return distributional_characterization(
            attributions,
            table.members,
            n_heads=table.model.n_heads,
            unit_id=battery.unit_id,
            task=battery.name,
            seed=table.seed,
            **more,
        )

    verdict = judge(battery.get("dla_correct"), outputs=battery.get("z_last"))
    return _with_difference(battery, verdict, judge)


def _s3(battery: Battery, others: Others) -> Verdict:
    table = battery.table
    grouping = choose_groups(battery.labels([table.task]))

    def judge(attributions: Float64[np.ndarray, "P H"]) -> Verdict:
        return distributional_stability(
            attributions[:, table.places],
            groups=None if grouping is None else grouping.labels,
            unit_id=battery.unit_id,
            task=battery.name,
            seed=table.seed,
        )

    return _with_difference(battery, judge(battery.get("dla_correct")), judge)


def _with_difference(
    battery: Battery, verdict: Verdict, judge: Callable[[Float64[np.ndarray, "P H"]], Verdict]
) -> Verdict:
    """Beside the published attribution (correct output, no final norm) that to the margin, norm frozen."""
    difference = battery.find("dla")
    if difference is None:
        return verdict
    return replace(verdict, sub_results={**verdict.sub_results, "difference": judge(difference)})


def _m93(battery: Battery, others: Others) -> Verdict:
    return multiple_comparisons(pooled_results(others, battery.name, heads=battery.table.heads))


def _m98(battery: Battery, others: Others) -> Verdict:
    return _invariance(battery, ABLATIONS, ablation_invariance)


def _e1b(battery: Battery, others: Others) -> Verdict:
    return _invariance(battery, METHODS, method_invariance)


def _invariance(battery: Battery, methods: Sequence[str], gate: Callable[..., Verdict]) -> Verdict:
    n = battery.table.P
    runs = {}
    for method in methods:
        found = battery.find(f"y_keep/{method}")
        # A method that these prompts do not allow is a run without a finite margin: the gate flags it.
        runs[method] = np.full(n, np.nan) if found is None else found
    return gate(battery.get("y_full"), runs, unit_id=battery.unit_id, **battery.size)


def _m3b(battery: Battery, others: Others) -> Verdict:
    table = battery.table
    signs = np.array([battery.signs.get(head, 1) for head in table.heads], dtype=np.float64)
    gap = battery.get("y_full") - battery.get("y_cor")
    gap = gap[np.isfinite(gap)]
    lost = float(gap.mean()) if len(gap) else 0.0
    return certified_stability(
        battery.member_effects,
        smallest=NEGLIGIBLE * lost if lost > 0 else None,
        signs=signs,
        unit_id=battery.unit_id,
        task=battery.name,
        seed=table.seed,
    )


# In the order in which the framework lists them.
JUDGES: Mapping[str, Callable[[Battery, Others], Verdict]] = {
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
    "ablation-invariance": _m98,
    "method-invariance": _e1b,
    "certified-stability": _m3b,
}
_OVER_ALL_HEADS = (
    "convergent-validity",
    "derived-metrics",
    "reliability-suite",
    "discriminant-validity",
    "inter-rater",
)
