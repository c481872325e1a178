"""What public functions are given: models, tasks and circuits as objects, or as the text a command takes."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from torch import nn

from assay.circuits.circuit import Circuit
from assay.circuits.heads import HeadCircuit, heads_of, load_head_circuit, published_head_circuits
from assay.circuits.hub_file import is_address
from assay.circuits.loading import load_circuit
from assay.circuits.published import published_circuit, published_circuits
from assay.circuits.scores import EdgeScores
from assay.core.errors import GraphMismatchError, InputError, unknown_name
from assay.graph import Graph
from assay.models import Model, load_model
from assay.tasks import (
    TASKS,
    PairTask,
    Task,
    check_equal_lengths,
    check_read_once,
    digits_source,
    load_images,
    load_task,
)


Function = TypeVar("Function", bound=Callable[..., Any])

IMAGES = "images:"  # begins a name of images where prompts are usual
_TEXT = (str, Path)
# Parameter -> what it is, for messages, and the classes that are taken as they are.
_WANTED: Mapping[str, tuple[str, Any]] = {
    "model": ("a loaded model, a module, or what `load_model` takes, e.g. 'mini'", Model),
    "task": ("a task, the key of a registered one, e.g. 'ioi', or a JSONL file", Task),
    "circuit": (
        "a circuit, a circuit file, a published name, or heads, e.g. 'a2.h3,a3.h0'",
        Circuit,
    ),
    "a": ("a circuit, a circuit file, a published name, or heads", Circuit),
    "b": ("a circuit, a circuit file, a published name, or heads", Circuit),
    "start": ("a circuit, a circuit file, a published name, heads, or edge scores", (Circuit, EdgeScores)),
    "scores": ("edge scores, as `discover` gives them", EdgeScores),
}
_CIRCUITS = ("circuit", "a", "b", "start")  # parameters that take a circuit
_ONE = ("method", "metric")  # parameters that take one name


def takes_text(
    *,
    untouched: Collection[str] = (),
    several_tasks: bool = False,
    spans: bool = False,
    reads: bool = False,
    lengths: bool = False,
) -> Callable[[Function], Function]:
    """Let a function take its `model`, `task` and `circuit` as text too, and name what is of a wrong type.

    Args:
        untouched: Parameters whose text the function reads itself; other types are still refused.
        several_tasks: Whether `task` may be a sequence of tasks.
        spans: Whether a circuit, or scores, may be of edges at spans of positions.
        reads: Whether prompts may be read at several positions.
        lengths: Whether the clean and the corrupted prompt of a pair may differ in length.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        order = [name for name in signature.parameters if name in (*_WANTED, *_ONE)]

        @functools.wraps(function)
        def call(*positional: Any, **named: Any) -> Any:
            bound = signature.bind(*positional, **named)
            given = bound.arguments
            about = f"{function.__name__} takes {', '.join(order)}, in this order"
            names = [name for name in (*_WANTED, *_ONE) if name in given]  # the model, which reads the others
            for name in names:  # before anything is loaded: of swapped arguments one may be text
                several = name == "task" and several_tasks and _is_sequence(given[name])
                for value in given[name] if several else [given[name]]:
                    _check(name, value, about)
            for name in names:
                value = given[name]
                if name == "task" and several_tasks and _is_sequence(value):
                    given[name] = [_resolved(name, each, given, about) for each in value]
                elif not (name in untouched and isinstance(value, (*_TEXT, nn.Module, HeadCircuit))):
                    given[name] = _resolved(name, value, given, about)
            for name in () if spans else {*_CIRCUITS, "scores"} & set(names):
                _check_everywhere(name, given[name], function.__name__)
            if not reads and isinstance(task := given.get("task"), PairTask):
                check_read_once(task.positions, function.__name__)
            if not lengths:
                check_equal_lengths(given.get("task"), function.__name__)
            return function(*bound.args, **bound.kwargs)

        return cast(Function, call)

    return decorate


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (*_TEXT, Task))


