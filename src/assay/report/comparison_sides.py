"""The sides of a comparison: circuit, scores and measurements of a stored result or a circuit file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from assay.circuits import Circuit, EdgeScores, load_circuit
from assay.circuits.hub_file import is_address
from assay.core.errors import AssayError, InputError
from assay.core.record import Record, same
from assay.page.circuit import graph_of
from assay.report.overview import find_sweep
from assay.store import Store, StoredResult


READ = 5_000  # measurements of a sweep that are looked at for shared ones
USUAL_EDGES = 200  # circuit of scores alone: what `assay discover` keeps


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """One stored measurement: its record, and the result that has its arrays, if there is one."""

    record: Mapping[str, Any]
    stored: StoredResult | None = None

    @property
    def data(self) -> tuple[object, object] | None:
        """What tells the examples: hash of the data, and how many there were."""
        task = (self.record.get("provenance") or {}).get("task") or {}
        if not task.get("data_hash"):
            return None
        return task["data_hash"], (self.record.get("n") or 0) + (self.record.get("n_excluded") or 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Side(Record):
    """One of the two: what it is, its circuit and scores if it has any, its measurements by name."""

    record_layout = {
        **same("label", "kind", "id", "created", "model", "task", "method", "how"),
        **same("n_edges", "hash", of="circuit"),
    }

    label: str
    kind: str
    id: str | None
    created: str | None
    model: str | None = None
    task: str | None = None
    method: str | None = None
    circuit: Circuit | None = None
    how: str = ""
    scores: Tensor | None = None
    measurements: Mapping[str, Kept] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)


def side_of(store: Store, given: str, *, files: bool) -> Side:
    """What a text names: a circuit file where those may be named, a stored result, or a sweep.

    Raises:
        InputError: For a result of another kind, or a file that does not exist.
        UnknownNameError: For an id that the store does not have.
    """
    if files and (is_address(given) or Path(given).is_file()):
        return _file(given)
    try:
        found = store.get(given)
    except AssayError as error:
        if set(given.lower()) <= set("0123456789abcdef"):
            raise
        try:
            found = find_sweep(store, given)
        except AssayError:
            if files and _is_path(given):
                raise InputError(
                    f"{given} does not exist; give a circuit file, the id of a stored result (see "
                    "`assay store ls`) or the name of a sweep"
                ) from None
            raise error from None
    if found.kind not in _READERS:
        raise InputError(
            f"{found.id} is a {found.kind}; circuits and runs are compared from results of the kinds "
            f"{', '.join(_READERS)}, or from circuit files: see `assay store ls`"
        )
    return _READERS[found.kind](store, found)


def circuit_side(given: str, store: Callable[[], Store]) -> Side:
    """The circuit that a text names, as a comparison reads it: a file, or a result with a circuit.

    Args:
        given: A circuit file, or the id of a stored audit, circuit or scores.
        store: Opens the store in which ids are looked up, if the text is not a file.

    Raises:
        InputError: For a file that does not exist, or a result without a circuit.
    """
    if Path(given).is_file():
        return _file(given)
    if _is_path(given):
        raise InputError(
            f"{given} does not exist; give a circuit file or the id of a stored result (see `assay store ls`)"
        )
    side = side_of(store(), given, files=False)
    if side.circuit is None:
        raise InputError(
            f"{given} is a {side.kind}, which holds no circuit; see `assay store ls --kind audit`"
        )
    return side


def _file(given: str) -> Side:
    circuit = load_circuit(given)
    return Side(
        # With its folder: the files of two audits have one name.
        label=given if is_address(given) else Path(*Path(given).parts[-2:]).as_posix(),
        kind="circuit file",
        id=None,
        created=None,
        circuit=circuit,
        how="the file's edges",
        provenance=circuit.provenance,
        method=_text(circuit.provenance.get("method")),
    )


def _is_path(given: str) -> bool:
    """Whether a text that names no result was probably meant for a file."""
    return Path(given).suffix != "" or Path(given).name != given


def _text(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("key") or value.get("method")
    return value if isinstance(value, str) else None


def _side(found: StoredResult, label: str, **more: Any) -> Side:
    return Side(
        label=label,
        kind=found.kind,
        id=found.id,
        created=found.created,
        provenance=found.provenance,
        **more,
    )


def _named(found: StoredResult) -> dict[str, str | None]:
    """Model and task that the provenance names."""
    return {
        key: (found.provenance.get(key) or {}).get(name) for key, name in (("model", "id"), ("task", "name"))
    }


def _audit(store: Store, found: StoredResult) -> Side:
    payload = found.payload
    model, task, method = payload["model"]["id"], payload["task"]["name"], payload["method"]["key"]
    return _side(
        found,
        f"{method} on {task} in {model}",
        model=model,
        task=task,
        method=method,
        circuit=Circuit(graph=graph_of(payload["graph"]), mask=found.arrays["mask"].bool()),
        how="the audited circuit",
        scores=found.arrays["scores"],
        measurements=_with_parts(store, {each["name"]: each for each in payload["measurements"]}),
    )


def _scores(store: Store, found: StoredResult) -> Side:
    del store
    graph, values, names = graph_of(found.payload["graph"]), found.arrays["values"], _named(found)
    size = min(USUAL_EDGES, graph.n_edges)
    method = _text(found.provenance.get("method"))
    return _side(
        found,
        f"{method} on {names['task']} in {names['model']}",
        **names,
        method=method,
        circuit=EdgeScores(graph, values).top(size).connected(warn=False),
        how=f"the {size:,} strongest edges by |score| that lie on a path",
        scores=values,
    )


def _circuit(store: Store, found: StoredResult) -> Side:
    del store
    circuit = Circuit(graph=graph_of(found.payload["graph"]), mask=found.arrays["mask"].bool())
    model = _named(found)["model"]
    return _side(
        found, f"circuit {circuit.hash[:8]} in {model}", model=model, circuit=circuit, how="as stored"
    )


def _measurement(store: Store, found: StoredResult) -> Side:
    names = _named(found)
    name = str(found.payload.get("name") or _text(found.provenance.get("metric")) or "value")
    return _side(
        found,
        f"{name} on {names['task']} in {names['model']}",
        **names,
        measurements=_with_parts(store, {name: found.payload}),
    )


def _sweep(store: Store, found: StoredResult) -> Side:
    """A sweep's measurements under the names of their jobs, so that two runs of one plan meet."""
    records: dict[str, Mapping[str, Any]] = {}
    for job in found.payload.get("jobs") or ():
        for key in job.get("results") or ():
            if len(records) < READ and store.has(key):
                result = store.get(key)
                if result.kind == "measurement":
                    records[f"{job.get('name')}: {result.payload.get('name')}"] = result.payload
    name = str(found.payload.get("name") or found.provenance.get("name") or found.id)
    return _side(found, name, measurements=_with_parts(store, records, parts=False))


def _with_parts(
    store: Store, records: Mapping[str, Mapping[str, Any]], *, parts: bool = True
) -> dict[str, Kept]:
    """Measurements and their parts by name, each with the stored result that holds its arrays."""
    kept = {}
    for name, record in records.items():
        identity = str(record.get("hash") or "")
        stored = store.get(identity) if identity and store.has(identity) else None
        kept[name] = Kept(record=record, stored=stored)
        for key, part in (record.get("parts") or {}).items() if parts else ():
            if part.get("statistic") is None or part["statistic"] != record.get("statistic"):
                whole = {**part, "provenance": record.get("provenance"), "part": key}
                kept[f"{name}: {key}"] = Kept(record=whole, stored=stored)
    return kept


_READERS: Mapping[str, Callable[[Store, StoredResult], Side]] = {
    "audit": _audit,
    "circuit": _circuit,
    "scores": _scores,
    "measurement": _measurement,
    "sweep": _sweep,
}
COMPARED = tuple(_READERS)  # kinds of results
