"""What is registered: methods, metrics, gates, tasks, ablations, models, ..., own and of other packages."""

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from assay.core.errors import check_name
from assay.core.record import Record
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
    """

    key: str
    summary: str


class Catalogue(tuple[Entry, ...]):
    """Entries in order of registration; prints as a table."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys alone."""
        return tuple(entry.key for entry in self)

    def __repr__(self) -> str:
        width = max(map(len, self.keys), default=0)
        return "\n".join(f"{entry.key:<{width}}  {entry.summary}".rstrip() for entry in self)


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
    entries = [Entry(key=key, summary=_summary(each)) for key, each in registry.items()]
    return Catalogue([*_embedded(), *entries] if kind == "models" else entries)


def _published() -> Iterator[Entry]:
    """Circuits that come with the package, which `--circuit` names."""
    from assay import circuits

    for name in circuits.published_circuits():
        found = circuits.published_circuit(name)
        shape = f"{found.graph.n_layers} layers of {found.graph.n_heads} heads"
        yield Entry(key=name, summary=f"{found.n_edges:,} edges of a model of {shape}.")
    for name in circuits.published_head_circuits():
        heads = circuits.load_head_circuit(name)
        shape = f"{heads.n_layers} layers of {heads.n_heads} heads, for {heads.task}"
        yield Entry(key=name, summary=f"{len(heads.heads)} heads of a model of {shape}.")


def _embedded() -> Iterator[Entry]:
    """Models that come with the package, which a name loads."""
    from assay.models.planted import planted_names

    yield Entry(key="mini", summary="The embedded language model.")
    summary = "The embedded image classifier: coloured digits, where the colour misleads."
    yield Entry(key="colour-digits", summary=summary)
    for name in planted_names():
        yield Entry(key=f"planted:{name}", summary="Weights written by hand; its circuit is known.")


def _summary(registered: Any) -> str:
    """The object's own one-line description, else the first paragraph of the docstring that is its own."""
    if question := getattr(registered, "question", None):
        return f"{registered.code}: {question}"
    for text in (getattr(registered, name, None) for name in ("summary", "name")):
        if isinstance(text, str) and " " in text:
            return text
    own = registered
    if dataclasses.is_dataclass(own) and not inspect.isclass(own):
        # Of a described function, the function's docstring; the dataclass says only what the fields mean.
        own = next(filter(inspect.isroutine, vars(own).values()), own)
    own = own if inspect.isclass(own) or inspect.isroutine(own) else type(own)
    return " ".join((inspect.getdoc(own) or "").partition("\n\n")[0].split())
