"""`measure`: one metric of one circuit, with its provenance and, on request, reference circuits beside it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
from jaxtyping import Float64

from assay.circuits import Circuit
from assay.core.errors import InputError, check_least, check_name
from assay.core.measurement import Measurement
from assay.core.random import stream
from assay.core.verdict import SAME_PROMPTS
from assay.execution import Ablation, CircuitRuns
from assay.metrics.metric import METRICS, MetricSpec, find_metric, over_different, task_warnings
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.tasks import Task
from assay.tasks.examples import found_on


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
        runs = CircuitRuns(
            model, task, circuit, ablation=ablation, objective=objective, batch_size=batch_size, seed=seed
        )
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
    compute = _checked(spec, options)
    if runs.circuit.spans is not None and (random_circuits or spec.more_runs):
        what = "random_circuits=" if random_circuits else spec.key
        whole = [key for key, each in METRICS.items() if each.compute and not each.more_runs]
        raise InputError(
            f"{what} changes single edges or heads of a circuit, or many circuits, but this circuit keeps "
            f"its edges only at some positions; use {', '.join(whole)}, or measure circuit.anywhere()"
        )
    check_least(0, random_circuits=random_circuits)
    same = (SAME_PROMPTS,) if found_on(runs.circuit.provenance, runs.task) else ()
    measurement = over_different(compute(runs, spec, **options), runs, *same)
    if "full" in spec.runs:  # whatever is judged beside a model that fails at the task is marked
        unsolved = task_warnings(runs, np.ones(runs.task.n, dtype=bool))
        measurement = replace(measurement, warnings=tuple(dict.fromkeys((*measurement.warnings, *unsolved))))
    if runs.exact is not runs and not spec.more_runs:
        other = compute(runs.exact, spec, **options)
        measurement = replace(measurement, details={**measurement.details, "exact_norms": other.value})
    if random_circuits:
        measurement = replace(measurement, baseline=_baseline(runs, spec, random_circuits, options))
    provenance = measurement_provenance(runs, metric, random_circuits=random_circuits, **options)
    return _stamped(replace(measurement, meaning=measurement.meaning or spec.meaning), provenance, runs.seed)


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


def _checked(spec: MetricSpec, options: Mapping[str, Any]) -> Any:
    if spec.compute is None:
        raise InputError(
            f"{spec.key} is measured from edge scores, not from one circuit; use faithfulness_curve"
        )
    for name in options:
        check_name(f"option of metric {spec.key!r}", name, spec.options)
    return spec.compute


def _stamped(found: Measurement, provenance: Mapping[str, Any], seed: int) -> Measurement:
    """`found` and its parts with identity and names of their own."""
    parts = {
        key: _stamped(replace(part, name=f"{found.name}/{key}"), {**provenance, "part": key}, seed)
        for key, part in found.parts.items()
    }
    return replace(found, provenance=provenance, seed=seed, parts=parts)


# ------------------------------------------------------------------------------- reference circuits


def random_like(circuit: Circuit, *, seed: int, index: int) -> Circuit:
    """A random circuit of the size of `circuit`: as many heads for a head circuit, else as many edges.

    Args:
        circuit: Gives size, kind and graph.
        seed: Root seed of all random draws.
        index: Which of the random circuits; each is drawn independently of how many are asked for.
    """
    rng = stream(seed, f"random-like/{index}")
    if circuit.heads is None:
        return Circuit.random(circuit.graph, circuit.n_edges, seed=int(rng.integers(2**31)))
    n_heads = circuit.graph.n_heads
    places = rng.choice(circuit.graph.n_layers * n_heads, size=len(circuit.heads), replace=False)
    heads = [divmod(int(flat), n_heads) for flat in places]
    return Circuit.from_heads(circuit.graph, heads, mlps=circuit.keeps_mlps)


def _baseline(
    runs: CircuitRuns, spec: MetricSpec, n_circuits: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The metric on random circuits of equal size and on the empty circuit."""
    circuit = runs.circuit
    nothing = circuit.emptied()
    others = [random_like(circuit, seed=runs.seed, index=index) for index in range(n_circuits)]
    compute = _checked(spec, options)
    measured = [compute(runs.of(other), spec, **options) for other in others]
    empty = compute(runs.of(nothing), spec, **options)
    return {"random": _summary(measured), "empty": {"value": empty.value, "reason": empty.reason}}


def _summary(measured: Sequence[Measurement]) -> dict[str, Any]:
    """Values of the random circuits, their mean over the defined ones, and the mean of each part."""
    values = np.array([each.value for each in measured])
    defined = values[np.isfinite(values)]
    parts = {key: _mean_defined([each.parts[key].value for each in measured]) for key in measured[0].parts}
    return {
        "n": len(values),
        "n_defined": len(defined),
        "value": _mean_defined(values),
        "sd": float(defined.std(ddof=1)) if len(defined) > 1 else math.nan,
        "values": values.tolist(),
        "parts": parts,
    }


def _mean_defined(values: Sequence[float] | Float64[np.ndarray, " n"]) -> float:
    defined = np.asarray(values)[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else math.nan
