"""The page of a stored result: its report where its kind has one, else its record as tables."""

from collections.abc import Mapping

from assay.page.blocks import Block, Column, Note, Page, Section, Table, folded_record
from assay.page.text import code, cut_text, number
from assay.report.save import is_reportable, pages_of
from assay.store import StoredResult


ENTRIES = 400  # of a record in its table
SHORT_LIST = 12  # entries of a list that are written out


def pages_of_result(result: StoredResult) -> list[Page]:
    """The pages of a result, or its record as one.

    The store knows the kind of a result whose document names none.
    """
    document = {"kind": result.kind, **result.payload}
    return pages_of(document) if is_reportable(document) else [record_page(result)]


def record_page(result: StoredResult) -> Page:
    """A result of a kind that has no page of its own."""
    kind = result.kind.replace("_", " ")
    made = result.created[:16].replace("T", " ")
    return Page(
        kind=kind,
        title=f"{kind.capitalize()} {result.id}",
        lede=f"Made {made} UTC. A result of this kind does not have its own page; this is its record.",
        sections=[
            Section(title="Result", blocks=[_entries(result, result.payload)]),
            Section(title="How it was made", blocks=[_entries(result, result.provenance)]),
        ],
        facts=[
            ("result", code(result.id)),
            ("arrays", ", ".join(list(result.arrays.keys())[:ENTRIES]) or "none"),
        ],
        records=[folded_record("The result as JSON", result.payload)],
    )


def _entries(result: StoredResult, record: object) -> Block:
    entries = _flat(record)
    if not entries:
        return Note(text="Empty.", style="quiet")
    shown = entries[:ENTRIES]
    left = (
        f"The first {number(len(shown))} of {number(len(entries))} entries; all of them with ",
        code(f"assay show {result.id} --json"),
        ".",
    )
    return Table(
        columns=[Column(name="entry", sort=True), Column(name="value", sort=True)],
        rows=shown,
        note=left if len(entries) > len(shown) else "",
        style="record",
    )


def _flat(record: object, prefix: str = "") -> list[tuple[str, str]]:
    """Dotted names and values of a record, long lists as their length and beginning."""
    if isinstance(record, Mapping):
        return [
            pair
            for key, value in record.items()
            for pair in _flat(value, f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(record, list):
        single = [each for each in record if not isinstance(each, Mapping | list)]
        if len(single) == len(record) <= SHORT_LIST:
            return [(cut_text(prefix, 200), cut_text(", ".join(_shown(each) for each in record)))]
        return [(cut_text(prefix, 200), f"{len(record):,} entries")]
    return [(cut_text(prefix, 200), _shown(record))]


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:.6g}" if isinstance(value, float) else cut_text(str(value))
