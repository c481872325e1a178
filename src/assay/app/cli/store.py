"""`assay store`: whether a store is whole, and what killed writers left in it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from assay.app.cli.border import command, echo, print_json
from assay.app.cli.commands import app
from assay.app.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    QuietOption,
    StoreOption,
    TracebackOption,
    option,
)


if TYPE_CHECKING:
    from assay.store import Leftover

_KINDS = {"temporary": "temporary files", "array": "arrays of no result"}

store_app = typer.Typer(
    name="store",
    help="Check a results store and clear what killed runs left.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(store_app)


@store_app.command("verify")
@command
def verify(
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Check every result and array; exits with 1 if one is wrong."""
    from assay.store import Store

    kept = Store(store or DEFAULT_STORE, create=False)
    problems, left = kept.verify(), kept.leftovers()
    if as_json:
        print_json({"results": kept.count(), "problems": problems, "leftovers": _listed(left)})
    else:
        for problem in problems:
            echo(problem)
        echo(f"{kept.count():,} results, {len(problems):,} problems")
        if left:
            echo(f"{_counted(left)} left by runs that were killed; `assay store gc` removes them")
    if problems:
        raise typer.Exit(1)


@store_app.command("gc")
@command
def gc(
    store: StoreOption = None,
    dry_run: Annotated[bool, option("--dry-run", "List what would be removed; remove nothing.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Remove files that killed runs left and no result needs."""
    from assay.store import Store

    kept = Store(store or DEFAULT_STORE, create=False)
    found = kept.leftovers() if dry_run else kept.remove_leftovers()
    if as_json:
        print_json({"removed": not dry_run, "leftovers": _listed(found)})
        return
    for each in found:
        echo(str(each.path))
    echo(f"{_counted(found)} {'would be removed' if dry_run else 'removed'}")


def _counted(found: "Sequence[Leftover]") -> str:
    parts = [f"{sum(each.kind == kind for each in found):,} {words}" for kind, words in _KINDS.items()]
    return f"{' and '.join(parts)} ({sum(each.size for each in found):,} bytes)"


def _listed(found: "Sequence[Leftover]") -> list[dict[str, object]]:
    return [{"path": str(each.path), "kind": each.kind, "bytes": each.size} for each in found]
