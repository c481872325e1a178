"""`calibrate`: any gate on what a user holds, turned into the arrays of its function.

Measurements become per-prompt runs, head scores rows of heads, circuits one flag per head. What does not
belong together (another model, other prompts, another circuit) is refused before any number is computed.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from jaxtyping import Bool, Float64

from assay.analyses.calibration.gate import GATES, find_gate
from assay.analyses.calibration.invariance import choose_groups, group_labels
from assay.analyses.calibration.multiplicity import PooledResult, pooled_results
from assay.analyses.calibration.samples import ALPHA
from assay.circuits import Circuit, HeadCircuit, load_head_circuit, published_head_circuits
from assay.core.errors import InputError, ShapeError, check_name
from assay.core.measurement import Measurement
from assay.core.verdict import JUDGED, ONE_SIDED_95, Verdict
from assay.discovery.heads import HeadScores
from assay.discovery.heads.direct import HeadOutputs
from assay.discovery.heads.membership import WeightPrediction
from assay.discovery.heads.scores import member_flags
from assay.discovery.heads.weights import Composition
from assay.stats import Estimate
from assay.tasks import PairTask


# Positional arguments and options of a gate's function.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_LABELS = ("groups", "lengths", "unit_id", "strata", "effect_units", "pair_id", "sample_id", "prompt_hash")
_MEMBERS = ("members", "baseline_members", "published_members", "predicted")
# What each kind of thing tells of how it came to be; what is discovered elsewhere may be measured here.
_TELLS: Mapping[type, tuple[str, ...]] = {
    Measurement: ("model", "task", "prompts", "circuit", "ablation", "objective", "metric"),
    HeadScores: ("model", "task", "prompts"),
    HeadOutputs: ("model", "task", "prompts"),
    Composition: ("model",),
    Circuit: ("circuit",),
    PairTask: ("prompts",),
}
_OBJECTS = (*_TELLS, HeadCircuit, WeightPrediction, Verdict, PooledResult)


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
      them). Prompts count where every method has scores per prompt; then all must be of the same prompts.
    - C13: `groups` is an array, or the name of a field of `task=`. With a task alone its field `template`,
      `type`, `category`, `class`, `domain` or `corruption` (or the same with `_id`) is used, else thirds of
      the token lengths.
    - C14: rows are found by the names of the scores: `activation-patching` (d'), `llc...` (sign reversed),
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
    read, same = READERS.get(found.key, (_as_they_came, ()))
    for name in options:
        known = found.options | {"task"} | ({"p_kind"} if read is _many else set())
        check_name(f"option of gate {found.key!r}", name, known)
    task, p_kind = options.pop("task", None), options.pop("p_kind", "exact")
    about = task if isinstance(task, PairTask) else None
    given = Things(code=found.code, items=list(_apart(things)), task=about, p_kind=p_kind)
    told = [_fact(each, "task") for each in _one_by_one(given.items)]
    given.stream = about.name if about else next(filter(None, told), "") if task is None else str(task)
    options = {name: _option(given, name, value) for name, value in options.items()}
    given.agree(same)
    arrays = all(isinstance(each, np.ndarray | Mapping) and not _holds_objects(each) for each in given.items)
    lone = len(given.items) == 1 and isinstance(given.items[0], Mapping)
    fit = len(given.items) in (len(found.needs), len(set(found.needs) - found.options))
    positional, more = (_as_they_came if arrays and fit and not lone and read is not _many else read)(given)
    if "groups" in found.options and len(positional) < 3 and about is not None and "groups" not in options:
        grouping = choose_groups(group_labels(about))
        of_task = {"lengths": about.lengths.numpy(), "groups": None if grouping is None else grouping.labels}
        more |= {name: value for name, value in of_task.items() if name in found.options}
    if given.items:
        raise given.wrong(f"it does not use the {_describe(given.items[0])}")
    if "inner" in more and options.get("inner", more["inner"]) != more["inner"]:
        raise InputError(f"inner is {options['inner']!r}, but the measurement is of {more['inner']}")
    if "task" in found.options:
        more["task"] = given.stream
    return found(*positional, **(more | options))


@dataclass(kw_only=True)
class Things:
    """The things one call was given; each `take` removes what it returns.

    Attributes:
        code: The gate's published code, for messages.
        items: What is left; lists of objects are taken apart, mappings stay whole.
        task: The task that names of fields refer to.
        p_kind: What bare p-values are.
        stream: Name of the task that is judged, as far as it is known.
    """

    code: str
    items: list[Any]
    task: PairTask | None = None
    p_kind: str = "exact"
    stream: str = ""

    def __post_init__(self) -> None:
        self._given = ", ".join(map(_describe, self.items)) or "nothing"

    def take(self, *kinds: type, those: Callable[[Any], bool] = lambda thing: True) -> list[Any]:
        """Everything of these kinds that is left, in the order given; then it is no longer left."""
        taken = [isinstance(each, kinds) and those(each) for each in self.items]
        found = [each for each, is_taken in zip(self.items, taken, strict=True) if is_taken]
        self.items = [each for each, is_taken in zip(self.items, taken, strict=True) if not is_taken]
        return found

    def measurements(self, least: int = 1, most: int = 1_000) -> list[Measurement]:
        """The measurements, refused if there are too few or too many."""
        found = self.take(Measurement)
        if not least <= len(found) <= most:
            raise self.wrong(f"got {len(found)} measurements")
        return found

    def circuits(self, most: int = 1) -> list[Any]:
        """The circuits, as what they came as: objects, one flag per head, or (layer, head) pairs."""
        found = self.take(object, those=_is_circuit)
        if len(found) > most:
            raise self.wrong(f"got {len(found)} circuits")
        return found

    def agree(self, facts: Iterable[str], things: Iterable[Any] | None = None) -> None:
        """Refuse things (default: all that is left, and the task) that differ in one of these facts."""
        held = list(_one_by_one([*self.items, self.task] if things is None else things))
        for name in facts:
            known = [(each, told) for each in held if (told := _fact(each, name)) is not None]
            for each, told in known[1:]:
                if told != known[0][1]:
                    first, its = known[0]
                    pair = f"one ({_describe(first)}) is of {its}, another ({_describe(each)}) of {told}"
                    raise InputError(f"{self.code} needs inputs of the same {name}, but {pair}")

    def wrong(self, what: str) -> InputError:
        """The error for a set of things that the gate cannot judge."""
        return InputError(
            f"{self.code} cannot judge these: {what} (given: {self._given}); see assay.calibrate"
        )


# ---- what things are --------------------------------------------------------------------------------


def _holds_objects(thing: Any) -> bool:
    """Whether a thing is, or holds, anything other than plain numbers."""
    return any(isinstance(each, _OBJECTS) for each in _one_by_one([thing]))


def _is_heads(thing: Any) -> TypeGuard[Sequence[Sequence[int]]]:
    """Whether a thing is a list of (layer, head)."""
    if not isinstance(thing, list | tuple) or not thing:
        return False
    pairs = all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in thing)
    return pairs and all(isinstance(each, int | np.integer) for pair in thing for each in pair)


def _is_circuit(thing: Any) -> bool:
    flags = isinstance(thing, np.ndarray) and thing.dtype == np.bool_ and thing.ndim == 1
    return isinstance(thing, Circuit | HeadCircuit) or flags or _is_heads(thing)


def _array(thing: Any) -> Any:
    """Tensors and lists of numbers as arrays; everything else as it is."""
    if hasattr(thing, "detach"):
        return thing.detach().cpu().numpy()
    if isinstance(thing, list | tuple) and not _holds_objects(thing):
        return np.asarray(thing)
    return thing


def _apart(items: Iterable[Any]) -> Iterator[Any]:
    """Lists of objects taken apart, tensors as arrays."""
    for each in items:
        if isinstance(each, list | tuple) and _holds_objects(each):
            yield from _apart(each)
        else:
            yield each if _is_heads(each) else _array(each)


def _one_by_one(things: Iterable[Any]) -> Iterator[Any]:
    """All that mappings and lists hold."""
    for each in things:
        if isinstance(each, Mapping | list | tuple):
            yield from _one_by_one(each.values() if isinstance(each, Mapping) else each)
        else:
            yield each


def _describe(thing: Any) -> str:
    """What a message calls a thing."""
    if isinstance(thing, np.ndarray):
        return f"{thing.dtype} array of shape {thing.shape}"
    name = getattr(thing, "name", None)
    return type(thing).__name__ + (f" of {name!r}" if name else "")


def _fact(thing: Any, name: str) -> str | None:
    """A fact of how a thing came to be, as messages say it; None where its record does not tell."""
    if name not in _TELLS.get(type(thing), ()):
        return None
    if isinstance(thing, HeadScores) and name == "prompts" and thing.per_example is None:
        return None
    if isinstance(thing, Circuit):
        return thing.hash
    if name == "metric":
        return str(thing.name)
    record = {"task": thing.describe()} if isinstance(thing, PairTask) else thing.provenance
    told = record.get("task" if name == "prompts" else name)
    if not isinstance(told, Mapping):
        return None if told is None else str(told)
    keys = {"model": ("id", "weight_hash"), "task": ("name",), "prompts": ("name", "n", "data_hash")}[name]
    return ", ".join(str(told.get(key)) for key in keys)


# ---- things as arrays -------------------------------------------------------------------------------


def _option(given: Things, name: str, value: Any) -> Any:
    """An option as the gate's function takes it."""
    if name in _LABELS and isinstance(value, Mapping):
        return {key: _labels(given, name, each) for key, each in value.items()}
    if name in _LABELS:
        return _labels(given, name, value)
    if name in _MEMBERS and _is_circuit(value):
        like = [each for each in given.items if isinstance(each, HeadScores)]
        return _flags(given, value, like[0] if like else None)
    if isinstance(value, HeadScores):
        return value.flat
    if isinstance(value, Measurement):
        return Estimate(value=value.value, interval=value.interval(ONE_SIDED_95), reason=value.reason)
    return _array(value)


