"""Two results beside each other: what both measured, in one table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from assay.core.errors import InputError
from assay.page import text as words
from assay.page.blocks import Cell, Column, Page, Section, Table
from assay.report.sweep import ROWS, named_sweep, sweep_rows
from assay.store import Store


if TYPE_CHECKING:
    import pandas as pd

ENDS = ("value", "low", "high")
Numbers = Mapping[str, Any]  # with a number or None under each of ENDS


def compare_frame(store: Store, a: str, b: str) -> "pd.DataFrame":
    """What two audits, measurements or sweeps both measured.

    Args:
        store: Where they are.
        a: Id, or its beginning, or the name of a sweep.
        b: The other.

    Returns:
        A row per measure, with the value and the ends of the 95 % interval of each side (`a`, `a_low`,
        `a_high`, `b`, ...) and `difference`, the value of B less that of A. Jobs of two sweeps meet by name.

    Raises:
        InputError: If the two have no measurement in common.
        UnknownNameError: For an id or name that the store does not have.
    """
    import pandas as pd

    return pd.DataFrame(_joined(store, a, b))


def _joined(store: Store, a: str, b: str) -> list[dict[str, Any]]:
    sides = {"a": _measured(store, a), "b": _measured(store, b)}
    shared = [name for name in sides["a"] if name in sides["b"]]
    if not shared:
        raise InputError(
            f"{a} and {b} have no measurement in common; compare two audits, measurements or sweeps"
        )
    rows: list[dict[str, Any]] = []
    for name in shared:
        row: dict[str, Any] = {"measure": name}
        for side, measured in sides.items():
            row |= {side if end == "value" else f"{side}_{end}": measured[name][end] for end in ENDS}
        undefined = row["a"] is None or row["b"] is None
        rows.append({**row, "difference": None if undefined else row["b"] - row["a"]})
    return rows


def _measured(store: Store, given: str) -> dict[str, Numbers]:
    """The numbers of a result by the name of what was measured."""
    found = named_sweep(store, given) or store.get(given)
    if found.kind == "sweep":
        rows = sweep_rows(store, found.payload["jobs"])
        return {f"{row['job']}: {row['measure']}": row for row in rows if row["value"] is not None}
    records = {"audit": found.payload.get("measurements"), "measurement": [found.payload]}
    return {each["name"]: _numbers(each) for each in records.get(found.kind) or ()}


def _numbers(record: Mapping[str, Any]) -> Numbers:
    interval = record.get("interval") or {}
    return {"value": record.get("value"), "low": interval.get("low"), "high": interval.get("high")}


def compare_page(store: Store, a: str, b: str) -> Page:
    """The table of `compare_frame` as a page."""
    columns = [
        Column(name="measure", sort=True),
        *(Column(name=name, numeric=True, sort=True) for name in ("A", "B", f"B {words.MINUS} A")),
    ]
    rows = _joined(store, a, b)
    cut = "" if len(rows) <= ROWS else f"The first {ROWS:,} of {len(rows):,} rows. "
    table = Table(
        columns=columns,
        rows=[[words.cut_text(row["measure"], 200), *_cells(row)] for row in rows[:ROWS]],
        caption=f"{cut}Brackets: 95 % intervals over examples. The difference has no interval here.",
    )
    return Page(
        kind="comparison",
        title=f"{words.cut_text(a, 80)} against {words.cut_text(b, 80)}",
        sections=[Section(title="What both measured", blocks=[table])],
    )


def _cells(row: Mapping[str, Any]) -> list[Cell]:
    found = []
    for side in ("a", "b"):
        shown, between = words.estimate(row[side], row[f"{side}_low"], row[f"{side}_high"])
        found.append(Cell(text=shown, below=between, value="" if row[side] is None else row[side]))
    difference = row["difference"]
    return [*found, Cell(text=words.number(difference), value="" if difference is None else difference)]
