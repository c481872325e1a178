"""`assay store`: look through a store, check it, clear it, and carry results to and from it."""

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import STORE, command, family
from assay.app.cli.results import show
from assay.app.console import echo, print_json, print_table, remark, say
from assay.app.option_groups import OUTPUT, RUNNING, STORED, at_least
from assay.app.running import Storing, Talking
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.store import ResultSummary

store_app = family(STORE, "store", "List, show, remove, check and merge stored results.")
command(parent=store_app, example="assay store show 3f2a91c0 --json")(show)


@dataclass(frozen=True, kw_only=True)
class ListSettings(Storing, Talking):
    """Which results are listed, and how.

    Attributes:
        kind: Only results of this kind: audit, benchmark, calibration, circuit, correctness,
            domain-evaluation, job, measurement, monitor, ranking, ranking-comparison, scores, stable-pick,
            subset-evaluation, subset-part, subset-path, sweep, worst_case or zoo.
        model: Only results of this model.
        task: Only results of this task or data set.
        method: Only results of this discovery method.
        metric: Only results of this metric.
        circuit: Only results about the circuit of this hash.
        name: Only results of this name, such as that of a sweep.
        status: Only results with this verdict, or state of a job.
        order: Column to order results by; -created: the newest first.
        limit: Maximum number of results.
        offset: Number of results to skip.
        csv: Print results as CSV, one line each.
    """

    kind: Annotated[str | None, STORED] = None
    model: Annotated[str | None, STORED] = None
    task: Annotated[str | None, STORED] = None
    method: Annotated[str | None, STORED] = None
    metric: Annotated[str | None, STORED] = None
    circuit: Annotated[str | None, STORED] = None
    name: Annotated[str | None, STORED] = None
    status: Annotated[str | None, STORED] = None
    order: Annotated[str, STORED, Parameter(allow_leading_hyphen=True)] = "created"
    limit: Annotated[int | None, STORED, at_least(0)] = None
    offset: Annotated[int, STORED, at_least(0)] = 0
    csv: Annotated[bool, OUTPUT] = False


@command(parent=store_app, example="assay store ls --metric kl --task ioi --order=-value")
def ls(settings: ListSettings) -> None:
    """List the results of a store."""
    if settings.csv and settings.json:
        raise InputError("--csv and --json exclude each other; give one of them")
    names = ("kind", "model", "task", "method", "metric", "circuit", "name", "status")
    asked = {name: value for name in names if (value := getattr(settings, name)) is not None}
    store = settings.existing_store()
    results = store.query(**asked, order=settings.order, limit=settings.limit, offset=settings.offset)
    _print_summaries(results, as_csv=settings.csv, as_json=settings.json)
    for name in () if results or settings.quiet else asked:
        if not store.count(**{name: asked[name]}):
            remark(f"the store does not hold a result with {name} {asked[name]!r}")


def _print_summaries(found: "Sequence[ResultSummary]", *, as_csv: bool, as_json: bool) -> None:
    if as_json:
        print_json([{**asdict(each), "about": each.about} for each in found])
        return
    if as_csv:
        from assay.store.result import COLUMNS

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
            found = store.get(each)
            say(f"{found.id}  {found.kind}  {found.about}")
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
    problems = store.verify()
    if settings.json:
        print_json({"results": store.count(), "problems": problems})
    else:
        for problem in problems:
            echo(problem)
        echo(f"{store.count():,} results, {len(problems):,} problems")
    return 1 if problems else 0


@dataclass(frozen=True, kw_only=True)
class CleanSettings(Talking, Storing):
    """Which store is cleared.

    Attributes:
        older_than: Also remove parts of interrupted selections of at least this age, e.g. 12h, 30d.
    """

    older_than: Annotated[str, RUNNING] = "30d"


@command(parent=store_app, example="assay store clean --older-than 7d")
def clean(settings: CleanSettings) -> None:
    """Remove what killed runs left and no result needs."""
    from assay.pipeline.plan import seconds_of
    from assay.pipeline.subsets import abandoned_parts, remove_parts

    age, store = seconds_of(settings.older_than), settings.existing_store()
    parts = abandoned_parts(store, older_than=age)
    remove_parts(store, parts)
    left = store.clean()
    if settings.json:
        print_json({"files": [str(path) for path in left], "parts": [each.id for each in parts]})
        return
    for text in (*map(str, left), *(f"{each.id}  {each.kind}" for each in parts)):
        echo(text)
    echo(f"{len(left):,} files and {len(parts):,} parts of selections removed")
