"""How a command runs: what it says, where it computes, what it keeps and which files it writes.

A command inherits the settings it needs and adds its own; of several bases, a help page shows the last first.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, cast

from cyclopts import Parameter

from assay.app.console import echo_files, echo_result, note, print_json, print_result
from assay.app.option_groups import DEFAULT_STORE, OUTPUT, RUNNING, STORED, Count, at_least
from assay.core.errors import InputError, OutputError


if TYPE_CHECKING:
    import numpy as np

    from assay.store import About, Store

Result = TypeVar("Result")

# Fields that mean something else, or nothing, to the function that a command calls.
_OF_THE_COMMAND = frozenset(
    ("model", "device", "dtype", "store", "out", "save", "report", "config", "quiet", "json", "traceback")
)


def keywords(settings: object, function: Callable[..., Any], /, **more: Any) -> dict[str, Any]:
    """The settings that a function takes as keywords of the same names, and other arguments for it.

    Args:
        settings: An instance of a dataclass of this module or of a command.
        function: What will be called.
        more: Arguments under names that are not fields, or with another value.
    """
    parameters = signature(function).parameters.values()
    taken = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY} - _OF_THE_COMMAND
    return {name: value for name, value in vars(settings).items() if name in taken} | more


def call(settings: object, function: Callable[..., Result], /, *arguments: Any, **more: Any) -> Result:
    """What a function gives for arguments and for the settings that it takes as keywords; see `keywords`."""
    return function(*arguments, **keywords(settings, function, **more))


# ---- files --------------------------------------------------------------------------------------


class File(NamedTuple):
    """Where a file goes, if it is wanted, and what writes it there."""

    path: Path | None
    write: Callable[[Path], object]


def json_file(path: Path | None, document: object) -> File:
    """A document as JSON."""
    return File(path, lambda path: write_json(path, document))


def write_json(path: Path, document: object) -> None:
    """A document to a file, whole or not at all."""
    from assay.circuits import write_atomically
    from assay.core.record import plain

    write_atomically(make_room(path), json.dumps(plain(document), indent=1, allow_nan=False).encode())


def make_room(path: Path) -> Path:
    """The file to write, in a directory that exists."""
    from assay.pipeline import check_writable

    check_writable(path.parent, make=True)
    return path


# ---- settings -----------------------------------------------------------------------------------


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
    config: Annotated[Path | None, RUNNING] = None
    traceback: Annotated[bool, RUNNING] = False


@dataclass(frozen=True, kw_only=True)
class Talking(Quiet):
    """How a command runs and prints.

    Attributes:
        json: Print one JSON document and nothing else on stdout.
    """

    json: Annotated[bool, OUTPUT] = False

    def deliver(
        self,
        document: object,
        files: Mapping[str, File],
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
        for path, write in files.values():
            if path is not None:
                write(make_room(path))
        if self.json:
            print_json(document)
            return
        if show is not None:
            show()
        else:
            print_result(cast(Any, document))
        echo_files(**{name: path for name, (path, _) in files.items()})
        if identity:
            echo_result(identity, cached=cached)


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """Where randomness starts.

    Attributes:
        seed: Root seed of all random draws.
    """

    seed: Annotated[int, RUNNING, at_least(0)] = 0


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where a model runs.

    Attributes:
        device: cpu, cuda, cuda:1, ... auto picks the first accelerator, else cpu.
    """

    device: Annotated[str, RUNNING] = "auto"

    def place(self, tell: Callable[[str], None] = note) -> str | None:
        """The device to use, which must exist; None leaves a model on the CPU.

        Args:
            tell: Hears which accelerator `auto` takes. Default: stderr, unless quiet.

        Raises:
            InputError: Naming the devices there are.
        """
        from assay.pipeline import check_options

        if self.device != "auto":
            check_options(device=self.device)
            return self.device
        from assay.models.placing import accelerator

        device = accelerator()
        if device is None:
            return None
        tell(f"device: {device}")
        return str(device)


@dataclass(frozen=True, kw_only=True)
class ImageWorkers:
    """Where images are decoded.

    Attributes:
        workers: Processes that decode images; 0 for none. Default: one per core, at most 8.
    """

    workers: Annotated[int | None, RUNNING, at_least(0)] = None


@dataclass(frozen=True, kw_only=True)
class Batched(Placed):
    """Where a model runs, and how much at once.

    Attributes:
        batch_size: Prompts or images per pass. Default: by free memory.
    """

    batch_size: Annotated[Count | None, RUNNING] = None


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
        """Store a document where `--store` is given; returns its id, which is empty elsewhere.

        Args:
            kind: What it is.
            provenance: All that the result is a function of, beside the version of the library.
            document: What `--json` prints.
            about: What it is found by.
            arrays: Its large parts by name.
        """
        from assay.core.record import library_version

        if self.store is None:
            return ""
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

    def files(self, document: Mapping[str, Any], name: str, *, page: str = "report.html") -> dict[str, File]:
        """The document of a result and its page, by their names in the directory of `--out`."""

        def write_page(path: Path) -> None:
            from assay.report import save_report

            save_report(path, document)

        return {
            "document": json_file(self.path_of(self.save, name), document),
            "report": File(self.path_of(self.report, page), write_page),
        }


def check_outputs(settings: object, *more: Path | None) -> None:
    """Refuse places that cannot be written, or are given twice, before the work is done.

    A directory is not made yet.
    """
    from assay.pipeline import check_writable

    if isinstance(settings, Storing):
        check_writable(settings.store_folder())
    files = list(more)
    if isinstance(settings, Saving):
        files.append(settings.save)
        if settings.out is not None:
            check_writable(settings.out)
    if isinstance(settings, Reporting):
        files.append(settings.report)
    placed: set[Path] = set()
    for path in files:
        if path is not None and path.is_dir():
            raise OutputError(f"{path} is a directory; give the name of a file to write")
        if path is not None:
            check_writable(path.parent)
            if path.resolve() in placed:
                raise InputError(f"{path} is given for two outputs; give each a file of its own")
            if path.is_file() or not path.exists():  # not /dev/null
                page = isinstance(settings, Reporting) and path == settings.report
                if page and path.suffix not in (".html", ".htm"):
                    raise InputError(f"--report is {path}; give NAME.html, the format that is written")
                placed.add(path.resolve())
