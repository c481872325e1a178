"""What each gate takes: from the things of a call to the arrays and options of its function."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from assay.analyses.calibration._rows import rows_of_things
from assay.analyses.calibration._things import (
    Arguments,
    Things,
    array,
    by_prompt,
    describe,
    flags,
    holds_objects,
    runs,
    table_of,
)
from assay.analyses.calibration.agreement import LEARNING_COEFFICIENT
from assay.analyses.calibration.invariance import choose_groups, group_labels
from assay.analyses.calibration.multiplicity import PooledResult
from assay.analyses.calibration.pooling import pooled
from assay.circuits import Circuit, HeadCircuit, load_head_circuit, published_head_circuits
from assay.core.errors import InputError
from assay.core.measurement import Measurement
from assay.discovery.heads import HeadOutputs, HeadScores


# Names of the scores that a gate judges, and how they are made.
Kind = tuple[tuple[str, ...], str]
_DIRECT: Kind = (("direct-attribution", "dla"), "assay.discover_heads(model, task, 'dla')")
_DROP_EFFECT: Kind = (("drop-effect",), "assay.discover_heads(model, task, 'drop-effect')")
_PATCHING: Kind = (("activation-patching",), "assay.discover_heads(model, task, 'activation-patching')")


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """How one gate reads what it is given.

    Attributes:
        takes: What it takes, for messages.
        read: From things to the arguments of its function.
        same: Facts in which all that it is given has to agree.
        options: Options that it understands and its function does not.
        plain: Whether arrays alone are what its function takes.
    """

    takes: str
    read: Callable[[Things], Arguments]
    same: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()
    plain: bool = False


def as_they_came(given: Things) -> Arguments:
    """Everything as it came, for the gate's own function to check."""
    arrays, given.items = tuple(given.items), []
    return arrays, {}


def all_arrays(given: Things) -> bool:
    """Whether arrays alone were given, or mappings of them."""
    return bool(given.items) and all(
        isinstance(each, np.ndarray | Mapping) and not holds_objects(each) for each in given.items
    )


def _size(given: Things) -> dict[str, Any]:
    """Sizes by which gates recognise empty and full circuits, of the circuit if there is one."""
    circuit = given.circuit()
    if circuit is None:
        return {}
    members = flags(given.code, circuit)
    return {"circuit_size": int(members.sum()), "n_heads": len(members)}


def _bootstrap(given: Things) -> Arguments:
    (measurement,) = given.measurements(most=1)
    return runs(given.code, measurement), {"inner": measurement.name, **_size(given)}


def _seeds(given: Things) -> Arguments:
    pool, *others = given.measurements(most=2)
    given.agree(["circuit"], [pool, *given.items])
    more = {"inner": pool.name, **_size(given)}
    if others:
        more["y_other"] = runs(given.code, others[0])[1]
    return runs(given.code, pool), more


def groups_of_task(given: Things) -> dict[str, Any]:
    """Groups of the task's prompts where none are named, and the lengths that take their place."""
    task = given.task
    if task is None or given.options.get("groups") is not None:
        return {}
    found = choose_groups(group_labels(task))
    return {"lengths": task.lengths.numpy()} | ({} if found is None else {"groups": found.labels})


def _suite(given: Things) -> Arguments:
    samples = given.measurements()
    circuit = given.circuit()
    tables = given.take(HeadScores, np.ndarray)
    if len(tables) != 1 or circuit is None:
        raise given.wrong(f"got {len(tables)} tables of drop effects and {_count(circuit)}")
    (table,) = tables
    found = [runs(given.code, each) for each in samples]
    y_full, y_circuit = (np.concatenate([each[at] for each in found]) for at in (0, 1))
    more: dict[str, Any] = {"inner": samples[0].name}
    if len(samples) > 1:
        more["sample_id"] = np.repeat(np.arange(len(found)), [len(full) for full, _ in found])
    columns = table_of(given.code, table, *_DROP_EFFECT)
    members = flags(given.code, circuit, table if isinstance(table, HeadScores) else None)
    return (y_full, y_circuit, columns, members), more


def _methods(given: Things) -> Arguments:
    """Both gates on ablations."""
    by_method = _by_key(given)
    for each in given.take(Measurement):
        method = each.provenance.get("ablation")
        if method is None:
            raise InputError(
                f"{given.code}: a measurement does not name its ablation; give {{method: measurement}}"
            )
        by_method.setdefault(str(method), []).append(each)
    measured = [each for draws in by_method.values() for each in draws]
    if len(measured) < 2:
        raise given.wrong(f"got {len(measured)} measurements")
    for method, draws in by_method.items():
        seeds = [each.provenance["seed"] for each in draws if "seed" in each.provenance]
        if len(set(seeds)) < len(seeds):
            raise InputError(
                f"{given.code}: {len(draws)} measurements use {method!r} with seeds {seeds}; draws of one "
                "method need different seeds, and methods different names"
            )
    y_circuit = {method: _circuit_runs(given, draws) for method, draws in by_method.items()}
    y_full, _ = runs(given.code, measured[0])
    return (y_full, y_circuit), {"inner": measured[0].name, **_size(given)}


