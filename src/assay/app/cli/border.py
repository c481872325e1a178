"""Between commands and the world: errors and warnings as messages, results on stdout, progress on stderr."""

import errno
import functools
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import typer

from assay.app.cli.options import DEFAULT_STORE
from assay.core.errors import AssayError, AssayWarning, InputError, OutputError
from assay.core.untrusted import printable


if TYPE_CHECKING:
    from assay.circuits import Circuit, HeadCircuit
    from assay.graph import Graph
    from assay.models import Model
    from assay.pipeline import Progress, Workload
    from assay.store import Store

P = ParamSpec("P")


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Errors of the package become one message and an exit code, its warnings one line each."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        quiet = bool(kwargs.get("quiet", False))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not quiet:
                warnings.simplefilter("always", AssayWarning)
                warnings.showwarning = _show_warning
            try:
                function(*args, **kwargs)
            except AssayError as error:
                if kwargs.get("traceback"):
                    raise
                say(f"error: {error}")
                raise typer.Exit(2 if isinstance(error, InputError) else 1) from error
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG or kwargs.get("traceback"):
                    raise
                say(f"error: no file can have so long a name: {str(error.filename)[:60]}...")
                raise typer.Exit(2) from error
            except KeyboardInterrupt:
                say("interrupted; the same command goes on from what was stored")
                raise typer.Exit(130) from None

    return run


def _show_warning(message: Warning | str, *rest: object, **more: object) -> None:
    del rest, more
    say(f"note: {message}")


def echo(message: str = "", *, err: bool = False) -> None:
    """A line on stdout; what files and names hold is spelled out where a terminal would obey it."""
    typer.echo(printable(message), err=err)


def say(message: str) -> None:
    """A line on stderr, as `echo`."""
    echo(message, err=True)


