"""Some rows of a task, as a model pass takes them: of prompts, of images."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import InputError
from assay.objectives import ObjectiveBatch


T = TypeVar("T")


def map_tensors(batch: T, change: Callable[[Tensor], Tensor]) -> T:
    """A batch (of any kind) with `change` applied to each of its tensors."""
    changed: Any = {name: change(value) for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return replace(batch, **changed)  # type: ignore[type-var]  # a dataclass instance, which T cannot say


@dataclass(frozen=True, kw_only=True, eq=False)
class PairBatch:
    """Some rows of a task, as a model pass takes them.

    Attributes:
        clean: Token ids `[batch, pos]`.
        corrupted: Token ids of the counterparts, same shape.
        answers: Right next tokens `[batch, n_answers]`, -1 where a row has fewer.
        wrong: Tokens to compare with `[batch, n_wrong]`, -1 where a row has fewer; None if there are none.
        lengths: Tokens of each prompt; what stands right of them is padding.
        positions: Position whose logits are read.
        indices: Row numbers in the task.
    """

    clean: Int[Tensor, "batch pos"]
    corrupted: Int[Tensor, "batch pos"]
    answers: Int[Tensor, "batch n_answers"]
    wrong: Int[Tensor, "batch n_wrong"] | None
    lengths: Int[Tensor, " batch"]
    positions: Int[Tensor, " batch"]
    indices: Int[Tensor, " batch"]

    @property
    def ids(self) -> Int[Tensor, " batch"]:
        """What weights of resamples follow: row numbers."""
        return self.indices

    @property
    def width(self) -> int:
        """Positions of the widest prompt, padding included."""
        return self.clean.shape[1]

    def to(self, device: torch.device | str) -> "PairBatch":
        """The same batch with every tensor on `device`."""
        return map_tensors(self, lambda tensor: tensor.to(device))


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
            raise InputError(
                "the images have no labels, but this objective or metric needs them; give "
                "ImageTask(labels=...), or use objective='kl', 'js' or 'pseudo_margin', which need none"
            )
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
