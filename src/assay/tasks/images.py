"""`ImageTask`: images of one domain for a model, decoded whenever they are needed, or held in memory."""

import copy
import hashlib
import itertools
import json
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from assay.core.errors import InputError, ShapeError
from assay.core.machine import DECODING, free_memory, usable_cores
from assay.tasks.image_reading import decode_rows
from assay.tasks.image_rows import OF_CLASSES, ImageBatch, ImageRows, digest_of, little_endian
from assay.tasks.image_transform import EvalTransform
from assay.tasks.task import PairBatch, PairTask


FEW = 256  # images below which one thread is as fast
MOST_WORKERS = 8  # unless asked for more
PIECE = 32  # images of a batch that is read for its digests alone


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ImageTask(ImageRows):
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

    def __repr__(self) -> str:
        return f"ImageTask({self.name!r}, domain={self.domain!r}, n={self.n})"

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
        images: Iterator[Tensor]
        if self.images is not None:
            images = (self.images[rows] for rows in parts)
        elif self.pixels is not None:
            images = (self.numbers.normalised(self.pixels[rows.numpy()]) for rows in parts)
        else:
            decoded = self._decoded()
            stacks = (np.stack(list(itertools.islice(decoded, len(rows)))) for rows in parts)
            images = map(self.numbers.normalised, stacks)
        yield from map(self._batch, parts, images)

    def _decoded(
        self, bad: list[int] | None = None, *, keep: bool = True
    ) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
        """`decode_rows` of all images; rows that cannot be decoded go into `bad`, where it is given."""
        assert self.source is not None
        rows, workers = self.rows.tolist(), self.decoding_workers
        return decode_rows(self.source, rows, self.numbers, workers, bad=bad, keep=keep)

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
            pinned=pinned,
        )

    @property
    def decoding_workers(self) -> int:
        """Threads that decode the images beside this one."""
        if self.source is None:
            return 0
        asked = DECODING.get()[0] if self.workers is None else self.workers
        return asked if asked is not None else 0 if self.n < FEW else min(MOST_WORKERS, usable_cores())

    def held(self, *, skip_bad: bool = False) -> "ImageTask":
        """The same images, decoded once and held in 8 bits: for some that are read several times.

        Args:
            skip_bad: Leave out images that cannot be decoded, and list them in `skipped`.

        Raises:
            FileFormatError: If an image cannot be decoded and is not skipped.
            InputError: If none can be decoded, or they do not fit into the memory.
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
            InputError: If there is none.
        """
        if self.source is None:
            return self
        bad: list[int] = []
        for _ in self._decoded(bad, keep=False):
            pass
        return self._without(bad)

    def _without(self, bad: Sequence[int]) -> "ImageTask":
        """The images whose rows of the source are not bad."""
        if not bad:
            return self
        assert self.source is not None
        names = tuple(self.source.name(row) for row in bad)
        good = [place for place, row in enumerate(self.rows.tolist()) if row not in bad]
        if not good:
            raise InputError(f"none of the images of {self.domain!r} can be decoded, e.g. {names[0]}")
        return replace(
            self.subset(good),
            skipped=(*self.skipped, *names),
            notes=(*self.notes, f"{len(names)} files of {self.domain} were skipped"),
            config={**self.config, "skipped": len(self.skipped) + len(names)},
        )

    @property
    def _turned(self) -> tuple[str, ...]:
        """A note that counts the images turned so far; none where there are none."""
        n = len(self.source.turned.intersection(self.rows.tolist())) if self.source else 0
        return (f"{n} images of {self.domain} were turned as their EXIF orientation says",) * (n > 0)

    # ------------------------------------------------------------------------------- as a model reads them

    def for_model(self, model: Any, transform: EvalTransform | None = None) -> "ImageTask":
        """The images as a model reads them: by its transform, labels in the order of its classes.

        Normalised images, and those that have a transform, stay as they are unless another is given.

        Args:
            model: An image classifier.
            transform: Instead of the model's own.

        Raises:
            InputError: If the images show a class that the model does not know.
        """
        if self.images is not None or (transform is None and self.transform is not None):
            return self
        images = self.with_classes(getattr(model, "classes", None))
        return images.with_transform(transform or EvalTransform.for_model(model))

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
        numbers = [each for each in (self.labels, self.foils) if each is not None]
        largest = max((int(each.max()) for each in numbers), default=0)
        if n_classes is not None and largest >= n_classes:
            raise InputError(f"foils or labels hold class {largest}; the model has 0 to {n_classes - 1}")
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
        for name in OF_CLASSES:
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
        for name in ("ids", *OF_CLASSES):
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
