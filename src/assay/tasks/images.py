"""`ImageTask`: images of one domain for a model, decoded whenever they are needed, or held in memory."""

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from assay.core.errors import (
    AssayError,
    InputError,
    NonFiniteError,
    ShapeError,
    check_least,
    check_name,
)
from assay.core.machine import free_memory
from assay.core.random import stream
from assay.tasks.image_batch import ImageBatch, OfClasses
from assay.tasks.image_reading import PIECE, Pictures, decode, groups_of, unequal, usual_workers
from assay.tasks.image_transform import EvalTransform, ReadsImages
from assay.tasks.rows import draw_rows


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ImageTask(OfClasses):
    """Images of one domain: normalised, in 8 bits, or in files that are decoded whenever the task is run.

    A run over files holds one batch and what worker processes have decoded ahead: two pieces of at most 32
    images for each worker. `held` decodes them once, for images that are read several times. Numbers are the
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
        foils: Classes that the label is compared with `[N, F]`, for differences of logits; see
            `with_runner_up`. None if the task has none.
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
        workers: Processes that decode beside this one; 0: none; None: none for fewer than 256 images, else
            one per usable core, at most 8.

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
    rows: Int[Tensor, " n"] = None  # type: ignore[assignment]
    transform: EvalTransform | None = None
    corrupted: Float[Tensor, "n 3 h w"] | None = None
    labels: Int[Tensor, " n"] | None = None
    foils: Int[Tensor, "n n_foils"] | None = None
    ids: Int[Tensor, " n"] = None  # type: ignore[assignment]
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
    _n_tokens: int = field(default=0, init=False)  # set by `bound`

    def __post_init__(self) -> None:
        given = [each for each in (self.images, self.pixels, self.source) if each is not None]
        if len(given) != 1 or len(given[0]) == 0:
            raise InputError(f"domain {self.domain or self.name!r} has no images; give at least one")
        if self.workers is not None and self.workers < 0:
            raise InputError(f"workers is {self.workers}; give 0 (decode in this process) or more")
        changed: dict[str, Any] = {
            name: _floats(name, getattr(self, name)) for name in ("images", "corrupted")
        } | {name: _integers(name, getattr(self, name)) for name in ("rows", "labels", "foils", "ids")}
        if changed["rows"] is None:
            changed["rows"] = torch.arange(len(given[0]))
        if changed["ids"] is None:
            changed["ids"] = changed["rows"]
        if self.transform is not None and (self.source is None or self.source.size is not None):
            changed["transform"] = replace(self.transform, resize=None, crop=None)  # applied by now
        for name, value in changed.items():
            object.__setattr__(self, name, value)
        _check_pixels(self)
        _check_columns(self)

    @property
    def n(self) -> int:
        """Number of images."""
        return len(self.rows)

    def __repr__(self) -> str:
        size = "" if (sides := self._stated_size) is None else f", size={sides[0]}x{sides[1]}"
        return f"ImageTask({self.name!r}, domain={self.domain!r}, n={self.n}{size})"

    # ------------------------------------------------------------------------------------------- the images

    @cached_property
    def clean(self) -> Float[Tensor, "n 3 h w"]:
        """All images, normalised; those in files are decoded for it and then held. Errors as of `batches`."""
        if self.images is not None:
            return self.images
        pixels = self.held().pixels
        assert pixels is not None
        return self._numbers.normalised(pixels)

    @property
    def _numbers(self) -> EvalTransform:
        """The transform of a run; before a model is known, pixels are scaled to [-1, 1]."""
        return self.transform or EvalTransform(resize=None)

    @property
    def _stated_size(self) -> tuple[int, int] | None:
        """Height and width, where no image needs to be decoded for them."""
        if self.images is not None:
            return self.images.shape[2], self.images.shape[3]
        if self.pixels is not None:
            return self.pixels.shape[1], self.pixels.shape[2]
        return self._numbers.size if self.source is None or self.source.size is None else self.source.size

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Height and width in pixels after the transform; where it does not tell, of the first image."""
        if self._stated_size is not None:
            return self._stated_size
        assert self.source is not None
        height, width, _ = self.source.decoded(int(self.rows[0]), self.transform)[0].shape
        return height, width

    def batches(self, batch_size: int) -> Iterator[ImageBatch]:
        """The images in order, `batch_size` at a time (the last batch may be smaller).

        Raises:
            FileFormatError: If an image cannot be decoded; the batches before it were given.
            WorkerError: If a worker ended without being asked to.
        """
        check_least(1, batch_size=batch_size)
        parts = torch.arange(self.n).split(batch_size)
        if self.source is not None:
            yield from map(self._batch, parts, self._decoded(parts))
        for rows in () if self.source is not None else parts:
            if self.images is not None:
                yield self._batch(rows, self.images[rows])
            elif self.pixels is not None:
                yield self._batch(rows, self._numbers.normalised(self.pixels[rows.numpy()]))

    def _decoded(self, parts: Sequence[Int[Tensor, " batch"]]) -> Iterator[Float[Tensor, "batch 3 h w"]]:
        """The images of each batch, from the source."""
        assert self.source is not None
        groups = [groups_of(self.rows[rows].tolist()) for rows in parts]
        every = [group for part in groups for group in part]
        pieces = decode(self.source, every, self._numbers, normalise=True, workers=self.decoding_workers)
        first: tuple[int, Sequence[int]] | None = None
        for part in groups:
            images = []
            for piece in (next(pieces) for _ in part):
                if piece.bad:
                    raise next(iter(piece.bad.values()))
                assert piece.pixels is not None
                size = tuple(piece.pixels.shape[2:4])
                first = first or (piece.rows[0], size)
                if size != first[1]:
                    raise unequal(self.source, piece.rows[0], size, *first)
                images.append(piece.pixels)
            yield images[0] if len(images) == 1 else torch.cat(images)

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
            lengths=torch.full((len(rows),), self._n_tokens),
            pinned=pinned,
        )

    @property
    def decoding_workers(self) -> int:
        """Processes that decode the images beside this one."""
        if self.source is None:
            return 0
        return usual_workers(self.n) if self.workers is None else self.workers

    def held(self, *, skip_bad: bool = False) -> "ImageTask":
        """The same images, decoded once and held in 8 bits: for some that are read several times.

        Args:
            skip_bad: Leave out images that cannot be decoded, and list them in `skipped`.

        Raises:
            FileFormatError: If an image cannot be decoded and is not skipped.
            InputError: If none can be decoded, or they do not fit into the memory.
            ShapeError: If they differ in size and no transform makes them equal.
            WorkerError: If a worker ended without being asked to.
        """
        if self.source is None:
            return self
        rows = self.rows.tolist()
        pixels: UInt8[np.ndarray, "n h w 3"] | None = None
        bad: dict[int, AssayError] = {}
        n, first = 0, 0
        groups = [rows[:1], *groups_of(rows[1:])]  # the memory is checked before the second image is decoded
        for piece in decode(self.source, groups, self.transform, workers=self.decoding_workers):
            bad |= piece.bad
            if bad and not skip_bad:
                raise next(iter(bad.values()))
            if piece.pixels is None:
                continue
            if pixels is None:
                self._check_room(piece.pixels[0].numpy())
                pixels, first = np.empty((len(rows), *piece.pixels.shape[1:]), dtype=np.uint8), piece.rows[0]
            if piece.pixels.shape[1:] != pixels.shape[1:]:
                raise unequal(self.source, piece.rows[0], piece.pixels.shape[1:3], first, pixels.shape[1:3])
            pixels[n : n + len(piece.rows)] = piece.pixels.numpy()
            n += len(piece.rows)
        kept = self._without(bad)
        assert pixels is not None  # `_without` raises where no image could be decoded
        changed: dict[str, Any] = {"rows": torch.arange(n), "notes": (*kept.notes, *self._turned)}
        return replace(kept, source=None, pixels=pixels[:n], **changed).bound(self._n_tokens)

    def readable(self) -> "ImageTask":
        """The images that can be decoded, for which each is decoded once; the others are in `skipped`.

        Raises:
            InputError: If there is none.
        """
        if self.source is None:
            return self
        bad: dict[int, AssayError] = {}
        groups = groups_of(self.rows.tolist())
        for piece in decode(self.source, groups, self.transform, keep=False, workers=self.decoding_workers):
            bad |= piece.bad
        return self._without(bad)

    def _without(self, bad: Mapping[int, AssayError]) -> "ImageTask":
        """The images whose rows of the source are not bad."""
        if not bad:
            return self
        assert self.source is not None
        names = tuple(self.source.name(row) for row in bad)
        good = [place for place, row in enumerate(self.rows.tolist()) if row not in bad]
        if not good:
            raise InputError(
                f"none of the {len(names)} images of {self.domain!r} can be decoded, e.g. {names[0]}"
            )
        return replace(
            self.subset(good),
            skipped=(*self.skipped, *names),
            notes=(*self.notes, f"{len(names)} files of {self.domain} were skipped"),
            config={**self.config, "skipped": len(self.skipped) + len(names)},
        ).bound(self._n_tokens)

    def _check_room(self, image: UInt8[np.ndarray, "h w 3"]) -> None:
        needed, free = self.n * image.nbytes, free_memory()
        if needed > free:
            raise InputError(
                f"{self.n:,} images of {self.domain!r} with {image.shape[0]} x {image.shape[1]} pixels take "
                f"{needed / 1e9:.1f} GB and {free / 1e9:.1f} GB of memory are free; read a sample with n=, "
                "or do not hold them"
            )

    @property
    def _turned(self) -> tuple[str, ...]:
        """A note that counts the images turned so far."""
        turned = set() if self.source is None else self.source.turned.intersection(self.rows.tolist())
        return (
            (f"{len(turned)} images of {self.domain} were turned as their EXIF orientation says",)
            if turned
            else ()
        )

    # ------------------------------------------------------------------------------- as a model reads them

    def for_model(self, model: ReadsImages, transform: EvalTransform | None = None) -> "ImageTask":
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
        config = {**self.config, "normalise": transform.normalisation, "skipped": len(self.skipped)}
        if self.source is not None and self.source.size is None:
            config["geometry"] = {name: transform.to_dict()[name] for name in ("resize", "crop", "resample")}
        return replace(self, transform=transform, config=config)

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
            raise InputError(
                f"{self.domain or self.name!r} has images {'' if foils is None else 'or foils '}of "
                f"{', '.join(strange)}, which are not among the "
                f"classes {', '.join(classes[:8])}{', ...' if len(classes) > 8 else ''}; rename the classes "
                "of the images, or leave these out"
            )
        order = torch.tensor([classes.index(name) if name in shown else -1 for name in self.classes])
        foils = None if foils is None else order[foils]
        return replace(self, labels=order[self.labels], foils=foils, classes=tuple(classes)).bound(
            self._n_tokens
        )

    def bound(self, n_tokens: int) -> "ImageTask":
        """The same images, cut into `n_tokens` positions by some model; see `Model.bind`."""
        if self._n_tokens == n_tokens:
            return self
        task = copy.copy(self)  # not `replace`, which would check every image again
        object.__setattr__(task, "_n_tokens", n_tokens)
        return task

    @property
    def length(self) -> int:
        """Positions a model makes of an image.

        Raises:
            InputError: Before the task is bound to a model, which decides it.
        """
        if self._n_tokens == 0:
            raise InputError(f"{self!r} is not bound to a model, which cuts it; use model.bind(task)")
        return self._n_tokens

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
        for name, values in (("labels", self.labels), ("foils", self.foils)):
            if n_classes is not None and values is not None and int(values.max()) >= n_classes:
                raise InputError(
                    f"{name} hold class {int(values.max())}, but the model has classes 0 to {n_classes - 1}; "
                    "label the data with the model's own classes"
                )
        if self.image_size != tuple(image_size):
            sizes = [" x ".join(map(str, each)) for each in (self.image_size, image_size)]
            raise ShapeError(
                f"the images of {self.domain or self.name!r} are {sizes[0]}, but the model reads {sizes[1]}; "
                "read them with an EvalTransform of that size"
            )
        if classes is not None and self.classes is not None and tuple(classes) != self.classes:
            raise InputError(
                f"model and data do not have the same classes in the same order: model {list(classes)}, data "
                f"{list(self.classes)}; use task.with_classes(model.classes)"
            )

    # ---------------------------------------------------------------------------- counterparts and foils

    def with_donors(self, rows: Int[Tensor, " n"]) -> "ImageTask":
        """The same images with, as counterparts, the images of the given rows."""
        return replace(self, corrupted=self.clean[rows]).bound(self._n_tokens)

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

    def with_runner_up(self, logits: Float[Tensor, "n n_classes"]) -> "ImageTask":
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

    # ---------------------------------------------------------------------------------- some of the images

    def subset(self, indices: Int[Tensor, " k"] | Int[np.ndarray, " k"] | Sequence[int]) -> "ImageTask":
        """The images in these rows, in this order; they keep their ids.

        Args:
            indices: Row numbers, 0 .. n - 1; repeats are allowed.

        Raises:
            InputError: If there is none, or one is out of range.
        """
        chosen = torch.as_tensor(indices).numpy()
        if chosen.ndim != 1 or len(chosen) == 0 or not np.issubdtype(chosen.dtype, np.integer):
            raise InputError(
                f"subset has {chosen.shape} of {chosen.dtype}; expected a list of at least one row number"
            )
        if int(chosen.min()) < 0 or int(chosen.max()) >= self.n:
            raise InputError(
                f"subset names rows {int(chosen.min())} to {int(chosen.max())}, but there are 0 to "
                f"{self.n - 1}"
            )
        rows = torch.from_numpy(chosen.astype(np.int64))
        changed: dict[str, Any] = {
            name: None if (values := getattr(self, name)) is None else values[rows]
            for name in ("images", "corrupted", "labels", "foils", "ids")
        }
        changed["fields"] = {name: [values[i] for i in rows.tolist()] for name, values in self.fields.items()}
        changed["rows"] = torch.arange(len(rows)) if self.source is None else self.rows[rows]
        changed["pixels"] = None if self.pixels is None else self.pixels[rows.numpy()]
        return replace(self, **changed).bound(self._n_tokens)

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
        if not 1 <= k <= self.n:
            raise InputError(f"cannot split {self.n} images into {k} parts; give 1 to {self.n}")
        shuffled = stream(seed, "images/parts").permutation(self.n)
        config = {**self.config, "parts": {"k": k, "seed": seed}}
        return tuple(
            replace(self.subset(np.sort(rows)), domain=f"{self.domain}/{number}", config=config)
            for number, rows in enumerate(np.array_split(shuffled, k), start=1)
        )

    def by_field(self, *names: str) -> "dict[str, ImageTask]":
        """The images as one domain per combination of values of some fields (hospital, region), sorted.

        A domain is called by its values; values that are numbers, with their field, as `slide 7`.

        Raises:
            UnknownNameError: If the images have no such field.
        """
        rows: dict[tuple[str, ...], list[int]] = {}
        for name in names:
            check_name(f"field of {self.domain or self.name}", name, self.fields)
        for row, values in enumerate(zip(*(self.fields[name] for name in names), strict=True)):
            rows.setdefault(tuple(map(str, values)), []).append(row)
        domains = {}
        for values in sorted(rows, key=lambda each: [by_size(value) for value in each]):
            named = zip(names, values, strict=True)
            domain = "/".join(f"{name} {value}" if value.isdecimal() else value for name, value in named)
            domains[domain] = replace(self.subset(rows[values]), domain=domain)
        return domains

    # -------------------------------------------------------------------------------------------- identity

    @property
    def _digests(self) -> dict[int, bytes]:
        """Digests of the pictures that were read under this transform, by row; kept with the source."""
        key = json.dumps(self._numbers.to_dict())
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
        for name in ("labels", "foils"):
            if (value := getattr(self, name)) is not None:
                digest.update(f"{name}{tuple(value.shape)}".encode() + _little_endian(value))
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
        digest = hashlib.sha256(f"stream {json.dumps(self._numbers.to_dict())}".encode())
        for mark in self.source.marks(self.rows.tolist()):
            digest.update(mark.encode(errors="surrogateescape") + b"\0")
        for name in ("ids", "labels", "foils"):
            value = getattr(self, name)
            digest.update(name.encode())
            if value is not None:
                digest.update(value.contiguous().numpy().astype("<i8").data)
        return digest.hexdigest()

    def describe(self, identity: str = "data_hash") -> dict[str, Any]:
        """Identity of the images as it enters records; of keys with `source_hash`, without notes."""
        facts = {name: getattr(self, name) for name in ("name", "domain", identity, "n")}
        notes = [] if identity == "source_hash" else [*self.notes, *self._turned]  # they grow with reading
        return facts | {"config": dict(self.config)} | ({"notes": notes} if notes else {})


