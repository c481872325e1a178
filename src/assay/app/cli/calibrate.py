"""`assay calibrate`: the sixteen gates on the measurements of a circuit."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.app.cli.attack import EdgesOption
from assay.app.cli.border import (
    check_outputs,
    command,
    echo,
    given_circuit,
    load,
    make_room,
    open_store,
    print_json,
    print_table,
    progress_on_stderr,
    show_plan,
)
from assay.app.cli.commands import app
from assay.app.cli.options import (
    AblationOption,
    BatchOption,
    CircuitOption,
    ConfigOption,
    CountOption,
    DeviceOption,
    DiscoverOnOption,
    DryRunOption,
    JsonOption,
    MeasureOnOption,
    MethodOption,
    ModelOption,
    ObjectiveOption,
    QuietOption,
    SeedOption,
    StepsOption,
    StoreOption,
    TargetOption,
    TaskOption,
    TracebackOption,
    option,
)
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.discovery.heads.table import AnyCircuit

GATE_FIRED = 3


@app.command()
@command
def calibrate(
    gates: Annotated[
        list[str] | None,
        typer.Argument(metavar="[GATE]...", help="Keys or codes of single gates, e.g. C11.  [default: all]"),
    ] = None,
    circuit: CircuitOption = None,
    model: ModelOption = "mini",
    task: TaskOption = "ioi",
    discover_on: DiscoverOnOption = None,
    measure_on: MeasureOnOption = None,
    against: Annotated[
        list[str] | None,
        option("--against", "Another task, with a circuit discovered for it, for C17; may be repeated."),
    ] = None,
    published: Annotated[
        str | None, option("--published", "Head circuit to compare the circuit's heads with, for C14.")
    ] = None,
    groups: Annotated[
        str | None, option("--groups", "Field of the prompts to compare them by in C13 and S3, e.g. object.")
    ] = None,
    random_sets: Annotated[
        int, option("--random-sets", "Random head sets of either kind that C36 compares with.", min=0)
    ] = 0,
    budget: Annotated[
        float | None,
        option("--budget", "Whole passes that tables over all heads may cost.  [default: no limit]"),
    ] = None,
    gate: Annotated[bool, option("--gate", "Exit with 3 where a gate fails with confidence.")] = False,
    method: MethodOption = "eap-ig-inputs",
    objective: ObjectiveOption = None,
    ablation: AblationOption = None,
    n: CountOption = None,
    prompts: Annotated[
        int,
        option("--prompts", "Prompts of the measurement table; of a file the others are the pool.", min=1),
    ] = 100,
    steps: StepsOption = 5,
    target: TargetOption = 0.9,
    edges: EdgesOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    store: StoreOption = None,
    out: Annotated[Path | None, option("--out", "JSON document to write.")] = None,
    report: Annotated[Path | None, option("--report", "HTML page to write.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Judge whether the measurements of a circuit can be trusted: sixteen checks, each with two verdicts."""
    from assay import pipeline
    from assay.analyses.calibration import find_gate
    from assay.analyses.calibration.battery import gates_on_same_prompts
    from assay.circuits import load_head_circuit, write_atomically
    from assay.execution import ABLATIONS
    from assay.report import save_report

    pipeline.check_options(method=method, task=task, objective=objective, device=device)
    _check_method(ablation)
    for other in against or ():
        pipeline.check_options(task=other)
        if other.replace("_", "-") == task.replace("_", "-"):
            raise InputError(
                f"--against {other} is the task itself; name another one, see `assay list tasks`"
            )
    chosen = [find_gate(name).key for name in gates] if gates else None
    if budget is not None and not budget > 0:
        raise InputError(f"--budget is {budget:g}; give a number of passes above 0, or leave it out")
    if discover_on is not None and circuit is not None:
        raise InputError("--discover-on has no effect with --circuit, which is not discovered; leave one out")
    reference = None if published is None else load_head_circuit(published)
    loaded = load(model, device)
    given: AnyCircuit | None = given_circuit(circuit, edges, "--edges", loaded.graph, store)
    if dry_run:
        stages = pipeline.plan_calibration(
            loaded, prompts, against=len(against or ()), random_sets=random_sets, max_passes=budget
        )
        n_discovered = len(against or ()) + (given is None)
        each = pipeline.plan_discovery(loaded, method=method, n=n or pipeline.DEFAULT_N, steps=steps)
        show_plan(loaded, prompts, [*[each] * n_discovered, *stages], as_json=as_json)
        return
    check_outputs(out, report, store=store)
    kept = open_store(store)
    with progress_on_stderr(quiet=quiet) as progress:

        def discovered(draws: pipeline.Draws, sized: int | None) -> "AnyCircuit":
            runs = pipeline.runs_of(
                loaded,
                draws,
                None,
                method=method,
                objective=objective,
                ablation=ablation if ablation in ABLATIONS else None,  # heads know more of them than edges
                steps=steps,
                target=target,
                top=sized,
                batch_size=batch_size,
                seed=seed,
                store=kept,
                progress=progress,
            )
            return runs.circuit

        if given is None:
            draws = pipeline.draw_prompts(
                loaded, task, n=n, seed=seed, discover_on=discover_on, measure_on=measure_on
            )
            given, measured = discovered(draws, edges), draws.measured
        else:
            measured = pipeline.prompts_to_measure(
                loaded, task, n=n, seed=seed, measure_on=measure_on, drawn=prompts, circuit=given
            )
        others = [pipeline.draw_prompts(loaded, other, n=n, seed=seed) for other in against or ()]
        against_circuits = [(other.measured, discovered(other, None)) for other in others]
        table = pipeline.usual_prompts(measured, prompts, seed=seed)
        found = pipeline.calibrate_stored(
            given,
            loaded,
            table.task,
            pool=table.pool,
            same_prompts=gates_on_same_prompts(given, measured, against_circuits),
            against=[
                (pipeline.usual_prompts(other, prompts, seed=seed).task, its)
                for other, its in against_circuits
            ],
            published=reference,
            gates=chosen,
            groups=groups,
            random_sets=random_sets,
            objective=objective,
            ablation=ablation,
            max_passes=budget,
            batch_size=batch_size,
            store=kept,
            progress=progress,
        )
    if out is not None:
        write_atomically(make_room(out), json.dumps(found.document, indent=1, allow_nan=False).encode())
    if report is not None:
        save_report(make_room(report), found.document)
    if as_json:
        print_json(found.document)
    else:
        print_gates(found.document)
        for name, path in (("document", out), ("report", report)):
            if path is not None:
                echo(f"{name:<8} {path}")
        echo(f"result   {found.document['id']}{' (taken from the store)' if found.cached else ''}")
    if gate and found.failed:
        echo(f"gate: {', '.join(found.failed)} fail with confidence", err=True)
        raise typer.Exit(GATE_FIRED)


