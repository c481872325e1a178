"""What training shows a model of its images: seeded crops, mirror images and colours."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from PIL import Image
from torch.nn.functional import affine_grid, grid_sample

from assay.core.errors import InputError
from assay.core.record import Record
from assay.tasks.image_transform import RESAMPLE


# Rec. 601, what Pillow and torchvision call grey.
_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class Augmentation(Record):
    """A random resized crop, a mirror image, and a change of brightness, contrast and saturation.

    The crop covers a share of the image drawn from `[min_area, 1]`, with an aspect drawn log-uniformly from
    `[1 / max_aspect, max_aspect]`, and is scaled to the size that the model reads: from the original where
    there is one (`cut`, by the filter of the evaluation), else back to the size of the image (`apply`,
    bilinear). A crop never reaches beyond the image: a side that would is as long as the image. Brightness,
    contrast and saturation, in this order, are multiplied by factors drawn from `[1 - jitter, 1 + jitter]`.

    Args:
        min_area: Smallest share of the image that a crop covers, above 0, at most 1; 1 crops nothing.
        max_aspect: Widest aspect of a crop relative to the image, 1 or more.
        flip: Probability of the mirror image, 0 .. 1.
        jitter: Half-width of the colour factors, 0 .. 1; 0 leaves the colours.

    Raises:
        InputError: If a value is out of range.

    Notes:
        `Augmentation(min_area=0.08, jitter=0.4)` has timm's default ranges (crop scale, aspect 4/3, flip,
        colour jitter); timm also draws the order of the colour changes and each image's interpolation.

    Example:
        >>> Augmentation(min_area=1.0, max_aspect=1.0, flip=0.0).changes_nothing
        True
    """

    min_area: float | int = 0.6
    max_aspect: float | int = 4 / 3
    flip: float | int = 0.5
    jitter: float | int = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.min_area <= 1 and 1 <= self.max_aspect < np.inf):
            raise InputError(
                f"min_area is {self.min_area} and max_aspect {self.max_aspect}; expected min_area above 0 "
                "and at most 1, and max_aspect of at least 1"
            )
        if not (0 <= self.flip <= 1 and 0 <= self.jitter <= 1):
            raise InputError(f"flip is {self.flip} and jitter {self.jitter}; expected values between 0 and 1")

    @property
    def changes_nothing(self) -> bool:
        """Whether every image stays as it is."""
        return self.min_area == self.max_aspect == 1 and self.flip == self.jitter == 0

    def apply(
        self, pixels: UInt8[np.ndarray, "n h w 3"], rng: np.random.Generator
    ) -> UInt8[np.ndarray, "n h w 3"]:
        """The images, each with draws of its own; the arguments stay as they are.

        Args:
            pixels: 8-bit RGB images.
            rng: Source of the draws: the same state and images give the same result.
        """
        if self.changes_nothing:
            return pixels
        draws = self._drawn(len(pixels), rng)
        width = np.minimum(np.sqrt(draws.area * draws.aspect), 1)
        height = np.minimum(np.sqrt(draws.area / draws.aspect), 1)
        boxes = np.zeros((len(pixels), 2, 3), dtype=np.float32)
        boxes[:, 0, 0], boxes[:, 0, 2] = draws.mirrored * width, draws.across * (1 - width)
        boxes[:, 1, 1], boxes[:, 1, 2] = height, draws.down * (1 - height)
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float()
        grid = affine_grid(torch.from_numpy(boxes), list(images.shape), align_corners=False)
        cropped = grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
        return self._coloured(cropped.permute(0, 2, 3, 1).numpy(), draws)

    def cut(
        self,
        originals: Sequence[Image.Image],
        rng: np.random.Generator,
        *,
        size: tuple[int, int],
        resample: str,
    ) -> UInt8[np.ndarray, "n h w 3"]:
        """The images from their originals: each crop is resized once, by Pillow, to the size of the model.

        Args:
            originals: RGB images of any sizes.
            rng: As of `apply`; the same state makes the same choices.
            size: Height and width of the result.
            resample: Filter, as of `EvalTransform`.
        """
        draws = self._drawn(len(originals), rng)
        values = np.empty((len(originals), *size, 3), dtype=np.uint8)
        for row, image in enumerate(originals):
            whole = image.width * image.height
            width = min(np.sqrt(draws.area[row] * whole * draws.aspect[row]), image.width)
            height = min(np.sqrt(draws.area[row] * whole / draws.aspect[row]), image.height)
            left = (1 + draws.across[row]) / 2 * (image.width - width)
            top = (1 + draws.down[row]) / 2 * (image.height - height)
            box = (left, top, min(left + width, image.width), min(top + height, image.height))
            part = image.resize((size[1], size[0]), RESAMPLE[resample], box=box)
            values[row] = np.asarray(part)[:, :: int(draws.mirrored[row])]
        return self._coloured(values.astype(np.float32), draws) if self.jitter else values

    def _drawn(self, n: int, rng: np.random.Generator) -> "_Draws":
        area = rng.uniform(self.min_area, 1, n)
        aspect = np.exp(rng.uniform(-1, 1, n) * np.log(self.max_aspect))
        across, down = rng.uniform(-1, 1, n), rng.uniform(-1, 1, n)
        mirrored = np.where(rng.random(n) < self.flip, -1.0, 1.0)
        factors = rng.uniform(1 - self.jitter, 1 + self.jitter, (3, n, 1, 1, 1)).astype(np.float32)
        return _Draws(area, aspect, across, down, mirrored, factors)

    def _coloured(
        self, values: Float32[np.ndarray, "n h w 3"], draws: "_Draws"
    ) -> UInt8[np.ndarray, "n h w 3"]:
        """Brightness, contrast and saturation changed, and back to 8 bits."""
        if self.jitter:
            values = values * draws.factors[0]
            grey = (values @ _GREY)[..., None]
            level = grey.mean(axis=(1, 2), keepdims=True)
            values = level + draws.factors[1] * (values - level)
            grey = (values @ _GREY)[..., None]
            values = grey + draws.factors[2] * (values - grey)
        changed: UInt8[np.ndarray, "n h w 3"] = np.rint(np.clip(values, 0, 255)).astype(np.uint8)
        return changed


class _Draws(NamedTuple):
    """What was drawn for each image of a batch."""

    area: np.ndarray
    aspect: np.ndarray
    across: np.ndarray  # -1 at the left, 1 at the right
    down: np.ndarray
    mirrored: np.ndarray  # -1 mirrored, 1 not
    factors: np.ndarray