def digest_of(image: Float[Tensor, "3 h w"]) -> bytes:
    """SHA-256 over type, shape and numbers of an image."""
    return hashlib.sha256(f"{image.dtype}{tuple(image.shape)}".encode() + _little_endian(image)).digest()


def _little_endian(value: Tensor) -> bytes:
    """The numbers of a tensor as bytes, the same on every machine."""
    numbers = value.contiguous().numpy()
    return numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).tobytes()


def by_size(value: str) -> tuple[int, str]:
    """Sorts numbers by size, and before words."""
    return (int(value), "") if value.isdecimal() else (2**63, value)


# ------------------------------------------------------------------------------------------------- checks


def _floats(name: str, value: Any) -> Tensor | None:
    """Images as a floating-point tensor on the CPU, at least 32 bits wide."""
    if value is None:
        return None
    if not isinstance(value, Tensor) or not value.is_floating_point():
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ShapeError(
            f"{name} is {came}; give normalised images as a floating-point tensor [N, 3, H, W], or 8-bit "
            "images as pixels="
        )
    return value.detach().to("cpu", torch.float64 if value.dtype == torch.float64 else torch.float32)


def _integers(name: str, value: Any) -> Tensor | None:
    """Whole numbers as a tensor on the CPU."""
    if value is None:
        return None
    value = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype == torch.bool:
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ShapeError(f"{name} is {came}; give integers [N] (torch.long), one per image")
    return value.detach().to("cpu", torch.long)


