"""`calibrate`: any gate on what a user holds, with one adapter per gate from objects to its arrays."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from assay.analyses.calibration._things import (
    Things,
    agree,
    array,
    describe,
    flags,
    holds_objects,
    is_heads,
    labels,
    oriented,
    runs,
    table_of,
    task_name,
)
from assay.analyses.calibration.agreement import LEARNING_COEFFICIENT
from assay.analyses.calibration.gate import find_gate
from assay.analyses.calibration.invariance import choose_groups
from assay.analyses.calibration.multiplicity import PooledResult
from assay.analyses.calibration.pooling import pooled
from assay.circuits import Circuit, HeadCircuit, load_head_circuit, published_head_circuits
from assay.core.errors import InputError, unknown_name
from assay.core.measurement import ONE_SIDED_95, Measurement, Verdict
from assay.discovery.heads import Composition, HeadOutputs, HeadScores, WeightPrediction
from assay.stats import Estimate
from assay.tasks import PairTask


# Positional arguments and options of a gate's function.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_LABELS = ("groups", "lengths", "unit_id", "strata", "effect_units", "pair_id", "sample_id", "prompt_hash")
_MEMBERS = ("members", "baseline_members", "published_members", "predicted")
_GROUP_FIELDS = ("template", "template_id", "type", "category", "class", "domain", "corruption")

_DIRECT = ("direct-attribution", "dla")
_DROP_EFFECT = ("drop-effect",)
_PATCHING = ("activation-patching",)


def calibrate(gate: str, *things: Any, **options: Any) -> Verdict:
    """Judge by one gate whether measurements, head scores or circuits can be trusted.

    What each gate takes after its name; things in brackets may be left out, and what a list holds may also be
    given one by one. Every gate takes the arrays of its own function (`assay.analyses.calibration`), too.

    | gate | code | takes |
    |---|---|---|
    | `bootstrap-stability` | C11 | a measurement [, its circuit] |
    | `convergent-validity` | C12 | two or more head scores, or {method: scores} [, a circuit] |
    | `measurement-invariance` | C13 | a measurement [, its circuit], with `groups=` or `task=` |
    | `derived-metrics` | C14 | a circuit, head scores [, compositions, measurements, a prediction] |
    | `reliability-suite` | C16 | a measurement of a pool, or of each sample; drop effects; a circuit |
    | `discriminant-validity` | C17 | {task: activation-patching scores} and {task: circuit} |
    | `nomological-validity` | C23 | a head circuit: the object, a shipped name, or a JSON file |
    | `seed-variance` | C30 | a measurement of a pool [, of another circuit] [, the circuit] |
    | `incremental-validity` | C36 | measurements of circuit and baseline [, of others] [, both circuits] |
    | `inter-rater` | F59 | two or more head scores, or {rater: scores} [, a circuit] |
    | `distributional-characterization` | S1 | direct attributions, a circuit [, head outputs] |
    | `distributional-stability` | S3 | direct attributions, a circuit |
    | `multiple-comparisons` | M93 | {gate: verdict} or {task: {gate: verdict}}, measurements, p-values |
    | `ablation-invariance` | M98 | measurements under two or more ablations [, their circuit] |
    | `method-invariance` | E1b | the same, usually under zero, mean and noise |
    | `certified-stability` | M3b | drop effects, a circuit |

    A measurement is one of faithfulness or completeness, made by `assay.measure`; head scores are those of
    `assay.discover_heads`; a circuit is a `Circuit`, a `HeadCircuit`, one flag per head, or (layer, head)
    pairs beside head scores. An edge circuit counts with the heads of its connected form.

    - C11, C13, C30, M98, E1b: `inner` follows from the measurement; a circuit beside it, so that an empty or
      full one is flagged.
    - C12, F59: names are those of the scores, `C10` for learning coefficients (so that `llc_direction` finds
      them); scores of which negative ones help, as of attribution patching, are turned round. Prompts count
      where every method has scores per prompt; then all must be of the same prompts.
    - C13: `groups` is an array, or the name of a field of `task=`. With a task alone its field `template`,
      `template_id`, `type` or `category` is used, else thirds of the token lengths.
    - C14: rows are found by the names of the scores: `activation-patching` (d'), `llc...` (turned round),
      `attribution-patching` (AUROC of magnitudes), `ov-spectral-norm`, `ov-sv-entropy`; `faithfulness`,
      `completeness`, `minimality` and `scrub-recovery` measurements; composition with a `HeadCircuit`.
    - C16: one measurement is a pool, dealt into three blocks; several are samples.
    - C17: patching scores come with the gaps that normalise them, so that effects are ratios of sums.
    - C30: `n_prompts=` is the size of the samples drawn from the pool.
    - M98, E1b: methods are named by the ablation of each measurement, or by the keys of a mapping;
      several of one method with different seeds are draws, which are averaged.
    - C36: a list or {name: measurements} of further baselines; a list of several measurements under one name
      is a group of random sets and gives a p.
    - S1, S3: as published, attributions to the correct answer that ignore the final norm,
      `assay.discover_heads(model, task, "dla", direction="correct", norm="none")`.
    - M93: see `pooled_results` for which p-values count; bare p-values are taken for exact unless `p_kind=`
      says otherwise, and claimed where below 0.05. A bare verdict counts with its published word alone.

    Args:
        gate: Key or published code.
        *things: See the table.
        **options: Options of the gate's function, see its documentation. Labels of prompts (`groups`,
            `unit_id`, `strata`, `pair_id`, ...) may name a field of `task=`; heads (`members`, `predicted`,
            ...) may be circuits. `task` is a task, or the name of the random stream; by default that of what
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
    # A gate of another package takes its arrays as they come.
    adapter = _ADAPTERS.get(found.key) or _Adapter(takes=f"({', '.join(found.needs)})", read=_arrays)
    parameters = inspect.signature(found.function).parameters
    known = {name for name, each in parameters.items() if each.default is not each.empty}
    for name in options:
        if name not in known | {"task"} | adapter.options:
            raise unknown_name(f"option of gate {found.key!r}", name, known | {"task"} | adapter.options)
    task = options.pop("task", None)
    if task is not None and not isinstance(task, PairTask | str):
        raise InputError(f"task is of type {type(task).__name__}; give a task, or its name")
    about = task if isinstance(task, PairTask) else None
    stream = about.name if about else task_name(things) if task is None else str(task)
    given = Things(found.code, adapter.takes, list(things), {}, about, stream)
    given.options = {name: _option(given, name, value) for name, value in options.items()}
    arrays, more = adapter.read(given)
    given.none_left()
    if "inner" in more and given.options.get("inner", more["inner"]) != more["inner"]:
        raise InputError(
            f"inner is {given.options['inner']!r}, but the measurement is of {more['inner']}; leave inner out"
        )
    chosen = {name: value for name, value in given.options.items() if name not in adapter.options}
    if "task" in known:
        more["task"] = stream
    try:
        call = inspect.signature(found.function).bind(*arrays, **(more | chosen))
    except TypeError as error:
        raise InputError(f"{found.code} takes {adapter.takes}; as arrays: {error}") from None
    return found.function(*call.args, **call.kwargs)