def _labels(given: Things, name: str, labels: Any) -> Any:
    """Labels of the prompts: as given, or, as text, the field of the task that a text names."""
    if not isinstance(labels, str):
        return _array(labels)
    if given.task is None:
        raise InputError(f"{name}={labels!r} names a field, but the task is missing; give task= too")
    check_name(f"field of task {given.task.name!r}", labels, given.task.fields)
    return np.array([each if name == "lengths" else str(each) for each in given.task.fields[labels]])


def _runs(given: Things, measurement: Measurement) -> tuple[Float64[np.ndarray, " n"], ...]:
    """Per-prompt margins of the full model and of the circuit."""
    names = {"faithfulness": ("full", "keep"), "completeness": ("full", "drop")}.get(measurement.name, ())
    kept, statistic = [measurement.components.get(name) for name in names], measurement.statistic
    if not names or any(each is None for each in kept):
        raise InputError(
            f"{given.code} needs the values per prompt of faithfulness or completeness; this measurement of "
            f"{measurement.name!r} lacks them. Give assay.measure(circuit, model, task, 'faithfulness')"
        )
    if statistic is not None and set(statistic.components) != set(names):
        raise given.wrong("it needs a ratio of sums, assay.measure(..., aggregate='ratio_of_sums')")
    return tuple(np.asarray(each, dtype=np.float64) for each in kept)


