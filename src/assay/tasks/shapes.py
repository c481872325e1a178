"""The `shapes` data set: drawn, not downloaded. Six figures in five styles, each style a domain.

A figure is a signed distance (negative inside, in half image sides), its edge is softened over one pixel, and
a style paints with the distance. Place, size, turn and colours of an image come from the stream
`shapes/DOMAIN/ID` of the seed, so an image depends on nothing but its number.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from numpy.typing import NDArray

from assay.core.errors import InputError, check_name
from assay.core.random import stream
from assay.tasks.images import ImageTask


SHAPE_CLASSES = ("circle", "cross", "moon", "square", "star", "triangle")

Numbers = NDArray[np.float64]


def draw_shapes(domain: str, n: int, *, seed: int = 0, size: int = 32, start: int = 0) -> ImageTask:
    """Images of one style; image number i shows class i modulo 6.

    Styles: `flat` (dark on pale), `sketch` (pencil on paper), `neon` (glowing outlines on black), `stripes`
    (two fabrics), `relief` (a lit body and its shadow, with sensor noise).

    Args:
        domain: One of `assay.tasks.SHAPE_DOMAINS`.
        n: Number of images, 1 or more; a longer draw begins with the shorter one.
        seed: Root seed of all random draws.
        size: Height and width in pixels, 16 or more.
        start: Number of the first image: disjoint ranges give disjoint sets, e.g. to train and to test.

    Returns:
        `n` images with labels, in order of their ids `start` to `start + n - 1`.

    Raises:
        UnknownNameError: If there is no such style.
        InputError: If `n`, `size` or `start` is too small.

    Example:
        >>> images = draw_shapes("sketch", 12)
        >>> images.pixels.shape, [images.classes[label] for label in images.labels[:3]]
        ((12, 32, 32, 3), ['circle', 'cross', 'moon'])
    """
    check_name("style of shapes", domain, _STYLES)
    if n < 1 or size < 16 or start < 0:
        raise InputError(f"n={n}, size={size}, start={start}; give at least 1 image of 16 pixels, from 0")
    ids = np.arange(start, start + n)
    labels = ids % len(SHAPE_CLASSES)
    rngs = (stream(seed, f"shapes/{domain}/{number}") for number in ids)
    drawn = [_draw(SHAPE_CLASSES[i], _STYLES[domain], size, rng) for i, rng in zip(labels, rngs, strict=True)]
    # The version is raised when the same arguments draw other images than before.
    config = {"generator": "shapes", "generator_version": 1, "domain": domain, "seed": seed, "size": size}
    return ImageTask(
        pixels=np.stack(drawn),
        labels=torch.from_numpy(labels),
        ids=torch.from_numpy(ids),
        domain=domain,
        classes=SHAPE_CLASSES,
        name="shapes",
        config=config | {"start": start, "n": n},
    )


def _draw(shape: str, style: "Style", size: int, rng: np.random.Generator) -> UInt8[np.ndarray, "h w 3"]:
    across = (np.arange(size) + 0.5) * 2 / size - 1
    y, x = np.meshgrid(across, across, indexing="ij")
    canvas = _Canvas(x, y, 2 / size)
    radius, turn = rng.uniform(0.46, 0.70), rng.uniform(-0.35, 0.35)
    left, top = rng.uniform(-0.22, 0.22, 2)
    cos, sin = np.cos(turn), np.sin(turn)
    u, v = (x - left) / radius, (y - top) / radius
    distance = radius * _FIGURES[shape](cos * u + sin * v, cos * v - sin * u)
    painted = style(canvas, distance, rng)
    return np.rint(np.clip(painted, 0, 1) * 255).astype(np.uint8)


# ------------------------------------------------------------------- figures: signed distances, unit radius


def _moon(x: Numbers, y: Numbers) -> Numbers:
    """A disk less a smaller one beside it; near the two tips, the distance to them."""
    disk, bite, apart, tilt = 0.95, 0.75, 0.47, -0.32
    x, y = np.cos(tilt) * x + np.sin(tilt) * y, np.abs(np.cos(tilt) * y - np.sin(tilt) * x)
    tip_x = (disk**2 - bite**2 + apart**2) / (2 * apart)
    tip_y = np.sqrt(disk**2 - tip_x**2)
    near_tip = x * tip_y - y * tip_x > apart * np.maximum(tip_y - y, 0)
    arcs = np.maximum(np.hypot(x, y) - disk, bite - np.hypot(x - apart, y))
    return np.where(near_tip, np.hypot(x - tip_x, y - tip_y), arcs)


def _polygon(x: Numbers, y: Numbers, corners: list[tuple[float, float]]) -> Numbers:
    """Distance to the nearest side, negative where a ray to the right crosses an odd number of sides."""
    nearest = np.full(x.shape, np.inf)
    inside = np.zeros(x.shape, dtype=bool)
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        dx, dy = bx - ax, by - ay
        along = np.clip(((x - ax) * dx + (y - ay) * dy) / (dx**2 + dy**2), 0, 1)
        nearest = np.minimum(nearest, np.hypot(x - ax - along * dx, y - ay - along * dy))
        if dy != 0:
            inside ^= ((ay > y) != (by > y)) & (x < ax + (y - ay) * dx / dy)
    return np.where(inside, -nearest, nearest)


def _spokes(x: Numbers, y: Numbers, radii: list[float]) -> Numbers:
    """A polygon with corners at equal angles, the first on top."""
    angles = np.arange(len(radii)) * 2 * np.pi / len(radii) - np.pi / 2
    corners = [(float(r * np.cos(a)), float(r * np.sin(a))) for r, a in zip(radii, angles, strict=True)]
    return _polygon(x, y, corners)


_ARM = 0.3
_CROSS = [
    (_ARM, -0.95), (_ARM, -_ARM), (0.95, -_ARM), (0.95, _ARM), (_ARM, _ARM), (_ARM, 0.95),
    (-_ARM, 0.95), (-_ARM, _ARM), (-0.95, _ARM), (-0.95, -_ARM), (-_ARM, -_ARM), (-_ARM, -0.95),
]  # fmt: skip
_FIGURES: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "circle": lambda x, y: np.hypot(x, y) - 0.85,
    "cross": lambda x, y: _polygon(x, y, _CROSS),
    "moon": _moon,
    "square": lambda x, y: _polygon(x, y, [(-0.78, -0.78), (0.78, -0.78), (0.78, 0.78), (-0.78, 0.78)]),
    "star": lambda x, y: _spokes(x, y, [1.08, 0.45] * 5),
    "triangle": lambda x, y: _spokes(x, y, [1.05] * 3),
}


# --------------------------------------------------------------------- styles: distance to colour in [0, 1]


@dataclass(frozen=True)
class _Canvas:
    """Coordinates of the pixels, -1 to 1, and how wide one is."""

    x: Numbers
    y: Numbers
    pixel: float

    def cover(self, distance: Numbers) -> Numbers:
        """Share of each pixel that lies inside, `[h, w, 1]`."""
        return np.clip(0.5 - distance / self.pixel, 0, 1)[..., None]

    def waves(self, angle: float, frequency: float, phase: float) -> Numbers:
        """Parallel stripes between 0 and 1, `[h, w, 1]`, softened over a pixel."""
        phases = (np.cos(angle) * self.x + np.sin(angle) * self.y) * frequency + phase
        softness = min(frequency * self.pixel, 1.0)
        return np.asarray(np.clip(0.5 + np.sin(np.pi * phases) / (np.pi * softness), 0, 1)[..., None])


Style = Callable[[_Canvas, Numbers, np.random.Generator], Numbers]


def _colour(hue: float, saturation: float, value: float) -> Float64[np.ndarray, " 3"]:
    """Red, green and blue of a hue in turns (0 red, 1/3 green)."""
    ramp = np.clip(np.abs((hue + np.array([0, 2 / 3, 1 / 3])) % 1 * 6 - 3) - 1, 0, 1)
    return np.asarray(value * (1 - saturation + saturation * ramp))


def _mix(below: Numbers, above: Numbers, share: Numbers) -> Numbers:
    return below + (above - below) * share


def _flat(canvas: _Canvas, distance: Numbers, rng: np.random.Generator) -> Numbers:
    hue = rng.uniform()
    paper = _colour(hue + rng.uniform(0.3, 0.7), rng.uniform(0.05, 0.25), rng.uniform(0.90, 1.0))
    ink = _colour(hue, rng.uniform(0.65, 0.95), rng.uniform(0.40, 0.75))
    return _mix(paper, ink, canvas.cover(distance))


def _sketch(canvas: _Canvas, distance: Numbers, rng: np.random.Generator) -> Numbers:
    paper = _colour(rng.uniform(0.08, 0.16), rng.uniform(0.02, 0.10), rng.uniform(0.93, 1.0))
    image = paper + rng.normal(0, 0.015, (*distance.shape, 1))
    lead = np.full(3, rng.uniform(0.08, 0.28))
    hatching = canvas.waves(rng.uniform(0.6, 1.0), rng.uniform(8, 11), rng.uniform(0, 2))
    image = _mix(image, lead, 0.22 * hatching * canvas.cover(distance + 0.04))
    for _ in range(2):  # the hand goes round twice
        swing, phase = rng.uniform(2, 5, 2), rng.uniform(0, 2 * np.pi, 2)
        wobble = np.sin(swing[0] * canvas.x + phase[0]) + np.sin(swing[1] * canvas.y + phase[1])
        line = np.abs(distance + 0.02 * wobble) - rng.uniform(0.02, 0.04)
        image = _mix(image, lead, 0.8 * canvas.cover(line))
    return image


def _neon(canvas: _Canvas, distance: Numbers, rng: np.random.Generator) -> Numbers:
    hue = rng.uniform()
    wall = _colour(rng.uniform(0.55, 0.85), rng.uniform(0.4, 0.9), rng.uniform(0.05, 0.16))
    image = wall * (1 - 0.4 * (canvas.y + rng.uniform(-0.5, 0.5))[..., None])
    tube = np.abs(distance)[..., None]
    glow = np.exp(-tube / rng.uniform(0.08, 0.16)) * _colour(hue, rng.uniform(0.7, 1.0), 0.9)
    core = np.exp(-((tube / 0.045) ** 2)) * _colour(hue, 0.25, 0.8)
    # Light over light saturates instead of adding up.
    return np.asarray(1 - (1 - image) * (1 - glow) * (1 - core))


def _stripes(canvas: _Canvas, distance: Numbers, rng: np.random.Generator) -> Numbers:
    hue, angle = rng.uniform(), rng.uniform(0, np.pi)
    fabrics = []
    for tint, value, turn in ((hue, 0.80, 0.0), (hue + rng.uniform(0.35, 0.65), 0.95, np.pi / 2)):
        threads = canvas.waves(angle + turn + rng.uniform(-0.3, 0.3), rng.uniform(4, 8), rng.uniform(0, 2))
        dark = _colour(tint, rng.uniform(0.6, 0.9), value * rng.uniform(0.5, 0.7))
        fabrics.append(_mix(dark, _colour(tint, rng.uniform(0.3, 0.6), value), threads))
    return _mix(fabrics[1], fabrics[0], canvas.cover(distance))


def _relief(canvas: _Canvas, distance: Numbers, rng: np.random.Generator) -> Numbers:
    hue, light = rng.uniform(), rng.uniform(-2.6, -0.6)
    towards = np.cos(light), np.sin(light)
    ground = _colour(rng.uniform(), rng.uniform(0.1, 0.5), rng.uniform(0.45, 0.8))
    slope = 0.25 * (towards[0] * canvas.x + towards[1] * canvas.y)[..., None]
    image = ground * (1 + slope)
    # The shadow is the figure moved away from the light, with a soft edge.
    shift = [round(0.10 / canvas.pixel * part) for part in towards]
    rows, columns = (np.arange(side) for side in distance.shape)
    rows, columns = (np.clip(i + s, 0, len(i) - 1) for i, s in ((rows, shift[1]), (columns, shift[0])))
    cast = distance[rows][:, columns]
    image = image * (1 - 0.55 / (1 + np.exp(np.clip(cast / 0.05, -40, 40)))[..., None])
    down, right = np.gradient(distance, canvas.pixel)
    rim = np.clip(1 + distance / 0.16, 0, 1)  # 1 at the edge, 0 on the flat top
    lit = 0.75 + 0.45 * rim * (towards[0] * right + towards[1] * down)
    body = _colour(hue, rng.uniform(0.4, 0.9), rng.uniform(0.6, 1.0)) * lit[..., None]
    return _mix(image, body, canvas.cover(distance)) + rng.normal(0, 0.02, (*distance.shape, 3))


_STYLES = {"flat": _flat, "sketch": _sketch, "neon": _neon, "stripes": _stripes, "relief": _relief}
SHAPE_DOMAINS = tuple(_STYLES)
