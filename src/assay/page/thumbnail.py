"""Small pictures of images that a document holds, as PNG data URIs."""

import base64
import io

import numpy as np

from assay.core.errors import InputError


PNG = "data:image/png;base64,"
SIDE = 64  # pixels


def thumbnail(image: np.ndarray) -> str:
    """A picture as a PNG data URI, no side longer than 64 pixels.

    Args:
        image: uint8, `[H, W]`, `[H, W, 1]` or `[H, W, 3]`.
    """
    from PIL import Image

    pixels = image[..., 0] if image.shape[2:] == (1,) else image
    picture, buffer = Image.fromarray(np.ascontiguousarray(pixels)), io.BytesIO()
    picture.thumbnail((SIDE, SIDE))
    picture.save(buffer, format="PNG", optimize=True)
    return f"{PNG}{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def png_source(image: object) -> str:
    """An image that a document holds; never an address, which a page would fetch.

    Raises:
        InputError: If it is anything else.
    """
    if str(image).startswith(PNG):
        return str(image)
    raise InputError(f"the image of an input is {str(image)[:40]!r}; documents hold images as {PNG}... only")
