"""`assay store`: look through a store, check it, clear it, and carry results to and from it."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.app.cli.border import echo, print_json, say
from assay.app.cli.parsing import STORE, command, family
from assay.app.cli.results import ListSettings, list_results, show
from assay.app.settings import DEFAULT_STORE, RUNNING, STORED, Storing, Talking
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.store import Leftover

_KINDS = {"temporary": "temporary files", "array": "arrays of no result"}

store_app = family(STORE, "store", "List, show, remove, check, export and merge stored results.")
command(parent=store_app, example="assay store show 3f2a91c0 --json")(show)


@dataclass(frozen=True, kw_only=True)
class FilterSettings(ListSettings):
    """Which results are listed.

    Attributes:
        model: Only results of this model.
        task: Only results of this task or data set.
        method: Only results of this discovery method.
    """

    model: Annotated[str | None, STORED] = None
    task: Annotated[str | None, STORED] = None
    method: Annotated[str | None, STORED] = None


@command(parent=store_app, example="assay store ls --kind measurement --task ioi --order=-created")
def ls(settings: FilterSettings) -> None:
    """List the results of a store."""
    asked = [(name, getattr(settings, name)) for name in ("model", "task", "method")]
    more = (f"{name} = {json.dumps(value)}" for name, value in asked if value is not None)
    list_results(replace(settings, where=(*settings.where, *more)))


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
    from assay.store import Store

    if not identities:
        raise InputError("no result to remove; give ids, see `assay store ls`")
    store = Store(settings.store or DEFAULT_STORE, create=False)
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
    from assay.store import Store, export_results

    store = Store(settings.store or DEFAULT_STORE, create=False)
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
    added = Store(settings.store or DEFAULT_STORE).merge(source)
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
    from assay.store import Store

    store = Store(settings.store or DEFAULT_STORE, create=False)
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
    """

    dry_run: Annotated[bool, RUNNING] = False


@command(parent=store_app, example="assay store gc --dry-run")
def gc(settings: CleanSettings) -> None:
    """Remove files that killed runs left and no result needs."""
    from assay.store import Store

    store = Store(settings.store or DEFAULT_STORE, create=False)
    left = store.leftovers() if settings.dry_run else store.remove_leftovers()
    if settings.json:
        print_json({"removed": not settings.dry_run, "leftovers": _listed(left)})
        return
    for each in left:
        echo(str(each.path))
    echo(f"{_counted(left)} {'would be removed' if settings.dry_run else 'removed'}")


def _counted(found: "Sequence[Leftover]") -> str:
    parts = [f"{sum(each.kind == kind for each in found):,} {words}" for kind, words in _KINDS.items()]
    return f"{' and '.join(parts)} ({sum(each.size for each in found):,} bytes)"


def _listed(found: "Sequence[Leftover]") -> list[dict[str, object]]:
    return [{"path": str(each.path), "kind": each.kind, "bytes": each.size} for each in found]
