"""`assay measure`: metrics of a circuit on tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from assay.app.cli.parsing import CIRCUITS, command
from assay.app.delivery import (
    Saving,
    check_outputs,
    echo_result,
    json_file,
    print_pages,
    progress_on_stderr,
    remark,
)
from assay.app.options import INPUTS, at_least, call, own_group
from assay.app.settings import Ablating, JudgedCircuit, OnAnyImages, Prompted, RunningModels, Sizing


if TYPE_CHECKING:
    from assay.circuits import Circuit
    from assay.models import Model
    from assay.pipeline.prompts import DrawnPrompts
    from assay.tasks import Task

METRICS = own_group("Metrics")


@dataclass(frozen=True, kw_only=True)
class MeasureSettings(Saving, Ablating, RunningModels, Sizing, JudgedCircuit, OnAnyImages, Prompted):
    """What is measured of which circuit, on what.

    Attributes:
        task: Task or JSONL file; repeat for several.
        metric: Key or code of a metric; repeat for several.
        n_random: Random circuits of equal size to compare with.
    """

    task: Annotated[tuple[str, ...], INPUTS] = ("ioi",)
    metric: Annotated[tuple[str, ...], METRICS] = ("faithfulness-norm",)
    n_random: Annotated[int, METRICS, at_least(0)] = 0


@command(CIRCUITS, example="assay measure --circuit circuit.safetensors --task ioi --metric kl")
def measure(settings: MeasureSettings) -> None:
    """Measure a circuit on tasks by one or more metrics."""
    from assay.pipeline.stage import check_options, measure_stored

    for task in settings.task:
        call(settings, check_options, task=task, metrics=settings.metric)
    check_outputs(settings)
    model = settings.load_model()
    circuit = settings.edge_circuit(model.graph)
    inputs = _inputs(settings, model, circuit)
    store = settings.open_store()
    records = []
    with progress_on_stderr() as progress:
        for prompts in inputs:
            runs = settings.runs(model, prompts, circuit, store=store, progress=progress)
            for place, key in enumerate(settings.metric):
                progress("measure", place, len(settings.metric))
                record = measure_stored(runs, key, random_circuits=settings.n_random, store=store)
                records.append({"task": runs.task.name, "n_edges": runs.circuit.n_edges, **record})
            progress("measure", len(settings.metric), len(settings.metric))
    files = {"written": json_file(settings.path_of(settings.save, "measurements.json"), records)}
    settings.deliver(records, files, show=lambda: _show(records))


def _inputs(
    settings: MeasureSettings, model: "Model", circuit: "Circuit | None"
) -> "Sequence[Task | DrawnPrompts]":
    """The inputs of each task."""
    from assay.pipeline.prompts import draw_prompts, prompts_to_measure, read_inputs

    if settings.images is not None:
        return [call(settings, read_inputs, "", settings.images, model)]
    if circuit is not None:
        return [call(settings, prompts_to_measure, model, task, circuit=circuit) for task in settings.task]
    return [call(settings, draw_prompts, model, task) for task in settings.task]


def _show(records: list[dict[str, Any]]) -> None:
    from assay.metrics.page import measurements_page

    print_pages(measurements_page(records))
    for text in dict.fromkeys(text for record in records for text in record["notes"]):
        remark(text)
    for record in records:
        echo_result(f"{record['hash']}  {record['name']}")
