"""What is asked of most results, in a few columns: model, task, method, metric, and what came out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


_INTEGERS = range(-(2**63), 2**63)  # what a database column holds


@dataclass(frozen=True, kw_only=True)
class ResultSummary:
    """One stored result in brief; whatever it does not have is None.

    Attributes:
        id: 16 hex digits.
        kind: `measurement`, `scores`, `audit`, ...
        created: UTC, ISO 8601, of the first `put`.
        model: Id of the model.
        task: Name of the task or data set.
        method: Discovery method; of what was measured of a stored circuit, the one that found the circuit.
        metric: Metric; of a worst case its divergence, of an audit `faithfulness-norm`.
        n: Examples or pairs measured.
        seed: Root seed.
        value: The number itself: of a worst case the largest divergence, of an audit the faithfulness of its
            circuit.
        low: Lower end of the interval of `value`.
        high: Upper end.
        status: Verdict, or state of a job.
        name: What people call it: a job, a sweep, a claim; of an audit or a measurement the size of its
            circuit.
        circuit: Hash of the circuit.
        ablation: What a cut edge carried.
    """

    id: str
    kind: str
    created: str
    model: str | None = None
    task: str | None = None
    method: str | None = None
    metric: str | None = None
    n: int | None = None
    seed: int | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    status: str | None = None
    name: str | None = None
    circuit: str | None = None
    ablation: str | None = None

    @property
    def about(self) -> str:
        """In words: what of which task in which model."""
        usual = self.method or self.metric if self.kind in ("audit", "scores") else self.metric or self.method
        what = self.name or usual or ""
        if self.kind == "measurement":
            what = " of ".join(part for part in (self.metric, self.made) if part)
        elif self.kind == "audit":
            what = self.made or ""
        parts = (
            what,
            self.task and f"on {self.task}",
            self.model and f"in {self.model}",
            self.ablation and f"({self.ablation} ablation)",
        )
        return " ".join(part for part in parts if part)

    @property
    def made(self) -> str | None:
        """How what it is about was found, and how large it is: `eap, 20 edges`."""
        if self.kind in ("circuit", "subset-path"):
            return self.name
        if self.kind not in ("audit", "measurement"):
            return self.method
        return ", ".join(part for part in (self.method, self.name) if part) or None


COLUMNS = tuple(field.name for field in fields(ResultSummary))
NUMBERS = ("value", "low", "high")
COUNTS = ("n", "seed")


def summarise(kind: str, provenance: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of one result, less `id`, `kind` and `created`.

    Args:
        kind: Kind of the result; rules of its own exist for those the package stores.
        provenance: As plain JSON.
        payload: As plain JSON.

    Returns:
        Every column; None where the result has nothing of the sort, or another type than the column.
    """
    both = (provenance, payload)
    row: dict[str, Any] = {
        "model": _text(both, "model.id", "table.model.id", "model"),
        "task": _text(
            both, "task.name", "measured.name", "sample.task.name", "table.task.name", "target.name", "task"
        ),
        "method": _text((provenance,), "method.key", "method"),
        "metric": _text((provenance,), "metric.key", "metric", "divergence"),
        "n": _whole((payload, provenance), "n", "task.n"),
        "seed": _whole(both, "seed", "sample.seed", "table.seed", "settings.seed", "task.config.seed"),
        "status": _text((payload,), "status", "state", "verdict.status"),
        "name": _text(both, "name") if kind in NAMED else None,
        "circuit": _text(both, "circuit", "circuit.hash", "circuit.id", "table.circuit"),
        "ablation": _text(both, "ablation", "table.ablation", "settings.ablation"),
        **_interval(payload),
    }
    if kind in SPECIAL:
        row |= SPECIAL[kind](provenance, payload)
    return row


NAMED = ("job", "sweep", "claim")


