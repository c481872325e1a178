"""A monitor that runs: the loop behind `assay monitor`, the command of an alarm, the state for Prometheus."""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from assay.analyses.generalization import domains as labelled
from assay.analyses.generalization.alarms import Threshold, batches_for
from assay.analyses.generalization.monitor import Monitor, Reading
from assay.app.options import call
from assay.circuits import write_atomically
from assay.core.errors import InputError
from assay.pipeline.image_stream import batches
from assay.pipeline.monitoring import DOCUMENT, PAGE, READINGS, KnownImages, held, metrics_text, parted
from assay.pipeline.stage import Progress, silent
from assay.report.save import save_report
from assay.tasks import EvalTransform, ImageTask, is_shapes


if TYPE_CHECKING:
    from assay.app.cli.monitor import MonitorSettings

DEMO = ("shapes:flat", "shapes:sketch", "shapes:neon")  # what is watched out of the box, in this order
WRITE_EVERY = 60.0  # seconds between two writings of document and page, at least
PATIENCE = 60.0  # seconds that the command of an alarm may take


class MonitorRun:
    """One run of a monitor, from the model to the last batch.

    Args:
        settings: What to watch and how.
        tell: Hears what a person should know.

    Attributes:
        stop: Set to end it after the batch at hand.

    Raises:
        InputError: For options that do not go together.
    """

    monitor: Monitor  # once it is started
    _pool: ImageTask | None  # images in distribution, from which known batches are drawn

    def __init__(self, settings: "MonitorSettings", *, tell: Callable[[str], None]) -> None:
        self.settings, self.stop, self._tell = settings, threading.Event(), tell
        self.model, self._reference, self._sources = settings.inputs(settings.images, DEMO)
        if settings.follow and (len(self._sources) > 1 or is_shapes(self._sources[0])):
            raise InputError("--follow watches one folder; give one --images DIR")
        if settings.flush_after is not None and not settings.follow:
            raise InputError("--flush-after closes a batch while waiting; give --follow, too")
        if settings.threshold is not None and settings.target is not None:
            raise InputError("a target determines a threshold; give only one of the two")
        known = [Path(each).resolve() for each in (self._reference, settings.known) if each]
        for source in self._sources:
            if not is_shapes(source) and Path(source).resolve() in known:
                tell(f"{source} holds the known images: their shift is too small, and an alarm means nothing")

    @contextmanager
    def started(self, progress: Progress = silent) -> "Iterator[MonitorRun]":
        """The reference found or read, calibrated, earlier readings taken up; document and page at the end.

        Raises:
            OutputError: If the directory cannot be written, or another process watches with it.
            InputError, FileFormatError: As `KnownImages.reference`; if `out` holds readings of another
                monitor; or if smaller batches could not be compared.
        """
        with held(self.settings.out):
            self._start(progress)
            if self.settings.flush_after and self.monitor.calibrations and self._pool is None:
                raise InputError("--flush-after needs images to compare smaller batches with; give --known")
            self._write_at = time.monotonic() + WRITE_EVERY
            self._export()
            yield self
            self._write()

    def _start(self, progress: Progress) -> None:
        """The monitor from its reference and known images; what an earlier run left is used again."""
        asked, seed, window = self.settings, self.settings.seed, self.settings.window
        m, cache = asked.known_batches, asked.out / "cache"
        spare = batches_for(asked.alpha / 2) if m is None else m
        conformal = asked.rule == "conformal" or {asked.rule, asked.threshold, asked.target} == {None}
        least = batches_for(asked.alpha) if conformal and m is None else 0
        known = call(asked, KnownImages, source=self._reference, cache=cache, progress=progress)
        reference, images, pool = known.reference(self.model, window, spare, asked.reference_n, least)
        # A sample, because folders list class after class.
        learn = pool.sample(labelled.MOST_LABELLED, seed=seed) if pool and pool.labels is not None else None
        threshold: Threshold | float | None = asked.threshold
        if asked.target is not None:
            if pool is None:
                raise InputError("a target needs labelled in-distribution images to corrupt; give --known")
            few, rest = labelled.split_known(pool, window, seed=seed)
            learn = few or learn
            threshold = labelled.calibrate_on_corruptions(
                self.model,
                reference,
                rest,
                settings=labelled.EvaluationSettings(n=min(window, rest.n), seed=seed),
                labelled=few,
                cache=cache,
                progress=lambda _, *done: progress("corrupted domains", *done),
            ).threshold(asked.target)
        if images is None and pool is not None:
            images, pool = parted(pool, window * spare, seed)
        kept: dict[str, Any] = {"outputs": images, "labelled": learn, "log": asked.out / READINGS}
        self.monitor = monitor = call(asked, Monitor, self.model, reference, threshold, cache=cache, **kept)
        self._pool = pool
        if monitor.calibrations or monitor.readings or m == 0:
            return
        if pool is not None and (conformal or m is not None or pool.n >= window):
            progress("known batches", 0, m or 0)
            monitor.calibrate(pool, batch_size=window, n_batches=m)
        elif m is not None:
            raise InputError("no in-distribution images are left to calibrate on; give --known")

    def observe(self) -> Iterator[Reading]:
        """Observe batch after batch of all sources until there are no more, or `stop` is set."""
        settings, monitor, pool, told = self.settings, self.monitor, self._pool, False
        for batch in self._batches():
            if not told and (turned := [note for note in batch.notes if "EXIF" in note]):
                told = True
                self._tell(f"{turned[0]} (--exif ignore leaves images as stored)")
            if monitor.calibrations and batch.n not in monitor.calibrations and pool is not None:
                monitor.calibrate(pool, batch_size=batch.n, n_batches=settings.known_batches)
            reading = monitor.observe(batch, sources=batch.fields["path"], page=str(settings.out / PAGE))
            self._export()
            if reading.alarm and settings.on_alarm is not None:
                self._write()  # the page that the reading names
                self._alert(settings.on_alarm, reading)
            yield reading
            self._keep()
            if self.stop.is_set():
                return

    def _batches(self) -> Iterator[ImageTask]:
        """The images of one source after the other, less those that were observed or skipped before."""

        def skip(name: str) -> None:
            self.monitor.skip(name)
            self._tell(f"skipped {name}: it cannot be decoded")
            self._export()

        def wait(seconds: float) -> bool:
            self._keep()
            return self.stop.wait(seconds)

        how: dict[str, Any] = {"skip": skip, "tell": self._tell, "wait": wait}
        how["transform"] = EvalTransform.for_model(self.model)
        for source in self._sources:
            size, done = self.settings.window, self.monitor.done
            yield from call(self.settings, batches, source, size=size, done=done, **how)

    def _alert(self, command: str, reading: Reading) -> None:
        """Run the command of an alarm. What goes wrong with it is told and does not end the monitor."""
        text = json.dumps(reading.to_dict(), allow_nan=False) + "\n"  # so that `cat >>` keeps JSON lines
        what = f"the command of --on-alarm at batch {reading.index + 1}"  # itself it may hold a secret
        try:  # What it prints goes to stderr: stdout is that of the readings.
            subprocess.run(command, shell=True, input=text, text=True, stdout=2, timeout=PATIENCE, check=True)
        except subprocess.CalledProcessError as error:
            self._tell(f"{what} ended with status {error.returncode}")
        except subprocess.TimeoutExpired:
            self._tell(f"{what} did not end within {PATIENCE:g} s")

    def _export(self) -> None:
        """Write the state for Prometheus, where it is asked for."""
        if self.settings.metrics_file is not None:
            text = metrics_text(self.monitor, self.settings.out.absolute().name)
            write_atomically(self.settings.metrics_file, text)

    def _keep(self) -> None:
        """Write document and page now and then."""
        if time.monotonic() >= self._write_at:
            self._write()
            self._write_at = time.monotonic() + WRITE_EVERY

    def _write(self) -> None:
        """The document, and the page once there is a reading."""
        out, document = self.settings.out, self.monitor.to_dict()
        write_atomically(out / DOCUMENT, json.dumps(document, indent=1, allow_nan=False).encode())
        if document["readings"]:
            save_report(out / PAGE, document)


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C set an event while entered; a second Ctrl-C interrupts the batch at hand.

    Signals go to the main thread; entered in another, it hears none.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT and stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    heard = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
