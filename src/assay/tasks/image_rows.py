"""`ImageRows`: what an image task knows of its images beside their pixels, one row each."""

import abc
import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from assay.core.errors import InputError, ShapeError, check_least
from assay.core.random import stream
from assay.tasks.image_batch import ImageBatch, OfClasses


R = TypeVar("R", bound="ImageRows")
D = TypeVar("D", bound="DrawnRows")


class DrawnRows(abc.ABC):
    """Abstract: images of one domain that can be taken by row, at random, too."""

    domain: str
    config: Mapping[str, Any]

    @property
    @abc.abstractmethod
    def n(self) -> int:
        """Number of images."""

    @abc.abstractmethod
    def subset(self: D, indices: Any) -> D:
        """The images in these rows, in this order; they keep their ids."""

    def sample(self: D, n: int, *, seed: int = 0) -> D:
        """`n` images drawn without replacement (all if there are fewer), in their order.

        Args:
            n: At least 1.
            seed: Seed of the stream `images/sample`.
        """
        return self.subset(draw_rows(self.n, n, seed=seed))

    def parts(self: D, k: int, *, seed: int = 0) -> tuple[D, ...]:
        """`k` disjoint random parts that differ by at most one image in size, named `domain/1` to `domain/k`.

        Args:
            k: Number of parts, 1 .. n.
            seed: Seed of the stream `images/parts`.
        """
        if not 1 <= k <= self.n:
            raise InputError(f"cannot split {self.n} images into {k} parts; give 1 to {self.n}")
        shuffled = stream(seed, "images/parts").permutation(self.n)
        changed: dict[str, Any] = {"config": {**self.config, "parts": {"k": k, "seed": seed}}}
        return tuple(
            replace(self.subset(np.sort(rows)), domain=f"{self.domain}/{number}", **changed)  # type: ignore[type-var]
            for number, rows in enumerate(np.array_split(shuffled, k), start=1)
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ImageRows(DrawnRows, OfClasses, abc.ABC):
    """Abstract: images of one domain as a model reads them; `ImageTask` holds them, `ImageStream` reads them.

    Args:
        labels: Class of each image `[N]`, 0 or more; None if unknown.
        foils: Classes that the label is compared with `[N, F]`, for differences of logits; see
            `with_runner_up`. None if the task has none.
        ids: Number of each image in its data set `[N]`; seeds and pairings follow it and so survive taking
            a subset. Default: 0 .. N - 1.
        domain: Where the images come from, e.g. `"photo"`.
        fields: Facts about each image, name to list of N.
        classes: Names of the classes, label 0 first; None if unknown.
        name: Name of the task in results.
        objective: Key of the objective used unless told otherwise.
        ablation: Key of the ablation used unless told otherwise.
        config: How the images were made (JSON values): part of every result's provenance.
        notes: What was left out of the images, a sentence each, for every result on them.
    """

    per_row: ClassVar[tuple[str, ...]] = ("labels", "foils", "ids")  # what a subset takes its rows of

    labels: Int[Tensor, " n"] | None = None
    foils: Int[Tensor, "n n_foils"] | None = None
    # Left out, these two are filled in by `__post_init__`, so that readers never meet None.
    ids: Int[Tensor, " n"] = None  # type: ignore[assignment]
    domain: str = ""
    fields: Mapping[str, Sequence[Any]] = None  # type: ignore[assignment]
    classes: tuple[str, ...] | None = None
    name: str = "custom"
    objective: str = "kl"
    ablation: str = "mean-positional"
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    _n_tokens: int = field(default=0, init=False)  # set by `bound`

    def _check_rows(self) -> None:
        """Fill in what was left out, and refuse columns that do not fit."""
        for name in ("labels", "ids", "foils"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _integers(name, value))
        fill(self, ids=torch.arange(self.n))
        object.__setattr__(self, "fields", dict(self.fields or {}))
        check_per_image(self.n, self.labels, self.ids, self.fields, self.classes)
        _check_foils(self)

    @property
    def n(self) -> int:
        """Number of images."""
        return len(self.ids)

    @property
    @abc.abstractmethod
    def image_size(self) -> tuple[int, int]:
        """Height and width in pixels."""

    @property
    @abc.abstractmethod
    def digests(self) -> list[bytes]:
        """A digest of each image as the model reads it: equal for copies, whatever their files are called."""

    @property
    @abc.abstractmethod
    def data_hash(self) -> str:
        """SHA-256 over types, shapes and values of every tensor that a result depends on, 64 hex digits.

        The same for the same pictures, however they are read: in memory, from files or from an archive.
        """

    @property
    def source_hash(self) -> str:
        """What identifies the images without reading them: a key for what was kept."""
        return self.data_hash

    def _hash_of(self, images: Iterable[bytes], corrupted: Iterable[bytes] = ()) -> str:
        """The hash of images from the digests of each, labels and foils."""
        digest = hashlib.sha256()
        for name, each in {"images": images, "corrupted": corrupted}.items():
            digest.update(name.encode() + b"".join(each))
        for name in ("labels", "foils"):
            if (value := getattr(self, name)) is not None:
                digest.update(f"{name}{tuple(value.shape)}".encode() + little_endian(value))
        return digest.hexdigest()

    @abc.abstractmethod
    def batches(self, batch_size: int) -> Iterator[ImageBatch]:
        """The images in order, `batch_size` at a time (the last batch may be smaller)."""

    @abc.abstractmethod
    def stand_in(self, n: int) -> "ImageRows":
        """So many images of the same shape, at hand: to predict the memory of a pass, to time one."""

    def __repr__(self) -> str:
        size = "x".join(map(str, self.image_size))
        return f"{type(self).__name__}({self.name!r}, domain={self.domain!r}, n={self.n}, size={size})"

    def describe(self, identity: str = "data_hash") -> dict[str, Any]:
        """Identity of the images as it enters records; of keys with `source_hash`."""
        facts = {name: getattr(self, name) for name in ("name", "domain", identity, "n")}
        return facts | {"config": dict(self.config)} | ({"notes": list(self.notes)} if self.notes else {})

    @property
    def length(self) -> int:
        """Positions a model makes of an image.

        Raises:
            InputError: Before the task is bound to a model, which decides it.
        """
        if self._n_tokens == 0:
            raise InputError(
                f"{self!r} is not bound to a model, which determines the number of positions; use "
                "model.bind(task)"
            )
        return self._n_tokens

    @property
    def longest(self) -> int:
        """`length`, as counterparts have as many; errors as there."""
        return self.length

    @property
    def lengths(self) -> Int[Tensor, " n"]:
        """`length` of each image; all images have the same."""
        return torch.full((self.n,), self.length)

    @property
    def positions(self) -> Int[Tensor, " n"]:
        """The position read in each image: the first."""
        return torch.zeros(self.n, dtype=torch.long)

    def _batch(
        self,
        rows: Int[Tensor, " batch"],
        images: Float[Tensor, "batch 3 h w"],
        counterparts: Float[Tensor, "batch 3 h w"] | None = None,
        *,
        pinned: bool = False,
    ) -> ImageBatch:
        """The images of some rows with what is known of them."""
        return ImageBatch(
            images=images,
            counterparts=counterparts,
            labels=None if self.labels is None else self.labels[rows],
            foils=None if self.foils is None else self.foils[rows],
            indices=rows,
            ids=self.ids[rows],
            lengths=torch.full((len(rows),), self._n_tokens),
            pinned=pinned,
        )

    def bound(self: R, n_tokens: int) -> R:
        """The same images, cut into `n_tokens` positions by some model; see `Model.bind`."""
        if self._n_tokens == n_tokens:
            return self
        task = copy.copy(self)  # not `replace`, which would check every pixel again
        object.__setattr__(task, "_n_tokens", n_tokens)
        return task

    def with_runner_up(self: R, logits: Float[Tensor, "n n_classes"]) -> R:
        """The task with, as foil, the best class but the label of each image by a model's logits.

        With labels unknown, the model's own prediction takes the place of the label.

        Args:
            logits: Of the unablated model on these images.
        """
        if logits.ndim != 2 or len(logits) != self.n or logits.shape[1] < 2:
            raise ShapeError(
                f"logits have shape {tuple(logits.shape)}; expected [{self.n}, at least 2 classes]"
            )
        labels = logits.argmax(1) if self.labels is None else self.labels
        others = logits.scatter(1, labels[:, None], -torch.inf)
        return replace(self, labels=labels, foils=others.argmax(1, keepdim=True)).bound(self._n_tokens)

    def subset(self: R, indices: Int[Tensor, " k"] | Int[np.ndarray, " k"] | Sequence[int]) -> R:
        """The images in these rows, in this order; they keep their ids.

        Args:
            indices: Row numbers, 0 .. n - 1; repeats are allowed.

        Raises:
            InputError: If there is none, or one is out of range.
        """
        rows = torch.from_numpy(checked_rows(torch.as_tensor(indices).numpy(), self.n))
        changed: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value[rows] for name in self.per_row
        }
        changed["fields"] = {name: [values[i] for i in rows.tolist()] for name, values in self.fields.items()}
        return replace(self, **changed).bound(self._n_tokens)

    def validate(
        self,
        image_size: tuple[int, int],
        classes: Sequence[str] | None = None,
        *,
        n_classes: int | None = None,
    ) -> None:
        """Check the images against what a model reads and tells apart.

        Args:
            image_size: Height and width the model takes.
            classes: The model's class names, label 0 first; None to leave them unchecked.
            n_classes: How many classes the model has; None to leave labels unchecked.

        Raises:
            ShapeError: If the size differs.
            InputError: If both have class names and they are not the same, in the same order, or a label is
                not one of the model's classes.
        """
        for name, values in (("labels", self.labels), ("foils", self.foils)):
            if n_classes is not None and values is not None and int(values.max()) >= n_classes:
                row = int((values.reshape(self.n, -1) >= n_classes).any(1).nonzero()[0])
                raise InputError(
                    f"{name} hold class {int(values.max())} (image {row}), but the model has classes 0 to "
                    f"{n_classes - 1}; label the data with the model's own classes"
                )
        if self.image_size != tuple(image_size):
            raise ShapeError(
                f"the images of {self.domain or self.name!r} are {_by(self.image_size)}, but the model "
                f"reads {_by(image_size)}; read them with an EvalTransform of that size"
            )
        if classes is not None and self.classes is not None and tuple(classes) != self.classes:
            model, data = set(classes), set(self.classes)
            if model == data:
                difference = f"the order differs: model {list(classes)}, data {list(self.classes)}"
            else:
                difference = (
                    f"only the model has {sorted(model - data)}, only the data {sorted(data - model)}"
                )
            raise InputError(
                f"model and data do not have the same classes; {difference}. Read the data with "
                "classes= set to the model's list"
            )


