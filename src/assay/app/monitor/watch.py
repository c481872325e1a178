"""A monitor that runs: the loop behind `assay monitor` and `assay serve --monitor`."""

import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from assay.analyses.generalization import DISTANCES
from assay.analyses.generalization.monitoring import SCHEMA, Reading
from assay.app.monitor.alarms import STATE, AlarmFile, Notifier, Sink, Webhook, seconds_of
from assay.app.monitor.metrics import metrics_text
from assay.app.monitor.settings import MonitorOptions
from assay.core.errors import AssayError, FileFormatError, InputError, unknown_name
from assay.core.untrusted import parse_json, parse_toml, printable
from assay.models import Model, load_model
from assay.pipeline import Progress, check_options, check_writable
from assay.pipeline.image_stream import Batch, Watch, batches
from assay.pipeline.monitoring import (
    DOCUMENT,
    READINGS,
    MonitorPlan,
    StartedMonitor,
    held,
    is_held,
    start_monitor,
    torn_line,
)
from assay.tasks import EvalTransform, is_shapes
from assay.zoo import Zoo


DEMO = ("flat", "sketch", "neon")  # what is watched out of the box, in this order
WRITE_EVERY = 60.0  # seconds between two writings of document and page, at least
WRITE_SHARE = 50  # the same in times of what one writing takes: they grow with the readings
# Options of the command that say how it talks and ends; a monitor inside a service does neither.
OF_THE_COMMAND = frozenset(("metrics_port", "gate", "json", "quiet", "dry_run", "traceback"))

Tell = Callable[[str], None]
Publish = Callable[[Mapping[str, Any]], None]


def read_options(path: Path) -> MonitorOptions:
    """The options of a monitor from a TOML file, as `assay monitor --config` takes it.

    Keys are the names of the options, with `-` or `_`, also in a table `[monitor]`. Those that say how the
    command talks and ends (`--json`, `--quiet`, `--gate`, ...) may appear there and have no effect here.

    Raises:
        FileFormatError: If the file cannot be read.
        UnknownNameError: For a key that is not an option; near ones are named.
        InputError: For a value of the wrong kind.
    """
    try:
        content = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"cannot read {path}: {error}") from error
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


class Stop(threading.Event):
    """Set to end a run after the batch at hand.

    Attributes:
        observing: Whether there is one; before and after, ending at once loses nothing.
    """

    observing = False


