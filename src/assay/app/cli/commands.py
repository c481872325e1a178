"""The commands: each checks its names, makes sure it can write, calls the Python API, prints."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.app.cli.border import (
    check_outputs,
    circuit_of,
    command,
    echo,
    load,
    make_room,
    open_store,
    print_json,
    print_measurements,
    print_table,
    progress_on_stderr,
    show_plan,
)
from assay.app.cli.options import (
    DEFAULT_STORE,
    AblationOption,
    BatchOption,
    CircuitOption,
    ConfigOption,
    CountOption,
    DeviceOption,
    DiscoverOnOption,
    DryRunOption,
    ImagesOption,
    JsonOption,
    MeasureOnOption,
    MethodOption,
    ModelOption,
    ObjectiveOption,
    QuietOption,
    SeedOption,
    SkipBadOption,
    StepsOption,
    StoreOption,
    TargetOption,
    TaskOption,
    TracebackOption,
    option,
    version,
)
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.circuits import Circuit, EdgeScores
    from assay.tasks import Task

TASKS = ["ioi"]  # defaults of repeatable options
METRICS = ["faithfulness-norm"]
USUAL_EDGES = 200  # of a circuit without a stated size

app = typer.Typer(
    name="assay",
    help="Discover circuits in trained transformers and measure how far they can be trusted.",
    epilog="Start with `assay audit`. Options can also come from ASSAY_OPTION variables and a TOML file.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: importing rich would double its time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Discover circuits in trained transformers and measure how far they can be trusted."""


