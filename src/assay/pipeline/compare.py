"""Two stored results beside each other: what both measured, in one table and its page."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.core.errors import InputError
from assay.core.measurement import Measurement
from assay.metrics import difference
from assay.page import text as words
from assay.page.blocks import Cell, Column, Facts, Page, Section, Table
from assay.report.sweep import ROWS, find_result, sweep_rows
from assay.stats import statistic_from_dict
from assay.store import Store, StoredResult


if TYPE_CHECKING:
    import pandas as pd

ENDS = ("value", "low", "high")
COMPONENTS = "components/"  # begins the names of a stored measurement's arrays
Numbers = Mapping[str, Any]  # a number or None under each of ENDS, and the id of its `result`


def compare_frame(store: Store, a: str, b: str) -> "pd.DataFrame":
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
    import pandas as pd

    return pd.DataFrame(compare_rows(store, a, b))


def compare_rows(store: Store, a: str, b: str) -> list[dict[str, Any]]:
    """The rows of `compare_frame`."""
    sides = {"a": _measured(store, a), "b": _measured(store, b)}
    shared = [name for name in sides["a"] if name in sides["b"]]
    if not shared:
        raise InputError(
            f"{a} and {b} have no measurement in common; compare two audits, measurements or sweeps"
        )
    rows = []
    for name in shared:
        numbers = {side: measured[name] for side, measured in sides.items()}
        numbers["difference"] = _difference(store, numbers["a"], numbers["b"])
        ends = {(side, end): values[end] for side, values in numbers.items() for end in ENDS}
        named = {"_".join(each).removesuffix("_value"): value for each, value in ends.items()}
        rows.append({"measure": name, **named})
    return rows


def _measured(store: Store, name: str) -> dict[str, Numbers]:
    """The numbers of a result by the name of what was measured."""
    result = find_result(store, name)
    if result.kind == "sweep":
        rows = sweep_rows(store, result.payload["jobs"])
        return {f"{row['job']}: {row['measure']}": row for row in rows if row["value"] is not None}
    if result.kind == "measurement":
        return {result.payload["name"]: _numbers(result.payload, result.id)}
    records = result.payload.get("measurements") or () if result.kind == "audit" else ()
    return {each["name"]: _numbers(each, each["hash"]) for each in records}


def _numbers(record: Mapping[str, Any], identity: str) -> Numbers:
    interval = record.get("interval") or {}
    ends = {"low": interval.get("low"), "high": interval.get("high")}
    return {"value": record.get("value"), **ends, "result": identity}


def _difference(store: Store, a: Numbers, b: Numbers) -> Numbers:
    """The value of B less that of A, with the paired interval where both are of the same examples."""
    if a["value"] is None or b["value"] is None:
        return dict.fromkeys(ENDS)
    first, second = (_stored(store, each["result"]) for each in (a, b))
    if first is None or second is None or _examples(first) != _examples(second):
        return {"value": b["value"] - a["value"], "low": None, "high": None}
    record = difference(first, second).to_dict()
    return {"value": record["value"], **{end: record["interval"][end] for end in ("low", "high")}}


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
    """The table of `compare_frame` as a page; `rows` are those of `compare_rows` where they are made."""
    rows = compare_rows(store, a, b) if rows is None else rows
    columns = [
        Column(name="measure", sort=True),
        *(Column(name=name, numeric=True, sort=True) for name in ("A", "B", f"B {words.MINUS} A")),
    ]
    cut = "" if len(rows) <= ROWS else f"The first {ROWS:,} of {len(rows):,} rows. "
    table = Table(
        columns=columns,
        rows=[
            [words.cut_text(row["measure"], 200), *(_cell(row, side) for side in ("a", "b", "difference"))]
            for row in rows[:ROWS]
        ],
        caption=f"{cut}Brackets: 95 % intervals over examples, of a difference paired by example; a "
        "difference of results on different examples has none.",
    )
    sides = {"A": _named(find_result(store, a)), "B": _named(find_result(store, b))}
    return Page(
        kind="comparison",
        title=f"{words.cut_text(a, 80)} against {words.cut_text(b, 80)}",
        head=[Facts(facts=[(letter, words.cut_text(text)) for letter, text in sides.items()])],
        sections=[Section(title="What both measured", blocks=[table])],
    )


def _named(result: StoredResult) -> str:
    """What a result is of: kind, model, task, method and size."""
    facts = (result.kind, result.model, result.task, result.method, result.name)
    return f"{', '.join(filter(None, facts))} ({result.id})"


def _cell(row: Mapping[str, Any], side: str) -> Cell:
    value, low, high = row[side], row[f"{side}_low"], row[f"{side}_high"]
    shown, between = words.estimate(value, low, high)
    return Cell(text=shown, below=between, value="" if value is None else value)
