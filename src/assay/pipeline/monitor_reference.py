"""The reference of a monitor: known images, and the circuit on some of them, kept in a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.analyses.generalization.batches import batch_task
from assay.analyses.generalization.reference import discover_reference
from assay.circuits import EdgeScores, load_scores
from assay.core.errors import InputError
from assay.core.random import stream
from assay.models import Model
from assay.pipeline.image_stream import known_images
from assay.pipeline.monitor_directory import READINGS, REFERENCE
from assay.pipeline.monitor_plan import METHOD, QUADRATURE, STEPS, MonitorPlan
from assay.pipeline.stage import Progress
from assay.tasks import EvalTransform, ImageStream, ImageTask, ReadOptions


def known_inputs(plan: MonitorPlan, source: str, model: Model, transform: EvalTransform) -> ImageStream:
    """The images of a source in distribution, as the model reads.

    Raises:
        FileFormatError: If it cannot be read.
    """
    return known_images(
        source,
        transform,
        n=plan.n_drawn,
        classes=model.classes,
        options=ReadOptions(seed=plan.seed, skip_bad=plan.skip_bad),
    )


def reference_of(
    model: Model, plan: MonitorPlan, transform: EvalTransform, out: Path, progress: Progress
) -> tuple[EdgeScores, ImageStream | None]:
    """The reference circuit, and images in distribution that it does not rest on."""
    pool = None if plan.known is None else known_inputs(plan, plan.known, model, transform)
    if plan.given:
        reference = load_scores(plan.reference, graph=model.graph)
        _check_settings(plan, reference)
        return reference, pool
    if plan.known is not None and plan.known == plan.reference:
        raise InputError(
            f"known and reference images are both {plan.known}; remove known, and the images are split"
        )
    images = known_inputs(plan, plan.reference, model, transform)
    order = stream(plan.seed, "monitor/reference").permutation(images.n)
    size = plan.reference_size(images.n)
    if pool is None and images.n > size:
        pool = images.subset(order[size:].tolist())
    known = images.subset(order[:size].tolist())
    # The record of several windows names the files of a stream, that of a single one its pixels.
    task = known if size > plan.window else batch_task(model, known)
    method = plan.method or METHOD
    steps = STEPS if plan.steps is None else plan.steps
    quadrature = plan.quadrature or QUADRATURE
    settings = {
        "method": method,
        "objective": plan.objective or task.objective,
        "ablation": plan.ablation or task.ablation,
        "seed": plan.seed,
    }
    stored = out / REFERENCE
    if stored.is_file():
        reference = load_scores(stored, graph=model.graph)
        record = reference.provenance
        same = {name: record.get(name) for name in settings} == settings
        same &= record.get("steps") in (steps, None) and record.get("quadrature") in (quadrature, None)
        if same and _of_these(record, model, task, plan.window if size > plan.window else size):
            return reference, pool
    progress("reference", 0, 1)
    reference = discover_reference(
        model,
        task,
        method,
        batch=plan.window,
        objective=plan.objective,
        ablation=plan.ablation,
        steps=steps,
        quadrature=quadrature,
        batch_size=plan.batch_size,
        seed=plan.seed,
    )
    out.mkdir(parents=True, exist_ok=True)
    if not (out / READINGS).exists():
        reference.save(stored)
    progress("reference", 1, 1)
    return reference, pool


def _of_these(record: Mapping[str, Any], model: Model, task: ImageTask | ImageStream, batch: int) -> bool:
    """Whether a kept reference is that of a model and of these images, in batches of that size."""
    found = (
        (record.get("model") or {}).get("weight_hash"),
        (record.get("task") or {}).get("data_hash"),
        record.get("batch", task.n),
    )
    return not record.get("options") and found == (model.weight_hash, task.data_hash, batch)


def _check_settings(plan: MonitorPlan, scores: EdgeScores) -> None:
    """Every batch is measured as the file's circuit was; settings that ask for something else are refused."""
    for name in ("method", "objective", "ablation", "steps", "quadrature"):
        asked, recorded = getattr(plan, name), scores.provenance.get(name)
        if asked is not None and recorded is not None and asked != recorded:
            raise InputError(
                f"{name} is {asked}, but the circuit of {plan.reference} was discovered with {recorded}, "
                f"which must hold for every batch; remove {name}, or give the images of the reference"
            )