class MonitorRun:
    """One run of a monitor, from the model to the last batch. Use it as a context.

    Args:
        options: What to watch and how.
        name: What to call it in events and metrics. Default: the name of its directory.
        stop: Set from elsewhere to end it after the batch at hand.
        tell: Hears what a person should know.

    Raises:
        InputError: For options that do not go together.
    """

    def __init__(
        self,
        options: MonitorOptions,
        *,
        name: str | None = None,
        stop: Stop | None = None,
        tell: Tell,
    ) -> None:
        check_options(
            method=options.method,
            objective=options.objective,
            ablation=options.ablation,
        )
        DISTANCES[options.distance]
        cool_down = seconds_of(options.cool_down)
        self._sinks: list[Sink] = []
        if options.webhook is not None:
            self._sinks.append(Webhook(options.webhook))
        if options.alarm_file is not None:
            self._sinks.append(AlarmFile(options.alarm_file))
        if cool_down and not self._sinks:
            raise InputError("a cool-down has no effect without an alarm file or a webhook; give one")
        self.model, style = _model(options.model, options.place(tell), options.torch_dtype)
        sources = options.images or (
            tuple(f"shapes:{each}" for each in DEMO) if options.model is None else ()
        )
        if not sources or (options.reference is None and style is None):
            raise InputError(
                "your own model needs --reference, images it does well on, and --images, those to watch"
            )
        if options.follow and (len(sources) > 1 or is_shapes(sources[0])):
            raise InputError("--follow watches one folder; give one --images DIR")
        self.plan = MonitorPlan(
            reference=options.reference or f"shapes:{style}",
            known=options.known,
            window=options.window,
            known_batches=options.known_batches,
            threshold=options.threshold,
            target=options.target,
            rule=options.rule,
            alpha=options.alpha,
            distance=options.distance,
            method=options.method,
            objective=options.objective,
            ablation=options.ablation,
            steps=options.steps,
            seed=options.seed,
            skip_bad=bool(options.skip_bad),
            batch_size=options.batch_size,
        )
        self._transform = EvalTransform.for_model(self.model)
        self._watch = Watch(
            transform=self._transform,
            size=options.window,
            n=options.n,
            order=options.order,
            seed=options.seed,
            skip_bad=options.follow if options.skip_bad is None else options.skip_bad,
            follow=options.follow,
            poll=options.poll,
            idle_timeout=options.idle_timeout,
        )
        self._options, self._sources, self._cool_down = options, sources, cool_down
        self.name = options.out.absolute().name if name is None else name
        self.stop = Stop() if stop is None else stop
        self._tell = tell
        self._publish_to: Publish | None = None
        self._published: Mapping[str, Any] = {}
        self._started: StartedMonitor | None = None
        self._notifier: Notifier | None = None
        self._write_at = 0.0
        self._held = ExitStack()

    def __enter__(self) -> "MonitorRun":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()

    @property
    def started(self) -> StartedMonitor:
        """The monitor, once `start` was called."""
        assert self._started is not None, "call start() first"
        return self._started

    @property
    def document(self) -> dict[str, Any]:
        """That of the monitor, with its name and what became of its alarms."""
        document = {**self.started.document, "name": self.name}
        return document if self._notifier is None else {**document, "notifications": self._notifier.to_dict()}

    def publish_to(self, publish: Publish) -> None:
        """Give the document to this whenever it has changed."""
        self._publish_to = publish

    def start(self, progress: Progress | None = None) -> None:
        """Find or read the reference, calibrate, take up earlier readings and alarms.

        Raises:
            OutputError: If the directory cannot be written, or another process watches with it.
            InputError, FileFormatError: As `start_monitor`.
        """
        out = self._options.out
        check_writable(out)
        self._held.enter_context(held(out))
        if torn_line(out / READINGS):
            self._tell(
                f"the last line of {out / READINGS} is incomplete and is ignored; its images are observed "
                "again"
            )
        self._started = start_monitor(
            self.model, self.plan, out=out, transform=self._transform, progress=progress
        )
        if self._sinks:
            self._notifier = Notifier(
                self._started.monitor,
                self._sinks,
                name=self.name,
                cool_down=self._cool_down,
                state=out / STATE,
                tell=self._tell,
            )
        self._started.write(page=False)
        self._write_at = time.monotonic() + WRITE_EVERY
        self._publish()

    def observe(self) -> Iterator[Reading]:
        """Observe batch after batch until there are no more, or `stop` is set."""
        self.stop.observing = True
        try:
            for batch in self._batches():
                if batch.note:
                    self._tell(batch.note)
                reading = self.started.monitor.observe(
                    batch.images, sources=batch.sources, skipped=batch.skipped
                )
                if self._notifier is not None:
                    self._notifier.take(reading)
                self.started.passed.clear()  # the reading names them
                self._publish()
                yield reading
                self._keep()
                if self.stop.is_set():
                    return
        finally:
            self.stop.observing = False

    def finish(self) -> None:
        """Write document and page; tell what still waits to be told.

        Raises:
            OutputError: If a file cannot be written.
        """
        self.started.write()
        if self._notifier is not None:
            # Also after a stop: whoever stops it waits some seconds, and an alarm is worth them.
            self._notifier.finish(time.sleep)
            self._publish()

    def _batches(self) -> Iterator[Batch]:
        """Images of all sources, at most so many."""
        given, most = 0, self._options.max_batches
        for source in self._sources:
            if most is not None and given >= most:
                return
            stream = batches(
                source,
                self._watch,
                done=self.started.done,
                wait=self._wait,
                tell=self._tell,
                passed=self._pass_over,
            )
            for batch in stream:
                yield batch
                given += 1
                if most is not None and given >= most:
                    return

    def _pass_over(self, name: str) -> None:
        self.started.passed.append(name)
        self._tell(f"skipped {name}: it cannot be decoded")
        self.started.write(page=False)
        self._publish()

    def _wait(self, seconds: float) -> bool:
        if self._notifier is not None:
            self._notifier.send()
            if self._published.get("notifications") != self._notifier.to_dict():
                self._publish()
        self._keep()
        return self.stop.wait(seconds)

    def _publish(self) -> None:
        if self._publish_to is not None:
            self._published = self.document
            self._publish_to(self._published)

    def _keep(self) -> None:
        """Write document and page now and then; it takes the longer, the more readings there are."""
        begun = time.monotonic()
        if begun < self._write_at:
            return
        self.started.write()
        now = time.monotonic()
        self._write_at = now + max(WRITE_EVERY, WRITE_SHARE * (now - begun))


def _model(name: str | None, device: str | None, dtype: torch.dtype | None) -> tuple[Model, str | None]:
    """The model to watch, and the style of shapes that an embedded one was trained on."""
    if name is not None:
        loaded = load_model(name, device=device, dtype=dtype)
        if not loaded.vision:
            raise InputError(f"{name} reads text; assay monitor watches image classifiers")
        return loaded, None
    zoo = Zoo.embedded()
    best = max(zoo.keys, key=lambda key: zoo.entry(key).id_accuracy or 0.0)
    return load_model(str(zoo.folder(best)), device=device, dtype=dtype), zoo.id_domain


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """SIGTERM and Ctrl-C set what is entered; where nothing is observed they end the process at once.

    A second Ctrl-C interrupts the batch. Signals go to the main thread; entered in another, it hears none.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT and (stop.is_set() or not stop.observing):
            raise KeyboardInterrupt
        if not stop.observing:
            raise SystemExit(0)
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ------------------------------------------------------------------------------------------ for a service


class WatchedMonitor(ABC):
    """A monitor as a service sees it.

    Attributes:
        name: What to call it.
    """

    name: str

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
        one_folder = len(options.images) == 1 and not is_shapes(options.images[0])
        self._options = replace(options, follow=options.follow or one_folder)
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
            with MonitorRun(self._options, name=self.name, stop=self._stop, tell=self._tell) as run:
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
