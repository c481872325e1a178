"""`assay monitor`: batches of images in, shifts and an alarm out; `evaluate`: what that alarm is worth."""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from assay.app.cli.parsing import GATE_FIRED, IMAGES, app, command
from assay.app.delivery import (
    Computing,
    File,
    Talking,
    check_outputs,
    echo,
    json_file,
    note,
    progress_on_stderr,
    remark,
    say,
)
from assay.app.options import (
    DISCOVERY,
    INPUTS,
    OUTPUT,
    RARE,
    RUNNING,
    SECONDS,
    STEPS,
    Count,
    Steps,
    at_least,
    call,
    own_group,
)
from assay.app.settings import OnClassifier, Seeded, SkipBad
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.analyses.generalization.monitor import Reading
    from assay.models import Model

ALARM, WATCHING = own_group("Alarm", 41), own_group("Watching")


@dataclass(frozen=True, kw_only=True)
class OnKnown(Seeded, OnClassifier):
    """A classifier and images on which it does well.

    Attributes:
        reference: Images in distribution (a folder, or shapes:STYLE), or a file of their edge scores.
            Default: shapes of the embedded zoo's style.
        known: More in-distribution images, to calibrate on. Default: those not used as the reference.
        steps: Quadrature nodes, or auto. Default: 5, or those of a file of edge scores.
    """

    reference: Annotated[str | None, INPUTS] = None
    known: Annotated[str | None, INPUTS] = None
    steps: Annotated[Steps | None, DISCOVERY, STEPS] = None

    def inputs(self, images: tuple[str, ...], demo: tuple[str, ...]) -> "tuple[Model, str, tuple[str, ...]]":
        """The model, its reference and the images; those of the embedded model without any given.

        Raises:
            InputError: For a model of the user's own without either, or for a zoo.
        """
        if self.model is not None and Path(self.model, "zoo.json").is_file():
            raise InputError(f"{self.model} is a zoo; give one of its models, {self.model}/models/KEY")
        model, style = self.load_classifier(remark)
        images = images or (demo if self.model is None else ())
        if not images or (self.reference is None and style is None):
            raise InputError("your own model needs --reference, images it does well on, and --images")
        return model, self.reference or f"shapes:{style}", images


@dataclass(frozen=True, kw_only=True)
class MonitorSettings(Talking, OnKnown):
    """What a monitor watches and how.

    Attributes:
        images: Folder, or shapes:STYLE; repeat for several, in order.
        n: Images to draw from each shapes:STYLE to watch, in total.
        skip_bad: Skip unreadable known images too; unreadable new ones are always skipped.
        exif: Turn images as their EXIF orientation says (turn), or leave them as stored (ignore).
        window: Images per batch.
        reference_n: Most images in the reference. Default: 1,024, or all that calibration leaves.
        known_batches: Batches to calibrate on; 0 for none. Default: all available.
        follow: Wait for new images in the folder.
        flush_after: Close a batch that is not full once an image of it has waited this long with --follow,
            e.g. 45s, 10m or 2h. Default: never.
        threshold: Shift above which to raise the alarm.
        target: Accuracy below which to raise the alarm; calibrates on 39 corrupted domains.
        rule: threshold, conformal or sequential. Default: threshold if given, else conformal.
        alpha: Level of the conformal and the sequential rule.
        on_alarm: Shell command to run for each batch that raises the alarm; it reads the JSON of the
            reading on its standard input.
        metrics_file: File for Prometheus to write the state to after each batch.
        out: Output directory. Resumes if it already holds readings.
        gate: Exit with code 3 if a batch raises the alarm (with --follow, immediately), or if there is no new
            batch and the last one did.
    """

    images: Annotated[tuple[str, ...], INPUTS] = ()
    n: Annotated[int, INPUTS, at_least(2)] = 384
    skip_bad: Annotated[bool, INPUTS] = False
    exif: Annotated[Literal["turn", "ignore"], INPUTS] = "turn"
    window: Annotated[int, WATCHING, at_least(2)] = 64
    reference_n: Annotated[int | None, RARE, at_least(2)] = None
    known_batches: Annotated[int | None, RARE, at_least(0)] = None
    follow: Annotated[bool, WATCHING] = False
    flush_after: Annotated[float | None, WATCHING, SECONDS] = None
    threshold: Annotated[float | None, ALARM] = None
    target: Annotated[float | None, ALARM] = None
    rule: Annotated[str | None, ALARM] = None
    alpha: Annotated[float, ALARM] = 0.05
    on_alarm: Annotated[str | None, ALARM, Parameter(metavar="COMMAND")] = None
    metrics_file: Annotated[Path | None, WATCHING] = None
    out: Annotated[Path, OUTPUT] = Path("assay-monitor")
    gate: Annotated[bool, RUNNING] = False


@command(IMAGES, example="assay monitor --model classifier --reference known --images inbox --follow")
def monitor(settings: MonitorSettings) -> int:
    """Watch a deployed image classifier for circuit shift.

    How far its circuit on new images is from that on known ones; run it again to resume.
    """
    from assay.analyses.generalization.monitor_page import caveats, verdict
    from assay.app.watch import MonitorRun, stopped_by_signals
    from assay.pipeline.monitoring import PAGE

    check_outputs(settings, settings.metrics_file)
    readings: list[Reading] = []
    run = MonitorRun(settings, tell=remark)
    with ExitStack() as running:
        with progress_on_stderr() as progress:
            running.enter_context(run.started(progress))
        remark(run.monitor.rules.guarantee)
        running.enter_context(stopped_by_signals(run.stop))
        for reading in run.observe():
            readings.append(reading)
            if not settings.json:
                _print(reading, first=len(readings) == 1)
            elif settings.follow:
                echo(json.dumps(reading.to_dict(), allow_nan=False))
            if settings.gate and settings.follow and reading.alarm:
                break
        if run.stop.is_set():
            note("Stopped. Run the same command again to resume.")
    every, document = run.monitor.readings, run.monitor.to_dict()

    def show() -> None:
        none = f"no new batch: fewer new images than one batch needs ({len(every)} readings so far)"
        echo(f"\n{verdict(document)}" if readings else none)
        for text in caveats(document):
            echo(f"- {text}")

    if not (settings.json and settings.follow):  # of which each reading was printed
        page = File(settings.out / PAGE if every else None, lambda path: None)  # written by the run
        settings.deliver(document, {"report": page}, show=show)
    # Without a new batch the alarm is what the newest reading said.
    alarms = sum(bool(each.alarm) for each in readings or every[-1:])
    if not (settings.gate and alarms):
        return 0
    say(f"gate: {alarms} batch(es) raised the alarm" if readings else "gate: the alarm is on")
    return GATE_FIRED


