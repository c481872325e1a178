"""A batch of images on a device, as a model reads it."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import InputError
from assay.objectives import ObjectiveBatch
from assay.tasks.task import map_tensors


NO_LABELS = (
    "the images have no labels, but this objective or metric needs them; give ImageTask(labels=...), or use "
    "objective='kl', 'js' or 'pseudo_margin', which need none"
)


class OfClasses:
    """What objectives ask of images: the label is the answer, foils are what it is compared with."""

    labels: Int[Tensor, " n"] | None
    foils: Int[Tensor, "n n_foils"] | None

    @property
    def answers(self) -> Int[Tensor, "n 1"]:
        """The right class of each image.

        Raises:
            InputError: If the labels are unknown.
        """
        if self.labels is None:
            raise InputError(NO_LABELS)
        return self.labels[:, None]

    @property
    def wrong(self) -> Int[Tensor, "n n_foils"] | None:
        """The classes the right one is compared with."""
        return self.foils


# Inherits the protocol, since a runtime check by attributes would ask images without labels for `answers`.
@dataclass(frozen=True, kw_only=True, eq=False)
class ImageBatch(OfClasses, ObjectiveBatch):
    """Some rows of an image task, as a model pass takes them.

    Attributes:
        images: Normalised images `[batch, 3, height, width]`.
        counterparts: Their counterparts, same shape; None if the task has none.
        labels: Class of each image `[batch]`; None if unknown.
        foils: Classes to compare with `[batch, n_foils]`; None if the task has none.
        indices: Row numbers in the task.
        ids: Number of each image in its data set; weights of resamples follow it.
        lengths: Positions a model makes of each image `[batch]`; 0 before the task is bound to one.
        pinned: Whether the images lie in pinned memory, which a GPU fetches while other work goes on.
    """

    images: Float[Tensor, "batch 3 h w"]
    counterparts: Float[Tensor, "batch 3 h w"] | None
    labels: Int[Tensor, " batch"] | None
    foils: Int[Tensor, "batch n_foils"] | None
    indices: Int[Tensor, " batch"]
    ids: Int[Tensor, " batch"]
    lengths: Int[Tensor, " batch"]
    pinned: bool = False

    @property
    def clean(self) -> Float[Tensor, "batch 3 h w"]:
        """What a clean pass reads: the images."""
        return self.images

    @property
    def corrupted(self) -> Float[Tensor, "batch 3 h w"]:
        """What a corrupted pass reads: the counterparts.

        Raises:
            InputError: If the images have none.
        """
        if self.counterparts is None:
            raise InputError(
                "the images have no counterparts for ablated activations; give ImageTask(corrupted=...), or "
                "use ablation='mean-positional', which needs none"
            )
        return self.counterparts

    @property
    def width(self) -> int:
        """Positions a model makes of an image."""
        return int(self.lengths[0])

    @property
    def positions(self) -> Int[Tensor, " batch"]:
        """The position whose stream is read: the first, where models keep their CLS token."""
        return torch.zeros_like(self.lengths)

    def bound(self, n_tokens: int) -> "ImageBatch":
        """The same images, cut into `n_tokens` positions by some model (`Model.n_tokens`)."""
        return replace(self, lengths=torch.full_like(self.lengths, n_tokens))

    def to(self, device: torch.device | str) -> "ImageBatch":
        """The same batch with every tensor on `device`."""
        return map_tensors(self, lambda tensor: tensor.to(device, non_blocking=self.pinned))
