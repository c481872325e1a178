"""`assay repair`: a circuit of the same size with a lighter tail."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from assay.app.cli.attack import EdgesOption, IndependentOption
from assay.app.cli.border import (
    check_outputs,
    circuit_of,
    command,
    echo,
    load,
    make_room,
    open_store,
    print_json,
    print_table,
    progress_on_stderr,
)
from assay.app.cli.commands import app
from assay.app.cli.options import (
    BatchOption,
    CircuitOption,
    ConfigOption,
    CountOption,
    DeviceOption,
    JsonOption,
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
    from collections.abc import Mapping

    import numpy as np
    from jaxtyping import Float64

    from assay.analyses.worst_case import Repair

ROWS = ("mean", "p50", "p95", "p99", "p99.9", "max")


@app.command()
@command
def repair(
    circuit: CircuitOption = None,
    model: ModelOption = "mini",
    task: TaskOption = "ioi",
    by: Annotated[
        str, option("--by", "mask: learned edge masks; swap: exchange edges that explain the worst pairs.")
    ] = "mask",
    tail: Annotated[
        float | None,
        option(
            "--tail",
            "Weight of the worst pairs in the last third of the training of mask.  [default: 0.5]",
            min=0,
            max=1,
        ),
    ] = None,
    percentile: Annotated[
        float, option("--percentile", "Percentile whose bound chooses among the circuits met.")
    ] = 0.99,
    train_steps: Annotated[
        int | None, option("--train-steps", "Steps of mask.  [default: the method's own]", min=3)
    ] = None,
    n_train: Annotated[
        int, option("--n-train", "Pairs to train on, and as many to choose by.", min=20)
    ] = 4000,
    n_pairs: Annotated[
        int, option("--n-pairs", "Fresh pairs that judge both circuits at the end.", min=60)
    ] = 10_000,
    independent: IndependentOption = False,
    method: MethodOption = "eap-ig-inputs",
    objective: ObjectiveOption = None,
    n: CountOption = None,
    steps: StepsOption = 5,
    target: TargetOption = 0.9,
    edges: EdgesOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    store: StoreOption = None,
    out: Annotated[Path | None, option("--out", "Circuit file to write, NAME.safetensors.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Look for a circuit of the same size that departs less from its model on the worst pairs.

    Pairs to train on, to choose by and to judge by are drawn separately.
    """
    from assay import pipeline
    from assay.analyses import worst_case
    from assay.discovery.edges import MaskSettings
    from assay.stats.percentile_bounds import share
    from assay.tasks import load_task

    pipeline.check_options(method=method, task=task, objective=objective, device=device)
    if by == "swap" and (tail is not None or train_steps is not None):
        raise InputError("--tail and --train-steps belong to --by mask; leave them out, or choose mask")
    share(percentile, "percentile")
    loaded = load(model, device)
    given = circuit_of(circuit, edges, "--edges", loaded.graph, store)
    check_outputs(out, store=store)
    file = Path(task).suffix == ".jsonl"
    inputs = load_task(task, loaded, n=n, seed=0 if file and n is None else seed)
    kept = open_store(store)
    with progress_on_stderr(quiet=quiet) as progress:
        if given is None:
            given = pipeline.runs_of(
                loaded,
                task,
                None,
                method=method,
                objective=objective,
                ablation="resample",
                n=n,
                steps=steps,
                target=target,
                top=edges,
                batch_size=batch_size,
                seed=seed,
                store=kept,
                progress=progress,
            ).circuit
        progress("repair", 0, 1)
        found = worst_case.repair(
            given,
            loaded,
            inputs,
            method=by,  # type: ignore[arg-type]  # `repair` refuses other words itself
            tail=0.5 if tail is None else tail,
            independent=independent,
            percentile=percentile,
            n_discovery=n_train,
            n_validation=n_train,
            n_certificate=n_pairs,
            settings=None if train_steps is None else MaskSettings(steps=train_steps),
            seed=seed,
        )
        progress("repair", 1, 1)
    if out is not None:
        found.circuit.save(make_room(out))
    if as_json:
        print_json(found.to_dict())
        return
    print_repair(found, percentile)
    if out is not None:
        echo(f"circuit  {out}")


def print_repair(found: "Repair", percentile: float) -> None:
    """Both circuits on the same fresh pairs, and what was spent."""
    before, after = found.before, found.after
    if found.improved:
        echo(f"a circuit of {after.circuit.n_edges:,} edges instead of {before.circuit.n_edges:,}:")
    else:
        echo("no better circuit was found; the start is kept")
    columns = ["", "start", "repaired", "change", "empty"]
    empty = _summary(found.empty)
    rows = []
    for key in ROWS:
        old, new = before.summary.absolute[key], after.summary.absolute[key]
        if old is None or new is None:  # a percentile that so few pairs do not resolve
            continue
        change = f"{new / old - 1:+.0%}" if old else ""
        rows.append([key, f"{old:.4g}", f"{new:.4g}", change, f"{empty[key]:.4g}"])
    n = len(before.divergence)
    print_table(f"divergence over {n:,} fresh pairs", columns, rows, right="start repaired change empty")
    if after.independent:
        echo(after.certificate(percentile).statement)
    else:
        echo("no certificate: the rows of the task were not declared independent (--independent)")
    cost = found.cost
    echo(
        f"{len(found.candidates)} circuits compared; {cost['seconds']:.0f} s, "
        f"{cost['soft_forward'] + cost['soft_backward']:,.0f} passes with a stream per target"
    )


def _summary(values: "Float64[np.ndarray, ' n_pairs']") -> "Mapping[str, float | None]":
    from assay.stats import summarize

    return summarize(values).absolute