def _check_method(ablation: str | None) -> None:
    if ablation is not None:
        from assay.discovery.heads import INTERVENTIONS

        INTERVENTIONS[ablation]


def print_gates(document: Mapping[str, Any]) -> None:
    """The gates as a table, with what to do about those that do not pass below it."""
    from assay.report.calibration import ordered
    from assay.report.calibration_headlines import headline
    from assay.report.calibration_words import (
        advice,
        caveats,
        kind,
        number_line,
        overview,
        subject_words,
    )

    rows: list[Sequence[str]] = []
    steps = []
    for each in ordered(document):
        shown = headline(each)
        state = kind(each["verdict"], shown)
        value, passes = number_line(shown)
        published = each["verdict"]["published"]
        rows.append(
            [
                each["code"],
                each["name"],
                state,
                published if published != "inconclusive" else "",
                value,
                f"{shown.label}; {passes}" if passes else shown.label,
            ]
        )
        if found := advice(each, document):
            steps.append(f"{each['code']:<4} {' '.join(found)}")
    for line in (subject_words(document), *caveats(document)):
        echo(line)
    echo()
    print_table("", ["code", "check", "with confidence", "published", "number", "of what"], rows)
    echo()
    echo(overview(document))
    for line in steps:
        echo(line)
    echo()
