"""Measurements as a page, and the rows that other pages show of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from assay.report import figures, words
from assay.report.bounds import first, record_text


ROWS = 400  # of the table
RECORDS = 40  # whose provenance a page prints
RECORD = {"id", "name", "hash", "value", "n", "unit", "direction", "statistic", "provenance"}
Document = Mapping[str, Any]


def is_measurement(document: object) -> bool:
    """Whether a document is the record of one measurement (`Measurement.to_dict`)."""
    return isinstance(document, Mapping) and "schema" not in document and document.keys() >= RECORD


def measurements_view(records: Sequence[Document], key: str) -> dict[str, Any]:
    """Everything the template of a table of measurements needs.

    Args:
        records: What `Measurement.to_dict` gave.
        key: Identifier of the article.
    """
    tasks, models = (
        {_named(each, *path) for each in records} for path in (("task", "name"), ("model", "id"))
    )
    rows = []
    for record in records:
        task = _named(record, "task", "name")
        named = {**record, "name": f"{record['name']} on {task}"} if task and len(tasks) > 1 else record
        rows += measurement_rows(named)
    where = [" and ".join(sorted(names - {""})) for names in (tasks, models)]
    kind = "Measurements" if len(records) > 1 else f"Measurement: {str(records[0]['name']).replace('-', ' ')}"
    title = kind + "".join(
        f" {word} {names}" for word, names in zip(("on", "in"), where, strict=True) if names
    )
    listed, left = first(rows, ROWS)
    printed, _ = first(records, RECORDS)
    return {
        "key": key,
        "title": title,
        "rows": listed,
        "n_left": left,
        "records": [
            {"name": each["name"], "hash": each["hash"], "text": record_text(each["provenance"])}
            for each in printed
        ],
        "n_records": len(records),
    }


def _named(record: Document, *path: str) -> str:
    value: Any = record.get("provenance")
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return str(value or "")


def measurement_rows(measurement: Document) -> list[dict[str, Any]]:
    """A measurement and its parts, less one that is the measurement itself."""
    parts = measurement.get("parts") or {}
    listed = [(measurement["name"], measurement)]
    for name, part in parts.items():
        if part.get("statistic") is None or part["statistic"] != measurement.get("statistic"):
            listed.append((f"{measurement['name']}: {name}", part))
    return [_measurement_row(name, each) for name, each in listed]


def _measurement_row(name: str, measurement: Document) -> dict[str, Any]:
    interval = measurement.get("interval") or {}
    digits = words.precision(interval.get("low"), interval.get("high"))
    mark, status = words.STATUSES.get(measurement.get("status") or "none", words.STATUSES["none"])
    return {
        "id": measurement["id"],
        "name": name.replace("-", " "),
        "value": measurement.get("value"),
        "shown": words.number(measurement.get("value"), digits),
        "interval": words.interval(interval.get("low"), interval.get("high"), digits),
        "method": interval.get("method"),
        "no_interval": str(interval.get("reason") or "").replace("_", " "),
        "random": ((measurement.get("baseline") or {}).get("random") or {}).get("value"),
        "n": measurement.get("n"),
        "n_excluded": measurement.get("n_excluded", 0),
        "unit": words.UNITS.get(measurement.get("unit") or "", measurement.get("unit") or ""),
        "direction": words.DIRECTIONS.get(measurement.get("direction") or "report", ""),
        "mark": mark,
        "status": status,
        "meaning": words.meaning(measurement),
        "warnings": [str(code).replace("_", " ") for code in measurement.get("warnings") or ()],
        "reason": words.reason(measurement) if measurement.get("value") is None else "",
        "strip": figures.strip_data(measurement),
    }
