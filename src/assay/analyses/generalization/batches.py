"""Batches as a monitor treats them: circuits found like the reference's, answers on labelled images."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from assay.analyses.generalization.inspection import Inspection, InspectionSettings, inspect_model
from assay.analyses.generalization.shift import OPTIONS, SETTINGS, check_comparable, settings_of
from assay.analyses.generalization.tables import label_array
from assay.circuits import EdgeScores
from assay.core.errors import GraphMismatchError, InputError
from assay.discovery.edges import EdgeMethod, discover, get_method
from assay.models import Model
from assay.tasks import EvalTransform, ImageTask


Images = ImageTask | Tensor
HELD = 1 << 28  # bytes of pixels, at most, that are held


def image_task(model: Model, images: Images, transform: EvalTransform | None = None) -> ImageTask:
    """Images in any form as the model reads them.

    Args:
        model: A vision model.
        images: A task, or a tensor of normalised images `[N, 3, H, W]`.
        transform: Instead of the model's own, for images that have none.
    """
    if isinstance(images, Tensor):
        return ImageTask(images=images)
    return images.for_model(model, transform if images.transform is None else None)


def decoded_once(images: ImageTask) -> ImageTask:
    """Images that are read many times: those in files are decoded now, up to 256 MiB of pixels."""
    return images if 3 * images.n * math.prod(images.image_size) > HELD else images.held()


def check_reference(model: Model, reference_scores: EdgeScores) -> Mapping[str, Any]:
    """The settings that a reference circuit was found with, which every further circuit must share.

    Args:
        model: The model to watch.
        reference_scores: Its circuit on known data, as `discover` returns it.

    Raises:
        GraphMismatchError: If the scores belong to another graph or to other weights.
        InputError: If their record does not say how they were found, or an option of their method cannot be
            set from it.
    """
    if model.graph != reference_scores.graph:
        raise GraphMismatchError(
            f"the reference circuit belongs to the graph {reference_scores.graph.describe()}, the model has "
            f"{model.graph.describe()}; discover the reference with this model"
        )
    record = reference_scores.provenance
    missing = [name for name in ("model", "seed", *SETTINGS) if name not in record]
    if missing:
        raise InputError(
            f"the record of the reference circuit lacks {', '.join(missing)}, so new circuits cannot be "
            "discovered in the same way; make it with assay.discover"
        )
    known, own = record["model"].get("weight_hash"), model.describe()["weight_hash"]
    if known != own:
        raise GraphMismatchError(
            f"the reference circuit belongs to a model with weights {known}, this one has {own}; discover "
            "the reference with this model"
        )
    settings = settings_of(reference_scores) | {"seed": record["seed"]}
    if not settings[OPTIONS]:
        del settings[OPTIONS]
    _method(settings)
    return settings


def _method(settings: Mapping[str, Any]) -> EdgeMethod:
    """The method of some settings, with its options."""
    options = settings.get(OPTIONS, {})
    for name, value in options.items():
        if isinstance(value, Mapping):  # scores or further settings, of which a record holds a digest
            raise InputError(
                f"the reference circuit used {name}= of {settings['method']}, which its record does not "
                "contain, so new circuits cannot be discovered in the same way; discover it without that "
                "option"
            )
    return get_method(settings["method"], **options)


def circuit_like(
    model: Model,
    task: ImageTask,
    reference_scores: EdgeScores,
    *,
    batch_size: int | None = None,
) -> EdgeScores:
    """The circuit of new images, found with the settings of the reference: one discovery.

    Args:
        model: The model of the reference.
        task: The images, two or more under a mean ablation. Those in files are decoded once, and held in
            8 bits meanwhile.
        reference_scores: What gives the settings.
        batch_size: Images per pass.

    Raises:
        InputError, NonFiniteError: As `discover`.
    """
    settings = check_reference(model, reference_scores)
    task = task.for_model(model).held()
    options: dict[str, Any] = {"objective": settings["objective"], "ablation": settings["ablation"]}
    if settings["steps"] is not None:
        options |= {"steps": settings["steps"], "quadrature": settings["quadrature"]}
    scores = discover(
        model,
        task,
        _method(settings),
        **options,
        batch_size=batch_size,
        seed=settings["seed"],
    )
    check_comparable(reference_scores, scores)
    return scores


READ = ("average-confidence", "negative-entropy", "atc", "doc", "cot")  # of every batch that is watched
FURTHER = ("energy", "rankme", "alpha-req")  # of every domain that is evaluated


def labelled_inspection(model: Model, task: ImageTask, *, batch_size: int | None = None) -> Inspection:
    """What a model answers on labelled images in distribution: `atc` and others learn from it.

    Raises:
        InputError: If the images have no labels, or one is outside the classes.
        NonFiniteError: If a logit is NaN or infinite.
    """
    if task.labels is None:
        raise InputError(
            f"the images of {task.domain or task.name!r} have no labels, but performance and ATC need them; "
            "give labelled images"
        )
    label_array(task.labels, model.n_classes)
    return inspect_model(model, task, settings=InspectionSettings(batch_size=batch_size))
