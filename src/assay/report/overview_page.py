"""What a store holds about a model, a task or a sweep, as a page: tables of every metric, gates, jobs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay.core.errors import InputError
from assay.page import text as words
from assay.page.text import record_text


KIND, SCHEMA = "overview", "assay-overview/1"
REQUIRED = ("of", "name", "n_results", "n_measurements", "measurements", "metrics", "others", "gates")
ROWS = 60  # rows of the table of everything
PER_METRIC = 600  # rows of all tables of single metrics together
OPEN = 4  # tables of single metrics that stand open
AXES = ("model", "task", "method")
Document = Mapping[str, Any]
Row = Mapping[str, Any]


def is_overview(document: object) -> bool:
    """Whether a document is that of an overview."""
    return isinstance(document, Mapping) and document.get("kind") == KIND


def overview_view(document: Document, key: str) -> dict[str, Any]:
    """Everything the template of an overview needs.

    Args:
        document: What `assay.report.overview_document` gave.
        key: Identifier of the article.

    Raises:
        InputError: For another schema or a document that lacks a part.
    """
    if document.get("schema") != SCHEMA:
        raise InputError(
            f"this overview has schema {document.get('schema')!r}; this version reads {SCHEMA!r}: "
            "run `assay report` again to make it"
        )
    if missing := [name for name in REQUIRED if name not in document]:
        raise InputError(f"the overview lacks {', '.join(missing)}; it is incomplete")
    rows = document["measurements"]
    varying = [axis for axis in AXES if axis != document["of"] and any(row.get(axis) for row in rows)]
    jobs = document.get("jobs")
    return {
        "key": key,
        "overview": document,
        "title": f"{document['of'].capitalize()} {document['name']}",
        "verdict": verdict(document),
        "caveats": caveats(document),
        "axes": varying,
        "table": grid(rows, document["metrics"], varying),
        "metrics": _metrics(rows, document["metrics"], varying, key),
        "gates": _gates(document["gates"], document["of"]),
        "others": document["others"],
        "jobs": jobs,
        "record": record_text(document["plan"]) if document.get("plan") else None,
        "sweep": document["of"] == "sweep",
    }


def verdict(document: Document) -> str:
    """How much there is, in one sentence."""
    rows, n = document["measurements"], document["n_measurements"]
    named = {axis: _distinct(rows, axis) for axis in (*AXES, "metric")}
    named["method"] = _distinct(rows, "found_by")  # the column of the tables holds options and sizes too
    parts = [f"{words.number(document['n_results'])} {_plural('result', document['n_results'])}"]
    if n:
        over = [
            f"{len(named[axis])} {_plural(axis, len(named[axis]))}"
            for axis in (*AXES, "metric")
            if named[axis] and axis != document["of"]
        ]
        among = f", the newest {len(rows):,} of them" if len(rows) < n else ""
        parts.append(
            f"{words.number(n)} {_plural('measurement', n)}{among}"
            + (f" over {_listed(over)}" if over else "")
        )
    statuses = [row["status"] for row in rows if row.get("status") not in (None, "none")]
    sentence = ", of them ".join(parts[:2]) + "."
    if statuses:
        found = {word: statuses.count(word) for word in ("pass", "moderate", "fail", "inconclusive")}
        told = [f"{count} {word}" for word, count in found.items() if count]
        sentence += f" Of {len(statuses)} judged {_plural('measurement', len(statuses))}: {_listed(told)}."
    if jobs := document.get("jobs"):
        told = [f"{count:,} {word}" for word, count in jobs["statuses"].items()]
        sentence = f"{words.number(jobs['n'])} {_plural('job', jobs['n'])}: {_listed(told)}. {sentence}"
    return sentence


def caveats(document: Document) -> list[str]:
    """What was cut from the page."""
    notes = []
    shown, n = len(document["measurements"]), document["n_measurements"]
    if shown < n:
        notes.append(
            f"The tables look at the newest {shown:,} of {n:,} measurements. "
            f"All of them: {_command(document)}."
        )
    metrics = _distinct(document["measurements"], "metric")
    if len(metrics) > len(document["metrics"]):
        notes.append(
            f"{len(document['metrics'])} of {len(metrics)} metrics have a table here. "
            f"All of them: {_command(document)}."
        )
    if (jobs := document.get("jobs")) and jobs["n_read"] < jobs["n"]:
        notes.append(
            f"The tables look at the results of the first {jobs['n_read']:,} of {jobs['n']:,} jobs; all "
            "results are in the store: assay list results."
        )
    if jobs and jobs["n_failed"]:
        notes.append(f"{jobs['n_failed']:,} {_plural('job', jobs['n_failed'])} failed; they are named below.")
    return notes


def _command(document: Document) -> str:
    where = f" --where '{document['filter']}'" if document.get("filter") else ""
    return f"assay list results --kind measurement{where}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def _distinct(rows: Iterable[Row], column: str) -> list[str]:
    return sorted({str(row[column]) for row in rows if row.get(column)})


def grid(rows: Sequence[Row], metrics: Sequence[Document], axes: Sequence[str]) -> dict[str, Any]:
    """A row per model, task and method as far as they vary, a column per metric; the newest in each cell."""
    cells: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for row in rows:
        place = tuple(str(row.get(axis) or "") for axis in axes)
        cells.setdefault(place, {}).setdefault(str(row["metric"] or ""), []).append(row)
    names = [metric["key"] for metric in metrics]
    ordered = sorted(cells)
    return {
        "columns": names,
        "rows": [
            {"names": place, "cells": [_cell(cells[place].get(name, [])) for name in names]}
            for place in ordered[:ROWS]
        ],
        "left": max(0, len(ordered) - ROWS),
    }


def _cell(found: Sequence[Row]) -> dict[str, Any] | None:
    """The newest of the measurements in a cell, and the range of the others."""
    if not found:
        return None
    newest = found[0]
    others = [row["value"] for row in found if row["value"] is not None]
    return {
        **_shown(newest),
        "more": len(found) - 1,
        "range": f"{words.number(min(others))} to {words.number(max(others))}" if len(others) > 1 else "",
    }


def _shown(row: Row) -> dict[str, Any]:
    digits = words.precision(row["low"], row["high"])
    mark, status = words.STATUSES.get(row["status"] or "none", words.STATUSES["none"])
    value = row["value"]
    return {
        "id": row["id"],
        "value": value,
        "shown": words.number(float(value) if value is not None else None, digits),
        "interval": words.interval(row["low"], row["high"], digits),
        "mark": mark,
        "status": status,
    }


def _metrics(
    rows: Sequence[Row], metrics: Sequence[Document], axes: Sequence[str], key: str
) -> list[dict[str, Any]]:
    """A table of each metric whose intervals share one axis."""
    room = max(12, PER_METRIC // max(1, len(metrics)))
    tables = []
    for place, metric in enumerate(metrics):
        found = [row for row in rows if (row["metric"] or "") == metric["key"]]
        listed = found[:room]
        axis = _axis(listed, metric.get("threshold"))
        tables.append(
            {
                "key": metric["key"],
                "anchor": f"{key}-metric{place}",
                "code": metric.get("code"),
                "unit": metric.get("unit") or "no unit",
                "direction": words.DIRECTIONS.get(metric.get("direction") or "report", ""),
                "threshold": metric.get("threshold"),
                "threshold_at": axis.place(metric.get("threshold")),
                "ends": (words.number(axis.first), words.number(axis.last)),
                "rows": [{**row, **_shown(row), "strip": axis.strip(row)} for row in listed],
                "columns": [
                    *(name for name in axes if _distinct(found, name)),
                    *(name for name in ("seed",) if len(_distinct(found, name)) > 1),
                ],
                "n": len(found),
                "open": place < OPEN,
            }
        )
    return tables


class _Axis:
    """Places on an axis from `first` to `last`, as shares of 120 units."""

    def __init__(self, numbers: Sequence[float]) -> None:
        low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
        self.first, self.last = (low, high) if high > low else (low - 0.5, high + 0.5)

    def place(self, number: float | None) -> float | None:
        if number is None or not math.isfinite(number):
            return None
        share = (number - self.first) / (self.last - self.first)
        return round(120 * min(max(share, 0.0), 1.0), 1)

    def strip(self, row: Row) -> dict[str, float | None] | None:
        if row["value"] is None:
            return None
        return {name: self.place(row[name]) for name in ("value", "low", "high")}


def _axis(rows: Sequence[Row], threshold: float | None) -> _Axis:
    shown = [row[name] for row in rows for name in ("value", "low", "high")]
    return _Axis([float(each) for each in (*shown, threshold) if each is not None and math.isfinite(each)])


def _gates(found: Sequence[Document], of: str) -> dict[str, Any] | None:
    """Gates as rows, calibrations as columns."""
    if not found:
        return None
    other = "model" if of == "task" else "task"
    names = {gate["key"]: gate.get("name") or gate["key"] for each in found for gate in each["gates"]}
    columns = []
    for each in found:
        verdicts = {gate["key"]: gate for gate in each["gates"]}
        columns.append(
            {
                "id": each["id"],
                "name": str(each.get(other) or "") if of != "sweep" else _both(each),
                "circuit": str(each.get("circuit") or "")[:8],
                "cells": {
                    name: words.STATUSES.get(verdicts[name].get("status") or "none", words.STATUSES["none"])
                    if name in verdicts
                    else None
                    for name in names
                },
            }
        )
    return {"names": names, "columns": columns, "other": other if of != "sweep" else "model and task"}


def _both(each: Document) -> str:
    return f"{each.get('model') or ''} {each.get('task') or ''}".strip()