def _option(given: Things, name: str, value: Any) -> Any:
    """An option as the gate's function takes it."""
    if name in _LABELS:
        if isinstance(value, Mapping):
            return {key: labels(name, each, given.task) for key, each in value.items()}
        return labels(name, value, given.task)
    if name in _MEMBERS and (isinstance(value, Circuit | HeadCircuit) or is_heads(value)):
        return flags(given.code, value, next(iter(given.of(HeadScores)), None))
    if isinstance(value, HeadScores):
        return value.flat
    return _estimate(value) if isinstance(value, Measurement) else array(value)


@dataclass(frozen=True, kw_only=True)
class _Adapter:
    """How one gate reads what it is given.

    Attributes:
        takes: What it takes, for messages.
        read: From things to the arguments of its function.
        options: Options that it understands and its function does not.
    """

    takes: str
    read: Callable[[Things], Arguments]
    options: frozenset[str] = frozenset()


# ---- runs on prompts --------------------------------------------------------------------------------


def _arrays(given: Things) -> Arguments:
    """Everything as it came, for the gate's own function to check."""
    arrays, given.items = tuple(given.items), []
    return arrays, {}


def _plain(given: Things) -> bool:
    """Whether arrays alone were given, or mappings of them."""
    return bool(given.items) and all(
        isinstance(each, np.ndarray | Mapping) and not holds_objects(each) for each in given.items
    )


