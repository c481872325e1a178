"""Pages that only `assay serve` has: the list of results, a bare record, an index, errors."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from assay.page import text as words
from assay.report.audit_page import SCHEMA as AUDIT
from assay.page.text import bounded, cut_text, record_text
from assay.report.claim_page import is_claim
from assay.report.html import environment, page, render
from assay.report.measurement_page import is_measurement
from assay.report.monitor_page import is_monitor
from assay.report.overview import row_of
from assay.report.rank_page import is_ranking
from assay.store import ResultSummary, StoredResult


FACTS = 400  # entries of a record in its table
LINKED = 1_000  # characters of a name that has a page of its own
SUBSET_KINDS = ("subset-path", "subset")  # their stored form says less than a page needs


def result_page(result: StoredResult, *, served: bool = True) -> str:
    """The page of a stored result: its report where its kind has one, else its record as a table."""
    payload = result.payload
    if has_page(result):
        return render(payload, served=served)
    facts = _facts(payload)
    provenance = _facts(result.provenance)
    return _page(
        "record.html",
        served=served,
        title=f"{result.kind.replace('_', ' ').capitalize()} {result.id}",
        result=result,
        parts=[
            ("Result", facts[:FACTS], len(facts)),
            ("How it was made", provenance[:FACTS], len(provenance)),
        ],
        arrays=list(result.arrays.keys())[:FACTS],
        record=record_text(payload),
    )


def has_page(result: StoredResult) -> bool:
    """Whether a stored result is a document that `save_report` makes a page of."""
    payload = result.payload
    if payload.get("schema") == AUDIT or is_measurement(payload):
        return True
    if result.kind in ("worst_case", "calibration", "subset-path"):
        return "schema" in payload
    return is_claim(payload) or is_monitor(payload) or is_ranking(payload)


def results_page(
    found: Sequence[ResultSummary],
    *,
    n: int,
    start: int,
    filters: Mapping[str, str],
    where: str,
    order: str,
    kinds: Sequence[str],
    size: int,
) -> str:
    """A list of results with its filters.

    Args:
        found: The results of this page.
        n: How many match.
        start: How many stand before this page.
        filters: Chosen values by column.
        where: Further conditions as they were typed.
        order: Column, or `-column`.
        kinds: Kinds to choose from.
        size: Results per page.
    """
    asked = {key: value for key, value in (*filters.items(), ("where", where)) if value}

    def link(**changes: Any) -> str:
        return "/?" + urlencode({**asked, "order": order, **changes})

    columns = [
        {
            "name": name,
            "numeric": name in ("n", "seed", "value"),
            "sort": ("descending" if order == f"-{name}" else "ascending" if order == name else None),
            "link": link(order=name if order == f"-{name}" else f"-{name}"),
        }
        for name in (
            "kind",
            "model",
            "task",
            "method",
            "ablation",
            "metric",
            "n",
            "seed",
            "value",
            "status",
            "created",
        )
    ]
    return _page(
        "results.html",
        title="Results",
        rows=[_row(each) for each in found],
        columns=columns,
        n=n,
        start=start,
        filters=filters,
        where=where,
        order=order,
        kinds=kinds,
        before=link(start=max(0, start - size)) if start else None,
        after=link(start=start + size) if start + len(found) < n else None,
        narrowed=bool(asked),
    )


def index_page(groups: Sequence[tuple[str, str, Sequence[str]]], *, cut: int | None) -> str:
    """Links to the pages of models, tasks and sweeps.

    Args:
        groups: Heading, path, names.
        cut: How many of the newest results the names come from, where there are more.
    """
    named = [
        (
            heading,
            [
                # A name that makes no address stays without a link.
                (cut_text(name, 200), f"{path}?{urlencode({'name': name})}" if len(name) <= LINKED else "")
                for name in names
            ],
        )
        for heading, path, names in groups
    ]
    return _page("index.html", title="Models, tasks, sweeps", groups=named, cut=cut)


def compare_form(choices: Sequence[ResultSummary], *, a: str = "", b: str = "") -> str:
    """A form for two ids, with the newest results that can be compared."""
    return _page(
        "compare_form.html", title="Compare two results", rows=[_row(each) for each in choices], a=a, b=b
    )


def monitors_page(monitors: Sequence[Mapping[str, Any]]) -> str:
    """The monitors with their state: `name`, `n`, `error`, `alarm`, `time`."""
    return _page("monitors.html", title="Monitors", monitors=bounded(monitors))


def waiting_page(name: str, error: str | None) -> str:
    """A monitor that has no reading to show."""
    return _page("waiting.html", title=f"Monitor {cut_text(name, 200)}", name=name, error=error)


def failed_page(document_page: str, name: str, error: str) -> str:
    """The page of a monitor that stopped with an error: what it has read, below what went wrong."""
    note = environment().get_template("failed.html").render(name=name, error=cut_text(error))
    return document_page.replace("<main>", f"<main>\n{note}", 1)


def message_page(title: str, message: str, *, navigation: bool = True) -> str:
    """A page that says one thing: an error, or how to get in."""
    body = environment().get_template("message.html").render(title=title, message=cut_text(message))
    return page(body, title=title, served=navigation)


def _page(template: str, *, title: str, served: bool = True, **values: Any) -> str:
    made = environment().get_template(template).render(title=title, words=words, served=served, **values)
    return page(re.sub(r"\n\s*\n+", "\n", made), title=cut_text(title, 200), served=served)


def _row(summary: ResultSummary) -> dict[str, Any]:
    row = bounded(row_of(summary), limit=200)
    digits = words.precision(row["low"], row["high"])
    mark, status = words.STATUSES.get(row["status"] or "", ("", row["status"] or ""))
    return {
        **row,
        "mark": mark,
        "status": "" if status == "no verdict" else status,
        "shown": "" if row["value"] is None else words.number(float(row["value"]), digits),
        "interval": words.interval(row["low"], row["high"], digits),
    }


def _facts(record: object, prefix: str = "") -> list[tuple[str, str]]:
    """Dotted names and values of a record, long lists as their length and beginning."""
    if isinstance(record, Mapping):
        return [
            pair
            for key, value in record.items()
            for pair in _facts(value, f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(record, list):
        plain = [each for each in record if not isinstance(each, Mapping | list)]
        if len(plain) == len(record) <= 12:
            return [(cut_text(prefix, 200), cut_text(", ".join(_said(each) for each in record)))]
        return [(cut_text(prefix, 200), f"{len(record):,} entries")]
    return [(cut_text(prefix, 200), _said(record))]


def _said(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    return cut_text(str(value))
