"""What users hold, sorted by kind and turned into the arrays of a gate.

Measurements become per-prompt runs, head scores rows of heads, circuits one flag per head. What does not
belong together (another model, other prompts, another circuit) is refused before any number is computed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
from jaxtyping import Bool, Float64

from assay.analyses.calibration.multiplicity import PooledResult
from assay.circuits import Circuit, HeadCircuit
from assay.core.errors import InputError, ShapeError, check_name
from assay.core.measurement import Measurement
from assay.core.verdict import Verdict
from assay.discovery.heads import Composition, HeadOutputs, HeadScores, WeightPrediction
from assay.discovery.heads.scores import member_flags
from assay.tasks import PairTask


# Runs that each of the two measurements keeps per prompt: of the full model, and of the circuit.
_RUNS = {"faithfulness": ("full", "keep"), "completeness": ("full", "drop")}

# Positional arguments and options of a gate's function.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_OBJECTS = (
    Measurement,
    HeadScores,
    Circuit,
    HeadCircuit,
    Composition,
    HeadOutputs,
    WeightPrediction,
    Verdict,
    PooledResult,
)

_TOGETHER = {
    "model": "score and measure one model",
    "task": "score and measure one task",
    "prompts": "make all of them on the same task object, or give arrays of the prompts they share",
    "circuit": "measure one circuit",
    "ablation": "measure with the same ablation",
    "objective": "measure with the same objective",
    "metric": "measure the same metric",
}


# ---- what is given ----------------------------------------------------------------------------------


def holds_objects(thing: Any) -> bool:
    """Whether a thing is, or holds, anything other than plain numbers."""
    if isinstance(thing, Mapping):
        return any(map(holds_objects, thing.values()))
    if isinstance(thing, list | tuple):
        return any(map(holds_objects, thing))
    return isinstance(thing, _OBJECTS)


def is_heads(thing: Any) -> TypeGuard[Sequence[Sequence[int]]]:
    """Whether a thing is a list of (layer, head)."""
    return (
        isinstance(thing, list | tuple)
        and len(thing) > 0
        and all(
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in pair)
            for pair in thing
        )
    )


def array(thing: Any) -> Any:
    """Tensors and lists of numbers as arrays; everything else as it is."""
    if hasattr(thing, "detach"):
        return thing.detach().cpu().numpy()
    if isinstance(thing, list | tuple) and not holds_objects(thing):
        return np.asarray(thing)
    return thing


def numbers(thing: Any) -> Any:
    """The same, once it is known to be no array of text."""
    if isinstance(thing, np.ndarray) and thing.dtype.kind not in "biuf":
        raise InputError(
            f"got an array of {thing.dtype}; gates need numbers, and labels belong in groups= or unit_id="
        )
    return thing


@dataclass
class Things:
    """The things one call was given; each `take` removes what it returns.

    Attributes:
        code: The gate's published code, for messages.
        takes: What the gate takes, for messages.
        items: What is left; lists of objects are taken apart, mappings stay whole.
        options: Options of the call.
        task: The task that names of fields refer to.
        stream: Name of the task that is judged, as far as it is known.
    """

    code: str
    takes: str
    items: list[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    task: PairTask | None = None
    stream: str = ""

    def __post_init__(self) -> None:
        self.items = list(_apart(self.items))
        self._given = ", ".join(map(describe, self.items)) or "nothing"

    def of(self, *kinds: type) -> list[Any]:
        """Everything of these kinds that is left, in the order given."""
        return [each for each in self.items if isinstance(each, kinds)]

    def take(self, *kinds: type) -> list[Any]:
        """The same, and then it is no longer left."""
        found = self.of(*kinds)
        self.items = [each for each in self.items if not isinstance(each, kinds)]
        return found

    def measurements(self, least: int = 1, most: int | None = None) -> list[Measurement]:
        """The measurements, refused if there are too few or too many."""
        found = self.take(Measurement)
        if len(found) < least or (most is not None and len(found) > most):
            raise self.wrong(f"got {len(found)} measurements")
        return found

    def circuits(self, most: int = 1) -> list[Any]:
        """The circuits, as what they came as: objects, one flag per head, or (layer, head) pairs."""

        def is_circuit(thing: Any) -> bool:
            flags = isinstance(thing, np.ndarray) and thing.dtype == np.bool_ and thing.ndim == 1
            return isinstance(thing, Circuit | HeadCircuit) or flags or is_heads(thing)

        found = [each for each in self.items if is_circuit(each)]
        self.items = [each for each in self.items if not is_circuit(each)]
        if len(found) > most:
            raise self.wrong(f"got {len(found)} circuits")
        return found

    def circuit(self) -> Any:
        """The circuit, or None."""
        circuits = self.circuits()
        return circuits[0] if circuits else None

    def agree(self, facts: Iterable[str], things: Iterable[Any] | None = None) -> None:
        """Refuse things that differ in one of these facts; both are named.

        Args:
            facts: Keys of `_TOGETHER`.
            things: Those compared, of which some may not tell a fact; default: all that is
                left, and the task.
        """
        held = list(_one_by_one([*self.items, self.task] if things is None else things))
        for name in facts:
            known = [(each, told) for each in held if (told := fact(each, name)) is not None]
            for each, told in known[1:]:
                if told != known[0][1]:
                    raise InputError(
                        f"{self.code} needs inputs of the same {name}, but one ({describe(known[0][0])}) is "
                        f"of {known[0][1]}, another ({describe(each)}) of {told}; {_TOGETHER[name]}"
                    )

    def none_left(self) -> None:
        """Refuse arguments that nothing used."""
        if self.items:
            raise self.wrong(f"it does not use the {describe(self.items[0])}")

    def wrong(self, what: str) -> InputError:
        """The error for a set of things that the gate cannot judge."""
        return InputError(f"{self.code} takes {self.takes}; {what} (given: {self._given})")


def _apart(items: Iterable[Any]) -> Iterator[Any]:
    """Lists of objects taken apart, tensors as arrays."""
    for each in items:
        if isinstance(each, list | tuple) and holds_objects(each):
            yield from _apart(each)
        elif is_heads(each):
            yield each
        else:
            yield numbers(array(each))


def describe(thing: Any) -> str:
    """What a message calls a thing."""
    if isinstance(thing, np.ndarray):
        return f"{thing.dtype} array of shape {thing.shape}"
    if isinstance(thing, Measurement | HeadScores | PairTask):
        return f"{type(thing).__name__} of {thing.name!r}"
    return type(thing).__name__


# ---- what goes together -----------------------------------------------------------------------------


# What each kind of thing tells of how it came to be; what is discovered elsewhere may be measured here.
_TELLS: Mapping[type, tuple[str, ...]] = {
    Measurement: tuple(_TOGETHER),
    HeadScores: ("model", "task", "prompts"),
    HeadOutputs: ("model", "task", "prompts"),
    Composition: ("model",),
    Circuit: ("circuit",),
    PairTask: ("prompts",),
}


def fact(thing: Any, name: str) -> str | None:
    """A fact of how a thing came to be, as messages say it; None where its record does not tell."""
    if name not in _TELLS.get(type(thing), ()) or (
        isinstance(thing, HeadScores) and name == "prompts" and thing.per_example is None
    ):
        return None
    if isinstance(thing, Circuit):
        return thing.hash
    if name == "metric":
        return str(thing.name)
    record = {"task": thing.describe()} if isinstance(thing, PairTask) else thing.provenance
    told = record.get("task" if name == "prompts" else name)
    if not isinstance(told, Mapping):
        return None if told is None else str(told)
    if name == "model":
        return f"{told.get('id')} (weights {told.get('weight_hash')})"
    if name == "task":
        return str(told.get("name"))
    return f"{told.get('name')} (n = {told.get('n')}, data {str(told.get('data_hash'))[:12]})"


def _one_by_one(things: Iterable[Any]) -> Iterator[Any]:
    """All that mappings and lists hold."""
    for each in things:
        if isinstance(each, Mapping | list | tuple):
            yield from _one_by_one(each.values() if isinstance(each, Mapping) else each)
        else:
            yield each


def task_name(things: Iterable[Any]) -> str:
    """Name of the task of the first thing whose record tells it; else nothing."""
    return next((told for each in _one_by_one(things) if (told := fact(each, "task"))), "")


# ---- as arrays --------------------------------------------------------------------------------------


def runs(code: str, measurement: Measurement) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Per-prompt margins of the full model and of the circuit.

    Raises:
        InputError: For another metric or aggregate, or a measurement that keeps nothing per prompt.
    """
    again = "assay.measure(circuit, model, task, 'faithfulness')"
    if measurement.name not in _RUNS:
        raise InputError(
            f"{code} needs faithfulness or completeness, not {measurement.name!r}; give {again}, or the "
            "margins per prompt as two arrays (y_full, y_circuit)"
        )
    names = _RUNS[measurement.name]
    if any(name not in measurement.components for name in names):
        held = ", ".join(measurement.components) or "nothing"
        raise InputError(
            f"{code} needs the values per prompt, {' and '.join(names)}, but this measurement of "
            f"{measurement.name!r} keeps {held}; measure it again with {again}, or give two arrays "
            "(y_full, y_circuit)"
        )
    statistic = measurement.statistic
    if statistic is not None and set(statistic.components) != set(names):
        raise InputError(
            f"{code} needs a ratio of sums, but this {measurement.name} sums "
            f"{', '.join(statistic.components)}; measure it with aggregate='ratio_of_sums'"
        )
    full, circuit = (np.asarray(measurement.components[name], dtype=np.float64) for name in names)
    return full, circuit