def _flags(given: Things, circuit: Any, like: Any = None) -> Bool[np.ndarray, " H"]:
    """One flag per head of a circuit, at layer * n_heads + head.

    Args:
        given: The call, for messages.
        circuit: `Circuit` (of an edge circuit the heads of its connected form), `HeadCircuit`, flags, or
            (layer, head) pairs.
        like: Head scores of the shape that the circuit must have; anything else is no guide.
    """
    like = like if isinstance(like, HeadScores) else None
    if _is_heads(circuit):
        if like is None:
            raise given.wrong("heads as pairs need head scores too; give a Circuit instead")
        heads = tuple((int(a), int(b)) for a, b in circuit)
        circuit = HeadCircuit(id="given", n_layers=like.n_layers, n_heads=like.n_heads, heads=heads)
    if isinstance(circuit, np.ndarray):
        flags, shape = circuit, circuit.shape
    elif isinstance(circuit, Circuit):
        shape = (circuit.graph.n_layers, circuit.graph.n_heads)
        flags = member_flags(circuit.kept_heads(), *shape)
    elif isinstance(circuit, HeadCircuit):
        flags, shape = circuit.members, (circuit.n_layers, circuit.n_heads)
    else:
        raise given.wrong(f"{circuit!r} is not a circuit, flags or (layer, head) pairs")
    if like is not None and shape not in ((like.n_layers, like.n_heads), like.flat.shape):
        its = f"{like.name!r} scores heads of {(like.n_layers, like.n_heads)}"
        raise ShapeError(f"{given.code}: the circuit has heads of shape {shape}, but {its}")
    return flags