def _check(name: str, value: object, about: str) -> None:
    """Refuse a wrong type by its name."""
    kind = type(value).__name__
    if name in _ONE:
        if isinstance(value, list | tuple | set | frozenset):
            raise InputError(f"{name} is a {kind} of {len(value)}; give one name, and call once for each")
        if isinstance(value, (Model, Task, Circuit, EdgeScores)):
            raise InputError(f"{name} is a {kind}; expected its name as text. {about}")
        return
    what, classes = _WANTED[name]
    heads = (*_TEXT, HeadCircuit, list, tuple, set, frozenset)
    accepted = {"model": (*_TEXT, nn.Module), "task": _TEXT, **dict.fromkeys(_CIRCUITS, heads)}
    if not isinstance(value, (classes, *accepted.get(name, ()))):
        raise InputError(f"{name} is a {kind}; expected {what}. {about}")


def _check_everywhere(name: str, value: object, function: str) -> None:
    """Refuse edges at spans of positions."""
    if isinstance(value, (Circuit, EdgeScores)) and value.spans is not None:
        ordinary = "anywhere" if isinstance(value, Circuit) else "total"
        raise InputError(
            f"{name} holds edges at spans of positions, which {function} does not accept; give "
            f"{name}.{ordinary}()"
        )


def _resolved(name: str, value: Any, given: Mapping[str, Any], about: str) -> Any:
    """One argument of a right type as the object that it names."""
    if name == "model" and not isinstance(value, Model):
        text = str(value)
        if not Path(text).exists() and (text.replace("_", "-") in TASKS or heads_of(text) is not None):
            what, _ = _WANTED[name]
            raise InputError(f"model is {text!r}, which names a task or heads; expected {what}. {about}")
        return load_model(value)
    if name == "task" and isinstance(value, _TEXT):
        return named_task(str(value), given["model"])
    if name in _CIRCUITS and not isinstance(value, _WANTED[name][1]):
        graph = given["model"].graph
        found = named_circuit(value, graph) if isinstance(value, _TEXT) else value
        return found if isinstance(found, Circuit) else Circuit.from_heads(graph, found)
    return value


def named_task(text: str, model: Model) -> Task:
    """The prompts or images that `--task` names, as many as are usual."""
    images = text.removeprefix(IMAGES)
    if text.startswith(IMAGES) or digits_source(text) is not None or model.vision is not None:
        return load_images(images, model)
    return load_task(text, model)


def named_circuit(source: str | Path, graph: Graph) -> Circuit | HeadCircuit:
    """The circuit that `--circuit` names, ids of a store apart.

    Args:
        source: Path of a circuit file or of a head-circuit JSON file; `hf://OWNER/NAME[@REVISION][/PATH]`;
            heads, e.g. `a2.h3,a3.h0`; name of a published circuit or head circuit
            (`assay.list("circuits")`).
        graph: The graph that it must belong to.

    Raises:
        UnknownNameError: For other text.
        GraphMismatchError: For a file of another graph.
    """
    path, text = Path(source), str(source)
    if path.suffix == ".json" and not is_address(source):
        return load_head_circuit(path)
    if is_address(source) or path.is_file() or path.suffix == ".safetensors" or not isinstance(source, str):
        circuit = load_circuit(source, graph)
        _check_everywhere("circuit", circuit, "a circuit that is named")
        return circuit
    heads = heads_of(text)
    if heads is not None:
        return Circuit.from_heads(graph, heads)
    if text in published_circuits():
        circuit = published_circuit(text)
        if circuit.graph.fingerprint != graph.fingerprint:
            raise GraphMismatchError(
                f"circuit {text!r} belongs to another model: its graph is {circuit.graph.describe()}, but "
                f"the requested one is {graph.describe()}"
            )
        return circuit
    if text in published_head_circuits():
        return load_head_circuit(text)
    if "," in text:
        raise InputError(f"circuit is {text!r}; write heads as in a0.h3,a2.h1 (layer, then head)")
    raise unknown_name("circuit", text, [*published_circuits(), *published_head_circuits()])