def _size(code: str, circuit: Any) -> dict[str, Any]:
    """Sizes by which gates recognise empty and full circuits."""
    if circuit is None:
        return {}
    members = flags(code, circuit)
    return {"circuit_size": int(members.sum()), "n_heads": len(members)}


def _one_circuit(given: Things) -> Any:
    """The circuit, or None."""
    found = given.circuits()
    return found[0] if found else None


def _bootstrap(given: Things) -> Arguments:
    if _plain(given):
        return _arrays(given)
    (measurement,) = given.measurements(most=1)
    circuit = _one_circuit(given)
    agree(given.code, [measurement, circuit], "circuit")
    agree(given.code, [measurement, given.task], "prompts")
    return runs(given.code, measurement), {"inner": measurement.name, **_size(given.code, circuit)}


def _seeds(given: Things) -> Arguments:
    if _plain(given):
        return _arrays(given)
    pool, *others = given.measurements(most=2)
    circuit = _one_circuit(given)
    agree(given.code, [pool, circuit], "circuit")
    agree(given.code, [pool, *others, given.task], "model", "prompts", "ablation", "objective", "metric")
    more = {"inner": pool.name, **_size(given.code, circuit)}
    if others:
        more["y_other"] = runs(given.code, others[0])[1]
    return runs(given.code, pool), more


def _invariance(given: Things) -> Arguments:
    arrays, more = _bootstrap(given)
    if given.task is not None and given.options.get("groups") is None and len(arrays) < 3:
        more |= _groups(given.task)
    return arrays, more


def _groups(task: PairTask) -> dict[str, Any]:
    """Groups of a task's prompts, and the lengths that stand in for them."""
    named = {
        key.removesuffix("_id"): labels("groups", key, task) for key in _GROUP_FIELDS if key in task.fields
    }
    found = choose_groups(named)
    return {"lengths": task.lengths.numpy()} | ({} if found is None else {"groups": found.labels})


def _suite(given: Things) -> Arguments:
    if _plain(given):
        return _arrays(given)
    samples = given.measurements()
    circuit = _one_circuit(given)
    tables = given.take(HeadScores, np.ndarray)
    if len(tables) != 1 or circuit is None:
        raise given.wrong(f"there are {len(tables)} tables of drop effects and {_count(circuit)}")
    (table,) = tables
    agree(given.code, [*samples, circuit], "circuit")
    agree(given.code, samples, "ablation", "objective", "metric")
    agree(given.code, [*samples, table], "model", "task")
    found = [runs(given.code, each) for each in samples]
    y_full, y_circuit = (np.concatenate([each[at] for each in found]) for at in (0, 1))
    more: dict[str, Any] = {"inner": samples[0].name}
    if len(samples) > 1:
        more["sample_id"] = np.repeat(np.arange(len(found)), [len(full) for full, _ in found])
    columns = table_of(given.code, table, _DROP_EFFECT, "assay.discover_heads(model, task, 'drop-effect')")
    members = flags(given.code, circuit, table if isinstance(table, HeadScores) else None)
    return (y_full, y_circuit, columns, members), more