def _by_key(given: Things) -> dict[str, list[Measurement]]:
    """One measurement or several draws of it under each key of the mappings."""
    named: dict[str, list[Measurement]] = {}
    for mapping in given.take(Mapping):
        for name, thing in mapping.items():
            named[str(name)] = list(thing) if isinstance(thing, list | tuple) else [thing]
    for each in itertools.chain.from_iterable(named.values()):
        if not isinstance(each, Measurement):
            raise given.wrong(f"expected a measurement, got a {describe(each)}")
    return named


def _circuit_runs(given: Things, draws: Sequence[Measurement]) -> Float64[np.ndarray, "n *draws"]:
    """Margins of the circuit, a column per draw where there are several."""
    columns = [runs(given.code, each)[1] for each in draws]
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def _incremental(given: Things) -> Arguments:
    circuits = given.circuits(most=2)
    groups = _by_key(given)
    circuit, baseline, *further = given.measurements(least=2)
    groups |= {f"baseline {at}": [each] for at, each in enumerate(further, start=2)}
    measured = [circuit, baseline, *(each for group in groups.values() for each in group)]
    for measurement, members in zip((circuit, baseline), circuits, strict=False):
        given.agree(["circuit"], [measurement, members])
    for each in measured:
        if each.name != "faithfulness":
            raise given.wrong(f"expected faithfulness, got {each.name!r}")
    y_full, y_keep = runs(given.code, circuit)
    more: dict[str, Any] = {
        name: flags(given.code, each)
        for name, each in zip(("members", "baseline_members"), circuits, strict=False)
    }
    if groups:
        more["others"] = {name: _circuit_runs(given, group) for name, group in groups.items()}
    return (y_full, y_keep, runs(given.code, baseline)[1]), more


def _by_name(given: Things) -> Arguments:
    """Both gates on agreement."""
    circuit = given.circuit()
    named: dict[str, Any] = {}
    for held in given.take(Mapping):
        named |= {str(name): array(each) for name, each in held.items()}
    for each in given.take(HeadScores):
        name = LEARNING_COEFFICIENT if each.name.startswith("llc") else each.name
        if name in named:
            raise InputError(
                f"{given.code}: two scores are named {name!r}; give {{name: scores}} with different names"
            )
        named[name] = each
    for name, each in named.items():
        if not isinstance(each, HeadScores | np.ndarray):
            raise given.wrong(f"{name!r} is a {describe(each)}")
    scores = [each for each in named.values() if isinstance(each, HeadScores)]
    more = {}
    if circuit is not None:
        more["members"] = flags(given.code, circuit, scores[0] if scores else None)
    return ({name: by_prompt(each) for name, each in named.items()},), more


def _count(circuit: Any) -> str:
    return "no circuit" if circuit is None else "a circuit"


def _heads_and_circuit(given: Things, kind: Kind) -> tuple[Any, ...]:
    """Scores per prompt `[P, H]`, the circuit's flags, and the scores as they came."""
    circuit = given.circuit()
    tables = given.take(HeadScores, np.ndarray)
    if len(tables) != 1 or circuit is None:
        raise given.wrong(f"got {len(tables)} tables of head scores and {_count(circuit)}")
    (scores,) = tables
    table = table_of(given.code, scores, *kind)
    members = flags(given.code, circuit, scores if isinstance(scores, HeadScores) else None)
    if table.ndim != 2 or table.shape[1] != len(members):
        raise given.wrong(f"scores of shape {table.shape} do not fit a circuit among {len(members)} heads")
    return table, members, scores, circuit


def _characterization(given: Things) -> Arguments:
    outputs = given.take(HeadOutputs)
    table, members, scores, circuit = _heads_and_circuit(given, _DIRECT)
    more: dict[str, Any] = {}
    if isinstance(scores, HeadScores):
        more["n_heads"] = scores.n_heads
    elif isinstance(circuit, Circuit | HeadCircuit):
        more["n_heads"] = (circuit.graph if isinstance(circuit, Circuit) else circuit).n_heads
    if outputs:
        more["outputs"] = outputs[0].z.double().numpy()
    return (table, members), more


def _member_columns(given: Things, kind: Kind) -> Arguments:
    """The columns of the circuit's heads."""
    if len(given.items) == 1 and all_arrays(given):
        return as_they_came(given)
    table, members, *_ = _heads_and_circuit(given, kind)
    return (table[:, members],), {}


