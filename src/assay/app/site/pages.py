"""What `assay serve` answers, each page made when it is asked for: the list of results, a result, notices."""

import logging
import re
from collections.abc import Mapping
from dataclasses import asdict
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from assay.core.errors import AssayError, InputError, UnknownNameError
from assay.page import text as words
from assay.page.blocks import Block, Cell, Column, Interactive, Note, Page, Table
from assay.page.html import render_pages
from assay.page.text import Span, Text, bounded, code, cut_text, number, quiet, result_link
from assay.report.save import stored_pages
from assay.store import ResultSummary, Store


PAGE_SIZE = 100  # results of one page of the list
FILTERS = ("kind", "model", "task", "metric", "status")
COLUMNS = ("kind", "model", "task", "method", "ablation", "metric", "n", "seed", "value", "status", "created")
NUMERIC = ("n", "seed", "value")
_LOG = logging.getLogger("assay.serve")


class Pages:
    """The answers; plain functions of the store, run outside the event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def results(self, request: Request) -> Response:
        """The list of results, filtered, ordered and paged by the values of the address."""
        values = request.query_params
        filters = {name: values.get(name, "").strip() for name in FILTERS}
        chosen = {name: value for name, value in filters.items() if value}
        order, start = values.get("order") or "-created", values.get("start") or "0"
        if not re.fullmatch(r"[0-9]{1,9}", start):
            raise InputError(f"start is {start!r}; expected a whole number")
        if order.removeprefix("-") not in COLUMNS:
            raise InputError(f"cannot order by {order!r}; columns are {', '.join(COLUMNS)}")
        n, first = self._store.count(**chosen), int(start)
        results = self._store.query(**chosen, order=order, limit=PAGE_SIZE, offset=first)

        def address(**changes: object) -> str:
            return "/?" + urlencode({**chosen, "order": order, **changes})

        form = {"filters": filters, "order": order, "narrowed": bool(chosen)}
        ends = {
            "before": address(start=max(0, first - PAGE_SIZE)) if first else None,
            "after": address(start=first + PAGE_SIZE) if first + len(results) < n else None,
            "first": first + 1,
            "last": first + len(results),
            "n": n,
        }
        headings = [Column(name="result")]
        for name in COLUMNS:  # a heading orders the list when it is followed
            link = address(order=name if order == f"-{name}" else f"-{name}")
            direction = {f"-{name}": "descending", name: "ascending"}.get(order, "")
            headings.append(Column(name=Span(name, "", link=link), numeric=name in NUMERIC, sorted=direction))
        nothing: Text = ("The store is empty: ", code("assay audit"), " makes a first result.")
        shown: Block = Note(text="Nothing matches these filters." if chosen else nothing, style="quiet")
        if results:
            shown = Table(columns=headings, rows=[_row(each) for each in results], style="results")
        page = Page(
            kind="results store",
            title=f"{words.plural(n, 'result')}{' match' if chosen else ''}",
            head=[
                Interactive(macro="filters", values=form),
                shown,
                Interactive(macro="turn", values=ends),
            ],
        )
        return HTMLResponse(render_pages([page], served=True))

    def result(self, request: Request) -> Response:
        """One result."""
        identity = request.path_params["identity"]
        if not re.fullmatch(r"[0-9a-f]{4,64}", identity):
            raise UnknownNameError("a result's id is 4 or more hex digits; see the list of results")
        result = self._store.get(identity)
        return HTMLResponse(render_pages(stored_pages(self._store, result), served=True))


def _row(summary: ResultSummary) -> list[Cell | Text]:
    """A result as a line of a list."""
    row = bounded(asdict(summary), limit=200)
    shown, between = words.estimate(row["value"], row["low"], row["high"])
    status = row["status"] or ""
    value = "" if row["value"] is None else shown
    return [
        result_link(row["id"]),
        *(row[name] or "" for name in COLUMNS[: COLUMNS.index("n")]),
        "" if row["n"] is None else number(row["n"]),
        "" if row["seed"] is None else str(row["seed"]),
        (value, " ", quiet(between)),
        Cell(status="" if status == "none" else status),
        Cell(text=row["created"][:16].replace("T", " "), style="quiet"),
    ]


# ---- where there is no page to show -------------------------------------------------------------


def notice(status: int, title: str, message: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """A page with a message: a refusal, a mistake of the visitor, a failure."""
    page = Page(kind="", title=title, verdict=cut_text(message))
    text = render_pages([page], served=status not in (400, 401))
    return HTMLResponse(text, status_code=status, headers=headers)


def _error(request: Request, error: Exception) -> Response:
    """A page that explains a visitor's mistake, and says nothing of other errors."""
    match error:
        case HTTPException(status_code=404):
            text = "This page does not exist. The first page lists the results of the store."
            return notice(404, "Nothing here", text)
        case HTTPException():
            return notice(error.status_code, "Not possible", str(error.detail), headers=error.headers)
        case UnknownNameError():
            return notice(404, "Not found", str(error))
        case InputError():
            return notice(400, "Not understood", str(error))
        case AssayError():  # errors of no name are raised again behind this page, for uvicorn to log
            _LOG.error("%s failed", request.url.path, exc_info=error)
    text = "The page could not be built. See the log of the server for the reason."
    return notice(500, "Something failed", text)


HANDLERS = dict.fromkeys((HTTPException, AssayError, Exception), _error)
