"""The drawn data set: seeded, and true to its geometry."""

import numpy as np
import pytest

from assay.core.errors import InputError, UnknownNameError
from assay.tasks import SHAPE_CLASSES, SHAPE_DOMAINS, draw_shapes
from assay.tasks.shapes import _FIGURES


@pytest.mark.parametrize("domain", SHAPE_DOMAINS)
def test_an_image_depends_on_its_number_alone_and_shows_its_class(domain: str) -> None:
    whole = draw_shapes(domain, 12, seed=2)
    later = draw_shapes(domain, 3, seed=2, start=6)
    np.testing.assert_array_equal(later.pixels, whole.pixels[6:9])
    assert later.ids.tolist() == [6, 7, 8]
    assert (draw_shapes(domain, 12, seed=3).pixels != whole.pixels).any((1, 2, 3)).all()
    assert whole.classes == SHAPE_CLASSES
    assert np.bincount(whole.labels).tolist() == [2] * 6
    assert whole.pixels.std((1, 2)).max(1).min() > 10


@pytest.mark.parametrize("shape", SHAPE_CLASSES)
def test_a_figure_is_a_distance(shape: str) -> None:
    across = np.linspace(-1.5, 1.5, 601)
    y, x = np.meshgrid(across, across, indexing="ij")
    distance = _FIGURES[shape](x, y)
    # A distance never changes faster than the place, and almost everywhere exactly as fast.
    step = across[1] - across[0]
    assert max(np.abs(np.diff(distance, axis=axis)).max() for axis in (0, 1)) < step * (1 + 1e-9)
    assert (np.abs(np.hypot(*np.gradient(distance, step)) - 1) < 0.02).mean() > 0.97
    # Against the nearest point on the other side of the rim, found by trying all.
    inside = distance < 0
    outside_beside = [~np.roll(inside, shift, axis) for shift in (1, -1) for axis in (0, 1)]
    rim = np.argwhere(inside & np.any(outside_beside, axis=0))
    for row, column in np.random.default_rng(0).integers(0, 601, (40, 2)):
        nearest = np.hypot(*(rim - (row, column)).T).min() * step
        assert abs(abs(distance[row, column]) - nearest) < 0.015


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'sketch'"):
        draw_shapes("sketches", 1)
    for arguments in ({"n": 0}, {"n": 1, "size": 15}, {"n": 1, "start": -1}):
        with pytest.raises(InputError, match="at least 1 image of 16 pixels"):
            draw_shapes("flat", **arguments)
