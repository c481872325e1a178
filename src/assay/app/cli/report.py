"""`assay report`: pages from what the store holds; nothing is measured again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.app.cli.border import command, echo, make_room, print_json
from assay.app.cli.commands import app
from assay.app.cli.options import (
    DEFAULT_STORE,
    ConfigOption,
    JsonOption,
    QuietOption,
    StoreOption,
    TracebackOption,
    option,
)
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.store import Store, StoredResult


@app.command()
@command
def report(
    identity: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="Id of a result, or hash of a circuit; what has no page of its own is a table.  "
            "[default: the newest audit]",
        ),
    ] = None,
    # Not from ASSAY_MODEL or a file of options: there they mean the model to run, and would turn every page
    # into an overview.
    of_model: Annotated[
        str | None, typer.Option("--model", help="Everything the store holds about a model.")
    ] = None,
    of_task: Annotated[
        str | None, typer.Option("--task", help="Models and methods compared on a task.")
    ] = None,
    of_sweep: Annotated[
        str | None,
        typer.Option("--sweep", metavar="NAME|ID", help="Every job of a sweep and what it measured."),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="A B",
            help="Two circuits or two runs: ids of audits, circuits, scores, measurements or sweeps, or "
            "circuit files.",
        ),
    ] = None,
    store: StoreOption = None,
    out: Annotated[
        Path | None, option("--out", "HTML file to write.  [default: report.html in the store]")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Build a page from the store: of a result, a model, a task, a sweep, or of two that are compared."""
    from assay.circuits import write_atomically
    from assay.report import compare_document, overview_document, save_report
    from assay.report.site import result_page
    from assay.store import Store, StoredResult

    asked = {
        "ID": identity,
        "--model": of_model,
        "--task": of_task,
        "--sweep": of_sweep,
        "--compare": compare,
    }
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} each ask for a page of their own; give one of them")
    kept = Store(store or DEFAULT_STORE, create=False)
    found: dict[str, Any] | StoredResult
    if of_model is not None or of_task is not None or of_sweep is not None:
        found = overview_document(kept, model=of_model, task=of_task, sweep=of_sweep)
        about = {"of": found["of"], "name": found["name"]}
    elif compare is not None:
        found = compare_document(kept, *compare)
        about = {"of": "comparison", "a": found["a"]["label"], "b": found["b"]["label"]}
    else:
        about, found = _one(kept, identity)
    out = kept.directory / "report.html" if out is None else make_room(out)
    if isinstance(found, StoredResult):
        write_atomically(out, result_page(found, served=False).encode())
    else:
        save_report(out, found)
    if as_json:
        print_json({**about, "report": str(out)})
    else:
        echo(f"{out}")


def _one(kept: "Store", identity: str | None) -> tuple[dict[str, Any], "dict[str, Any] | StoredResult"]:
    """One result, or the newest audit; as it was stored where its kind has no page of its own."""
    from assay.report.site import has_page

    if identity is None:
        audits = kept.query("audit", order="-created", limit=1)
        if not audits:
            raise InputError(f"the store at {kept.directory} holds no audit yet; run `assay audit` first")
        identity = audits[0].id
    found = kept.get(identity)
    if found.kind == "sweep":
        from assay.report import overview_document

        return {"id": found.id}, overview_document(kept, sweep=found.id)
    return {"id": found.id}, found.payload if has_page(found) else found
