"""Calibration domains of a monitor: corruptions at five severities and stylisations of 8-bit images.

Six corruptions after Hendrycks and Dietterich (2019, arXiv:1903.12261) with the constants of ImageNet-C, and
nine stylisations after Peng et al. (CVPR 2026). They apply after resize and crop, before normalisation. Every
random draw of an image comes from the stream `corruption/KEY/ID` of the seed, so it depends neither on the
other images nor on their order.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import scipy
from jaxtyping import Bool, Float64, UInt8
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageOps

from assay.core.errors import InputError, ShapeError
from assay.core.random import stream
from assay.core.registry import Registry
from assay.tasks.image_reading import Pictures
from assay.tasks.image_transform import EvalTransform
from assay.tasks.images import ImageTask


MIN_SIDE = 32  # the blur kernels reach 12 pixels, and reflect at the border

Pixels = UInt8[np.ndarray, "h w 3"]
Numbers = NDArray[np.float64]
Graded = Callable[[Numbers, np.random.Generator, int], Numbers]
Style = Callable[[Pixels, np.random.Generator], Pixels]


@dataclass(frozen=True)
class Corruption:
    """One calibration domain.

    Attributes:
        family: The corruption without its severity: `gaussian-noise`.
        summary: What it does, one line.
        apply: Pixels `[height, width, 3]` and generator to new pixels of the same shape.
        severity: 1 to 5; None for a stylisation, which has none.
    """

    family: str
    summary: str
    apply: Style
    severity: int | None = None

    @property
    def key(self) -> str:
        """Name in the registry, e.g. `gaussian-noise-3` or `cartoon`."""
        return self.family if self.severity is None else f"{self.family}-{self.severity}"


def corrupt(images: ImageTask, key: str, *, seed: int = 0) -> ImageTask:
    """The images under one calibration domain; labels, ids and fields stay.

    Args:
        images: At least 32 pixels high and wide. They are corrupted as they are decoded, by the same
            threads; `held` does it once.
        key: Name in the registry (`assay.tasks.CORRUPTIONS`), e.g. `fog-2` or `solarize`.
        seed: Root seed of the draws.

    Returns:
        As many images whose domain is `DOMAIN+KEY`.

    Raises:
        UnknownNameError: If no corruption has this name.
        ShapeError: If a side is below 32 pixels.
        InputError: If the images were given normalised.

    Notes:
        `frost-1` to `frost-5` mix with plasma, since the published photographs of frost are not ours to give.

    References:
        Hendrycks and Dietterich 2019, arXiv:1903.12261; Peng et al., CVPR 2026, appendix on monitoring.

    Example:
        >>> grey = ImageTask(pixels=np.full((2, 32, 32, 3), 200, dtype=np.uint8), domain="plain")
        >>> dark = corrupt(grey, "solarize")
        >>> dark.domain, int(dark.held().pixels.max())
        ('plain+solarize', 55)
    """
    entry = CORRUPTIONS[key]
    if images.images is not None:
        raise InputError("the images were given normalised; corruptions need 8-bit pixels")
    if min(images.image_size) < MIN_SIDE:
        sides = " x ".join(map(str, images.image_size))
        raise ShapeError(f"images are {sides}; corruptions need {MIN_SIDE} pixels in height and width")
    record = {"key": key, "seed": seed} | ({"frost_textures": "plasma"} if entry.family == "frost" else {})
    return replace(
        images,
        pixels=None,
        source=_Corrupted(images, key, seed),
        domain=f"{images.domain}+{key}",
        config={**images.config, "corruption": record},
    )


class _Corrupted(Pictures):
    """The pictures of a task, resized, cropped and corrupted."""

    def __init__(self, images: ImageTask, key: str, seed: int) -> None:
        super().__init__(images.n)
        self._images, self.size, self._key, self._seed = images, images.image_size, key, seed
        self.turned = images.source.turned if images.source else set()
        self._ids = dict(zip(images.rows.tolist(), images.ids.tolist(), strict=True))

    def name(self, row: int) -> str:
        inner = self._images
        return f"{inner.name}, image {row}" if inner.source is None else inner.source.name(row)

    def content(self, row: int) -> None:
        """There is none: see `decoded`."""

    def decoded(self, row: int, transform: EvalTransform) -> Pixels:
        inner, source = self._images, self._images.source
        pixels = np.asarray(inner.pixels)[row] if source is None else source.decoded(row, inner.numbers)
        rng = stream(self._seed, f"corruption/{self._key}/{self._ids[row]}")
        return CORRUPTIONS[self._key].apply(pixels, rng)

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        inner = self._images
        yield json.dumps([self._key, self._seed, inner.transform and inner.transform.to_dict()])
        yield from [inner.source_hash] if inner.source is None else inner.source.marks(rows)


# -------------------------------------------------------------------- corruptions, on [0, 1] at a severity


def _unit(x: Numbers) -> Numbers:
    return np.clip(x, 0.0, 1.0)


def _gaussian_noise(x: Numbers, rng: np.random.Generator, severity: int) -> Numbers:
    sigma = (0.08, 0.12, 0.18, 0.26, 0.38)[severity - 1]
    return x + rng.normal(0.0, sigma, x.shape)


def _shot_noise(x: Numbers, rng: np.random.Generator, severity: int) -> Numbers:
    photons = (60, 25, 12, 5, 3)[severity - 1]
    return rng.poisson(x * photons) / photons


def _defocus_blur(x: Numbers, rng: np.random.Generator, severity: int) -> Numbers:
    kernel = _disk(*((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))[severity - 1])
    reach = len(kernel) // 2
    padded = np.pad(x, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    return np.asarray(scipy.signal.fftconvolve(padded, kernel[..., None], mode="valid", axes=(0, 1)))


@cache
def _disk(radius: int, sigma: float) -> Float64[np.ndarray, "size size"]:
    """A disk of sum 1, then softened by a small Gaussian (3 x 3; 5 x 5 above radius 8).

    Where the disk touches the border of its grid (radius 8 and 10) the reflection adds a little to the sum;
    the published kernel keeps that, and brightens the image by it.
    """
    reach, half = (8, 1) if radius <= 8 else (radius, 2)
    across = np.arange(-reach, reach + 1) ** 2
    disk = (across[:, None] + across <= radius**2).astype(np.float64)
    disk /= disk.sum()
    taps = np.exp(-(np.arange(-half, half + 1) ** 2) / (2 * sigma**2))
    for axis in (0, 1):
        disk = scipy.ndimage.correlate1d(disk, taps / taps.sum(), axis=axis, mode="mirror")
    return disk


def _fog(x: Numbers, rng: np.random.Generator, severity: int) -> Numbers:
    amount, decay = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))[severity - 1]
    height, width = x.shape[:2]
    fog = amount * plasma(max(height, width), decay, rng)[:height, :width, None]
    return np.asarray((x + fog) * x.max() / (x.max() + amount))


def plasma(side: int, decay: float, rng: np.random.Generator) -> Float64[np.ndarray, "size size"]:
    """Cloud-like noise in [0, 1] by the diamond-square algorithm on a torus.

    Args:
        side: At least this many pixels each way; the next power of two is made.
        decay: Factor by which the amplitude shrinks at each halving of the step, above 1: larger is smoother.
        rng: Source of the displacements.

    Returns:
        `[size, size]`, smallest value 0, largest 1.
    """
    size = 1 << max(side - 1, 1).bit_length()
    field = np.zeros((size, size))
    step, wibble = size, 100.0

    def displaced(total: Numbers) -> Numbers:
        return total / 4 + wibble * rng.uniform(-wibble, wibble, total.shape)

    while step >= 2:
        half = step // 2
        corners = field[::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=0)
        centres = displaced(pairs + np.roll(pairs, -1, axis=1))
        field[half::step, half::step] = centres
        # Midpoints of the horizontal and vertical sides: two corners and the two centres beside them.
        across = corners + np.roll(corners, -1, axis=1) + centres + np.roll(centres, 1, axis=0)
        field[::step, half::step] = displaced(across)
        down = corners + np.roll(corners, -1, axis=0) + centres + np.roll(centres, 1, axis=1)
        field[half::step, ::step] = displaced(down)
        step, wibble = half, wibble / decay
    field -= field.min()
    return np.asarray(field / field.max())


def _frost(x: Numbers, rng: np.random.Generator, severity: int) -> Numbers:
    image, ice = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))[severity - 1]
    height, width = x.shape[:2]
    # Ridges where the plasma crosses its middle look like crystals; pale blue.
    cloud = plasma(max(height, width), 1.6, rng)[:height, :width, None]
    ridges = 1 - np.abs(2 * cloud - 1)
    texture: Numbers = (0.25 + 0.7 * ridges**2) * np.array([0.88, 0.96, 1.0])
    return image * x + ice * texture


def _snow(x: Numbers, rng: np.random.Generator, severity: int) -> Numbers:
    loc, scale, zoom, threshold, radius, sigma, mix = (
        (0.1, 0.3, 3.0, 0.5, 10, 4.0, 0.8),
        (0.2, 0.3, 2.0, 0.5, 12, 4.0, 0.7),
        (0.55, 0.3, 4.0, 0.9, 12, 8.0, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8.0, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12.0, 0.55),
    )[severity - 1]
    flakes = _zoomed(rng.normal(loc, scale, x.shape[:2]), zoom)
    flakes = _unit(np.where(flakes < threshold, 0.0, flakes))
    layer = _motion_blurred(flakes, radius, sigma, rng.uniform(-135, -45))
    layer = np.round(layer[: x.shape[0], : x.shape[1], None] * 255) / 255
    gray = (x @ np.array([0.299, 0.587, 0.114]))[..., None]
    pale = mix * x + (1 - mix) * np.maximum(x, 1.5 * gray + 0.5)
    return np.asarray(pale + layer + np.rot90(layer, 2))


def _zoomed(plane: Numbers, zoom: float) -> Numbers:
    """The centre of a plane, enlarged bilinearly to at least its old size."""
    parts = [int(np.ceil(side / zoom)) for side in plane.shape]
    top, left = ((side - part) // 2 for side, part in zip(plane.shape, parts, strict=True))
    centre = plane[top : top + parts[0], left : left + parts[1]]
    return np.asarray(scipy.ndimage.zoom(centre, zoom, order=1))


def _motion_blurred(plane: Numbers, radius: int, sigma: float, degrees: float) -> Numbers:
    """Copies shifted along one direction, weighted by half a Gaussian; the border is repeated."""
    taps = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    taps /= taps.sum()
    rows, columns = (np.arange(side) for side in plane.shape)
    direction = np.sin(np.deg2rad(degrees)), np.cos(np.deg2rad(degrees))
    out = np.zeros_like(plane)
    for distance, weight in enumerate(taps):
        down, right = (-int(np.ceil(distance * part - 0.5)) for part in direction)
        if abs(down) >= len(rows) or abs(right) >= len(columns):
            break
        shifted = plane[np.clip(rows - down, 0, len(rows) - 1)]
        out += weight * shifted[:, np.clip(columns - right, 0, len(columns) - 1)]
    return out


# ------------------------------------------------------------------------- stylisations, on 8-bit pixels


def _cartoon(x: Pixels, rng: np.random.Generator) -> Pixels:
    flat = _bilateral(x, diameter=9, sigma=250.0)
    return np.where(_canny(x, low=100, high=200)[..., None], np.uint8(0), flat)


def _cutout(x: Pixels, rng: np.random.Generator) -> Pixels:
    side = round(80 / 224 * min(x.shape[:2]))
    top, left = (int(rng.integers(length - side + 1)) for length in x.shape[:2])
    out = x.copy()
    out[top : top + side, left : left + side] = 0
    return out


def _palette(x: Pixels, rng: np.random.Generator) -> Pixels:
    return np.asarray(rng.permutation(256).astype(np.uint8)[x])


def _bilateral(x: Pixels, *, diameter: int, sigma: float) -> Pixels:
    """Mean of a disk of neighbours, weighted by distance and by summed absolute colour difference."""
    reach = diameter // 2
    height, width = x.shape[:2]
    planes = np.ascontiguousarray(np.moveaxis(x, -1, 0)).astype(np.int16)
    padded = np.pad(planes, ((0, 0), (reach, reach), (reach, reach)), mode="reflect")
    total, weights = np.zeros(planes.shape), np.zeros((height, width))
    closeness = np.exp(-(np.arange(3 * 255 + 1) ** 2) / (2 * sigma**2))
    for down, right in itertools.product(range(-reach, reach + 1), repeat=2):
        if (squared := down**2 + right**2) <= reach**2:
            neighbour = padded[:, reach + down :, reach + right :][:, :height, :width]
            difference = np.abs(neighbour - planes).sum(0, dtype=np.int16)
            weight = (np.exp(-squared / (2 * sigma**2)) * closeness)[difference]
            total += weight * neighbour
            weights += weight
    return np.moveaxis(np.rint(total / weights), 0, -1).astype(np.uint8)


def _canny(x: Pixels, *, low: int, high: int) -> Bool[np.ndarray, "h w"]:
    """Canny's edges as OpenCV finds them: Sobel slopes of the steepest channel, |dx| + |dy| as strength.

    Whole numbers throughout, the tangent of 22.5 degrees in 15 binary digits, so that ties fall the same way.
    """
    height, width = x.shape[:2]
    padded = np.pad(x.astype(np.int64), ((1, 1), (1, 1), (0, 0)), mode="edge")

    def near(plane: np.ndarray, down: int, right: int) -> np.ndarray:
        return plane[1 + down :, 1 + right :][:height, :width]

    sides = [[near(padded, i, j) for j in (-1, 0, 1)] for i in (-1, 0, 1)]
    dx = sum(weight * (sides[i][2] - sides[i][0]) for i, weight in enumerate((1, 2, 1)))
    dy = sum(weight * (sides[2][j] - sides[0][j]) for j, weight in enumerate((1, 2, 1)))
    strength = np.abs(dx) + np.abs(dy)
    steepest = strength.argmax(-1)[..., None]
    dx, dy, strength = (np.take_along_axis(a, steepest, -1)[..., 0] for a in (dx, dy, strength))

    around = np.pad(strength, 1)
    flat, steep = np.abs(dx) * 13573, np.abs(dx) * (13573 + (1 << 16))
    rise = np.abs(dy) << 15
    horizontal = (strength > near(around, 0, -1)) & (strength >= near(around, 0, 1))
    vertical = (strength > near(around, -1, 0)) & (strength >= near(around, 1, 0))
    falling = (strength > near(around, -1, -1)) & (strength > near(around, 1, 1))
    rising = (strength > near(around, -1, 1)) & (strength > near(around, 1, -1))
    diagonal = np.where((dx ^ dy) < 0, rising, falling)
    ridge = np.where(rise < flat, horizontal, np.where(rise > steep, vertical, diagonal)) & (strength > low)
    # A weak ridge counts where it touches, through others, a strong one.
    pieces, _ = scipy.ndimage.label(ridge, np.ones((3, 3)))
    return np.isin(pieces, np.unique(pieces[ridge & (strength > high)]))


# ------------------------------------------------------------------------------------------------ registry


def _in_units(function: Graded, severity: int, x: Pixels, rng: np.random.Generator) -> Pixels:
    """A corruption of [0, 1] on 8-bit pixels. Fractions are cut off, as in the published code."""
    return (_unit(function(x / 255, rng, severity)) * 255).astype(np.uint8)


def _filtered(x: Pixels, kernel: type[ImageFilter.BuiltinFilter]) -> Pixels:
    return np.asarray(Image.fromarray(x).filter(kernel()))


def _edge(x: Pixels, rng: np.random.Generator) -> Pixels:
    grey = Image.fromarray(x).convert("L").filter(ImageFilter.FIND_EDGES())
    return np.asarray(ImageOps.invert(grey).convert("RGB"))


_GRADED: dict[str, tuple[str, Graded]] = {
    "gaussian-noise": ("independent Gaussian noise on every value", _gaussian_noise),
    "shot-noise": ("Poisson noise of few photons", _shot_noise),
    "defocus-blur": ("blur by a disk, as of a lens out of focus", _defocus_blur),
    "fog": ("bright plasma clouds over the image", _fog),
    "frost": ("mixed with a texture of ice", _frost),
    "snow": ("paler, with streaks of falling flakes", _snow),
}
_STYLES: dict[str, tuple[str, Style]] = {
    "cartoon": ("smoothed areas with black outlines: bilateral filter and Canny edges", _cartoon),
    "contour": ("dark outlines on white, Pillow's filter", lambda x, _: _filtered(x, ImageFilter.CONTOUR)),
    "cutout": ("one black square, 80/224 of the shorter side, at a random place", _cutout),
    "edge": ("edges of the grey image, dark on white", _edge),
    "edge-enhance": ("edges sharpened, Pillow's", lambda x, _: _filtered(x, ImageFilter.EDGE_ENHANCE)),
    "emboss": ("relief lit from the side, Pillow's filter", lambda x, _: _filtered(x, ImageFilter.EMBOSS)),
    "palette": ("the 256 levels of each channel exchanged by one random permutation", _palette),
    "posterize": ("two bits per channel", lambda x, _: x & np.uint8(0b11000000)),
    "solarize": ("values from 128 on inverted", lambda x, _: np.where(x < 128, x, 255 - x)),
}
CORRUPTIONS: Registry[Corruption] = Registry("corruption", holds=Corruption)
for _family, (_text, _function) in _GRADED.items():
    for _level in (1, 2, 3, 4, 5):
        _apply, _summary = partial(_in_units, _function, _level), f"{_text}; severity {_level} of 5"
        CORRUPTIONS.add(f"{_family}-{_level}", Corruption(_family, _summary, _apply, _level))
for _key, (_text, _style) in _STYLES.items():
    CORRUPTIONS.add(_key, Corruption(_key, _text, _style))
