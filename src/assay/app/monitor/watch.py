"""A monitor that runs: the loop behind `assay monitor`."""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType

from assay.analyses.generalization.monitor import Reading
from assay.app.monitor.metrics import metrics_text
from assay.app.monitor.settings import MonitorOptions
from assay.app.options import call
from assay.circuits import write_atomically
from assay.core.errors import InputError
from assay.core.signals import handled
from assay.pipeline.checks import check_options, check_writable
from assay.pipeline.image_stream import Batch, Watch, batches
from assay.pipeline.monitor_directory import READINGS, held, torn_line
from assay.pipeline.monitor_plan import MonitorPlan
from assay.pipeline.monitoring import StartedMonitor, start_monitor
from assay.pipeline.stage import Progress
from assay.tasks import EvalTransform, is_shapes


DEMO = ("flat", "sketch", "neon")  # what is watched out of the box, in this order
WRITE_EVERY = 60.0  # seconds between two writings of document and page, at least
WRITE_SHARE = 50  # the same in times of what one writing takes: they grow with the readings
PATIENCE = 60.0  # seconds that the command of an alarm may take

Tell = Callable[[str], None]


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
        stop: Set to end it after the batch at hand.
        tell: Hears what a person should know.

    Raises:
        InputError: For options that do not go together.
    """

    def __init__(self, options: MonitorOptions, *, stop: Stop | None = None, tell: Tell) -> None:
        call(options, check_options)
        self.model, style = options.load_classifier(tell)
        sources = options.images
        if not sources and options.model is None:
            sources = tuple(f"shapes:{each}" for each in DEMO)
        if not sources or (options.reference is None and style is None):
            raise InputError(
                "your own model needs --reference, images it does well on, and --images, those to watch"
            )
        if options.follow and (len(sources) > 1 or is_shapes(sources[0])):
            raise InputError("--follow watches one folder; give one --images DIR")
        self.plan = call(
            options,
            MonitorPlan,
            reference=options.reference or f"shapes:{style}",
            skip_bad=bool(options.skip_bad),
        )
        self._watch = call(
            options,
            Watch,
            transform=EvalTransform.for_model(self.model),
            size=options.window,
            skip_bad=options.follow if options.skip_bad is None else options.skip_bad,
        )
        self._options, self._sources = options, sources
        self.stop = Stop() if stop is None else stop
        self._tell = tell
        self._started: StartedMonitor | None = None
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

    def start(self, progress: Progress | None = None) -> None:
        """Find or read the reference, calibrate, take up earlier readings.

        Raises:
            OutputError: If the directory cannot be written, or another process watches with it.
            InputError, FileFormatError: As `start_monitor`; also if smaller batches could not be compared.
        """
        out = self._options.out
        check_writable(out)
        if (file := self._options.metrics_file) is not None:
            check_writable(file.parent)
        self._held.enter_context(held(out))
        if torn_line(out / READINGS):
            self._tell(
                f"the last line of {out / READINGS} is incomplete and is ignored; its images are observed "
                "again"
            )
        self._started = start_monitor(
            self.model, self.plan, out=out, transform=self._watch.transform, progress=progress
        )
        flushes = self._watch.follow and self._watch.flush_after is not None
        if flushes and self._started.monitor.calibration is not None and self._started.pool is None:
            raise InputError("--flush-after needs images to compare smaller batches with; give --known")
        self._started.write(page=False)
        self._write_at = time.monotonic() + WRITE_EVERY
        self._export()

    def observe(self) -> Iterator[Reading]:
        """Observe batch after batch until there are no more, or `stop` is set."""
        self.stop.observing = True
        try:
            for batch in self._batches():
                if batch.note:
                    self._tell(batch.note)
                reading = self.started.observe(batch)
                self.started.passed.clear()  # the reading names them
                self._export()
                if reading.alarm and self._options.on_alarm is not None:
                    self._alert(self._options.on_alarm, reading)
                yield reading
                self._keep()
                if self.stop.is_set():
                    return
        finally:
            self.stop.observing = False

    def finish(self) -> None:
        """Write document and page.

        Raises:
            OutputError: If a file cannot be written.
        """
        self.started.write()

    def _alert(self, command: str, reading: Reading) -> None:
        """Run the command of an alarm. What goes wrong with it is told and does not end the monitor."""
        text = json.dumps(reading.to_dict(), allow_nan=False) + "\n"  # so that `cat >>` keeps JSON lines
        try:
            # What it prints goes to stderr: stdout is that of the readings.
            done = subprocess.run(
                command, shell=True, input=text, text=True, stdout=2, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            problem = f"did not end within {PATIENCE:g} s"
        else:
            problem = f"ended with status {done.returncode}" if done.returncode else ""
        if problem:
            self._tell(f"the command of --on-alarm {problem} at batch {reading.index + 1}")

    def _batches(self) -> Iterator[Batch]:
        """Images of all sources, at most so many."""
        given, most = 0, self._options.max_batches
        for source in self._sources:
            if most is not None and given >= most:
                return
            for batch in batches(
                source,
                self._watch,
                done=self.started.done,
                wait=self._wait,
                tell=self._tell,
                passed=self._pass_over,
            ):
                yield batch
                given += 1
                if most is not None and given >= most:
                    return

    def _pass_over(self, name: str) -> None:
        self.started.passed.append(name)
        self._tell(f"skipped {name}: it cannot be decoded")
        self.started.write(page=False)
        self._export()

    def _wait(self, seconds: float) -> bool:
        self._keep()
        return self.stop.wait(seconds)

    def _export(self) -> None:
        """Write the state for Prometheus, where it is asked for."""
        if self._options.metrics_file is not None:
            text = metrics_text(self.started.document, self._options.out.absolute().name)
            write_atomically(self._options.metrics_file, text)

    def _keep(self) -> None:
        """Write document and page now and then; it takes the longer, the more readings there are."""
        begun = time.monotonic()
        if begun < self._write_at:
            return
        self.started.write()
        now = time.monotonic()
        self._write_at = now + max(WRITE_EVERY, WRITE_SHARE * (now - begun))


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """SIGTERM and Ctrl-C set what is entered; where nothing is observed they end the process at once.

    A second Ctrl-C interrupts the batch. Signals go to the main thread; entered in another, it hears none.
    """
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT and (stop.is_set() or not stop.observing):
            raise KeyboardInterrupt
        if not stop.observing:
            raise SystemExit(0)
        stop.set()

    with handled(handle, signal.SIGTERM, signal.SIGINT):
        yield stop
