"""`ImageStream`: an image task that decodes its images whenever it is run, and holds none of them."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from assay.core.errors import check_least
from assay.core.random import stream
from assay.tasks.image_batch import ImageBatch
from assay.tasks.image_decoding import PIECE, Arrays, Decoding, Pictures, groups_of, unequal
from assay.tasks.image_rows import ImageRows, check_batch_size, digest_of, fill
from assay.tasks.image_transform import EvalTransform
from assay.tasks.images import ImageTask


@dataclass(kw_only=True, eq=False)
class DecodedBatch:
    """Some images of a stream after resize and crop, in 8 bits: what tasks of one geometry share.

    Attributes:
        pixels: `[batch, H, W, 3]`.
        indices: Row numbers in the stream.
    """

    pixels: UInt8[Tensor, "batch h w 3"]
    indices: Int[Tensor, " batch"]
    _normalised: dict[str, Tensor] = field(default_factory=dict)

    def normalised(self, transform: EvalTransform) -> Float[Tensor, "batch 3 h w"]:
        """The images under the numbers of a transform; computed once for all that share them."""
        key = json.dumps(transform.normalisation)
        if key not in self._normalised:
            self._normalised[key] = transform.normalised(self.pixels.numpy())
        return self._normalised[key]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ImageStream(ImageRows):
    """Images of one domain that are decoded, some at a time, whenever the task is run.

    A run over it holds one batch and what worker processes have decoded ahead: two pieces of at most 32
    images for each worker. Numbers are those of the same images as an `ImageTask`, whatever the workers and
    the batch size. Made by `ImageListing.stream` and `stream_images`.

    Args:
        pictures: The images in their source.
        transform: The model's: geometry and numbers.
        rows: Row of each image in `pictures`, `[N]`; default: all.
        workers: Processes that decode beside this one; 0: none.
        skipped: Pictures left out because they could not be decoded.
        others: As of `ImageRows`.

    Notes:
        Several models whose transforms have one geometry share the decoding: `for some in
        stream.decoded(32)`, then `task.normalised(some)` for the task of each model (`with_transform`, then
        `Model.bind`) gives its batch; one normalisation is computed once.

    Example:
        >>> from assay.tasks.image_decoding import Arrays
        >>> pictures = Arrays("zeros", np.zeros((5, 8, 8, 3), dtype=np.uint8))
        >>> task = ImageStream(pictures=pictures, transform=EvalTransform(resize=(4, 4)))
        >>> task.n, task.image_size, [len(batch.indices) for batch in task.batches(2)]
        (5, (4, 4), [2, 2, 1])
    """

    per_row: ClassVar[tuple[str, ...]] = (*ImageRows.per_row, "rows")
    corrupted: ClassVar[None] = None  # no counterparts

    pictures: Pictures
    transform: EvalTransform
    rows: Int[Tensor, " n"] = None  # type: ignore[assignment]  # filled in
    workers: int = 0
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        fill(self, rows=torch.arange(len(self.pictures)))
        self._check_rows()

    @property
    def n(self) -> int:
        """Number of images."""
        return len(self.rows)

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Height and width in pixels after the transform; where it does not tell, of the first image."""
        made = self.transform.crop or self.transform.resize
        if isinstance(made, tuple) and (self.transform.crop or self.transform.fit == "squash"):
            return made
        row = int(self.rows[0])
        (piece,) = Decoding(transform=self.transform).pieces(self.pictures, [[row]])
        if piece.pixels is None:
            raise piece.bad[row]
        return piece.pixels.shape[1], piece.pixels.shape[2]

    @property
    def _digests(self) -> dict[int, bytes]:
        """Digests of the pictures that were read under this transform, by row; kept with the pictures."""
        return self.pictures.digests.setdefault(json.dumps(self.transform.to_dict()), {})

    @property
    def digests(self) -> list[bytes]:
        """See `ImageRows.digests`; pictures that no run has read yet are decoded for it."""
        digests, rows = self._digests, self.rows.tolist()
        unread = [place for place, row in enumerate(rows) if row not in digests]
        for _ in self.subset(unread).ascending()[0].batches(PIECE) if unread else ():
            pass
        return [digests[row] for row in rows]

    @cached_property
    def data_hash(self) -> str:
        """See `ImageRows.data_hash`."""
        return self._hash_of(self.digests)

    @cached_property
    def source_hash(self) -> str:
        """SHA-256 over what identifies the images without reading them, 64 hex digits.

        Names, sizes in bytes, checksums where the source stores them, ids, labels, and the transform; of a
        data set in Python, the pixels of about 64 images. Files that change and keep their size are not
        noticed.
        """
        digest = hashlib.sha256(f"stream {json.dumps(self.transform.to_dict())}".encode())
        for mark in self.pictures.marks(self.rows.tolist()):
            digest.update(mark.encode(errors="surrogateescape") + b"\0")
        for name in ("ids", "labels", "foils"):
            value = getattr(self, name)
            digest.update(name.encode())
            if value is not None:
                digest.update(value.contiguous().numpy().astype("<i8").data)
        return digest.hexdigest()

    def batches(self, batch_size: int) -> Iterator[ImageBatch]:
        """The images in order, `batch_size` at a time (the last batch may be smaller), decoded anew.

        Raises:
            FileFormatError: If an image cannot be decoded; the batches before it were given.
            WorkerError: If a worker ended without being asked to.
        """
        for indices, images in self._read(batch_size, normalise=True):
            yield self._placed(indices, images)

    def decoded(self, batch_size: int) -> Iterator[DecodedBatch]:
        """As `batches`, before the numbers of any transform; errors as there."""
        for indices, pixels in self._read(batch_size, normalise=False):
            yield DecodedBatch(pixels=pixels, indices=indices)

    def normalised(self, some: DecodedBatch) -> ImageBatch:
        """The batch of this task from images that a stream of the same rows and geometry decoded."""
        return self._placed(some.indices, some.normalised(self.transform))

    def with_transform(self, transform: EvalTransform) -> "ImageStream":
        """The same images for a model of another transform; not yet bound to it."""
        geometry = {k: transform.to_dict()[k] for k in ("resize", "crop", "resample")}
        config = {**self.config, "geometry": geometry, "normalise": transform.normalisation}
        return replace(self, transform=transform, config=config)

    def _placed(self, indices: Int[Tensor, " batch"], images: Float[Tensor, "batch 3 h w"]) -> ImageBatch:
        """The batch, in pinned memory if a model lies on a GPU; notes what identifies its images."""
        digests = self._digests
        for row, image in zip(self.rows[indices].tolist(), images, strict=True):
            if row not in digests:
                digests[row] = digest_of(image)
        pinned = torch.cuda.is_available() and torch.cuda.is_initialized()
        return self._batch(indices, images.pin_memory() if pinned else images, pinned=pinned)

    def _read(self, batch_size: int, *, normalise: bool) -> Iterator[tuple[Int[Tensor, " batch"], Tensor]]:
        """Row numbers and pixels of each batch."""
        check_batch_size(batch_size)
        parts = [groups_of(rows.tolist()) for rows in self.rows.split(batch_size)]
        how = Decoding(transform=self.transform, normalise=normalise, workers=self.workers)
        pieces = how.pieces(self.pictures, [group for groups in parts for group in groups])
        first: tuple[int, tuple[int, ...]] | None = None
        start = 0
        for groups in parts:
            found = []
            for _ in groups:
                piece = next(pieces)
                if piece.bad:
                    raise next(iter(piece.bad.values()))
                assert piece.pixels is not None
                size = tuple(piece.pixels.shape[2:4] if normalise else piece.pixels.shape[1:3])
                first = first or (piece.rows[0], size)
                if size != first[1]:
                    raise unequal(self.pictures, piece.rows[0], size, *first)
                found.append(piece.pixels)
            stop = start + sum(map(len, groups))
            yield torch.arange(start, stop), found[0] if len(found) == 1 else torch.cat(found)
            start = stop

    def first(self, n: int) -> "ImageStream":
        """The first `n` images, or all if there are fewer."""
        check_least(1, n=n)
        return self.subset(range(min(n, self.n)))

    def shuffled(self, seed: int = 0) -> "ImageStream":
        """The same images in random order.

        Args:
            seed: Seed of the stream `images/order`. The first n of this order are a random sample.

        Notes:
            Shards that are read from front to back (Parquet, compressed archives) are read faster in their
            own order: take the rows of a sample in ascending order of `rows` instead.
        """
        return self.subset(torch.from_numpy(stream(seed, "images/order").permutation(self.n)))

    def ascending(self) -> tuple["ImageStream", Int[Tensor, " n"]]:
        """The images in the order of their source, in which shards are read fastest.

        Returns:
            The stream, and the place of each image of this one in it.
        """
        order = self.rows.argsort(stable=True)
        return self.subset(order), order.argsort()

    def held(self) -> "ImageStream":
        """The same images, decoded once and held in 8 bits: for some that are read several times.

        Raises:
            FileFormatError, WorkerError: As `batches`.
        """
        ordered, places = self.ascending()
        return self.with_pixels(torch.cat([each.pixels for each in ordered.decoded(PIECE)])[places])

    def with_pixels(self, pixels: UInt8[Tensor, "n h w 3"]) -> "ImageStream":
        """The same images, which are decoded already.

        Args:
            pixels: After resize and crop, in the order of the images.
        """
        return replace(
            self,
            pictures=Arrays(self.name, pixels.numpy()),
            transform=replace(self.transform, resize=None, crop=None),  # applied by now
            rows=torch.arange(self.n),
            workers=0,
        ).bound(self._n_tokens)

    def stand_in(self, n: int) -> ImageTask:
        """So many blank images of the same shape, bound to the same model, with labels and foils if known."""
        some = self.first(n)
        repeats = torch.arange(n) % some.n
        height, width = self.image_size
        return ImageTask(
            images=torch.zeros(n, 3, height, width),
            labels=None if self.labels is None else self.labels[repeats],
            foils=None if self.foils is None else self.foils[repeats],
            classes=self.classes,
            objective=self.objective,
            ablation=self.ablation,
        ).bound(self._n_tokens)

    def loaded(self) -> ImageTask:
        """All images, decoded, in memory: what functions take that need them all at once.

        Raises:
            FileFormatError, WorkerError: As `batches`.
        """
        names = ("labels", "foils", "ids", "domain", "fields", "classes", "name", "objective", "ablation")
        ordered, places = self.ascending()
        images = torch.cat([batch.images for batch in ordered.batches(256)])[places]
        facts = {name: getattr(self, name) for name in names}
        return ImageTask(images=images, config=self.config, **facts).bound(self._n_tokens)
