"""Two circuits or two runs as a page: edges of both and of one, differences with intervals, changes."""

from collections.abc import Mapping
from typing import Any

from assay.core.errors import InputError
from assay.page import text as words
from assay.page.circuit import circuit_drawing


KIND, SCHEMA = "comparison", "assay-comparison/1"
REQUIRED = ("a", "b", "circuits", "measurements", "changes", "level")
SETS = ("both", "a", "b")
FINDINGS = {
    "higher": ("\N{BLACK UP-POINTING TRIANGLE}", "higher in B"),
    "lower": ("\N{BLACK DOWN-POINTING TRIANGLE}", "lower in B"),
    "open": ("\N{WHITE CIRCLE}", "not told apart"),
    "equal": ("\N{EQUALS SIGN}", "equal"),
    "undefined": ("\N{EN DASH}", "no interval"),
}
HOW = {
    "paired": "paired over the same examples (BCa bootstrap)",
    "unpaired": "unpaired (Welch, from both standard errors)",
    "none": "none: a side stores no spread",
}
Document = Mapping[str, Any]


def is_comparison(document: object) -> bool:
    """Whether a document is that of a comparison."""
    return isinstance(document, Mapping) and document.get("kind") == KIND


def comparison_view(document: Document, key: str) -> dict[str, Any]:
    """Everything the template of a comparison needs.

    Args:
        document: What `assay.report.compare_document` gave.
        key: Identifier of the article.

    Raises:
        InputError: For another schema or a document that lacks a part.
    """
    if document.get("schema") != SCHEMA:
        raise InputError(
            f"this comparison has schema {document.get('schema')!r}; this version reads {SCHEMA!r}: "
            "run `assay report --compare` again to make it"
        )
    if missing := [name for name in REQUIRED if name not in document]:
        raise InputError(f"the comparison lacks {', '.join(missing)}; it is incomplete")
    a, b = document["a"], document["b"]
    circuits = document["circuits"]
    drawn = circuits if circuits and not circuits["mismatch"] and circuits["edges"] else None
    layout = circuit_layout(drawn) if drawn else None
    same = a["label"] == b["label"]
    return {
        "key": key,
        "comparison": document,
        "title": f"{a['label']}, twice" if same else f"{a['label']}  against  {b['label']}",
        "verdict": verdict(document),
        "caveats": caveats(document),
        "circuits": circuits,
        "layout": layout,
        "members": [edge["in"] for edge in drawn["edges"]] if drawn else [],
        "script_data": _script_data(drawn, layout) if drawn and layout else None,
        "rows": [_row(row) for row in document["measurements"]],
        "hows": [HOW[name] for name in HOW if any(row["how"] == name for row in document["measurements"])],
        "sets": {"both": "in both", "a": "only in A", "b": "only in B"},
    }


def verdict(document: Document) -> str:
    """A sentence on what the comparison finds."""
    parts = []
    circuits = document["circuits"]
    if circuits and not circuits["mismatch"]:
        counts = circuits["counts"]
        union = circuits["n_union"]
        share = f" ({words.percent(circuits['jaccard'])} of {union:,})" if union else ""
        parts.append(
            f"The circuits share {counts['both']:,} {_edges(counts['both'])}{share}; {counts['a']:,} "
            f"{'is' if counts['a'] == 1 else 'are'} only in A and {counts['b']:,} only in B."
        )
    rows = document["measurements"]
    if rows:
        apart = [row for row in rows if row["finding"] in ("higher", "lower")]
        told = [row for row in rows if row["finding"] != "undefined"]
        noun = "measurement" if len(told) == 1 else "measurements"
        parts.append(
            f"{len(apart)} of {len(told)} shared {noun} "
            f"{'differs' if len(apart) == 1 else 'differ'}: the {words.percent(document['level'])} interval "
            "of the difference leaves out 0."
            if told
            else "No shared measurement has an interval of its difference."
        )
    return " ".join(parts) or "The two share neither a graph nor a measurement."


def caveats(document: Document) -> list[str]:
    """What a reader must know before using the differences."""
    notes = []
    circuits = document["circuits"]
    if circuits and circuits["mismatch"]:
        a, b = circuits["mismatch"]
        notes.append(f"The circuits belong to different graphs (A: {a}; B: {b}), so no edge is compared.")
    if document["a"]["id"] and document["a"]["id"] == document["b"]["id"]:
        notes.append("A and B are the same result.")
    tasks = {document[side].get("task") for side in ("a", "b")} - {None}
    if len(tasks) > 1:
        notes.append("The two were measured on different tasks: differences mix circuit and task.")
    models = {document[side].get("model") for side in ("a", "b")} - {None}
    if len(models) > 1:
        notes.append("The two belong to different models: differences mix circuit and model.")
    return notes


def _edges(count: int) -> str:
    return "edge" if count == 1 else "edges"


def _script_data(drawn: Document, layout: Any) -> dict[str, Any]:
    return {
        "nodes": [node.name for node in layout.nodes],
        "edges": [
            [
                edge.source,
                list(edge.feeds),
                edge.target_name,
                listed["in"],
                listed["score_a"],
                listed["score_b"],
            ]
            for edge, listed in zip(layout.edges, drawn["edges"], strict=True)
        ],
    }


def _row(row: Document) -> dict[str, Any]:
    mark, finding = FINDINGS[row["finding"]]
    digits = words.precision(row["low"], row["high"])
    shown = words.number(row["difference"], digits)
    if row["difference"] is not None and row["difference"] > 0:
        shown = f"+{shown}"
    return {
        **row,
        "name": row["name"].replace("-", " "),
        "unit": words.UNITS.get(row["unit"] or "", row["unit"] or ""),
        "direction": words.DIRECTIONS.get(row["direction"] or "report", ""),
        "shown": {side: _side(row[side]) for side in ("a", "b")},
        "difference": row["difference"],
        "shown_difference": shown,
        "interval": words.interval(row["low"], row["high"], digits),
        "mark": mark,
        "finding_words": finding,
        "good": _good(row),
    }


def _good(row: Document) -> str:
    """Whether the difference is an improvement, where the metric has a direction and the interval a sign."""
    if row["finding"] not in ("higher", "lower") or row["direction"] not in ("higher", "lower"):
        return ""
    return "better" if row["finding"] == row["direction"] else "worse"


def _side(value: Document) -> dict[str, Any]:
    digits = words.precision(value["low"], value["high"])
    mark, status = words.STATUSES.get(value["status"] or "none", words.STATUSES["none"])
    return {
        "value": value["value"],
        "shown": words.number(value["value"], digits),
        "interval": words.interval(value["low"], value["high"], digits),
        "mark": mark,
        "status": status,
    }
