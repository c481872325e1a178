"""`assay monitor`: batches of images in, circuit shift out, with an alarm."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.app.cli.border import command, echo, print_json, progress_on_stderr, show_plan
from assay.app.cli.commands import app
from assay.app.cli.options import (
    AblationOption,
    BatchOption,
    ConfigOption,
    DeviceOption,
    DryRunOption,
    JsonOption,
    ObjectiveOption,
    QuietOption,
    SeedOption,
    TracebackOption,
    option,
    parse_steps,
)


if TYPE_CHECKING:
    from assay.analyses.generalization.monitoring import Reading
    from assay.models import Model
    from assay.pipeline.monitoring import MonitorPlan, StartedMonitor

ALARM = 3


@app.command()
@command
def monitor(
    model: Annotated[
        str | None,
        option("--model", "Directory, hub id or timm:NAME.  [default: the best of the embedded zoo]"),
    ] = None,
    reference: Annotated[
        str | None,
        option(
            "--reference",
            "Images in distribution (a folder, or shapes:STYLE), or a file of edge scores made from some.  "
            "[default: shapes of the embedded zoo's style]",
        ),
    ] = None,
    images: Annotated[
        list[str] | None,
        option("--images", "Folder to watch, or shapes:STYLE; may be repeated, one after the other."),
    ] = None,
    known: Annotated[
        str | None,
        option(
            "--known",
            "Further images in distribution to calibrate on.  [default: what the reference leaves]",
        ),
    ] = None,
    window: Annotated[int, option("--window", "Images of a batch, and of the reference.", min=2)] = 64,
    known_batches: Annotated[
        int | None,
        option("--known-batches", "Batches to calibrate on; 0 for none.  [default: all available]", min=0),
    ] = None,
    threshold: Annotated[float | None, option("--threshold", "Shift above which to raise the alarm.")] = None,
    target: Annotated[
        float | None,
        option("--target", "Accuracy below which to raise it; calibrates on 39 corrupted domains."),
    ] = None,
    rule: Annotated[
        str | None,
        option(
            "--rule", "threshold, conformal or sequential.  [default: threshold if given, else conformal]"
        ),
    ] = None,
    alpha: Annotated[float, option("--alpha", "Level of the conformal and the sequential rule.")] = 0.05,
    distance: Annotated[
        str, option("--distance", "spearman, cosine, l2, laplacian, netlsd or jaccard.")
    ] = "spearman",
    order: Annotated[str, option("--order", "Order of the files: time, name or random.")] = "time",
    n: Annotated[int, option("--n", "Images drawn from each shapes:STYLE to watch.", min=2)] = 384,
    follow: Annotated[bool, option("--follow", "Wait for new images in the folder.")] = False,
    poll: Annotated[float, option("--poll", "Seconds between looks with --follow.")] = 2.0,
    idle_timeout: Annotated[
        float | None, option("--idle-timeout", "Stop after so many seconds without a new batch.")
    ] = None,
    max_batches: Annotated[int | None, option("--max-batches", "Stop after so many batches.", min=1)] = None,
    metrics_port: Annotated[
        int | None, option("--metrics-port", "Serve Prometheus metrics on this port of localhost.", min=0)
    ] = None,
    gate: Annotated[
        bool, option("--gate", "Exit with 3 if a batch raises the alarm; with --follow, at once.")
    ] = False,
    alarm_file: Annotated[
        Path | None,
        option("--alarm-file", "Add a JSON line when an alarm is raised, and when it is resolved."),
    ] = None,
    webhook: Annotated[
        str | None,
        option("--webhook", "URL that gets the same lines by POST; best from ASSAY_WEBHOOK or a file."),
    ] = None,
    cool_down: Annotated[
        str, option("--cool-down", "After an alarm was told, tell no other for so long: 45s, 10m, 2h.")
    ] = "0",
    skip_bad: Annotated[
        bool | None,
        typer.Option(
            "--skip-bad/--no-skip-bad",
            help="Pass over image files that cannot be read, and count them.  [default: with --follow]",
        ),
    ] = None,
    method: Annotated[
        str | None,
        option("--method", "Discovery method.  [default: eap-ig-inputs, or that of a file of edge scores]"),
    ] = None,
    objective: ObjectiveOption = None,
    ablation: AblationOption = None,
    steps: Annotated[
        Any,
        option(
            "--steps",
            "Quadrature nodes, or auto.  [default: 5, or those of a file of edge scores]",
            parser=parse_steps,
            metavar="COUNT",
        ),
    ] = None,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    out: Annotated[
        Path, option("--out", "Directory of readings, document and page; taken up again if it has some.")
    ] = Path("assay-monitor"),
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Watch a deployed image classifier: how far its circuit on new images is from that on known ones."""
    from assay.app.monitor.metrics import MetricsServer
    from assay.app.monitor.watch import MonitorOptions, MonitorRun, stopped_by_signals

    options = MonitorOptions(
        model=model,
        reference=reference,
        images=tuple(images or ()),
        known=known,
        window=window,
        known_batches=known_batches,
        threshold=threshold,
        target=target,
        rule=rule,
        alpha=alpha,
        distance=distance,
        order=order,
        n=n,
        follow=follow,
        poll=poll,
        idle_timeout=idle_timeout,
        max_batches=max_batches,
        alarm_file=alarm_file,
        webhook=webhook,
        cool_down=cool_down,
        skip_bad=skip_bad,
        method=method,
        objective=objective,
        ablation=ablation,
        steps=steps,
        seed=seed,
        device=device,
        batch_size=batch_size,
        out=out,
    )

    def say(text: str) -> None:
        if not quiet:
            echo(text, err=True)

    def tell(text: str) -> None:
        say(f"note: {text}")

    with ExitStack() as stack:
        stop = stack.enter_context(stopped_by_signals())
        run = stack.enter_context(MonitorRun(options, stop=stop, tell=tell))
        if dry_run:
            _show_cost(run.model, run.plan, as_json=as_json)
            return
        if metrics_port is not None:
            served = stack.enter_context(MetricsServer(metrics_port))
            run.publish_to(served.publish)
            say(f"metrics on http://127.0.0.1:{served.port}/metrics")
        with progress_on_stderr(quiet=quiet) as progress:
            run.start(progress)
        say(run.started.monitor.guarantee.statement)
        found: list[Reading] = []
        for reading in run.observe():
            found.append(reading)
            _print(reading, first=len(found) == 1, as_line=as_json and follow, as_row=not as_json)
            if gate and follow and reading.alarm:
                break
        if stop.is_set():
            say("stopped; the same command goes on from the readings that are kept")
        run.finish()
        _finish(run.started, found, out, as_json=as_json and not follow, table=not as_json)
    if gate and any(each.alarm for each in found):
        echo(f"gate: {sum(bool(each.alarm) for each in found)} batch(es) raised the alarm", err=True)
        raise typer.Exit(ALARM)