def flags(code: str, circuit: Any, like: HeadScores | None = None) -> Bool[np.ndarray, " H"]:
    """One flag per head of a circuit, at layer * n_heads + head.

    Args:
        code: The gate's, for messages.
        circuit: `Circuit` (of an edge circuit the heads of its connected form), `HeadCircuit`, flags, or
            (layer, head) pairs.
        like: Scores of the same heads: the shape a circuit must have.

    Raises:
        ShapeError: For a circuit of another number of layers or heads.
        InputError: For pairs out of range, or without `like`.
    """
    if isinstance(circuit, np.ndarray):
        if like is not None and circuit.shape != like.flat.shape:
            raise ShapeError(
                f"{code}: members has shape {circuit.shape}, but {like.name!r} has {like.values.size} heads"
            )
        return circuit
    if is_heads(circuit):
        if like is None:
            raise InputError(f"{code}: heads as pairs need head scores too; give a Circuit instead")
        circuit = HeadCircuit(
            id="given",
            n_layers=like.n_layers,
            n_heads=like.n_heads,
            heads=tuple((int(a), int(b)) for a, b in circuit),
        )
    if not isinstance(circuit, Circuit | HeadCircuit):
        raise InputError(
            f"{code}: {circuit!r} is not a circuit; give a Circuit, a HeadCircuit or (layer, head) pairs"
        )
    shape = circuit.graph if isinstance(circuit, Circuit) else circuit
    if like is not None and (shape.n_layers, shape.n_heads) != (like.n_layers, like.n_heads):
        raise ShapeError(
            f"{code}: the circuit has {shape.n_layers} layers of {shape.n_heads} heads, but {like.name!r} "
            f"scores {like.n_layers} of {like.n_heads}; they belong to different models"
        )
    if isinstance(circuit, HeadCircuit):
        return circuit.members
    return member_flags(circuit.kept_heads(), shape.n_layers, shape.n_heads)


