"""Two stored results beside each other: what both measured, in one table and its page."""

from collections.abc import Mapping, Sequence
from typing import Any

from assay.core.errors import InputError
from assay.core.measurement import Measurement
from assay.metrics import difference
from assay.page import text as words
from assay.page.blocks import Cell, Column, Facts, Page, Section, Table, columns
from assay.report.sweep import ROWS, find_result, sweep_rows
from assay.stats import statistic_from_dict
from assay.store import Store, StoredResult


NO_ENDS = {"low": None, "high": None}
COMPONENTS = "components/"  # begins the names of a stored measurement's arrays
Numbers = Mapping[str, Any]  # `value`, `low` and `high`, each a number or None, and the id of its `result`


def compare_rows(store: Store, a: str, b: str) -> list[dict[str, Any]]:
    """What two audits, measurements or sweeps both measured.

    Args:
        store: Where they are.
        a: Id, or its beginning, or the name of a sweep.
        b: The other.

    Returns:
        A row per measure, with the value and the ends of the 95 % interval of each side (`a`, `a_low`,
        `a_high`, `b`, ...) and of `difference`, the value of B less that of A. The interval of the difference
        is paired, as by `assay.compare`, and None where the two are not of the same examples. Jobs of two
        sweeps meet by name.

    Raises:
        InputError: If the two have no measurement in common.
        UnknownNameError: For an id or name that the store does not have.
    """
    first, second = (_measured(store, find_result(store, name)) for name in (a, b))
    if not first.keys() & second.keys():
        raise InputError(f"{a} and {b} have no measurement in common; give audits, measurements or sweeps")
    rows = []
    for name in (name for name in first if name in second):
        sides = {"a": first[name], "b": second[name]}
        row = {"measure": name}
        for side, numbers in (sides | {"difference": _difference(store, **sides)}).items():
            row |= {side: numbers["value"], f"{side}_low": numbers["low"], f"{side}_high": numbers["high"]}
        rows.append(row)
    return rows


def _measured(store: Store, result: StoredResult) -> dict[str, Numbers]:
    """The numbers of a result by the name of what was measured."""
    if result.kind == "sweep":
        rows = sweep_rows(store, result.payload["jobs"])
        return {f"{row['job']}: {row['measure']}": row for row in rows if row["value"] is not None}
    of_audit = filter(None, [*result.payload.get("measurements", ()), result.payload.get("distribution")])
    records = {"measurement": [result.payload], "audit": of_audit}.get(result.kind)
    numbers = dict[str, Numbers]()
    for each in records or ():
        ends = NO_ENDS | (each.get("interval") or {})
        numbers[each["name"]] = {"value": each.get("value"), "result": each.get("hash", result.id), **ends}
    return numbers


def _difference(store: Store, a: Numbers, b: Numbers) -> Numbers:
    """The value of B less that of A, with the paired interval where both are of the same examples."""
    if a["value"] is None or b["value"] is None:
        return {"value": None, **NO_ENDS}
    first, second = (_stored(store, each["result"]) for each in (a, b))
    if first is None or second is None or _examples(first) != _examples(second):
        return {"value": b["value"] - a["value"], **NO_ENDS}
    record = difference(first, second).to_dict()
    return {"value": record["value"], **record["interval"]}


def _stored(store: Store, identity: str) -> Measurement | None:
    """A measurement with the components that the store holds; None where it holds none."""
    if not store.has(identity) or (result := store.get(identity)).kind != "measurement":
        return None
    record, stored = result.payload, result.arrays.items()
    arrays = {name.removeprefix(COMPONENTS): each.numpy() for name, each in stored if COMPONENTS in name}
    if not arrays or not record.get("statistic"):
        return None
    return Measurement(
        **{name: record[name] for name in ("id", "name", "value", "n", "n_excluded", "unit", "seed")},
        components=arrays,
        statistic=statistic_from_dict(record["statistic"]),
        provenance=result.provenance,
    )


def _examples(measurement: Measurement) -> tuple[Any, ...]:
    """What tells whether two measurements are of the same examples, row by row."""
    task = measurement.provenance["task"]
    return measurement.name, task["data_hash"], {len(each) for each in measurement.components.values()}


def compare_page(store: Store, a: str, b: str, rows: Sequence[Mapping[str, Any]] | None = None) -> Page:
    """The table of `compare_rows` as a page; `rows` are these where they are made."""
    rows = compare_rows(store, a, b) if rows is None else rows
    names = ("A", "B", f"B {words.MINUS} A")
    cut = "" if len(rows) <= ROWS else f"The first {ROWS:,} of {len(rows):,} rows. "
    table = Table(
        columns=[Column(name="measure", sort=True), *columns(*names, numeric=True, sort=True)],
        rows=[
            [words.cut_text(row["measure"], 200), *(_cell(row, side) for side in ("a", "b", "difference"))]
            for row in rows[:ROWS]
        ],
        caption=f"{cut}Brackets: 95 % intervals over examples, of a difference paired by example; a "
        "difference of results on different examples has none.",
    )
    facts: list[tuple[str, words.Text]] = []
    for letter, result in (("A", find_result(store, a)), ("B", find_result(store, b))):
        of = filter(None, (result.kind, result.model, result.task, result.method, result.name))
        facts.append((letter, words.cut_text(f"{', '.join(of)} ({result.id})")))
    return Page(
        kind="comparison",
        title=f"{words.cut_text(a, 80)} against {words.cut_text(b, 80)}",
        head=[Facts(facts=facts)],
        sections=[Section(title="What both measured", blocks=[table])],
    )


def _cell(row: Mapping[str, Any], side: str) -> Cell:
    value, low, high = row[side], row[f"{side}_low"], row[f"{side}_high"]
    shown, between = words.estimate(value, low, high)
    return Cell(text=shown, below=between, value="" if value is None else value)
