"""`assay repair`: a circuit of the same size with a lighter tail."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

from assay.app.cli.parsing import TRUST, command
from assay.app.console import echo, print_table, progress_on_stderr
from assay.app.option_groups import at_least, one_of, own_group
from assay.app.options import Independent, OfCircuit, OnTask
from assay.app.running import Computing, File, Saving, check_outputs
from assay.core.errors import InputError


if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from jaxtyping import Float64

    from assay.analyses.worst_case import Repair
    from assay.circuits import Circuit
    from assay.models import Model
    from assay.tasks import PairTask

ROWS = ("mean", "p50", "p95", "p99", "p99.9", "max")
REPAIR = own_group("Repair")


@dataclass(frozen=True, kw_only=True)
class RepairSettings(Computing, Saving, Independent, OfCircuit, OnTask):
    """What is repaired, and by which pairs.

    Attributes:
        by: Method. mask: learned edge masks; swap: exchange edges that explain the worst pairs.
        tail: Weight of the worst pairs in the last third of --by mask training. Default: 0.5.
        percentile: Percentile whose bound selects among the candidate circuits.
        train_steps: Training steps of --by mask. Default: the method's own.
        n_train: Pairs to train on, and as many to select by.
        n_pairs: Fresh pairs to compare both circuits on.
    """

    by: Annotated[str, REPAIR, one_of("mask", "swap")] = "mask"
    tail: Annotated[float | None, REPAIR, at_least(0, 1)] = None
    percentile: Annotated[float, REPAIR] = 0.99
    train_steps: Annotated[int | None, REPAIR, at_least(3)] = None
    n_train: Annotated[int, REPAIR, at_least(20)] = 4000
    n_pairs: Annotated[int, REPAIR, at_least(60)] = 10_000


@command(TRUST, example="assay repair --circuit circuit.safetensors --save better.safetensors")
def repair(settings: RepairSettings) -> None:
    """Find a circuit of the same size with a lighter tail.

    Pairs to train on, to choose by and to judge by are drawn separately.
    """
    from assay import pipeline
    from assay.stats.percentile_bounds import share
    from assay.tasks import check_equal_lengths, is_task_file, load_task

    pipeline.check_options(method=settings.method, task=settings.task, objective=settings.objective)
    if settings.by == "swap" and (settings.tail is not None or settings.train_steps is not None):
        raise InputError("--tail and --train-steps belong to --by mask; remove them, or choose mask")
    share(settings.percentile, "percentile")
    model = settings.load_model()
    model.check_together("assay repair")
    circuit = settings.edge_circuit(model.graph)
    whole = is_task_file(settings.task) and settings.n is None
    task = load_task(settings.task, model, n=settings.n, seed=0 if whole else settings.seed)
    check_equal_lengths(task, "a repair")
    check_outputs(settings)
    result = _run(settings, model, task, circuit)
    files = {"circuit": File(settings.path_of(settings.save, "circuit.safetensors"), result.circuit.save)}
    document = result.to_dict()
    identity = _keep(settings, model, task, result, document)
    settings.deliver(
        document, files, show=lambda: print_repair(result, settings.percentile), identity=identity
    )


def _run(settings: RepairSettings, model: "Model", task: "PairTask", circuit: "Circuit | None") -> "Repair":
    from assay.analyses import worst_case
    from assay.discovery.edges import MaskSettings

    store = settings.open_store()
    masks = None if settings.train_steps is None else MaskSettings(steps=settings.train_steps)
    with progress_on_stderr() as progress:
        if circuit is None:
            circuit = settings.runs(
                model, settings.task, ablation="resample", store=store, progress=progress
            ).circuit
        progress("repair", 0, 1)
        result = worst_case.repair(
            circuit,
            model,
            task,
            method=cast(Any, settings.by),  # `repair` refuses other words itself
            tail=0.5 if settings.tail is None else settings.tail,
            independent=settings.independent,
            percentile=settings.percentile,
            n_discovery=settings.n_train,
            n_validation=settings.n_train,
            n_certificate=settings.n_pairs,
            settings=masks,
            seed=settings.seed,
        )
        progress("repair", 1, 1)
    return result


def _keep(
    settings: RepairSettings, model: "Model", task: "PairTask", result: "Repair", document: dict[str, Any]
) -> str:
    """The repair, and its circuit, which is found by its hash, in the store of `--store`."""
    from assay.pipeline.circuits import keep_circuit
    from assay.store import About

    asked = ("by", "tail", "percentile", "train_steps", "n_train", "n_pairs", "independent", "seed")
    record = {
        "model": model.describe(),
        "task": task.describe(),
        "start": result.before.circuit.hash,
        "circuit": result.circuit.hash,
        "settings": {name: getattr(settings, name) for name in asked},
    }
    if settings.store is not None:
        keep_circuit(settings.open_store(), {**record, "method": f"repair-{settings.by}"}, result.circuit, {})
    about = About(
        model=model.id,
        task=task.name,
        method=f"repair-{settings.by}",
        n=settings.n_pairs,
        seed=settings.seed,
        status="improved" if result.improved else "unchanged",
        circuit=result.circuit.hash,
        size=result.circuit.n_edges,
    )
    return settings.keep("repair", record, document, about)


def print_repair(found: "Repair", percentile: float) -> None:
    """Both circuits on the same fresh pairs, and what was spent."""
    before, after = found.before, found.after
    if found.improved:
        echo(f"a circuit of {after.circuit.n_edges:,} edges instead of {before.circuit.n_edges:,}:")
    else:
        echo("no better circuit was found; the original circuit is kept")
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
