"""Labels beside the points of a scatter plot, where they cover nothing."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from assay.page.draw import INK, MUTED


LABEL_SIZE = 8.5  # points
REACHES = (8.0, 16.0, 28.0, 44.0, 64.0)  # points from a marker to its label, nearest first
DIRECTIONS = 16
MARKER = 4.0  # points from the middle of a marker to its edge

# Boxes are rows of left, bottom, right and top, in pixels.
Boxes = Float64[np.ndarray, "boxes 4"]


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

    Each label in turn, most crowded point first, takes the nearest free place around its point; one further
    away gets a thin line to it. Where nothing is free, the place that covers least is taken.

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
    pixel = figure.dpi / 72
    window = np.array([ax.get_window_extent(renderer).extents])
    points, bottoms, tops = (ax.transData.transform(np.column_stack([x, each])) for each in (y, low, high))
    beside = np.array([pixel, 0.0])
    marks = np.hstack([points - MARKER * pixel, points + MARKER * pixel])
    intervals = np.hstack([bottoms - beside, tops + beside])
    taken = np.vstack([marks, intervals[np.isfinite(intervals).all(axis=1)]])
    angles = 2 * np.pi * np.arange(DIRECTIONS) / DIRECTIONS
    directions = np.tile(np.column_stack([np.cos(angles), np.sin(angles)]), (len(REACHES), 1))
    reaches = np.repeat(REACHES, DIRECTIONS)
    crowding = np.hypot(*(points[:, None] - points).T).sum(axis=0)
    for place in np.argsort(crowding, kind="stable").tolist():
        text = ax.annotate(
            names[place],
            (x[place], y[place]),
            xytext=(0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            color=INK,
            fontsize=LABEL_SIZE,
        )
        text.set_in_layout(False)  # the axes stay where they are
        half = np.array(text.get_window_extent(renderer).size) / 2
        # A box touches a circle round the point rather than being centred on it.
        offsets = directions * (reaches[:, None] * pixel + half)
        boxes = np.hstack([points[place] + offsets - half, points[place] + offsets + half])
        outside = 4 * half.prod() - _overlaps(boxes, window)[:, 0]
        covered = _overlaps(boxes, taken).sum(axis=1) + 4 * outside
        best = np.lexsort((reaches, covered.round(3)))[0]
        text.set_position(offsets[best] / pixel)
        taken = np.vstack([taken, boxes[best]])
        if reaches[best] > REACHES[0]:  # a thin line to the nearest edge of the label
            edge = np.clip(points[place], boxes[best, :2], boxes[best, 2:])
            ends = ax.transData.inverted().transform([points[place], edge])
            ax.plot(*ends.T, color=MUTED, linewidth=0.6, zorder=1)


def _overlaps(boxes: Boxes, others: Float64[np.ndarray, "others 4"]) -> Float64[np.ndarray, "boxes others"]:
    """Pixels that two boxes share."""
    low = np.maximum(boxes[:, None, :2], others[:, :2])
    high = np.minimum(boxes[:, None, 2:], others[:, 2:])
    pixels: np.ndarray = np.clip(high - low, 0, None).prod(axis=2)
    return pixels
