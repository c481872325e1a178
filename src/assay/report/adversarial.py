"""A worst case as a page: its document made into rows, cells and pictures for the template."""

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from matplotlib import rc_context
from matplotlib.figure import Figure

from assay.errors import InputError, OutputError
from assay.measurement import plain
from assay.report import figures, tail_figures, tail_words
from assay.report.words import number


KIND, SCHEMA = "worst_case", "assay-worst-case/1"
REQUIRED = (
    "protocol",
    "independent",
    "n_pairs",
    "n_clean",
    "n_corrupted",
    "model",
    "task",
    "circuit",
    "unit",
    "divergence",
    "summary",
    "histogram",
    "certificates",
    "worst",
)
# Bounds of the page: what is open, what is folded away, and the largest table of cells.
OPEN_PAIRS, LISTED_PAIRS = 8, 40
OPEN_TESTS, LISTED_TESTS = 8, 120
LARGEST_SIDE, PRINTED_SIDE = 24, 14
LISTED_ITEMS, NESTED = 12, 3
STATISTICS = {"max": "worst", "p99.9": "percentile 99.9", "p99.99": "percentile 99.99"}
SPARSE = 20
Document = Mapping[str, Any]


@runtime_checkable
class HasRecord(Protocol):
    """A result that can write itself down, such as a `WorstCase`."""

    def to_dict(self) -> dict[str, Any]:
        """Its document, plain JSON."""


def is_worst_case(document: object) -> bool:
    """Whether a document is that of a worst case."""
    return isinstance(document, Mapping) and document.get("kind") == KIND


def worst_case_document(worst: HasRecord | Document) -> Document:
    """The document of a worst case, complete.

    Args:
        worst: What `assay.worst_case` returned, or what its `to_dict` gave.

    Raises:
        InputError: Something else, or a document that lacks a part.
    """
    document = worst if isinstance(worst, Mapping) else worst.to_dict()
    if not is_worst_case(document):
        raise InputError(
            f"a worst case is needed, as `assay.worst_case` returns it; got kind {document.get('kind')!r}"
        )
    if document.get("schema") != SCHEMA:
        raise InputError(
            f"this worst case has schema {document.get('schema')!r}; this version reads {SCHEMA!r}: "
            "run `assay attack` again to make one"
        )
    missing = [key for key in REQUIRED if key not in document]
    if missing:
        raise InputError(f"the worst-case document lacks {', '.join(missing)}; it is incomplete")
    return document


def save_histogram(path: str | os.PathLike[str], worst: HasRecord | Document) -> Path:
    """Write the histogram of a worst case, with percentiles and certified bounds, as a picture.

    Args:
        path: Ends in `.png` or `.svg`.
        worst: What `assay.worst_case` returned, or its document.

    Returns:
        The path written.

    Raises:
        InputError: Another ending, or something that is no worst case.
        OutputError: The file cannot be written.
    """
    path = Path(path)
    kind = path.suffix.lstrip(".").lower()
    if kind not in ("png", "svg"):
        raise InputError(f"pictures are written as .png or .svg; got {path.name!r}")
    figure = tail_figures.draw_tail(tail_figures.tail_data(worst_case_document(worst))).get_figure()
    assert isinstance(figure, Figure)
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    try:
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tail"}):
            figure.savefig(path, dpi=150, facecolor=figures.PAPER, metadata=metadata)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another place") from error
    return path


def worst_case_view(document: Document, key: str) -> dict[str, Any]:
    """Everything the template of a worst case needs."""
    document = worst_case_document(document)
    document = {**document, "unit": tail_words.unit_of(document)}
    fields = document.get("fields") or {}
    tests = list(fields.get("tests") or ())
    pairs = [_pair(each) for each in document["worst"][:LISTED_PAIRS]]
    first, later = _open_tests(tests)
    counts = document["histogram"]["counts"]
    model, task = document["model"].get("id", "a model"), document["task"].get("name", "its task")
    return {
        "key": key,
        "kind": KIND,
        "worst": document,
        "title": f"A circuit of {model} at its worst on {task}",
        "verdict": tail_words.tail_verdict(document),
        "caveats": tail_words.tail_caveats(document),
        "protocol": tail_words.protocol_sentence(document),
        "quantity": tail_words.DIVERGENCES.get(document["divergence"], document["divergence"]),
        "histogram": figures.to_svg(
            tail_figures.draw_tail(tail_figures.tail_data(document)),
            key=f"{key}-tail",
            label="Histogram of the divergence of circuit and empty circuit, with percentiles; the numbers "
            "are in the table.",
        ),
        "first_bin": counts[0] / max(sum(counts), 1),
        "percentiles": _percentile_rows(document),
        "counted": tail_words.counted(document),
        "certificates": [
            _certificate_row(each, tail_words.counted(document)) for each in document["certificates"]
        ],
        "no_certificate": tail_words.no_certificate(document),
        "field_sentence": tail_words.field_sentence(tests),
        "tests": first,
        "more_tests": later,
        "n_tests": len(tests),
        "heatmaps": [_heatmap(each) for each in fields.get("heatmaps") or ()],
        "pairs": pairs[:OPEN_PAIRS],
        "more_pairs": pairs[OPEN_PAIRS:],
        "n_pairs_left": max(0, len(document["worst"]) - LISTED_PAIRS),
        "inputs": {side: list(document.get(f"worst_{side}") or ()) for side in ("clean", "corrupted")},
        "extras": [
            {"title": title, "note": note, "parts": _parts(document[name])}
            for name, title, note in EXTRAS
            if document.get(name)
        ],
        "record": json.dumps(plain(document.get("provenance") or {}), indent=2, sort_keys=True),
    }


