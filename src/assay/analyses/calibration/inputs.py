"""`calibrate`: any gate on what a user holds, turned into the arrays of its function.

Measurements become per-prompt runs, head scores rows of heads, circuits one flag per head. What does not
belong together (another model, other prompts, another circuit) is refused before any number is computed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from assay.analyses.calibration.gate import SAMPLED, Gate, find_gate
from assay.analyses.calibration.invariance import choose_groups, group_labels
from assay.analyses.calibration.multiplicity import PooledResult, pooled_results
from assay.analyses.calibration.samples import ALPHA
from assay.circuits import Circuit, HeadCircuit, load_head_circuit
from assay.core.errors import InputError, ShapeError, check_name
from assay.core.measurement import ONE_SIDED_95, Measurement, Verdict
from assay.discovery.heads import HeadScores
from assay.discovery.heads.scores import member_flags
from assay.stats import Estimate
from assay.tasks import PairTask


Runs = tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]

_LABELS = ("groups", "unit_id", "strata", "effect_units", "pair_id", "sample_id")
_FACTS = ("model", "task", "prompts", "circuit", "ablation", "objective", "metric")
# What things of one gate need not agree in; those of any other agree in all that they tell.
_MAY_DIFFER: Mapping[str, tuple[str, ...]] = {
    "C14": ("prompts", "ablation", "objective", "metric"),
    "C16": ("prompts",),
    "C17": _FACTS[1:],
    "C30": ("circuit",),
    "C36": ("circuit",),
    "M93": _FACTS,
    "M98": ("ablation",),
    "E1b": ("ablation",),
}
# Head scores that a gate judges; the others take any.
_KINDS = {
    "C14": "activation-patching",
    "C16": "drop-effect",
    "C17": "activation-patching",
    "M3b": "drop-effect",
    "S1": "direct-attribution",
    "S3": "direct-attribution",
}


def calibrate(gate: str, *things: Any, **options: Any) -> Verdict:
    """Judge by one gate whether measurements, head scores or circuits can be trusted.

    What each gate takes after its name, in this order; things in brackets may be left out, and what a list
    holds may also be given one by one. Every gate takes the arrays of its own function
    (`assay.analyses.calibration`), too.

    | gate | code | takes |
    |---|---|---|
    | `bootstrap-stability` | C11 | a measurement [, its circuit] |
    | `convergent-validity` | C12 | two or more head scores [, a circuit] |
    | `measurement-invariance` | C13 | a measurement [, its circuit], with `groups=` or `task=` |
    | `derived-metrics` | C14 | a circuit, `activation-patching` scores [, options: see below] |
    | `reliability-suite` | C16 | a measurement of a pool, drop effects, a circuit |
    | `discriminant-validity` | C17 | {task: activation-patching scores} and {task: circuit} |
    | `nomological-validity` | C23 | a head circuit: the object, a shipped name, or a JSON file |
    | `seed-variance` | C30 | a measurement of a pool [, the circuit] [, `y_other=` one of another circuit] |
    | `incremental-validity` | C36 | measurements of circuit and baseline [, `others=`] |
    | `inter-rater` | F59 | two or more head scores [, a circuit] |
    | `distributional-characterization` | S1 | direct attributions, a circuit |
    | `distributional-stability` | S3 | direct attributions, a circuit |
    | `multiple-comparisons` | M93 | {gate: verdict} or {task: {gate: verdict}}, p-values |
    | `ablation-invariance` | M98 | measurements under two or more ablations [, their circuit] |
    | `method-invariance` | E1b | the same, usually under zero, mean and noise |
    | `certified-stability` | M3b | drop effects, a circuit |

    A measurement is one of faithfulness or completeness, made by `assay.measure`; head scores are those of
    `assay.discover_heads`; a circuit is a `Circuit` or a `HeadCircuit`. An edge circuit counts
    with the heads of its connected form.

    - C11, C13, C30, M98, E1b: `inner` follows from the measurement; a circuit beside it, so that an empty or
      full one is flagged.
    - C12, F59: names are those of the scores, `C10` for learning coefficients (so that `llc_direction` finds
      them). Prompts count where every method has scores per prompt; then all must be of the same prompts.
    - C13: `groups` is an array, or the name of a field of `task=`. With a task alone its field `template`,
      `type`, `category`, `class`, `domain` or `corruption` (or the same with `_id`) is used, else thirds of
      the token lengths.
    - C14: further rows by the options of its function, which may be objects: head scores (`llc`,
      `attribution`, `spectral_norm`, `sv_entropy`), measurements (`faithfulness`, `completeness`,
      `logit_diff_recovery`; `n_prompts` says of how many prompts), head circuits (`predicted`,
      `published_members`), the verdict of C13 (`partial_eta_sq`).
    - C17: patching scores come with the gaps that normalise them, so that effects are ratios of sums.
    - C30: `n_prompts=` is the size of the samples drawn from the pool.
    - M98, E1b: methods are named by the ablation of each measurement; several of one method with different
      seeds are draws, which are averaged.
    - C36: `others` maps names of further baselines to their measurements; a list of several under one name is
      a group of random sets and gives a p. `members` and `baseline_members` may be the circuits.
    - S1, S3: as published, attributions to the correct answer that ignore the final norm,
      `assay.discover_heads(model, task, "dla", direction="correct", norm="none")`.
    - M93: see `pooled_results` for which p-values count; bare p-values are taken for exact, and claimed where
      below 0.05.

    Args:
        gate: Key or published code.
        *things: See the table.
        **options: Options of the gate's function, see its documentation. Labels of prompts (`groups`,
            `unit_id`, `pair_id`, ...) may name a field of `task=`; heads (`members`, ...) may be
            circuits. `task` is a task, or the name of the random stream; by default that of what
            is judged.

    Returns:
        The verdict of the gate's function on the arrays.

    Raises:
        UnknownNameError: For an unknown gate, option or field.
        InputError: For things that the gate does not take, that keep nothing per prompt, or that do not
            belong together (another model, other prompts, another circuit).
        ShapeError: For a circuit of another shape than the scores, or arrays that do not fit.

    Example:
        >>> y_full = np.array([2.0, 3.0, 2.5, 3.5] * 10)
        >>> calibrate("C11", y_full, 0.9 * y_full).status
        'pass'
    """
    found = find_gate(gate)
    for name in options:
        check_name(f"option of gate {found.key!r}", name, found.options | {"task", *SAMPLED})
    task = options.pop("task", None)
    about = task if isinstance(task, PairTask) else None
    told = _agreed(found, [*things, about, *options.values()])
    stream = about.name if about else told.get("task", "") if task is None else str(task)
    if found.code == "M93":
        return found([*_pooled(things, stream)])
    things = tuple(_apart(things))
    like = next((each for each in things if isinstance(each, HeadScores)), None)
    arrays, of_things = _arguments(found, things, like)
    options = {name: _option(found, name, value, about, like) for name, value in options.items()}
    if about and "groups" in found.options - set(options) and len(arrays) < 3:
        lengths = about.lengths.numpy() if found.code == "C13" else None
        labels, source = choose_groups(group_labels(about), lengths)
        of_things |= {"groups": labels} | ({"groups_from": source} if "groups_from" in found.options else {})
    if "task" in found.options:
        of_things["task"] = stream
    if options.get("inner", inner := of_things.get("inner")) != inner and inner:
        raise InputError(f"inner is {options['inner']!r}, but the measurement is of {inner}")
    return found(*arrays, **(of_things | options))


# ---- what things are, and of what -------------------------------------------------------------------


def _apart(things: Iterable[Any]) -> Iterator[Any]:
    """Lists of objects taken apart, tensors and lists of numbers as arrays."""
    for each in things:
        if isinstance(each, list | tuple) and any(hasattr(one, "__dataclass_fields__") for one in each):
            yield from _apart(each)
        else:
            yield _array(each)


def _array(thing: Any) -> Any:
    """Tensors and lists of numbers as arrays; everything else as it is."""
    if hasattr(thing, "detach"):
        return thing.detach().cpu().numpy()
    return np.asarray(thing) if isinstance(thing, list | tuple) else thing


def _describe(thing: Any) -> str:
    """What a message calls a thing."""
    name = getattr(thing, "name", None)
    return type(thing).__name__ + (f" of {name!r}" if name else "")


def _told(thing: Any) -> dict[str, Any]:
    """What the record of a thing tells of how it came to be.

    What is discovered elsewhere may be measured here, so a circuit tells only what it is.
    """
    if isinstance(thing, Circuit):
        return {"circuit": thing.hash}
    record = getattr(thing, "provenance", None) or {}
    model = record.get("model", {})
    task = thing.describe() if isinstance(thing, PairTask) else record.get("task", {})
    told = {"model": model and f"{model.get('id')}, {model.get('weight_hash')}", "task": task.get("name")}
    if not isinstance(thing, HeadScores) or thing.per_example is not None:
        told["prompts"] = task.get("data_hash")
    if isinstance(thing, Measurement):
        told |= {name: record.get(name) for name in ("circuit", "ablation", "objective")}
        told["metric"] = thing.name
    return {name: each for name, each in told.items() if each}


def _one_by_one(things: Iterable[Any]) -> Iterator[Any]:
    """All that mappings and lists hold."""
    for each in things:
        if isinstance(each, Mapping | list | tuple):
            yield from _one_by_one(each.values() if isinstance(each, Mapping) else each)
        else:
            yield each


def _agreed(gate: Gate, things: Iterable[Any]) -> dict[str, Any]:
    """What the first to tell a fact tells of it.

    Raises:
        InputError: Where another differs in a fact in which things of this gate must not.
    """
    first: dict[str, tuple[Any, Any]] = {}
    for each in _one_by_one(things):
        for name, its in _told(each).items():
            other, told = first.setdefault(name, (each, its))
            if its != told and name not in _MAY_DIFFER.get(gate.code, ()):
                pair = f"one ({_describe(other)}) is of {told}, another ({_describe(each)}) of {its}"
                raise InputError(f"{gate.code} needs inputs of the same {name}, but {pair}")
    return {name: told for name, (_, told) in first.items()}


def _wrong(gate: Gate, what: str) -> InputError:
    """The error for things that a gate cannot judge."""
    return InputError(f"{gate.code} cannot judge these: {what}; see assay.calibrate")


# ---- things as arrays -------------------------------------------------------------------------------


def _arguments(
    gate: Gate, things: Sequence[Any], like: HeadScores | None
) -> tuple[list[Any], dict[str, Any]]:
    """Arrays of a gate in their order, and options that follow from the things."""
    kinds: tuple[Any, ...] = (Measurement, HeadScores, Circuit | HeadCircuit)
    sorts: Iterator[list[Any]] = ([each for each in things if isinstance(each, kind)] for kind in kinds)
    (measured, scores, circuits), rest = sorts, [each for each in things if not isinstance(each, kinds)]
    if gate.code == "C23":
        return [_description(gate, things)], {}
    if gate.code == "C17":
        return _by_task(gate, rest)
    if odd := [each for each in rest if not isinstance(each, np.ndarray | Mapping)]:
        raise _wrong(gate, f"it does not use the {_describe(odd[0])}")
    runs, members = [_runs(gate, each) for each in measured], [_flags(gate, each, like) for each in circuits]
    if gate.code in ("C12", "F59") and scores:
        arrays: list[Any] = [_by_name(gate, scores)]
    elif gate.code in ("M98", "E1b") and measured:
        named: dict[str, list[Any]] = {}
        for each, (_, kept) in zip(measured, runs, strict=True):
            named.setdefault(str(each.provenance.get("ablation")), []).append(kept)
        arrays = [runs[0][0], {name: _together(draws) for name, draws in named.items()}]
    else:
        tables = [_scored(gate, each) for each in scores]
        if tables and not members:
            raise _wrong(gate, "there is no circuit")
        if tables and "members" not in gate.needs:
            tables = [tables[0][:, members[0]]]
        arrays = [*(runs[0] if runs else ()), *(kept for _, kept in runs[1:]), *tables, *rest]
    options: dict[str, Any] = {"inner": measured[0].name} if measured else {}
    if members:
        if "members" in gate.needs:
            arrays.insert(gate.needs.index("members"), members[0])
        options |= {"members": members[0], "head_edges": getattr(circuits[0], "head_edges", ())}
        options |= {"circuit_size": int(members[0].sum()), "n_heads": len(members[0])} if gate.sized else {}
    if scores and gate.code in ("S1", "C14"):
        options["n_heads"] = scores[0].n_heads
    if len(arrays) > len(gate.needs) or len(members) > 1:
        raise _wrong(gate, f"it takes {', '.join(gate.needs)}, got {', '.join(map(_describe, things))}")
    return arrays, {name: each for name, each in options.items() if name in gate.options}


def _runs(gate: Gate, measurement: Measurement) -> Runs:
    """Per-prompt margins of the full model and of the circuit."""
    other = {"faithfulness": "keep"} | ({"completeness": "drop"} if "inner" in gate.options else {})
    names, statistic = ("full", other.get(measurement.name, "")), measurement.statistic
    kept = [measurement.components.get(name) for name in names]
    if any(each is None for each in kept):
        raise _wrong(
            gate,
            f"it needs the values per prompt of {' or '.join(other)}, not this measurement of "
            f"{measurement.name!r}: assay.measure(circuit, model, task, 'faithfulness')",
        )
    if statistic is not None and set(statistic.components) != set(names):
        raise _wrong(gate, "it needs a ratio of sums, assay.measure(..., aggregate='ratio_of_sums')")
    full, circuit = (np.asarray(each, dtype=np.float64) for each in kept)
    return full, circuit


def _together(draws: Sequence[Float64[np.ndarray, " n"]]) -> Float64[np.ndarray, "n *draws"]:
    """Margins of the circuit, a column per draw where there are several."""
    return draws[0] if len(draws) == 1 else np.stack(draws, axis=1)


def _scored(gate: Gate, scores: HeadScores) -> Float64[np.ndarray, "*P H"]:
    """Scores of the kind that a gate judges, per prompt; those of C14, which names others too, of heads."""
    kind = _KINDS.get(gate.code)
    if kind is None:
        raise _wrong(gate, f"it does not use the {_describe(scores)}")
    table = scores.flat if gate.code == "C14" else scores.flat_examples
    if scores.name not in (kind, {"direct-attribution": "dla"}.get(kind)) or table is None:
        again = f"give assay.discover_heads(model, task, {kind!r})"
        raise InputError(f"{gate.code} needs {kind} per prompt, not this {scores.name!r}; {again}")
    return table


def _by_name(gate: Gate, scores: Sequence[HeadScores]) -> dict[str, Any]:
    """Scores by their names, per prompt where they have any."""
    tables: dict[str, Any] = {}
    for each in scores:
        name = "C10" if each.name.startswith("llc") else each.name  # learning coefficients
        if name in tables:
            raise _wrong(gate, f"two scores are named {name!r}; give their arrays, {{name: array}}")
        tables[name] = each.flat if each.flat_examples is None else each.flat_examples
    return tables


def _by_task(gate: Gate, mappings: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """C17: patching effects and circuits of the same tasks."""
    if len(mappings) != 2 or any(set(each) != set(mappings[0]) for each in mappings):
        got = ", ".join(map(_describe, mappings))
        raise _wrong(gate, f"it takes {{task: scores}} and {{task: circuit}} of the same tasks, got {got}")
    effects, circuits, gaps = dict(mappings[0]), dict(mappings[1]), {}
    for name, each in mappings[0].items():
        if isinstance(each, HeadScores):
            effects[name], circuits[name] = _scored(gate, each), _flags(gate, circuits[name], each)
            if each.details.get("aggregate") == "ratio_of_sums":
                # The table holds differences over the mean gap; a resample has a mean gap of its own.
                effects[name] = effects[name] * each.details["mean_gap"]
                gaps[name] = np.asarray(each.details["gap"], dtype=np.float64)
    return [effects, circuits], ({"gaps": gaps} if gaps else {})


def _description(gate: Gate, things: Sequence[Any]) -> HeadCircuit:
    """C23: a head circuit, or where one is kept."""
    found = [load_head_circuit(each) if isinstance(each, str | Path) else each for each in things]
    if len(found) != 1 or not isinstance(found[0], HeadCircuit):
        got = ", ".join(map(_describe, found))
        raise _wrong(gate, f"it needs a HeadCircuit with bands and pathways, or its file, got {got}")
    return found[0]


def _flags(gate: Gate, circuit: Circuit | HeadCircuit, like: HeadScores | None) -> Bool[np.ndarray, " H"]:
    """One flag per head of a circuit, of an edge circuit of its connected form, at layer * n_heads + head."""
    of = circuit.graph if isinstance(circuit, Circuit) else circuit
    if like is not None and (of.n_layers, of.n_heads) != (like.n_layers, like.n_heads):
        shape, its = (of.n_layers, of.n_heads), (like.n_layers, like.n_heads)
        raise ShapeError(f"{gate.code}: the circuit has heads of shape {shape}, but {like.name!r} of {its}")
    heads = circuit.kept_heads() if isinstance(circuit, Circuit) else circuit.heads
    return member_flags(heads, of.n_layers, of.n_heads)


def _option(gate: Gate, name: str, value: Any, task: PairTask | None, like: HeadScores | None) -> Any:
    """An option as the gate's function takes it; labels may be named by a field of the task."""
    if name in _LABELS and isinstance(value, str):
        if task is None:
            raise InputError(f"{name}={value!r} names a field, but the task is missing; give task= too")
        check_name(f"field of task {task.name!r}", value, task.fields)
        return np.array([str(each) for each in task.fields[value]])
    match value:
        case Mapping():
            return {key: _option(gate, name, each, task, like) for key, each in value.items()}
        case Circuit() | HeadCircuit():
            return _flags(gate, value, like)
        case HeadScores():
            return np.abs(value.flat) if name == "attribution" else value.flat
        case [Measurement(), *_]:
            return _together([_runs(gate, each)[1] for each in value])
        case Measurement() if name in ("y_other", "others"):
            return _runs(gate, value)[1]
        case Measurement():
            return Estimate(value=value.value, interval=value.interval(ONE_SIDED_95), reason=value.reason)
    return _array(value)


def _pooled(things: Iterable[Any], task: str) -> Iterator[PooledResult]:
    """M93: verdicts by gate, of one task or of several, p-values, and results that were made by hand."""
    for at, each in enumerate(things, start=1):
        if isinstance(each, PooledResult):
            yield each
        elif isinstance(each, Mapping) and all(isinstance(inner, Mapping) for inner in each.values()):
            for name, verdicts in each.items():
                yield from pooled_results(verdicts, str(name))
        elif isinstance(each, Mapping) and all(isinstance(inner, Verdict) for inner in each.values()):
            yield from pooled_results(each, task)
        elif isinstance(each, list | tuple | np.ndarray):
            yield from _pooled([*each], task)
        elif isinstance(each, float | np.number):
            p, claimed = float(each), bool(each < ALPHA)
            yield PooledResult(name=f"result {at}", task=task, p=p, p_kind="exact", passed=claimed)
        else:
            kinds = "verdicts by gate, pooled results and p-values"
            raise InputError(f"M93 takes {kinds}, not the {_describe(each)}")
