"""Pages that only `assay serve` has: the list of results, messages."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

from assay.page import text as words
from assay.page.blocks import Block, Cell, Column, Custom, Note, Page, Table
from assay.page.html import render_pages
from assay.page.text import Span, Text, bounded, code, cut_text, number, quiet, result_link
from assay.store import ResultSummary


COLUMNS = ["kind", "model", "task", "method", "ablation", "metric", "n", "seed", "value", "status", "created"]
NUMERIC = ("n", "seed", "value")


def results_page(
    results: Sequence[ResultSummary],
    *,
    n: int,
    start: int,
    filters: Mapping[str, str],
    order: str,
    kinds: Sequence[str],
    size: int,
) -> str:
    """A list of results with its filters.

    Args:
        results: The results of this page.
        n: How many match.
        start: How many stand before this page.
        filters: Chosen values by column.
        order: Column, or `-column`.
        kinds: Kinds to choose from.
        size: Results per page.
    """
    asked = {key: value for key, value in filters.items() if value}

    def address(**changes: Any) -> str:
        return "/?" + urlencode({**asked, "order": order, **changes})

    nothing: Text = ("The store is empty: ", code("assay audit"), " makes a first result.")
    if asked:
        nothing = "Nothing matches these filters."
    form = {
        "filters": filters,
        "order": order,
        "kinds": kinds,
        "narrowed": bool(asked),
    }
    ends = {
        "before": address(start=max(0, start - size)) if start else None,
        "after": address(start=start + size) if start + len(results) < n else None,
        "first": start + 1,
        "last": start + len(results),
        "n": n,
    }
    columns = [Column(name="result"), *(_ordered(name, order, address) for name in COLUMNS)]
    shown: Block = Note(text=nothing, style="quiet")
    if results:
        shown = Table(columns=columns, rows=[_row(each) for each in results], style="results")
    page = Page(
        kind="results store",
        title=f"{words.plural(n, 'result')}{' match' if asked else ''}",
        head=[
            Custom(template="filters.html", values=form),
            shown,
            Custom(template="turn.html", values=ends),
        ],
    )
    return render_pages([page], served=True)


def _ordered(name: str, order: str, address: Any) -> Column:
    """A heading that orders the list when it is followed."""
    sorted_ = {f"-{name}": "descending", name: "ascending"}.get(order, "")
    link = address(order=name if order == f"-{name}" else f"-{name}")
    return Column(name=Span(name, "", link=link), numeric=name in NUMERIC, sorted=sorted_)


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


def message_page(title: str, message: str, *, navigation: bool = True) -> str:
    """A page that says one thing: an error, or how to get in."""
    return render_pages([Page(kind="", title=title, verdict=cut_text(message))], served=navigation)
