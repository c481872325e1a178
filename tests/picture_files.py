"""Drawn images as files: what tests of readers share."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from assay.tasks import draw_shapes


DRAWN = draw_shapes("flat", 70)
assert DRAWN.pixels is not None
assert DRAWN.labels is not None
assert DRAWN.classes is not None
PIXELS, LABELS, CLASSES = DRAWN.pixels, DRAWN.labels.tolist(), DRAWN.classes


def png(pixels: np.ndarray) -> bytes:
    """The content of a file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def write_folder(root: Path, n: int = 70) -> Path:
    """`root/CLASS/NUMBER.png` of the first drawn images."""
    for number, (pixels, label) in enumerate(zip(PIXELS[:n], LABELS, strict=False)):
        path = root / CLASSES[label] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(pixels))
    return root


def write(path: Path, value: int = 0, size: tuple[int, int] = (16, 16)) -> Path:
    """An image of one grey; `size` is width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)
    return path