def _methods(given: Things) -> Arguments:
    """Both gates on ablations."""
    if _plain(given):
        return _arrays(given)
    circuit = _one_circuit(given)
    by_method: dict[str, list[Measurement]] = {}
    for held in given.take(Mapping):
        by_method |= {str(name): _listed(given, each) for name, each in held.items()}
    for each in given.take(Measurement):
        method = each.provenance.get("ablation")
        if method is None:
            raise InputError(
                f"{given.code}: a measurement does not tell its ablation; give {{method: measurement}}"
            )
        by_method.setdefault(str(method), []).append(each)
    measured = [each for draws in by_method.values() for each in draws]
    if len(measured) < 2:
        raise given.wrong(f"there are {len(measured)} measurements")
    for method, draws in by_method.items():
        seeds = [each.provenance["seed"] for each in draws if "seed" in each.provenance]
        if len(set(seeds)) < len(seeds):
            raise InputError(
                f"{given.code}: {len(draws)} measurements are under {method!r} with seeds {seeds}; draws of "
                "one method need different seeds, and methods different names"
            )
    agree(given.code, [*measured, circuit], "circuit")
    agree(given.code, [*measured, given.task], "model", "prompts", "objective", "metric")
    found = {method: [runs(given.code, each) for each in draws] for method, draws in by_method.items()}
    y_full = next(iter(found.values()))[0][0]
    y_circuit = {
        method: draws[0][1] if len(draws) == 1 else np.stack([circuit for _, circuit in draws], axis=1)
        for method, draws in found.items()
    }
    return (y_full, y_circuit), {"inner": measured[0].name, **_size(given.code, circuit)}


def _listed(given: Things, thing: Any) -> list[Measurement]:
    """One measurement or several draws of it."""
    found = list(thing) if isinstance(thing, list | tuple) else [thing]
    for each in found:
        if not isinstance(each, Measurement):
            raise given.wrong(f"a {describe(each)} stands where a measurement is expected")
    return found


def _incremental(given: Things) -> Arguments:
    if _plain(given):
        return _arrays(given)
    circuits = given.circuits(most=2)
    groups: dict[str, list[Measurement]] = {}
    for held in given.take(Mapping):
        groups |= {str(name): _listed(given, each) for name, each in held.items()}
    circuit, baseline, *further = given.measurements(least=2)
    groups |= {f"baseline {at}": [each] for at, each in enumerate(further, start=2)}
    measured = [circuit, baseline, *(each for group in groups.values() for each in group)]
    for measurement, members in zip((circuit, baseline), circuits, strict=False):
        agree(given.code, [measurement, members], "circuit")
    for each in measured:
        if each.name != "faithfulness":
            raise given.wrong(f"faithfulness is compared, not {each.name!r}")
    agree(given.code, [*measured, given.task], "model", "prompts", "ablation", "objective")
    y_full, y_keep = runs(given.code, circuit)
    more: dict[str, Any] = {
        name: flags(given.code, each)
        for name, each in zip(("members", "baseline_members"), circuits, strict=False)
    }
    kept = {name: [runs(given.code, each)[1] for each in group] for name, group in groups.items()}
    if kept:
        more["others"] = {
            name: each[0] if len(each) == 1 else np.stack(each, axis=1) for name, each in kept.items()
        }
    return (y_full, y_keep, runs(given.code, baseline)[1]), more


# ---- head scores ------------------------------------------------------------------------------------


