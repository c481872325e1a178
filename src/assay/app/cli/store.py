"""`assay store`: whether a store is whole, and what killed writers left in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from assay.app.cli.border import echo, print_json
from assay.app.cli.parsing import STORE, command, family
from assay.app.settings import DEFAULT_STORE, RUNNING, Storing, Talking


if TYPE_CHECKING:
    from assay.store import Leftover

_KINDS = {"temporary": "temporary files", "array": "arrays of no result"}

store_app = family(STORE, "store", "Check a store and clear what killed runs left.")


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
            echo(f"{_counted(left)} left by runs that were killed; `assay store gc` removes them")
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