EXTRAS = (
    (
        "search",
        "What search found",
        "Pairs that were looked for, not drawn: they bound the maximum from below and play no part in the "
        "percentiles and certificates above.",
    ),
    (
        "outside",
        "Inputs from outside the grammar",
        "These prompts are not of the kind that was sampled: no number above speaks of them.",
    ),
    (
        "explanation",
        "What the circuit lacks",
        "Shares of the worst pairs’ divergence that single missing edges would take away, by integrating the "
        "gradient along the path from the circuit to the whole model.",
    ),
)


# ------------------------------------------------------------------------------------------------- its parts


def _percentile_rows(document: Document) -> list[dict[str, Any]]:
    absolute, z = document["summary"]["absolute"], document["summary"].get("z") or {}
    anchor = (document.get("anchor") or {}).get("absolute") or {}
    names = {"mean": "mean", "std": "standard deviation", "min": "least", "p50": "median", "max": "worst"}
    rows = []
    for name, value in absolute.items():
        if name == "count":
            continue
        made = None
        if name.startswith("p"):
            made = tail_figures.sound_certificate(document, float(name[1:]) / 100)
        rows.append(
            {
                "name": names.get(name, f"percentile {name[1:]}"),
                "value": value,
                "z": z.get(name),
                "bound": None if made is None else made["bound"],
                "n_needed": made["n_needed"] if made and made["bound"] is None else None,
                "anchor": anchor.get(name),
            }
        )
    return rows


def _certificate_row(made: Mapping[str, Any], of: str) -> dict[str, Any]:
    return {
        **made,
        "name": f"{100 * made['percentile']:g}",
        "how": tail_words.METHODS.get(made["method"], made["method"]),
        "note": tail_words.certificate_note(made, of),
    }


def _open_tests(tests: list[Mapping[str, Any]]) -> tuple[list[Any], list[Any]]:
    """What is shown at once, the significant values and then those with enough inputs, and what is folded."""
    significant = [each for each in tests if each["significant"]]
    dense = [each for each in tests if not each["significant"] and each["n_inputs"] >= SPARSE]
    first = (significant + dense[: max(0, OPEN_TESTS - len(significant))])[:LISTED_TESTS]
    taken = {id(each) for each in first}
    rest = [each for each in tests if id(each) not in taken]
    filled = max(0, OPEN_TESTS // 2 - len(first))
    return first + rest[:filled], rest[filled : LISTED_TESTS - len(first)]


def _heatmap(found: Mapping[str, Any]) -> dict[str, Any]:
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
        f"{len(kept)} of {len(all_)} values of {tail_words.field_name(str(field))}"
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
        "row_title": tail_words.field_name(str(found["rows_field"])),
        "column_title": tail_words.field_name(str(found["columns_field"])),
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
        facts.append(f"{tail_words.significant(value)}, n = {number(at('n'))}")
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


def _pair(found: Mapping[str, Any]) -> dict[str, Any]:
    """A pair with its prompts aligned token by token and the three distributions side by side."""
    sides = [found["clean"].get("tokens") or [], found["corrupted"].get("tokens") or []]
    columns = []
    for first, second in itertools.zip_longest(*sides, fillvalue=""):
        columns.append((_visible(first), _visible(second), first != second))
    top = found.get("top") or {}
    answer = found.get("answer") or {}
    names = [name for name in ("model", "circuit", "corrupted") if top.get(name)]
    return {
        **found,
        "columns": columns,
        "names": names,
        "lines": [
            [
                (
                    {
                        "token": repr(str(top[name][place].get("token", ""))),
                        "logit": top[name][place].get("logit"),
                        "right": bool(answer) and top[name][place].get("token") == answer.get("text"),
                    }
                    if place < len(top[name])
                    else None
                )
                for name in names
            ]
            for place in range(max((len(top[name]) for name in names), default=0))
        ],
        "answer": answer,
        "answer_token": repr(str(answer.get("text", ""))),
        "following": tail_words.following(top),
    }


def _visible(token: str) -> str:
    """A token in running text: line breaks shown, other white space kept."""
    return str(token).replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}")


def _parts(value: Any, title: str = "", depth: int = 0) -> list[dict[str, Any]]:
    """Any plain JSON as titled facts and tables, cut to a bounded size."""
    if isinstance(value, Mapping):
        facts = {str(name): each for name, each in value.items() if not isinstance(each, Mapping | list)}
        found = (
            [{"title": title, "facts": [(name, _shown(each)) for name, each in facts.items()]}]
            if facts
            else []
        )
        for name, each in value.items():
            if name not in facts and each and depth < NESTED:
                found += _parts(each, f"{title} {name}".strip().replace("_", " "), depth + 1)
        return found
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        flat = [_flat(each) for each in value[:LISTED_ITEMS]]
        columns = list(dict.fromkeys(name for each in flat for name in each))
        rows = [[_shown(each.get(name)) for name in columns] for each in flat]
        return [{"title": title, "columns": columns, "rows": rows, "left": len(value) - len(flat)}]
    if isinstance(value, list):
        shown = ", ".join(_shown(each) for each in value[:LISTED_ITEMS])
        return [{"title": title, "facts": [("", shown)]}]
    return [{"title": title, "facts": [("", _shown(value))]}]


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a record, those of its own records after a dot; longer lists are left out."""
    found: dict[str, Any] = {}
    for name, each in record.items():
        if isinstance(each, Mapping):
            found |= {
                f"{name}.{inner}": value
                for inner, value in each.items()
                if not isinstance(value, Mapping | list)
            }
        elif not isinstance(each, list):
            found[str(name)] = each
    return found


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    return number(value) if isinstance(value, int | float) else str(value)