def table_of(
    code: str, scores: HeadScores | np.ndarray, kinds: Sequence[str], made_by: str
) -> Float64[np.ndarray, "P H"]:
    """Scores per prompt, one column per head.

    Args:
        code: The gate's.
        scores: Head scores, or the table itself.
        kinds: Names of the scores that the gate judges.
        made_by: How such scores are made, for messages.

    Raises:
        InputError: For other scores, or scores without values per prompt.
    """
    if isinstance(scores, np.ndarray):
        return np.asarray(scores, dtype=np.float64)
    if scores.name not in kinds:
        raise InputError(
            f"{code} needs {' or '.join(kinds)}, but these are {scores.name!r}; give {made_by}, or their "
            "table scores.flat_examples, to judge them anyway"
        )
    found = scores.flat_examples
    if found is None:
        raise InputError(
            f"{code} needs scores per prompt, but these of {scores.name!r} have none (per_example is None); "
            f"give {made_by}"
        )
    return found


def by_prompt(scores: HeadScores | np.ndarray) -> Float64[np.ndarray, "*P H"]:
    """Scores `[P, H]`, or `[H]` without values per prompt."""
    if isinstance(scores, np.ndarray):
        return np.asarray(scores, dtype=np.float64)
    return scores.flat if scores.flat_examples is None else scores.flat_examples


def labels(name: str, given: Any, task: PairTask | None) -> Any:
    """Labels of the prompts: as given, or, as text, the field of the task that a text names."""
    if not isinstance(given, str):
        return array(given)
    if task is None:
        raise InputError(
            f"{name}={given!r} names a field, but the task is missing; give task= too, or an array"
        )
    check_name(f"field of task {task.name!r}", given, task.fields)
    values = task.fields[given]
    return np.asarray(values) if name == "lengths" else np.array([str(each) for each in values])