def _discriminant(given: Things) -> Arguments:
    mappings = given.take(Mapping)
    if len(mappings) != 2:
        raise given.wrong(f"got {len(mappings)} mappings")
    scores, circuits = mappings
    if set(scores) != set(circuits):
        raise InputError(
            f"{given.code}: head scores are of tasks {sorted(scores)}, circuits of {sorted(circuits)}; give "
            "the same tasks"
        )
    effects, members, gaps = {}, {}, {}
    for name, held in scores.items():
        each = array(held)
        effects[name] = table_of(given.code, each, *_PATCHING)
        members[name] = flags(given.code, circuits[name], each if isinstance(each, HeadScores) else None)
        if isinstance(each, HeadScores) and each.details.get("aggregate") == "ratio_of_sums":
            # The table holds differences over the mean gap; a resample has a mean gap of its own.
            effects[name] = effects[name] * each.details["mean_gap"]
            gaps[name] = np.asarray(each.details["gap"], dtype=np.float64)
    if gaps and len(gaps) < len(effects):
        raise InputError(
            f"{given.code}: effects on {sorted(gaps)} are ratios of sums, but those on "
            f"{sorted(set(effects) - set(gaps))} are not; score all tasks with the same aggregate"
        )
    return (effects, members), {"gaps": gaps} if gaps else {}


def _nomological(given: Things) -> Arguments:
    if len(given.items) != 1:
        raise given.wrong(f"got {len(given.items)} inputs")
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
            f"{given.code} needs the bands and pathways of the roles, which a Circuit does not store; give "
            "the HeadCircuit or the file that it was made from"
        )
    heads = HeadCircuit(
        id=thing.hash, n_layers=thing.graph.n_layers, n_heads=thing.graph.n_heads, heads=thing.kept_heads()
    )
    return (heads,), {}


def _many(given: Things) -> Arguments:
    """Everything that carries, or stands for, a p-value."""
    found: list[PooledResult] = []
    for each in given.items:
        found += pooled(
            each, task=given.stream, p_kind=given.options.get("p_kind", "exact"), first=len(found) + 1
        )
    given.items = []
    return (found,), {}


_RUNS = "a measurement of faithfulness or completeness, or arrays (y_full, y_circuit)"
_AGREEMENT = Adapter(
    takes="two or more head scores, or a mapping {name: head scores or array}",
    read=_by_name,
    same=("model", "task", "prompts"),
)
_ABLATIONS = Adapter(
    takes="measurements under two or more ablations, {method: measurement}, or arrays (y_full, {method: "
    "y_circuit})",
    read=_methods,
    same=("circuit", "model", "prompts", "objective", "metric"),
    plain=True,
)
ADAPTERS: dict[str, Adapter] = {
    "bootstrap-stability": Adapter(takes=_RUNS, read=_bootstrap, same=("circuit", "prompts"), plain=True),
    "convergent-validity": _AGREEMENT,
    "measurement-invariance": Adapter(
        takes="a measurement of faithfulness or completeness, or arrays (y_full, y_circuit, groups)",
        read=_bootstrap,
        same=("circuit", "prompts"),
        plain=True,
    ),
    "derived-metrics": Adapter(
        takes="a circuit, and head scores, compositions, measurements or a weight prediction",
        read=rows_of_things,
        same=("model", "task", "circuit"),
    ),
    "reliability-suite": Adapter(
        takes="one or more measurements, drop effects per prompt and a circuit, or arrays (y_full, "
        "y_circuit, effects, members)",
        read=_suite,
        same=("circuit", "ablation", "objective", "metric", "model", "task"),
        plain=True,
    ),
    "discriminant-validity": Adapter(
        takes="two mappings, {task: activation-patching scores per prompt} and {task: circuit}",
        read=_discriminant,
        same=("model",),
    ),
    "nomological-validity": Adapter(
        takes="one head circuit: a HeadCircuit, the name of a shipped one, or a JSON file", read=_nomological
    ),
    "seed-variance": Adapter(
        takes=_RUNS, read=_seeds, same=("model", "prompts", "ablation", "objective", "metric"), plain=True
    ),
    "incremental-validity": Adapter(
        takes="measurements of the faithfulness of the circuit, of a baseline and of any others, with their "
        "circuits beside them, or arrays (y_full, y_keep, y_baseline)",
        read=_incremental,
        same=("model", "prompts", "ablation", "objective"),
        plain=True,
    ),
    "inter-rater": _AGREEMENT,
    "distributional-characterization": Adapter(
        takes="direct attributions per prompt and a circuit, or arrays (attributions, members)",
        read=_characterization,
        same=("model", "prompts"),
    ),
    "distributional-stability": Adapter(
        takes="direct attributions per prompt and a circuit, or one array of its heads",
        read=partial(_member_columns, kind=_DIRECT),
        same=("prompts",),
    ),
    "multiple-comparisons": Adapter(
        takes="verdicts by gate, measurements, pooled results and p-values",
        read=_many,
        options=frozenset({"p_kind"}),
    ),
    "ablation-invariance": _ABLATIONS,
    "method-invariance": _ABLATIONS,
    "certified-stability": Adapter(
        takes="drop effects per prompt and a circuit, or one array of its heads",
        read=partial(_member_columns, kind=_DROP_EFFECT),
        same=("prompts",),
    ),
}