def _by_name(given: Things) -> Arguments:
    """Both gates on agreement."""
    circuit = _one_circuit(given)
    named: dict[str, Any] = {}
    for held in given.take(Mapping):
        named |= {str(name): array(each) for name, each in held.items()}
    for each in given.take(HeadScores):
        name = LEARNING_COEFFICIENT if each.name.startswith("llc") else each.name
        if name in named:
            raise InputError(
                f"{given.code}: two scores are called {name!r}; give {{name: scores}} to tell them apart"
            )
        named[name] = each
    for name, each in named.items():
        if not isinstance(each, HeadScores | np.ndarray):
            raise given.wrong(f"{name!r} is a {describe(each)}")
    scores = [each for each in named.values() if isinstance(each, HeadScores)]
    agree(given.code, scores, "model", "task")
    per_prompt = [each for each in scores if each.per_example is not None]
    agree(given.code, [*per_prompt, given.task] if per_prompt else [], "prompts")
    more = {}
    if circuit is not None:
        more["members"] = flags(given.code, circuit, scores[0] if scores else None)
    return ({name: oriented(each) for name, each in named.items()},), more


def _count(circuit: Any) -> str:
    return "no circuit" if circuit is None else "a circuit"


def _heads_and_circuit(given: Things, kinds: tuple[str, ...], made_by: str) -> tuple[Any, ...]:
    """Scores per prompt `[P, H]`, the circuit's flags, and the scores as they came."""
    circuit = _one_circuit(given)
    tables = given.take(HeadScores, np.ndarray)
    if len(tables) != 1 or circuit is None:
        raise given.wrong(f"there are {len(tables)} tables of head scores and {_count(circuit)}")
    (scores,) = tables
    agree(given.code, [scores, given.task], "prompts")
    table = table_of(given.code, scores, kinds, made_by)
    members = flags(given.code, circuit, scores if isinstance(scores, HeadScores) else None)
    if table.ndim != 2 or table.shape[1] != len(members):
        raise given.wrong(f"scores of shape {table.shape} do not fit a circuit among {len(members)} heads")
    return table, members, scores, circuit


_MAKE_DIRECT = "assay.discover_heads(model, task, 'dla')"
_MAKE_DROP = "assay.discover_heads(model, task, 'drop-effect')"


def _characterization(given: Things) -> Arguments:
    outputs = given.take(HeadOutputs)
    table, members, scores, circuit = _heads_and_circuit(given, _DIRECT, _MAKE_DIRECT)
    agree(given.code, [scores, *outputs], "model", "prompts")
    more: dict[str, Any] = {}
    if isinstance(scores, HeadScores):
        more["n_heads"] = scores.n_heads
    elif isinstance(circuit, Circuit | HeadCircuit):
        more["n_heads"] = (circuit.graph if isinstance(circuit, Circuit) else circuit).n_heads
    if outputs:
        more["outputs"] = outputs[0].z.double().numpy()
    return (table, members), more


def _member_columns(given: Things, kinds: tuple[str, ...], made_by: str) -> Arguments:
    """The columns of the circuit's heads."""
    if _plain(given) and len(given.items) == 1:
        return _arrays(given)
    table, members, *_ = _heads_and_circuit(given, kinds, made_by)
    return (table[:, members],), {}


def _stability(given: Things) -> Arguments:
    return _member_columns(given, _DIRECT, _MAKE_DIRECT)


def _certified(given: Things) -> Arguments:
    return _member_columns(given, _DROP_EFFECT, _MAKE_DROP)


def _derived(given: Things) -> Arguments:
    circuit = _one_circuit(given)
    scores = given.take(HeadScores)
    measured = given.take(Measurement)
    if circuit is None:
        raise given.wrong("there is no circuit")
    compositions, predictions = given.take(Composition), given.take(WeightPrediction)
    agree(given.code, [*scores, *measured, *compositions], "model")
    agree(given.code, [*scores, *measured], "task")
    agree(given.code, [*measured, circuit], "circuit")
    members = flags(given.code, circuit, scores[0] if scores else None)
    more: dict[str, Any] = {}
    for each in scores:
        flags(given.code, circuit, each)
        _put(given, more, *_column(given, each))
    for each in measured:
        if each.name not in _MEASURED:
            raise given.wrong(f"no row is made of {each.name!r}, only of {', '.join(_MEASURED)}")
        _put(
            given, more, _MEASURED[each.name], _losses(each) if each.name == "minimality" else _estimate(each)
        )
        if each.name != "minimality":
            more["n_prompts"] = each.n
    for each in predictions:
        if each.reason is not None:
            continue  # nothing was learned, so nothing was predicted
        _put(given, more, "predicted", each.predicted)
    for each in compositions:
        _put(given, more, "composition", {"q": each.q, "k": each.k, "v": each.v})
        more["n_heads"] = each.n_heads
    if isinstance(circuit, HeadCircuit):
        more["head_edges"] = circuit.head_edges
    for verdict in given.take(Verdict):
        _put(given, more, "partial_eta_sq", verdict)
    for each in given.take(np.ndarray):
        _put(given, more, "scores", np.asarray(each, dtype=np.float64))
    return (members,), more


