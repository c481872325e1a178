"""What is registered: methods, metrics, gates, tasks, ablations, models, ..., own and of other packages."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from assay.core.errors import check_name
from assay.core.record import Record, same
from assay.core.registry import Registry


# Kind -> where its registry lives; imported when the kind is asked for.
KINDS: dict[str, tuple[str, str]] = {
    "ablations": ("assay.execution", "ABLATIONS"),
    "corruptions": ("assay.tasks", "CORRUPTIONS"),
    "distances": ("assay.analyses.generalization", "DISTANCES"),
    "divergences": ("assay.analyses.worst_case", "DIVERGENCES"),
    "gates": ("assay.analyses.calibration", "GATES"),
    "head-methods": ("assay.discovery.heads", "HEAD_METHODS"),
    "interventions": ("assay.discovery.heads", "INTERVENTIONS"),
    "methods": ("assay.discovery.edges", "METHODS"),
    "metrics": ("assay.metrics", "METRICS"),
    "models": ("assay.models", "FAMILIES"),
    "objectives": ("assay.objectives", "OBJECTIVES"),
    "tasks": ("assay.tasks", "TASKS"),
}


CIRCUITS = "circuits"  # files of the package, not a registry


@dataclass(frozen=True, kw_only=True)
class Entry(Record):
    """One registered object.

    Attributes:
        key: What functions and the command line call it.
        summary: One line.
        facts: Its plain attributes: unit, direction, published code, source, ...
    """

    record_layout = same("key", "summary", "**facts")

    key: str
    summary: str
    facts: dict[str, Any]


class Catalogue(tuple[Entry, ...]):
    """Entries in order of registration; prints as a table."""

    __slots__ = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys alone."""
        return tuple(entry.key for entry in self)

    def __repr__(self) -> str:
        width = max((len(key) for key in self.keys), default=0)
        return "\n".join(f"{entry.key:<{width}}  {entry.summary}".rstrip() for entry in self)

    __str__ = __repr__


def list_entries(kind: str) -> Catalogue:
    """Everything registered of one kind; `assay.list`.

    Args:
        kind: `methods`, `metrics`, `tasks`, `ablations`, `objectives`, `divergences`, `gates`,
            `head-methods` (scores of heads), `interventions` (what a head's output is replaced by),
            `corruptions` (of images), `distances` (of circuits), `circuits` (published ones, of edges and of
            heads) or `models` (families that can be loaded, after the embedded and the planted models).

    Raises:
        UnknownNameError: Another kind.

    Example:
        >>> assay.list("objectives").keys[0]
        'logit_diff'
    """
    check_name("kind", kind, [*KINDS, CIRCUITS])
    if kind == CIRCUITS:
        return Catalogue(_published())
    module, attribute = KINDS[kind]
    registry: Registry[Any] = getattr(importlib.import_module(module), attribute)
    entries = [Entry(key=key, summary=_summary(each), facts=_facts(each)) for key, each in registry.items()]
    return Catalogue([*_embedded(), *entries] if kind == "models" else entries)


def _published() -> Iterator[Entry]:
    """Circuits that come with the package, which `--circuit` names."""
    from assay import circuits

    for name in circuits.published_circuits():
        edges = circuits.published_circuit(name)
        graph, n_edges = edges.graph, edges.n_edges
        summary = f"{n_edges:,} edges of a model of {graph.n_layers} layers of {graph.n_heads} heads."
        facts = {"of": "edges", "n_edges": n_edges, "graph": graph.describe()}
        yield Entry(key=name, summary=summary, facts=facts)
    for name in circuits.published_head_circuits():
        found = circuits.load_head_circuit(name)
        of = f"a model of {found.n_layers} layers of {found.n_heads} heads, for {found.task}."
        facts = {"of": "heads", "n_heads": len(found.heads), "task": found.task}
        yield Entry(key=name, summary=f"{len(found.heads)} heads of {of}", facts=facts)


def _embedded() -> Iterator[Entry]:
    """Models that come with the package, which a name loads."""
    from assay.models.planted import planted_names

    yield Entry(key="mini", summary="The embedded language model.", facts={"reads": "prompts"})
    summary = "The embedded image classifier: coloured digits, where the colour misleads."
    yield Entry(key="colour-digits", summary=summary, facts={"reads": "images"})
    for name in planted_names():
        summary = "Weights written by hand; its circuit is known."
        yield Entry(key=f"planted:{name}", summary=summary, facts={})


def _summary(registered: object) -> str:
    """The object's own one-line description, else the first paragraph of the docstring that is its own."""
    if (code := getattr(registered, "code", None)) and (question := getattr(registered, "question", None)):
        return f"{code}: {question}"
    for attribute in ("summary", "name"):
        text = getattr(registered, attribute, None)
        if isinstance(text, str) and " " in text:
            return text
    own = registered if inspect.isclass(registered) or inspect.isroutine(registered) else None
    if own is None and dataclasses.is_dataclass(registered):
        # Of a described function, the function's docstring; the dataclass says only what the fields mean.
        values = (getattr(registered, field.name) for field in dataclasses.fields(registered))
        own = next((value for value in values if inspect.isroutine(value)), type(registered))
    elif own is None:
        own = type(registered)
    paragraph = (inspect.getdoc(own) or "").partition("\n\n")[0]
    return " ".join(paragraph.split())


def _facts(registered: object) -> dict[str, Any]:
    """Its plain attributes: of a described function or class those that are declared, else all."""
    owner = registered if inspect.isclass(registered) else type(registered)
    declared = inspect.get_annotations if dataclasses.is_dataclass(registered) else vars
    facts = {}
    for name in (name for base in reversed(owner.__mro__[:-1]) for name in declared(base)):
        value = getattr(registered, name, None)
        value = tuple(sorted(value)) if isinstance(value, frozenset) else value
        items = value if isinstance(value, tuple) else (value,)
        plain = all(isinstance(item, bool | int | float | str) for item in items)
        if plain and value not in ("", ()) and re.fullmatch(r"[a-z][a-z0-9_]*", name) and name != "key":
            facts[name] = value
    # Of a family what its models read, and what norms behind branches can be treated as.
    for attribute, name in {"reads": "reads", "treatments": "post_norm"}.items():
        if hasattr(registered, attribute):
            facts[name] = getattr(registered, attribute)
    return facts
