"""`assay monitor`: batches of images in, circuit shift out, with an alarm."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.border import check_outputs, command, print_json, progress_on_stderr, show_plan
from assay.cli.commands import app
from assay.cli.options import (
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
from assay.errors import InputError


if TYPE_CHECKING:
    from assay.generalization.monitoring import Reading
    from assay.models import Model
    from assay.runner.endpoint import MetricsEndpoint
    from assay.runner.image_stream import Batch
    from assay.runner.monitoring import MonitorPlan, StartedMonitor

ALARM = 3
DEMO = ("flat", "sketch", "neon")  # what is watched out of the box, in this order


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
        option("--known-batches", "Batches to calibrate on; 0: none.  [default: what there is]", min=0),
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
    order: Annotated[str, option("--order", "Of files: time, name or random.")] = "time",
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
    skip_bad: Annotated[bool, option("--skip-bad", "Pass over image files that cannot be read.")] = False,
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
    from assay import runner
    from assay.generalization import DISTANCES
    from assay.runner.endpoint import MetricsEndpoint
    from assay.runner.image_stream import Watch
    from assay.runner.monitoring import MonitorPlan, start_monitor
    from assay.tasks import EvalTransform, is_shapes

    runner.check_options(method=method, objective=objective, ablation=ablation, device=device)
    DISTANCES[distance]
    loaded, style = _model(model, device)
    sources = images or ([f"shapes:{each}" for each in DEMO] if model is None else [])
    if not sources or (reference is None and style is None):
        raise InputError(
            "a model of yours needs --reference, images it is known to do well on, and --images, those to "
            "watch"
        )
    if follow and (len(sources) > 1 or is_shapes(sources[0])):
        raise InputError("--follow watches one folder; give one --images DIR")
    plan = MonitorPlan(
        reference=reference or f"shapes:{style}",
        known=known,
        window=window,
        known_batches=known_batches,
        threshold=threshold,
        target=target,
        rule=rule,
        alpha=alpha,
        distance=distance,
        method=method,
        objective=objective,
        ablation=ablation,
        steps=steps,
        seed=seed,
        skip_bad=skip_bad,
        batch_size=batch_size,
    )
    if dry_run:
        _show_cost(loaded, plan, as_json=as_json)
        return
    transform = EvalTransform.for_model(loaded)
    watch = Watch(
        transform=transform,
        size=window,
        n=n,
        order=order,
        seed=seed,
        skip_bad=skip_bad,
        follow=follow,
        poll=poll,
        idle_timeout=idle_timeout,
    )
    check_outputs(store=out)
    with ExitStack() as stack:
        served = None
        if metrics_port is not None:
            served = stack.enter_context(MetricsEndpoint(metrics_port))
            if not quiet:
                typer.echo(f"metrics on http://127.0.0.1:{served.port}/metrics", err=True)
        with progress_on_stderr(quiet=quiet) as progress:
            started = start_monitor(loaded, plan, out=out, transform=transform, progress=progress)
        say: Callable[[str], None] = (lambda _: None) if quiet else (lambda text: typer.echo(text, err=True))
        say(started.monitor.guarantee.statement)
        found = _observe(
            started,
            _stream(sources, watch, started, max_batches),
            served,
            as_lines=as_json and follow,
            table=not as_json,
            stop_at_alarm=gate and follow,
            say=say,
        )
    started.write()
    _finish(started, found, out, as_json=as_json and not follow, table=not as_json)
    if gate and any(each.alarm for each in found):
        typer.echo(f"gate: {sum(bool(each.alarm) for each in found)} batch(es) raised the alarm", err=True)
        raise typer.Exit(ALARM)


def _model(name: str | None, device: str | None) -> "tuple[Model, str | None]":
    """The model to watch, and the style of shapes that an embedded one was trained on."""
    from assay.models import load_model

    if name is not None:
        loaded = load_model(name, device=device)
        if not loaded.vision:
            raise InputError(f"{name} reads text; assay monitor watches image classifiers")
        return loaded, None
    from assay.zoo import Zoo

    zoo = Zoo.embedded()
    best = max(zoo.keys, key=lambda key: zoo.entry(key).id_accuracy or 0.0)
    return load_model(str(zoo.folder(best)), device=device), zoo.id_domain


def _stream(sources: list[str], watch: Any, started: "StartedMonitor", most: int | None) -> "Iterator[Batch]":
    """Batches of all sources, at most so many."""
    from assay.runner.image_stream import batches

    given = 0
    for source in sources:
        if most is not None and given >= most:
            return
        for batch in batches(source, watch, done=started.done, sleep=time.sleep):
            yield batch
            given += 1
            if most is not None and given >= most:
                return


def _observe(
    started: "StartedMonitor",
    stream: "Iterator[Batch]",
    served: "MetricsEndpoint | None",
    *,
    as_lines: bool,
    table: bool,
    stop_at_alarm: bool,
    say: Callable[[str], None],
) -> "list[Reading]":
    """Observe batch after batch, saying each; an interrupt ends it, and what was read is kept."""
    found: list[Reading] = []
    if served is not None:
        served.publish(started.document)
    try:
        for batch in stream:
            if batch.note:
                say(f"note: {batch.note}")
            reading = started.monitor.observe(batch.images, sources=batch.sources, skipped=batch.skipped)
            if table and not found:
                typer.echo(_HEAD)
            found.append(reading)
            if table:
                typer.echo(_line(reading))
            if as_lines:
                typer.echo(json.dumps(reading.to_dict(), allow_nan=False, ensure_ascii=False))
            if served is not None:
                served.publish(started.document)
            if stop_at_alarm and reading.alarm:
                break
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from the readings that are kept")
    return found


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
    from assay.runner.monitoring import DOCUMENT, PAGE, READINGS

    if as_json:
        print_json(started.document)
        return
    if not table:
        return
    if not found:
        typer.echo(
            "no new batch: there are fewer new images than a batch needs"
            f" ({len(started.monitor.readings)} readings so far)"
        )
    else:
        from assay.report.monitor_page import verdict

        typer.echo()
        typer.echo(verdict(started.document))
    names = {"readings": READINGS, "document": DOCUMENT} | (
        {"report": PAGE} if started.monitor.readings else {}
    )
    for name, file in names.items():
        if (out / file).exists():
            typer.echo(f"{name:<8} {out / file}")


def _show_cost(model: "Model", plan: "MonitorPlan", *, as_json: bool) -> None:
    """Passes of the start, and of each batch."""
    from dataclasses import replace

    from assay.runner import plan_discovery
    from assay.runner.monitoring import METHOD, STEPS, USUAL_BATCHES

    steps = STEPS if plan.steps is None else plan.steps
    each = plan_discovery(model, method=plan.method or METHOD, n=plan.window, steps=steps)

    def stage(name: str, runs: int, extra: int = 0) -> Any:
        return replace(each, name=name, runs=runs, passes=runs * (each.passes + extra * plan.window))

    batches = USUAL_BATCHES if plan.known_batches is None else plan.known_batches
    stages = [stage("reference", 0 if plan.given else 1), stage("known batches", batches)]
    if plan.target is not None:
        stages.append(stage("corrupted domains", 39, 1))
    show_plan(model, plan.window, [*stages, stage("each batch", 1, 1)], as_json=as_json)