def _check_pixels(task: ImageTask) -> None:
    """Refuse images of other shapes and numbers, and counterparts of another size."""
    pixels = task.pixels
    if pixels is not None and (pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3):
        raise ShapeError(f"pixels are {pixels.dtype} of shape {pixels.shape}; expected uint8 [N, H, W, 3]")
    for name, images in (("images", task.images), ("corrupted", task.corrupted)):
        if images is None:
            continue
        shape = tuple(images.shape)
        if len(shape) != 4 or shape[1] != 3:
            raise ShapeError(
                f"{name} has shape {shape}; expected [N, 3, H, W]. Move the channels to the front with "
                "images.permute(0, 3, 1, 2), and give RGB"
            )
        if name == "corrupted" and shape != (task.n, 3, *task.image_size):
            raise ShapeError(
                f"{task.n} images of {task.image_size} have counterparts of shape {shape}; every image needs "
                "a counterpart of its size"
            )
        bad = ~torch.isfinite(images).flatten(1).all(1)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise NonFiniteError(
                f"{name} holds NaN or infinite values in {int(bad.sum())} of {task.n} images, first in row "
                f"{row} (id {int(task.ids[row])}); drop or repair them"
            )
    if task.images is not None and task.corrupted is not None:
        object.__setattr__(task, "corrupted", task.corrupted.to(task.images.dtype))


