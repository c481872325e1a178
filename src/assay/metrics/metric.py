"""Metrics, described functions of a circuit's runs, and what measures and compares circuits by them."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from jaxtyping import Bool, Float64

from assay.circuits import Circuit
from assay.core.errors import InputError, check_least, check_name, unknown_name
from assay.core.measurement import FEW_PROMPTS, SAME_PROMPTS, Measurement, Rule
from assay.core.random import stream
from assay.core.registry import Registry
from assay.execution import Ablation, CircuitRuns
from assay.execution.forward import finite_rows
from assay.execution.runs import Which
from assay.models import Model
from assay.objectives import Loss, Objective, get_objective
from assay.stats import FunctionOfSums, RatioOfSums, paired_difference
from assay.tasks import Task
from assay.tasks.examples import found_on


MANY_EXCLUDED = 0.05  # share of examples left out above which the number carries a warning
SOLVED = 0.6  # share of examples with a positive margin below which the model does not do the task
# Objectives whose margin is positive exactly where the model prefers the answer.
SIGNED_MARGINS = frozenset({"logit_diff", "logit_diff_max", "prob_diff"})


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """A metric and what is known about it.

    Attributes:
        id: Published code with the quantity, e.g. `D02.faithfulness`; unique.
        key: Kebab-case key, unique.
        name: What it measures, for readers.
        criterion: Validity criterion that it speaks to, e.g. `I2 sufficiency`.
        range: Smallest and largest possible value.
        direction: `higher`, `lower`, `target` (1 is the whole model) or `report` (no verdict).
        rule: Published thresholds; None without a verdict.
        unit: Unit of the value.
        runs: Runs it reads; each costs one forward pass per example once, shared with other metrics.
        more_runs: Whether it makes further runs of its own, with single heads or edges changed.
        meaning: What its value says, a sentence for pages.
        version: Raised when the same input would give another number.
        compute: `(runs, spec, **options) -> Measurement`.
    """

    id: str
    key: str
    name: str
    criterion: str = "I2 sufficiency"
    range: tuple[float, float] = (-math.inf, math.inf)
    direction: str = "report"
    rule: Rule | None = None
    unit: str = "fraction"
    runs: tuple[str, ...] = ("full", "keep")
    more_runs: bool = False
    meaning: str = ""
    version: int = 1
    compute: Callable[..., Measurement]

    @property
    def code(self) -> str:
        """Published code without the quantity, e.g. `D02`."""
        return self.id.partition(".")[0]

    @property
    def options(self) -> dict[str, Any]:
        """Option names of `measure` for this metric, with their defaults."""
        parameters = inspect.signature(self.compute).parameters.values()
        return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


METRICS: Registry[MetricSpec] = Registry("metric", holds=MetricSpec)


def find_metric(name: str) -> MetricSpec:
    """The metric of a key (`ce-delta`, `ce_delta`), an id (`D02.completeness`) or a code (`D05`)."""
    key = name.replace("_", "-").lower()
    if key in METRICS:
        return METRICS[key]
    specs = [spec for _, spec in METRICS.items()]
    by_name = {spec.code: spec for spec in reversed(specs)} | {spec.id: spec for spec in specs}
    found = {each.lower(): spec for each, spec in by_name.items()}.get(name.lower())
    if found is None:
        raise unknown_name("metric", name, [*METRICS, *by_name])
    return found


# ------------------------------------------------------------------------------------- making one


def finite_examples(runs: CircuitRuns, *which: Which) -> Bool[np.ndarray, " n"]:
    """Examples that count (`CircuitRuns.counted`) and whose logits are finite in all the runs named."""
    finite = runs.counted.copy()
    for each in which:
        finite &= finite_rows(runs.logits(each)).numpy()
    return finite


def record(
    spec: MetricSpec,
    components: Mapping[str, Float64[np.ndarray, " n"]],
    statistic: RatioOfSums | FunctionOfSums,
    *,
    used: Bool[np.ndarray, " n"],
    warnings: tuple[str, ...] = (),
    undefined: str = "zero_denominator",
    reading: Callable[[float], str | None] | None = None,
    details: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Measurement:
    """A measurement from per-example components; excluded examples become NaN in all of them.

    Args:
        spec: Gives id, unit, direction and thresholds unless `facts` do.
        components: Vectors over all examples of the task.
        statistic: Function of their sums that is the value.
        used: Examples that may count; those with a non-finite component are left out as well.
        warnings: Codes found so far; an unstable denominator is added here.
        undefined: Reason given when the statistic is NaN although examples remain.
        reading: What a value of this size says, kept as the detail `reading`.
        details: Further numbers.
        facts: Further fields of `Measurement`.
    """
    table, numbers = _numbers(statistic, components, used)
    value = numbers["value"]
    if isinstance(statistic, RatioOfSums) and numbers["n"] and statistic.unstable(table):
        warnings = (*warnings, "unstable_denominator")
    own = {"id": spec.id, "name": spec.key, "unit": spec.unit, "direction": spec.direction, "rule": spec.rule}
    told = {} if reading is None or math.isnan(value) else {"reading": reading(value)}
    reason = None if not math.isnan(value) else undefined if used.any() else "no_valid_prompt"
    found = {**own, "reason": reason, "warnings": warnings, "details": {**(details or {}), **told}}
    return Measurement(**(found | facts), **numbers, n_excluded=len(used) - numbers["n"])


def _numbers(
    statistic: RatioOfSums | FunctionOfSums,
    components: Mapping[str, Float64[np.ndarray, " n"]],
    used: Bool[np.ndarray, " n"],
) -> tuple[Float64[np.ndarray, "n_components n_used"], dict[str, Any]]:
    """The components of the examples that count, and the fields of a measurement that follow from them."""
    table = np.stack([components[name] for name in statistic.components])
    kept = used & np.isfinite(table).all(axis=0)
    table, n = table[:, kept], int(kept.sum())
    value = float(statistic.of_sums(table.sum(axis=1), n)) if n else math.nan
    per_example = None
    if not math.isnan(value):
        per_example = np.full(len(kept), np.nan)
        per_example[kept] = statistic.linearised(table)
    masked = {name: np.where(kept, vector, np.nan) for name, vector in components.items()}
    facts = {"value": value, "n": n, "per_example": per_example, "components": masked}
    return table, facts | {"statistic": statistic}


def over_different(measurement: Measurement, runs: CircuitRuns, *more: str) -> Measurement:
    """A measurement and its parts, in which rows that do not count are not reported as excluded.

    Args:
        measurement: What `record` made of all rows.
        runs: What was run.
        more: Further warnings; `many_excluded` and a missing example are told here.
    """
    n_excluded = max(measurement.n_excluded - int((~runs.counted).sum()), 0)
    many = ("many_excluded",) if n_excluded > MANY_EXCLUDED * (measurement.n + n_excluded) else ()
    return replace(
        measurement,
        n_excluded=n_excluded,
        reason=measurement.reason if runs.counted.any() else FEW_PROMPTS,
        warnings=tuple(dict.fromkeys((*many, *measurement.warnings, *more))),
        parts={key: over_different(part, runs, *more) for key, part in measurement.parts.items()},
    )


def task_warnings(runs: CircuitRuns, used: Bool[np.ndarray, " n"]) -> tuple[str, ...]:
    """`task_not_solved` where the model itself fails: negative mean margin, or right on fewer than 60 %."""
    if runs.objective not in SIGNED_MARGINS or not used.any():
        return ()
    if get_objective(runs.objective).needs_wrong and runs.task.wrong is None:
        return ()  # metrics that need no wrong answers are measured without
    margins = runs.margins("full")[used]
    unsolved = margins.sum() < 0 or (margins > 0).mean() < SOLVED
    return ("task_not_solved",) if unsolved else ()


# ------------------------------------------------------------------------------------- measuring


@overload
def measure(circuit: Circuit, model: Model, task: Task, metric: str, **keywords: Any) -> Measurement: ...
@overload
def measure(
    circuit: Circuit, model: Model, task: Task, metric: Sequence[str], **keywords: Any
) -> list[Measurement]: ...
def measure(
    circuit: Circuit,
    model: Model,
    task: Task,
    metric: str | Sequence[str],
    *,
    ablation: str | Ablation | None = None,
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    runs: CircuitRuns | None = None,
    random_circuits: int = 0,
    **options: Any,
) -> Measurement | list[Measurement]:
    """Measure one circuit by one or more registered metrics.

    Args:
        circuit: Edge or head circuit of the model's graph; of edges at spans of positions, metrics that read
            runs of the whole circuit alone.
        model: The model it belongs to. Under a treatment of norms behind branches other than `exact` (see
            `Model.treating`), `details["exact_norms"]` is the value under `exact`.
        task: The examples.
        metric: Key (`faithfulness`, `kl`, `topk`, ...) or published code (`D05`, `D02.completeness`); several
            share their forward passes and give one measurement each, in their order.
        ablation: What replaces ablated edges; None means the task's own default.
        objective: What the margin is the negative of; None means the task's own default.
        batch_size: Examples per pass; None fits it to free memory. Never changes a result.
        seed: Root of resampling, random circuits and noise.
        runs: Runs of this circuit on this task made earlier, to share their forward passes; ablation,
            objective, batch size and seed are then theirs.
        random_circuits: Also measure this many random circuits of equal size (as many random edges, or
            heads for a head circuit) and the empty one: `baseline`. Each costs one run, 20 are customary.
        options: Options of the metric.

    Returns:
        The value with per-example components, interval, verdict and provenance. An undefined value is NaN
        with a reason, never 0.

    Raises:
        InputError: For unknown metrics or options, `runs` of something else, a negative count.
    """
    if runs is None:
        how: dict[str, Any] = {"ablation": ablation, "objective": objective, "batch_size": batch_size}
        runs = CircuitRuns(model, task, circuit, **how, seed=seed)
    elif runs.circuit != circuit or not _same(runs.model, model) or runs.task is not task:
        raise InputError("runs= was made for another circuit, model or task; remove it")
    if isinstance(metric, str):
        return measure_runs(runs, metric, random_circuits=random_circuits, **options)
    return [measure_runs(runs, each, random_circuits=random_circuits, **options) for each in metric]


def _same(one: Model, other: Model) -> bool:
    """Whether two models run alike: `Model.treating` makes a new one each time."""
    return one is other or (one.module is other.module and one.post_norm == other.post_norm)


def measure_runs(runs: CircuitRuns, metric: str, *, random_circuits: int = 0, **options: Any) -> Measurement:
    """`measure` on runs that already exist.

    Args:
        runs: Runs of one circuit on one task.
        metric: Key or published code.
        random_circuits: Number of random circuits of equal size to measure beside it.
        options: Options of the metric.
    """
    spec = find_metric(metric)
    compute = spec.compute
    for name in options:
        check_name(f"option of metric {spec.key!r}", name, spec.options)
    if runs.circuit.spans is not None and (random_circuits or spec.more_runs):
        what = "random_circuits=" if random_circuits else spec.key
        whole = [key for key, each in METRICS.items() if not each.more_runs]
        raise InputError(
            f"{what} changes single edges or heads of a circuit, or many circuits, but this circuit keeps "
            f"its edges only at some positions; use {', '.join(whole)}, or measure circuit.anywhere()"
        )
    check_least(0, random_circuits=random_circuits)
    same = (SAME_PROMPTS,) if found_on(runs.circuit.provenance, runs.task) else ()
    measurement = over_different(compute(runs, spec, **options), runs, *same)
    warnings, details, baseline = measurement.warnings, measurement.details, {}
    if "full" in spec.runs:  # whatever is judged beside a model that fails at the task is marked
        unsolved = task_warnings(runs, np.ones(runs.task.n, dtype=bool))
        warnings = tuple(dict.fromkeys((*warnings, *unsolved)))
    if runs.exact is not runs and not spec.more_runs:
        details = {**details, "exact_norms": compute(runs.exact, spec, **options).value}
    if random_circuits:
        others = [random_like(runs.circuit, seed=runs.seed, index=index) for index in range(random_circuits)]
        empty = compute(runs.of(runs.circuit.emptied()), spec, **options)
        measured = [compute(runs.of(other), spec, **options) for other in others]
        baseline = {"random": _summary(measured), "empty": {"value": empty.value, "reason": empty.reason}}
    meaning = measurement.meaning or spec.meaning
    measurement = replace(measurement, warnings=warnings, details=details, baseline=baseline, meaning=meaning)
    provenance = measurement_provenance(runs, metric, random_circuits=random_circuits, **options)
    return _stamped(measurement, provenance, runs.seed)


def measurement_provenance(
    runs: CircuitRuns, metric: str, *, random_circuits: int = 0, **options: Any
) -> dict[str, Any]:
    """The provenance that `measure_runs` of the same arguments gives, known before anything runs.

    Its `record_id("measurement", ...)` is the identity of the measurement, so a store can be asked first.
    """
    spec = find_metric(metric)
    how = {"id": spec.id, "key": spec.key, "version": spec.version, "options": {**spec.options, **options}}
    baseline = {"random_circuits": random_circuits} if random_circuits else {}
    # The hash of a circuit does not tell what it was found on.
    same = {SAME_PROMPTS: True} if found_on(runs.circuit.provenance, runs.task) else {}
    return {**runs.provenance, "metric": how, **baseline, **same}


def _stamped(found: Measurement, provenance: Mapping[str, Any], seed: int) -> Measurement:
    """`found` and its parts with identity and names of their own."""
    parts = {
        key: _stamped(replace(part, name=f"{found.name}/{key}"), {**provenance, "part": key}, seed)
        for key, part in found.parts.items()
    }
    return replace(found, provenance=provenance, seed=seed, parts=parts)


# ------------------------------------------------------------------------------- reference circuits


def random_like(circuit: Circuit, *, seed: int, index: int) -> Circuit:
    """A random circuit of the size of `circuit`: as many heads, nodes or neurons where it has such.

    Args:
        circuit: Gives size, kind and graph.
        seed: Root seed of all random draws.
        index: Which of the random circuits; each is drawn independently of how many are asked for.
    """
    rng = stream(seed, f"random-like/{index}")
    if circuit.heads is None:
        n, level, width = circuit.n_items, circuit.level, circuit.items.shape[-1]
        draw = int(rng.integers(2**31))
        return Circuit.random(circuit.graph, n, seed=draw, level=level, d_model=width)
    n_heads = circuit.graph.n_heads
    places = rng.choice(circuit.graph.n_layers * n_heads, size=len(circuit.heads), replace=False)
    heads = [divmod(int(flat), n_heads) for flat in places]
    return Circuit.from_heads(circuit.graph, heads, mlps=circuit.keeps_mlps)


def _summary(measured: Sequence[Measurement]) -> dict[str, Any]:
    """Values of the random circuits, their mean over the defined ones, and the mean of each part."""

    def mean(values: list[float]) -> float:
        defined = [value for value in values if math.isfinite(value)]
        return float(np.mean(defined)) if defined else math.nan

    values = [each.value for each in measured]
    defined = [value for value in values if math.isfinite(value)]
    return {
        "n": len(values),
        "n_defined": len(defined),
        "value": mean(values),
        "sd": float(np.std(defined, ddof=1)) if len(defined) > 1 else math.nan,
        "values": values,
        "parts": {key: mean([each.parts[key].value for each in measured]) for key in measured[0].parts},
    }


# ------------------------------------------------------------------------------------- comparing


def compare(
    a: Circuit,
    b: Circuit,
    model: Model,
    task: Task,
    metric: str,
    *,
    ablation: str | Ablation | None = None,
    objective: str | Objective | Loss | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Measurement:
    """How much circuit `b` differs from circuit `a` by a metric, with a paired interval.

    Args:
        a: The first circuit of the model's graph.
        b: The second.
        model: The model they belong to.
        task: The examples, the same for both; the model's own runs are shared.
        metric: Key or published code, as for `measure`.
        ablation: What replaces ablated edges; None means the task's own default.
        objective: What the margin is the negative of; None means the task's own default.
        batch_size: Examples per pass; None fits it to free memory.
        seed: Root of resampling.
        options: Options of the metric.

    Returns:
        The value of `b` less that of `a`; see `difference`.

    Raises:
        InputError: For unknown metrics or options.

    Example:
        >>> model = assay.load_model("mini")
        >>> task = assay.load_task("ioi", model, n=20)
        >>> scores = assay.discover(model, task, "eap")
        >>> found = assay.compare(scores.top(50), scores.top(400), model, task, "faithfulness")
        >>> found.interval().low > 0
        True
    """
    how: dict[str, Any] = {"ablation": ablation, "objective": objective, "batch_size": batch_size}
    runs = CircuitRuns(model, task, a, **how, seed=seed)
    return difference(measure_runs(runs, metric, **options), measure_runs(runs.of(b), metric, **options))


def difference(a: Measurement, b: Measurement) -> Measurement:
    """The value of `b` less that of `a`, both of one metric on the same examples.

    Args:
        a: A measurement with its components.
        b: Another of the same metric, whose rows are the same examples in the same order.

    Returns:
        A measurement without a verdict. Its interval is that of the difference over examples: of means of
        bounded values by betting, of ratios over the same denominator as of one ratio (BCa, or Fieller where
        the denominator is unstable), else BCa. An example that either side leaves out counts for neither.
        Parts `a` and `b` are the two measurements; the others are differences of theirs.

    Raises:
        InputError: For measurements of different metrics or numbers of examples.
    """
    if a.name != b.name:
        raise InputError(f"cannot compare {a.name} with {b.name}; give measurements of one metric")
    parts = {key: difference(part, b.parts[key]) for key, part in a.parts.items() if key in b.parts}
    facts: dict[str, Any] = {
        "id": a.id,
        "name": f"{a.name}/difference",
        "unit": a.unit,
        "seed": a.seed,
        "parts": {"a": a, "b": b, **parts},
        "provenance": {"a": dict(a.provenance), "b": dict(b.provenance)},
    }
    if a.statistic is None or b.statistic is None:
        return Measurement(**facts, value=b.value - a.value, n=min(a.n, b.n), reason=a.reason or b.reason)
    rows = [len(next(iter(each.components.values()))) for each in (a, b)]
    if rows[0] != rows[1]:
        raise InputError(f"cannot compare measurements of {rows[0]} and of {rows[1]} examples")
    statistic, components = paired_difference((a.statistic, a.components), (b.statistic, b.components))
    _, numbers = _numbers(statistic, components, np.ones(rows[0], dtype=bool))
    return Measurement(
        **facts,
        **numbers,
        n_excluded=max(a.n + a.n_excluded, b.n + b.n_excluded) - numbers["n"],
        reason=(a.reason or b.reason or "undefined") if math.isnan(numbers["value"]) else None,
        warnings=tuple(dict.fromkeys((*a.warnings, *b.warnings))),
    )
