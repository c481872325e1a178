"""Labels beside the points of a scatter plot, where they cover nothing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from assay.page.draw import INK, MUTED


LABEL_SIZE = 8.5  # points
REACHES = (8.0, 16.0, 28.0, 44.0, 64.0)  # points from a marker to its label, nearest first
DIRECTIONS = 16
MARKER = 4.0  # points from the middle of a marker to its edge


def place_labels(
    ax: Axes,
    names: Sequence[str],
    x: Float64[np.ndarray, " n"],
    y: Float64[np.ndarray, " n"],
    *,
    low: Float64[np.ndarray, " n"],
    high: Float64[np.ndarray, " n"],
) -> None:
    """Write each name near its point, clear of the other names, points and intervals, inside the axes.

    Each label in turn takes the nearest place around its point that covers least, with a thin line to it.

    Args:
        ax: Axes whose limits are final.
        names: One per point.
        x: Of the points, in data.
        y: Of the points, in data.
        low: Lower ends of their vertical intervals, in data; NaN where there is none.
        high: Upper ends, likewise.
    """
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()  # fixes the place of the axes, which a layout engine decides late
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]  # matplotlib's own
    pixel, window = figure.dpi / 72, ax.get_window_extent(renderer)
    points, bottoms, tops = (ax.transData.transform(np.column_stack([x, each])) for each in (y, low, high))
    corners = [*zip(points - MARKER * pixel, points + MARKER * pixel, strict=True)]
    corners += zip(bottoms - pixel, tops + pixel, strict=True)
    taken = [Bbox(each) for each in corners if np.isfinite(each).all()]
    angles = np.linspace(0, 2 * np.pi, DIRECTIONS, endpoint=False)
    around = [(reach, np.array([np.cos(angle), np.sin(angle)])) for reach in REACHES for angle in angles]
    style: dict[str, Any] = {"ha": "center", "va": "center", "color": INK, "fontsize": LABEL_SIZE}
    line = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 0, "shrinkB": MARKER}
    for name, point, spot in zip(names, points, zip(x, y, strict=True), strict=True):
        text = ax.annotate(name, spot, (0, 0), textcoords="offset points", arrowprops=line, **style)
        text.set_in_layout(False)  # the axes stay where they are
        half = np.array(Text.get_window_extent(text, renderer).size) / 2  # without the line
        # A box touches a circle around the point rather than being centred on it.
        centres = [point + direction * (reach * pixel + half) for reach, direction in around]
        boxes = [Bbox([centre - half, centre + half]) for centre in centres]
        inside = (window.contains(*box.min) and window.contains(*box.max) for box in boxes)
        costs = [(not within, box.count_overlaps(taken)) for box, within in zip(boxes, inside, strict=True)]
        best = costs.index(min(costs))  # nearest first where several cover as little
        text.set_position((centres[best] - point) / pixel)
        taken.append(boxes[best])
