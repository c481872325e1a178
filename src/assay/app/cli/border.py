"""Between commands and the world: errors and warnings as messages, results on stdout, progress on stderr."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from assay.app.settings import DEFAULT_STORE, Placed, Quiet, Reporting, Saving, Storing, Talking
from assay.core.errors import OutputError
from assay.core.untrusted import printable


if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from assay.models import Model
    from assay.page.blocks import Page, Table
    from assay.pipeline import Progress, Workload
    from assay.store import Store
    from assay.tasks import Task

Document = Mapping[str, Any]
TIMED = 16  # inputs of a pass that is timed, where no batch size is given


def show_warning(message: Warning | str, *rest: object, **more: object) -> None:
    """A warning as one line on stderr; in place of `warnings.showwarning`."""
    del rest, more
    say(f"note: {message}")


def echo(message: str = "", *, err: bool = False) -> None:
    """A line on stdout; what files and names hold is spelled out where a terminal would obey it."""
    print(printable(message), file=sys.stderr if err else sys.stdout, flush=True)


def say(message: str) -> None:
    """A line on stderr, as `echo`."""
    echo(message, err=True)


def print_json(document: object) -> None:
    """The one JSON document of a `--json` call; undefined numbers are null."""
    from assay.core.record import plain

    text = json.dumps(plain(document), indent=1, allow_nan=False, ensure_ascii=False)
    # The controls that JSON itself allows raw; some terminals obey them.
    print(re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text))


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = ""
) -> None:
    """Rows under a title on stdout; columns named in `right` (space-separated) are set flush right."""
    from assay.page.blocks import Column, Table

    named = [Column(name=column, numeric=column in right.split()) for column in columns]
    print_block(Table(columns=named, rows=rows), title)


def print_block(table: "Table", title: str = "") -> None:
    """A table of a page on stdout."""
    from assay.page.terminal import table_grid

    _console().print(table_grid(table, title))


def print_result(document: Document) -> None:
    """What the page of a result says, on stdout."""
    from assay.report.save import pages_of

    print_pages(*pages_of(document))


def print_pages(*pages: "Page") -> None:
    """Pages on stdout."""
    from assay.page.terminal import print_page

    for page in pages:
        print_page(page, _console())


def print_measurements(records: Sequence[tuple[str, Document]]) -> None:
    """A table of measurements on stdout; each comes with the name of its task."""
    from assay.metrics.page import measurements_page

    print_pages(measurements_page([record for _, record in records]))


def _console() -> "Console":
    from rich.console import Console

    # A pipe has no width: lines are then as long as they need to be.
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200, highlight=False, markup=False)


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
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
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


def check_outputs(settings: object, *more: Path | None) -> None:
    """Refuse places that cannot be written, before the work is done; a directory is not made yet."""
    from assay.pipeline import check_writable

    if isinstance(settings, Storing):
        check_writable(store_folder(settings.store))
    files = list(more)
    if isinstance(settings, Saving):
        files.append(settings.save)
        if settings.out is not None:
            check_writable(settings.out)
    if isinstance(settings, Reporting):
        files.append(settings.report)
    for path in files:
        if path is not None and path.is_dir():
            raise OutputError(f"{path} is a directory; give the name of a file to write")
        if path is not None:
            check_writable(path.parent)


def write_json(path: Path, document: object) -> None:
    """A document to a file, whole or not at all."""
    from assay.circuits import write_atomically
    from assay.core.record import plain

    write_atomically(make_room(path), json.dumps(plain(document), indent=1, allow_nan=False).encode())


class File(NamedTuple):
    """Where a file goes, if it is wanted, and what writes it there."""

    path: Path | None
    write: Callable[[Path], object]


def json_file(path: Path | None, document: object) -> File:
    """A document as JSON."""
    return File(path, lambda path: write_json(path, document))


def files_of(
    settings: Reporting, document: Document, name: str, *, page: str = "report.html"
) -> dict[str, File]:
    """The document of a result and its page, by their names in the directory of `--out`."""

    def write_page(path: Path) -> None:
        from assay.report import save_report

        save_report(path, document)

    return {
        "document": json_file(settings.path_of(settings.save, name), document),
        "report": File(settings.path_of(settings.report, page), write_page),
    }


def deliver(
    settings: Talking,
    document: object,
    files: Mapping[str, File],
    *,
    show: Callable[[], object] | None = None,
    identity: str = "",
    cached: bool = False,
) -> None:
    """A result to its files and to stdout.

    Args:
        settings: How it is printed.
        document: The result.
        files: By what each is called.
        show: Prints the result for reading. Default: as its page.
        identity: Its id in the store.
        cached: Whether the store had it.
    """
    for path, write in files.values():
        if path is not None:
            write(make_room(path))
    if settings.json:
        print_json(document)
        return
    if show is not None:
        show()
    else:
        print_result(cast(Any, document))
    echo_files(**{name: path for name, (path, _) in files.items()})
    if identity:
        echo_result(identity, cached=cached)


def echo_files(**files: Path | None) -> None:
    """A line for each file that was written."""
    for name, path in files.items():
        if path is not None:
            echo(f"{name:<8} {path}")


def echo_result(identity: str, *, cached: bool = False) -> None:
    """The id that `assay show` and `assay report` take."""
    echo(f"result   {identity}{' (taken from the store)' if cached else ''}")


def noting(settings: Quiet) -> Callable[[str], None]:
    """Notes on stderr, none when quiet."""
    return (lambda text: None) if settings.quiet else (lambda text: say(f"note: {text}"))


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


def device_of(settings: Placed) -> str | None:
    """The device of `--device`; None leaves a model on the CPU."""
    quiet = isinstance(settings, Quiet) and settings.quiet
    return settings.place((lambda text: None) if quiet else say)


def load(model: str, device: str | None, dtype: "torch.dtype | None" = None) -> "Model":
    """The model of `--model` on a device, with numbers of a type."""
    from assay.models import load_model

    return load_model(model, device=device, dtype=dtype)


def show_plan(
    model: "Model",
    n: int,
    stages: "Sequence[Workload]",
    *,
    as_json: bool,
    task: "Task | None" = None,
    batch_size: int | None = None,
) -> None:
    """What a command would run, at most.

    Args:
        model: What runs.
        n: Prompts or images.
        stages: What is done with them.
        as_json: Print one JSON document.
        task: Some inputs to time a pass on; without any, nothing is said of time and memory.
        batch_size: Inputs of a pass.
    """
    from assay.pipeline.budget import pass_seconds
    from assay.pipeline.estimate import run_bytes
    from assay.pipeline.progress import duration

    total = sum(stage.passes for stage in stages)
    seconds = memory = None
    if task is not None:
        size = batch_size or TIMED
        seconds = total * pass_seconds(model, task, batch_size=size)
        memory = run_bytes(model, task, batch_size=size)
    if as_json:
        listed = [{"stage": stage.name, "runs": stage.runs, "passes": stage.passes} for stage in stages]
        cost = {"passes": total, "seconds": seconds, "bytes": memory}
        print_json({"model": model.describe(), "n": n, "stages": listed, **cost})
        return
    rows = [[stage.name, f"{stage.runs:,}", f"{stage.passes:,}"] for stage in stages]
    echo(f"{model.id}, {n} prompts: maximum forward passes over one prompt")
    print_table(
        "",
        ["stage", "runs", "passes"],
        [*rows, ["total", "", f"{total:,}"]],
        right="runs passes",
    )
    if seconds is not None and memory is not None:
        echo(f"about {duration(seconds)} on this machine, estimated from one timed pass")
        echo(f"about {size_words(memory)} of memory in batches of {batch_size or TIMED}")


def size_words(count: int) -> str:
    """A number of bytes for reading."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
