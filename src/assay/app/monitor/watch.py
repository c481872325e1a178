"""A monitor that runs: the loop behind `assay monitor`."""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from assay.analyses.generalization.monitor import Reading
from assay.app.monitor.metrics import metrics_text
from assay.app.monitor.settings import MonitorOptions
from assay.app.options import call
from assay.circuits import write_atomically
from assay.core.errors import InputError
from assay.core.signals import handled
from assay.pipeline.checks import check_options, check_writable
from assay.pipeline.image_stream import batches
from assay.pipeline.monitoring import MonitorPlan, StartedMonitor, held, start_monitor
from assay.pipeline.stage import Progress, silent
from assay.tasks import EvalTransform, ImageTask, is_shapes


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
    """One run of a monitor, from the model to the last batch.

    Args:
        options: What to watch and how.
        stop: Set to end it after the batch at hand.
        tell: Hears what a person should know.

    Raises:
        InputError: For options that do not go together.
    """

    def __init__(self, options: MonitorOptions, *, stop: Stop | None = None, tell: Tell) -> None:
        call(options, check_options)
        self.options, self.stop, self._tell = options, stop or Stop(), tell
        self.model, style = options.load_classifier(tell)
        self._sources = options.images
        if not self._sources and options.model is None:
            self._sources = tuple(f"shapes:{each}" for each in DEMO)
        if not self._sources or (options.reference is None and style is None):
            raise InputError(
                "your own model needs --reference, images it does well on, and --images, those to watch"
            )
        if options.follow and (len(self._sources) > 1 or is_shapes(self._sources[0])):
            raise InputError("--follow watches one folder; give one --images DIR")
        self.plan = call(
            options,
            MonitorPlan,
            reference=options.reference or f"shapes:{style}",
            skip_bad=bool(options.skip_bad),
        )
        known = [Path(each).resolve() for each in (self.plan.reference, self.plan.known) if each]
        for source in self._sources:
            if not is_shapes(source) and Path(source).resolve() in known:
                tell(f"{source} holds the known images: their shift is too small, and an alarm means nothing")

    @contextmanager
    def started(self, progress: Progress = silent) -> Iterator[StartedMonitor]:
        """The reference found or read, calibrated, earlier readings taken up; document and page at the end.

        Raises:
            OutputError: If the directory cannot be written, or another process watches with it.
            InputError, FileFormatError: As `start_monitor`; also if smaller batches could not be compared.
        """
        out, options = self.options.out, self.options
        for folder in (out, *([] if options.metrics_file is None else [options.metrics_file.parent])):
            check_writable(folder)
        with held(out):
            started = start_monitor(self.model, self.plan, out=out, progress=progress)
            if options.follow and options.flush_after and started.monitor.calibrations and not started.pool:
                raise InputError("--flush-after needs images to compare smaller batches with; give --known")
            started.write(page=False)
            self._write_at = time.monotonic() + WRITE_EVERY
            self._export(started)
            yield started
            started.write()

    def observe(self, started: StartedMonitor) -> Iterator[Reading]:
        """Observe batch after batch until there are no more, or `stop` is set."""
        self.stop.observing = True
        try:
            for batch in self._batches(started):
                reading = started.observe(batch)
                self._export(started)
                if reading.alarm and self.options.on_alarm is not None:
                    self._alert(self.options.on_alarm, reading)
                yield reading
                self._keep(started)
                if self.stop.is_set():
                    return
        finally:
            self.stop.observing = False

    def _batches(self, started: StartedMonitor) -> Iterator[ImageTask]:
        """Images of all sources."""

        def skip(name: str) -> None:
            started.monitor.skip(name)
            self._tell(f"skipped {name}: it cannot be decoded")
            started.write(page=False)
            self._export(started)

        def wait(seconds: float) -> bool:
            self._keep(started)
            return self.stop.wait(seconds)

        skip_bad = self.options.follow if self.options.skip_bad is None else self.options.skip_bad
        turned = False
        for source in self._sources:
            for batch in call(
                self.options,
                batches,
                source,
                transform=EvalTransform.for_model(self.model),
                size=self.options.window,
                skip_bad=skip_bad,
                done=started.monitor.done,
                skip=skip,
                tell=self._tell,
                wait=wait,
            ):
                if not turned and (notes := [each for each in batch.notes if "EXIF" in each]):
                    turned = True
                    self._tell(f"{notes[0]} (--exif ignore leaves images as stored)")
                yield batch

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

    def _export(self, started: StartedMonitor) -> None:
        """Write the state for Prometheus, where it is asked for."""
        if self.options.metrics_file is not None:
            text = metrics_text(started.monitor, self.options.out.absolute().name)
            write_atomically(self.options.metrics_file, text)

    def _keep(self, started: StartedMonitor) -> None:
        """Write document and page now and then; it takes the longer, the more readings there are."""
        begun = time.monotonic()
        if begun >= self._write_at:
            started.write()
            self._write_at = time.monotonic() + max(WRITE_EVERY, WRITE_SHARE * (time.monotonic() - begun))


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
