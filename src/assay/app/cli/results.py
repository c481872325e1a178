"""`assay list` and `assay show`: what is registered, and what a store holds."""

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.app.cli.border import echo, print_json, print_pages, print_result, print_table, say
from assay.app.cli.parsing import STORE, command
from assay.app.names import one_of
from assay.app.settings import DEFAULT_STORE, OUTPUT, STORED, Storing, Talking, at_least
from assay.core.errors import InputError, unknown_name
from assay.core.untrusted import printable


if TYPE_CHECKING:
    from assay.store import ResultSummary, Store

RESULTS = "results"
LISTED = (
    "methods",
    "metrics",
    "gates",
    "head-methods",
    "tasks",
    "ablations",
    "interventions",
    "objectives",
    "divergences",
    "distances",
    "corruptions",
    "circuits",
    "models",
    RESULTS,
)
KINDS = (
    "audit",
    "calibration",
    "circuit",
    "job",
    "measurement",
    "pairs-part",
    "ranking",
    "ranking-comparison",
    "scores",
    "scores-part",
    "subset-path",
    "sweep",
    "worst_case",
)
NEWEST = 100  # results that are looked at for what a question without an answer asks about


@dataclass(frozen=True, kw_only=True)
class ListSettings(Storing, Talking):
    """Which results are listed, and how.

    Attributes:
        kind: Only results of this kind: audit, calibration, circuit, job, measurement, pairs-part, ranking,
            ranking-comparison, scores, scores-part, subset-path, sweep or worst_case.
        where: Condition on results, e.g. 'metric = kl', 'value >= 0.9', 'task ~ ioi', 'payload.reason =
            null'; repeat for several.
        order: Column to order results by; -created: the newest first.
        limit: Maximum number of results.
        offset: Number of results to skip.
        csv: Print results as CSV, one line each.
    """

    kind: Annotated[str | None, STORED, one_of(*KINDS)] = None
    where: Annotated[tuple[str, ...], STORED] = ()
    order: Annotated[str, STORED, Parameter(allow_leading_hyphen=True)] = "created"
    limit: Annotated[int | None, STORED, at_least(0)] = None
    offset: Annotated[int, STORED, at_least(0)] = 0
    csv: Annotated[bool, OUTPUT] = False

    @property
    def asks_a_store(self) -> bool:
        """Whether something is set that only results have."""
        return bool(self.where or self.offset or self.csv) or (self.kind, self.limit) != (None, None)


@command(STORE, name="list", example="assay list results --where 'metric = kl' --order=-value")
def list_(kind: Annotated[str, one_of(*LISTED)], /, *, settings: ListSettings) -> None:
    """List what is registered, or the results of a store.

    Args:
        kind: methods, metrics, gates, head-methods, tasks, ablations, interventions, objectives, divergences,
            distances, corruptions, circuits, models or results.
        settings: The options.
    """
    if settings.csv and settings.json:
        raise InputError("--csv and --json exclude each other; give one of them")
    if kind == RESULTS:
        list_results(settings)
        return
    if settings.asks_a_store:
        raise InputError(
            f"--kind, --where, --limit, --offset and --csv work only with `assay list {RESULTS}`"
        )
    from assay.catalogue import list_entries

    if kind not in LISTED:
        raise unknown_name("kind", kind, LISTED)
    entries = list_entries(kind)
    if settings.json:
        print_json([entry.to_dict() for entry in entries])
        return
    print_table("", ["key", "description"], [[entry.key, entry.summary] for entry in entries])


def list_results(settings: ListSettings) -> None:
    """The results of a store as a table, CSV or JSON."""
    from assay.store import Store

    store = Store(settings.store or DEFAULT_STORE, create=False)
    results = store.query(
        settings.kind,
        where=settings.where,
        order=settings.order,
        limit=settings.limit,
        offset=settings.offset,
    )
    _print_summaries(results, as_csv=settings.csv, as_json=settings.json)
    if not results and not settings.quiet:
        for note in _notes_on_nothing(store, settings.kind, settings.where):
            say(f"note: {note}")


def _notes_on_nothing(store: "Store", kind: str | None, where: Sequence[str]) -> list[str]:
    """What a question without an answer asks about that none of the newest results has."""
    from assay.store.where import parse_where

    newest = store.query(kind, order="-created", limit=NEWEST)
    if not newest:
        return [] if kind is None else [f"the store does not hold a result of kind {kind!r}"]
    since = f'created >= "{newest[-1].created}"'
    asked = {each.key: None for each in parse_where(where) if (each.operator, each.value) != ("=", None)}
    missing = [key for key in asked if not store.query(kind, where=[since, f"{key} != null"], limit=1)]
    of = "" if kind is None else f" of kind {kind!r}"
    return [
        (
            f"none of the newest {len(newest)} results{of} has {key}; `assay show ID --json` prints the "
            "fields of one"
        )
        for key in missing
    ]


def _print_summaries(found: "Sequence[ResultSummary]", *, as_csv: bool, as_json: bool) -> None:
    if as_json:
        print_json([{**asdict(each), "about": each.about} for each in found])
        return
    if as_csv:
        from assay.store.about import COLUMNS

        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(each) for each in found)
        return
    rows = [
        [
            *(each.id, each.kind, each.created[:19], each.model or "", each.task or "", each.title),
            *(_value(each), each.status or ""),
        ]
        for each in found
    ]
    columns = ["id", "kind", "created", "model", "task", "name", "value", "status"]
    print_table("", columns, rows, right="value")


def _value(found: "ResultSummary") -> str:
    """The number, with its interval where there is one."""
    if found.value is None:
        return ""
    interval = "" if found.low is None or found.high is None else f" [{found.low:.4g}, {found.high:.4g}]"
    return f"{found.value:.4g}{interval}"


@dataclass(frozen=True, kw_only=True)
class ShowSettings(Storing, Talking):
    """Where a result is shown from, and how."""


@command(STORE, example="assay show 3f2a91c0 --json")
def show(identity: Annotated[str, Parameter(name="ID")], /, *, settings: ShowSettings) -> None:
    """Show one stored result.

    Args:
        identity: Id of a result, or its beginning.
        settings: The options.
    """
    from assay.store import Store

    found = Store(settings.store or DEFAULT_STORE, create=False).get(identity)
    if settings.json:
        print_json(found.document())
        return
    echo(printable(f"{found.kind} {found.id}, {found.created[:19]}", lines=False))
    echo(printable(found.summary.about, lines=False))
    echo()
    from assay.report.record import has_page, record_page

    if has_page(found):
        print_result(found.payload)
    else:
        print_pages(record_page(found))