def _audit(provenance: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    """An audit is summarised by the faithfulness of its circuit."""
    del provenance
    size = _size(payload, "circuit.n_edges")
    measured = _inside(payload, "measurements")
    for each in measured if isinstance(measured, list) else ():
        if isinstance(each, Mapping) and each.get("name") == "faithfulness-norm":
            return {
                "metric": "faithfulness-norm",
                "n": _whole((each,), "n"),
                "status": _text((each,), "status"),
                "name": size,
                **_interval(each),
            }
    return {"name": size}


def _size(payload: Mapping[str, Any], path: str) -> str | None:
    """Number of edges of a circuit, which tells circuits of several sizes apart."""
    edges = _whole((payload,), path)
    return None if edges is None else f"{edges:,} edges"


def _measurement(provenance: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    del provenance
    codes = payload.get("warnings")
    unsolved = "task not solved" if isinstance(codes, list) and "task_not_solved" in codes else None
    return {"name": ", ".join(part for part in (_size(payload, "n_edges"), unsolved) if part) or None}


def _circuit(provenance: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    """How it was found and how large it is: what tells the circuits of one task apart."""
    edges = _whole((payload,), "n_edges")
    method = _text((provenance,), "method.key", "method")
    parts = [method or "", f"{edges} edges" if edges is not None else ""]
    return {
        "name": ", ".join(part for part in parts if part) or None,
        "circuit": _text((payload,), "hash"),
    }


def _worst_case(provenance: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "metric": _text((provenance, payload), "divergence"),
        "n": _whole((payload, provenance), "n_distinct_pairs", "n_pairs", "sample.n_pairs"),
        "value": _number(payload, "summary.absolute.max"),
    }


def _calibration(provenance: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    """`fail` where a gate fails, `pass` where all that apply pass."""
    gates = provenance.get("gates")
    counts = _inside(payload, "summary.status")
    found = {key for key, count in counts.items() if count} if isinstance(counts, Mapping) else set()
    words = ("fail", "moderate", "inconclusive", "pass")
    many = len(gates) if isinstance(gates, list) else 0
    return {
        "n": _whole((provenance,), "table.task.n"),
        "status": next((word for word in words if word in found), None),
        "name": str(gates[0]) if isinstance(gates, list) and many == 1 else f"{many} gates" if many else None,
    }


def _ranking(provenance: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    domain = _text((provenance, payload), "target.domain")
    task = _text((provenance, payload), "target.name")
    models = provenance.get("models")
    return {
        "task": f"{task}:{domain}" if task and domain and task != domain else task or domain,
        "metric": _text((provenance,), "measure"),
        "n": _whole((provenance, payload), "target.n"),
        "name": f"{len(models)} models" if isinstance(models, list) else None,
    }


def _subset_path(provenance: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    sizes = provenance.get("sizes")
    shown = ", ".join(map(str, sizes)) if isinstance(sizes, list) else ""
    source = _text((provenance,), "data.source.name", "data.source.kind", "data.name")
    data = _text((provenance,), "data.hash")  # data of one kind are told by it
    return {
        "task": " ".join(part for part in (source, data and data[:8]) if part) or None,
        "method": _text((provenance,), "options.method", "method"),
        "name": f"subsets of {shown}" if shown else None,
    }


SPECIAL = {
    "circuit": _circuit,
    "audit": _audit,
    "measurement": _measurement,
    "worst_case": _worst_case,
    "calibration": _calibration,
    "ranking": _ranking,
    "subset-path": _subset_path,
}


def _inside(record: object, path: str) -> object:
    for key in path.split("."):
        record = record.get(key) if isinstance(record, Mapping) else None
    return record


def _text(records: tuple[Mapping[str, Any], ...], *paths: str) -> str | None:
    """The first text at any path, the paths of one record before the next record."""
    for record in records:
        for path in paths:
            found = _inside(record, path)
            if isinstance(found, str) and found:
                # A column holds neither a NUL nor half of a pair, which JSON can.
                return found.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    return None


def _whole(records: tuple[Mapping[str, Any], ...], *paths: str) -> int | None:
    for record in records:
        for path in paths:
            found = _inside(record, path)
            if isinstance(found, int) and not isinstance(found, bool) and found in _INTEGERS:
                return found
    return None


def _number(record: Mapping[str, Any], path: str) -> float | None:
    found = _inside(record, path)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        number = float(found)
    except OverflowError:  # an integer beyond every float
        return None
    return number if math.isfinite(number) else None


def _interval(record: Mapping[str, Any]) -> dict[str, float | None]:
    nested = isinstance(record.get("interval"), Mapping)
    prefix = "interval." if nested else ""
    return {
        "value": _number(record, "value"),
        "low": _number(record, f"{prefix}low"),
        "high": _number(record, f"{prefix}high"),
    }
