"""The reference of a monitor: known images, and the circuit on some of them, kept in a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from assay.analyses.generalization.inspection import inspect_model
from assay.analyses.generalization.monitor import discover_reference, probabilities
from assay.circuits import EdgeScores, load_scores
from assay.circuits.files import read_arrays, write_arrays
from assay.core.errors import InputError
from assay.core.random import stream
from assay.models import Model
from assay.pipeline.monitor_directory import OUTPUTS, READINGS, REFERENCE
from assay.pipeline.monitor_plan import METHOD, QUADRATURE, STEPS, MonitorPlan
from assay.pipeline.stage import Progress
from assay.pipeline.targets import FIRST_KNOWN
from assay.tasks import EvalTransform, ImageTask, find_domains, one_domain


def known_inputs(plan: MonitorPlan, source: str, model: Model, transform: EvalTransform) -> ImageTask:
    """The images of a source in distribution, as the model reads; they are decoded whenever they are read.

    Raises:
        InputError: If it holds several domains.
        FileFormatError: If it cannot be read.
    """
    domains = find_domains(source, seed=plan.seed, start=FIRST_KNOWN, drawn=plan.n_drawn)
    images = one_domain(domains, source).for_model(model, transform)
    return images.readable() if plan.skip_bad else images


class Reference(NamedTuple):
    """A reference circuit.

    Attributes:
        scores: The circuit.
        images: Those that it rests on; None where the circuit came from a file.
        pool: Further images in distribution; None where there are none.
    """

    scores: EdgeScores
    images: ImageTask | None
    pool: ImageTask | None


def reference_of(
    model: Model, plan: MonitorPlan, transform: EvalTransform, out: Path, progress: Progress
) -> Reference:
    """The reference circuit, read or discovered, and images in distribution."""
    pool = None if plan.known is None else known_inputs(plan, plan.known, model, transform)
    if plan.given:
        reference = load_scores(plan.reference, graph=model.graph)
        _check_steps(plan, reference)
        return Reference(reference, None, pool)
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
    task = known if size > plan.window else known.held()
    steps = STEPS if plan.steps is None else plan.steps
    settings = {
        "method": METHOD,
        "objective": task.objective,
        "ablation": task.ablation,
        "seed": plan.seed,
    }
    stored = out / REFERENCE
    if stored.is_file():
        reference = load_scores(stored, graph=model.graph)
        record = reference.provenance
        same = {name: record.get(name) for name in settings} == settings
        same &= record.get("steps") in (steps, None) and record.get("quadrature") in (QUADRATURE, None)
        if same and _of_these(record, model, task, plan.window if size > plan.window else size):
            return Reference(reference, known, pool)
    progress("reference", 0, 1)
    reference = discover_reference(
        model, task, METHOD, batch=plan.window, steps=steps, quadrature=QUADRATURE, seed=plan.seed
    )
    out.mkdir(parents=True, exist_ok=True)
    if not (out / READINGS).exists():
        reference.save(stored)
    progress("reference", 1, 1)
    return Reference(reference, known, pool)


def known_outputs(model: Model, images: ImageTask, out: Path) -> Float64[np.ndarray, "n c"]:
    """Softmax outputs on known images, kept in the directory of a monitor.

    Raises:
        OutputError: If they cannot be written.
        FileFormatError: If what was kept is damaged.
    """
    path, of = out / OUTPUTS, {"model": model.weight_hash, "images": images.source_hash}
    if path.is_file():
        arrays, metadata = read_arrays(path, "known-outputs")
        if {name: metadata.get(name) for name in of} == of:
            return np.asarray(arrays["probabilities"].numpy())
    found = probabilities(inspect_model(model, images, ("logits",)))
    out.mkdir(parents=True, exist_ok=True)
    write_arrays(path, {"probabilities": torch.from_numpy(found)}, {"kind": "known-outputs", **of})
    return found


def _of_these(record: Mapping[str, Any], model: Model, task: ImageTask, batch: int) -> bool:
    """Whether a kept reference is that of a model and of these images, in batches of that size."""
    found = (
        (record.get("model") or {}).get("weight_hash"),
        (record.get("task") or {}).get("data_hash"),
        record.get("batch", task.n),
    )
    return not record.get("options") and found == (model.weight_hash, task.data_hash, batch)


def _check_steps(plan: MonitorPlan, scores: EdgeScores) -> None:
    """Every batch is measured as the file's circuit was; other steps are refused."""
    recorded = scores.provenance.get("steps")
    if plan.steps is not None and recorded is not None and plan.steps != recorded:
        raise InputError(
            f"steps is {plan.steps}, but the circuit of {plan.reference} was discovered with {recorded}, "
            "which must hold for every batch; remove steps, or give the images of the reference"
        )
