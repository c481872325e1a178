"""Two circuits or two runs as a page: edges of both and of one, differences with intervals, changes."""

from collections.abc import Iterator, Mapping
from typing import Any

from assay.metrics.page import UNITS
from assay.page import text as words
from assay.page.blocks import (
    Block,
    Cell,
    CircuitView,
    Column,
    Facts,
    Note,
    Page,
    Section,
    Table,
)
from assay.page.circuit import signed
from assay.page.form import PAGES, PageForm
from assay.page.text import Span, Text, bold, code, noun, number, percent, quiet, result_link
from assay.page.viewer import circuit_view
from assay.report.overview_metrics import minute


SETS = {"both": "in both", "a": "only in A", "b": "only in B"}
FINDINGS = {
    "higher": ("\N{BLACK UP-POINTING TRIANGLE}", "higher in B"),
    "lower": ("\N{BLACK DOWN-POINTING TRIANGLE}", "lower in B"),
    "open": ("\N{WHITE CIRCLE}", "not distinguished"),
    "equal": ("\N{EQUALS SIGN}", "equal"),
    "undefined": ("\N{EN DASH}", "no interval"),
}
HOW = {
    "paired": "paired over the same examples (BCa bootstrap)",
    "unpaired": "unpaired (Welch, from both standard errors)",
    "none": "none: one side does not store a spread",
}
Document = Mapping[str, Any]


def comparison_page(document: Document) -> Page:
    """Everything that is shown of a comparison.

    Args:
        document: What `assay.report.compare_document` gave.
    """
    a, b = document["a"], document["b"]
    sections = [
        Section(title="The measurements", blocks=[_measurements(document)]),
        Section(title="Differences in how they were made", blocks=[_changes(document)]),
    ]
    circuits = document["circuits"]
    if circuits and not circuits["mismatch"]:
        nothing = [Note(text="Neither circuit keeps an edge.", style="quiet")]
        edges = list(_circuits(circuits)) if circuits["edges"] else nothing
        sections.insert(0, Section(title="The edges", blocks=edges))
    return Page(
        kind="comparison",
        title=f"{a['label']}, twice" if a["label"] == b["label"] else f"{a['label']}  against  {b['label']}",
        verdict=verdict(document),
        caveats=caveats(document),
        head=[Facts(facts=[("A", _side(a)), ("B", _side(b))], style="sides")],
        sections=sections,
        style="compare",
    )


def _side(side: Document) -> Text:
    facts = [side["kind"], *([minute(side["created"])] if side["created"] else [])]
    note = ", ".join(facts)
    if side["n_edges"] is not None:
        note += f"; circuit: {number(side['n_edges'])} edges, {side['how']}"
    link = (" ", result_link(side["id"])) if side["id"] else ""
    return (bold(side["label"]), link, " ", quiet(note))


def verdict(document: Document) -> str:
    """A sentence on what the comparison finds."""
    parts = []
    circuits = document["circuits"]
    if circuits and not circuits["mismatch"]:
        counts = circuits["counts"]
        union = circuits["n_union"]
        share = f" ({percent(circuits['jaccard'])} of {union:,})" if union else ""
        parts.append(
            f"The circuits share {counts['both']:,} {noun('edge', counts['both'])}{share}; {counts['a']:,} "
            f"{'is' if counts['a'] == 1 else 'are'} only in A and {counts['b']:,} only in B."
        )
    rows = document["measurements"]
    if rows:
        apart = [row for row in rows if row["finding"] in ("higher", "lower")]
        told = [row for row in rows if row["finding"] != "undefined"]
        verb = "differs" if len(apart) == 1 else "differ"
        parts.append(
            f"{len(apart)} of {len(told)} shared {noun('measurement', len(told))} {verb}: the "
            f"{percent(document['level'])} interval of the difference excludes 0."
            if told
            else "None of the shared measurements has an interval of its difference."
        )
    return " ".join(parts) or "The two have neither a graph nor a measurement in common."


