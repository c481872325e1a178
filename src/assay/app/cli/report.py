"""`assay report`: pages from what the store holds; nothing is measured again."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import STORE, command
from assay.app.console import echo, print_json, print_pages
from assay.app.option_groups import OUTPUT, own_group
from assay.app.running import Storing, Talking, make_room
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.page.blocks import Page
    from assay.store import Store

SUBJECT = own_group("Subject")


@dataclass(frozen=True, kw_only=True)
class ReportSettings(Talking, Storing):
    """What the page shows.

    Attributes:
        sweep: Sweep: its jobs and what they measured.
        compare: Two audits, measurements or sweeps, by id or by name of the sweep: what both measured.
        roles: Roles and labels of nodes, a file saved in the circuit viewer: shown in the page's circuit.
        save: HTML file to write. Default: report.html in the store; of --compare none.
    """

    sweep: Annotated[str | None, SUBJECT, Parameter(metavar="NAME|ID")] = None
    compare: Annotated[tuple[str, str] | None, SUBJECT, Parameter(metavar="A B")] = None
    roles: Annotated[Path | None, SUBJECT, Parameter(metavar="FILE")] = None
    save: Annotated[Path | None, OUTPUT] = None


@command(STORE, example="assay report --compare 3f2a91c0 af8985c4 --save compared.html")
def report(
    identity: Annotated[str | None, Parameter(name="ID")] = None, /, *, settings: ReportSettings
) -> None:
    """Build a page from the store, or compare two results.

    The page is of a result or a sweep. --compare A B prints what both have measured.

    Args:
        identity: Id of a result, or hash of a circuit; what has no page of its own is a table. Default: the
            newest audit.
        settings: The options.
    """
    asked = {"ID": identity, "--sweep": settings.sweep, "--compare": settings.compare}
    names = [name for name, value in asked.items() if value is not None]
    if len(names) > 1:
        raise InputError(f"{' and '.join(names)} select different pages; give one of them")
    store = settings.existing_store()
    if settings.compare is not None:
        _compare(store, *settings.compare, settings)
        return
    about, pages = _pages(store, identity, settings)
    out = store.directory / "report.html" if settings.save is None else settings.save
    _write(out, pages)
    if settings.json:
        print_json({**about, "report": str(out)})
    else:
        echo(f"{out}")


def _write(out: Path, pages: "list[Page]") -> None:
    from assay.circuits import write_atomically
    from assay.page.html import render_pages

    write_atomically(make_room(out), render_pages(pages).encode())


def _compare(store: "Store", a: str, b: str, settings: ReportSettings) -> None:
    from assay.pipeline.compare import compare_frame, compare_page

    if settings.roles is not None:
        raise InputError("--roles belongs to a drawn circuit, and a comparison has none; remove it")
    if settings.save is not None:
        _write(settings.save, [compare_page(store, a, b)])
    if settings.json:
        print_json(compare_frame(store, a, b).to_dict("records"))
    else:
        print_pages(compare_page(store, a, b))


def _pages(
    store: "Store", identity: str | None, settings: ReportSettings
) -> "tuple[dict[str, str], list[Page]]":
    """What the page is about, and the page: of a sweep, of one result, or of the newest audit."""
    from assay.report import sweep_page, with_roles
    from assay.report.record import pages_of_result
    from assay.report.save import pages_of

    if settings.sweep is not None:
        return {"sweep": settings.sweep}, [sweep_page(store, settings.sweep)]
    if identity is None:
        audits = store.query("audit", order="-created", limit=1)
        if not audits:
            raise InputError(
                f"the store at {store.directory} does not hold an audit yet; run `assay audit` first"
            )
        identity = audits[0].id
    found = store.get(identity)
    if settings.roles is not None:
        document = {"kind": found.kind, **found.payload}
        return {"id": found.id}, pages_of(with_roles(document, settings.roles))
    if found.kind == "sweep":
        return {"id": found.id}, [sweep_page(store, found.id)]
    return {"id": found.id}, pages_of_result(found)
