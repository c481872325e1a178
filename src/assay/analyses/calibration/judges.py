"""Which columns of a measurement table each gate takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from assay.analyses.calibration.gate import GATES, Gate, undefined
from assay.analyses.calibration.invariance import choose_groups
from assay.analyses.calibration.pooling import pooled_results
from assay.analyses.calibration.readings import Battery
from assay.analyses.calibration.signal import ratio_estimate
from assay.core.random import stream
from assay.core.verdict import Verdict
from assay.discovery.heads import MeasurementTable, predict_from_weights, weight_features
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.discovery.heads.scores import ranking
from assay.stats import Estimate
from assay.tasks import PairTask


MOST_GROUPS, FEWEST_PER_GROUP = 12, 3  # of a field that prompts could be grouped by
NEGLIGIBLE = 0.01  # share of the margin lost by corrupting, below which the effect of a head is negligible

Others = Mapping[str, Verdict]
Judge = Callable[[Battery, Others], Verdict]


def _c11(battery: Battery, others: Others) -> Verdict:
    full = battery.get("y_full")
    kept = battery.ask("C11", full, battery.run(battery.kept))
    if "derived-metrics" not in battery.gates:
        return kept
    # C14 reads the circuit's absence anyway, so completeness is judged at no cost.
    dropped = battery.ask("C11", full, battery.run(f"y_drop/{battery.table.ablation}"), inner="completeness")
    return replace(kept, sub_results={**kept.sub_results, "completeness": dropped})


def _c12(battery: Battery, others: Others) -> Verdict:
    scores: dict[str, Any] = {
        "C2": battery.restored(),
        "C5": battery.get("y_full")[:, None] - battery.get("y_cross"),
    }
    causation = battery.find("ocse")  # of tasks with wrong answers
    if causation is not None:
        scores["C7"] = causation
    scores["C10"] = battery.get("llc")
    return battery.ask("C12", scores, members=battery.table.members)


def _c13(battery: Battery, others: Others) -> Verdict:
    table = battery.table
    given = battery.grouped_by == "given"  # labels of the task's own prompts: the pool has none
    prefix = "" if given or table.more is None else "pool/"
    tasks = [table.task] if not prefix or table.more is None else [table.task, table.more]
    lengths = np.concatenate([each.lengths.numpy() for each in tasks]).astype(np.float64)
    grouping = choose_groups(battery.labels(tasks), lengths if battery.groups is None else None)
    verdict = battery.ask(
        "C13",
        battery.run(f"{prefix}y_full"),
        battery.run(f"{prefix}{battery.kept}"),
        None if grouping is None else grouping.labels,
        unit_id=battery.pool_units if prefix else battery.unit_id,
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
    k = table.k
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
    return battery.ask(
        "C14",
        table.members,
        _shares(battery),
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
        n_prompts=table.P,
    )


def _shares(battery: Battery) -> Float64[np.ndarray, " H"]:
    """Patching scores: restored margin over the gap, ratio of sums over prompts where both are finite."""
    restored = battery.restored()
    gap = battery.gap()
    usable = np.isfinite(gap) & np.isfinite(restored[:, np.isfinite(restored).any(axis=0)]).all(axis=1)
    total = float(gap[usable].sum())
    return np.asarray(restored[usable].sum(axis=0) / total if total else np.full(battery.table.H, np.nan))


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
    return battery.ask(
        "C16",
        battery.get("pool/y_full"),
        battery.run(f"pool/{battery.kept}"),
        battery.effects if whole else battery.member_effects,
        table.members if whole else np.ones(table.k, dtype=np.bool_),
        unit_id=battery.pool_units,
        effect_units=battery.unit_id,
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
    return battery.ask(
        "C17",
        {name: battery.restored(each) for name, each in tables.items()},
        {name: each.members for name, each in tables.items()},
        own=battery.name,
        gaps={name: battery.gap(each) for name, each in tables.items()},
        unit_id=None if battery.unit_id is None else {battery.name: battery.unit_id},
    )


def _c23(battery: Battery, others: Others) -> Verdict:
    if battery.table.head_circuit is None:
        return undefined("not_applicable", details={"needs": "a head circuit with roles and pathways"})
    return battery.ask("C23", battery.table.head_circuit)


def _c30(battery: Battery, others: Others) -> Verdict:
    return battery.ask(
        "C30",
        battery.get("pool/y_full"),
        battery.run(f"pool/{battery.kept}"),
        n_prompts=battery.table.P,
        unit_id=battery.pool_units,
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
    verdict = battery.ask(
        "C36",
        full,
        own,
        battery.keep(_pairs(by_size, table)),
        members=table.members,
        baseline_members=by_size,
        others=further,
    )
    return verdict if table.by_heads else replace(verdict, warnings=(*verdict.warnings, "heads_of_edges"))


def _top(scores: Float64[np.ndarray, " H"], table: MeasurementTable) -> Bool[np.ndarray, " H"]:
    flags = np.zeros(table.H, dtype=np.bool_)
    flags[ranking(scores)[: table.k]] = True
    return flags


def _pairs(flags: Bool[np.ndarray, " H"], table: MeasurementTable) -> list[tuple[int, int]]:
    return [divmod(int(place), table.model.n_heads) for place in np.flatnonzero(flags)]


def _drawn(rng: np.random.Generator, table: MeasurementTable, kind: str) -> list[tuple[int, int]]:
    """As many random heads as the circuit has, in all or in each layer."""
    width = table.model.n_heads
    if kind == "random":
        chosen = rng.choice(table.H, size=table.k, replace=False)
        return [divmod(int(place), width) for place in chosen]
    layers = [layer for layer, _ in table.heads]
    return [
        (layer, int(head))
        for layer in sorted(set(layers))
        for head in rng.choice(width, size=layers.count(layer), replace=False)
    ]


def _f59(battery: Battery, others: Others) -> Verdict:
    further = {name: battery.find(column) for name, column in (("dla", "dla"), ("ov-norm", "ov_norm"))}
    scores = {"drop-effect": battery.effects} | {
        name: column for name, column in further.items() if column is not None
    }
    return battery.ask("F59", scores, members=battery.table.members)


def _s1(battery: Battery, others: Others) -> Verdict:
    table = battery.table

    def ask(attributions: Float64[np.ndarray, "P H"], **more: Any) -> Verdict:
        return battery.ask("S1", attributions, table.members, n_heads=table.model.n_heads, **more)

    return _with_difference(battery, ask(battery.get("dla_correct"), outputs=battery.get("z_last")), ask)


def _s3(battery: Battery, others: Others) -> Verdict:
    table = battery.table
    grouping = choose_groups(battery.labels([table.task]))
    groups = None if grouping is None else grouping.labels

    def ask(attributions: Float64[np.ndarray, "P H"]) -> Verdict:
        return battery.ask("S3", attributions[:, table.places], groups=groups)

    return _with_difference(battery, ask(battery.get("dla_correct")), ask)


def _with_difference(
    battery: Battery, verdict: Verdict, ask: Callable[[Float64[np.ndarray, "P H"]], Verdict]
) -> Verdict:
    """Beside the published attribution (correct output, no final norm) that to the margin, norm frozen."""
    difference = battery.find("dla")
    if difference is None:
        return verdict
    return replace(verdict, sub_results={**verdict.sub_results, "difference": ask(difference)})


def _m93(battery: Battery, others: Others) -> Verdict:
    return battery.ask("M93", pooled_results(others, battery.name, heads=battery.table.heads))


def _under(code: str, methods: Sequence[str]) -> Judge:
    """A gate on the circuit's runs under several methods, the table's and the task's own among them.

    By these two C11 and `measure` judge the circuit. A method that these prompts do not allow is a
    run without a finite margin: the gate flags it.
    """

    def judged(battery: Battery, others: Others) -> Verdict:
        own = (battery.table.ablation, battery.table.task.ablation)
        compared = [key for key in dict.fromkeys((*methods, *own)) if key in INTERVENTIONS]
        columns = {method: battery.find(f"y_keep/{method}") for method in compared}
        absent = np.full(battery.table.P, np.nan)
        runs = {name: absent if column is None else column for name, column in columns.items()}
        return battery.ask(code, battery.get("y_full"), runs)

    return judged


def _m3b(battery: Battery, others: Others) -> Verdict:
    table = battery.table
    signs = np.array([battery.signs.get(head, 1) for head in table.heads], dtype=np.float64)
    gap = battery.get("y_full") - battery.get("y_cor")
    gap = gap[np.isfinite(gap)]
    lost = float(gap.mean()) if len(gap) else 0.0
    return battery.ask(
        "M3b", battery.member_effects, smallest=NEGLIGIBLE * lost if lost > 0 else None, signs=signs
    )


# In the order in which the framework lists them.
JUDGES: Mapping[str, Judge] = {
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
    "ablation-invariance": _under("M98", ("zero", "mean", "resample-donor")),
    "method-invariance": _under("E1b", ("zero", "mean", "noise-additive")),
    "certified-stability": _m3b,
}


def judge(battery: Battery, key: str, others: Others) -> Verdict:
    """The verdict of one gate; `others` are those of this run so far, which some gates forward."""
    return JUDGES[key](battery, others) if key in JUDGES else _by_needs(battery, GATES[key])


def _by_needs(battery: Battery, gate: Gate) -> Verdict:
    """The verdict of a gate of another package, on the columns that its `needs` name, in their order.

    Beside the columns of the table there are `members` and, for the runs of the circuit under the table's
    own ablation, `y_keep`.
    """
    named = {"members": lambda: battery.table.members, "y_keep": lambda: battery.run(battery.kept)}
    columns = [named[name]() if name in named else battery.find(name) for name in gate.needs]
    if any(column is None for column in columns):
        return undefined("not_applicable")  # `missing` says why
    return gate(*columns)
