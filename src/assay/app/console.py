"""The terminal: errors and warnings as messages, results on stdout, notes and progress on stderr."""

import json
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from assay.core.untrusted import printable


if TYPE_CHECKING:
    from rich.console import Console

    from assay.page.blocks import Page
    from assay.pipeline.stage import Progress

_quiet = False


@contextmanager
def quiet(*, silent: bool = True) -> Iterator[None]:
    """No progress while entered; errors, remarks on results and what is asked for still appear."""
    global _quiet
    before, _quiet = _quiet, silent
    try:
        yield
    finally:
        _quiet = before


def show_warning(message: Warning | str, *rest: object, **more: object) -> None:
    """A warning as one line on stderr; in place of `warnings.showwarning`."""
    del rest, more
    remark(str(message))


def echo(message: str = "", *, err: bool = False) -> None:
    """A line on stdout; what files and names hold is spelled out where a terminal would obey it."""
    print(printable(message), file=sys.stderr if err else sys.stdout, flush=True)


def say(message: str) -> None:
    """A line on stderr, as `echo`."""
    echo(message, err=True)


def note(message: str) -> None:
    """A line on stderr, unless quiet."""
    if not _quiet:
        say(message)


def remark(message: str) -> None:
    """A line on stderr that begins with `note:`, also when quiet: it changes what a result means."""
    say(f"note: {message}")


def print_json(document: object) -> None:
    """The one JSON document of a `--json` call; undefined numbers are null."""
    from assay.core.record import plain

    ascii_only = (sys.stdout.encoding or "utf-8").lower() not in ("utf-8", "utf8")
    text = json.dumps(plain(document), indent=1, allow_nan=False, ensure_ascii=ascii_only)
    # The controls that JSON itself allows raw; some terminals obey them.
    sys.stdout.write(re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()
) -> None:
    """Rows under a title on stdout; columns named in `right` are set flush right."""
    from assay.page.blocks import Column, Table
    from assay.page.terminal import table_grid

    named = [Column(name=column, numeric=column in right) for column in columns]
    _console().print(table_grid(Table(columns=named, rows=rows), title))


def print_pages(*pages: "Page") -> None:
    """Pages on stdout."""
    from assay.page.terminal import print_page

    for page in pages:
        print_page(page, _console())


def _console() -> "Console":
    from rich.console import Console

    # A pipe has no width: lines are then as long as they need to be.
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200, highlight=False, markup=False)


@contextmanager
def progress_on_stderr() -> "Iterator[Progress]":
    """Bars on a terminal, one line per stage elsewhere, nothing when quiet; always on stderr."""
    if _quiet:
        yield lambda stage, done, total: None
        return
    if not sys.stderr.isatty():
        from assay.page.notebook import ProgressDisplay

        yield ProgressDisplay()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    remaining = TimeRemainingColumn(elapsed_when_finished=True)
    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), remaining)
    with Bars(*columns, console=Console(stderr=True)) as bars:
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


def echo_result(identity: str, *, cached: bool = False) -> None:
    """The id that `assay show` and `assay report` take."""
    echo(f"result   {identity}{' (taken from the store)' if cached else ''}")
