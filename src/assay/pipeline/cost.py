"""What work costs: passes counted before it runs, and time and memory from a pass timed here."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.circuits import Circuit
from assay.core.record import Record
from assay.execution import run_circuit, run_model
from assay.models import Model
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
        bytes: Memory of the weights and of the activations of a batch, roughly.
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
) -> Forecast:
    """The cost of some stages.

    Args:
        model: What runs.
        n: Prompts or images.
        stages: What is done with them.
        task: Some inputs to time a pass on; without any, time and memory stay unknown.
        batch_size: Inputs of a pass; None: 16.
    """
    size = batch_size or TIMED_EXAMPLES
    return Forecast(
        model=model.describe(),
        n=n,
        stages=tuple(stages),
        pass_seconds=None if task is None else pass_seconds(model, task, batch_size=size),
        bytes=None if task is None else run_bytes(model, task, batch_size=size),
    )


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
    passes, seconds = sum(part.passes for part in parts), [part.seconds for part in parts]
    known = [each for each in seconds if each is not None]
    return Forecast(
        model={"id": title},
        n=n,
        stages=stages,
        pass_seconds=sum(known) / max(passes, 1) if len(known) == len(parts) else None,
        bytes=max((part.bytes for part in parts if part.bytes is not None), default=None),
    )


def added(name: str, stages: Sequence[Workload]) -> Workload:
    """Several stages as one."""
    runs, passes = (sum(getattr(stage, key) for stage in stages) for key in ("runs", "passes"))
    return Workload(stage=name, runs=runs, passes=passes)


def pass_seconds(model: Model, task: Task, *, batch_size: int | None = None) -> float:
    """Seconds of a pass over one example here: of the model or of a circuit, whichever takes longer.

    A circuit of a tenth of the edges is timed with all that its run needs, so the figure is rather high.
    """
    some = task.subset(range(min(task.n, TIMED_EXAMPLES)))
    circuit = Circuit.random(model.graph, max(1, model.graph.n_edges // 10), seed=0)
    runs = (
        lambda: run_model(model, some, batch_size=batch_size, check=False),
        lambda: run_circuit(model, some, circuit, batch_size=batch_size, check=False),
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


def weight_bytes(model: Model) -> int:
    """Memory of the weights."""
    return sum(weight.nbytes for weight in model.module.parameters())


def run_bytes(model: Model, task: Task, *, batch_size: int) -> int:
    """Memory of a run of a circuit on a batch with the weights, roughly."""
    residual = model.d_model * model.bind(task).length  # numbers of one example
    return weight_bytes(model) + batch_size * 24 * 4 * residual