def caveats(document: Document) -> list[str]:
    """What a reader must know before using the differences."""
    notes = []
    circuits = document["circuits"]
    if circuits and circuits["mismatch"]:
        a, b = circuits["mismatch"]
        notes.append(
            f"The circuits belong to different graphs (A: {a}; B: {b}), so their edges are not compared."
        )
    if document["a"]["id"] and document["a"]["id"] == document["b"]["id"]:
        notes.append("A and B are the same result.")
    tasks = {document[side].get("task") for side in ("a", "b")} - {None}
    if len(tasks) > 1:
        notes.append("The two were measured on different tasks: differences mix circuit and task.")
    models = {document[side].get("model") for side in ("a", "b")} - {None}
    if len(models) > 1:
        notes.append("The two belong to different models: differences mix circuit and model.")
    return notes


# ------------------------------------------------------------------------------------------------ the edges


def _circuits(circuits: Document) -> Iterator[Block]:
    yield _graph(circuits)
    yield _edge_table(circuits)
    yield Table(
        columns=[
            Column(name="layer"),
            *(Column(name=name, numeric=True) for _ in range(2) for name in SETS.values()),
        ],
        groups=[("", 1), ("edges out of it", len(SETS)), ("edges into it", len(SETS))],
        rows=[
            [
                row["name"],
                *(_count(row[f"{way}_{name}"]) for way in ("out", "into") for name in SETS),
            ]
            for row in circuits["layers"]
        ],
        caption="Where the circuits agree and differ: numbers of edges by the layer that writes and the "
        "layer that reads.",
        style="layers",
    )


def _count(n: int) -> Cell:
    return Cell(text=number(n), style="" if n else "quiet")


def _graph(circuits: Document) -> CircuitView:
    listed = circuits["edges"]
    caption = f"The edges of both circuits in one graph of {number(circuits['graph']['n_edges'])} edges."
    if circuits["n_listed"] < circuits["n_union"]:
        caption += (
            f" Drawn and listed: {number(circuits['n_listed'])} of the {number(circuits['n_union'])} "
            f"edges of "
            "either, the strongest of each set."
        )
    if any(circuits["scored"]):
        caption += " Width: the larger |score| of the two."
    return circuit_view(
        circuits["graph"],
        listed,
        sets=[(name, label, circuits["counts"][name]) for name, label in SETS.items()],
        scored=any(circuits["scored"]),
        caption=(caption, " ", Span("Hover or focus a node or an edge to see it alone.", "script-only")),
        extras=circuits,
    )


def _edge_table(circuits: Document) -> Table:
    sides = [side for side, scored in zip("ab", circuits["scored"], strict=True) if scored]
    whole = circuits["n_listed"] >= circuits["n_union"]
    n_union = number(circuits["n_union"])
    caption = (
        f"All {n_union} edges"
        if whole
        else f"{number(circuits['n_listed'])} of {n_union} edges, the strongest of each set"
    )
    if sides:
        caption += (
            ", by the larger |score|. An edge outside a circuit still has a score if that side scored every "
            "edge."
        )
    else:
        caption += ". A circuit file holds edges without scores."
    if circuits["rank_correlation"] is not None:
        caption += (
            f" Rank correlation of |score| over all {number(circuits['graph']['n_edges'])} edges: "
            f"{number(circuits['rank_correlation'])}."
        )
    return Table(
        columns=[
            Column(name="rank", numeric=True, sort=True),
            *(Column(name=name, sort=True) for name in ("source", "target", "where")),
            *(Column(name=f"score in {side.upper()}", numeric=True, sort=True) for side in sides),
        ],
        rows=[
            [
                str(edge["rank"]),
                edge["source"],
                edge["target"],
                (Span("", f"set in-{edge['in']}"), " ", SETS[edge["in"]]),
                *(_score(edge[f"score_{side}"]) for side in sides),
            ]
            for edge in circuits["edges"]
        ],
        caption=caption,
        style="edges-table",
        tall=True,
        named=False,
    )


