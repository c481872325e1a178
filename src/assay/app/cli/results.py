"""`assay list` and `assay show`: what is registered, and what a store holds."""

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from assay.app.cli.border import command, echo, print_json, print_measurements, print_table, say
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
from assay.core.errors import InputError, unknown_name
from assay.core.untrusted import printable


if TYPE_CHECKING:
    from assay.store import ResultSummary, Store, StoredResult

RESULTS = "results"
STORED = (
    "audit",
    "calibration",
    "circuit",
    "job",
    "measurement",
    "pairs-part",
    "ranking",
    "ranking-comparison",
    "scores",
    "scores-part",
    "subset-path",
    "sweep",
    "worst_case",
)
NEWEST = 100  # results that are looked at for what a question without an answer asks about


@app.command("list")
@command
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="methods, metrics, gates, head-methods, tasks, ablations, interventions, objectives, "
            "divergences, distances, corruptions, circuits, models or results."
        ),
    ],
    store: StoreOption = None,
    of: Annotated[
        str | None,
        option("--kind", f"Only results of this kind: {', '.join(STORED)}."),
    ] = None,
    where: Annotated[
        list[str] | None,
        option(
            "--where",
            "Only results for which this holds, e.g. 'metric = kl', 'value >= 0.9', 'task ~ ioi', "
            "'payload.reason = null'; may be repeated.",
        ),
    ] = None,
    order: Annotated[
        str, option("--order", "Column to order results by; -created: the newest first.")
    ] = "created",
    limit: Annotated[int | None, option("--limit", "Results to list, at most.", min=0)] = None,
    offset: Annotated[int, option("--offset", "Results to leave out at the start.", min=0)] = 0,
    as_csv: Annotated[bool, option("--csv", "Print results as CSV, one line each.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """List what is registered, or the results of a store."""
    if as_csv and as_json:
        raise InputError("--csv and --json are two ways to print; give one of them")
    if kind == RESULTS:
        from assay.store import Store

        kept = Store(store or DEFAULT_STORE, create=False)
        found = kept.query(of, where=where or (), order=order, limit=limit, offset=offset)
        _print_summaries(found, as_csv=as_csv, as_json=as_json)
        if not found and not quiet:
            for note in _notes_on_nothing(kept, of, where or ()):
                say(f"note: {note}")
        return
    if where or of is not None or limit is not None or offset or as_csv:
        raise InputError(f"--kind, --where, --limit, --offset and --csv are for `assay list {RESULTS}`")
    from assay.catalogue import CIRCUITS, KINDS, list_entries

    known = [*KINDS, CIRCUITS]
    if kind not in known:
        raise unknown_name("kind", kind, [*known, RESULTS])
    entries = list_entries(kind)
    if as_json:
        print_json([entry.to_dict() for entry in entries])
        return
    print_table("", ["key", "what it is"], [[entry.key, entry.summary] for entry in entries])


def _notes_on_nothing(store: "Store", kind: str | None, where: Sequence[str]) -> list[str]:
    """What a question without an answer asks about that none of the newest results has."""
    from assay.store.where import parse_where

    newest = store.query(kind, order="-created", limit=NEWEST)
    if not newest:
        return [] if kind is None else [f"the store holds no result of kind {kind!r}"]
    since = f'created >= "{newest[-1].created}"'
    asked = {each.key: None for each in parse_where(where) if (each.operator, each.value) != ("=", None)}
    missing = [key for key in asked if not store.query(kind, where=[since, f"{key} != null"], limit=1)]
    of = "" if kind is None else f" of kind {kind!r}"
    return [
        f"none of the newest {len(newest)} results{of} has {key}; `assay show ID --json` prints what one has"
        for key in missing
    ]


def _print_summaries(found: "Sequence[ResultSummary]", *, as_csv: bool, as_json: bool) -> None:
    if as_json:
        print_json([{**asdict(each), "about": each.about} for each in found])
        return
    if as_csv:
        from assay.store.about import COLUMNS

        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(each) for each in found)
        return
    rows = [
        [each.id, each.kind, each.created[:19], each.about, _value(each), each.status or ""] for each in found
    ]
    print_table("", ["id", "kind", "created", "about", "value", "status"], rows, right="value")


def _value(found: "ResultSummary") -> str:
    """The number, with its interval where there is one."""
    if found.value is None:
        return ""
    interval = "" if found.low is None or found.high is None else f" [{found.low:.4g}, {found.high:.4g}]"
    return f"{found.value:.4g}{interval}"


@app.command()
@command
def show(
    identity: Annotated[str, typer.Argument(metavar="ID", help="A result's id or its beginning.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Show one stored result."""
    from assay.store import Store

    kept = Store(store or DEFAULT_STORE, create=False)
    found = kept.get(identity)
    if as_json:
        print_json(
            {
                "id": found.id,
                "kind": found.kind,
                "created": found.created,
                "provenance": found.provenance,
                "payload": found.payload,
                "arrays": list(found.arrays.keys()),
            }
        )
        return
    echo(printable(f"{found.kind} {found.id}, {found.created[:19]}", lines=False))
    echo(printable(found.summary.about, lines=False))
    echo()
    _print_payload(found)


def _print_payload(found: "StoredResult") -> None:
    """The result as the command that made it prints it, else its JSON."""
    from assay.core.record import plain

    if found.kind == "audit":
        from assay.report import verdict

        echo(verdict(found.payload))
        echo()
        task = found.payload["task"]["name"]
        print_measurements([(task, record) for record in found.payload["measurements"]])
    elif found.kind == "measurement" and found.payload.keys() >= {"name", "value", "unit", "n", "status"}:
        print_measurements([(found.summary.task or "", found.payload)])
    elif found.kind == "worst_case":
        from assay.app.cli.attack import print_worst_case

        print_worst_case(found.payload)
    elif found.kind == "calibration":
        from assay.app.cli.calibrate import print_gates

        print_gates(found.payload)
    elif found.kind == "ranking":
        from assay.app.cli.rank import print_ranking

        print_ranking(found.payload)
    elif found.kind == "subset-path":
        from assay.app.cli.select import print_subset

        print_subset(found.payload)
    else:
        echo(json.dumps(plain(found.payload), indent=1))