def check_batch_size(batch_size: int) -> None:
    """Refuse batches of no image."""
    check_least(1, batch_size=batch_size)


def _check_foils(task: ImageRows) -> None:
    """Foils are classes, one row per image, none of them the label."""
    foils = task.foils
    if foils is None:
        return
    if foils.ndim != 2 or len(foils) != task.n or foils.shape[1] == 0:
        raise ShapeError(f"foils have shape {tuple(foils.shape)}; expected [{task.n}, at least 1]")
    if int(foils.min()) < 0:
        raise InputError("foils hold a negative class; classes are counted from 0")
    if task.labels is not None and bool((same := (foils == task.labels[:, None]).any(1)).any()):
        raise InputError(
            f"the foil of image {int(same.nonzero()[0])} is its label; a class can be only one of them"
        )


def fill(value: Any, **defaults: Any) -> None:
    """Set what was left out, in a frozen value under construction."""
    for name, default in defaults.items():
        if getattr(value, name) is None:
            object.__setattr__(value, name, default)


def _by(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))


def _integers(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype == torch.bool:
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ShapeError(f"{name} is {came}; give integers [N] (torch.long), one per image")
    return value.detach().to("cpu", torch.long)


def check_per_image(
    n: int,
    labels: Tensor | None,
    ids: Tensor,
    fields: Mapping[str, Sequence[Any]],
    classes: tuple[str, ...] | None,
) -> None:
    """Refuse columns that do not have one value per image."""
    for name, value in (("labels", labels), ("ids", ids)):
        if value is None:
            continue
        if value.shape != (n,):
            raise ShapeError(f"{name} has shape {tuple(value.shape)}; expected [{n}], one number per image")
        if int(value.min()) < 0:
            raise InputError(f"{name} holds {int(value.min())} (image {int(value.argmin())}); count from 0")
    for name, values in fields.items():
        if isinstance(values, str) or len(values) != n:
            raise ShapeError(f"field {name!r} has {len(values)} entries for {n} images; give one per image")
    if classes is not None and len(set(classes)) != len(classes):
        raise InputError(f"a class is listed twice: {list(classes)}")
    if labels is not None and classes is not None and int(labels.max()) >= len(classes):
        raise InputError(
            f"labels holds {int(labels.max())} (image {int(labels.argmax())}), but there are {len(classes)} "
            f"classes, 0 to {len(classes) - 1}"
        )


def checked_rows(rows: np.ndarray, n: int) -> Int64[np.ndarray, " k"]:
    """Row numbers that exist, as int64."""
    if rows.ndim != 1 or len(rows) == 0 or not np.issubdtype(rows.dtype, np.integer):
        raise InputError(
            f"subset has {rows.shape} of {rows.dtype}; expected a list of at least one row number"
        )
    if int(rows.min()) < 0 or int(rows.max()) >= n:
        raise InputError(
            f"subset names rows {int(rows.min())} to {int(rows.max())}, but there are 0 to {n - 1}"
        )
    return rows.astype(np.int64)


def draw_rows(total: int, n: int | None, *, seed: int, what: str = "images") -> Int64[np.ndarray, " k"]:
    """`n` of `total` row numbers without replacement, ascending; all of them if `n` is None or not smaller.

    The stream is `images/sample` of the seed, or that of another `what`.
    """
    if n is not None and n < 1:
        raise InputError(f"n is {n}; give at least 1 of the {what}")
    if n is None or n >= total:
        return np.arange(total)
    return np.sort(stream(seed, f"{what}/sample").choice(total, n, replace=False))


def little_endian(value: Tensor) -> bytes:
    """The numbers of a tensor as bytes, the same on every machine."""
    numbers = value.contiguous().numpy()
    return numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).tobytes()


def digest_of(image: Float[Tensor, "3 h w"]) -> bytes:
    """SHA-256 over type, shape and numbers of an image."""
    return hashlib.sha256(f"{image.dtype}{tuple(image.shape)}".encode() + little_endian(image)).digest()