def _table(given: Things, scores: HeadScores | np.ndarray, name: str) -> Float64[np.ndarray, "P H"]:
    """Scores per prompt, one column per head, of the kind that a gate judges."""
    if isinstance(scores, np.ndarray):
        return np.asarray(scores, dtype=np.float64)
    if scores.name not in (name, {"dla": "direct-attribution"}.get(name)) or scores.flat_examples is None:
        again = f"give assay.discover_heads(model, task, {name!r})"
        raise InputError(f"{given.code} needs {name} per prompt, not this {scores.name!r}; {again}")
    return scores.flat_examples


# ---- gate by gate -----------------------------------------------------------------------------------


def _as_they_came(given: Things) -> Arguments:
    """Everything as it came, for the gate's own function to check."""
    arrays, given.items = tuple(given.items), []
    return arrays, {}


def _size(given: Things) -> dict[str, Any]:
    """Sizes by which gates recognise empty and full circuits, of the circuit if there is one."""
    members = [_flags(given, circuit) for circuit in given.circuits()]
    return {"circuit_size": int(members[0].sum()), "n_heads": len(members[0])} if members else {}


def _measured(given: Things) -> Arguments:
    """A measurement; of C30 a pool, and a rival measured on it."""
    pool, *others = given.measurements(most=2 if given.code == "C30" else 1)
    given.agree(["circuit"], [pool, *given.items])
    more: dict[str, Any] = {"inner": pool.name, **_size(given)}
    if others:
        more["y_other"] = _runs(given, others[0])[1]
    return _runs(given, pool), more


def _suite(given: Things) -> Arguments:
    samples = given.measurements()
    effects, members, _ = _heads(given, "drop-effect")
    found = [_runs(given, each) for each in samples]
    y_full, y_circuit = (np.concatenate([each[at] for each in found]) for at in (0, 1))
    more: dict[str, Any] = {"inner": samples[0].name}
    if len(samples) > 1:
        more["sample_id"] = np.repeat(np.arange(len(found)), [len(full) for full, _ in found])
    return (y_full, y_circuit, effects, members), more


def _by_key(given: Things) -> dict[str, list[Measurement]]:
    """One measurement or several draws of it under each key of the mappings."""
    named = {str(name): thing for mapping in given.take(Mapping) for name, thing in mapping.items()}
    for each in _one_by_one(named.values()):
        if not isinstance(each, Measurement):
            raise given.wrong(f"expected a measurement, got a {_describe(each)}")
    return {name: list(_one_by_one([thing])) for name, thing in named.items()}


def _circuit_runs(given: Things, draws: Sequence[Measurement]) -> Float64[np.ndarray, "n *draws"]:
    """Margins of the circuit, a column per draw where there are several."""
    columns = [_runs(given, each)[1] for each in draws]
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def _methods(given: Things) -> Arguments:
    """Both gates on ablations."""
    by_method = _by_key(given)
    for each in given.take(Measurement):
        if "ablation" not in each.provenance:
            raise given.wrong("a measurement does not name its ablation; give {method: measurement}")
        by_method.setdefault(str(each.provenance["ablation"]), []).append(each)
    measured = [each for draws in by_method.values() for each in draws]
    if len(measured) < 2:
        raise given.wrong(f"got {len(measured)} measurements")
    for method, draws in by_method.items():
        seeds = [each.provenance["seed"] for each in draws if "seed" in each.provenance]
        if len(set(seeds)) < len(seeds):
            raise given.wrong(
                f"{len(draws)} measurements use {method!r} with seeds {seeds}, not different ones"
            )
    y_circuit = {method: _circuit_runs(given, draws) for method, draws in by_method.items()}
    return (_runs(given, measured[0])[0], y_circuit), {"inner": measured[0].name, **_size(given)}


