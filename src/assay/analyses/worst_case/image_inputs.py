"""Images as inputs of pairs: each distinct image has a number, which takes the place of token ids."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from assay.core.errors import InputError
from assay.page.thumbnail import thumbnail
from assay.tasks import ImageTask


@dataclass(frozen=True)
class ClassNames:
    """Names of classes, in the place of a tokenizer: what a row of logits is about.

    Attributes:
        names: Label 0 first; None where only numbers are known.
    """

    names: tuple[str, ...] | None

    def decode(self, classes: Sequence[int]) -> str:
        """The name of each class."""
        return " ".join(f"class {each}" if self.names is None else self.names[each] for each in classes)


@dataclass(frozen=True, kw_only=True)
class NumberedImages:
    """Distinct images and which of them each row of a task shows.

    Attributes:
        stock: Each distinct image once, in order of first occurrence, images before counterparts.
        clean: Number of each image `[n, 1]`.
        corrupted: Number of each counterpart; None where there are none.
    """

    stock: Float[Tensor, "n_distinct 3 h w"]
    clean: Int[Tensor, "n 1"]
    corrupted: Int[Tensor, "n 1"] | None


def numbered(task: ImageTask) -> NumberedImages:
    """The images of a task, equal ones under one number."""
    kept: list[Tensor] = []
    numbers: dict[bytes, int] = {}

    def number(image: Tensor) -> int:
        key = hashlib.sha256(image.contiguous().numpy().tobytes()).digest()
        if key not in numbers:
            numbers[key] = len(kept)
            kept.append(image)
        return numbers[key]

    sides = [
        None if side is None else torch.tensor([[number(image)] for image in side])
        for side in (task.clean, task.corrupted)
    ]
    assert sides[0] is not None
    return NumberedImages(stock=torch.stack(kept), clean=sides[0], corrupted=sides[1])


def no_counterparts(task: ImageTask) -> InputError:
    """The error of images under an ablation that takes values from counterparts."""
    return InputError(
        f"the images of {task.domain or task.name!r} have no counterparts, but resample ablation takes "
        "values from them; use ablation 'resample-donor' (values of other images), zero, mean or "
        "mean-positional, or give ImageTask(corrupted=...)"
    )


def image_fields(task: ImageTask) -> dict[str, list[Any]]:
    """Facts about each image; its class is one of them."""
    fields = {name: list(values) for name, values in task.fields.items()}
    if task.labels is not None:
        names = ClassNames(task.classes)
        fields.setdefault("label", [names.decode([label]) for label in task.labels.tolist()])
    return fields


def image_names(task: ImageTask, of: str = "image") -> tuple[str, ...]:
    """What each image is called: by its number in its data set, and its class."""
    names = ClassNames(task.classes)
    labels = (
        [""] * task.n if task.labels is None else [f" ({names.decode([y])})" for y in task.labels.tolist()]
    )
    return tuple(f"{of} {number}{label}" for number, label in zip(task.ids.tolist(), labels, strict=True))


def pictures_of(
    stock: Float[Tensor, "n_distinct 3 h w"], numbers: Sequence[int], config: Mapping[str, Any]
) -> list[str]:
    """Images as PNG data URIs, as they were before a model's normalisation.

    Args:
        stock: Normalised images.
        numbers: Which of them.
        config: How the images were made; without an entry `normalise`, values are stretched to what the
            stock holds.
    """
    rule = config.get("normalise")
    if rule is None:
        low, high = float(stock.min()), float(stock.max())
        shown = (stock[list(numbers)].double() - low) / max(high - low, 1e-12) * 255
    else:
        mean, std = (torch.tensor(rule[name], dtype=torch.float64)[:, None, None] for name in ("mean", "std"))
        shown = (stock[list(numbers)].double() * std + mean) / rule["rescale"]
    pixels: UInt8[np.ndarray, "k h w 3"] = (
        shown.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    )
    return [thumbnail(each) for each in pixels]
