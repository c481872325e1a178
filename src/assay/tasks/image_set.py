"""Images as they are kept: pixels, labels, names, and what a model makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8

from assay.core.errors import InputError, ShapeError, check_name
from assay.tasks.image_decoding import Arrays
from assay.tasks.image_rows import DrawnRows, check_per_image, checked_rows, fill
from assay.tasks.image_stream import ImageStream
from assay.tasks.image_transform import EvalTransform
from assay.tasks.images import ImageTask


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ImageSet(DrawnRows):
    """Images of one domain in 8 bits, before normalisation: what is corrupted, sampled and split.

    Args:
        pixels: RGB images `[N, H, W, 3]`, uint8.
        labels: Class of each image `[N]`, 0 or more; None if unknown.
        ids: Number of each image in its data set `[N]`; random corruptions follow it. Default: 0 .. N - 1.
        domain: Where the images come from.
        fields: Facts about each image, name to list of N (paths, metadata).
        classes: Names of the classes, label 0 first; None if unknown.
        name: Name of the data set in results.
        config: How the images were made (JSON values).
        skipped: Files left out because they could not be read.

    Raises:
        InputError: If there is no image, a label has no class, an id is negative.
        ShapeError: If shapes or number types do not fit together.
    """

    pixels: UInt8[np.ndarray, "n h w 3"]
    labels: Int64[np.ndarray, " n"] | None = None
    # Left out, these two are filled in by `__post_init__`, so that readers never meet None.
    ids: Int64[np.ndarray, " n"] = None  # type: ignore[assignment]
    domain: str = ""
    fields: Mapping[str, Sequence[Any]] = None  # type: ignore[assignment]
    classes: tuple[str, ...] | None = None
    name: str = "custom"
    config: Mapping[str, Any] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4 or self.pixels.shape[3] != 3:
            raise ShapeError(
                f"pixels are {self.pixels.dtype} of shape {self.pixels.shape}; expected uint8 [N, H, W, 3]"
            )
        if self.pixels.size == 0:
            raise InputError(f"domain {self.domain!r} has no images (pixels of shape {self.pixels.shape})")
        fill(self, ids=np.arange(self.n))
        object.__setattr__(self, "fields", dict(self.fields or {}))
        labels = None if self.labels is None else torch.from_numpy(self.labels)
        check_per_image(self.n, labels, torch.from_numpy(self.ids), self.fields, self.classes)

    def __repr__(self) -> str:
        size = "x".join(map(str, self.pixels.shape[1:3]))
        return f"ImageSet({self.name!r}, domain={self.domain!r}, n={self.n}, size={size})"

    @property
    def n(self) -> int:
        """Number of images."""
        return len(self.pixels)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pixels.shape[1], self.pixels.shape[2]

    def subset(self, indices: Int64[np.ndarray, " k"] | Sequence[int]) -> "ImageSet":
        """The images in these rows, in this order; they keep their ids.

        Raises:
            InputError: If there is none, or one is out of range.
        """
        rows = checked_rows(np.asarray(indices), self.n)
        return replace(
            self,
            pixels=self.pixels[rows],
            labels=None if self.labels is None else self.labels[rows],
            ids=self.ids[rows],
            fields={name: [values[i] for i in rows] for name, values in self.fields.items()},
        )

    def by_field(self, name: str) -> dict[str, "ImageSet"]:
        """One set per value of a field (hospital, region, location), sorted; the value is its domain.

        Raises:
            UnknownNameError: If the images have no such field.
        """
        check_name("field", name, self.fields)
        values = np.array([str(value) for value in self.fields[name]])
        return {
            str(value): replace(self.subset(np.flatnonzero(values == value)), domain=str(value))
            for value in np.unique(values)
        }

    def task(
        self, transform: EvalTransform | None = None, *, corrupted: "ImageSet | None" = None
    ) -> ImageTask:
        """The images normalised for a model.

        Args:
            transform: Its normalisation is applied; its geometry was applied when the images were read.
                Default: `EvalTransform()`, i.e. pixels to [-1, 1].
            corrupted: The counterparts, e.g. of `corrupt`: as many images with the same ids.

        Raises:
            InputError: If the counterparts have other ids.
        """
        transform = transform or EvalTransform()
        if corrupted is not None and not np.array_equal(corrupted.ids, self.ids):
            raise InputError(
                f"the counterparts ({corrupted.n} images of {corrupted.domain!r}) do not have the ids of "
                f"these {self.n} images; take the same subset of both"
            )
        config = {**self.config, "normalise": transform.normalisation, "skipped": len(self.skipped)}
        if corrupted is not None:
            config["counterparts"] = dict(corrupted.config) | {"domain": corrupted.domain}
        return ImageTask(
            images=transform.normalised(self.pixels),
            corrupted=None if corrupted is None else transform.normalised(corrupted.pixels),
            labels=None if self.labels is None else torch.from_numpy(self.labels),
            ids=torch.from_numpy(self.ids),
            domain=self.domain,
            fields=self.fields,
            classes=self.classes,
            name=self.name,
            config=config,
        )

    def stream(self, transform: EvalTransform | None = None) -> ImageStream:
        """As `task`, but images are normalised batch by batch, so that only their 8 bits are held.

        Args:
            transform: Its normalisation is applied; its geometry was applied when the images were read.
        """
        transform = replace(transform or EvalTransform(), resize=None, crop=None)
        return ImageStream(
            pictures=Arrays(self.name, self.pixels),
            transform=transform,
            labels=None if self.labels is None else torch.from_numpy(self.labels),
            ids=torch.from_numpy(self.ids),
            domain=self.domain,
            fields=self.fields,
            classes=self.classes,
            name=self.name,
            config={**self.config, "normalise": transform.normalisation, "skipped": len(self.skipped)},
            skipped=self.skipped,
        )
