"""Rows of images: what a task of images holds, parts of it, and what a model pass takes of it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from assay.core.errors import InputError, NonFiniteError, ShapeError, check_name
from assay.core.random import stream
from assay.objectives import ObjectiveBatch
from assay.tasks.image_reading import Pictures
from assay.tasks.image_transform import EvalTransform
from assay.tasks.task import chosen_rows, draw_rows, map_tensors


Rows = TypeVar("Rows", bound="ImageRows")


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
            text = (
                "the images have no labels, but this objective or metric needs them; give ImageTask(labels="
            )
            raise InputError(f"{text}...), or use objective='kl', 'js' or 'pseudo_margin', which need none")
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
            text = "the images have no counterparts for ablated activations; give ImageTask(corrupted=...)"
            raise InputError(f"{text}, or use ablation='mean-positional', which needs none")
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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ImageRows(OfClasses):
    """What a task of images holds, row by row, and parts of it; see `ImageTask`."""

    images: Float[Tensor, "n 3 h w"] | None = None
    pixels: UInt8[np.ndarray, "n h w 3"] | None = None
    source: Pictures | None = None
    # Left out, these are filled in by `__post_init__`, so that readers never meet None.
    rows: Int[Tensor, " n"] = None  # type: ignore[assignment]  # until `__post_init__`
    transform: EvalTransform | None = None
    corrupted: Float[Tensor, "n 3 h w"] | None = None
    labels: Int[Tensor, " n"] | None = None
    foils: Int[Tensor, "n n_foils"] | None = None
    ids: Int[Tensor, " n"] = None  # type: ignore[assignment]  # until `__post_init__`
    domain: str = ""
    fields: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    name: str = "custom"
    objective: str = "kl"
    ablation: str = "mean-positional"
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    workers: int | None = None
    n_tokens: int = 0

    def __post_init__(self) -> None:
        contents = [each for each in (self.images, self.pixels, self.source) if each is not None]
        if len(contents) != 1 or len(contents[0]) == 0:
            raise InputError(f"domain {self.domain or self.name!r} has no images; give at least one")
        changed: dict[str, Any] = {}
        for names, read in ((_OF_PIXELS, _floats), (_NUMBERS, _integers)):
            given = {name: getattr(self, name) for name in names}
            changed |= {name: read(name, value) for name, value in given.items() if value is not None}
        changed.setdefault("rows", torch.arange(len(contents[0])))
        changed.setdefault("ids", changed["rows"])
        if "images" in changed and "corrupted" in changed:
            changed["corrupted"] = changed["corrupted"].to(changed["images"].dtype)
        if self.transform is not None and (self.source is None or self.source.size is not None):
            changed["transform"] = replace(self.transform, resize=None, crop=None)  # applied by now
        for name, value in changed.items():
            object.__setattr__(self, name, value)
        _check(self)

    @property
    def n(self) -> int:
        """Number of images."""
        return len(self.rows)

    @property
    def numbers(self) -> EvalTransform:
        """The transform of a run; before a model is known, pixels are scaled to [-1, 1]."""
        return self.transform or EvalTransform(resize=None)

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Height and width in pixels after the transform; where it does not tell, of the first image."""
        if self.images is not None:
            return self.images.shape[2], self.images.shape[3]
        if self.source is None:
            assert self.pixels is not None  # one of the three is given
            return self.pixels.shape[1], self.pixels.shape[2]
        size = self.source.size or self.numbers.size
        return size or self.source.decoded(int(self.rows[0]), self.numbers).shape[:2]

    def subset(self: Rows, indices: Int[Tensor, " k"] | Int[np.ndarray, " k"] | Sequence[int]) -> Rows:
        """The images in these rows, in this order; they keep their ids.

        Args:
            indices: Row numbers, 0 .. n - 1; repeats are allowed.

        Raises:
            InputError: If there is none, or one is out of range.
        """
        rows = chosen_rows(indices, self.n)
        given = {name: getattr(self, name) for name in (*_OF_PIXELS, *OF_CLASSES, "ids")}
        changed = {name: value[rows] for name, value in given.items() if value is not None}
        changed["fields"] = {name: [values[i] for i in rows.tolist()] for name, values in self.fields.items()}
        changed["rows"] = torch.arange(len(rows)) if self.source is None else self.rows[rows]
        changed["pixels"] = None if self.pixels is None else self.pixels[rows.numpy()]
        return replace(self, **changed)

    def sample(self: Rows, n: int, *, seed: int = 0) -> Rows:
        """`n` images drawn without replacement (all if there are fewer), in their order.

        Args:
            n: At least 1.
            seed: Seed of the stream `images/sample`.
        """
        return self.subset(draw_rows(self.n, n, seed=seed))

    def parts(self: Rows, k: int, *, seed: int = 0) -> tuple[Rows, ...]:
        """`k` disjoint random parts that differ by at most one image in size, named `domain/1` to `domain/k`.

        Args:
            k: Number of parts, 1 .. n.
            seed: Seed of the stream `images/parts`.
        """
        shuffled = stream(seed, "images/parts").permutation(self.n)
        config = {**self.config, "parts": {"k": k, "seed": seed}}
        return tuple(
            replace(self.subset(np.sort(rows)), domain=f"{self.domain}/{number}", config=config)
            for number, rows in enumerate(np.array_split(shuffled, k), start=1)
        )

    def by_field(self: Rows, *names: str) -> dict[str, Rows]:
        """The images as one domain per combination of values of some fields (hospital, region), sorted.

        A domain is called by its values; values that are numbers, with their field, as `slide 7`.

        Raises:
            UnknownNameError: If the images have no such field.
        """
        for name in names:
            check_name(f"field of {self.domain or self.name}", name, self.fields)
        rows: dict[tuple[str, ...], list[int]] = {}
        for row, values in enumerate(zip(*(self.fields[name] for name in names), strict=True)):
            rows.setdefault(tuple(map(str, values)), []).append(row)
        domains = {}
        for values in sorted(rows, key=lambda each: [by_size(value) for value in each]):
            named = zip(names, values, strict=True)
            domain = "/".join(f"{name} {value}" if value.isdecimal() else value for name, value in named)
            domains[domain] = replace(self.subset(rows[values]), domain=domain)
        return domains


