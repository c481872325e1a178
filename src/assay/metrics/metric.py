"""What a metric is: a described function of a circuit's runs, found by key or published code."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from assay.core.errors import unknown_name
from assay.core.measurement import Measurement
from assay.core.registry import Registry
from assay.core.verdict import FEW_PROMPTS, Rule
from assay.execution.forward import finite_rows
from assay.execution.runs import CircuitRuns, Which
from assay.objectives import get_objective
from assay.stats import FunctionOfSums, RatioOfSums


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
        pass_threshold: Published pass; None without a verdict.
        fail_threshold: Published fail where a middle band exists.
        strict: Whether the threshold itself does not pass.
        unit: Unit of the value.
        runs: Runs it reads; each costs one forward pass per example once, shared with other metrics.
        more_runs: Whether it makes further runs of its own, with single heads or edges changed.
        reference: Where the definition comes from.
        meaning: What its value says, a sentence for pages.
        version: Raised when the same input would give another number.
        compute: `(runs, spec, **options) -> Measurement`; None where `measure` is not the way to it.
    """

    id: str
    key: str
    name: str
    criterion: str = "I2"
    range: tuple[float, float] = (-math.inf, math.inf)
    direction: str = "report"
    pass_threshold: float | None = None
    fail_threshold: float | None = None
    strict: bool = True
    unit: str = "fraction"
    runs: tuple[str, ...] = ("full", "keep")
    more_runs: bool = False
    reference: str = ""
    meaning: str = ""
    version: int = 1
    compute: "Callable[..., Measurement] | None" = None

    @property
    def code(self) -> str:
        """Published code without the quantity, e.g. `D02`."""
        return self.id.partition(".")[0]

    @property
    def rule(self) -> Rule | None:
        """The thresholds, or None without a verdict."""
        if self.pass_threshold is None:
            return None
        return Rule(
            pass_at=self.pass_threshold,
            fail_at=self.fail_threshold,
            higher=self.direction != "lower",
            strict=self.strict,
        )

    @property
    def options(self) -> dict[str, Any]:
        """Option names of `measure` for this metric, with their defaults."""
        if self.compute is None:
            return {}
        parameters = inspect.signature(self.compute).parameters.values()
        return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


METRICS: Registry[MetricSpec] = Registry("metric", holds=MetricSpec)


def metric(*, key: str, **facts: Any) -> Callable[[Callable[..., Measurement]], Callable[..., Measurement]]:
    """Register the decorated `(runs, spec, *, options) -> Measurement` under `key`, described by `facts`."""

    def register(compute: Callable[..., Measurement]) -> Callable[..., Measurement]:
        METRICS.add(key, MetricSpec(key=key, compute=compute, **facts))
        return compute

    return register


def find_metric(name: str) -> MetricSpec:
    """The metric of a key (`ce-delta`, `ce_delta`), an id (`D02.completeness`) or a code (`D05`)."""
    key = name.replace("_", "-").lower()
    if key in METRICS:
        return METRICS[key]
    specs = [spec for _, spec in METRICS.items()]
    for attribute in ("id", "code"):
        for spec in specs:
            if getattr(spec, attribute).lower() == name.lower():
                return spec
    raise unknown_name(
        "metric", name, [*METRICS, *(spec.id for spec in specs), *{spec.code for spec in specs}]
    )


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
    table = np.stack([components[name] for name in statistic.components])
    kept = used & np.isfinite(table).all(axis=0)
    n, n_excluded = int(kept.sum()), int((~kept).sum())
    value = float(statistic.of_sums(table[:, kept].sum(axis=1), n)) if n else math.nan
    per_example = None
    if not math.isnan(value):
        per_example = np.full(len(kept), np.nan)
        per_example[kept] = statistic.linearised(table[:, kept])
    if isinstance(statistic, RatioOfSums) and n and statistic.unstable(table[:, kept]):
        warnings = (*warnings, "unstable_denominator")
    reason = None if not math.isnan(value) else (undefined if used.any() else "no_valid_prompt")
    fields: dict[str, Any] = {
        "id": spec.id,
        "name": spec.key,
        "unit": spec.unit,
        "direction": spec.direction,
        "rule": spec.rule,
        "reason": reason,
    }
    told = {} if reading is None or math.isnan(value) else {"reading": reading(value)}
    masked = {name: np.where(kept, vector, np.nan) for name, vector in components.items()}
    return Measurement(
        **(fields | facts),
        value=value,
        n=n,
        n_excluded=n_excluded,
        per_example=per_example,
        components=masked,
        statistic=statistic,
        warnings=warnings,
        details={**(details or {}), **told},
    )


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


def undefined(spec: MetricSpec, *, n: int, reason: str, warnings: tuple[str, ...] = ()) -> Measurement:
    """The measurement of a quantity that this circuit does not have."""
    return Measurement(
        id=spec.id,
        name=spec.key,
        value=math.nan,
        n=n,
        unit=spec.unit,
        direction=spec.direction,
        rule=spec.rule,
        reason=reason,
        warnings=warnings,
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
