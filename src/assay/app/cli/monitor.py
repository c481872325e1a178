"""`assay monitor`: batches of images in, circuit shift out, with an alarm."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import GATE_FIRED, IMAGES, app, command
from assay.app.console import echo, echo_result, note, print_json, progress_on_stderr, remark, say
from assay.app.delivery import Computing, Quiet
from assay.app.monitor.settings import MonitorOptions
from assay.app.options import RUNNING
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.analyses.generalization.monitor import Reading
    from assay.app.monitor.watch import MonitorRun, Stop
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

    with stopped_by_signals() as stop, MonitorRun(settings, stop=stop, tell=remark) as run:
        _start(run)
        readings = _observe(settings, run, stop)
        if stop.is_set():
            note("Stopped. Run the same command again to resume.")
        run.finish()
        _finish(settings, run.started, readings)
    if not settings.gate:
        return 0
    # Without a new batch the alarm is what the newest reading said.
    alarms = sum(bool(each.alarm) for each in readings or run.started.monitor.readings[-1:])
    if not alarms:
        return 0
    say(f"gate: {alarms} batch(es) raised the alarm" if readings else "gate: the alarm is on")
    return GATE_FIRED


Directory = Annotated[Path, Parameter(name="DIR", help="Output directory of a monitor.")]


@dataclass(frozen=True, kw_only=True)
class StatusSettings(Quiet):
    """Which monitor."""


@command(parent=app["monitor"], example="assay monitor status watch")
def status(directory: Directory, /, *, settings: StatusSettings) -> int:
    """Print the state of an alarm in one line.

    Exit code 3 where it is on, 0 where it is off.
    """
    from assay.analyses.generalization.monitor import read_readings
    from assay.page.text import plural
    from assay.pipeline.monitor_directory import READINGS

    readings = read_readings(directory / READINGS)
    if not readings:
        raise InputError(f"{directory} holds no readings; give the --out of a monitor")
    last = readings[-1]
    state = {None: "no alarm is set", True: "alarm on", False: "alarm off"}[last.alarm]
    echo(f"{state}: {last.sentence} ({plural(len(readings), 'batch')}, the last {last.time[:16]} UTC)")
    return GATE_FIRED if last.alarm else 0


def _start(run: "MonitorRun") -> None:
    """The reference, and what the alarm promises."""
    with progress_on_stderr() as progress:
        run.start(progress)
    remark(run.started.monitor.guarantee.statement)


def _observe(settings: MonitorSettings, run: "MonitorRun", stop: "Stop") -> "list[Reading]":
    """Readings, each printed as it comes."""
    readings: list[Reading] = []
    for reading in run.observe():
        readings.append(reading)
        if not settings.json:
            echo(f"{_HEAD}\n{_line(reading)}" if len(readings) == 1 else _line(reading))
        elif settings.follow:
            echo(json.dumps(reading.to_dict(), allow_nan=False))
        if settings.gate and settings.follow and reading.alarm:
            break
    return readings


_HEAD = (
    f"{'batch':>5}  {'origin':<14} {'n':>5} {'shift':>7} {'p':>6} {'outputs':>7} {'p':>6} {'e-value':>8}"
    "  alarm"
)


def _line(reading: "Reading") -> str:
    """A row of the table; printed as it comes, so of fixed width."""
    p, outputs, output_p = (
        "" if each is None else f"{each:.3f}"
        for each in (reading.p_value, reading.output_shift, reading.output_p_value)
    )
    e = "" if reading.e_value is None else f"{reading.e_value:.3g}"
    alarm = {None: "", False: "no", True: "ALARM"}[reading.alarm]
    skipped = f"  {len(reading.skipped)} unreadable" if reading.skipped else ""
    return (
        f"{reading.index + 1:>5}  {reading.domain[:14]:<14} {reading.n:>5} {reading.shift:>7.3f} "
        f"{p:>6} {outputs:>7} {output_p:>6} {e:>8}  {alarm:<5}{skipped}".rstrip()
    )


def _finish(settings: MonitorSettings, started: "StartedMonitor", readings: "list[Reading]") -> None:
    """What came of the run: the document, or a verdict and the files."""
    from assay.pipeline.monitor_directory import DOCUMENT, PAGE, READINGS

    identity = _keep(settings, started)
    if settings.json:
        if not settings.follow:
            print_json(started.document)
        return
    if not readings:
        echo(
            f"no new batch: fewer new images than one batch needs ({len(started.monitor.readings)} readings "
            "so far)"
        )
        if started.passed:
            echo(f"skipped {len(started.passed)} unreadable image file(s)")
    else:
        from assay.analyses.generalization.monitor_page import verdict

        echo()
        echo(verdict(started.document))
    names = {"readings": READINGS, "document": DOCUMENT} | (
        {"report": PAGE} if started.monitor.readings else {}
    )
    for name, file in names.items():
        if (settings.out / file).exists():
            echo(f"{name:<8} {settings.out / file}")
    if identity:
        echo_result(identity)


def _keep(settings: MonitorSettings, started: "StartedMonitor") -> str:
    """Store the document once there is a reading; returns its id."""
    from assay.store import About

    document = started.document
    if not document["readings"]:
        return ""
    names = ("model", "graph", "reference", "settings", "readings")
    about = About(
        model=document["model"]["id"],
        metric=document["distance"]["key"],
        n=sum(each["n"] for each in document["readings"]),
        seed=settings.seed,
        status="alarm" if any(each["alarm"] for each in document["readings"]) else "calm",
        name=f"{len(document['readings'])} batches",
    )
    return settings.keep("monitor", {name: document[name] for name in names}, document, about)
