"""What a store holds about a model, a task or a sweep, as one plain JSON document.

Summaries are read from the indexed columns of the store. Payloads are read only where they are shown: one
measurement of each metric, for its unit and direction, and the newest calibrations, for their gates.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from assay.core.errors import InputError, UnknownNameError, near_matches
from assay.page.text import cut_text
from assay.store import ResultSummary, Store, StoredResult


SCHEMA = "assay-overview/1"
KIND = "overview"
READ = 2_000  # newest measurements that the tables look at
LISTED = 200  # measurements, and other results, listed one by one
METRICS = 24  # metrics that get a table of their own
CALIBRATIONS = 12  # newest calibrations whose gates are shown
JOBS = 1_000  # jobs of a sweep that the page reads
FAILED = 200  # failed jobs named one by one
COLUMNS = (
    "id",
    "kind",
    "created",
    "model",
    "task",
    "method",
    "ablation",
    "metric",
    "n",
    "seed",
    "value",
    "low",
    "high",
    "status",
)
DONE = ("done", "skipped")  # words for a job that left its results

Document = dict[str, Any]


def overview_document(
    store: Store, *, model: str | None = None, task: str | None = None, sweep: str | None = None
) -> Document:
    """What the store holds about one model, one task, or one sweep.

    Args:
        store: Where results lie; it is only read.
        model: Name of a model as results have it: models are compared over tasks, methods and metrics.
        task: Name of a task.
        sweep: Name of a sweep, or id of its row, or the beginning of the id.

    Returns:
        Plain JSON of schema `assay-overview/1` for `save_report`. Lists are cut (`READ`, `LISTED`, ...) and
        the counts beside them say of how many.

    Raises:
        InputError: Not exactly one of the three is given.
        UnknownNameError: The store holds nothing of that name; the message has near matches.
    """
    given = {"model": model, "task": task, "sweep": sweep}
    chosen = [(key, name) for key, name in given.items() if name is not None]
    if len(chosen) != 1:
        raise InputError(f"give exactly one of model, task and sweep; got {len(chosen)} of them")
    of, name = chosen[0]
    return _of_sweep(store, name) if of == "sweep" else _of_name(store, of, name)


def row_of(summary: ResultSummary) -> dict[str, Any]:
    """A summary as a record of the columns that pages show; `method` names the size of a circuit too."""
    found = {**asdict(summary), "method": summary.made}
    return {key: found[key] for key in COLUMNS}


def _of_name(store: Store, of: str, name: str) -> Document:
    """A model or a task."""
    where = [f"{of} = {json.dumps(name, ensure_ascii=False)}"]
    total = store.count(where=where)
    if not total:
        raise _nothing(store, of, name)
    measurements = store.query("measurement", where=where, order="-created", limit=READ)
    made = _circuits(store)
    # Jobs are how a sweep keeps its books, and no results about the model.
    wanted = [*where, "kind != measurement", "kind != job"]
    others = store.query(where=wanted, order="-created", limit=LISTED)
    n_measurements = store.count("measurement", where=where)
    calibrations = store.query("calibration", where=where, order="-created", limit=CALIBRATIONS)
    return {
        **_head(store, of, name),
        "n_results": total,
        "n_measurements": n_measurements,
        "n_calibrations": store.count("calibration", where=where),
        "filter": where[0],
        "metrics": _metrics(store, [row_of(each) for each in measurements]),
        "measurements": [
            {**row_of(each), "method": _method_and_size(each, made), "found_by": each.method}
            for each in measurements
        ],
        "others": [row_of(each) for each in others],
        "n_others": store.count(where=wanted),
        "gates": _gates(store, [each.id for each in calibrations]),
        "jobs": None,
    }


def _circuits(store: Store) -> dict[str, str]:
    """What circuits are, by their hash: a measurement knows its circuit, and not where that came from."""
    found: dict[str, str] = {}
    for kind in ("audit", "circuit"):
        for each in store.query(kind, where="circuit != null", order="-created", limit=READ):
            label = each.made
            if label and each.circuit:
                found[each.circuit] = label
    return found


def _method_and_size(measurement: ResultSummary, made: Mapping[str, str]) -> str | None:
    label = made.get(measurement.circuit or "")
    method = measurement.method
    return label if label and (method is None or label.startswith(method)) else measurement.made


def _head(store: Store, of: str, name: str) -> Document:
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "of": of,
        "name": name,
        "store": store.directory.name,
    }


def _nothing(store: Store, of: str, name: str) -> UnknownNameError:
    """The error of a name that no result has."""
    known = sorted(
        {str(found) for each in store.query(order="-created", limit=READ) if (found := getattr(each, of))}
    )
    near = near_matches(name, known)
    hint = (
        f"; did you mean {near[0]!r}?"
        if near
        else f"; it has {', '.join(map(repr, known[:20]))}"
        if known
        else ""
    )
    return UnknownNameError(
        f"the store at {store.directory} holds no results about the {of} {cut_text(name, 80)!r}{hint}"
    )


# ---- a sweep ------------------------------------------------------------------------------------


def _of_sweep(store: Store, name: str) -> Document:
    """A sweep of the store."""
    found = find_sweep(store, name)
    title = str(found.payload.get("name") or found.provenance.get("name") or found.id)
    document = sweep_document(store, title, found.payload.get("jobs") or (), plan=found.provenance)
    return {**document, "id": found.id, "created": found.created}


def sweep_document(
    store: Store, name: str, jobs: Iterable[Mapping[str, Any]], *, plan: Mapping[str, Any] | None = None
) -> Document:
    """The jobs of a sweep and the results that they left, whether or not all are done.

    Args:
        store: Where the results are.
        name: Of the sweep.
        jobs: Rows with `name`, `kind`, `results` (ids) and, where they have them, `id`, `status` and `error`:
            those of a stored sweep, or what a run of it came to.
        plan: What it was made from.

    Returns:
        A document as `overview_document` gives it.
    """
    jobs = [dict(each) for each in jobs]
    failed = [each for each in jobs if job_status(each) == "failed"]
    origin = {key: each for each in jobs[:JOBS] for key in _results_of(each)}
    rows = _summaries(store, list(origin)[:READ])
    rows.sort(key=lambda row: str(row["created"]), reverse=True)
    measurements = []
    for row in rows:
        if row["kind"] == "measurement":
            job = origin[row["id"]]
            setting = _setting(job, row)
            # What a store does not know of a circuit the job may name.
            found_by = row["found_by"] or setting
            measurements.append({**row, "job": job.get("name"), "method": setting, "found_by": found_by})
    calibrations = [row["id"] for row in rows if row["kind"] == "calibration"]
    n_results = sum(len(_results_of(each)) for each in jobs)
    # Beyond those that were read, the kind of the job tells what its results are.
    n_measured = sum(len(_results_of(each)) for each in jobs if each.get("kind") == "measure")
    n_measurements = max(len(measurements), n_measured if len(rows) < n_results else 0)
    return {
        **_head(store, "sweep", name),
        "n_results": n_results,
        "n_measurements": n_measurements,
        "n_calibrations": len(calibrations),
        "filter": None,
        "metrics": _metrics(store, measurements),
        "measurements": measurements,
        "others": [row for row in rows if row["kind"] != "measurement"][:LISTED],
        "n_others": max(len(rows) - len(measurements), n_results - n_measurements),
        "gates": _gates(store, calibrations[:CALIBRATIONS]),
        "jobs": {
            "n": len(jobs),
            "n_read": min(len(jobs), JOBS),
            "statuses": dict(sorted(Counter(job_status(each) for each in jobs).items())),
            "failed": [_job_row(each) for each in failed[:FAILED]],
            "n_failed": len(failed),
            "listed": [_job_row(each) for each in jobs[:LISTED]],
        },
        "plan": None if plan is None else dict(plan),
    }


def find_sweep(store: Store, name: str) -> StoredResult:
    """The newest sweep of a name, or the one of an id."""
    wanted = f"name = {json.dumps(name, ensure_ascii=False)}"
    if named := store.query("sweep", where=[wanted], order="-created", limit=1):
        return store.get(named[0].id)
    if set(name) <= set("0123456789abcdef"):
        found = store.get(name)
        if found.kind == "sweep":
            return found
        raise InputError(f"{found.id} is a {found.kind}, not a sweep; see `assay store ls --kind sweep`")
    held = store.count("sweep")
    raise UnknownNameError(
        f"the store at {store.directory} holds no sweep {cut_text(name, 80)!r}; it has {held:,}: "
        "see `assay store ls --kind sweep`"
    )


def job_status(job: Mapping[str, Any]) -> str:
    """How a job of a sweep ended: `done`, `failed`, or the word its row has."""
    status = str(job.get("status") or ("failed" if job.get("error") else "done"))
    return "done" if status in DONE else status


def _results_of(job: Mapping[str, Any]) -> Sequence[str]:
    return [str(each) for each in job.get("results") or ()]


def _setting(job: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """What a job names beside model and task: method, its options, the size of the circuit."""
    name = str(job.get("name") or "")
    start = f"{job.get('kind')} {row['model']} {row['task']} "
    return name[len(start) :] if name.startswith(start) else name or str(row["method"])


def _job_row(job: Mapping[str, Any]) -> dict[str, Any]:
    error = job.get("error")
    if isinstance(error, Mapping):
        error = ": ".join(str(error[key]) for key in ("type", "message") if error.get(key))
    return {
        "name": str(job.get("name") or job.get("id") or ""),
        "id": job.get("id"),
        "kind": job.get("kind"),
        "status": job_status(job),
        "error": None if error is None else str(error),
        "results": list(_results_of(job))[:20],
    }


def _summaries(store: Store, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of the given ids, in their order; what is not stored is left out."""
    rows = {}
    for key in ids:
        for each in store.query(where=[f'id = "{key}"'], limit=1):
            rows[key] = {**row_of(each), "found_by": each.method}
    return [rows[key] for key in ids if key in rows]