def print_json(document: object) -> None:
    """The one JSON document of a `--json` call; undefined numbers are null."""
    from assay.core.record import plain

    text = json.dumps(plain(document), indent=1, allow_nan=False, ensure_ascii=False)
    # The controls that JSON itself allows raw; some terminals obey them.
    typer.echo(re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text))


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = ""
) -> None:
    """A table on stdout; columns named in `right` (space-separated) are set flush right.

    Cells are one line each, with control characters spelled out: labels and prompts are other people's.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=printable(title) or None, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for column in columns:
        table.add_column(
            printable(column, lines=False),
            justify="right" if column in right.split() else "left",
            overflow="fold",
            no_wrap=column == "id",  # in one piece, so that it can be copied; the others give way
        )
    for row in rows:
        table.add_row(*(printable(cell, lines=False) for cell in row))
    # A pipe has no width: lines are then as long as they need to be.
    console = Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else 200, highlight=False, markup=False
    )
    console.print(table)


@contextmanager
def progress_on_stderr(*, quiet: bool) -> "Iterator[Progress]":
    """Bars on a terminal, one line per stage elsewhere, nothing when quiet; always on stderr."""
    if quiet:
        yield lambda stage, done, total: None
        return
    if not sys.stderr.isatty():
        last = ""

        def line(stage: str, done: int, total: int) -> None:
            nonlocal last
            del done, total
            if stage != last:
                say(f"{stage} ...")
            last = stage

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bars:
        known: dict[str, Any] = {}

        def bar(stage: str, done: int, total: int) -> None:
            for name, number in known.items():
                made = bars.tasks[number].completed or 1
                if name != stage and not bars.tasks[number].finished:
                    bars.update(number, total=made, completed=made)
            if stage not in known:
                known[stage] = bars.add_task(printable(stage, lines=False), total=total or None)
            bars.update(known[stage], completed=done, total=total or None)

        yield bar


def check_outputs(*files: Path | None, store: str | None) -> None:
    """Refuse places that cannot be written, before the work is done; a directory is not made yet."""
    from assay.pipeline import check_writable

    check_writable(store_folder(store))
    for path in files:
        if path is not None and path.is_dir():
            raise OutputError(f"{path} is a directory; give the name of a file to write")
        if path is not None:
            check_writable(path.parent)


def make_room(path: Path) -> Path:
    """The file to write, in a directory that exists."""
    from assay.pipeline import check_writable

    check_writable(path.parent, make=True)
    return path


def open_store(store: str | None) -> "Store":
    """The results store; opened once model and task are loaded, so that a failure leaves none behind."""
    from assay.store import Store

    return Store(store or DEFAULT_STORE)


def store_folder(store: str | None) -> Path:
    """The directory in which the files of a store lie; a database is asked for it, a directory not made."""
    if store and "://" in store:
        return open_store(store).directory
    if store:
        from assay.store.location import locate

        locate(store)  # refuses a mistyped URL, before it is taken for a directory
    return Path(store or DEFAULT_STORE)


def load(model: str, device: str | None) -> "Model":
    """The model of `--model` on `--device`."""
    from assay.models import load_model

    return load_model(model, device=device)


def given_circuit(
    name: str | None, size: int | None, sizing: str, graph: "Graph", store: str | None
) -> "Circuit | HeadCircuit | None":
    """The circuit of `--circuit`, as it is described; None where one is to be discovered.

    Args:
        name: What was given.
        size: What another option says about the size of a discovered circuit.
        sizing: That option.
        graph: The graph of the model.
        store: Where ids are looked up, if it exists.
    """
    from assay.pipeline.circuits import read_circuit
    from assay.store import Store

    if name is None:
        return None
    if size is not None:
        raise InputError(f"{sizing} sizes a discovered circuit, and --circuit gives one; choose one of them")
    exists = store is not None or Path(DEFAULT_STORE).exists()
    return read_circuit(name, graph, lambda: Store(store or DEFAULT_STORE, create=False) if exists else None)


def circuit_of(
    name: str | None, size: int | None, sizing: str, graph: "Graph", store: str | None
) -> "Circuit | None":
    """`given_circuit` as the edges to keep."""
    from assay.circuits import Circuit, HeadCircuit

    found = given_circuit(name, size, sizing, graph, store)
    return Circuit.from_heads(graph, found) if isinstance(found, HeadCircuit) else found


def show_plan(model: "Model", n: int, stages: "Sequence[Workload]", *, as_json: bool) -> None:
    """What a command would run, at most."""
    total = sum(stage.passes for stage in stages)
    if as_json:
        listed = [{"stage": stage.name, "runs": stage.runs, "passes": stage.passes} for stage in stages]
        print_json({"model": model.describe(), "n": n, "stages": listed, "passes": total})
        return
    rows = [[stage.name, f"{stage.runs:,}", f"{stage.passes:,}"] for stage in stages]
    echo(f"{model.id}, {n} prompts: at most so many forward passes over one prompt")
    print_table(
        "",
        ["stage", "runs", "passes"],
        [*rows, ["total", "", f"{total:,}"]],
        right="runs passes",
    )


def print_measurements(found: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """A table of measurement records, each with the name of its task; parts are indented below the whole."""
    from assay.report import words

    rows = []
    for task, record in found:
        for name, each in [(record["name"], record), *_sub_rows(record)]:
            interval = each.get("interval") or {}
            low, high = interval.get("low"), interval.get("high")
            digits = words.precision(low, high)
            random = ((each.get("baseline") or {}).get("random") or {}).get("value")
            rows.append(
                [
                    task,
                    name,
                    words.number(each["value"], digits),
                    words.interval(low, high, digits) or str(interval.get("reason") or ""),
                    "" if random is None else words.number(random),
                    each["unit"],
                    str(each["n"]),
                    (each["status"] if each["value"] is not None else words.reason(each))
                    + (" (task not solved)" if "task_not_solved" in (each.get("warnings") or ()) else ""),
                ]
            )
    columns = ["task", "metric", "value", "95 % interval", "random", "unit", "n", "verdict"]
    print_table("", columns, rows, right="value random n")


def _sub_rows(record: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(f"  {name}", part) for name, part in (record.get("parts") or {}).items()]
