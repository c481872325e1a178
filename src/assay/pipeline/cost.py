"""What work costs: passes counted before it runs, and time and memory from a pass timed here."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.circuits import Circuit
from assay.core.record import Record
from assay.discovery.edges import EdgeMethod, get_method
from assay.discovery.edges.running import resolve
from assay.execution import CircuitRunner, get_ablation, run_circuit, run_model
from assay.execution.batches import measured_free, usual_batch
from assay.execution.forward import circuit_batch, circuit_run
from assay.execution.memory import peak_bytes, weight_bytes
from assay.models import Model
from assay.objectives import Objective
from assay.tasks import Task


TIMED_EXAMPLES, TIMED_RUNS = 16, 3
PASSES = "forward passes over one prompt or image"


@dataclass(frozen=True, kw_only=True)
class Workload(Record):
    """What a stage takes before it runs, at most.

    Attributes:
        stage: What is done.
        runs: Runs over all prompts.
        passes: Forward-equivalents over single prompts; a backward pass counts as one.
    """

    stage: str
    runs: int
    passes: int


@dataclass(frozen=True, kw_only=True)
class LeftOut(Record):
    """A stage, or the larger form of one, that is not run.

    Attributes:
        stage: Of an audit, or the key of a metric.
        what: What it is.
        reason: Why it is not run.
        passes: What it would cost at most, forward-equivalents.
        option: Option that runs it; empty where none does.
    """

    stage: str
    what: str
    reason: str
    passes: int = 0
    option: str = ""


@dataclass(frozen=True, kw_only=True)
class Forecast(Record):
    """What a command would cost.

    Attributes:
        model: What it is; of several, `id` says which.
        n: Prompts or images.
        stages: In order.
        unit: What `passes` counts; work without a model has a unit of its own.
        pass_seconds: Seconds of a pass over one example, timed here, the mean where several models run; None
            where no example was at hand.
        bytes: Most memory held at once: weights, and what a batch of `batch_size` takes beyond them. To a few
            per cent (see `execution/memory.py`) where the batch is known, else roughly.
        batch_size: Examples per pass of the stage that takes most; None where it was not worked out.
        free_bytes: What is free on the device now, the weights being loaded; None likewise.
        stored_bytes: Arrays of the result, roughly; None where they were not counted.
        workers: Processes that share the work.
        left_out: What is not run.
    """

    derived = ("passes", "seconds")

    model: dict[str, Any]
    n: int
    stages: tuple[Workload, ...]
    unit: str = PASSES
    pass_seconds: float | None = None
    bytes: int | None = None
    batch_size: int | None = None
    free_bytes: int | None = None
    stored_bytes: int | None = None
    workers: int = 1
    left_out: tuple[LeftOut, ...] = ()

    @property
    def passes(self) -> int:
        """Forward-equivalents over single examples, at most."""
        return sum(stage.passes for stage in self.stages)

    @property
    def seconds(self) -> float | None:
        """About how long the passes alone take: loading, statistics and pages are left out."""
        return None if self.pass_seconds is None else self.passes * self.pass_seconds / self.workers


def cost_of(
    model: Model,
    n: int,
    stages: Sequence[Workload],
    task: Task | None = None,
    *,
    batch_size: int | None = None,
    method: str | EdgeMethod | None = None,
    steps: int | str = 5,
    objective: str | Objective | None = None,
    ablation: str | None = None,
) -> Forecast:
    """The cost of some stages.

    Args:
        model: What runs.
        n: Prompts or images.
        stages: What is done with them.
        task: Some inputs to time a pass on; without any, time and memory stay unknown.
        batch_size: Inputs of a pass; None: by free memory.
        method: Method of discovery, where the command discovers; it takes more memory than anything else.
        steps: Its steps.
        objective: What it attributes; None: its own, or the task's.
        ablation: What a cut edge carries; None: as the task says.

    Raises:
        InputError: If not even one example fits.

    Notes:
        Memory is that of the method with its usual options.
    """
    forecast = Forecast(model=model.describe(), n=n, stages=tuple(stages))
    if task is None:
        return forecast
    size, peak = batch_memory(
        model,
        task,
        n,
        batch_size=batch_size,
        method=method,
        steps=steps,
        objective=objective,
        ablation=ablation,
    )
    return replace(
        forecast,
        pass_seconds=pass_seconds(model, task, batch_size=min(size, TIMED_EXAMPLES), ablation=ablation),
        bytes=weight_bytes(model) + peak,
        batch_size=size,
        free_bytes=measured_free(model.device),
    )


def batch_memory(
    model: Model,
    task: Task,
    n: int,
    *,
    batch_size: int | None = None,
    method: str | EdgeMethod | None = None,
    steps: int | str = 5,
    objective: str | Objective | None = None,
    ablation: str | None = None,
) -> tuple[int, int]:
    """The batch that a command takes, and the most memory that it holds beyond the weights.

    Args:
        model: What runs.
        task: Some of its inputs; they are repeated where a batch is larger.
        n: Inputs of the command.
        batch_size: What the user asks for.
        method: Method of discovery; None: runs of circuits, of which one of a tenth of the edges is taken.
        steps: Its steps.
        objective: What it attributes; None: its own, or the task's.
        ablation: What a cut edge carries; None: as the task says.
    """
    task = model.bind(task)
    most = max(1, min(n or task.n, batch_size or usual_batch(model, task)))
    whole = task.subset([row % task.n for row in range(most)])
    if method is not None:
        chosen = get_method(method)
        settings = chosen.choices(whole, steps=steps, objective=objective, ablation=ablation)
        asked = resolve(model, whole, chosen, settings, batch_size=batch_size)
        peak = asked.peak_bytes()
        rough = chosen.bytes_per_example(model, whole.longest, settings)
        return asked.size, asked.size * rough if peak is None else peak
    circuit = Circuit.random(model.graph, max(1, model.graph.n_edges // 10), seed=0)
    carried = get_ablation(ablation or whole.ablation)
    several = task.positions.ndim == 2
    runner = CircuitRunner(model, circuit, resample=carried.paired, several=several)
    size = circuit_batch(runner, circuit, whole, carried, asked=batch_size)
    peak = peak_bytes(model, whole.subset(range(size)), circuit_run(runner, circuit, carried))
    return size, size * runner.bytes_per_pair(whole.length) if peak is None else peak


def cost_of_several(title: str, n: int, parts: Sequence[Forecast]) -> Forecast:
    """The costs of several models as one: stages of one name are added, memory is that of the largest.

    Args:
        title: What the models are.
        n: Prompts or images of each.
        parts: The cost of each model.
    """
    names = dict.fromkeys(stage.stage for part in parts for stage in part.stages)
    stages = tuple(
        added(name, [stage for part in parts for stage in part.stages if stage.stage == name])
        for name in names
    )
    largest = max(parts, key=lambda part: part.bytes or 0)
    passes, seconds = sum(part.passes for part in parts), [part.seconds for part in parts]
    known = [each for each in seconds if each is not None]
    return Forecast(
        model={"id": title},
        n=n,
        stages=stages,
        pass_seconds=sum(known) / max(passes, 1) if len(known) == len(parts) else None,
        bytes=largest.bytes,
        batch_size=largest.batch_size,
        free_bytes=largest.free_bytes,
    )


def added(name: str, stages: Sequence[Workload]) -> Workload:
    """Several stages as one."""
    runs, passes = (sum(getattr(stage, key) for stage in stages) for key in ("runs", "passes"))
    return Workload(stage=name, runs=runs, passes=passes)


def pass_seconds(
    model: Model, task: Task, *, batch_size: int | None = None, ablation: str | None = None
) -> float:
    """Seconds of a pass over one example here: of the model or of a circuit, whichever takes longer.

    A circuit of a tenth of the edges is timed with all that its run needs, so the figure is rather high.
    """
    some = task.subset(range(min(task.n, TIMED_EXAMPLES)))
    circuit = Circuit.random(model.graph, max(1, model.graph.n_edges // 10), seed=0)
    runs = (
        lambda: run_model(model, some, batch_size=batch_size, check=False),
        lambda: run_circuit(model, some, circuit, ablation=ablation, batch_size=batch_size, check=False),
    )
    return max(map(_seconds, runs)) / some.n


def _seconds(run: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs; the first warms up."""
    times = []
    for _ in range(TIMED_RUNS + 1):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def run_bytes(model: Model, task: Task, *, batch_size: int) -> int:
    """Memory of a run of a circuit on a batch with the weights, roughly; for jobs, which are many."""
    residual = model.d_model * model.bind(task).length  # numbers of one example
    return weight_bytes(model) + batch_size * 24 * 4 * residual
