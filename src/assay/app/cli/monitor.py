"""`assay monitor`: batches of images in, circuit shift out, with an alarm."""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import GATE_FIRED, IMAGES, app, command
from assay.app.console import echo, echo_result, note, print_json, progress_on_stderr, remark, say
from assay.app.delivery import Computing, Talking
from assay.app.monitor.settings import MonitorOptions
from assay.app.options import RUNNING
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.analyses.generalization.monitor import Reading
    from assay.pipeline.monitoring import StartedMonitor


@dataclass(frozen=True, kw_only=True)
class MonitorSettings(Computing, MonitorOptions):
    """What is watched, and how the command talks and ends.

    Attributes:
        gate: Exit with code 3 if a batch raises the alarm (with --follow, immediately), or if there is no new
            batch and the last one did.
    """

    gate: Annotated[bool, RUNNING] = False


@command(IMAGES, example="assay monitor --model classifier --reference known --images inbox --follow")
def monitor(settings: MonitorSettings) -> int:
    """Watch a deployed image classifier for circuit shift.

    How far its circuit on new images is from that on known ones; run it again to resume.
    """
    from assay.app.monitor.watch import MonitorRun, stopped_by_signals

    readings: list[Reading] = []
    with stopped_by_signals() as stop, ExitStack() as running:
        run = MonitorRun(settings, stop=stop, tell=remark)
        with progress_on_stderr() as progress:
            started = running.enter_context(run.started(progress))
        remark(started.monitor.rules.guarantee)
        for reading in run.observe(started):
            readings.append(reading)
            _print(settings, reading, first=len(readings) == 1)
            if settings.gate and settings.follow and reading.alarm:
                break
        if stop.is_set():
            note("Stopped. Run the same command again to resume.")
    _finish(settings, started, readings)
    # Without a new batch the alarm is what the newest reading said.
    alarms = sum(bool(each.alarm) for each in readings or started.monitor.readings[-1:])
    if not (settings.gate and alarms):
        return 0
    say(f"gate: {alarms} batch(es) raised the alarm" if readings else "gate: the alarm is on")
    return GATE_FIRED


Directory = Annotated[Path, Parameter(name="DIR", help="Output directory of a monitor.")]


@dataclass(frozen=True, kw_only=True)
class StatusSettings(Talking):
    """Which monitor."""


@command(parent=app["monitor"], example="assay monitor status watch")
def status(directory: Directory, /, *, settings: StatusSettings) -> int:
    """Print the state of an alarm in one line.

    Exit code 3 where it is on, 0 where it is off.
    """
    from assay.analyses.generalization.monitor import read_readings
    from assay.page.text import plural
    from assay.pipeline.monitoring import READINGS

    readings = read_readings(directory / READINGS)
    if not readings:
        raise InputError(f"{directory} holds no readings; give the --out of a monitor")
    last = readings[-1]
    if settings.json:
        print_json({"alarm": last.alarm, "batches": len(readings), "last": last.to_dict()})
    else:
        state = {None: "no alarm is set", True: "alarm on", False: "alarm off"}[last.alarm]
        echo(f"{state}: {last.sentence} ({plural(len(readings), 'batch')}, the last {last.time[:16]} UTC)")
    return GATE_FIRED if last.alarm else 0


def _print(settings: MonitorSettings, reading: "Reading", *, first: bool) -> None:
    """A row of the table as it comes, so of fixed width; with --json and --follow, a line of JSON."""
    if settings.json:
        if settings.follow:
            echo(json.dumps(reading.to_dict(), allow_nan=False))
        return
    if first:
        heads = f"{'batch':>5}  {'origin':<14} {'n':>5} {'shift':>7} {'p':>6} {'outputs':>7} {'p':>6}"
        echo(f"{heads} {'e-value':>8}  alarm")
    p, outputs, output_p = (
        "" if each is None else f"{each:.3f}"
        for each in (reading.p_value, reading.output_shift, reading.output_p_value)
    )
    e = "" if reading.e_value is None else f"{reading.e_value:.3g}"
    alarm = {None: "", False: "no", True: "ALARM"}[reading.alarm]
    skipped = f"  {len(reading.skipped)} unreadable" if reading.skipped else ""
    echo(
        f"{reading.index + 1:>5}  {reading.domain[:14]:<14} {reading.n:>5} {reading.shift:>7.3f} "
        f"{p:>6} {outputs:>7} {output_p:>6} {e:>8}  {alarm:<5}{skipped}".rstrip()
    )


def _finish(settings: MonitorSettings, started: "StartedMonitor", readings: "list[Reading]") -> None:
    """What came of the run: the document, or a verdict and the files."""
    from assay.analyses.generalization.monitor_page import verdict
    from assay.pipeline.monitoring import DOCUMENT, PAGE, READINGS
    from assay.store import About

    document, every = started.document, started.monitor.readings
    identity = ""
    if every:
        names = ("model", "graph", "reference", "settings", "readings")
        about = About(
            model=started.monitor.model.id,
            metric=started.monitor.distance,
            n=sum(each.n for each in every),
            seed=settings.seed,
            status="alarm" if any(each.alarm for each in every) else "calm",
            name=f"{len(every)} batches",
        )
        identity = settings.keep("monitor", {name: document[name] for name in names}, document, about)
    if settings.json:
        if not settings.follow:
            print_json(document)
        return
    if readings:
        echo(f"\n{verdict(document)}")
    else:
        echo(f"no new batch: fewer new images than one batch needs ({len(every)} readings so far)")
    if n := len(started.monitor.skipped):
        echo(f"skipped {n} unreadable image file(s) since the last batch")
    for name, file in {"readings": READINGS, "document": DOCUMENT, "report": PAGE}.items():
        if (settings.out / file).exists():
            echo(f"{name:<8} {settings.out / file}")
    if identity:
        echo_result(identity)
