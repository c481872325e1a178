"""The commands: each checks its names, makes sure it can write, calls the Python API, prints."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.border import (
    check_outputs,
    command,
    load,
    make_room,
    open_store,
    print_json,
    print_measurements,
    print_table,
    progress_on_stderr,
    show_plan,
)
from assay.cli.options import (
    DEFAULT_STORE,
    AblationOption,
    BatchOption,
    ConfigOption,
    CountOption,
    DeviceOption,
    DryRunOption,
    ImagesOption,
    JsonOption,
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
from assay.errors import AssayWarning, InputError, unknown_name


if TYPE_CHECKING:
    from assay.circuits import Circuit, EdgeScores
    from assay.models import Model
    from assay.tasks import PairTask, Task

TASKS = ["ioi"]  # defaults of repeatable options
METRICS = ["faithfulness-norm"]
USUAL_EDGES = 200  # of a circuit whose size nobody named
REPORTED = ("audit", "worst_case", "calibration", "ranking", "ranking-comparison", "subset-path")

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
    from assay import runner
    from assay.report import calibration_overview, tail_verdict, verdict

    runner.check_options(method=method, task=task, ablation=ablation, objective=objective, device=device)
    if dry_run:
        loaded = load(model, device)
        n = n or runner.DEFAULT_N
        stages = runner.plan(loaded, method=method, n=n, steps=steps, n_random=n_random)
        show_plan(loaded, n, stages, as_json=as_json)
        return
    with progress_on_stderr(quiet=quiet) as progress:
        found = runner.audit(
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
            store=store or out,
            out=out,
            progress=progress,
        )
    if as_json:
        print_json(found.document)
        return
    typer.echo(verdict(found.document))
    typer.echo()
    print_measurements([(found.document["task"]["name"], record) for record in found.measurements])
    typer.echo()
    if found.document["worst_case"]:
        typer.echo(tail_verdict(found.document["worst_case"]))
        typer.echo()
    typer.echo(calibration_overview(found.document["calibration"]))
    typer.echo()
    typer.echo(f"report   {out / 'report.html'}")
    typer.echo(f"result   {found.id}{' (taken from the store)' if found.cached else ''}")


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
    from assay import runner
    from assay.discovery import get_method
    from assay.runner.benchmark import parse_options

    named = task if images is None else None
    options = parse_options([f"{method}.{text}" for text in method_options or ()]).get(method, {})
    runner.check_options(
        method=method, options=options, task=named, ablation=ablation, objective=objective, device=device
    )
    if sum(choice is not None for choice in (top, threshold, greedy)) > 1:
        raise InputError("--top, --threshold and --greedy each choose a circuit; give one of them")
    if dry_run:
        loaded = load(model, device)
        n = n or runner.DEFAULT_N
        stages = [runner.plan_discovery(loaded, method=method, n=n, steps=steps, options=options)]
        show_plan(loaded, n, stages, as_json=as_json)
        return
    check_outputs(out, scores_out, store=store)
    with progress_on_stderr(quiet=quiet) as progress:
        progress("load", 0, 1)
        loaded = load(model, device)
        inputs = _inputs(task, images, loaded, n=n, seed=seed, skip_bad=skip_bad)
        kept = open_store(store)
        progress("discover", 0, 1)
        scores = runner.discover_stored(
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
    typer.echo(
        f"{circuit.n_edges:,} of {scores.graph.n_edges:,} edges "
        f"({circuit.n_edges / scores.graph.n_edges:.1%})"
        + ("" if gap is None else f", completeness gap {gap:.2%}")
    )
    small = max((abs(edge["score"]) for edge in edges), default=1.0) < 0.01  # four decimals would hide them
    style = "+.2e" if small else "+.4f"
    rows = [[edge["source"], edge["target"], f"{edge['score']:{style}}"] for edge in edges[:20]]
    print_table("", ["source", "target", "score"], rows, right="score")
    if len(edges) > len(rows):
        typer.echo(f"... and {len(edges) - len(rows):,} more")
    typer.echo(f"circuit  {circuit.hash}" + ("" if out is None else f"  {out}"))


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
    circuit: Annotated[
        Path | None,
        option("--circuit", "Circuit file.  [default: one discovered for each task, as audit does]"),
    ] = None,
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
    from assay import runner
    from assay.circuits import load_circuit

    for each in task if images is None else (None,):
        runner.check_options(
            method=method, task=each, ablation=ablation, objective=objective, metrics=metric, device=device
        )
    if not dry_run:
        check_outputs(out, store=store)
    loaded = load(model, device)
    given = None if circuit is None else load_circuit(circuit, loaded.graph)
    if dry_run:
        n = n or runner.DEFAULT_N
        stages = [runner.plan_measurement(loaded, metric, n=n * len(task), n_random=n_random)]
        if given is None:
            stages.insert(0, runner.plan_discovery(loaded, method=method, n=n * len(task), steps=steps))
        show_plan(loaded, n, stages, as_json=as_json)
        return
    tasks: list[Task | str] = [_read(each, loaded, n) for each in task]
    if images is not None:
        tasks = [_inputs("", images, loaded, n=n, seed=seed, skip_bad=skip_bad)]
    kept = open_store(store)
    records = []
    with progress_on_stderr(quiet=quiet) as progress:
        for prompts in tasks:
            runs = runner.runs_of(
                loaded,
                prompts,
                given,
                method=method,
                objective=objective,
                ablation=ablation,
                n=n,
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
                found = runner.measure_stored(runs, key, random_circuits=n_random, store=kept)
                records.append({"task": runs.task.name, "n_edges": runs.circuit.n_edges, **found})
            progress("measure", len(metric), len(metric))
    _hand_over(records, out=out, as_json=as_json)


def _inputs(
    task: str, images: str | None, model: "Model", *, n: int | None, seed: int, skip_bad: bool = False
) -> "Task":
    """Prompts of a task, or images where they are named."""
    from assay.tasks import digits_source, load_images, load_task

    if model.id.startswith("planted:") and images is None and task in ("ioi", "planted"):
        from assay.benchmark import planted_task
        from assay.models.planted import planted_model

        return planted_task(planted_model(model.id.removeprefix("planted:")), n or 64, seed)
    if images is None and task == "ioi" and model.id == "colour-digits":
        task = "colour-digits"
    if images is None and digits_source(task) is not None:
        images = task
    if images is None:
        return load_task(task, model, n=n, seed=seed)
    found = load_images(images, model, n=n, seed=seed, skip_bad=skip_bad)
    if skipped := found.config.get("skipped"):
        warnings.warn(f"{skipped} files of {found.domain} were skipped", AssayWarning, stacklevel=2)
    return found


def _read(task: str, model: "Model", n: int | None) -> "PairTask | str":
    """The prompts of a file, or the name of a registered task as it is."""
    from assay.tasks import load_task

    return load_task(task, model, n=n) if Path(task).suffix == ".jsonl" else task


def _hand_over(records: list[dict[str, Any]], *, out: Path | None, as_json: bool) -> None:
    """Measurement records to a file and to stdout."""
    from assay.circuits import write_atomically
    from assay.measurement import plain

    if out is not None:
        write_atomically(make_room(out), json.dumps(plain(records), indent=1, allow_nan=False).encode())
    if as_json:
        print_json(records)
    else:
        print_measurements([(record["task"], record) for record in records])


@app.command("list")
@command
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="methods, metrics, gates, head-methods, tasks, ablations, interventions, objectives, "
            "divergences, distances, corruptions, models or results."
        ),
    ],
    store: StoreOption = None,
    of: Annotated[
        str | None,
        option("--kind", "Only results of this kind: audit, scores, measurement, worst_case, calibration."),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """List what is registered, or the results of a store."""
    if kind == "results":
        from assay.store import Store

        results = Store(store or DEFAULT_STORE, create=False).find(of)
        records = [
            _result_line(result.id, result.kind, result.created, result.provenance) for result in results
        ]
        if as_json:
            print_json(records)
            return
        print_table("", ["id", "kind", "created", "about"], [list(record.values()) for record in records])
        return
    from assay.catalogue import KINDS, list_entries

    if kind not in KINDS:
        raise unknown_name("kind", kind, [*KINDS, "results"])
    entries = list_entries(kind)
    if as_json:
        print_json([entry.to_dict() for entry in entries])
        return
    print_table("", ["key", "what it is"], [[entry.key, entry.summary] for entry in entries])


def _result_line(identity: str, kind: str, created: str, provenance: Mapping[str, Any]) -> dict[str, str]:
    """One result in words: what of which task in which model."""

    def inside(*path: str) -> str:
        value: Any = provenance
        for key in path:
            value = value.get(key, {}) if isinstance(value, Mapping) else {}
        return value if isinstance(value, str) else ""

    what = inside("metric", "key") or inside("method", "key") or inside("method") or inside("divergence")
    tasks = (("task", "name"), ("measured", "name"), ("sample", "task", "name"), ("table", "task", "name"))
    task = next((name for path in tasks if (name := inside(*path))), "")
    model = inside("model", "id") or inside("table", "model", "id")
    if kind == "calibration":
        gates = provenance.get("gates", ())
        what = f"{len(gates)} gates" if len(gates) != 1 else str(gates[0])
    if kind == "subset-path":
        sizes = provenance.get("sizes") or ()
        what = f"subsets of {', '.join(map(str, sizes))}"
    about = " ".join(part for part in (what, task and f"on {task}", model and f"in {model}") if part)
    return {"id": identity, "kind": kind, "created": created[:19], "about": about}


@app.command()
@command
def show(
    identity: Annotated[str, typer.Argument(metavar="ID", help="A result's id or its beginning.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Show one stored result."""
    from assay.report import verdict
    from assay.store import Store

    found = Store(store or DEFAULT_STORE, create=False).get(identity)
    if as_json:
        print_json(
            {
                "id": found.id,
                "kind": found.kind,
                "created": found.created,
                "provenance": found.provenance,
                "payload": found.payload,
                "arrays": list(found.arrays.keys()),
            }
        )
        return
    line = _result_line(found.id, found.kind, found.created, found.provenance)
    typer.echo(f"{line['kind']} {line['id']}, {line['created']}")
    typer.echo(line["about"])
    typer.echo()
    if found.kind == "audit":
        typer.echo(verdict(found.payload))
        typer.echo()
        print_measurements(
            [(found.payload["task"]["name"], record) for record in found.payload["measurements"]]
        )
    elif found.kind == "measurement":
        print_measurements([(found.provenance["task"]["name"], found.payload)])
    elif found.kind == "worst_case":
        from assay.cli.attack import print_worst_case

        print_worst_case(found.payload)
    elif found.kind == "calibration":
        from assay.cli.calibrate import print_gates

        print_gates(found.payload)
    elif found.kind == "ranking":
        from assay.cli.rank import print_ranking

        print_ranking(found.payload)
    elif found.kind == "subset-path":
        from assay.cli.select import print_subset

        print_subset(found.payload)
    else:
        typer.echo(json.dumps(found.payload, indent=1))


@app.command()
@command
def report(
    identity: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="Id of an audit, worst case, calibration, ranking or subset.  [default: the newest audit]",
        ),
    ] = None,
    store: StoreOption = None,
    out: Annotated[
        Path | None, option("--out", "HTML file to write.  [default: report.html in the store]")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Build the page of an audit or of another result again from the store."""
    from assay.report import save_report
    from assay.store import Store

    kept = Store(store or DEFAULT_STORE, create=False)
    out = kept.directory / "report.html" if out is None else out
    if identity is None:
        audits = kept.find("audit")
        if not audits:
            raise InputError(f"the store at {kept.directory} holds no audit yet; run `assay audit` first")
        found = audits[-1]
    else:
        found = kept.get(identity)
        if found.kind not in REPORTED:
            raise InputError(
                f"{found.id} is a {found.kind}; pages are made of results of the kinds "
                f"{', '.join(REPORTED)}: see `assay list results`"
            )
    save_report(out, found.payload)
    if as_json:
        print_json({"id": found.id, "report": str(out)})
    else:
        typer.echo(f"{out}")
