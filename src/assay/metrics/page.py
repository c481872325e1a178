"""Measurements as a page, and the table of them that other pages show."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.core.verdict import FEW_PROMPTS, FEWEST_PROMPTS, SAME_PROMPTS
from assay.page import text as words
from assay.page.blocks import Cell, Column, Figure, Note, Page, Row, Section, Table, folded_record
from assay.page.text import NARROW, Span, Text, code


ROWS = 400  # of the table
RECORDS = 40  # whose provenance a page prints
RECORD = {"id", "name", "hash", "value", "n", "unit", "direction", "statistic", "provenance"}
Document = Mapping[str, Any]

LEGEND = (
    "Limits are those of the published rules. A verdict is given only if the whole interval agrees. Random: "
    "mean of random circuits of equal size."
)

UNITS = {"fraction": "", "1": "", "none": "", "ratio": ""}

DIRECTIONS = {
    "higher": "higher is better",
    "lower": "lower is better",
    "target": "closer to 1 is better",
    "report": "no verdict",
}

REASONS = {
    "zero_denominator": "undefined: the model has no margin on this task",
    "no_valid_prompt": "undefined: none of the prompts gave finite logits",
    "all_tied": "undefined: all values are equal",
    FEW_PROMPTS: "undefined: every example equals its counterpart, so nothing is ablated",
}


# Why there is no verdict on a number, by the reason of the verdict.
OPEN = {
    SAME_PROMPTS: "found on these examples",
    FEW_PROMPTS: f"fewer than {FEWEST_PROMPTS} different examples",
}


def is_measurement(document: object) -> bool:
    """Whether a document is the record of one measurement (`Measurement.to_dict`)."""
    return isinstance(document, Mapping) and "schema" not in document and document.keys() >= RECORD


def reason(measurement: Document) -> str:
    """A sentence on why a value is undefined."""
    key = str(measurement.get("reason") or "undefined")
    return REASONS.get(key, key if key.startswith("undefined") else f"undefined: {key.replace('_', ' ')}")


def measurements_page(records: Sequence[Document]) -> Page:
    """A table of measurements.

    Args:
        records: What `Measurement.to_dict` gave.
    """
    tasks, models = (
        {_named(each, *path) for each in records} for path in (("task", "name"), ("model", "id"))
    )
    rows: list[Row] = []
    for record in records:
        task = _named(record, "task", "name")
        named = {**record, "name": f"{record['name']} on {task}"} if task and len(tasks) > 1 else record
        rows += measurement_rows([named])
    where = [" and ".join(sorted(names - {""})) for names in (tasks, models)]
    kind = "Measurements" if len(records) > 1 else f"Measurement: {str(records[0]['name']).replace('-', ' ')}"
    title = kind + "".join(
        f" {word} {names}" for word, names in zip(("on", "in"), where, strict=True) if names
    )
    left = max(0, len(rows) - ROWS)
    caption: list[Text] = [LEGEND]
    if left:
        listing = code("assay store ls --kind measurement")
        caption += [
            f" {words.number(left)} more rows are omitted; ",
            listing,
            " lists all that are stored.",
        ]
    ablations = sorted({_named(each, "ablation") for each in records} - {""})
    carried = (
        f"What is outside the circuit is ablated ({', '.join(ablations)}); another ablation may give another "
        "value."
    )
    notes = [
        folded_record((str(each["name"]), " ", code(str(each["hash"]))), each["provenance"])
        for each in records[:RECORDS]
    ]
    rest = f"The records of the first {RECORDS} of {words.number(len(records))} measurements."
    return Page(
        kind="measurements",
        title=title,
        sections=[
            Section(
                title="",
                blocks=[
                    Figure(blocks=[measurement_table(rows[:ROWS])], caption=caption, kind=""),
                    *([Note(text=carried, style="quiet")] if ablations else []),
                    *_norms(records),
                    *(
                        Note(text=f"{text}.")
                        for text in dict.fromkeys(note for each in records for note in each.get("notes", ()))
                    ),
                ],
            )
        ],
        records=[*notes, *([Note(text=rest, style="quiet")] if len(records) > RECORDS else [])],
    )


def _norms(records: Sequence[Document]) -> Iterator[Note]:
    """What norms behind branches change, where they were not treated as `exact`."""
    others = {
        str(each["name"]): value
        for each in records
        if (value := each.get("details", {}).get("exact_norms")) is not None
    }
    if others:
        values = ", ".join(f"{name} {words.number(value)}" for name, value in others.items())
        treatment = _named(records[0], "model", "post_norm")
        yield Note(text=f"Norms behind branches: {treatment}. With exact ones: {values}.", style="quiet")


def _named(record: Document, *path: str) -> str:
    value: Any = record.get("provenance")
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return str(value or "")


def measurement_table(rows: Sequence[Row]) -> Table:
    """The rows of `measurement_rows` under their headings."""
    return Table(
        columns=[
            Column(name="measurement", sort=True),
            Column(name="value", numeric=True, sort=True),
            Column(name=f"95{NARROW}% interval"),
            Column(name="limit"),
            Column(name="random", numeric=True, sort=True),
            Column(name="n", numeric=True, sort=True),
            Column(name="verdict", sort=True),
        ],
        rows=rows,
        style="measurements",
    )


def limit(measurement: Document) -> str:
    """Where the published rule passes, with its unit; without a rule, which way is better."""
    threshold = ((measurement.get("verdict") or {}).get("thresholds") or {}).get("pass")
    direction, unit = str(measurement.get("direction") or "report"), _unit(measurement)
    if threshold is None or direction == "report":
        return DIRECTIONS.get(direction, "")
    return f"{'at most' if direction == 'lower' else 'at least'} {threshold:g} {unit}".strip()


def _unit(measurement: Document) -> str:
    unit = str(measurement.get("unit") or "")
    return UNITS.get(unit, unit)


def measurement_rows(records: Sequence[Document]) -> list[Row]:
    """A row for each measurement and for each of its parts."""
    return [_measurement_row(name, each) for record in records for name, each in with_parts(record)]


def with_parts(record: Document) -> Iterator[tuple[str, Document]]:
    """A measurement and its parts by their names, less a part that is the measurement itself.

    Warnings of the measurement are not repeated at its parts.
    """
    yield record["name"], record
    said = record.get("warnings") or ()
    for name, part in (record.get("parts") or {}).items():
        if part.get("statistic") is None or part["statistic"] != record.get("statistic"):
            own = [each for each in part.get("warnings") or () if each not in said]
            yield f"{record['name']}: {name}", {**part, "warnings": own}


def _measurement_row(name: str, measurement: Document) -> Row:
    interval = measurement.get("interval") or {}
    low, high = interval.get("low"), interval.get("high")
    random = ((measurement.get("baseline") or {}).get("random") or {}).get("value")
    status, value, n = measurement.get("status") or "none", measurement.get("value"), measurement.get("n")
    excluded, unit = measurement.get("n_excluded", 0), _unit(measurement)
    shown, between = words.estimate(value, low, high)
    return Row(
        cells=[
            Cell(
                text=(Span(name.replace("-", " "), "name"), f" ({unit})" if unit else ""),
                below=Span(_meaning_and_warnings(measurement), "meaning"),
                title=str(measurement["id"]),
            ),
            Cell(text=shown, value="" if value is None else value),
            Cell(
                text=between or str(interval.get("reason") or "").replace("_", " "),
                style="quiet",
                title=str(interval.get("method") or ""),
            ),
            limit(measurement) if value is not None else Span(reason(measurement), "undefined"),
            Cell(
                text="" if random is None else words.number(random),
                value="" if random is None else random,
                style="quiet",
            ),
            Cell(text=words.number(n), value=n, below=f"{excluded} excluded" if excluded else ""),
            Cell(status=status, below=_decided_by(measurement)),
        ],
        style=status.replace("none", "no-verdict"),
    )


def _decided_by(measurement: Document) -> str:
    """Why there is no verdict, or the parts that keep one on several quantities from a pass, with limits."""
    status, verdict = measurement.get("status"), measurement.get("verdict") or {}
    if verdict.get("reason") in OPEN:
        return OPEN[verdict["reason"]]
    limits, parts = verdict.get("thresholds") or {}, measurement.get("parts") or {}
    open_to = {"fail": ("fail",), "moderate": ("fail", "inconclusive")}.get(str(status), ())
    return "; ".join(
        f"{name} {words.number(part['value'])}, limit {words.number(limits[name])}"
        for name, part in parts.items()
        if name in limits and part["status"] in open_to
    )


def _meaning_and_warnings(measurement: Document) -> Text:
    warnings = [str(name).replace("_", " ") for name in measurement.get("warnings") or ()]
    meaning = str(measurement.get("meaning") or "")
    if not warnings:
        return meaning
    return (meaning, " ", Span(f"{', '.join(warnings).capitalize()}.", "i"))
