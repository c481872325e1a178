"""`assay store`: look through a store, check it, clear it, and carry results to and from it."""

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import STORE, command, family
from assay.app.cli.results import StoreSettings, show
from assay.app.delivery import Storing, Talking, echo, print_table, remark, say
from assay.app.options import FILTERS, OUTPUT, RUNNING, STORED, at_least
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.store import ResultSummary

store_app = family(STORE, "store", "List, show, remove, check and merge stored results.")
command(parent=store_app, example="assay store show 3f2a91c0 --json")(show)


@dataclass(frozen=True, kw_only=True)
class ListSettings(Storing, Talking):
    """Which results are listed, and how.

    Attributes:
        kind: Only results of this kind, e.g. audit, measurement, worst_case, calibration or sweep.
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

    kind: Annotated[str | None, FILTERS] = None
    model: Annotated[str | None, FILTERS] = None
    task: Annotated[str | None, FILTERS] = None
    method: Annotated[str | None, FILTERS] = None
    metric: Annotated[str | None, FILTERS] = None
    circuit: Annotated[str | None, FILTERS] = None
    name: Annotated[str | None, FILTERS] = None
    status: Annotated[str | None, FILTERS] = None
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
    filters = {name: value for name in names if (value := getattr(settings, name)) is not None}
    store = settings.existing_store()
    results = store.query(**filters, order=settings.order, limit=settings.limit, offset=settings.offset)
    settings.deliver(
        [{**asdict(each), "about": each.about} for each in results],
        show=lambda: _write_csv(results) if settings.csv else _print_summaries(results),
    )
    for name in () if results or settings.quiet else filters:
        if not store.count(**{name: filters[name]}):
            remark(f"the store does not hold a result with {name} {filters[name]!r}")


def _write_csv(results: "Sequence[ResultSummary]") -> None:
    from assay.store.database import COLUMNS

    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, results))


def _print_summaries(results: "Sequence[ResultSummary]") -> None:
    rows = []
    for each in results:
        value = "" if each.value is None else f"{each.value:.4g}"
        if each.low is not None and each.high is not None:
            value += f" [{each.low:.4g}, {each.high:.4g}]"
        facts = (each.id, each.kind, each.created[:19], each.model, each.task, each.title, value, each.status)
        rows.append([fact or "" for fact in facts])
    columns = ["id", "kind", "created", "model", "task", "name", "value", "status"]
    print_table("", columns, rows, right=("value",))


@dataclass(frozen=True, kw_only=True)
class RemoveSettings(Talking, Storing):
    """How results are removed.

    Attributes:
        yes: Remove; without it the results are shown.
        force: Also remove results that others refer to.
    """

    yes: Annotated[bool, RUNNING] = False
    force: Annotated[bool, RUNNING] = False


@command(parent=store_app, example="assay store rm 3f2a91c0 8d21 --yes")
def rm(*identities: Annotated[str, Parameter(name="ID")], settings: RemoveSettings) -> None:
    """Remove results and the arrays that only they have.

    Args:
        identities: Ids of results, or their beginnings.
        settings: The options.
    """
    if not identities:
        raise InputError("no result to remove; give ids, see `assay store ls`")
    store = settings.existing_store()
    if not settings.yes:
        for found in map(store.get, identities):
            say(f"{found.id}  {found.kind}  {found.about}")
        raise InputError("nothing was removed; pass --yes to remove these")
    removed = store.remove(identities, force=settings.force)
    settings.deliver(
        {"removed": [each.id for each in removed]}, show=lambda: echo(f"{len(removed):,} removed")
    )


@command(parent=store_app, example="assay store merge ../other/assay-out --store assay-out")
def merge(*others: Annotated[str, Parameter(name="OTHER")], settings: StoreSettings) -> None:
    """Add the results of other stores.

    Args:
        others: Other stores, each a directory or a URL; only read.
        settings: The options.
    """
    from assay.store import Store

    sources = [Store(other, create=False) for other in others]
    store = settings.open_store()
    added = [identity for source in sources for identity in store.merge(source)]
    n = sum(source.count() for source in sources)
    settings.deliver(
        {"added": added, "results": n},
        show=lambda: echo(f"{len(added):,} added, {n - len(added):,} already there"),
    )


@command(parent=store_app, example="assay store verify --store assay-out")
def verify(settings: StoreSettings) -> int:
    """Check every result and array; exit with 1 if one is wrong."""
    store = settings.existing_store()
    problems = store.verify()
    lines = [*problems, f"{store.count():,} results, {len(problems):,} problems"]
    settings.deliver({"results": store.count(), "problems": problems}, show=lambda: echo("\n".join(lines)))
    return 1 if problems else 0


@command(parent=store_app, example="assay store clean")
def clean(settings: StoreSettings) -> None:
    """Remove what killed runs left and no result needs."""
    files = list(map(str, settings.existing_store().clean()))
    lines = [*files, f"{len(files):,} files removed"]
    settings.deliver({"files": files}, show=lambda: echo("\n".join(lines)))
