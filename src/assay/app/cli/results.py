"""`assay list`, `show` and `report`: what is registered, and pages of what the store holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import STORE, command
from assay.app.delivery import File, Storing, Talking, echo, print_pages, print_table
from assay.app.options import OUTPUT, own_group
from assay.core.errors import InputError
from assay.core.untrusted import printable


if TYPE_CHECKING:
    from assay.catalogue import Entry
    from assay.store import Store, StoredResult

SUBJECT = own_group("Subject")


@command(STORE, name="list", example="assay list metrics --json")
def list_(kind: str, /, *, settings: Talking) -> None:
    """List what is registered.

    Args:
        kind: methods, metrics, gates, head-methods, tasks, ablations, interventions, objectives, divergences,
            distances, corruptions, circuits or models. `assay store ls` lists results.
        settings: The options.
    """
    from assay.catalogue import list_entries

    entries = list_entries(kind)
    settings.deliver([entry.to_dict() for entry in entries], show=lambda: _print_entries(kind, entries))


def _print_entries(kind: str, entries: "Sequence[Entry]") -> None:
    print_table("", ["key", "description"], [[entry.key, entry.summary] for entry in entries])
    if kind == "models":
        echo("Any of them by a hub id or a directory. `assay list tasks` names the tasks for prompts.")


@dataclass(frozen=True, kw_only=True)
class StoreSettings(Talking, Storing):
    """Which store is read or changed."""


@command(STORE, example="assay show 3f2a91c0 --json")
def show(identity: Annotated[str, Parameter(name="ID")], /, *, settings: StoreSettings) -> None:
    """Show one stored result.

    Args:
        identity: Id of a result, or its beginning.
        settings: The options.
    """
    store = settings.existing_store()
    result = store.get(identity)
    settings.deliver(result.document(), show=lambda: _print_stored(store, result))


def _print_stored(store: "Store", result: "StoredResult") -> None:
    from assay.report.save import stored_pages

    for line in (f"{result.kind} {result.id}, {result.created[:19]}", result.about, ""):
        echo(printable(line, lines=False))
    print_pages(*stored_pages(store, result))


@dataclass(frozen=True, kw_only=True)
class ReportSettings(Talking, Storing):
    """What the page shows.

    Attributes:
        compare: Two audits, measurements or sweeps, by id or by name of the sweep: what both measured.
        save: HTML file to write. Default: report.html in the store; of --compare none.
    """

    compare: Annotated[tuple[str, str] | None, SUBJECT, Parameter(metavar="A B")] = None
    save: Annotated[Path | None, OUTPUT] = None


@command(STORE, example="assay report --compare 3f2a91c0 af8985c4 --save compared.html")
def report(
    identity: Annotated[str | None, Parameter(name="ID")] = None, /, *, settings: ReportSettings
) -> None:
    """Build a page from the store, or compare two results.

    The page is of a result or a sweep. --compare A B prints what both have measured.

    Args:
        identity: Id of a result, name of a sweep, or hash of a circuit. Default: the newest audit.
        settings: The options.
    """
    from assay.pipeline.compare import compare_page, compare_rows
    from assay.report.save import save_report, stored_pages
    from assay.report.sweep import find_result

    store = settings.existing_store()
    if settings.compare is None:
        result = find_result(store, identity or _newest_audit(store))
        pages, path = stored_pages(store, result), settings.save or store.directory / "report.html"
        file = File(path, lambda path: save_report(path, *pages))
        settings.deliver({"id": result.id, "report": str(path)}, {"report": file}, show=lambda: None)
        return
    if identity is not None:
        raise InputError("ID and --compare select different pages; give one of them")
    rows = compare_rows(store, *settings.compare)
    page = compare_page(store, *settings.compare, rows)
    file = File(settings.save, lambda path: save_report(path, page))
    settings.deliver(rows, {"report": file}, show=lambda: print_pages(page))


def _newest_audit(store: "Store") -> str:
    audits = store.query("audit", order="-created", limit=1)
    if not audits:
        raise InputError(
            f"the store at {store.directory} does not hold an audit yet; run `assay audit` first"
        )
    return audits[0].id
