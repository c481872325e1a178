"""Which prompts are hard: the tests of field values and the divergence by two fields, as blocks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assay.analyses.worst_case.page_words import field_name, field_sentence, significant, trend_sentence
from assay.page.blocks import Block, Cell, Details, Figure, Note, Row, Section, Table, columns, heat_map
from assay.page.text import MINUS, Span, Text, bold, number, percent, quiet


SPARSE = 20  # inputs below which a value or a cell is marked
OPEN_TESTS, LISTED_TESTS = 8, 120  # values that are open at least, and listed at most
LARGEST_SIDE, PRINTED_SIDE = 24, 14  # lines drawn at most, and columns up to which numbers fit into cells
LEAST_INK, INK_RANGE, DEEP = 6, 84, 55  # per cent of full colour; above `DEEP` the number is set in paper
PANELS = {"max": "worst", "p99.9": "percentile 99.9", "p99.99": "percentile 99.99"}


def field_blocks(
    fields: Mapping[str, Any], unit: str, what: str = "pairs", of: str = "prompt"
) -> list[Block]:
    """Values whose pairs are worse than others, and a heat map for each pair of fields."""
    tests = list(fields.get("tests") or ())
    sentences = (field_sentence(tests, what, of), trend_sentence(fields.get("trends") or (), of))
    return [
        Note(text=" ".join(filter(None, sentences))),
        *([_tests(tests, unit, what, of)] if tests else []),
        *(_heat_figure(each, unit) for each in fields.get("heatmaps") or ()),
    ]


def _tests(tests: Sequence[Mapping[str, Any]], unit: str, what: str, of: str) -> Figure:
    """What is shown at once, the significant values and then those with enough inputs, and what is folded."""
    worse = [test for test in tests if test["significant"]]
    dense = [test for test in tests if not test["significant"] and test["n_inputs"] >= SPARSE]
    first = (worse + dense[: max(0, OPEN_TESTS - len(worse))])[:LISTED_TESTS]
    taken = {id(test) for test in first}
    rest = [test for test in tests if id(test) not in taken]
    filled = max(0, OPEN_TESTS // 2 - len(first))
    blocks: list[Block] = [_tests_table(first + rest[:filled], unit, what)]
    if folded := rest[filled : LISTED_TESTS - len(first)]:
        summary = f"{len(folded)} more of {len(tests)} values"
        blocks.append(Details(summary=summary, blocks=[_tests_table(folded, unit, what)]))
    return Figure(
        blocks=blocks,
        caption=f"Field values whose {what} lie above the pooled 99th percentile more often than all "
        f"{what} do. "
        f"p: values reassigned to {of}s at random{' (not to pairs)' * (what == 'pairs')} reach the same "
        "share; q: "
        "Benjamini-Hochberg over the values of a field; worse: q at most 0.05.",
        kind="Table",
    )


def _tests_table(tests: Sequence[Mapping[str, Any]], unit: str, what: str) -> Table:
    return Table(
        columns=[
            *columns("field", "value", sort=True),
            *columns(
                "inputs", "pairs" if what == "pairs" else "draws", f"mean, {unit}", numeric=True, sort=True
            ),
            *columns("above the pooled 99th percentile", "p", "q", numeric=True, sort=True),
            *columns("finding", sort=True),
        ],
        rows=[
            Row(
                cells=[
                    _field(test),
                    Cell(text=str(test["value"]), style="value"),
                    _sorted(test["n_inputs"], number(test["n_inputs"])),
                    _sorted(test["n_pairs"], number(test["n_pairs"])),
                    _sorted(test["mean"], significant(test["mean"])),
                    _sorted(test["exceed"], percent(test["exceed"])),
                    _sorted(test["p_value"], number(test["p_value"], 3)),
                    _sorted(test["q_value"], number(test["q_value"], 3)),
                    (
                        bold("worse") if test["significant"] else "",
                        quiet(" few inputs") if test["n_inputs"] < SPARSE else "",
                    ),
                ],
                style="found" if test["significant"] else "",
            )
            for test in tests
        ],
        style="field-tests",
        named=False,
    )


def _field(test: Mapping[str, Any]) -> Text:
    others = [field_name(str(alias)) for alias in test.get("aliases") or ()]
    return (field_name(str(test["field"])), quiet(f" also {', '.join(others)}") if others else "")


def _sorted(value: float | int | None, text: str) -> Cell:
    return Cell(text=text, value="" if value is None else value)


# ---------------------------------------------------------------------------------------------- two fields


def _heat_figure(table: Mapping[str, Any], unit: str) -> Figure:
    """Cells of each statistic; of a large table the rows and columns with the largest maxima."""
    maxima = _values(table, "max")
    rows, columns = _largest_lines(maxima), _largest_lines(maxima.T)
    panels = {name: _values(table, name)[np.ix_(rows, columns)] for name in PANELS if name in table}
    panels = {name: values for name, values in panels.items() if np.isfinite(values).any()}
    printed = len(columns) <= PRINTED_SIDE
    largest = max((float(np.nanmax(values)) for values in panels.values()), default=0.0)
    exponent = _exponent(largest) if printed else 0
    maps = [
        heat_map(
            PANELS[name],
            corner=" \\ ".join(field_name(str(table[key])) for key in ("rows_field", "columns_field")),
            names=[str(table["columns"][column]) for column in columns],
            rows=_heat_rows(table, rows, columns, values, scale=10.0**exponent if printed else None),
            style="" if printed else "fine",
        )
        for name, values in panels.items()
    ]
    blocks: list[Block] = [Section(blocks=maps if printed else maps[:1], style="panels")]
    if maps[1:] and not printed:
        titles = " and ".join(PANELS[name] for name in list(panels)[1:])
        blocks.append(
            Details(summary=f"The same for {titles}", blocks=[Section(blocks=maps[1:], style="panels")])
        )
    return Figure(blocks=blocks, caption=_heat_caption(table, len(rows), len(columns), exponent, unit))


def _values(table: Mapping[str, Any], name: str) -> np.ndarray:
    """A statistic as `[rows, columns]`, NaN where it is undefined."""
    values = np.array(table[name], dtype=float)
    return np.where(np.isfinite(values), values, np.nan)


def _largest_lines(values: np.ndarray) -> list[int]:
    """Which rows of a table to show: all in order, or those with the largest entries, largest first."""
    if len(values) <= LARGEST_SIDE:
        return list(range(len(values)))
    reach = np.nan_to_num(values, nan=-math.inf).max(axis=1)
    return [int(row) for row in np.argsort(-reach, kind="stable")[:LARGEST_SIDE]]


def _exponent(largest: float) -> int:
    """Power of ten to print cells in: two digits before the point for the largest; 0 from 1 to 1000."""
    return 0 if largest <= 0 or 1 <= largest < 1000 else math.floor(math.log10(largest)) - 1


def _heat_rows(
    table: Mapping[str, Any],
    rows: Sequence[int],
    columns: Sequence[int],
    values: np.ndarray,
    *,
    scale: float | None,
) -> list[list[Cell | Text]]:
    """Cells with ink from the least to the largest; `scale` is the unit of the numbers printed in them."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    spread = (values - low) / (high - low) if high > low else np.zeros_like(values)
    inks = np.round(LEAST_INK + INK_RANGE * np.nan_to_num(spread))

    def cell(place: tuple[int, int]) -> Cell:
        row, column, value, ink = rows[place[0]], columns[place[1]], float(values[place]), int(inks[place])
        n, n_inputs, q_value, worse = (
            table[name][row][column] if name in table else None
            for name in ("n", "n_inputs", "q_value", "significant")
        )
        defined, sparse = math.isfinite(value), n_inputs is not None and n_inputs < SPARSE
        facts = [f"{table['rows'][row]}, {table['columns'][column]}"]
        if defined:
            facts.append(f"{significant(value)}, n = {number(n)}")
            facts += [f"{number(n_inputs)} inputs"] if n_inputs is not None else []
            facts += [f"q = {number(q_value)}"] if q_value is not None else []
        else:
            facts.append("no pairs")
        styles = {
            "none": not defined,
            "sparse": sparse,
            "found": worse and defined,
            "deep": ink > DEEP and not sparse,
        }
        return Cell(
            text=f"{value / scale:.1f}" if defined and scale else "",
            ink=ink,
            style=" ".join(name for name, holds in styles.items() if holds),
            title="; ".join(facts),
        )

    return [
        [str(table["rows"][row]), *(cell((at, column)) for column in range(len(columns)))]
        for at, row in enumerate(rows)
    ]


