"""Monitors as a service sees them: one that observes in a thread here, or in a process elsewhere."""

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from assay.analyses.generalization.journal import Reading
from assay.analyses.generalization.monitoring import SCHEMA
from assay.app.monitor.alarms import STATE
from assay.app.monitor.metrics import metrics_text
from assay.app.monitor.settings import MonitorOptions
from assay.app.monitor.spool import POSTED, Spool
from assay.app.monitor.watch import MonitorRun, Stop, Tell
from assay.core.errors import AssayError, FileFormatError, InputError, unknown_name
from assay.core.machine import decoding_with
from assay.core.untrusted import parse_json, parse_toml, printable, read_object
from assay.pipeline.monitor_directory import DOCUMENT, READINGS, is_held
from assay.pipeline.prompt_stream import is_drawn


# Options of the command that say how it talks and ends; a monitor inside a service does neither.
OF_THE_COMMAND = frozenset(
    ("evaluate", "metrics_port", "metrics_host", "gate", "store", "json", "quiet", "traceback")
)


def read_options(path: Path) -> MonitorOptions:
    """The options of a monitor from a TOML file, as `assay monitor --config` takes it.

    Keys are the names of the options, with `-` or `_`, also in a table `[monitor]`. Those that say how the
    command talks and ends (`--json`, `--quiet`, `--gate`, ...) may appear there and have no effect here.

    Raises:
        FileFormatError: If the file cannot be read.
        UnknownNameError: For a key that is not an option; near ones are named.
        InputError: For a value of the wrong kind.
    """
    content = read_object(path, "a TOML file of options", parse=parse_toml)
    table = content.pop("monitor", {})
    if not isinstance(table, dict):
        raise InputError(f"monitor in {path} is {table!r}; it must be a table, [monitor]")
    known = {each.name for each in fields(MonitorOptions)}
    values = {}
    for key, value in {**content, **table}.items():
        name = key.replace("-", "_")
        if name not in known | OF_THE_COMMAND:
            raise unknown_name(
                f"option of a monitor in {path}", key, [each.replace("_", "-") for each in known]
            )
        if name in known:
            values[name] = value
    if isinstance(values.get("images"), str):
        values["images"] = [values["images"]]
    try:
        return TypeAdapter(MonitorOptions).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]  # a webhook is not text for a message
        key = str(first["loc"][0]).replace("_", "-") if first["loc"] else "options"
        raise InputError(f"{key} in {path}: {first['msg']}") from None


class WatchedMonitor(ABC):
    """A monitor as a service sees it.

    Attributes:
        name: What to call it.
        spool: Takes the images that are posted to it; None where it watches something else.
        address: Of its page, for notifications; set before `start` by what serves it.
    """

    name: str
    spool: Spool | None = None
    address: str | None = None

    @abstractmethod
    def start(self) -> None:
        """Begin, where there is something to begin; returns at once."""

    @abstractmethod
    def stop(self) -> None:
        """End; returns once nothing runs any more."""

    @property
    @abstractmethod
    def document(self) -> Mapping[str, Any] | None:
        """The latest state, what `metrics_text` takes; None before there is one."""

    @property
    @abstractmethod
    def error(self) -> str | None:
        """Why it has failed, or cannot be read; None while all is well."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it observes; False before it starts and once it has ended, for whatever reason."""


def _on_stderr(text: str) -> None:
    sys.stderr.write(f"{printable(text, lines=False)}\n")


def watched(path: str | Path, *, tell: Tell = _on_stderr) -> WatchedMonitor:
    """A monitor to observe with, or to look at while another process observes.

    Args:
        path: A TOML file of the options of `assay monitor` (it then observes in a thread, and follows if it
            watches one folder), or the directory of a monitor that runs elsewhere (`--out`).
        tell: Hears what a person should know, with the name of the monitor.

    Raises:
        FileFormatError: If there is no such place, or the file is no TOML.
        InputError: For an option that there is not, or a value of the wrong kind.
    """
    path = Path(path)
    if path.is_dir():
        return _Elsewhere(path)
    if not path.exists():
        raise FileFormatError(
            f"{path} does not exist; give a TOML file of `assay monitor` options, or the directory of a "
            "running monitor"
        )
    return _Here(path.stem, read_options(path), tell)