def _incremental(given: Things) -> Arguments:
    circuits, groups = given.circuits(most=2), _by_key(given)
    circuit, baseline, *further = given.measurements(least=2)
    groups |= {f"baseline {at}": [each] for at, each in enumerate(further, start=2)}
    more, names = dict[str, Any](), ("members", "baseline_members")
    for name, measurement, its in zip(names, (circuit, baseline), circuits, strict=False):
        given.agree(["circuit"], [measurement, its])
        more[name] = _flags(given, its)
    for each in (circuit, baseline, *(each for group in groups.values() for each in group)):
        if each.name != "faithfulness":
            raise given.wrong(f"expected faithfulness, got {each.name!r}")
    if groups:
        more["others"] = {name: _circuit_runs(given, group) for name, group in groups.items()}
    return (*_runs(given, circuit), _runs(given, baseline)[1]), more


def _by_name(given: Things) -> Arguments:
    """Both gates on agreement."""
    circuits, named = given.circuits(), dict[str, Any]()
    for held in given.take(Mapping):
        named |= {str(name): _array(each) for name, each in held.items()}
    for each in given.take(HeadScores):
        name = "C10" if each.name.startswith("llc") else each.name  # learning coefficients
        if name in named:
            raise given.wrong(f"two scores are named {name!r}; give {{name: scores}}")
        named[name] = each
    tables = {}
    for name, each in named.items():
        if not isinstance(each, HeadScores | np.ndarray):
            raise given.wrong(f"{name!r} is a {_describe(each)}")
        by_prompt = each.flat_examples if isinstance(each, HeadScores) else each
        tables[name] = np.asarray(each.flat if by_prompt is None else by_prompt, dtype=np.float64)
    like = next((each for each in named.values() if isinstance(each, HeadScores)), None)
    return (tables,), {"members": _flags(given, circuits[0], like)} if circuits else {}


def _heads(given: Things, name: str) -> tuple[Float64[np.ndarray, "P H"], Bool[np.ndarray, " H"], int | None]:
    """Scores per prompt, the circuit's flags, and the heads per layer where something tells them."""
    circuits, tables = given.circuits(), given.take(HeadScores, np.ndarray)
    if len(tables) != 1 or not circuits:
        raise given.wrong(f"got {len(tables)} tables of head scores and {len(circuits) or 'no'} circuit")
    scores, circuit = tables[0], circuits[0]
    table, members = _table(given, scores, name), _flags(given, circuit, scores)
    if table.ndim != 2 or table.shape[1] != len(members):
        raise given.wrong(f"scores of shape {table.shape} do not fit a circuit among {len(members)} heads")
    shape = scores if isinstance(scores, HeadScores) else getattr(circuit, "graph", circuit)
    return table, members, getattr(shape, "n_heads", None)


def _characterization(given: Things) -> Arguments:
    outputs = given.take(HeadOutputs)
    table, members, n_heads = _heads(given, "dla")
    more = {"outputs": outputs[0].z.double().numpy()} if outputs else {}
    return (table, members), {"n_heads": n_heads, **more}


def _member_columns(given: Things, name: str) -> Arguments:
    """The columns of the circuit's heads."""
    table, members, _ = _heads(given, name)
    return (table[:, members],), {}