def _heat_caption(table: Mapping[str, Any], n_rows: int, n_columns: int, exponent: int, unit: str) -> Text:
    row_field, column_field = (field_name(str(table[key])) for key in ("rows_field", "columns_field"))
    caption: list[Text] = [f"Divergence by {row_field} (rows) and {column_field} (columns), "]
    if exponent:
        caption += ["in units of 10", Span(str(exponent).replace("-", MINUS), "sup"), " "]
    caption.append(f"{unit}; darker means larger, from the smallest to the largest cell of each panel.")
    cuts = [
        f"{shown} of {len(names)} values of {field}"
        for shown, names, field in (
            (n_rows, table["rows"], row_field),
            (n_columns, table["columns"], column_field),
        )
        if shown < len(names)
    ]
    if cuts:
        caption.append(f" Shown: the {' and '.join(cuts)} with the largest maxima.")
    inputs = [n for row in table.get("n_inputs") or () for n in row if n is not None]
    if n_sparse := sum(0 < n < SPARSE for n in inputs):
        n_cells = len(table["rows"]) * len(table["columns"])
        caption.append(
            f" Grey: fewer than {SPARSE} distinct inputs ({n_sparse} of {n_cells} cells); the maximum of a "
            "cell grows with its number of pairs."
        )
    n_worse = sum(bool(each) for row in table.get("significant") or () for each in row)
    caption.append(
        f" Outlined: cells significantly above the pooled 99th percentile ({n_worse})."
        if n_worse
        else " No cell lies above the pooled 99th percentile significantly more often than all do."
    )
    return caption