def _print(reading: "Reading", *, first: bool, as_line: bool, as_row: bool) -> None:
    """A reading on stdout, as it comes."""
    if as_row:
        echo(f"{_HEAD}\n{_line(reading)}" if first else _line(reading))
    if as_line:
        echo(json.dumps(reading.to_dict(), allow_nan=False))


_HEAD = f"{'batch':>5}  {'origin':<14} {'n':>5} {'shift':>7}  {'interval':<16} {'p':>6} {'e-value':>8}  alarm"


def _line(reading: "Reading") -> str:
    """A row of the table; printed as it comes, so of fixed width."""
    interval = f"[{reading.interval.low:.3f}, {reading.interval.high:.3f}]"
    p = "" if reading.p_value is None else f"{reading.p_value:.3f}"
    e = "" if reading.e_value is None else f"{reading.e_value:.3g}"
    alarm = {None: "", False: "no", True: "ALARM"}[reading.alarm]
    skipped = f"  {len(reading.skipped)} unreadable" if reading.skipped else ""
    return (
        f"{reading.index + 1:>5}  {reading.domain[:14]:<14} {reading.n:>5} {reading.shift:>7.3f}  "
        f"{interval:<16} {p:>6} {e:>8}  {alarm}{skipped}"
    )


def _finish(
    started: "StartedMonitor", found: "list[Reading]", out: Path, *, as_json: bool, table: bool
) -> None:
    from assay.pipeline.monitoring import DOCUMENT, PAGE, READINGS

    if as_json:
        print_json(started.document)
        return
    if not table:
        return
    if not found:
        echo(
            "no new batch: there are fewer new images than a batch needs"
            f" ({len(started.monitor.readings)} readings so far)"
        )
        if started.passed:
            echo(f"{len(started.passed)} image file(s) could not be read and were passed over")
    else:
        from assay.analyses.generalization.monitor_page import verdict

        echo()
        echo(verdict(started.document))
    names = {"readings": READINGS, "document": DOCUMENT} | (
        {"report": PAGE} if started.monitor.readings else {}
    )
    for name, file in names.items():
        if (out / file).exists():
            echo(f"{name:<8} {out / file}")


def _show_cost(model: "Model", plan: "MonitorPlan", *, as_json: bool) -> None:
    """Passes of the start, and of each batch."""
    from dataclasses import replace

    from assay.pipeline import plan_discovery
    from assay.pipeline.monitoring import METHOD, STEPS, USUAL_BATCHES

    steps = STEPS if plan.steps is None else plan.steps
    each = plan_discovery(model, method=plan.method or METHOD, n=plan.window, steps=steps)

    def stage(name: str, runs: int, extra: int = 0) -> Any:
        return replace(each, name=name, runs=runs, passes=runs * (each.passes + extra * plan.window))

    batches = USUAL_BATCHES if plan.known_batches is None else plan.known_batches
    stages = [stage("reference", 0 if plan.given else 1), stage("known batches", batches)]
    if plan.target is not None:
        stages.append(stage("corrupted domains", 39, 1))
    show_plan(model, plan.window, [*stages, stage("each batch", 1, 1)], as_json=as_json)
