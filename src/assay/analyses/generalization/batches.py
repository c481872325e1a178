"""Batches as a monitor treats them: circuits found like the reference's, baselines beside them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from assay.analyses.generalization import baselines
from assay.analyses.generalization.shift import OPTIONS, SETTINGS, check_comparable, settings_of
from assay.circuits import EdgeScores
from assay.core.errors import GraphMismatchError, InputError, NonFiniteError
from assay.discovery.edges import EdgeMethod, discover, get_method
from assay.execution.batches import choose_batch_size
from assay.models import Model
from assay.tasks import EvalTransform, ImageBatch, ImageInputs, ImageSet, ImageStream, ImageTask
from assay.tasks.image_stream import DecodedBatch


Images = ImageTask | ImageStream | ImageSet | Tensor
HELD = 1 << 28  # bytes of pixels, at most, that are held


def image_task(
    model: Model, images: Images, transform: EvalTransform | None = None
) -> ImageTask | ImageStream:
    """Images in any form as the model reads them.

    Args:
        model: A vision model.
        images: A task or a stream as it is; 8-bit images, normalised by the model's own transform; or a
            tensor of normalised images `[N, 3, H, W]`.
        transform: Instead of the model's own.
    """
    if isinstance(images, ImageTask | ImageStream):
        return images
    if isinstance(images, ImageSet):
        return images.task(transform or EvalTransform.for_model(model))
    return ImageTask(images=images)


def batch_task(model: Model, images: Images, transform: EvalTransform | None = None) -> ImageTask:
    """A batch as `image_task` gives it; images of a stream then lie in memory."""
    task = image_task(model, images, transform)
    return task.loaded() if isinstance(task, ImageStream) else task


def decoded_once(images: ImageSet | ImageStream) -> ImageSet | ImageStream:
    """Images that are read many times: those of a stream are decoded now, up to 256 MiB of pixels."""
    if not isinstance(images, ImageStream) or 3 * images.n * math.prod(images.image_size) > HELD:
        return images
    return replace(images.held(), workers=images.workers)  # which corrupt them


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
    task: ImageTask | ImageStream,
    reference_scores: EdgeScores,
    *,
    batch_size: int | None = None,
) -> EdgeScores:
    """The circuit of new images, found with the settings of the reference: one discovery.

    Args:
        model: The model of the reference.
        task: The images, two or more under a mean ablation. Those of a stream are decoded once, and held in
            8 bits meanwhile.
        reference_scores: What gives the settings.
        batch_size: Images per pass.

    Raises:
        InputError, NonFiniteError: As `discover`.
    """
    settings = check_reference(model, reference_scores)
    task = task.held() if isinstance(task, ImageStream) else task
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Outputs:
    """What the model gives for some images, from one forward pass.

    Attributes:
        logits: `[n, n_classes]`, float64.
        features: What the classifier reads, `[n, n_features]`.
    """

    logits: Float64[Tensor, "n c"]
    features: Float64[np.ndarray, "n f"]

    def of(self, rows: Int64[np.ndarray, " rows"]) -> "Outputs":
        """Those of some of the images."""
        return Outputs(logits=self.logits[torch.from_numpy(rows)], features=self.features[rows])


def outputs_of(model: Model, task: ImageTask | ImageStream, *, batch_size: int | None = None) -> Outputs:
    """Run the model on images.

    Raises:
        NonFiniteError: If a logit is NaN or infinite; the message names the image.
    """
    places = None
    if isinstance(task, ImageStream):
        task, places = task.ascending()
    bound = model.bind(task)
    size = choose_batch_size(model, bound, asked=batch_size)
    outputs = _joined([batch_outputs(model, bound, batch) for batch in bound.batches(size)])
    return outputs if places is None else outputs.of(places.numpy())


def normalised(task: ImageInputs, some: DecodedBatch | ImageBatch) -> ImageBatch:
    """A batch as a task reads it, from what a stream of the same rows and geometry decoded."""
    if isinstance(some, DecodedBatch):
        assert isinstance(task, ImageStream)  # only streams decode
        return task.normalised(some)
    return some


def batch_outputs(model: Model, task: ImageInputs, batch: ImageBatch) -> Outputs:
    """Run the model on one batch of the images of a task.

    Raises:
        NonFiniteError: As `outputs_of`.
    """
    vision = model.vision
    assert vision is not None  # `bind` refuses images for any other model
    with torch.no_grad():
        hidden = model.forward(batch.images.to(model.device))
        logits = vision.logits(model.module, hidden).double().cpu()
        features = vision.features(model.module, hidden).double().cpu()
    bad = (~torch.isfinite(logits)).any(1).nonzero().flatten()
    if len(bad):
        raise NonFiniteError(
            f"{model.id} gives NaN or infinite logits for image {int(batch.ids[bad[0]])} of "
            f"{task.domain or task.name!r}; check its weights"
        )
    return Outputs(logits=logits, features=features.numpy())


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledOutputs:
    """What the model gives for the images of a domain, and more of a sample of them.

    Attributes:
        predictions: Class of each image, `[n]`.
        outputs: Of the sample.
        sample: Its images, those of a stream decoded already and held in 8 bits.
    """

    predictions: Int64[np.ndarray, " n"]
    outputs: Outputs
    sample: ImageTask | ImageStream


def sampled_outputs(
    model: Model,
    task: ImageTask | ImageStream,
    rows: Int64[np.ndarray, " rows"],
    *,
    batch_size: int | None = None,
) -> SampledOutputs:
    """Run the model on images and keep predictions of all, outputs and pixels of some: each is read once.

    Args:
        model: An image classifier.
        task: The images.
        rows: Those to keep more of, in ascending order.
        batch_size: Images per pass.

    Raises:
        NonFiniteError: As `outputs_of`.
    """
    ordered, places = task.ascending() if isinstance(task, ImageStream) else (task, torch.arange(task.n))
    bound = model.bind(ordered)
    size = choose_batch_size(model, bound, asked=batch_size)
    chosen = torch.zeros(task.n, dtype=torch.bool)
    chosen[places[rows]] = True
    predictions, outputs, pixels = [], [], []
    for read in bound.decoded(size) if isinstance(bound, ImageStream) else bound.batches(size):
        found = batch_outputs(model, bound, normalised(bound, read))
        kept = chosen[read.indices].nonzero().flatten()
        predictions.append(found.logits.numpy().argmax(1))
        outputs.append(found.of(kept.numpy()))
        if isinstance(read, DecodedBatch):
            pixels.append(read.pixels[kept])
    back = places[rows].argsort().argsort()  # from the order of reading to that of the rows
    sample = task.subset(rows.tolist())
    if isinstance(sample, ImageStream):
        sample = sample.with_pixels(torch.cat(pixels)[back])
    return SampledOutputs(
        predictions=np.concatenate(predictions)[places.numpy()],
        outputs=_joined(outputs).of(back.numpy()),
        sample=sample,
    )


def _joined(parts: Sequence[Outputs]) -> Outputs:
    return Outputs(
        logits=torch.cat([each.logits for each in parts]),
        features=np.concatenate([each.features for each in parts]),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """Outputs of the model on labelled images in distribution: what `atc` and others learn from.

    Attributes:
        outputs: Of n images.
        labels: `[n]`.
    """

    outputs: Outputs
    labels: Int64[np.ndarray, " n"]


def labelled_outputs(
    model: Model, task: ImageTask | ImageStream, *, batch_size: int | None = None
) -> Labelled:
    """Run the model on labelled images.

    Raises:
        InputError: If the images have no labels.
    """
    labels = labels_of(task)
    return Labelled(outputs=outputs_of(model, task, batch_size=batch_size), labels=labels)


def labels_of(task: ImageTask | ImageStream) -> Int64[np.ndarray, " n"]:
    """The labels of a task.

    Raises:
        InputError: If it has none.
    """
    if task.labels is None:
        raise InputError(
            f"the images of {task.domain or task.name!r} have no labels, but performance and ATC need them; "
            "give labelled images"
        )
    return np.asarray(task.labels.numpy(), dtype=np.int64)


# What the page and the table call them; all rise with performance. From `atc` on, with known images.
BASELINES: Mapping[str, str] = {
    "ac": "average confidence",
    "ane": "average negative entropy",
    "atc": "average thresholded confidence",
    "doc": "difference of confidences",
    "cot": "transport to known label shares",
}


def label_free(outputs: Outputs, known: Labelled | None) -> dict[str, float]:
    """The baselines that need no labels of these images, under the keys of `BASELINES`.

    Args:
        outputs: On the new images.
        known: Outputs on labelled images in distribution; without them `ac` and `ane` alone.
    """
    logits = outputs.logits
    estimates = {
        "ac": baselines.average_confidence(logits),
        "ane": baselines.average_negative_entropy(logits),
    }
    if known is None:
        return estimates
    here, labels = known.outputs, known.labels
    return estimates | {
        "atc": baselines.atc(here.logits, labels, logits),
        "doc": baselines.doc(here.logits, labels, logits),
        "cot": baselines.cot(labels, logits),
    }
