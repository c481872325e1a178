"""Tables of two fields as cells: how much ink each gets, which are grey, outlined or left out."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from assay.page.text import number
from assay.report.tail_words import field_name, significant


LARGEST_SIDE, PRINTED_SIDE = 24, 14  # lines drawn at most, and columns up to which numbers fit into cells
STATISTICS = {"max": "worst", "p99.9": "percentile 99.9", "p99.99": "percentile 99.99"}
SPARSE = 20


def heatmap_cells(found: Mapping[str, Any]) -> dict[str, Any]:
    """Cells of each statistic; of a large table the rows and columns with the largest maxima."""
    rows, row_names = _largest(found["max"], found["rows"])
    columns, column_names = _largest(list(zip(*found["max"], strict=True)), found["columns"])
    panels: list[dict[str, Any]] = []
    for name, title in STATISTICS.items():
        if name not in found:
            continue
        table = found[name]
        picked = [[_finite(table[row][column]) for column in columns] for row in rows]
        known = [value for row in picked for value in row if value is not None]
        if not known:
            continue
        low, high = min(known), max(known)
        panels.append(
            {
                "title": title,
                "rows": [
                    {
                        "name": row_names[place],
                        "cells": [
                            _cell(found, row, column, value, low, high)
                            for column, value in zip(columns, picked[place], strict=True)
                        ],
                    }
                    for place, row in enumerate(rows)
                ],
            }
        )
    cut = [
        f"{len(kept)} of {len(all_)} values of {field_name(str(field))}"
        for kept, all_, field in (
            (rows, found["rows"], found["rows_field"]),
            (columns, found["columns"], found["columns_field"]),
        )
        if len(kept) < len(all_)
    ]
    cells = [cell for panel in panels for row in panel["rows"] for cell in row["cells"]]
    exponent = _exponent(max((cell["value"] or 0.0 for cell in cells), default=0.0))
    printed = len(columns) <= PRINTED_SIDE
    return {
        "exponent": str(exponent) if exponent else "",
        "scale": 10.0**exponent,
        "row_title": field_name(str(found["rows_field"])),
        "column_title": field_name(str(found["columns_field"])),
        "columns": column_names,
        "panels": panels if printed else panels[:1],
        "folded": [] if printed else panels[1:],
        "cut": " and ".join(cut),
        "printed": printed,
        "n_significant": sum(bool(each) for row in found.get("significant") or () for each in row),
        "n_sparse": sum(
            each < SPARSE
            for row in found.get("n_inputs") or ()
            for each in row
            if each is not None and each > 0
        ),
        "n_cells": len(found["rows"]) * len(found["columns"]),
    }


def _exponent(largest: float) -> int:
    """Power of ten to print cells in: two digits before the point for the largest; 0 from 1 to 1000."""
    return 0 if largest == 0 or 1 <= largest < 1000 else math.floor(math.log10(largest)) - 1


def _largest(table: Sequence[Sequence[float | None]], names: Sequence[Any]) -> tuple[list[int], list[str]]:
    """Which lines of a table to show: all in order, or those with the largest entries, largest first."""
    kept = list(range(len(names)))
    if len(kept) > LARGEST_SIDE:
        reach = [
            max((value for value in map(_finite, line) if value is not None), default=-math.inf)
            for line in table
        ]
        kept = sorted(kept, key=lambda place: -reach[place])[:LARGEST_SIDE]
    return kept, [str(names[place]) for place in kept]


def _cell(
    found: Mapping[str, Any], row: int, column: int, value: float | None, low: float, high: float
) -> dict[str, Any]:
    def at(name: str) -> Any:
        return found[name][row][column] if name in found else None

    n_inputs, q_value = at("n_inputs"), at("q_value")
    sparse = n_inputs is not None and n_inputs < SPARSE
    facts = [f"{found['rows'][row]}, {found['columns'][column]}"]
    if value is None:
        facts.append("no pairs")
    else:
        facts.append(f"{significant(value)}, n = {number(at('n'))}")
        facts += [f"{number(n_inputs)} inputs"] if n_inputs is not None else []
        facts += [f"q = {number(q_value)}"] if q_value is not None else []
    share = 0.0 if value is None or high == low else (value - low) / (high - low)
    return {
        "value": value,
        "ink": round(6 + 84 * share),
        "sparse": sparse,
        "significant": bool(at("significant")) and value is not None,
        "title": "; ".join(facts),
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