def _score(score: float | None) -> Cell:
    return Cell(text=quiet("none"), value="") if score is None else Cell(text=signed(score), value=score)


# ------------------------------------------------------------------------------------------------ the numbers


def _measurements(document: Document) -> Block:
    rows = document["measurements"]
    if not rows:
        made = (
            "The two have no measurement in common. ",
            code("assay audit"),
            " and ",
            code("assay measure"),
            " make some.",
        )
        return Note(text=made, style="quiet")
    first = ""
    if document["n_measurements"] > len(rows):
        first = f"The first {number(len(rows))} of {number(document['n_measurements'])} shared measurements. "
    hows = "; ".join(HOW[name] for name in HOW if any(row["how"] == name for row in rows))
    return Table(
        columns=[
            Column(name="measurement", sort=True),
            Column(name="A", numeric=True, sort=True),
            Column(name="B", numeric=True, sort=True),
            Column(name=f"B {words.MINUS} A", numeric=True, sort=True),
            Column(name=f"{percent(document['level'])} interval"),
            *(Column(name=name, sort=True) for name in ("finding", "unit", "interval is")),
        ],
        rows=[_measurement(row) for row in rows],
        caption=f"{first}Intervals of the difference: {hows}. Each holds by itself; about one in twenty "
        "excludes 0 although the true difference is 0.",
        style="measured",
    )


def _measurement(row: Document) -> list[Cell | Text]:
    mark, finding = FINDINGS[row["finding"]]
    difference = row["difference"]
    shown, between = words.estimate(difference, row["low"], row["high"])
    sign = "+" if difference is not None and difference > 0 else ""
    how = row["how"] + (f", n = {number(row['n_pairs'])}" if row["n_pairs"] else "")
    name = row["name"].replace("-", " ")
    good = _good(row)
    return [
        (name, " ", Span(str(row["id"]), "key")) if row["id"] else name,
        *(_value(row[side]) for side in ("a", "b")),
        Cell(text=bold(sign + shown), value="" if difference is None else difference),
        Cell(text=between, style="quiet nowrap"),
        Cell(
            text=(
                Span((mark, " ", finding), f"status is-{row['finding']}"),
                (" ", quiet(f"({good})")) if good else "",
            ),
            style="nowrap",
        ),
        UNITS.get(row["unit"] or "", row["unit"] or ""),
        Cell(text=how, style="quiet nowrap"),
    ]


def _value(side: Document) -> Cell:
    value = side["value"]
    shown, between = words.estimate(value, side["low"], side["high"])
    return Cell(
        text=shown,
        below=between,
        value="" if value is None else value,
        style="nowrap",
    )


def _good(row: Document) -> str:
    """Whether the difference is an improvement, where the metric has a direction and the interval a sign."""
    if row["finding"] not in ("higher", "lower") or row["direction"] not in ("higher", "lower"):
        return ""
    return "better" if row["finding"] == row["direction"] else "worse"


def _changes(document: Document) -> Block:
    changes = document["changes"]
    if not changes:
        return Note(text="Nothing: the two records are the same.", style="quiet")
    first = ""
    if document["n_changes"] > len(changes):
        first = f"The first {number(len(changes))} of {number(document['n_changes'])} differences. "
    return Table(
        columns=[Column(name=name, sort=True) for name in ("entry of the record", "A", "B")],
        rows=[
            [
                (row["key"], (" ", quiet("machine")) if row["machine"] else ""),
                *(quiet("absent") if row[side] is None else str(row[side]) for side in ("a", "b")),
            ]
            for row in changes
        ],
        caption=f"{first}Every entry of the two provenance records that differs: versions, seeds, options, "
        "hashes of model and data.",
        kind="",
        style="changes",
        tall=True,
    )


PAGES.add(
    "comparison",
    PageForm(
        noun="comparison", schema="assay-comparison/1", again="`assay report --compare`", make=comparison_page
    ),
)
