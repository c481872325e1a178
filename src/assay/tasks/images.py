"""`ImageTask`: images as a model is given them, with corrupted counterparts, labels and facts about each."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import InputError, NonFiniteError, ShapeError
from assay.tasks.image_batch import ImageBatch
from assay.tasks.image_rows import ImageRows, check_batch_size, digest_of


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ImageTask(ImageRows):
    """Images of one domain as a model reads them, with or without counterparts and labels.

    Args:
        images: Normalised images `[N, 3, H, W]`, floating point.
        corrupted: Counterpart of each image, same shape, for patching and resample ablation; None if the task
            has none, as the mean ablations need none.
        others: As of `ImageRows`: labels, foils, ids, domain, fields, classes, name, objective, ablation,
            config.

    Raises:
        InputError: If there is no image, a label has no class, an id is negative.
        ShapeError: If shapes or number types do not fit together.
        NonFiniteError: If an image holds NaN or an infinite value; the first such image is named.

    Example:
        >>> task = ImageTask(images=torch.zeros(4, 3, 32, 32), labels=torch.tensor([0, 1, 1, 0]))
        >>> task.n, task.image_size, task.ids.tolist()
        (4, (32, 32), [0, 1, 2, 3])
    """

    per_row = (*ImageRows.per_row, "images", "corrupted")

    images: Float[Tensor, "n 3 h w"]
    corrupted: Float[Tensor, "n 3 h w"] | None = None

    def __post_init__(self) -> None:
        for name in ("images", "corrupted"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _floats(name, value))
        _check_images(self)
        self._check_rows()
        _check_finite(self)

    @property
    def n(self) -> int:
        """Number of images."""
        return len(self.images)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.images.shape[2], self.images.shape[3]

    @cached_property
    def data_hash(self) -> str:
        """See `ImageRows.data_hash`."""
        return self._hash_of(self.digests, map(digest_of, () if self.corrupted is None else self.corrupted))

    @property
    def digests(self) -> list[bytes]:
        """See `ImageRows.digests`."""
        return list(map(digest_of, self.images))

    def with_donors(self, rows: Int[Tensor, " n"]) -> "ImageTask":
        """The same images with, as counterparts, the images of the given rows."""
        return replace(self, corrupted=self.images[rows]).bound(self._n_tokens)

    def paired(self, pairs: Int[Tensor, "n_pairs 2"]) -> "ImageTask":
        """One row per pair: the image of the first row number with the counterpart of the second.

        Raises:
            InputError: If the images have no counterparts.
        """
        if self.corrupted is None:
            raise InputError(
                "pairs choose counterparts, but the images have none; give ImageTask(corrupted=...)"
            )
        rows = self.subset(pairs[:, 0])
        return replace(rows, corrupted=self.corrupted[pairs[:, 1]]).bound(self._n_tokens)

    def batches(self, batch_size: int) -> Iterator[ImageBatch]:
        """The images in order, `batch_size` at a time (the last batch may be smaller)."""
        check_batch_size(batch_size)
        for rows in torch.arange(self.n).split(batch_size):
            counterparts = None if self.corrupted is None else self.corrupted[rows]
            yield self._batch(rows, self.images[rows], counterparts)

    def stand_in(self, n: int) -> "ImageTask":
        """As many images, to predict the memory of a pass: the first ones."""
        return self.subset(range(n))


def _floats(name: str, value: Any) -> Tensor:
    """A floating-point tensor on the CPU, at least 32 bits wide."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ShapeError(
            f"{name} is {came}; give normalised images as a floating-point tensor [N, 3, H, W], e.g. "
            "ImageSet(pixels=...).task(transform)"
        )
    return value.detach().to("cpu", torch.float64 if value.dtype == torch.float64 else torch.float32)


def _check_images(task: ImageTask) -> None:
    shape = tuple(task.images.shape)
    if len(shape) != 4 or shape[1] != 3:
        last = len(shape) == 4 and shape[3] == 3
        hint = "move the channels first: images.permute(0, 3, 1, 2)" if last else "give RGB, channels second"
        raise ShapeError(f"images has shape {shape}; expected [N, 3, H, W]: {hint}")
    if task.images.numel() == 0:
        raise InputError(f"the task is empty: images has shape {shape}; give at least one image")
    if task.corrupted is not None and task.corrupted.shape != task.images.shape:
        raise ShapeError(
            f"images has shape {shape}, but corrupted {tuple(task.corrupted.shape)}; every image needs a "
            "counterpart of its size"
        )
    if task.corrupted is not None and task.corrupted.dtype != task.images.dtype:
        object.__setattr__(task, "corrupted", task.corrupted.to(task.images.dtype))


def _check_finite(task: ImageTask) -> None:
    for name in ("images", "corrupted"):
        value = getattr(task, name)
        if value is None:
            continue
        bad = ~torch.isfinite(value).flatten(1).all(1)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise NonFiniteError(
                f"{name} holds NaN or infinite values in {int(bad.sum())} of {task.n} images, first in row "
                f"{row} (id {int(task.ids[row])}); drop or repair them"
            )
