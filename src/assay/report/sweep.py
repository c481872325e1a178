"""A sweep: a table of its jobs and of what they measured, and the page of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.core.errors import InputError, UnknownNameError
from assay.page import text as words
from assay.page.blocks import Cell, Column, Page, Section, Table, columns, folded_record
from assay.page.text import Text, code, cut_text, listed, number, plural, quiet, result_link
from assay.store import Store, StoredResult


if TYPE_CHECKING:
    import pandas as pd

ROWS = 1_000  # of a page's tables
NUMBERS = ("measure", "model", "task", "value", "low", "high", "n", "verdict", "result")
Row = Mapping[str, Any]


def find_result(store: Store, name: str) -> StoredResult:
    """The newest sweep of a name, or the result of an id or of its beginning."""
    named = store.query("sweep", name=name, order="-created", limit=1)
    if not named and not set(name) <= set("0123456789abcdef"):
        shown = cut_text(name, 80)
        raise UnknownNameError(f"no sweep is called {shown!r}; see `assay store ls --kind sweep`")
    return store.get(named[0].id if named else name)


def sweep_frame(store: Store, sweep: str) -> "pd.DataFrame":
    """The jobs of a sweep and what they measured, a row per result.

    Args:
        store: Where the sweep and its results are.
        sweep: Its name, or the id of its row, or the beginning of the id.

    Returns:
        Columns `job`, `kind`, `status`, `error`, `measure`, `model`, `task`, `value`, `low`, `high` (95 %
        interval), `n`, `verdict` and `result`, the id. A job without a result in the store has a row, too.

    Raises:
        InputError: For the id of another result.
        UnknownNameError: For a name or an id that the store does not have.
    """
    import pandas as pd

    result = find_result(store, sweep)
    if result.kind != "sweep":
        raise InputError(f"{result.id} is a {result.kind}, not a sweep; see `assay store ls --kind sweep`")
    return pd.DataFrame(sweep_rows(store, result.payload["jobs"]))


def sweep_rows(store: Store, jobs: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows of `sweep_frame` for jobs: `name`, `kind`, `results`, and `status` and `error` if known."""
    summaries = {each.id: each for each in store.query()}
    rows = []
    for job in jobs:
        facts = {"job": job["name"], "kind": job["kind"], "status": job.get("status") or "done"}
        facts |= {"error": job.get("error"), **dict.fromkeys(NUMBERS)}
        for each in (summaries[key] for key in job["results"] if key in summaries):
            measure = each.metric or each.name or each.kind
            own = {"measure": measure, "verdict": each.status, "result": each.id}
            rows.append(facts | {name: getattr(each, name) for name in NUMBERS[1:-2]} | own)
        if not any(key in summaries for key in job["results"]):
            rows.append(facts)
    return rows


def sweep_page(store: Store, sweep: str) -> Page:
    """The page of a stored sweep, by its name or id, as `sweep_frame` takes them."""
    result = find_result(store, sweep)
    rows = sweep_rows(store, result.payload["jobs"])
    made: Text = (code(result.id), " ", quiet(result.created[:16].replace("T", " ")))
    plan = folded_record("The plan behind the sweep", result.provenance)
    return jobs_page(str(result.payload["name"]), rows, facts=[("result", made)], records=[plan])


def jobs_page(name: str, rows: Sequence[Row], **more: Any) -> Page:
    """The page of the jobs of a sweep, those that failed first.

    Args:
        name: Of the sweep.
        rows: As `sweep_rows` gives them.
        more: Further entries of the page.
    """
    states = Counter({row["job"]: row["status"] for row in rows}.values())
    sections = [Section(title="Jobs and what they measured", blocks=[_table(rows)])]
    why: list[list[Cell | Text]] = [
        [cut_text(row["job"], 200), Cell(text=cut_text(row["error"] or ""), style="why")]
        for row in rows
        if row["status"] == "failed"
    ]
    if why:
        again = ("Run the same ", code("assay sweep"), " again to retry them; finished jobs are kept.")
        table = Table(columns=columns("job", "why"), rows=why[:ROWS], caption=again, tall=len(why) > 20)
        sections.insert(0, Section(title="Jobs that failed", blocks=[table]))
    counts = listed([f"{count:,} {state}" for state, count in sorted(states.items())])
    verdict = f"{plural(states.total(), 'job')}: {counts}."
    return Page(kind="sweep", title=f"Sweep {name}", verdict=verdict, sections=sections, **more)


def _table(rows: Sequence[Row]) -> Table:
    cut = "" if len(rows) <= ROWS else f"The first {ROWS:,} of {len(rows):,} rows. "
    return Table(
        columns=[
            *columns("job", "state", "model", "task", "measure", sort=True),
            Column(name="value", numeric=True, sort=True),
            Column(name="interval"),
            Column(name="n", numeric=True, sort=True),
            *columns("verdict", "result", sort=True),
        ],
        rows=[_row(row) for row in rows[:ROWS]],
        caption=f"{cut}Brackets hold 95 % intervals over examples.",
        tall=len(rows) > 20,
    )


def _row(row: Row) -> list[Any]:
    value, n = row["value"], row["n"]
    shown, between = ("", "") if value is None else words.estimate(value, row["low"], row["high"])
    failed = Cell(status="failed", mark="✕", style="nowrap is-fail")
    return [
        cut_text(row["job"], 200),
        failed if row["status"] == "failed" else Cell(text=row["status"], style="nowrap"),
        *(cut_text(row[name] or "", 200) for name in ("model", "task", "measure")),
        Cell(text=shown, value=value),
        Cell(text=between, style="quiet nowrap"),
        Cell(text="" if n is None else number(n), value=n),
        Cell(status="" if row["verdict"] in (None, "none") else row["verdict"]),
        result_link(row["result"]) if row["result"] else "",
    ]
