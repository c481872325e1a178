"""The measurements of an overview: one table of all metrics, and one of each on an axis of its own."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from assay.metrics.page import DIRECTIONS
from assay.page import text as words
from assay.page.blocks import STATUSES, Block, Cell, Column, Details, Drawing, Note, Table
from assay.page.strip import WIDTH, small_picture, upright
from assay.page.text import Span, Text, bold, code, number, quiet, result_link


ROWS = 60  # rows of the table of everything
PER_METRIC = 600  # rows of all tables of single metrics together
OPEN = 4  # tables of single metrics that stand open
Document = Mapping[str, Any]


def metric_grid(document: Document, axes: Sequence[str]) -> Block:
    """A row per model, task and method as far as they vary, a column per metric; the newest in each cell."""
    rows, metrics = document["measurements"], [metric["key"] for metric in document["metrics"]]
    cells: dict[tuple[str, ...], dict[str, list[Document]]] = {}
    for row in rows:
        place = tuple(str(row.get(axis) or "") for axis in axes)
        cells.setdefault(place, {}).setdefault(str(row["metric"] or ""), []).append(row)
    if not cells:
        commands = (code("assay measure"), " and ", code("assay audit"))
        return Note(text=("No measurement is stored. ", *commands, " make some."), style="quiet")
    marks = ", ".join(f"{STATUSES[name][0]} {name}" for name in ("pass", "moderate", "fail", "inconclusive"))
    each = f"A row for each {', '.join(axes)}; where" if axes else "Where"
    left = max(0, len(cells) - ROWS)
    return Table(
        columns=[
            *(Column(name=axis, sort=True) for axis in axes),
            *(Column(name=name or "unnamed", numeric=True, sort=True) for name in metrics),
        ],
        rows=[
            [
                *(name or quiet("not recorded") for name in place),
                *(_newest(cells[place].get(name, [])) for name in metrics),
            ]
            for place in sorted(cells)[:ROWS]
        ],
        caption=f"{each} a cell has several measurements the newest is shown, with the range of all. {marks}."
        + (f" {number(left)} more rows are omitted." if left else ""),
        style="grid",
        named=bool(axes),
    )


def _newest(measurements: Sequence[Document]) -> Cell:
    """The newest of the measurements of a cell, and the range of the others."""
    if not measurements:
        return Cell(value="")
    newest, value = measurements[0], measurements[0]["value"]
    values = [row["value"] for row in measurements if row["value"] is not None]
    below: list[Text] = [_interval(newest)]
    if len(measurements) > 1:
        reach = f", {number(min(values))} to {number(max(values))}" if len(values) > 1 else ""
        below.append(Span(f"newest of {len(measurements)}{reach}", "line"))
    mark, status = STATUSES.get(newest["status"] or "none", STATUSES["none"])
    shown: Text = ""
    if status != "no verdict":
        style = f"status is-{status.replace(' ', '-')}"
        shown = (" ", Span((Span(mark, "mark-sign"), Span(status, "sr")), style, status))
    return Cell(text=(bold(_value(newest)), shown), below=below, value="" if value is None else value)


def _value(row: Document) -> str:
    return words.estimate(row["value"], row["low"], row["high"])[0]


def _interval(row: Document) -> str:
    return words.estimate(row["value"], row["low"], row["high"])[1]


def metric_tables(document: Document, axes: Sequence[str]) -> Iterator[Block]:
    """A table of each metric, whose intervals share one axis."""
    rows, metrics = document["measurements"], document["metrics"]
    room = max(12, PER_METRIC // max(1, len(metrics)))
    for place, metric in enumerate(metrics):
        own = [row for row in rows if (row["metric"] or "") == metric["key"]]
        yield _metric(metric, own, room, axes, place)
    yield Note(
        text="All intervals of one table share its axis, whose ends stand above it; the dotted line is the "
        "threshold.",
        style="note quiet",
    )


def _metric(
    metric: Document, rows: Sequence[Document], room: int, axes: Sequence[str], place: int
) -> Details:
    shown, threshold = rows[:room], metric.get("threshold")
    axis = _Axis(shown, threshold)
    names = [name for name in axes if distinct(rows, name)]
    if len(distinct(rows, "seed")) > 1:
        names.append("seed")
    key = metric["key"] or "unnamed"
    direction = DIRECTIONS.get(metric.get("direction") or "report", "")
    facts = [
        f"{words.plural(len(rows), 'measurement')}",
        metric.get("unit") or "no unit",
        *([direction] if direction else []),
        *([] if threshold is None else [f"threshold {number(threshold)}"]),
    ]
    note: Text = ""
    if len(rows) > len(shown):
        note = (
            f"The first {number(len(shown))} of {number(len(rows))}, newest first; all of them with ",
            code(f"assay store ls --where 'metric = {metric['key']}'"),
            ".",
        )
    table = Table(
        columns=[
            *(Column(name=name, numeric=name == "seed", sort=True) for name in names),
            Column(name="value", numeric=True, sort=True),
            Column(name="interval"),
            Column(name=(Span(number(axis.first), "end"), Span(number(axis.last), "end")), style="axis-head"),
            Column(name="verdict", sort=True),
            Column(name="n", numeric=True, sort=True),
            Column(name="made", sort=True),
            Column(name="result", sort=True),
        ],
        rows=[
            [
                *("" if row[name] is None else str(row[name]) for name in names),
                Cell(text=_value(row), value="" if row["value"] is None else row["value"]),
                Cell(text=_interval(row), style="quiet nowrap"),
                axis.cell(row),
                Cell(status=row["status"] if row["status"] in STATUSES else "none", style="nowrap"),
                count_cell(row),
                Cell(text=minute(row["created"]), style="quiet nowrap"),
                result_link(row["id"]),
            ]
            for row in shown
        ],
        note=note,
        named=False,
    )
    return Details(
        summary=(bold(key), " ", quiet(", ".join(facts))),
        blocks=[table],
        open=place < OPEN,
        style="metric",
        name=f"metric{place}",
    )


class _Axis:
    """The one axis of a table: from its least number to its largest."""

    def __init__(self, rows: Sequence[Document], threshold: float | None) -> None:
        numbers = [row[name] for row in rows for name in ("value", "low", "high")]
        finite = [float(each) for each in (*numbers, threshold) if each is not None and math.isfinite(each)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        self.first, self.last = (low, high) if high > low else (low - 0.5, high + 0.5)
        self.threshold = self._place(threshold)

    def _place(self, value: float | None) -> float | None:
        if value is None or not math.isfinite(value):
            return None
        share = (value - self.first) / (self.last - self.first)
        return round(WIDTH * min(max(share, 0.0), 1.0), 1)

    def cell(self, row: Document) -> Cell:
        """A measurement on the axis."""
        value, low, high = (self._place(row[name]) for name in ("value", "low", "high"))
        if value is None:
            return Cell(text=Span("undefined", "undefined"))
        return Cell(drawing=self._drawing(value, low, high))

    def _drawing(self, value: float, low: float | None, high: float | None) -> Drawing:
        parts = [f'<line class="axis" x1="0" x2="{WIDTH:.0f}" y1="9" y2="9"/>']
        if self.threshold is not None:
            parts.append(upright("threshold", self.threshold))
        if low is not None and high is not None:
            parts.append(f'<line class="range" x1="{low}" x2="{high}" y1="9" y2="9"/>')
        return small_picture([*parts, f'<circle cx="{value}" cy="9" r="3.4"/>'])


def distinct(rows: Iterable[Document], column: str) -> list[str]:
    """The values of a column, each once."""
    return sorted({str(row[column]) for row in rows if row.get(column)})


def minute(time: str) -> str:
    """A time without its seconds."""
    return time[:16].replace("T", " ")


def count_cell(row: Document) -> Cell:
    """The number of examples, as a cell that sorts."""
    return Cell(value="") if row["n"] is None else Cell(text=number(row["n"]), value=row["n"])
