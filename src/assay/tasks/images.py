"""`ImageTask`: images of one domain for a model, decoded whenever they are needed, or held in memory."""

import copy
import hashlib
import itertools
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from assay.core.errors import FileFormatError, InputError, NonFiniteError, ShapeError, check_name
from assay.core.machine import DECODING, free_memory, usable_cores
from assay.core.random import stream
from assay.tasks.image_reading import WAITING, Pictures, ahead
from assay.tasks.image_transform import EvalTransform
from assay.tasks.task import PairBatch, PairTask, chosen_rows, draw_rows, map_tensors


FEW = 256  # images below which one thread is as fast
NAMED = 5  # pictures left out that a note names
PIECE = 32  # images of a batch that is read for its digests alone
_OF_PIXELS = ("images", "corrupted")
_OF_CLASSES = ("labels", "foils")


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
            text = "the images have no labels, which this objective or metric needs"
            raise InputError(f"{text}; give labels=, or objective='kl', 'js' or 'pseudo_margin'")
        return self.labels[:, None]

    @property
    def wrong(self) -> Int[Tensor, "n n_foils"] | None:
        """The classes the right one is compared with."""
        return self.foils


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageBatch(OfClasses):
    """Some rows of an image task, as a model pass takes them.

    Attributes:
        images: Normalised images `[batch, 3, height, width]`.
        counterparts: Their counterparts, same shape; None if the task has none.
        labels: Class of each image `[batch]`; None if unknown.
        foils: Classes to compare with `[batch, n_foils]`; None if the task has none.
        indices: Row numbers in the task.
        ids: Number of each image in its data set; weights of resamples follow it.
        lengths: Positions a model makes of each image `[batch]`; 0 before the task is bound to one.
    """

    images: Float[Tensor, "batch 3 h w"]
    counterparts: Float[Tensor, "batch 3 h w"] | None
    labels: Int[Tensor, " batch"] | None
    foils: Int[Tensor, "batch n_foils"] | None
    indices: Int[Tensor, " batch"]
    ids: Int[Tensor, " batch"]
    lengths: Int[Tensor, " batch"]

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

    def to(self, device: torch.device | str) -> "ImageBatch":
        """The same batch with every tensor on `device`."""
        return map_tensors(self, lambda tensor: tensor.to(device, non_blocking=tensor.is_pinned()))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ImageTask(OfClasses):
    """Images of one domain: normalised, in 8 bits, or in files that are decoded whenever the task is run.

    A run over files holds one batch and what other threads have decoded ahead: at most 64 images of 8 bits
    for each worker. `held` decodes them once, for images that are read several times. Numbers are the
    same, whatever the source, the workers and the batch size.

    Args:
        images: Normalised images `[N, 3, H, W]`, floating point. Give one of `images`, `pixels`, `source`.
        pixels: 8-bit images `[N, H, W, 3]`, RGB, of the size that a model reads.
        source: Pictures that are not decoded yet; see `find_domains` and `load_images`.
        rows: Row of each image in the source, `[N]`; default: all.
        transform: How a model wants pixels or pictures; of pixels only its numbers count. None: as the model
            says that the task is run on.
        corrupted: Counterpart of each image `[N, 3, H, W]`, for patching and resample ablation; None if the
            task has none, as the mean ablations need none.
        labels: Class of each image `[N]`, 0 or more; None if unknown.
        foils: Classes that the label is compared with `[N, F]`, for differences of logits; None if there are
            none.
        ids: Number of each image in its data set `[N]`; seeds and pairings follow it and so survive taking
            a subset. Default: `rows`, or 0 .. N - 1.
        domain: Where the images come from, e.g. `"photo"`.
        fields: Facts about each image, name to list of N.
        classes: Names of the classes, label 0 first; None if unknown.
        name: Name of the task in results.
        objective: Key of the objective used unless told otherwise.
        ablation: Key of the ablation used unless told otherwise.
        config: How the images were made (JSON values): part of every result's provenance.
        notes: What was left out of the images, a sentence each, for every result on them.
        skipped: Pictures left out because they could not be decoded.
        workers: Threads that decode beside this one; 0: none; None: none for fewer than 256 images, else
            one per usable core, at most 8.
        n_tokens: Positions a model makes of an image; 0 before the task is bound to one, see `Model.bind`.

    Raises:
        InputError: If there is no image, a label has no class, an id is negative.
        ShapeError: If shapes or number types do not fit together.
        NonFiniteError: If a normalised image holds NaN or an infinite value; the first is named.

    Example:
        >>> task = ImageTask(images=torch.zeros(4, 3, 32, 32), labels=torch.tensor([0, 1, 1, 0]))
        >>> task.n, task.image_size, task.ids.tolist()
        (4, (32, 32), [0, 1, 2, 3])
    """

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
        for names, read in ((_OF_PIXELS, _floats), (("rows", "ids", *_OF_CLASSES), _integers)):
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

    def __repr__(self) -> str:
        return f"ImageTask({self.name!r}, domain={self.domain!r}, n={self.n})"

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

    def subset(self, indices: Int[Tensor, " k"] | Int[np.ndarray, " k"] | Sequence[int]) -> "ImageTask":
        """The images in these rows, in this order; they keep their ids.

        Args:
            indices: Row numbers, 0 .. n - 1; repeats are allowed.

        Raises:
            InputError: If there is none, or one is out of range.
        """
        rows = chosen_rows(indices, self.n)
        given = {name: getattr(self, name) for name in (*_OF_PIXELS, *_OF_CLASSES, "ids")}
        changed = {name: value[rows] for name, value in given.items() if value is not None}
        changed["fields"] = {name: [values[i] for i in rows.tolist()] for name, values in self.fields.items()}
        changed["rows"] = torch.arange(len(rows)) if self.source is None else self.rows[rows]
        changed["pixels"] = None if self.pixels is None else self.pixels[rows.numpy()]
        return replace(self, **changed)

    def sample(self, n: int, *, seed: int = 0) -> "ImageTask":
        """`n` images drawn without replacement (all if there are fewer), in their order.

        Args:
            n: At least 1.
            seed: Seed of the stream `images/sample`.
        """
        return self.subset(draw_rows(self.n, n, seed=seed))

    def parts(self, k: int, *, seed: int = 0) -> tuple["ImageTask", ...]:
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

    def by_field(self, *names: str) -> dict[str, "ImageTask"]:
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

    # ------------------------------------------------------------------------------------------- the images

    @cached_property
    def clean(self) -> Float[Tensor, "n 3 h w"]:
        """All images, normalised; those in files are decoded for it and then held. Errors as of `batches`."""
        if self.images is not None:
            return self.images
        return self.numbers.normalised(np.asarray(self.held().pixels))

    def batches(self, batch_size: int) -> Iterator[ImageBatch]:
        """The images in order, `batch_size` at a time (the last batch may be smaller).

        Raises:
            FileFormatError: If an image cannot be decoded; the batches before it were given.
        """
        parts = torch.arange(self.n).split(batch_size)
        if self.images is not None:
            yield from map(self._batch, parts, self.images.split(batch_size))
            return
        pixels = self._decoded() if self.pixels is None else iter(self.pixels)
        for rows in parts:
            stack = np.stack(list(itertools.islice(pixels, len(rows))))
            yield self._batch(rows, self.numbers.normalised(stack))

    def _decoded(self, bad: list[int] | None = None) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
        """The pixels of every image, in order; rows that cannot be decoded go into `bad`, where it is given.

        Raises:
            FileFormatError: If one cannot be decoded, without `bad`.
            ShapeError: If they differ in size.
        """
        assert self.source is not None  # else nothing is decoded
        rows, first = self.rows.tolist(), None
        pictures = ahead(self._attempt, rows, self.decoding_workers, waiting=WAITING)
        for row, pixels in zip(rows, pictures, strict=True):
            if isinstance(pixels, FileFormatError):
                if bad is None:
                    raise pixels
                bad.append(row)
                continue
            sides = f"{pixels.shape[0]} x {pixels.shape[1]}"
            first = first or (row, sides)
            if sides != first[1]:
                text = f"{self.source.name(row)} is {sides}, but {self.source.name(first[0])} is {first[1]}"
                raise ShapeError(f"{text}; give a transform that makes them equal")
            yield pixels

    def _attempt(self, row: int) -> UInt8[np.ndarray, "h w 3"] | FileFormatError:
        """The pixels of a row of the source, or why it cannot be decoded."""
        assert self.source is not None
        try:
            return self.source.decoded(row, self.numbers)
        except FileFormatError as error:
            return error

    def _batch(self, rows: Int[Tensor, " batch"], images: Float[Tensor, "batch 3 h w"]) -> ImageBatch:
        """The images with what is known of them; notes what identifies them."""
        digests = self._digests
        for row, image in zip(self.rows[rows].tolist(), images, strict=True):
            if self.source is not None and row not in digests:
                digests[row] = digest_of(image)
        # A GPU fetches pinned memory while other work goes on.
        pinned = self.images is None and torch.cuda.is_available() and torch.cuda.is_initialized()
        return ImageBatch(
            images=images.pin_memory() if pinned else images,
            counterparts=None if self.corrupted is None else self.corrupted[rows],
            labels=None if self.labels is None else self.labels[rows],
            foils=None if self.foils is None else self.foils[rows],
            indices=rows,
            ids=self.ids[rows],
            lengths=torch.full((len(rows),), self.n_tokens),
        )

    @property
    def decoding_workers(self) -> int:
        """Threads that decode the images beside this one."""
        if self.source is None:
            return 0
        asked = DECODING.get()[0] if self.workers is None else self.workers
        return asked if asked is not None else 0 if self.n < FEW else min(8, usable_cores())

    def held(self, *, skip_bad: bool = False) -> "ImageTask":
        """The same images, decoded once and held in 8 bits: for some that are read several times.

        Args:
            skip_bad: Leave out images that cannot be decoded, and list them in `skipped`.

        Raises:
            FileFormatError: If an image cannot be decoded and is not skipped, or none can be.
            InputError: If they do not fit into the memory.
            ShapeError: If they differ in size and no transform makes them equal.
        """
        if self.source is None:
            return self
        pixels, bad, n = np.empty((0, 0, 0, 3), np.uint8), list[int](), 0
        for n, image in enumerate(self._decoded(bad if skip_bad else None), start=1):
            if n == 1:
                if (needed := self.n * image.nbytes) > (free := free_memory()):
                    sides = f"{self.domain!r} with {image.shape[0]} x {image.shape[1]} pixels"
                    text = f"{self.n:,} images of {sides} take {needed:,} bytes and {free:,} are free"
                    raise InputError(f"{text}; give a smaller n")
                pixels = np.empty((self.n, *image.shape), dtype=np.uint8)
            pixels[n - 1] = image
        kept = self._without(bad)
        notes = (*kept.notes, *self._turned)
        return replace(kept, source=None, pixels=pixels[:n], rows=torch.arange(n), notes=notes)

    def readable(self) -> "ImageTask":
        """The images that can be decoded, for which each is decoded once; the others are in `skipped`.

        Raises:
            FileFormatError: If there is none.
        """
        if self.source is None:
            return self
        rows = self.rows.tolist()
        attempts = zip(rows, ahead(self._attempt, rows, self.decoding_workers), strict=True)
        return self._without([row for row, found in attempts if isinstance(found, FileFormatError)])

    def _without(self, bad: Sequence[int]) -> "ImageTask":
        """The images whose rows of the source are not bad."""
        if not bad:
            return self
        assert self.source is not None
        names = tuple(self.source.name(row) for row in bad)
        shown = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
        good = [place for place, row in enumerate(self.rows.tolist()) if row not in bad]
        if not good:
            raise FileFormatError(f"none of the images of {self.domain!r} can be decoded, e.g. {names[0]}")
        return replace(
            self.subset(good),
            skipped=(*self.skipped, *names),
            notes=(*self.notes, f"{len(names)} files of {self.domain} were skipped: {shown}"),
            config={**self.config, "skipped": len(self.skipped) + len(names)},
        )

    @property
    def _turned(self) -> tuple[str, ...]:
        """A note that counts the images turned so far; none where there are none."""
        n = len(self.source.turned.intersection(self.rows.tolist())) if self.source else 0
        return (f"{n} images of {self.domain} were turned as their EXIF orientation says",) * (n > 0)

    # ------------------------------------------------------------------------------- as a model reads them

    def for_model(self, model: Any) -> "ImageTask":
        """The images as an image classifier reads them: by its transform, labels in the order of its classes.

        Normalised images, and those that have a transform, stay as they are.

        Raises:
            InputError: If the images show a class that the model does not know.
        """
        if self.images is not None or self.transform is not None:
            return self
        images = self.with_classes(getattr(model, "classes", None))
        return images.with_transform(EvalTransform.for_model(model))

    def with_transform(self, transform: EvalTransform) -> "ImageTask":
        """The same images for a model of another transform; not yet bound to it.

        Raises:
            InputError: If the images were given normalised.
        """
        if self.images is not None:
            raise InputError("the images were given normalised; to apply a transform, give pixels")
        facts, config = transform.to_dict(), {**self.config, "skipped": len(self.skipped)}
        config["normalise"] = {name: facts[name] for name in ("rescale", "mean", "std")}
        if self.source is not None and self.source.size is None:
            config["geometry"] = {name: facts[name] for name in ("resize", "crop", "resample")}
        return replace(self, transform=transform, config=config, n_tokens=0)

    def with_classes(self, classes: Sequence[str] | None) -> "ImageTask":
        """The same images with labels and foils in the order of these classes; as they are without names.

        Raises:
            InputError: If an image shows, or has as foil, another class.
        """
        if classes is None or self.classes is None or self.labels is None or tuple(classes) == self.classes:
            return self
        foils = self.foils
        used = self.labels if foils is None else torch.cat([self.labels, foils.flatten()])
        shown = {self.classes[label] for label in used.unique().tolist()}
        if strange := sorted(shown - set(classes)):
            kinds, named = "images" if foils is None else "images or foils", ", ".join(strange)
            text = f"{self.domain or self.name!r} has {kinds} of {named}, which are not among the classes"
            raise InputError(f"{text} {', '.join(classes)}"[:400])
        order = torch.tensor([classes.index(name) if name in shown else -1 for name in self.classes])
        foils = None if foils is None else order[foils]
        return replace(self, labels=order[self.labels], foils=foils, classes=tuple(classes))

    def bound(self, n_tokens: int) -> "ImageTask":
        """The same images, cut into `n_tokens` positions by some model; see `Model.bind`."""
        task = copy.copy(self)  # not `replace`, which would check every image again
        object.__setattr__(task, "n_tokens", n_tokens)
        return task

    @property
    def length(self) -> int:
        """Positions a model makes of an image.

        Raises:
            InputError: Before the task is bound to a model, which decides it.
        """
        if self.n_tokens == 0:
            raise InputError(f"{self!r} is not bound to a model, which cuts it; use model.bind(task)")
        return self.n_tokens

    @property
    def lengths(self) -> Int[Tensor, " n"]:
        """`length` of each image; all images have the same."""
        return torch.full((self.n,), self.length)

    @property
    def positions(self) -> Int[Tensor, " n"]:
        """The position read in each image: the first."""
        return torch.zeros(self.n, dtype=torch.long)

    def validate(
        self, image_size: tuple[int, int], classes: Sequence[str] | None = None, n_classes: int | None = None
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
        for column in (self.labels, self.foils):
            if column is not None and n_classes is not None and int(column.max()) >= n_classes:
                text = f"foils or labels hold class {int(column.max())}"
                raise InputError(f"{text}; the model has 0 to {n_classes - 1}")
        if self.image_size != tuple(image_size):
            own, wanted = (" x ".join(map(str, each)) for each in (self.image_size, image_size))
            raise ShapeError(f"the images of {self.domain!r} are {own}, but the model reads {wanted}")
        if classes is not None and self.classes is not None and tuple(classes) != self.classes:
            text = f"the same classes in the same order: model {list(classes)}, data {list(self.classes)}"
            raise InputError(f"model and data do not have {text}; use task.with_classes(model.classes)")

    # ---------------------------------------------------------------------------- counterparts and foils

    def with_donors(self, rows: Int[Tensor, " n"]) -> "ImageTask":
        """The same images with, as counterparts, the images of the given rows."""
        return replace(self, corrupted=self.clean[rows])

    def inputs(self, *, paired: bool) -> Iterator[tuple[Hashable, Hashable, int]]:
        """Digests of image and, if `paired`, of its counterpart (else None); the position that is read."""
        counterparts = self.corrupted if paired else None
        other = [None] * self.n if counterparts is None else map(digest_of, counterparts)
        return zip(self.digests, other, self.positions.tolist(), strict=True)

    def paired(self, pairs: Int[Tensor, "n_pairs 2"]) -> "ImageTask":
        """One row per pair: the image of the first row number with the counterpart of the second.

        Raises:
            InputError: If the images have no counterparts.
        """
        if self.corrupted is None:
            raise InputError("pairs choose counterparts, but the images have none; give corrupted=")
        return replace(self.subset(pairs[:, 0]), corrupted=self.corrupted[pairs[:, 1]])

    # -------------------------------------------------------------------------------------------- identity

    @property
    def _digests(self) -> dict[int, bytes]:
        """Digests of the pictures that were read under this transform, by row; kept with the source."""
        key = json.dumps(self.numbers.to_dict())
        return {} if self.source is None else self.source.digests.setdefault(key, {})

    @cached_property
    def digests(self) -> list[bytes]:
        """A digest of each image as the model reads it: equal for copies, whatever their files are called.

        Pictures that no run has read yet are decoded for it.
        """
        if self.source is None:
            return [digest_of(image) for batch in self.batches(PIECE) for image in batch.images]
        digests, rows = self._digests, self.rows.tolist()
        unread = [place for place, row in enumerate(rows) if row not in digests]
        for _ in self.subset(unread).batches(PIECE) if unread else ():
            pass
        return [digests[row] for row in rows]

    @cached_property
    def data_hash(self) -> str:
        """SHA-256 over types, shapes and values of every tensor that a result depends on, 64 hex digits.

        The same for the same pictures, whether they are in memory or in files.
        """
        digest = hashlib.sha256(b"images" + b"".join(self.digests) + b"corrupted")
        for image in () if self.corrupted is None else self.corrupted:
            digest.update(digest_of(image))
        for name in _OF_CLASSES:
            if (value := getattr(self, name)) is not None:
                digest.update(f"{name}{tuple(value.shape)}".encode() + little_endian(value))
        return digest.hexdigest()

    @property
    def source_hash(self) -> str:
        """SHA-256 over what identifies the images without reading them, 64 hex digits: a key for results.

        Of files: names, sizes in bytes, ids, labels, foils and the transform; files that change and keep
        their size are not noticed. Of a data set of PyTorch: the pixels of about 64 images in place of names.
        Of 8-bit images in memory: pixels, labels and ids.
        """
        if self.images is not None:
            return self.data_hash
        if self.source is None:
            digest = hashlib.sha256()
            for array in (self.pixels, self.labels, self.ids):
                if array is not None:
                    digest.update(f"{np.asarray(array).dtype} {tuple(array.shape)}".encode())
                    digest.update(np.ascontiguousarray(array).data)
            return digest.hexdigest()
        digest = hashlib.sha256(f"stream {json.dumps(self.numbers.to_dict())}".encode())
        for mark in self.source.marks(self.rows.tolist()):
            digest.update(mark.encode(errors="surrogateescape") + b"\0")
        for name in ("ids", *_OF_CLASSES):
            value = getattr(self, name)
            digest.update(name.encode() + (b"" if value is None else little_endian(value)))
        return digest.hexdigest()

    def describe(self, identity: str = "data_hash") -> dict[str, Any]:
        """Identity of the images as it enters records; of keys with `source_hash`, without notes."""
        facts = {name: getattr(self, name) for name in ("name", "domain", identity, "n")}
        notes = [] if identity == "source_hash" else [*self.notes, *self._turned]  # they grow with reading
        return facts | {"config": dict(self.config)} | ({"notes": notes} if notes else {})


# What a model may be run on, and the parts it is run in.
Task = PairTask | ImageTask
Batch = PairBatch | ImageBatch


# --------------------------------------------------------------------------------------------- tensors


def digest_of(image: Float[Tensor, "3 h w"]) -> bytes:
    """SHA-256 over type, shape and numbers of an image."""
    return hashlib.sha256(f"{image.dtype}{tuple(image.shape)}".encode() + little_endian(image)).digest()


def little_endian(value: Tensor) -> bytes:
    """The numbers of a tensor as bytes, the same on every machine."""
    numbers = value.contiguous().numpy()
    return numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).tobytes()