_MEASURED = {
    "faithfulness": "faithfulness",
    "completeness": "completeness",
    "minimality": "minimality",
    "scrub-recovery": "logit_diff_recovery",
}
_COLUMNS = {"ov-spectral-norm": "spectral_norm", "ov-sv-entropy": "sv_entropy"}


def _put(given: Things, more: dict[str, Any], name: str, value: Any) -> None:
    """Add an argument once."""
    if name in more:
        raise InputError(f"{given.code}: {name} was given twice; leave one of them out")
    more[name] = value


def _column(given: Things, scores: HeadScores) -> tuple[str, Float64[np.ndarray, " H"]]:
    """The row of C14 that head scores serve, and their values."""
    if scores.name in _PATCHING:
        return "scores", scores.flat
    if scores.name.startswith("llc"):
        return "llc", scores.flat
    if scores.name == "attribution-patching":
        return "attribution", np.abs(scores.flat)
    if scores.name in _COLUMNS:
        return _COLUMNS[scores.name], scores.flat
    raise given.wrong(f"no row is made of {scores.name!r}; give it as scores= or attribution=, if it is one")


def _estimate(measurement: Measurement) -> Estimate:
    """The value with one-sided 95 % bounds."""
    return Estimate(
        value=measurement.value, interval=measurement.interval(ONE_SIDED_95), reason=measurement.reason
    )


def _losses(measurement: Measurement) -> Float64[np.ndarray, " k"]:
    """Faithfulness lost with each head."""
    heads = measurement.details.get("heads", {})
    return np.array([each["importance"] for each in heads.values()], dtype=np.float64)


# ---- tasks and circuits -----------------------------------------------------------------------------


def _discriminant(given: Things) -> Arguments:
    mappings = given.take(Mapping)
    if len(mappings) != 2:
        raise given.wrong(f"there are {len(mappings)} mappings")
    scores, circuits = mappings
    if set(scores) != set(circuits):
        raise InputError(
            f"{given.code}: head scores are of tasks {sorted(scores)}, circuits of {sorted(circuits)}; "
            "give the same"
        )
    agree(given.code, scores.values(), "model")
    effects, members, gaps = {}, {}, {}
    for name, held in scores.items():
        each = array(held)
        made_by = "assay.discover_heads(model, task, 'activation-patching')"
        effects[name] = table_of(given.code, each, _PATCHING, made_by)
        members[name] = flags(given.code, circuits[name], each if isinstance(each, HeadScores) else None)
        if isinstance(each, HeadScores) and each.details.get("aggregate") == "ratio_of_sums":
            # The table holds differences over the mean gap; a resample has a mean gap of its own.
            effects[name] = effects[name] * each.details["mean_gap"]
            gaps[name] = np.asarray(each.details["gap"], dtype=np.float64)
    if gaps and len(gaps) < len(effects):
        raise InputError(
            f"{given.code}: effects on {sorted(gaps)} are ratios of sums, those on "
            f"{sorted(set(effects) - set(gaps))} are not; score all tasks with the same aggregate"
        )
    return (effects, members), {"gaps": gaps} if gaps else {}