@app.command()
@command
def audit(
    model: ModelOption = "mini",
    task: TaskOption = "ioi",
    discover_on: DiscoverOnOption = None,
    measure_on: MeasureOnOption = None,
    method: MethodOption = "eap-ig-inputs",
    objective: ObjectiveOption = None,
    ablation: AblationOption = None,
    n: CountOption = None,
    steps: StepsOption = 5,
    target: TargetOption = 0.9,
    n_random: Annotated[int, option("--n-random", "Random circuits to compare with.", min=1)] = 20,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    store: StoreOption = None,
    out: Annotated[Path, option("--out", "Directory for the report and the results.")] = DEFAULT_STORE,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Discover a circuit, choose its size, measure it, write report.html and the results."""
    from assay import pipeline
    from assay.report import calibration_overview, tail_verdict, verdict

    pipeline.check_options(method=method, task=task, ablation=ablation, objective=objective, device=device)
    if dry_run:
        loaded = load(model, device)
        n = n or pipeline.DEFAULT_N
        stages = pipeline.plan_audit(loaded, method=method, n=n, steps=steps, n_random=n_random)
        show_plan(loaded, n, stages, as_json=as_json)
        return
    with progress_on_stderr(quiet=quiet) as progress:
        found = pipeline.audit(
            model,
            task,
            method=method,
            objective=objective,
            ablation=ablation,
            n=n,
            steps=steps,
            target=target,
            n_random=n_random,
            seed=seed,
            device=device,
            batch_size=batch_size,
            discover_on=discover_on,
            measure_on=measure_on,
            store=store or out,
            out=out,
            progress=progress,
        )
    if as_json:
        print_json(found.document)
        return
    echo(verdict(found.document))
    echo()
    print_measurements([(found.document["task"]["name"], record) for record in found.measurements])
    echo()
    if found.document["worst_case"]:
        echo(tail_verdict(found.document["worst_case"]))
        echo()
    echo(calibration_overview(found.document["calibration"]))
    echo()
    echo(f"report   {out / 'report.html'}")
    echo(f"result   {found.id}{' (taken from the store)' if found.cached else ''}")


@app.command()
@command
def discover(
    model: ModelOption = "mini",
    task: TaskOption = "ioi",
    images: ImagesOption = None,
    skip_bad: SkipBadOption = False,
    method: MethodOption = "eap-ig-inputs",
    method_options: Annotated[
        list[str] | None,
        option("--option", "Option of the method, NAME=VALUE, e.g. threshold=0.02; may be repeated."),
    ] = None,
    objective: ObjectiveOption = None,
    ablation: AblationOption = None,
    n: CountOption = None,
    steps: StepsOption = 5,
    quadrature: Annotated[
        str, option("--quadrature", "midpoint, left (as published), right or gauss-legendre.")
    ] = "midpoint",
    top: Annotated[
        int | None,
        option("--top", "Keep the K edges of largest |score|.  [default: 200, or what the method means]"),
    ] = None,
    threshold: Annotated[float | None, option("--threshold", "Keep edges of at least this |score|.")] = None,
    greedy: Annotated[int | None, option("--greedy", "Grow K edges from the logits.")] = None,
    keep_unconnected: Annotated[
        bool, option("--keep-unconnected", "Also keep edges on no path from input to logits.")
    ] = False,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    store: StoreOption = None,
    out: Annotated[Path | None, option("--out", "Circuit file to write, e.g. circuit.safetensors.")] = None,
    scores_out: Annotated[Path | None, option("--scores-out", "File for the scores of all edges.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Score every edge and keep the strongest as a circuit."""
    from assay import pipeline
    from assay.core.record import library_version
    from assay.discovery.edges import get_method
    from assay.pipeline.benchmark import parse_options
    from assay.pipeline.circuits import keep_circuit
    from assay.pipeline.inputs import read_inputs

    named = task if images is None else None
    options = parse_options([f"{method}.{text}" for text in method_options or ()]).get(method, {})
    pipeline.check_options(
        method=method, options=options, task=named, ablation=ablation, objective=objective, device=device
    )
    if sum(choice is not None for choice in (top, threshold, greedy)) > 1:
        raise InputError("--top, --threshold and --greedy each choose a circuit; give one of them")
    if dry_run:
        loaded = load(model, device)
        n = n or pipeline.DEFAULT_N
        stages = [pipeline.plan_discovery(loaded, method=method, n=n, steps=steps, options=options)]
        show_plan(loaded, n, stages, as_json=as_json)
        return
    check_outputs(out, scores_out, store=store)
    with progress_on_stderr(quiet=quiet) as progress:
        progress("load", 0, 1)
        loaded = load(model, device)
        inputs = read_inputs(task, images, loaded, n=n, seed=seed, skip_bad=skip_bad)
        kept = open_store(store)
        progress("discover", 0, 1)
        scores = pipeline.discover_stored(
            loaded,
            inputs,
            method,
            objective=objective,
            ablation=ablation,
            steps=steps,
            quadrature=quadrature,
            batch_size=batch_size,
            seed=seed,
            options=options,
            store=kept,
        )
        progress("discover", 1, 1)
    if top is None and threshold is None and greedy is None:
        circuit = get_method(method, **options).select(scores, USUAL_EDGES)
    else:
        circuit = _choose(scores, top=top, threshold=threshold, greedy=greedy)
    circuit = circuit if keep_unconnected else circuit.connected()
    record = {
        "library": library_version(),
        "model": loaded.describe(),
        "graph": loaded.graph.fingerprint,
        "task": inputs.describe(),
        "method": method,
        "circuit": circuit.hash,
    }
    keep_circuit(kept, record, circuit, {})
    if out is not None:
        circuit.save(make_room(out))
    if scores_out is not None:
        scores.save(make_room(scores_out))
    if as_json:
        print_json(_circuit_record(scores, circuit, out))
    else:
        _print_circuit(scores, circuit, out)


def _circuit_record(scores: "EdgeScores", circuit: "Circuit", out: Path | None) -> dict[str, Any]:
    """What `discover --json` prints."""
    return {
        "circuit": {
            "hash": circuit.hash,
            "n_edges": circuit.n_edges,
            "nodes": circuit.nodes(),
            "edges": _edges(scores, circuit),
        },
        "graph": {**scores.graph.describe(), "n_edges": scores.graph.n_edges},
        "details": dict(scores.details),
        "provenance": dict(circuit.provenance),
        "out": None if out is None else str(out),
    }


def _print_circuit(scores: "EdgeScores", circuit: "Circuit", out: Path | None) -> None:
    """Size and strongest edges for reading."""
    edges = _edges(scores, circuit)
    gap = scores.details.get("completeness_gap")
    echo(
        f"{circuit.n_edges:,} of {scores.graph.n_edges:,} edges "
        f"({circuit.n_edges / scores.graph.n_edges:.1%})"
        + ("" if gap is None else f", completeness gap {gap:.2%}")
    )
    small = max((abs(edge["score"]) for edge in edges), default=1.0) < 0.01  # four decimals would hide them
    style = "+.2e" if small else "+.4f"
    rows = [[edge["source"], edge["target"], f"{edge['score']:{style}}"] for edge in edges[:20]]
    print_table("", ["source", "target", "score"], rows, right="score")
    if len(edges) > len(rows):
        echo(f"... and {len(edges) - len(rows):,} more")
    echo(f"circuit  {circuit.hash}" + ("" if out is None else f"  {out}"))


def _edges(scores: "EdgeScores", circuit: "Circuit") -> list[dict[str, Any]]:
    """Kept edges with their scores, strongest first."""
    kept = set(circuit.edges())
    frame = scores.to_frame()
    rows = zip(frame["source"], frame["target"], frame["score"], strict=True)
    return [
        {"source": source, "target": target, "score": float(score)}
        for source, target, score in rows
        if f"{source}->{target}" in kept
    ]


def _choose(
    scores: "EdgeScores", *, top: int | None, threshold: float | None, greedy: int | None
) -> "Circuit":
    if threshold is not None:
        return scores.threshold(threshold)
    if greedy is not None:
        return scores.greedy(greedy)
    return scores.top(min(USUAL_EDGES, scores.graph.n_edges) if top is None else top)


@app.command()
@command
def measure(
    circuit: CircuitOption = None,
    model: ModelOption = "mini",
    task: Annotated[list[str], option("--task", "Task or JSONL file; repeat for several.")] = TASKS,
    images: ImagesOption = None,
    skip_bad: SkipBadOption = False,
    metric: Annotated[list[str], option("--metric", "Key or code; repeat for several.")] = METRICS,
    method: MethodOption = "eap-ig-inputs",
    objective: ObjectiveOption = None,
    ablation: AblationOption = None,
    n: CountOption = None,
    steps: StepsOption = 5,
    target: TargetOption = 0.9,
    top: Annotated[int | None, option("--top", "Size of discovered circuits, instead of --target.")] = None,
    n_random: Annotated[int, option("--n-random", "Random circuits of equal size beside it.", min=0)] = 0,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    store: StoreOption = None,
    out: Annotated[Path | None, option("--out", "JSON file for the measurements.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Measure a circuit on one or more tasks by one or more metrics."""
    from assay import pipeline
    from assay.pipeline.document import on_same_prompts
    from assay.pipeline.inputs import read_inputs
    from assay.tasks import PairTask
    from assay.tasks.seen import found_on

    for each in task if images is None else (None,):
        pipeline.check_options(
            method=method, task=each, ablation=ablation, objective=objective, metrics=metric, device=device
        )
    if not dry_run:
        check_outputs(out, store=store)
    loaded = load(model, device)
    given = circuit_of(circuit, top, "--top", loaded.graph, store)
    if dry_run:
        n = n or pipeline.DEFAULT_N
        stages = [pipeline.plan_measurement(loaded, metric, n=n * len(task), n_random=n_random)]
        if given is None:
            stages.insert(0, pipeline.plan_discovery(loaded, method=method, n=n * len(task), steps=steps))
        show_plan(loaded, n, stages, as_json=as_json)
        return
    tasks: list[Task | pipeline.Draws]
    if images is not None:
        tasks = [read_inputs("", images, loaded, n=n, seed=seed, skip_bad=skip_bad)]
    elif given is not None:
        tasks = [pipeline.prompts_to_measure(loaded, each, n=n, seed=seed, circuit=given) for each in task]
    else:
        tasks = [pipeline.draw_prompts(loaded, each, n=n, seed=seed) for each in task]
    kept = open_store(store)
    records = []
    with progress_on_stderr(quiet=quiet) as progress:
        for prompts in tasks:
            same = isinstance(prompts, pipeline.Draws) and not prompts.held_out
            if given is not None and isinstance(prompts, PairTask):
                same = found_on(given.provenance, prompts)
            runs = pipeline.runs_of(
                loaded,
                prompts,
                given,
                method=method,
                objective=objective,
                ablation=ablation,
                steps=steps,
                target=target,
                top=top,
                batch_size=batch_size,
                seed=seed,
                store=kept,
                progress=progress,
            )
            for place, key in enumerate(metric):
                progress("measure", place, len(metric))
                found = pipeline.measure_stored(runs, key, random_circuits=n_random, store=kept)
                found = on_same_prompts(found) if same else found
                records.append({"task": runs.task.name, "n_edges": runs.circuit.n_edges, **found})
            progress("measure", len(metric), len(metric))
    _hand_over(records, out=out, as_json=as_json)


def _hand_over(records: list[dict[str, Any]], *, out: Path | None, as_json: bool) -> None:
    """Measurement records to a file and to stdout."""
    from assay.circuits import write_atomically
    from assay.core.record import plain

    if out is not None:
        write_atomically(make_room(out), json.dumps(plain(records), indent=1, allow_nan=False).encode())
    if as_json:
        print_json(records)
    else:
        print_measurements([(record["task"], record) for record in records])
