"""`assay list` and `assay show`: what is registered, and one stored result."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import STORE, command
from assay.app.console import echo, print_json, print_pages, print_table
from assay.app.running import Storing, Talking
from assay.core.errors import InputError, check_name
from assay.core.untrusted import printable


LISTED = (
    "methods",
    "metrics",
    "gates",
    "head-methods",
    "tasks",
    "ablations",
    "interventions",
    "objectives",
    "divergences",
    "distances",
    "corruptions",
    "circuits",
    "models",
)
# Kind -> further columns of the list, with the fact that each shows.
MORE_COLUMNS = {"models": {"reads": "reads", "--post-norm": "post_norm", "--experts": "experts"}}


@command(STORE, name="list", example="assay list metrics --json")
def list_(kind: str, /, *, settings: Talking) -> None:
    """List what is registered.

    Args:
        kind: methods, metrics, gates, head-methods, tasks, ablations, interventions, objectives, divergences,
            distances, corruptions, circuits or models. `assay store ls` lists results.
        settings: The options.
    """
    from assay.catalogue import list_entries

    if kind == "results":
        raise InputError("results are listed by another command: use `assay store ls`")
    check_name("kind", kind, LISTED)
    entries = list_entries(kind)
    if settings.json:
        print_json([entry.to_dict() for entry in entries])
        return
    more = MORE_COLUMNS.get(kind, {})
    rows = [
        [entry.key, entry.summary, *(_cell(entry.facts.get(fact)) for fact in more.values())]
        for entry in entries
    ]
    print_table("", ["key", "description", *more], rows)
    if kind == "models":
        echo("Any of them by a hub id or a directory. `assay list tasks` names the tasks for prompts.")


def _cell(fact: str | tuple[str, ...] | None) -> str:
    return ", ".join(fact) if isinstance(fact, tuple) else fact or ""


@dataclass(frozen=True, kw_only=True)
class ShowSettings(Storing, Talking):
    """Where a result is shown from, and how."""


@command(STORE, example="assay show 3f2a91c0 --json")
def show(identity: Annotated[str, Parameter(name="ID")], /, *, settings: ShowSettings) -> None:
    """Show one stored result.

    Args:
        identity: Id of a result, or its beginning.
        settings: The options.
    """
    found = settings.existing_store().get(identity)
    if settings.json:
        print_json(found.document())
        return
    echo(printable(f"{found.kind} {found.id}, {found.created[:19]}", lines=False))
    echo(printable(found.about, lines=False))
    echo()
    from assay.report.record import pages_of_result

    print_pages(*pages_of_result(found))