# ---- parts --------------------------------------------------------------------------------------


def _metrics(store: Store, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each metric with its unit, direction and threshold, read off the first measurement of it."""
    example: dict[str, str] = {}
    for row in rows:
        example.setdefault(str(row["metric"] or ""), row["id"])
    facts = []
    for key in sorted(example)[:METRICS]:
        payload = store.get(example[key]).payload
        threshold = ((payload.get("verdict") or {}).get("thresholds") or {}).get("pass")
        facts.append(
            {
                "key": key,
                "code": payload.get("id"),
                "unit": payload.get("unit"),
                "direction": payload.get("direction"),
                "threshold": threshold,
            }
        )
    return facts


def _gates(store: Store, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Verdicts of the gates of calibrations."""
    found = []
    for key in ids:
        result = store.get(key)
        payload = result.payload
        found.append(
            {
                "id": key,
                "model": (payload.get("model") or {}).get("id"),
                "task": (payload.get("task") or {}).get("name"),
                "circuit": (payload.get("circuit") or {}).get("hash"),
                "gates": [
                    {
                        "key": gate["key"],
                        "name": gate.get("name"),
                        "status": (gate.get("verdict") or {}).get("status"),
                        "published": (gate.get("verdict") or {}).get("published"),
                    }
                    for gate in payload.get("gates") or ()
                ],
            }
        )
    return found
