"""`assay store`: look through a store, check it, clear it, and carry results to and from it."""

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import STORE, command, family
from assay.app.cli.results import show
from assay.app.console import echo, print_json, print_table, remark, say
from assay.app.option_groups import OUTPUT, RUNNING, STORED, at_least
from assay.app.running import Storing, Talking
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.store import Leftover, ResultSummary, Store

_LEFTOVERS = {"temporary": "temporary files", "array": "arrays of no result"}

NEWEST = 100  # results that are looked at for what a question without an answer asks about

store_app = family(STORE, "store", "List, show, remove, check, export and merge stored results.")
command(parent=store_app, example="assay store show 3f2a91c0 --json")(show)


@dataclass(frozen=True, kw_only=True)
class ListSettings(Storing, Talking):
    """Which results are listed, and how.

    Attributes:
        model: Only results of this model.
        task: Only results of this task or data set.
        method: Only results of this discovery method.
        kind: Only results of this kind: audit, benchmark, calibration, circuit, correctness,
            domain-evaluation, job, measurement, monitor, ranking, ranking-comparison, scores, stable-pick,
            subset-evaluation, subset-part, subset-path, sweep, worst_case or zoo.
        where: Condition on results, e.g. 'metric = kl', 'value >= 0.9', 'task ~ ioi', 'payload.reason =
            null'; repeat for several.
        order: Column to order results by; -created: the newest first.
        limit: Maximum number of results.
        offset: Number of results to skip.
        csv: Print results as CSV, one line each.
    """

    model: Annotated[str | None, STORED] = None
    task: Annotated[str | None, STORED] = None
    method: Annotated[str | None, STORED] = None
    kind: Annotated[str | None, STORED] = None
    where: Annotated[tuple[str, ...], STORED] = ()
    order: Annotated[str, STORED, Parameter(allow_leading_hyphen=True)] = "created"
    limit: Annotated[int | None, STORED, at_least(0)] = None
    offset: Annotated[int, STORED, at_least(0)] = 0
    csv: Annotated[bool, OUTPUT] = False


@command(parent=store_app, example="assay store ls --where 'metric = kl' --task ioi --order=-value")
def ls(settings: ListSettings) -> None:
    """List the results of a store."""
    if settings.csv and settings.json:
        raise InputError("--csv and --json exclude each other; give one of them")
    asked = {"model": settings.model, "task": settings.task, "method": settings.method}
    more = (f"{name} = {json.dumps(value)}" for name, value in asked.items() if value is not None)
    where = (*settings.where, *more)
    store = settings.existing_store()
    results = store.query(
        settings.kind, where=where, order=settings.order, limit=settings.limit, offset=settings.offset
    )
    _print_summaries(results, as_csv=settings.csv, as_json=settings.json)
    for text in () if results or settings.quiet else _notes_on_nothing(store, settings.kind, where):
        remark(text)


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
class RemoveSettings(Talking, Storing):
    """How results are removed.

    Attributes:
        yes: Remove without asking.
        force: Also remove results that others refer to.
    """

    yes: Annotated[bool, RUNNING] = False
    force: Annotated[bool, RUNNING] = False


