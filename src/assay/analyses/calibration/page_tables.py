"""The numbers behind a gate as tables: whatever its verdict lists by name, by head or row by row.

Entries of `details` under the same names, or lists of the same length, stand side by side in one table.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.analyses.calibration.names import circuit_heads, claim_name, head_name
from assay.page.blocks import Block, Cell, Column, Facts, Note, Table, heat_map
from assay.page.text import Text, interval, number, p_value


Record = Mapping[str, Any]

LISTED_ROWS, LISTED_TASKS = 30, 12
NAMES = {
    "auroc": "AUROC",
    "auroc_p": "AUROC, p",
    "brown_forsythe_p": "Brown-Forsythe p",
    "by": "Benjamini-Yekutieli",
    "bh": "Benjamini-Hochberg",
    "chi_square": "χ²",
    "d_prime": "d′",
    "e_bh": "e-BH",
    "epsilon_squared": "ε²",
    "eta_squared": "η²",
    "expected_eta_squared": "η² by chance",
    "icc_2_1": "ICC(2,1)",
    "icc_2_k": "ICC(2,k)",
    "kruskal_wallis_p": "Kruskal-Wallis p",
    "m": "results tested",
    "n_nominal": "p below 0.05",
    "n_survivors": "claims that survive",
    "omega_squared": "ω²",
    "p_chi_square": "χ², p",
    "pairs": "rank correlation",
    "rho_top": "among the best",
    "w": "W",
    "welch_f": "Welch’s F",
    "welch_p": "Welch’s p",
}
Columns = dict[str, Sequence[Any]]


def numbers(gate: Record, document: Record) -> Iterator[Block]:
    """Everything that a gate computed."""
    details = gate["verdict"].get("details") or {}
    if details.get("matrix") and details.get("tasks"):
        yield _heat(details)
    yield from tables(details, document)
    if facts := _facts(gate["verdict"]):
        yield Note(text="Numbers and limits", style="heading")
        yield Facts(facts=facts)


def tables(details: Record, document: Record) -> list[Table]:
    """Mappings of the same names, lists of the same length and lists of records, a table each."""
    by_name: dict[tuple[str, ...], Columns] = {}
    by_place: dict[int, Columns] = {}
    found = []
    entries = dict(details)
    for value in details.values():  # of heads: {statistic: [one per head]}
        if isinstance(value, Mapping) and value and all(isinstance(each, list) for each in value.values()):
            entries |= value
    for name, value in entries.items():
        if _is_interval(value):
            continue
        if isinstance(value, Mapping) and len(value) > 1 and all(map(_fits_a_cell, value.values())):
            by_name.setdefault(tuple(map(str, value)), {})[name] = list(value.values())
        elif (
            isinstance(value, Mapping) and value and all(isinstance(each, Mapping) for each in value.values())
        ):
            found.append(_records([{"": claim_name(key), **each} for key, each in value.items()]))
        elif isinstance(value, list) and len(value) > 1 and all(isinstance(each, Mapping) for each in value):
            found.append(_records(value))
        elif isinstance(value, list) and len(value) > 1 and all(map(_fits_a_cell, value)):
            by_place.setdefault(len(value), {})[name] = value
    for n, columns in by_place.items():
        if all(isinstance(each, str) for values in columns.values() for each in values):
            continue  # names of what stands elsewhere
        named = next((names for names in by_name if len(names) == n), None)
        if named is None:
            found.append(_table(_row_names(n, columns, document), columns))
        else:
            by_name[named] |= columns
    found += [_table(list(map(claim_name, names)), columns) for names, columns in by_name.items()]
    return found


def _records(rows: Sequence[Record]) -> Table:
    keys = [
        key for key in dict.fromkeys(key for row in rows for key in row) if _fits_a_cell(rows[0].get(key))
    ]
    first, *others = keys or [""]
    columns: Columns = {key: [row.get(key) for row in rows] for key in others}
    return _table([claim_name(row.get(first, "")) for row in rows], columns, corner=first)


def _table(names: Sequence[str], columns: Columns, *, corner: str = "") -> Table:
    """A column of names and one for each entry, cut to a bounded number of rows."""
    shown = {key: _formats(key, values) for key, values in columns.items()}
    return Table(
        columns=[Column(name=_plain(corner)), *(Column(name=_plain(key), numeric=True) for key in shown)],
        rows=[
            [name, *(show(columns[key][at]) for key, show in shown.items())]
            for at, name in enumerate(names[:LISTED_ROWS])
        ],
        left=max(0, len(names) - LISTED_ROWS),
        style="gate-table",
    )


def _row_names(n: int, columns: Columns, document: Record) -> list[str]:
    """Heads where there is one value for each of the circuit, of those in `columns`, or of the model."""
    heads, circuit, model = (
        circuit_heads(document),
        document.get("circuit") or {},
        document.get("model") or {},
    )
    if "columns" in columns:
        return [head_name(int(at), heads) for at in columns.pop("columns")]
    if n == len(heads):
        return [head_name(at, heads) for at in range(n)]
    if n == circuit.get("n_heads"):
        return [f"a{at // model['n_heads']}.h{at % model['n_heads']}" for at in range(n)]
    return [str(at + 1) for at in range(n)]


def _fits_a_cell(value: Any) -> bool:
    return not isinstance(value, list | Mapping) or _is_interval(value)


def _is_interval(value: Any) -> bool:
    return isinstance(value, Mapping) and {"low", "high"} <= set(value)


def _formats(key: str, values: Sequence[Any]) -> Callable[[Any], str]:
    """How a column is written: p-values to their own digits, whole numbers whole."""
    p = key == "p" or key.endswith(("_p", "p_values"))

    def show(value: Any) -> str:
        if isinstance(value, Mapping):
            return interval(value.get("low"), value.get("high"))
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, str):
            return value
        if not _known(value):
            return ""
        return p_value(value) if p else number(value, 3)

    return show


def _known(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _heat(details: Record) -> Table:
    """The effects of each task's circuit on each task."""
    matrix, tasks, z = details["matrix"], list(map(str, details["tasks"])), details.get("z") or []
    names = tasks[:LISTED_TASKS]
    largest = max((abs(each) for row in matrix for each in row if _known(each)), default=0.0)

    def cell(row: int, column: int) -> Cell:
        value, apart = matrix[row][column], z[row][column] if row < len(z) else None
        share = abs(value) / largest if _known(value) and largest > 0 else 0.0
        beside = (
            f"; {number(apart, 1)} standard deviations from as many random heads" if _known(apart) else ""
        )
        sign = "minus" if _known(value) and value < 0 else "plus"
        return Cell(
            text=number(value) if _known(value) else "",
            ink=round(6 + 74 * share),
            style=sign + (" deep" if share > 0.7 else "") + (" found" if row == column else ""),
            title=f"circuit of {names[row]}, effect on {names[column]}: {number(value)}{beside}",
        )

    rows: list[list[Cell | Text]] = [
        [name, *(cell(row, column) for column in range(len(names)))] for row, name in enumerate(names)
    ]
    title = "Mean effect of each circuit on each task"
    table = heat_map(title, corner="circuit \\ task", names=names, rows=rows, style="effects")
    note = "Outlined: a circuit on its own task, which should be far larger than the rest of its row."
    return replace(table, note=note, left=len(tasks) - len(names))


def _facts(verdict: Record) -> list[tuple[str, Text]]:
    """Every number of a verdict by name, then its limits."""
    values, limits = verdict.get("values") or {}, verdict.get("thresholds") or {}
    return [
        *((_plain(name), _fact(each)) for name, each in values.items()),
        *((f"limit: {_plain(name)}", _fact(each)) for name, each in limits.items() if each is not None),
    ]


def _plain(name: str) -> str:
    return NAMES.get(name) or NAMES.get(name.removeprefix("n_")) or name.replace("_", " ")


def _fact(value: Any) -> str:
    if not _known(value):
        return "undefined"
    return number(int(value)) if value == int(value) else number(float(value), 3)
