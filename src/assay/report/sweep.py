"""A sweep: a table of its jobs and of what they measured, and the page of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.core.errors import InputError, UnknownNameError
from assay.page import text as words
from assay.page.blocks import Cell, Column, Page, Section, Table, folded_record
from assay.page.text import code, cut_text, listed, noun, number, quiet, result_link
from assay.store import ResultSummary, Store, StoredResult


if TYPE_CHECKING:
    import pandas as pd

ROWS = 1_000  # of a page's tables
NUMBERS = ("measure", "model", "task", "value", "low", "high", "n", "verdict", "result")
Row = Mapping[str, Any]


def find_sweep(store: Store, name: str) -> StoredResult:
    """The newest sweep of a name, or the one of an id or of its beginning.

    Raises:
        InputError: For the id of another result.
        UnknownNameError: For a name that no sweep of the store has.
    """
    if named := named_sweep(store, name):
        return named
    if set(name) <= set("0123456789abcdef"):
        found = store.get(name)
        if found.kind == "sweep":
            return found
        raise InputError(f"{found.id} is a {found.kind}, not a sweep; see `assay store ls --kind sweep`")
    raise UnknownNameError(
        f"the store at {store.directory} holds no sweep {cut_text(name, 80)!r}; it has "
        f"{store.count('sweep'):,}: see `assay store ls --kind sweep`"
    )


def named_sweep(store: Store, name: str) -> StoredResult | None:
    """The newest sweep of a name, if there is one."""
    named = store.query("sweep", name=name, order="-created", limit=1)
    return store.get(named[0].id) if named else None


def sweep_frame(store: Store, sweep: str) -> "pd.DataFrame":
    """The jobs of a sweep and what they measured, a row per result.

    Args:
        store: Where the sweep and its results are.
        sweep: Its name, or the id of its row, or the beginning of the id.

    Returns:
        Columns `job`, `kind`, `status`, `error`, `measure`, `model`, `task`, `value`, `low`, `high` (95 %
        interval), `n`, `verdict` and `result`, the id. A job without a result in the store has a row, too.
    """
    import pandas as pd

    return pd.DataFrame(sweep_rows(store, find_sweep(store, sweep).payload["jobs"]))


def sweep_rows(store: Store, jobs: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows of `sweep_frame` for jobs: `name`, `kind`, `results`, and `status` and `error` if known."""
    jobs = list(jobs)
    wanted = {key for job in jobs for key in job["results"]}
    summaries = {each.id: each for each in store.query() if each.id in wanted}
    rows = []
    for job in jobs:
        facts = {
            "job": job["name"],
            "kind": job["kind"],
            "status": job.get("status") or "done",
            "error": job.get("error"),
        }
        found = [_numbers(summaries[key]) for key in job["results"] if key in summaries]
        rows += [{**facts, **each} for each in found or [dict.fromkeys(NUMBERS)]]
    return rows


def _numbers(result: ResultSummary) -> dict[str, Any]:
    facts = {name: getattr(result, name) for name in ("model", "task", "value", "low", "high", "n")}
    measure = result.metric or result.name or result.kind
    return {"measure": measure, **facts, "verdict": result.status, "result": result.id}


def sweep_page(store: Store, sweep: str) -> Page:
    """The page of a stored sweep; see `find_sweep` for what names it."""
    found = find_sweep(store, sweep)
    plan = folded_record("The plan behind the sweep", found.provenance)
    facts = [("result", (code(found.id), " ", quiet(found.created[:16].replace("T", " "))))]
    return jobs_page(
        str(found.payload["name"]), sweep_rows(store, found.payload["jobs"]), facts=facts, records=[plan]
    )


def jobs_page(name: str, rows: Sequence[Row], **more: Any) -> Page:
    """The page of the jobs of a sweep, those that failed first.

    Args:
        name: Of the sweep.
        rows: As `sweep_rows` gives them.
        more: Further entries of the page.
    """
    states = {row["job"]: row["status"] for row in rows}
    told = [f"{count:,} {word}" for word, count in sorted(Counter(states.values()).items())]
    failed = [row for row in rows if row["status"] == "failed"]
    cut = "" if len(rows) <= ROWS else f"The first {ROWS:,} of {len(rows):,} rows. "
    return Page(
        kind="sweep",
        title=f"Sweep {name}",
        verdict=f"{number(len(states))} {noun('job', len(states))}: {listed(told)}.",
        sections=[
            *([Section(title="Jobs that failed", blocks=[_failed(failed)])] if failed else []),
            Section(
                title="Jobs and what they measured",
                blocks=[_table(rows[:ROWS], f"{cut}Brackets hold 95 % intervals over examples.")],
            ),
        ],
        **more,
    )


def _failed(rows: Sequence[Row]) -> Table:
    return Table(
        columns=[Column(name="job", sort=True), Column(name="why")],
        rows=[
            [cut_text(row["job"], 200), Cell(text=cut_text(str(row["error"] or "")), style="why")]
            for row in rows[:ROWS]
        ],
        caption=("Run the same ", code("assay sweep"), " again to retry them; finished jobs are kept."),
        tall=len(rows) > 20,
    )


def _table(rows: Sequence[Row], caption: str) -> Table:
    names = ("job", "state", "model", "task", "measure")
    return Table(
        columns=[
            *(Column(name=name, sort=True) for name in names),
            Column(name="value", numeric=True, sort=True),
            Column(name="interval"),
            Column(name="n", numeric=True, sort=True),
            Column(name="verdict", sort=True),
            Column(name="result", sort=True),
        ],
        rows=[_row(row) for row in rows],
        caption=caption,
        tall=len(rows) > 20,
    )


def _row(row: Row) -> list[Any]:
    value, n = row["value"], row["n"]
    shown, between = words.estimate(value, row["low"], row["high"])
    failed = Cell(status="failed", mark="✕", style="nowrap is-fail")
    return [
        cut_text(row["job"], 200),
        failed if row["status"] == "failed" else Cell(text=row["status"], style="nowrap"),
        *(cut_text(row[name] or "", 200) for name in ("model", "task", "measure")),
        Cell(value="") if value is None else Cell(text=shown, value=value),
        Cell(text="" if value is None else between, style="quiet nowrap"),
        Cell(value="") if n is None else Cell(text=number(n), value=n),
        Cell(status="" if row["verdict"] in (None, "none") else row["verdict"]),
        result_link(row["result"]) if row["result"] else "",
    ]
