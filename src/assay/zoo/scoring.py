"""Images as a zoo uses them: divided, compared, fed to training batch by batch, scored."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from assay.core.errors import InputError, NonFiniteError
from assay.core.random import stream
from assay.tasks import EvalTransform, ImageTask
from assay.tasks.image_reading import ahead
from assay.zoo.grid import Recipe
from assay.zoo.models import module_logits


EVALUATION_BATCH = 256


def labels_of(images: ImageTask) -> Int64[np.ndarray, " n"]:
    """Class of each image.

    Raises:
        InputError: If it is unknown.
    """
    if images.labels is None:
        raise InputError(f"the images of {images.domain!r} have no labels, but training and scores need them")
    return np.asarray(images.labels, dtype=np.int64)


def split(images: ImageTask, share: float, *, seed: int = 0) -> tuple[ImageTask, ImageTask]:
    """Images to train on and images to validate on, drawn at random within each class.

    Args:
        images: Labelled images of one domain.
        share: Share of every class that is held out, rounded, at least one image; between 0 and 1.
        seed: Seed of the stream `zoo/split`.

    Raises:
        InputError: If labels are missing, the share is out of range, or a class has a single image.
    """
    labels = labels_of(images)
    if not 0 < share < 1:
        raise InputError(f"the held-out share is {share}; expected a fraction between 0 and 1")
    rng = stream(seed, "zoo/split")
    held = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if len(rows) < 2:
            raise InputError(f"class {label} of {images.domain!r} has only one image; add more or remove it")
        held.append(rows[: max(1, min(len(rows) - 1, round(share * len(rows))))])
    held_out = np.sort(np.concatenate(held))
    kept = np.setdiff1d(np.arange(images.n), held_out)
    return images.subset(kept), images.subset(held_out)


def shared(training: ImageTask, validation: ImageTask) -> list[int]:
    """Numbers of the validation images that are trained on; of images in files, those of one source."""
    theirs = validation.ids.tolist()
    if training.pixels is not None and validation.pixels is not None:
        mine = dict(zip(training.ids.tolist(), training.pixels, strict=True))
        pairs = zip(theirs, validation.pixels, strict=True)
        return [number for number, pixels in pairs if number in mine and np.array_equal(mine[number], pixels)]
    if training.source is None or training.source is not validation.source:
        return []
    both = np.isin(validation.rows, training.rows)
    return [number for number, hit in zip(theirs, both, strict=True) if hit]


def transform_for(images: ImageTask, stored: EvalTransform | None) -> EvalTransform:
    """How a model reads images: as its checkpoint says, else resized and scaled to [-1, 1].

    Images in memory have their size: the arithmetic of a checkpoint holds for them, its geometry does not.
    """
    if stored is not None and images.source is not None:
        return stored
    return replace(stored or EvalTransform(), resize=images.image_size, crop=None, fit="squash")


# ------------------------------------------------------------------------------------------------- training


def batch_rows(n: int, batch_size: int, step: int, *, seed: int) -> Int64[np.ndarray, " batch"]:
    """Rows of the training set in the batch of a step; every epoch has its own order, its rest is left out.

    Args:
        n: Images of the training set.
        batch_size: Images per step; `n` if that is smaller.
        step: Number of the step, from 0.
        seed: Seed of the streams `zoo/epoch/NUMBER`.
    """
    size = min(batch_size, n)
    epoch, place = divmod(step, n // size)
    order = stream(seed, f"zoo/epoch/{epoch}").permutation(n)
    return order[place * size : (place + 1) * size]


class TrainingBatches:
    """The batches of a training by the number of the step: the same in any thread, in any order.

    Args:
        images: Labelled.
        recipe: Batch size, augmentation, seed.
        transform: Size and normalisation.
    """

    def __init__(self, images: ImageTask, recipe: Recipe, transform: EvalTransform) -> None:
        self._images, self._recipe, self._transform = images, recipe, transform
        self._labels = labels_of(images)

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Images and labels of the batch of a step."""
        rows = batch_rows(len(self._labels), self._recipe.batch_size, step, seed=self._recipe.seed)
        rng = stream(self._recipe.seed, f"zoo/augment/{step}")
        pixels = self._recipe.augmentation.apply(self._pixels(rows), rng)
        return self._transform.normalised(pixels), torch.from_numpy(self._labels[rows])

    def _pixels(self, rows: Int64[np.ndarray, " batch"]) -> np.ndarray:
        images = self._images
        if images.pixels is not None:
            held: np.ndarray = images.pixels[rows]
            return held
        assert images.source is not None  # normalised images take no transform
        places = images.rows[torch.from_numpy(rows)].tolist()
        return np.stack([images.source.decoded(at, self._transform) for at in places])

    def from_step(self, first: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of each step from `first` to the last, on the device.

        Raises:
            FileFormatError: If an image cannot be decoded.
        """
        on_gpu = torch.device(device).type == "cuda"

        def batch(step: int) -> tuple[Tensor, Tensor]:
            images, labels = self[step]
            return (images.pin_memory(), labels.pin_memory()) if on_gpu else (images, labels)

        steps = range(first, self._recipe.steps)
        for images, labels in ahead(batch, steps, self._images.decoding_workers):
            yield images.to(device, non_blocking=on_gpu), labels.to(device, non_blocking=on_gpu)


# -------------------------------------------------------------------------------------------------- scoring


def score_of(
    module: nn.Module,
    images: ImageTask,
    transform: EvalTransform,
    *,
    score: str = "accuracy",
    device: str | None = None,
) -> tuple[float, float]:
    """Score and mean cross entropy (nats) of a classifier on labelled images.

    Args:
        module: In evaluation mode.
        images: Labelled; in memory, of the size that the model reads.
        transform: Normalisation of the images, and geometry of those in files.
        score: `accuracy`, or `macro-f1`: the mean F1 over the classes that occur, as in WILDS.
        device: Where the module is. Default: the CPU.
    """
    from sklearn.metrics import f1_score

    labels = labels_of(images)
    dtype = next((each.dtype for each in module.parameters()), torch.float32)
    with torch.inference_mode():
        answers = [
            module_logits(module, batch.images.to(device or "cpu", dtype)).float().cpu()
            for batch in images.with_transform(transform).batches(EVALUATION_BATCH)
        ]
    logits = torch.cat(answers)
    loss = float(cross_entropy(logits.double(), torch.from_numpy(labels)))
    if not np.isfinite(loss):
        raise NonFiniteError(f"logits on {images.domain!r} are NaN or infinite; the model has diverged")
    predicted = logits.argmax(dim=1).numpy()
    if score == "accuracy":
        return float((predicted == labels).mean()), loss
    present = np.unique(labels)
    return float(f1_score(labels, predicted, labels=present, average="macro", zero_division=0)), loss