def _check_columns(task: ImageTask) -> None:
    """Refuse columns that do not have one value per image, and foils that are no other class."""
    n, labels, foils, classes = task.n, task.labels, task.foils, task.classes
    for name, value in (("labels", labels), ("ids", task.ids)):
        if value is not None and value.shape != (n,):
            raise ShapeError(f"{name} has shape {tuple(value.shape)}; expected [{n}], one number per image")
        if value is not None and int(value.min()) < 0:
            raise InputError(f"{name} holds {int(value.min())} (image {int(value.argmin())}); count from 0")
    for name, values in task.fields.items():
        if isinstance(values, str) or len(values) != n:
            raise ShapeError(f"field {name!r} has {len(values)} entries for {n} images; give one per image")
    if classes is not None and len(set(classes)) != len(classes):
        raise InputError(f"a class is listed twice: {list(classes)}")
    if labels is not None and classes is not None and int(labels.max()) >= len(classes):
        raise InputError(
            f"labels holds {int(labels.max())} (image {int(labels.argmax())}), but there are {len(classes)} "
            f"classes, 0 to {len(classes) - 1}"
        )
    if foils is None:
        return
    if foils.ndim != 2 or len(foils) != n or foils.shape[1] == 0:
        raise ShapeError(f"foils have shape {tuple(foils.shape)}; expected [{n}, at least 1]")
    if int(foils.min()) < 0:
        raise InputError("foils hold a negative class; classes are counted from 0")
    if labels is not None and bool((same := (foils == labels[:, None]).any(1)).any()):
        raise InputError(
            f"the foil of image {int(same.nonzero()[0])} is its label; a class can be only one of them"
        )
