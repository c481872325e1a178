"""`ImageListing`: images of one domain, found but not decoded; read whole, or streamed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8

from assay.core.errors import InputError
from assay.core.machine import free_memory
from assay.tasks.image_decoding import Decoding, Pictures, check_workers, groups_of, unequal, usual_workers
from assay.tasks.image_rows import draw_rows
from assay.tasks.image_set import ImageSet
from assay.tasks.image_stream import ImageStream
from assay.tasks.image_transform import EvalTransform


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What every reader of images does with the files it finds.

    Attributes:
        transform: Geometry applied while reading; None keeps the images as they are, all of one size.
        n: Read a random sample of this many images; None or more than there are: all.
        seed: Seed of the sample.
        skip_bad: Leave out files that cannot be decoded, and list them in `skipped`, instead of failing. A
            stream then decodes each image once before it starts, so that the number of images is known.
        workers: Processes that decode beside this one; 0: none; None: none for fewer than 256 images, else
            one per usable core, at most 8. Results do not depend on it.
    """

    transform: EvalTransform | None = None
    n: int | None = None
    seed: int = 0
    skip_bad: bool = False
    workers: int | None = None

    def __post_init__(self) -> None:
        check_workers(self.workers)


DEFAULTS = ReadOptions()


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageListing:
    """Images of one domain: where each lies, and what is known of it.

    Attributes:
        pictures: The images, not decoded.
        labels: Class of each `[N]`; None if unknown, or given with the pictures only.
        ids: Number of each in its data set `[N]`; None: 0 .. N - 1.
        fields: Facts about each, name to list of N.
        classes: Names of the classes, label 0 first; None if unknown.
        domain: Where the images come from.
        config: How they were found (JSON values), at least `source`.
    """

    pictures: Pictures
    labels: Int64[np.ndarray, " n"] | None = None
    ids: Int64[np.ndarray, " n"] | None = None
    fields: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    domain: str = ""
    config: Mapping[str, Any]

    def __post_init__(self) -> None:
        if len(self.pictures) == 0:
            raise InputError(f"domain {self.domain!r} has no images; give files such as .png or .jpg")

    def read(self, options: ReadOptions = DEFAULTS) -> ImageSet:
        """The images, decoded, in memory.

        Raises:
            FileFormatError: If an image cannot be decoded and is not skipped.
            InputError: If none can be decoded, or they do not fit into the memory.
            ShapeError: If they differ in size and no transform makes them equal.
        """
        rows = draw_rows(len(self.pictures), options.n, seed=options.seed)
        pixels: UInt8[np.ndarray, "_ _ _ 3"] | None = None
        kept = _Readable()
        groups = [rows[:1].tolist(), *groups_of(rows[1:].tolist())]  # memory is checked on the first image
        workers = usual_workers(len(rows)) if options.workers is None else options.workers
        for piece in Decoding(transform=options.transform, workers=workers).pieces(self.pictures, groups):
            first = len(kept.rows)
            kept.add(piece.rows, piece.labels, piece.bad, skip_bad=options.skip_bad)
            if piece.pixels is None:
                continue
            if pixels is None:
                self._check_room(len(rows), piece.pixels[0].numpy())
                pixels = np.empty((len(rows), *piece.pixels.shape[1:]), dtype=np.uint8)
            if piece.pixels.shape[1:] != pixels.shape[1:]:
                shapes = tuple(piece.pixels.shape[1:]), pixels.shape[1:]
                raise unequal(self.pictures, piece.rows[0], shapes[0], kept.rows[0], shapes[1])
            pixels[first : len(kept.rows)] = piece.pixels.numpy()
        skipped = self._skipped(kept)
        assert pixels is not None  # `_skipped` raises where no image could be decoded
        return ImageSet(
            pixels=pixels[: len(kept.rows)], skipped=skipped, **self._columns(kept, options, torch_ids=False)
        )

    def stream(self, options: ReadOptions = DEFAULTS) -> ImageStream:
        """The images as a task that decodes them anew whenever it is run, and holds none.

        Args:
            options: Its transform is applied, numbers included; without one, images are read as they are and
                scaled to [-1, 1].

        Raises:
            FileFormatError: If the first image cannot be decoded and is not skipped.
            InputError: If none can be decoded.
        """
        transform = options.transform or EvalTransform(resize=None)
        options = replace(options, transform=transform)
        rows = draw_rows(len(self.pictures), options.n, seed=options.seed)
        workers = usual_workers(len(rows)) if options.workers is None else options.workers
        kept = _Readable(rows=rows.tolist())
        if options.skip_bad or self.pictures.labelled:
            kept = _Readable()
            look = Decoding(transform=transform, keep=False, workers=workers)
            for piece in look.pieces(self.pictures, groups_of(rows.tolist())):
                kept.add(piece.rows, piece.labels, piece.bad, skip_bad=options.skip_bad)
        skipped = self._skipped(kept)
        columns = self._columns(kept, options, torch_ids=True)
        columns["config"] |= {"normalise": transform.normalisation, "skipped": len(skipped)}
        return ImageStream(
            pictures=self.pictures,
            transform=transform,
            rows=torch.tensor(kept.rows),
            workers=workers,
            skipped=skipped,
            **columns,
        )

    def _skipped(self, kept: "_Readable") -> tuple[str, ...]:
        names = tuple(self.pictures.name(row) for row in kept.skipped)
        if not kept.rows:
            raise InputError(
                f"none of the {len(names)} images of {self.domain!r} can be decoded, e.g. {names[0]}"
            )
        return names

    def _columns(self, kept: "_Readable", options: ReadOptions, *, torch_ids: bool) -> dict[str, Any]:
        """What a set and a stream know of the images in the rows that were kept."""
        rows = kept.rows
        labels = kept.all_labels() if self.labels is None else self.labels[rows]
        ids = np.array(rows, dtype=np.int64) if self.ids is None else self.ids[rows]
        transform = options.transform
        geometry = (
            None if transform is None else {k: transform.to_dict()[k] for k in ("resize", "crop", "resample")}
        )
        return {
            "labels": torch.from_numpy(labels) if torch_ids and labels is not None else labels,
            "ids": torch.from_numpy(ids) if torch_ids else ids,
            "domain": self.domain,
            "fields": {name: [values[row] for row in rows] for name, values in self.fields.items()},
            "classes": self.classes,
            "name": str(self.config["source"]),
            "config": {**self.config, "geometry": geometry, "n": options.n, "seed": options.seed},
        }

    def _check_room(self, n: int, image: UInt8[np.ndarray, "h w 3"]) -> None:
        """Refuse more images than the memory holds, before the second is decoded."""
        needed, free = n * image.nbytes, free_memory()
        if needed > free:
            raise InputError(
                f"{n:,} images of {self.domain!r} with {image.shape[0]} x {image.shape[1]} pixels take "
                f"{needed / 1e9:.1f} GB and {free / 1e9:.1f} GB of memory are free; read a sample with n=, "
                "or stream them"
            )


@dataclass(kw_only=True)
class _Readable:
    """Which pictures could be decoded so far."""

    rows: list[int] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)

    def add(
        self,
        rows: Sequence[int],
        labels: Sequence[int | None],
        bad: Mapping[int, Exception],
        *,
        skip_bad: bool,
    ) -> None:
        if bad and not skip_bad:
            raise next(iter(bad.values()))
        self.rows += rows
        self.labels += labels
        self.skipped += bad

    def all_labels(self) -> Int64[np.ndarray, " n"] | None:
        """Labels that came with the pictures; None where none did."""
        if all(label is None for label in self.labels):
            return None
        if None in self.labels:
            row = self.rows[self.labels.index(None)]
            raise InputError(f"item {row} of the data set has no label, but others do")
        return np.array(self.labels, dtype=np.int64)