def _print(reading: "Reading", *, first: bool) -> None:
    """A row of the table as it comes, so of fixed width."""
    from assay.analyses.generalization.ranking_page import ONE_CLASS

    row = "{:>5}  {:<14} {:>5} {:>7} {:>6} {:>7} {:>6} {:>8}  {:<5}{}"
    if first:
        echo(row.format("batch", "origin", "n", "shift", "p", "outputs", "p", "e-value", "alarm", ""))
    numbers = (reading.shift, reading.p_value, reading.output_shift, reading.output_p_value)
    cells = ["" if each is None else f"{each:.3f}" for each in numbers]
    cells.append("" if reading.e_value is None else f"{reading.e_value:.3g}")
    cells.append({None: "", False: "no", True: "ALARM"}[reading.alarm])
    remarks = f"  {len(reading.skipped)} unreadable" if reading.skipped else ""
    remarks += f"  {reading.top_share:.0%} in one class" if reading.top_share > ONE_CLASS else ""
    echo(row.format(reading.index + 1, reading.domain[:14], reading.n, *cells, remarks).rstrip())


Directory = Annotated[Path, Parameter(name="DIR", help="Output directory of a monitor.")]


@command(parent=app["monitor"], example="assay monitor status watch")
def status(directory: Directory, /, *, settings: Talking) -> int:
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
    state = {None: "no alarm is set", True: "alarm on", False: "alarm off"}[last.alarm]
    line = f"{state}: {last.sentence} ({plural(len(readings), 'batch')}, the last {last.time[:16]} UTC)"
    document = {"alarm": last.alarm, "batches": len(readings), "last": last.to_dict()}
    settings.deliver(document, show=lambda: echo(line))
    return GATE_FIRED if last.alarm else 0


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(Computing, SkipBad, OnKnown):
    """Which domains are measured, how the circuit is found, and how the alarm is tried.

    Attributes:
        images: Labelled test domains: DIR/DOMAIN/CLASS, DIR/CORRUPTION/SEVERITY/CLASS, shapes, or a table
            such as camelyon17:DIR; repeat for several.
        domains_by: Columns of a table that make domains, e.g. region,year. Default: it is one domain.
        parts: Random disjoint parts that each test domain is cut into.
        n: Images of each domain for its circuit and the baselines, in total. Default: 300, or as many as a
            file of edge scores rests on.
        rated: Images that performance is measured on, at most, of a domain or part.
        least: Images below which a domain or part is left out.
        corruptions: Calibration domains: all 39 corruptions, none, or some, separated by commas.
        measure: True performance: accuracy or macro-f1.
        distance: Distance of circuits: spearman, cosine, l2, laplacian, netlsd or jaccard.
        out: Directory for evaluation.json, report.html and domains.csv.
    """

    images: Annotated[tuple[str, ...], INPUTS] = ()
    domains_by: Annotated[str | None, INPUTS] = None
    parts: Annotated[Count, INPUTS] = 1
    n: Annotated[int | None, INPUTS, at_least(2)] = None
    rated: Annotated[Count, INPUTS] = 1000
    least: Annotated[Count, RARE] = 50
    corruptions: Annotated[str, ALARM] = "all"
    measure: Annotated[str, ALARM] = "accuracy"
    distance: Annotated[str, ALARM] = "spearman"
    out: Annotated[Path | None, OUTPUT] = None


@command(
    parent=app["monitor"],
    example="assay monitor evaluate --model classifier --reference pacs/sketch --images pacs",
)
def evaluate(settings: EvaluateSettings) -> None:
    """Try a monitor on labelled domains before relying on it.

    Accuracy, circuit shifts and label-free baselines per domain, how they go together, and the F1 of alarms.
    """
    from assay.pipeline.evaluation import evaluate_domains
    from assay.pipeline.monitoring import KnownImages
    from assay.store import About

    check_outputs(settings)
    model, source, images = settings.inputs(settings.images, ("shapes",))
    cache = settings.store_folder() / "evaluations"
    with progress_on_stderr() as progress:
        known = call(settings, KnownImages, source=source, cache=cache, progress=progress)
        result = call(settings, evaluate_domains, model, known, images, tell=remark)
    document = result.to_dict()
    name, n = f"{len(result.test)} domains", sum(each.n for each in result.test)
    about = About(model=result.model["id"], metric=settings.measure, n=n, seed=settings.seed, name=name)
    identity = settings.open_store().put(document["kind"], document["provenance"], document, about=about)
    files: dict[str, File] = {}
    if (out := settings.out) is not None:
        files = {
            "document": json_file(out / "evaluation.json", document),
            "report": File(out / "report.html"),
            "table": File(out / "domains.csv", lambda path: result.to_frame().to_csv(path, index=False)),
        }
    settings.deliver(document, files, identity=identity)
