"""Images as training and scoring take them: held in memory, or decoded by workers as they are needed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from assay.core.errors import AssayError
from assay.core.random import stream
from assay.tasks import EvalTransform, ImageSet, ImageStream
from assay.tasks.image_decoding import decoded, loaded_by
from assay.zoo.recipe import Recipe


Images = ImageSet | ImageStream
"""8-bit images in memory, after resizing; or images in their source, each with its original size."""


def size_of(images: Images) -> tuple[int, int]:
    """Height and width that a model is given."""
    if isinstance(images, ImageStream):
        return images.image_size
    return images.pixels.shape[1], images.pixels.shape[2]


def labels_of(images: Images) -> Int64[np.ndarray, " n"] | None:
    """Class of each image; None if unknown."""
    return None if images.labels is None else np.asarray(images.labels, dtype=np.int64)


def scored_batches(
    images: Images, transform: EvalTransform, batch_size: int
) -> Iterator[Float[Tensor, "batch 3 h w"]]:
    """The images in order under the transform of evaluation, `batch_size` at a time."""
    if isinstance(images, ImageStream):
        for batch in images.with_transform(transform).batches(batch_size):
            yield batch.images
        return
    for start in range(0, images.n, batch_size):
        yield transform.normalised(images.pixels[start : start + batch_size])


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


class TrainingBatches(Dataset[Any]):
    """The batches of a training by the number of the step: the same in any process, in any order.

    Images in memory are augmented as they are. Those of a stream are cut from the original: a crop is resized
    once, from as many pixels as there are.

    Args:
        images: Labelled.
        recipe: Batch size, augmentation, seed.
        transform: Size and normalisation.
    """

    def __init__(self, images: Images, recipe: Recipe, transform: EvalTransform) -> None:
        self._images, self._recipe, self._transform = images, recipe, transform
        self._labels = labels_of(images)
        self._size = size_of(images)

    def __getitem__(self, step: int) -> "tuple[Tensor, Tensor] | AssayError":
        """Images and labels of the batch of a step, or why there is none."""
        assert self._labels is not None
        rows = batch_rows(len(self._labels), self._recipe.batch_size, step, seed=self._recipe.seed)
        rng = stream(self._recipe.seed, f"zoo/augment/{step}")
        try:
            pixels = self._pixels(rows, rng)
        except AssayError as error:  # as it is, rather than as a text with a worker's traceback
            return error
        return self._transform.normalised(pixels), torch.from_numpy(self._labels[rows])

    def _pixels(self, rows: Int64[np.ndarray, " batch"], rng: np.random.Generator) -> np.ndarray:
        augmentation, images = self._recipe.augmentation, self._images
        if isinstance(images, ImageSet):
            return augmentation.apply(images.pixels[rows], rng)
        pictures, places = images.pictures, images.rows[torch.from_numpy(rows)].tolist()
        keep = self._transform if augmentation.changes_nothing else None
        pixels = [decoded(pictures.name(place), pictures.content(place), keep) for place in places]
        if keep is not None:
            return np.stack(pixels)
        originals = [Image.fromarray(each) for each in pixels]
        return augmentation.cut(originals, rng, size=self._size, resample=self._transform.resample)

    def from_step(self, first: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of each step from `first` to the last, on the device.

        Raises:
            FileFormatError: If an image cannot be decoded.
            WorkerError: If a worker process ended without being asked to.
        """
        workers = 0
        if isinstance(self._images, ImageStream):
            most = self._images.pictures.most_workers
            workers = self._images.workers if most is None else min(self._images.workers, most)
        on_gpu = torch.device(device).type == "cuda"
        loader: DataLoader[Any] = DataLoader(
            self,
            batch_size=None,
            sampler=range(first, self._recipe.steps),
            num_workers=workers,
            pin_memory=on_gpu,
            generator=torch.Generator(),  # the global one stays as it is
        )
        for images, labels in loaded_by(loader):
            yield images.to(device, non_blocking=on_gpu), labels.to(device, non_blocking=on_gpu)
