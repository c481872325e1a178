"""`compare`: how much one circuit differs from another by a metric, on the same examples."""

import math
from typing import Any

import numpy as np

from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.core.measurement import Measurement
from assay.execution import Ablation, CircuitRuns
from assay.metrics.measuring import measure_runs
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.stats import FunctionOfSums, RatioOfSums, paired_difference
from assay.tasks import Task


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
    runs = CircuitRuns(
        model, task, a, ablation=ablation, objective=objective, batch_size=batch_size, seed=seed
    )
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
    common: dict[str, Any] = {"id": a.id, "name": f"{a.name}/difference", "unit": a.unit, "seed": a.seed}
    how = {"a": dict(a.provenance), "b": dict(b.provenance)}
    parts = {key: difference(part, b.parts[key]) for key, part in a.parts.items() if key in b.parts}
    parts = {"a": a, "b": b, **parts}
    statistics = RatioOfSums | FunctionOfSums
    if not (isinstance(a.statistic, statistics) and isinstance(b.statistic, statistics)):
        return Measurement(
            **common,
            value=b.value - a.value,
            n=min(a.n, b.n),
            reason=a.reason or b.reason,
            parts=parts,
            provenance=how,
        )
    rows = [len(next(iter(each.components.values()))) for each in (a, b)]
    if rows[0] != rows[1]:
        raise InputError(f"cannot compare measurements of {rows[0]} and of {rows[1]} examples")
    statistic, components = paired_difference((a.statistic, a.components), (b.statistic, b.components))
    table = np.stack([components[name] for name in statistic.components])
    used = np.isfinite(table).all(axis=0)
    n = int(used.sum())
    value = float(statistic.of_sums(table[:, used].sum(axis=1), n)) if n else math.nan
    per_example = None
    if not math.isnan(value):
        per_example = np.full(len(used), np.nan)
        per_example[used] = statistic.linearised(table[:, used])
    return Measurement(
        **common,
        value=value,
        n=n,
        n_excluded=max(a.n + a.n_excluded, b.n + b.n_excluded) - n,
        per_example=per_example,
        components={name: np.where(used, values, np.nan) for name, values in components.items()},
        statistic=statistic,
        reason=(a.reason or b.reason or "undefined") if math.isnan(value) else None,
        warnings=tuple(dict.fromkeys((*a.warnings, *b.warnings))),
        parts=parts,
        provenance=how,
    )
