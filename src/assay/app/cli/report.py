"""`assay report`: pages from what the store holds; nothing is measured again."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.app.cli.parsing import STORE, command
from assay.app.console import echo, print_json
from assay.app.option_groups import OUTPUT, own_group
from assay.app.running import Storing, Talking, make_room
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.store import Store, StoredResult

SUBJECT = own_group("Subject")


@dataclass(frozen=True, kw_only=True)
class ReportSettings(Talking, Storing):
    """What the page shows.

    Attributes:
        model: Model: everything that the store holds about it.
        task: Task: models and methods compared on it.
        sweep: Sweep: every job and its measurements.
        compare: Two circuits or two runs: ids of audits, circuits, scores, measurements or sweeps, or circuit
            files.
        roles: Roles and labels of nodes, a file saved in the circuit viewer: shown in the page's circuit.
        save: HTML file to write. Default: report.html in the store.
    """

    model: Annotated[str | None, SUBJECT] = None
    task: Annotated[str | None, SUBJECT] = None
    sweep: Annotated[str | None, SUBJECT, Parameter(metavar="NAME|ID")] = None
    compare: Annotated[tuple[str, str] | None, SUBJECT, Parameter(metavar="A B")] = None
    roles: Annotated[Path | None, SUBJECT, Parameter(metavar="FILE")] = None
    save: Annotated[Path | None, OUTPUT] = None


@command(STORE, example="assay report --compare 3f2a91c0 circuit.safetensors --save compared.html")
def report(
    identity: Annotated[str | None, Parameter(name="ID")] = None, /, *, settings: ReportSettings
) -> None:
    """Build a page from the store, or compare two results.

    The page is of a result, a model, a task, a sweep, or of two circuits or runs: --compare A B.

    Args:
        identity: Id of a result, or hash of a circuit; what has no page of its own is a table. Default: the
            newest audit.
        settings: The options.
    """
    from assay.circuits import write_atomically
    from assay.report import save_report, with_roles
    from assay.report.record import result_page
    from assay.store import StoredResult

    _check(identity, settings)
    store = settings.existing_store()
    about, content = _content(store, identity, settings)
    if settings.roles is not None:
        document = content if isinstance(content, dict) else {"kind": content.kind, **content.payload}
        content = with_roles(document, settings.roles)
    out = store.directory / "report.html" if settings.save is None else make_room(settings.save)
    if isinstance(content, StoredResult):
        write_atomically(out, result_page(content, served=False).encode())
    else:
        save_report(out, content)
    if settings.json:
        print_json({**about, "report": str(out)})
    else:
        echo(f"{out}")


def _check(identity: str | None, settings: ReportSettings) -> None:
    asked = {
        "ID": identity,
        "--model": settings.model,
        "--task": settings.task,
        "--sweep": settings.sweep,
        "--compare": settings.compare,
    }
    names = [name for name, value in asked.items() if value is not None]
    if len(names) > 1:
        raise InputError(f"{' and '.join(names)} select different pages; give one of them")


def _content(
    store: "Store", identity: str | None, settings: ReportSettings
) -> "tuple[dict[str, Any], dict[str, Any] | StoredResult]":
    """What the page is about, and what it is made from."""
    from assay.report import compare_document, overview_document

    if settings.compare is not None:
        compared = compare_document(store, *settings.compare)
        labels = {side: compared[side]["label"] for side in ("a", "b")}
        return {"of": "comparison", **labels}, compared
    subject = {"model": settings.model, "task": settings.task, "sweep": settings.sweep}
    if any(each is not None for each in subject.values()):
        overview = overview_document(store, **subject)
        return {"of": overview["of"], "name": overview["name"]}, overview
    return _one(store, identity)


def _one(kept: "Store", identity: str | None) -> tuple[dict[str, Any], "dict[str, Any] | StoredResult"]:
    """One result, or the newest audit; of a sweep its overview."""
    if identity is None:
        audits = kept.query("audit", order="-created", limit=1)
        if not audits:
            raise InputError(
                f"the store at {kept.directory} does not hold an audit yet; run `assay audit` first"
            )
        identity = audits[0].id
    found = kept.get(identity)
    if found.kind == "sweep":
        from assay.report import overview_document

        return {"id": found.id}, overview_document(kept, sweep=found.id)
    return {"id": found.id}, found
