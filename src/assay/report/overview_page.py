"""What a store holds about a model, a task or a sweep, as a page: tables of every metric, gates, jobs."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from assay.metrics.page import DIRECTIONS
from assay.page import text as words
from assay.page.blocks import (
    STATUSES,
    Block,
    Cell,
    Code,
    Column,
    Details,
    Drawing,
    Note,
    Page,
    Section,
    Table,
)
from assay.page.strip import WIDTH, small_picture, upright
from assay.page.text import (
    NARROW,
    Span,
    Text,
    bold,
    code,
    italic,
    listed,
    noun,
    number,
    quiet,
    record_text,
    result_link,
)


ROWS = 60  # rows of the table of everything
PER_METRIC = 600  # rows of all tables of single metrics together
OPEN = 4  # tables of single metrics that stand open
AXES = ("model", "task", "method")
Document = Mapping[str, Any]


def overview_page(document: Document) -> Page:
    """Everything that is shown of a model, a task or a sweep.

    Args:
        document: What `assay.report.overview_document` gave.
    """
    jobs, records = document.get("jobs"), []
    if plan := document.get("plan"):
        records = [Details(summary="The plan behind the sweep", blocks=[Code(text=record_text(plan))])]
    sections = [Section(title="Jobs that failed", blocks=[_failed(jobs)])] if jobs and jobs["failed"] else []
    axes = [
        axis
        for axis in AXES
        if axis != document["of"] and any(row.get(axis) for row in document["measurements"])
    ]
    sections.append(Section(title="Every metric at a glance", blocks=[_grid(document, axes)]))
    if document["metrics"]:
        sections.append(Section(title="Metric by metric", blocks=list(_metrics(document, axes))))
    sections.append(Section(title="Whether the numbers can be trusted", blocks=[_gates(document)]))
    if document["others"]:
        sections.append(Section(title="Other results", blocks=[_others(document)]))
    if jobs:
        sections.append(Section(title="Jobs", blocks=[_jobs(document, jobs)]))
    return Page(
        kind=f"{document['of']} overview",
        title=f"{document['of'].capitalize()} {document['name']}",
        verdict=verdict(document),
        caveats=caveats(document),
        lede=(
            "What the results store ",
            italic(document["store"]),
            f" held when this page was made. Brackets hold 95{NARROW}% intervals over examples. Verdicts "
            "are those stored with the measurement; a metric without a threshold has none.",
        ),
        sections=sections,
        facts=list(_facts(document)),
        records=records,
        style="overview",
    )


def _facts(document: Document) -> Iterator[tuple[str, Text]]:
    yield "store", document["store"]
    if "id" in document:
        yield "result", (code(document["id"]), " ", quiet(_minute(document["created"])))
    if document["filter"]:
        yield "filter", code(document["filter"])


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def verdict(document: Document) -> str:
    """How much there is, in one sentence."""
    rows, n = document["measurements"], document["n_measurements"]
    named = {axis: _distinct(rows, axis) for axis in (*AXES, "metric")}
    named["method"] = _distinct(rows, "found_by")  # the column of the tables holds options and sizes too
    parts = [f"{number(document['n_results'])} {noun('result', document['n_results'])}"]
    if n:
        over = [
            f"{len(named[axis])} {noun(axis, len(named[axis]))}"
            for axis in (*AXES, "metric")
            if named[axis] and axis != document["of"]
        ]
        among = f", the newest {len(rows):,} of them" if len(rows) < n else ""
        parts.append(
            f"{number(n)} {noun('measurement', n)}{among}" + (f" over {listed(over)}" if over else "")
        )
    statuses = [row["status"] for row in rows if row.get("status") not in (None, "none")]
    sentence = ", of them ".join(parts[:2]) + "."
    if statuses:
        found = {word: statuses.count(word) for word in ("pass", "moderate", "fail", "inconclusive")}
        told = [f"{count} {word}" for word, count in found.items() if count]
        sentence += f" Of {len(statuses)} judged {noun('measurement', len(statuses))}: {listed(told)}."
    if jobs := document.get("jobs"):
        told = [f"{count:,} {word}" for word, count in jobs["statuses"].items()]
        sentence = f"{number(jobs['n'])} {noun('job', jobs['n'])}: {listed(told)}. {sentence}"
    return sentence


def caveats(document: Document) -> list[str]:
    """What was cut from the page."""
    notes = []
    shown, n = len(document["measurements"]), document["n_measurements"]
    if shown < n:
        notes.append(
            f"The tables show the newest {shown:,} of {n:,} measurements. All of them: {_command(document)}."
        )
    metrics = _distinct(document["measurements"], "metric")
    if len(metrics) > len(document["metrics"]):
        notes.append(
            f"{len(document['metrics'])} of {len(metrics)} metrics have a table here. "
            f"All of them: {_command(document)}."
        )
    if (jobs := document.get("jobs")) and jobs["n_read"] < jobs["n"]:
        notes.append(
            f"The tables show the results of the first {jobs['n_read']:,} of {jobs['n']:,} jobs; all "
            "results are in the store: assay store ls."
        )
    if jobs and jobs["n_failed"]:
        notes.append(f"{jobs['n_failed']:,} {noun('job', jobs['n_failed'])} failed; see the list below.")
    return notes


def _command(document: Document) -> str:
    where = f" --where '{document['filter']}'" if document.get("filter") else ""
    return f"assay store ls --kind measurement{where}"


def _distinct(rows: Iterable[Document], column: str) -> list[str]:
    return sorted({str(row[column]) for row in rows if row.get(column)})


# ----------------------------------------------------------------------------------------- every metric


def _grid(document: Document, axes: Sequence[str]) -> Block:
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
    value = row["value"]
    return number(None if value is None else float(value), words.precision(row["low"], row["high"]))


def _interval(row: Document) -> str:
    return words.interval(row["low"], row["high"], words.precision(row["low"], row["high"]))


def _metrics(document: Document, axes: Sequence[str]) -> Iterator[Block]:
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
    names = [name for name in axes if _distinct(rows, name)]
    if len(_distinct(rows, "seed")) > 1:
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
                _count(row),
                Cell(text=_minute(row["created"]), style="quiet nowrap"),
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


def _count(row: Document) -> Cell:
    return Cell(value="") if row["n"] is None else Cell(text=number(row["n"]), value=row["n"])


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


# ------------------------------------------------------------------------------------------------ gates, jobs


def _gates(document: Document) -> Block:
    """Gates as rows, calibrations as columns."""
    calibrations, of = document["gates"], document["of"]
    if not calibrations:
        made = ("No calibration is stored. ", code("assay calibrate"), " makes one.")
        return Note(text=made, style="quiet")
    names = {gate["key"]: gate.get("name") or gate["key"] for each in calibrations for gate in each["gates"]}
    judged = [{gate["key"]: gate for gate in each["gates"]} for each in calibrations]
    caption = "Confident verdicts of the calibration gates, one column per calibration, newest first."
    if document["n_calibrations"] > len(calibrations):
        caption += f" The newest {len(calibrations)} of {number(document['n_calibrations'])}."
    return Table(
        columns=[Column(name="gate"), *(Column(name=_calibration(each, of)) for each in calibrations)],
        rows=[
            [
                name,
                *(
                    Cell(status=gates[key]["status"] if gates[key].get("status") in STATUSES else "none")
                    if key in gates
                    else ""
                    for gates in judged
                ),
            ]
            for key, name in names.items()
        ],
        caption=f"{caption} Empty: that gate was not run.",
        style="gate-grid",
    )


def _calibration(each: Document, of: str) -> Text:
    """Heading of the column of a calibration."""
    names = {"task": ("model",), "model": ("task",)}.get(of, ("model", "task"))
    name = " ".join(str(each.get(key) or "") for key in names).strip() or "not recorded"
    circuit = str(each.get("circuit") or "")[:8]
    return (
        name,
        Span(result_link(each["id"]), "line"),
        Span(quiet(f"circuit {circuit}"), "line") if circuit else "",
    )


def _others(document: Document) -> Table:
    shown = document["others"]
    first: list[Text] = []
    if document["n_others"] > len(shown):
        where = f" --where '{document['filter']}'" if document["filter"] else ""
        first = [
            f"The newest {number(len(shown))} of {number(document['n_others'])}; all of them with ",
            code(f"assay store ls{where}"),
            ". ",
        ]
    return Table(
        columns=[
            *(Column(name=name, sort=True) for name in ("kind", "model", "task", "method")),
            Column(name="value", numeric=True, sort=True),
            Column(name="n", numeric=True, sort=True),
            Column(name="made", sort=True),
            Column(name="result", sort=True),
        ],
        rows=[
            [
                row["kind"].replace("_", " "),
                *(row[name] or "" for name in ("model", "task", "method")),
                Cell(value="")
                if row["value"] is None
                else Cell(text=number(float(row["value"])), value=row["value"]),
                _count(row),
                Cell(text=_minute(row["created"]), style="quiet nowrap"),
                result_link(row["id"]),
            ]
            for row in shown
        ],
        caption=(
            *first,
            code("assay report ID"),
            " makes a page of what has one, ",
            code("assay show ID"),
            " prints any.",
        ),
        kind="",
        tall=True,
    )


def _failed(jobs: Document) -> Table:
    first = ""
    if jobs["n_failed"] > len(jobs["failed"]):
        first = f"The first {number(len(jobs['failed']))} of {number(jobs['n_failed'])}. "
    caption = (
        f"{first}Run the same ",
        code("assay sweep"),
        " again to retry them; finished jobs are kept.",
    )
    return _job_table(jobs["failed"], caption, why=True)


def _jobs(document: Document, jobs: Document) -> Table:
    shown, n = len(jobs["listed"]), jobs["n"]
    caption: Text = f"All {number(n)}."
    if n > shown:
        caption = (
            f"The first {number(shown)} of {number(n)}; all of them with ",
            code(f"assay show {document['id']}"),
            ".",
        )
    return _job_table(jobs["listed"], caption, why=False)


def _job_table(jobs: Sequence[Document], caption: Text, *, why: bool) -> Table:
    names = ["job", "kind", "state"]
    return Table(
        columns=[
            *(Column(name=name, sort=True) for name in names),
            *([Column(name="why")] if why else []),
            Column(name="results"),
        ],
        rows=[
            [
                job["name"],
                job["kind"] or "",
                Cell(status="failed", mark="✕", style="nowrap is-fail")
                if job["status"] == "failed"
                else Cell(text=job["status"], style="nowrap"),
                *([Cell(text=job["error"] or "", style="why")] if why else []),
                [(result_link(key), " ") for key in job["results"]],
            ]
            for job in jobs
        ],
        caption=caption,
        kind="",
        tall=len(jobs) > 20,
    )