class _Here(WatchedMonitor):
    """Observes in a thread."""

    def __init__(self, name: str, options: MonitorOptions, tell: Tell) -> None:
        self.name = name
        watches = options.images or tuple(filter(None, (options.prompts,)))
        one_folder = len(watches) == 1 and not is_drawn(watches[0])
        self._options = replace(options, follow=options.follow or one_folder)
        if options.images == (POSTED,):
            self.spool = Spool(options.out, window=options.window)
        self._tell: Tell = lambda text: tell(f"{name}: {text}")
        self._stop = Stop()
        self._thread: threading.Thread | None = None
        self._document: Mapping[str, Any] | None = None
        self._error: str | None = None

    def start(self) -> None:
        assert self._thread is None, "a monitor starts once"
        self._thread = threading.Thread(target=self._run, name=f"monitor {self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def document(self) -> Mapping[str, Any] | None:
        return self._document

    @property
    def error(self) -> str | None:
        return self._error

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        try:
            with (
                decoding_with(self._options.workers),
                MonitorRun(
                    self._options,
                    name=self.name,
                    stop=self._stop,
                    spool=self.spool,
                    address=self.address,
                    tell=self._tell,
                ) as run,
            ):
                run.publish_to(self._take)
                run.start()
                for _ in run.observe():
                    pass
                run.finish()
        except AssayError as error:
            self._error = str(error)
            self._tell(f"error: {error}")
        except BaseException as error:  # the page must not show a dead monitor as a quiet one
            self._error = f"{type(error).__name__}: {error}"
            raise

    def _take(self, document: Mapping[str, Any]) -> None:
        self._document = document


class _Elsewhere(WatchedMonitor):
    """Reads what another process writes: the document for what stays, the journal for the readings."""

    def __init__(self, folder: Path) -> None:
        self.name = os.fsencode(folder.absolute().name).decode("utf-8", "replace")
        self._folder = folder
        self._lock = threading.Lock()
        self._document: Mapping[str, Any] | None = None
        self._error: str | None = None
        self._head: dict[str, Any] = {}
        self._readings: list[dict[str, Any]] = []
        self._looks: dict[str, tuple[int, int, int]] = {}
        self._offset = 0

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    @property
    def document(self) -> Mapping[str, Any] | None:
        self._refresh()
        return self._document

    @property
    def error(self) -> str | None:
        self._refresh()
        return self._error

    @property
    def running(self) -> bool:
        return is_held(self._folder)

    def _refresh(self) -> None:
        """Read what is new; what was read before stays if that fails."""
        with self._lock:
            looks = {name: _look(self._folder / name) for name in (DOCUMENT, READINGS, STATE)}
            if looks == self._looks:
                return
            try:
                self._read(looks)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, AssayError) as error:
                self._error = f"cannot read {self._folder} as the directory of a monitor: {error}"
                return
            self._looks, self._error = looks, None

    def _read(self, looks: Mapping[str, tuple[int, int, int]]) -> None:
        if looks[DOCUMENT] != self._looks.get(DOCUMENT):
            if looks[DOCUMENT] == _ABSENT:
                raise FileFormatError(
                    f"{DOCUMENT} does not exist; start `assay monitor --out {self._folder}`"
                )
            head = parse_json((self._folder / DOCUMENT).read_bytes())
            if head["schema"] != SCHEMA:
                raise FileFormatError(f"schema {head['schema']!r}; this version reads {SCHEMA!r}")
            head.pop("readings")
            if self._head and head["id"] != self._head["id"]:
                self._readings, self._offset = [], 0
            self._head = head
        inode, size, _ = looks[READINGS]
        if inode != self._looks.get(READINGS, _ABSENT)[0] or size < self._offset:
            self._readings, self._offset = [], 0
        if size > self._offset:
            with (self._folder / READINGS).open("rb") as file:
                file.seek(self._offset)
                new = file.read()
            new = new[: new.rfind(b"\n") + 1]
            records = [parse_json(line) for line in new.split(b"\n")[:-1]]
            found = [each for each in records if each.pop("kind") == "reading"]
            for each in found:
                Reading.from_dict(each)
            self._readings += found
            self._offset += len(new)
        document = {**self._head, "readings": list(self._readings), "name": self.name}
        if looks[STATE] != _ABSENT:
            document["notifications"] = parse_json((self._folder / STATE).read_bytes())["notifications"]
        metrics_text([document])  # what cannot be told must not break what other monitors tell
        self._document = document


_ABSENT = (0, 0, 0)


def _look(path: Path) -> tuple[int, int, int]:
    """Tells whether a file has changed: its number, size and time; zeros where there is none."""
    try:
        found = path.stat()
    except OSError:
        return _ABSENT
    return found.st_ino, found.st_size, found.st_mtime_ns