def _floats(name: str, value: Any) -> Tensor:
    """Images as a floating-point tensor on the CPU, at least 32 bits wide, all finite."""
    shape, kind = tuple(getattr(value, "shape", ())), getattr(value, "dtype", type(value).__name__)
    if not isinstance(value, Tensor) or not value.is_floating_point() or len(shape) != 4 or shape[1] != 3:
        text = "expected normalised images, floats [N, 3, H, W], or 8-bit images as pixels="
        raise ShapeError(f"{name} is {kind} of shape {shape}; {text}")
    finite = value.isfinite().flatten(1).all(1)
    if not finite.all():
        row = int(finite.long().argmin())
        raise NonFiniteError(f"{name} holds NaN or infinite values, first in row {row}")
    images = value.detach().cpu()
    return images if images.dtype == torch.float64 else images.float()


def _integers(name: str, numbers: Any) -> Tensor:
    """Whole numbers as a tensor on the CPU."""
    value = torch.as_tensor(numbers)
    if value.is_floating_point() or value.dtype == torch.bool:
        raise ShapeError(f"{name} is {value.dtype}; give integers (torch.long), one per image")
    return value.detach().to("cpu", torch.long)


def _check(task: ImageTask) -> None:
    """Refuse columns that do not have one value per image, and numbers that mean nothing."""
    n, pixels, labels, foils = task.n, task.pixels, task.labels, task.foils
    if pixels is not None and (pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3):
        raise ShapeError(f"pixels are {pixels.dtype} of shape {pixels.shape}; expected uint8 [N, H, W, 3]")
    if task.corrupted is not None and tuple(task.corrupted.shape) != (n, 3, *task.image_size):
        shapes = f"{task.image_size} have counterparts of shape {tuple(task.corrupted.shape)}"
        raise ShapeError(f"{n} images of {shapes}; every image needs a counterpart of its size")
    for name, values in task.fields.items():
        if len(values) != n:
            raise ShapeError(f"{name} has {len(values)} entries for {n} images; give one per image")
    for name, ndim in (("labels", 1), ("ids", 1), ("foils", 2)):
        column = getattr(task, name)
        if column is None:
            continue
        least = int(column.min()) if column.numel() else 0
        if column.ndim != ndim or len(column) != n or column.numel() == 0 or least < 0:
            text = f"{name} is {list(column.shape)} from {least}"
            raise ShapeError(f"{text}; give [{n}{', at least 1' * (ndim == 2)}], numbers from 0")
    if labels is not None and task.classes is not None and int(labels.max()) >= len(task.classes):
        text = f"labels holds {int(labels.max())} (image {int(labels.argmax())})"
        raise InputError(f"{text}, but there are {len(task.classes)} classes, counted from 0")
    if foils is not None and labels is not None and bool((same := (foils == labels[:, None]).any(1)).any()):
        raise InputError(f"the foil of image {int(same.nonzero()[0])} is its label; give another class")


def by_size(value: str) -> tuple[int, str]:
    """Sorts numbers by size, and before words."""
    return (int(value), "") if value.isdecimal() else (2**63, value)