@command(parent=store_app, example="assay store rm 3f2a91c0 8d21 --yes")
def rm(*identities: Annotated[str, Parameter(name="ID")], settings: RemoveSettings) -> int:
    """Remove results and the arrays that only they have.

    Args:
        identities: Ids of results, or their beginnings.
        settings: The options.
    """
    if not identities:
        raise InputError("no result to remove; give ids, see `assay store ls`")
    store = settings.existing_store()
    if not settings.yes:
        for each in identities:
            summary = store.get(each).summary
            say(f"{summary.id}  {summary.kind}  {summary.about}")
        if not sys.stdin.isatty():
            raise InputError(
                "nothing was removed: cannot ask for confirmation without a terminal; pass --yes"
            )
        say(f"Remove {len(identities)} from {store.directory}? [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            say("nothing was removed")
            return 1
    removed = store.remove(identities, force=settings.force)
    if settings.json:
        print_json({"removed": [each.id for each in removed]})
    else:
        echo(f"{len(removed):,} removed")
    return 0


@dataclass(frozen=True, kw_only=True)
class ExportSettings(Talking, Storing):
    """Which results are exported.

    Attributes:
        kind: Only results of this kind.
        where: Only results for which this holds, e.g. 'metric = kl'; repeat for several.
    """

    kind: Annotated[str | None, STORED] = None
    where: Annotated[tuple[str, ...], STORED] = ()


@command(parent=store_app, example="assay store export results.parquet --kind measurement")
def export(path: Annotated[Path, Parameter(name="PATH")], /, *, settings: ExportSettings) -> None:
    """Write results as Parquet.

    Args:
        path: A .parquet file, or a directory for one file per kind.
        settings: The options.
    """
    from assay.store import export_results

    store = settings.existing_store()
    files = export_results(store, path, settings.kind, settings.where)
    if settings.json:
        print_json({"files": [{"path": str(file), "results": n} for file, n in files.items()]})
    else:
        for file, n in files.items():
            echo(f"{file}  {n:,} results")


@dataclass(frozen=True, kw_only=True)
class MergeSettings(Talking, Storing):
    """Which store takes the results over; it is made where there is none."""


@command(parent=store_app, example="assay store merge ../other/assay-out --store assay-out")
def merge(other: Annotated[str, Parameter(name="OTHER")], /, *, settings: MergeSettings) -> None:
    """Add the results of another store.

    Args:
        other: The other store, a directory or a URL; only read.
        settings: The options.
    """
    from assay.store import Store

    source = Store(other, create=False)
    added = settings.open_store().merge(source)
    if settings.json:
        print_json({"added": added, "results": source.count()})
    else:
        echo(f"{len(added):,} added, {source.count() - len(added):,} already there")


@dataclass(frozen=True, kw_only=True)
class VerifySettings(Talking, Storing):
    """Which store is checked."""


@command(parent=store_app, example="assay store verify --store assay-out")
def verify(settings: VerifySettings) -> int:
    """Check every result and array; exit with 1 if one is wrong."""
    store = settings.existing_store()
    problems, left = store.verify(), store.leftovers()
    if settings.json:
        print_json({"results": store.count(), "problems": problems, "leftovers": _listed(left)})
    else:
        for problem in problems:
            echo(problem)
        echo(f"{store.count():,} results, {len(problems):,} problems")
        if left:
            echo(f"{_counted(left)} left by killed runs; `assay store gc` removes them")
    return 1 if problems else 0


@dataclass(frozen=True, kw_only=True)
class CleanSettings(Talking, Storing):
    """Which store is cleared.

    Attributes:
        dry_run: List what would be removed; remove nothing.
        older_than: Also remove parts of interrupted selections of at least this age, e.g. 12h, 30d.
    """

    dry_run: Annotated[bool, RUNNING] = False
    older_than: Annotated[str, RUNNING] = "30d"


@command(parent=store_app, example="assay store gc --older-than 7d --dry-run")
def gc(settings: CleanSettings) -> None:
    """Remove what killed runs left and no result needs."""
    from assay.pipeline.progress import seconds_of
    from assay.pipeline.subsets import abandoned_parts, remove_parts

    age, store = seconds_of(settings.older_than), settings.existing_store()
    parts = abandoned_parts(store, older_than=age)
    left = store.leftovers() if settings.dry_run else store.remove_leftovers()
    if not settings.dry_run:
        remove_parts(store, parts)
    if settings.json:
        listed = {"leftovers": _listed(left), "parts": [each.id for each in parts]}
        print_json({"removed": not settings.dry_run, **listed})
        return
    for text in (*(str(each.path) for each in left), *(f"{each.id}  {each.kind}" for each in parts)):
        echo(text)
    selections = f"{len(parts):,} parts of selections that are done or older than {settings.older_than}"
    echo(f"{_counted(left)}, {selections} {'would be removed' if settings.dry_run else 'removed'}")


def _counted(found: "Sequence[Leftover]") -> str:
    parts = [f"{sum(each.kind == kind for each in found):,} {words}" for kind, words in _LEFTOVERS.items()]
    return f"{' and '.join(parts)} ({sum(each.size for each in found):,} bytes)"


def _listed(found: "Sequence[Leftover]") -> list[dict[str, object]]:
    return [{"path": str(each.path), "kind": each.kind, "bytes": each.size} for each in found]
