"""The page of a stored result: its report where its kind has one, else its record as tables."""

from collections.abc import Iterator, Mapping

from assay.page.blocks import Block, Column, Page, Section, Table, folded_record
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
        facts=[("result", code(result.id)), ("arrays", ", ".join([*result.arrays][:ENTRIES]) or "none")],
        records=[folded_record("The result as JSON", result.payload)],
    )


def _entries(result: StoredResult, record: object) -> Block:
    entries = [*_flat(record)]
    whole = code(f"assay show {result.id} --json")
    left = (f"The first {ENTRIES} of {number(len(entries))} entries; all of them with ", whole, ".")
    return Table(
        columns=[Column(name="entry", sort=True), Column(name="value", sort=True)],
        rows=entries[:ENTRIES],
        note=left if len(entries) > ENTRIES else "",
        style="record",
    )


def _flat(record: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and values of a record, of long lists the length."""
    if isinstance(record, Mapping):
        for key, value in record.items():
            yield from _flat(value, f"{name}.{key}" if name else str(key))
        return
    if isinstance(record, list):
        nested = any(isinstance(each, Mapping | list) for each in record)
        long = nested or len(record) > SHORT_LIST
        text = f"{len(record):,} entries" if long else ", ".join(map(_shown, record))
    else:
        text = _shown(record)
    yield cut_text(name, 200), cut_text(text)


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