def _discriminant(given: Things) -> Arguments:
    mappings = given.take(Mapping)
    if len(mappings) != 2 or set(mappings[0]) != set(mappings[1]):
        raise given.wrong("give head scores and circuits of the same tasks, {task: scores}, {task: circuit}")
    effects, members, gaps = {}, {}, {}
    for name, held in mappings[0].items():
        each = _array(held)
        effects[name] = _table(given, each, "activation-patching")
        members[name] = _flags(given, mappings[1][name], each)
        if isinstance(each, HeadScores) and each.details.get("aggregate") == "ratio_of_sums":
            # The table holds differences over the mean gap; a resample has a mean gap of its own.
            effects[name] = effects[name] * each.details["mean_gap"]
            gaps[name] = np.asarray(each.details["gap"], dtype=np.float64)
    if gaps and len(gaps) < len(effects):
        raise given.wrong(f"only effects on {sorted(gaps)} are ratios of sums; score all tasks alike")
    return (effects, members), {"gaps": gaps} if gaps else {}


def _nomological(given: Things) -> Arguments:
    if len(given.items) != 1:
        raise given.wrong(f"got {len(given.items)} inputs")
    thing = given.items.pop()
    if isinstance(thing, Circuit):
        published = thing.provenance.get("published")
        if published in published_head_circuits():
            thing = published
        elif not thing.roles:
            graph, heads = thing.graph, thing.kept_heads()
            thing = HeadCircuit(id=thing.hash, n_layers=graph.n_layers, n_heads=graph.n_heads, heads=heads)
    if isinstance(thing, str | Path):
        thing = load_head_circuit(thing)
    if not isinstance(thing, HeadCircuit):
        raise given.wrong("it needs the bands and pathways of the roles: a HeadCircuit, or its file")
    return (thing,), {}


# Rows of C14 by the names of what serves them.
_ROWS = {
    "faithfulness": "faithfulness",
    "completeness": "completeness",
    "minimality": "minimality",
    "scrub-recovery": "logit_diff_recovery",
    "activation-patching": "scores",
    "attribution-patching": "attribution",
    "ov-spectral-norm": "spectral_norm",
    "ov-sv-entropy": "sv_entropy",
}


def _rows(given: Things) -> Arguments:
    """C14: members, and an option for each thing; what serves no row is refused."""
    circuits = given.circuits()
    if not circuits:
        raise given.wrong("there is no circuit")
    scores, more = given.take(HeadScores), dict[str, Any]()

    def put(name: str | None, value: Any, thing: Any) -> None:
        if name is None or name in more:
            raise given.wrong(f"the {_describe(thing)} serves no row, or one that was given already")
        more[name] = value

    members = _flags(given, circuits[0], scores[0] if scores else None)
    for each in scores:
        _flags(given, circuits[0], each)
        name = "llc" if each.name.startswith("llc") else _ROWS.get(each.name)
        put(name, np.abs(each.flat) if name == "attribution" else each.flat, each)
    for each in given.take(Measurement):
        name = _ROWS.get(each.name)
        if name == "minimality":
            heads = each.details.get("heads", {}).values()
            put(name, np.array([head["importance"] for head in heads], dtype=np.float64), each)
        else:
            put(name, _option(given, each.name, each), each)
            more["n_prompts"] = each.n
    for each in given.take(WeightPrediction):
        if each.reason is None:  # else nothing was learned, so nothing was predicted
            put("predicted", each.predicted, each)
    for each in given.take(Composition):
        put("composition", {"q": each.q, "k": each.k, "v": each.v}, each)
        more["n_heads"] = each.n_heads
    if isinstance(circuits[0], HeadCircuit):
        more["head_edges"] = circuits[0].head_edges
    for each in given.take(Verdict):
        put("partial_eta_sq", each, each)
    for each in given.take(np.ndarray):
        put("scores", np.asarray(each, dtype=np.float64), each)
    return (members,), more


def _many(given: Things) -> Arguments:
    """M93: everything that carries, or stands for, a p-value."""
    found: list[PooledResult] = []
    for each in given.items:
        found += _pooled(each, f"result {len(found) + 1}", given.stream, given.p_kind, first=len(found) + 1)
    given.items = []
    return (found,), {}


