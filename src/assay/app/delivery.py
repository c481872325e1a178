"""How a command speaks, where it keeps what it computed, and where its result goes.

Results go to stdout; errors, warnings, notes and progress to stderr.
"""

import functools
import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from assay.app.options import OUTPUT, RARE, RUNNING, STORED
from assay.core.errors import InputError, OutputError
from assay.core.untrusted import printable


if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from assay.page.blocks import Page
    from assay.pipeline.stage import Progress
    from assay.store import About, Store


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
        from assay.page.terminal import ProgressDisplay

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


DEFAULT_STORE = Path("assay-out")


class File(NamedTuple):
    """Where a file goes, if it is wanted, and what writes it there; by default the page of the result."""

    path: Path | None
    write: Callable[[Path], object] | None = None


def json_file(path: Path | None, document: object) -> File:
    """A document as JSON."""
    from assay.circuits import write_atomically
    from assay.core.record import plain

    return File(
        path,
        lambda path: write_atomically(path, json.dumps(plain(document), indent=1, allow_nan=False).encode()),
    )


def make_room(path: Path) -> Path:
    """The file to write, in a directory that exists."""
    from assay.pipeline.stage import check_writable

    check_writable(path.parent, make=True)
    return path


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Quiet:
    """How a command runs.

    Attributes:
        quiet: Print no progress on stderr; notes on the result remain.
        config: TOML file of options.
        traceback: Show the traceback of an error.
    """

    quiet: Annotated[bool, RUNNING] = False
    config: Annotated[Path | None, RARE] = None
    traceback: Annotated[bool, RARE] = False


@dataclass(frozen=True, kw_only=True)
class Talking(Quiet):
    """How a command runs and prints.

    Attributes:
        json: Print one JSON document and nothing else on stdout.
    """

    json: Annotated[bool, OUTPUT] = False

    def deliver(
        self,
        document: Any,
        files: Mapping[str, File] = MappingProxyType({}),
        *,
        show: Callable[[], object] | None = None,
        identity: str = "",
        cached: bool = False,
    ) -> None:
        """A result to its files and to stdout.

        Args:
            document: The result.
            files: By what each is called.
            show: Prints the result for reading. Default: as its page.
            identity: Its id in the store.
            cached: Whether the store had it.
        """

        @functools.cache
        def pages() -> "list[Page]":
            """Built once, for the file and for stdout."""
            from assay.report.save import pages_of

            return pages_of(document)

        def save_page(path: Path) -> None:
            from assay.report.save import save_report

            save_report(path, *pages())

        for path, write in files.values():
            if path is not None:
                (write or save_page)(make_room(path))
        if self.json:
            print_json(document)
            return
        if show is None:
            print_pages(*pages())
        else:
            show()
        for name, (path, _) in files.items():
            if path is not None:
                echo(f"{name:<8} {path}")
        if identity:
            echo_result(identity, cached=cached)


@dataclass(frozen=True, kw_only=True)
class Storing:
    """Where results are kept.

    Attributes:
        store: Store: DIR or postgresql+psycopg://USER@HOST/DB?arrays=DIR. Default: assay-out.
    """

    # Text, not Path: a path would take slashes from a URL.
    store: Annotated[str | None, STORED, Parameter(metavar="DIR|URL")] = None

    def open_store(self) -> "Store":
        """The results store, made where there is none.

        It is opened once model and task are loaded, so that a failure leaves none behind.
        """
        from assay.store import Store

        return Store(self.store or DEFAULT_STORE)

    def existing_store(self) -> "Store":
        """The results store, which must be there.

        Raises:
            InputError: If it is not.
        """
        from assay.store import Store

        return Store(self.store or DEFAULT_STORE, create=False)

    def store_folder(self) -> Path:
        """The directory in which the files of a store lie; a database is asked for it, none is made."""
        if self.store and "://" in self.store:
            return self.open_store().directory
        return Path(self.store or DEFAULT_STORE)


@dataclass(frozen=True, kw_only=True)
class Computing(Talking, Storing):
    """How a command that computes runs and prints, and where it keeps what it computed."""

    def keep(
        self,
        kind: str,
        provenance: Mapping[str, Any],
        document: Mapping[str, Any],
        about: "About",
        arrays: "Mapping[str, np.ndarray] | None" = None,
    ) -> str:
        """Store a document; returns its id.

        Args:
            kind: What it is.
            provenance: All that the result is a function of, beside the version of the library.
            document: What `--json` prints.
            about: What it is found by.
            arrays: Its large parts by name.
        """
        from assay.core.record import library_version

        record = {"library": library_version(), **provenance}
        return self.open_store().put(kind, record, document, arrays, about=about)


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Files for the result.

    Attributes:
        out: Output directory; every file gets its usual name there.
        save: File for the result.
    """

    out: Annotated[Path | None, OUTPUT] = None
    save: Annotated[Path | None, OUTPUT] = None

    def path_of(self, file: Path | None, name: str) -> Path | None:
        """Where a file goes: where its own option says, else under a name in the output directory."""
        return self.out / name if file is None and self.out is not None else file


@dataclass(frozen=True, kw_only=True)
class Reporting(Saving):
    """Files for the result and its page.

    Attributes:
        report: HTML page to write.
    """

    report: Annotated[Path | None, OUTPUT] = None

    def files(self, document: Mapping[str, Any], name: str) -> dict[str, File]:
        """The document of a result and its page, by their names in the directory of `--out`."""
        return {
            "document": json_file(self.path_of(self.save, name), document),
            "report": File(self.path_of(self.report, "report.html")),
        }


def check_outputs(settings: object, *files: Path | None, folders: Sequence[Path | None] = ()) -> None:
    """Refuse places that cannot be written before the work is done.

    A directory is not made yet.

    Args:
        settings: Its store, `out`, `save` and `report` are checked, where it has them.
        files: Further files.
        folders: Further directories.
    """
    from assay.pipeline.stage import check_writable

    options = vars(settings)
    if isinstance(settings, Storing):
        check_writable(settings.store_folder())
    for folder in filter(None, (options.get("out"), *folders)):
        check_writable(folder)
    report: Path | None = options.get("report")
    if report is not None and report.suffix not in (".html", ".htm") and not report.is_char_device():
        raise InputError(f"--report is {report}; give NAME.html, the format that is written")
    for path in filter(None, (*files, report, options.get("save"))):
        if path.is_dir():
            raise OutputError(f"{path} is a directory; give the name of a file to write")
        check_writable(path.parent)