def _nomological(given: Things) -> Arguments:
    if len(given.items) != 1:
        raise given.wrong(f"there are {len(given.items)} things")
    (thing,) = given.items
    given.items = []
    if isinstance(thing, HeadCircuit):
        return (thing,), {}
    if isinstance(thing, str | Path):
        return (load_head_circuit(thing),), {}
    if not isinstance(thing, Circuit):
        raise given.wrong("it is none of these")
    published = thing.provenance.get("published")
    if published in published_head_circuits():
        return (load_head_circuit(published),), {}
    if thing.roles:
        raise InputError(
            f"{given.code} needs the bands and pathways of the roles, which a Circuit does not keep; give "
            "the HeadCircuit or the file that it was made from"
        )
    heads = HeadCircuit(
        id=thing.hash, n_layers=thing.graph.n_layers, n_heads=thing.graph.n_heads, heads=thing.kept_heads()
    )
    return (heads,), {}


# ---- many results -----------------------------------------------------------------------------------


def _many(given: Things) -> Arguments:
    """Everything that carries, or stands for, a p-value."""
    found: list[PooledResult] = []
    for each in given.items:
        found += pooled(
            each, task=given.stream, p_kind=given.options.get("p_kind", "exact"), first=len(found) + 1
        )
    given.items = []
    return (found,), {}


# ---- the sixteen ------------------------------------------------------------------------------------

_RUNS = "a measurement of faithfulness or completeness, or arrays (y_full, y_circuit)"
_METHODS = (
    "measurements under two or more ablations, {method: measurement}, or arrays (y_full, {method: y_circuit})"
)
_SCORES = "two or more head scores, or a mapping {name: head scores or array}"

_ADAPTERS: dict[str, _Adapter] = {
    "bootstrap-stability": _Adapter(takes=_RUNS, read=_bootstrap),
    "convergent-validity": _Adapter(takes=_SCORES, read=_by_name),
    "measurement-invariance": _Adapter(
        takes="a measurement of faithfulness or completeness, or arrays (y_full, y_circuit, groups)",
        read=_invariance,
    ),
    "derived-metrics": _Adapter(
        takes="a circuit, and head scores, compositions, measurements or a weight prediction", read=_derived
    ),
    "reliability-suite": _Adapter(
        takes="one or more measurements, drop effects per prompt and a circuit, or arrays (y_full, "
        "y_circuit, effects, members)",
        read=_suite,
    ),
    "discriminant-validity": _Adapter(
        takes="two mappings, {task: activation-patching scores per prompt} and {task: circuit}",
        read=_discriminant,
    ),
    "nomological-validity": _Adapter(
        takes="one head circuit: a HeadCircuit, the name of a shipped one, or a JSON file", read=_nomological
    ),
    "seed-variance": _Adapter(takes=_RUNS, read=_seeds),
    "incremental-validity": _Adapter(
        takes="measurements of the faithfulness of the circuit, of a baseline and of any others, with their "
        "circuits beside them, or arrays (y_full, y_keep, y_baseline)",
        read=_incremental,
    ),
    "inter-rater": _Adapter(takes=_SCORES, read=_by_name),
    "distributional-characterization": _Adapter(
        takes="direct attributions per prompt and a circuit, or arrays (attributions, members)",
        read=_characterization,
    ),
    "distributional-stability": _Adapter(
        takes="direct attributions per prompt and a circuit, or one array of its heads", read=_stability
    ),
    "multiple-comparisons": _Adapter(
        takes="verdicts by gate, measurements, pooled results and p-values",
        read=_many,
        options=frozenset({"p_kind"}),
    ),
    "ablation-invariance": _Adapter(takes=_METHODS, read=_methods),
    "method-invariance": _Adapter(takes=_METHODS, read=_methods),
    "certified-stability": _Adapter(
        takes="drop effects per prompt and a circuit, or one array of its heads", read=_certified
    ),
}
