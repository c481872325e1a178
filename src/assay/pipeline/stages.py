"""The stages of a job, each kept in the store under the record of what it is a function of."""

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.circuits import Circuit, EdgeScores
from assay.core.errors import AssayWarning, InputError, OutputError
from assay.core.record import library_version, record_id
from assay.discovery.edges import EdgeMethod, discover, get_method
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.execution import ABLATIONS, Ablation, CircuitRuns, get_ablation
from assay.graph import Graph
from assay.metrics import find_metric, measure, measurement_provenance
from assay.models import Model
from assay.objectives import Objective, get_objective, is_registered
from assay.pipeline.prompts import Draws, draw_prompts, prompts_to_measure
from assay.stats import recovery_of
from assay.store import Store
from assay.tasks import TASKS, ImageTask, Task, digits_source
from assay.tasks.seen import describe_discovery


FIRST_SIZE = 8  # edges of the smallest circuit of a sweep
RESOLUTION = 50  # a sweep ends when it has bracketed the size to within 1 part in 50

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a plan, at most.

    Attributes:
        name: What is done.
        runs: Runs over all prompts.
        passes: Forward-equivalents over single prompts; a backward pass counts as one.
    """

    name: str
    runs: int
    passes: int


def check_writable(directory: Path, *, make: bool = False) -> None:
    """Refuse a directory in which no file can be made, before any work is done for it.

    Args:
        directory: It need not exist.
        make: Make it if it does not exist; otherwise nothing is left behind.

    Raises:
        OutputError: With the reason the system gives.
    """
    try:
        if make:
            directory.mkdir(parents=True, exist_ok=True)
        existing = next(
            place for place in (directory, *directory.absolute().parents) if os.path.exists(place)
        )
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write to {directory}: {error.strerror}; choose a directory that you may write to"
        ) from error


def check_options(
    *,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    task: Task | str | None = None,
    ablation: str | None = None,
    objective: str | Objective | None = None,
    metrics: Sequence[str] | None = None,
    device: str | None = None,
) -> None:
    """Refuse unknown names before a model is loaded; the errors name near matches or all valid names."""
    if method is not None:
        get_method(method, **(options or {}))
    if isinstance(task, str) and Path(task).suffix != ".jsonl" and digits_source(task) is None:
        TASKS[task.replace("_", "-")]
    if ablation is not None:
        get_ablation(ablation)
    if objective is not None:
        get_objective(objective)
    for key in metrics or ():
        find_metric(key)
    if device is not None:
        check_device(device)


def check_device(name: str) -> None:
    """Refuse a device that this PyTorch does not have.

    Raises:
        InputError: Naming the devices there are.
    """
    devices = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        devices += [f"{kind}:{index}" for index in range(torch.accelerator.device_count())]
    try:
        asked = torch.device(name)
    except RuntimeError:  # no such type of device
        asked = None
    if asked is None or (asked.type != "cpu" and f"{asked.type}:{asked.index or 0}" not in devices):
        raise InputError(f"no device {name!r}: PyTorch {torch.__version__} here has {', '.join(devices)}")


def registered(objective: Objective, ablation: Ablation) -> bool:
    """Whether both are what their keys name; records hold keys, so a store can tell only these apart."""
    return is_registered(objective) and ablation.key in ABLATIONS and ABLATIONS[ablation.key] is ablation


def usual_replacement(ablation: str) -> str:
    """What gates replace single heads by under an ablation: `mean` where that is defined for edges alone."""
    return ablation if ablation in INTERVENTIONS else "mean"


# ---- discover -----------------------------------------------------------------------------------


def discover_stored(
    model: Model,
    task: Task,
    method: str,
    *,
    objective: str | Objective | None = None,
    ablation: str | Ablation | None = None,
    steps: int | str = 5,
    quadrature: str = "midpoint",
    batch_size: int | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    store: Store | None = None,
) -> EdgeScores:
    """`assay.discover`, taken from the store where the same scores were computed before.

    Under an objective or ablation that is not registered the store is left alone.
    """
    chosen = get_method(method, **(options or {}))
    loss = get_objective(objective or chosen.objective or task.objective)
    replacement = get_ablation(ablation or task.ablation)
    if not registered(loss, replacement):
        store = None
    record = scores_record(
        model,
        task,
        chosen,
        objective=objective,
        ablation=ablation,
        steps=steps,
        quadrature=quadrature,
        seed=seed,
    )
    if store is not None and (found := kept_scores(store, model.graph, record)) is not None:
        return found
    scores = discover(
        model,
        task,
        chosen,
        objective=objective,
        ablation=ablation,
        steps=steps,
        quadrature=quadrature,
        batch_size=batch_size,
        seed=seed,
    )
    if store is not None:
        keep_scores(store, record, scores)
    return scores


def scores_record(
    model: Model,
    task: Task,
    method: EdgeMethod,
    *,
    objective: str | Objective | None = None,
    ablation: str | Ablation | None = None,
    steps: int | str = 5,
    quadrature: str = "midpoint",
    seed: int = 0,
) -> dict[str, Any]:
    """What stored scores are a function of; `record_id("scores", ...)` of it is their identity."""
    record = {
        "library": library_version(),
        "model": model.describe(),
        "task": describe_discovery(task),
        "graph": model.graph.fingerprint,
        "method": method.key,
        "objective": get_objective(objective or method.objective or task.objective).key,
        "ablation": get_ablation(ablation or task.ablation).key,
        "steps": steps,
        "quadrature": quadrature,
        "seed": seed,
    }
    if method.options():
        record["options"] = method.options()
    return record


def kept_scores(store: Store, graph: Graph, record: Mapping[str, Any]) -> EdgeScores | None:
    """The scores of a record, if the store holds them."""
    identity = record_id("scores", record)
    if not store.has(identity):
        return None
    found = store.get(identity)
    return EdgeScores(
        graph, found.arrays["values"], provenance=found.provenance, details=found.payload["details"]
    )


def keep_scores(store: Store, record: Mapping[str, Any], scores: EdgeScores) -> str:
    """Store scores under their record; returns their id."""
    payload = {"details": dict(scores.details), "graph": scores.graph.describe()}
    return store.put("scores", record, payload, {"values": scores.values})


# ---- measure ------------------------------------------------------------------------------------


def measure_stored(
    runs: CircuitRuns, metric: str, *, random_circuits: int = 0, store: Store | None = None
) -> dict[str, Any]:
    """The record of one measurement (`Measurement.to_dict`), from the store where it was made before.

    Under an objective or ablation that is not registered the store is left alone.
    """
    if not registered(runs.objective_object, runs.ablation_object):
        store = None
    record = measurement_provenance(runs, metric, random_circuits=random_circuits)
    identity = record_id("measurement", record)
    if store is not None and store.has(identity):
        return store.get(identity).payload
    found = measure(runs.circuit, runs.model, runs.task, metric, runs=runs, random_circuits=random_circuits)
    payload = {**found.to_dict(), "n_edges": runs.circuit.n_edges}
    if store is not None:
        store.put("measurement", record, payload, found.arrays())
    return payload


# ---- the size of a circuit ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """A circuit whose size was chosen by a sweep.

    Attributes:
        circuit: The connected circuit.
        size: Strongest edges it was cut from; `circuit.n_edges` of them lie on a path.
        faithfulness: Normalised, on the prompts of the sweep; NaN where undefined.
        confirmed: Whether it meets the target on other prompts too; None where that was not asked.
        sweep: Each size tried, ascending: `size`, `n_edges`, `faithfulness`, and `elsewhere` where the other
            prompts were tried.
    """

    circuit: Circuit
    size: int
    faithfulness: float
    confirmed: bool | None
    sweep: tuple[Mapping[str, Any], ...]


def recovery(runs: CircuitRuns, circuit: Circuit) -> float:
    """Normalised faithfulness: 0 the empty circuit, 1 the model; NaN where those two do not differ."""
    statistic = recovery_of("keep")
    margins = {
        "keep": runs.margins_of(circuit),
        "full": runs.margins("full"),
        "empty": runs.margins_of(Circuit.empty(circuit.graph)),
    }
    sums = np.array([margins[name].sum() for name in statistic.components])
    return float(statistic.of_sums(sums, runs.task.n))


def find_circuit(
    scores: EdgeScores,
    faithfulness: Callable[[Circuit], float],
    *,
    target: float,
    progress: Progress,
    elsewhere: Callable[[Circuit], float] | None = None,
) -> Found:
    """The smallest swept circuit that meets a faithfulness.

    Sizes 8, 16, 32, ... strongest edges by |score|, each pruned to what is connected, until one meets the
    target; then bisection below it to within 2 %. Where it has to hold on other prompts too, sizes then
    grow by 4 %, to at most twice the size found, until one meets the target on both; if none does, the
    circuit of the first search stays. Faithfulness need not grow with size, so a smaller circuit may exist
    between the sizes tried. NaN meets no target; the whole model meets any.

    Args:
        scores: Ranks the edges.
        faithfulness: Normalised faithfulness of a circuit, e.g. `recovery` on some runs.
        target: In (0, 1].
        progress: Told of each size.
        elsewhere: The same on other prompts, if the size is to be confirmed there.
    """
    n_edges = scores.graph.n_edges
    tried: dict[int, dict[str, Any]] = {}

    def circuit_of(size: int) -> Circuit:
        return scores.top(size).connected(warn=False)

    def meets(size: int) -> bool:
        if size not in tried:
            circuit = circuit_of(size)
            value = 1.0 if size == n_edges else faithfulness(circuit)
            tried[size] = {"size": size, "n_edges": circuit.n_edges, "faithfulness": value}
            progress("sweep sizes", len(tried), 0)
        return bool(tried[size]["faithfulness"] >= target)

    def holds(size: int) -> bool:
        assert elsewhere is not None
        value = tried[size]["elsewhere"] = 1.0 if size == n_edges else elsewhere(circuit_of(size))
        return bool(value >= target)

    low, high = 0, min(FIRST_SIZE, n_edges)
    while not meets(high) and high < n_edges:
        low, high = high, min(2 * high, n_edges)
    while high - low > max(1, high // RESOLUTION):
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    size, confirmed = high, None
    if elsewhere is not None:
        last = min(2 * high, n_edges)
        while not (confirmed := meets(size) and holds(size)) and size < last:
            size = min(max(size + 1, size * 26 // 25), last)
        size = size if confirmed else high
    return Found(
        circuit=circuit_of(size),
        size=size,
        faithfulness=tried[size]["faithfulness"],
        confirmed=confirmed,
        sweep=tuple(tried[each] for each in sorted(tried)),
    )


def runs_of(
    model: Model,
    task: Task | str | Draws,
    circuit: Circuit | None,
    *,
    method: str = "eap-ig-inputs",
    objective: str | None = None,
    ablation: str | None = None,
    n: int | None = None,
    steps: int | str = 5,
    target: float = 0.9,
    top: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    store: Store | None = None,
    progress: Progress,
) -> CircuitRuns:
    """Runs of a circuit on prompts of a task; without a circuit, of one discovered for that task.

    Args:
        model: The model.
        task: Key, JSONL file or task; or its prompts as `draw_prompts` has divided them.
        circuit: What to measure; None discovers one on other prompts than those it is measured on.
        method: Discovery method.
        objective: Loss whose negative is the margin; default: the task's own.
        ablation: What a cut edge carries; default: the task's own.
        n: Prompts to measure on (and as many to discover on); default: 200, all of a file.
        steps: Quadrature nodes of the method, or "auto".
        target: Normalised faithfulness that a discovered circuit must reach.
        top: Its size instead.
        batch_size: Prompts per pass.
        seed: Root seed.
        store: Where scores are taken from and kept.
        progress: Told of each stage.
    """

    def runs(prompts: Task, kept: Circuit) -> CircuitRuns:
        return CircuitRuns(
            model, prompts, kept, ablation=ablation, objective=objective, batch_size=batch_size, seed=seed
        )

    if circuit is not None:
        task = task.measured if isinstance(task, Draws) else task
        named = (
            prompts_to_measure(model, task, n=n, seed=seed, circuit=circuit)
            if isinstance(task, str)
            else task
        )
        return runs(named, circuit)
    if isinstance(task, ImageTask):
        raise InputError(
            "images are measured on a circuit that was found before; run `assay discover --images` and give "
            "its circuit with --circuit"
        )
    draws = task if isinstance(task, Draws) else draw_prompts(model, task, n=n, seed=seed)
    if not draws.held_out:
        warnings.warn(draws.note, AssayWarning, stacklevel=2)
    progress("discover", 0, 1)
    scores = discover_stored(
        model,
        draws.discovery,
        method,
        objective=objective,
        ablation=ablation,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        store=store,
    )
    progress("discover", 1, 1)
    if top is not None:
        return runs(draws.measured, scores.top(top).connected())
    sweep = runs(draws.discovery, Circuit.full(model.graph))
    other = runs(draws.measured, Circuit.full(model.graph))
    found = find_circuit(
        scores,
        lambda each: recovery(sweep, each),
        target=target,
        progress=progress,
        elsewhere=(lambda each: recovery(other, each)) if draws.held_out else None,
    )
    return runs(draws.measured, found.circuit)
