"""The page of a stored result: its report where its kind has one, else its record as tables."""

from collections.abc import Mapping
from typing import Any

from assay.page.blocks import Page, Section, Table, columns, folded_record
from assay.page.text import code, cut_text, number
from assay.report.save import is_reportable, pages_of
from assay.store import StoredResult


ENTRIES = 400  # of a record in its table


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


def _entries(result: StoredResult, record: Mapping[str, Any]) -> Table:
    """Dotted names and values of a record."""
    import pandas as pd

    (entries,) = pd.json_normalize(dict(record)).to_dict("records") or [{}]
    texts = {
        str(name): f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in entries.items()
    }
    whole = code(f"assay show {result.id} --json")
    left = (f"The first {ENTRIES} of {number(len(texts))} entries; all of them with ", whole, ".")
    return Table(
        columns=columns("entry", "value", sort=True),
        rows=[[cut_text(name, 200), cut_text(text)] for name, text in [*texts.items()][:ENTRIES]],
        note=left if len(texts) > ENTRIES else "",
        style="record",
    )
