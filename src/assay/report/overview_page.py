"""What a store holds about a model, a task or a sweep, as a page: tables of every metric, gates, jobs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.page.blocks import (
    STATUSES,
    Block,
    Cell,
    Code,
    Column,
    Details,
    Note,
    Page,
    Section,
    Table,
)
from assay.page.form import PAGES, PageForm
from assay.page.text import (
    NARROW,
    Span,
    Text,
    code,
    italic,
    listed,
    noun,
    number,
    quiet,
    record_text,
    result_link,
)
from assay.report.overview_metrics import count_cell, distinct, metric_grid, metric_tables, minute


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
    sections.append(Section(title="Every metric at a glance", blocks=[metric_grid(document, axes)]))
    if document["metrics"]:
        sections.append(Section(title="Metric by metric", blocks=list(metric_tables(document, axes))))
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
        yield "result", (code(document["id"]), " ", quiet(minute(document["created"])))
    if document["filter"]:
        yield "filter", code(document["filter"])


def verdict(document: Document) -> str:
    """How much there is, in one sentence."""
    rows, n = document["measurements"], document["n_measurements"]
    named = {axis: distinct(rows, axis) for axis in (*AXES, "metric")}
    named["method"] = distinct(rows, "found_by")  # the column of the tables holds options and sizes too
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
    metrics = distinct(document["measurements"], "metric")
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
                count_cell(row),
                Cell(text=minute(row["created"]), style="quiet nowrap"),
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


PAGES.add(
    "overview",
    PageForm(noun="overview", schema="assay-overview/1", again="`assay report`", make=overview_page),
)