def _pooled(thing: Any, name: str, task: str, p_kind: str, *, first: int = 1) -> list[PooledResult]:
    """Anything that M93 can pool; mappings are of gates to verdicts, of tasks to such, else of names."""
    if isinstance(thing, PooledResult):
        return [thing]
    if isinstance(thing, Measurement):
        return [_of_measurement(thing, task)]
    if isinstance(thing, Verdict):
        passed = thing.published == "pass" if thing.published in JUDGED else None
        return [PooledResult(name=str(thing.details.get("metric", name)), task=task, passed=passed)]
    if isinstance(thing, Mapping):
        known = {*GATES, *(gate.code for gate in GATES.values())}
        if thing and set(thing) <= known and all(isinstance(each, Verdict) for each in thing.values()):
            return pooled_results(thing, task)
        of_task = {key: str(key) if isinstance(each, Mapping) else task for key, each in thing.items()}
        return [one for key, each in thing.items() for one in _pooled(each, str(key), of_task[key], p_kind)]
    if isinstance(thing, list | tuple | np.ndarray):
        word = "result" if name.startswith("result ") else name
        numbered = enumerate(np.asarray(thing).reshape(-1).tolist(), start=first)
        return [one for at, each in numbered for one in _pooled(each, f"{word} {at}", task, p_kind)]
    if isinstance(thing, int | float | np.number) and not isinstance(thing, bool):
        p = float(thing)
        return [PooledResult(name=name, task=task, p=p, p_kind=p_kind, passed=p < ALPHA)]
    kinds = "verdicts by gate, measurements, pooled results and p-values"
    raise InputError(f"M93 takes {kinds}; {name} is a {type(thing).__name__}")


def _of_measurement(measurement: Measurement, task: str) -> PooledResult:
    """The value against random circuits of the same size, if it was measured with any."""
    others = np.asarray(measurement.baseline.get("random", {}).get("values", []), dtype=np.float64)
    others = others[np.isfinite(others)]
    finite = math.isfinite(measurement.value)
    p = None
    if len(others) and finite:
        sign = -1.0 if measurement.direction == "lower" else 1.0
        p = (1 + int(np.count_nonzero(sign * others >= sign * measurement.value))) / (1 + len(others))
    interval = measurement.interval()
    return PooledResult(
        name=measurement.id if p is None else f"{measurement.id}: better than random circuits",
        task=task or str(measurement.provenance.get("task", {}).get("name", "")),
        value=measurement.value if finite else None,
        baseline=float(others.mean()) if len(others) else None,
        n=measurement.n,
        ci=(interval.low, interval.high) if interval.defined else None,
        passed=measurement.passed,
        p=p,
        p_kind=None if p is None else "permutation",
        test_key=f"measurement/{measurement.id_hash}",
    )


# How each gate reads what it is given, and the facts in which all of it has to agree.
_SCORED_ALIKE = (_by_name, ("model", "task", "prompts"))
_ABLATED = (_methods, ("circuit", "model", "prompts", "objective", "metric"))
_SUITE = ("circuit", "ablation", "objective", "metric", "model", "task")
READERS: Mapping[str, tuple[Callable[[Things], Arguments], tuple[str, ...]]] = {
    "bootstrap-stability": (_measured, ("circuit", "prompts")),
    "convergent-validity": _SCORED_ALIKE,
    "measurement-invariance": (_measured, ("circuit", "prompts")),
    "derived-metrics": (_rows, ("model", "task", "circuit")),
    "reliability-suite": (_suite, _SUITE),
    "discriminant-validity": (_discriminant, ("model",)),
    "nomological-validity": (_nomological, ()),
    "seed-variance": (_measured, ("model", "prompts", "ablation", "objective", "metric")),
    "incremental-validity": (_incremental, ("model", "prompts", "ablation", "objective")),
    "inter-rater": _SCORED_ALIKE,
    "distributional-characterization": (_characterization, ("model", "prompts")),
    "distributional-stability": (partial(_member_columns, name="dla"), ("prompts",)),
    "multiple-comparisons": (_many, ()),
    "ablation-invariance": _ABLATED,
    "method-invariance": _ABLATED,
    "certified-stability": (partial(_member_columns, name="drop-effect"), ("prompts",)),
}