# --------------------------------------------------------------------------------------------- tensors


def digest_of(image: Float[Tensor, "3 h w"]) -> bytes:
    """SHA-256 over type, shape and numbers of an image."""
    return hashlib.sha256(f"{image.dtype}{tuple(image.shape)}".encode() + little_endian(image)).digest()


def little_endian(value: Tensor) -> bytes:
    """The numbers of a tensor as bytes, the same on every machine."""
    numbers = value.contiguous().numpy()
    return numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).tobytes()


def _floats(name: str, value: Any) -> Tensor:
    """Images as a floating-point tensor on the CPU, at least 32 bits wide."""
    shape, kind = tuple(getattr(value, "shape", ())), getattr(value, "dtype", type(value).__name__)
    if not isinstance(value, Tensor) or not value.is_floating_point() or len(shape) != 4 or shape[1] != 3:
        text = "expected normalised images, floats [N, 3, H, W], or 8-bit images as pixels="
        raise ShapeError(f"{name} is {kind} of shape {shape}; {text}")
    images = value.detach().cpu()
    return images if images.dtype == torch.float64 else images.float()


def _integers(name: str, numbers: Any) -> Tensor:
    """Whole numbers as a tensor on the CPU."""
    value = torch.as_tensor(numbers)
    if value.is_floating_point() or value.dtype == torch.bool:
        raise ShapeError(f"{name} is {value.dtype}; give integers (torch.long), one per image")
    return value.detach().to("cpu", torch.long)


_OF_PIXELS = ("images", "corrupted")
OF_CLASSES = ("labels", "foils")
_NUMBERS = ("rows", *OF_CLASSES, "ids")


def _check(task: ImageRows) -> None:
    """Refuse columns that do not have one value per image, and numbers that mean nothing."""
    n, pixels, labels, foils = task.n, task.pixels, task.labels, task.foils
    if pixels is not None and (pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3):
        raise ShapeError(f"pixels are {pixels.dtype} of shape {pixels.shape}; expected uint8 [N, H, W, 3]")
    if task.corrupted is not None and tuple(task.corrupted.shape) != (n, 3, *task.image_size):
        shapes = f"{task.image_size} have counterparts of shape {tuple(task.corrupted.shape)}"
        raise ShapeError(f"{n} images of {shapes}; every image needs a counterpart of its size")
    for name, images in (("images", task.images), ("corrupted", task.corrupted)):
        if images is not None and not images.isfinite().all():
            row = int(images.isfinite().flatten(1).all(1).long().argmin())
            place = f"first in row {row} (id {int(task.ids[row])})"
            raise NonFiniteError(f"{name} holds NaN or infinite values, {place}")
    for name, values in {**task.fields, "labels": labels, "ids": task.ids, "foils": foils}.items():
        if values is not None and len(values) != n:
            raise ShapeError(f"{name} has {len(values)} entries for {n} images; give one per image")
    for name, numbers in (("labels", labels), ("ids", task.ids)):
        if numbers is not None and (numbers.ndim != 1 or int(numbers.min()) < 0):
            raise InputError(f"{name} is {list(numbers.shape)} from {int(numbers.min())}; give [{n}] from 0")
    if labels is not None and task.classes is not None and int(labels.max()) >= len(task.classes):
        text = f"labels holds {int(labels.max())} (image {int(labels.argmax())})"
        raise InputError(f"{text}, but there are {len(task.classes)} classes, counted from 0")
    if foils is not None and (foils.ndim != 2 or foils.shape[1] == 0):
        raise ShapeError(f"foils have shape {tuple(foils.shape)}; expected [{n}, at least 1]")
    if foils is not None and labels is not None and bool((same := (foils == labels[:, None]).any(1)).any()):
        raise InputError(f"the foil of image {int(same.nonzero()[0])} is its label; give another class")


def by_size(value: str) -> tuple[int, str]:
    """Sorts numbers by size, and before words."""
    return (int(value), "") if value.isdecimal() else (2**63, value)
