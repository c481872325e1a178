"""How large a circuit is: the smallest that keeps a behaviour, on prompts it was found on and on others."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from assay.circuits import Circuit, EdgeScores
from assay.core.errors import InputError
from assay.core.machine import COUNTING, entered
from assay.execution import CircuitRuns
from assay.models import Model
from assay.pipeline.prompts import Division, DrawnPrompts, draw_prompts, warn_same
from assay.pipeline.stage import Progress, RunSettings, discovery_stage, silent
from assay.stats import recovery_of
from assay.store import Store
from assay.tasks import ImageTask, Task


FIRST_SIZE = 8  # edges of the smallest circuit of a sweep


@dataclass(frozen=True, kw_only=True)
class SizeSearch:
    """How closely the size of a circuit is searched for.

    Attributes:
        resolution: The sweep ends when it has bracketed the size to within 1 part in so many.
        growth: Until a size is confirmed on other examples, it grows by 1 part in so many.
    """

    resolution: int
    growth: int


FINE, COARSE = SizeSearch(resolution=50, growth=25), SizeSearch(resolution=10, growth=3)


@dataclass(frozen=True, kw_only=True, eq=False)
class SizedCircuit:
    """A circuit of the strongest edges, its size given or chosen by a sweep.

    Attributes:
        scores: They rank the edges.
        circuit: The connected circuit.
        size: Strongest edges it was cut from; `circuit.n_edges` of them lie on a path.
        faithfulness: Normalised, on the prompts of the sweep; NaN where undefined or not measured.
        confirmed: Whether it meets the target on other prompts too; None where that was not asked.
        sweep: Each size tried, ascending: `size`, `n_edges`, `faithfulness`, and `elsewhere` where the other
            prompts were tried.
        runs: Of the circuit on the other examples, with what was run for its size; None without a sweep.
    """

    scores: EdgeScores
    circuit: Circuit
    size: int
    faithfulness: float = math.nan
    confirmed: bool | None = None
    sweep: tuple[Mapping[str, Any], ...] = ()
    runs: CircuitRuns | None = None


def recovery(runs: CircuitRuns, circuit: Circuit) -> float:
    """Normalised faithfulness: 0 the empty circuit, 1 the model; NaN where those two do not differ."""
    statistic, empty = recovery_of("keep"), Circuit.empty(circuit.graph)
    margins = {
        "keep": runs.margins_of(circuit),
        "full": runs.margins("full"),
        "empty": runs.margins_of(empty),
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
    search: SizeSearch = FINE,
) -> SizedCircuit:
    """The smallest swept circuit that meets a faithfulness.

    Sizes 8, 16, 32, ... strongest edges by |score|, each pruned to what is connected, until one meets the
    target; then bisection below it, usually to within 2 %. Where it has to hold on other prompts too, sizes
    then grow by steps, usually of 4 %, to at most twice the size found, until one meets the target on both;
    if none does, the circuit of the first search stays. Faithfulness need not grow with size, so a smaller
    circuit may exist between the sizes tried. NaN meets no target; the whole model meets any.

    Args:
        scores: Ranks the edges.
        faithfulness: Normalised faithfulness of a circuit, e.g. `recovery` on some runs.
        target: In (0, 1].
        progress: Told of each size.
        elsewhere: The same on other prompts, if the size is to be confirmed there.
        search: How closely to search.
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
    while high - low > max(1, high // search.resolution):
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    size, confirmed = high, None
    if elsewhere is not None:
        last = min(2 * high, n_edges)
        while not (confirmed := meets(size) and holds(size)) and size < last:
            size = min(max(size + 1, size * (search.growth + 1) // search.growth), last)
        size = size if confirmed else high
    return SizedCircuit(
        scores=scores,
        circuit=circuit_of(size),
        size=size,
        faithfulness=tried[size]["faithfulness"],
        confirmed=confirmed,
        sweep=tuple(tried[each] for each in sorted(tried)),
    )


def size_circuit(
    scores: EdgeScores,
    draws: Division,
    settings: RunSettings,
    *,
    size: int | None = None,
    target: float = 0.9,
    search: SizeSearch = FINE,
    progress: Progress = silent,
) -> SizedCircuit:
    """The connected circuit of the strongest edges: so many, or as few as `find_circuit` needs for a target.

    Args:
        scores: Ranks the edges.
        draws: Examples the sizes are tried on and, where they are held out, those they are confirmed on.
        settings: How circuits are run.
        size: Strongest edges; None: as the target asks for.
        target: Normalised faithfulness to reach, in (0, 1].
        search: How closely to search.
        progress: Told of each size.
    """
    if size is not None:
        return SizedCircuit(scores=scores, circuit=scores.top(size).connected(), size=size)
    whole = Circuit.full(scores.graph)
    sweep = settings.on(draws.discovery, whole)
    other = settings.on(draws.measured, whole) if draws.held_out else sweep
    elsewhere = partial(recovery, other) if draws.held_out else None
    how: dict[str, Any] = {"target": target, "search": search, "progress": progress}
    sized = find_circuit(scores, partial(recovery, sweep), elsewhere=elsewhere, **how)
    return replace(sized, runs=other.of(sized.circuit))


def discover_circuit(
    draws: Division,
    settings: RunSettings,
    *,
    method: str,
    steps: int,
    store: Store | None,
    progress: Progress,
    **sizing: Any,
) -> SizedCircuit:
    """Discover and choose the size; `sizing` is `size`, `target` or `search` of `size_circuit`."""
    n = draws.discovery.n
    progress("discover", 0, n)
    stage = discovery_stage(task=draws.discovery, method=method, steps=steps, **vars(settings))
    with entered(COUNTING, lambda *done: progress("discover", *done)):
        scores = stage.run(store).value
    progress("discover", n, n)
    return size_circuit(scores, draws, settings, progress=progress, **sizing)


def runs_of(
    model: Model,
    task: Task | str | Division,
    circuit: Circuit | None,
    *,
    method: str = "eap-ig-inputs",
    objective: str | None = None,
    ablation: str | None = None,
    n: int | None = None,
    steps: int = 5,
    target: float = 0.9,
    top: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    store: Store | None = None,
    progress: Progress,
) -> CircuitRuns:
    """Runs of a circuit on a task; without a circuit, of one discovered for that task.

    Args:
        model: The model.
        task: What a circuit is measured on. Without one: key, JSONL file or task; or its prompts or images as
            they were divided into two halves.
        circuit: What to measure; None discovers one on other prompts than those it is measured on.
        method: Discovery method.
        objective: Loss whose negative is the margin; default: the task's own.
        ablation: What a cut edge carries; default: the task's own.
        n: Prompts to measure on (and as many to discover on); default: 200, all of a file.
        steps: Quadrature nodes of the method.
        target: Normalised faithfulness that a discovered circuit must reach.
        top: Its size instead.
        batch_size: Prompts per pass.
        seed: Root seed of all random draws.
        store: Where scores are taken from and kept.
        progress: Told of each stage.
    """
    settings = RunSettings(
        model=model, objective=objective, ablation=ablation, batch_size=batch_size, seed=seed
    )
    if circuit is not None:
        return settings.on(cast(Task, task), circuit)
    if isinstance(task, ImageTask):
        raise InputError("images need a circuit: run `assay discover --images` and pass it with --circuit")
    draws = task if isinstance(task, Division) else draw_prompts(model, task, n=n, seed=seed)
    if isinstance(draws, DrawnPrompts):
        warn_same(draws)
    how: dict[str, Any] = {"method": method, "steps": steps, "size": top, "target": target}
    sized = discover_circuit(draws, settings, **how, store=store, progress=progress)
    return settings.on(draws.measured, sized.circuit)
