"""Labels beside the points of a scatter plot, where they cover nothing."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from assay.page.draw import INK, MUTED


LABEL_SIZE = 8.5  # points
REACHES = (8.0, 16.0, 28.0, 44.0, 64.0)  # points from a marker to its label, nearest first
DIRECTIONS = 16


def place_labels(
    ax: Axes,
    names: Sequence[str],
    x: Float64[np.ndarray, " n"],
    y: Float64[np.ndarray, " n"],
    *,
    low: Float64[np.ndarray, " n"],
    high: Float64[np.ndarray, " n"],
) -> list[Bbox]:
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

    Returns:
        The boxes of the labels in pixels, in the order of the names.
    """
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()  # fixes the place of the axes, which a layout engine decides late
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]  # matplotlib's own
    pixel = figure.dpi / 72
    points = ax.transData.transform(np.column_stack([x, y])) if len(names) else np.empty((0, 2))
    taken = [
        box
        for place in range(len(names))
        for box in _marks(ax, points[place], x[place], low[place], high[place], pixel)
    ]
    taken += _rules(ax, (0.0, 1.0))
    inside = ax.get_window_extent(renderer).frozen()
    crowd = [float(np.hypot(*(points - point).T).sum()) for point in points]
    boxes: dict[int, Bbox] = {}
    for place in sorted(range(len(names)), key=lambda each: (crowd[each], each)):
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
        size = text.get_window_extent(renderer)
        offset, reach, box = min(
            _candidates(points[place], size.width, size.height, pixel),
            # A label nearer to another point than to its own would name the wrong one.
            key=lambda each: (
                _covered(each[2], [*taken, *boxes.values()], inside),
                _strange(points, place, each[2]),
                each[1],
            ),
        )
        text.set_position(offset)
        boxes[place] = box
        if reach > REACHES[0]:
            _leader(ax, points[place], box)
    return [boxes[place] for place in range(len(names))]


def _marks(
    ax: Axes, point: Float64[np.ndarray, " 2"], x: float, low: float, high: float, pixel: float
) -> list[Bbox]:
    """What a point with its interval covers, in pixels."""
    radius = 4 * pixel
    marks = [Bbox.from_extents(point[0] - radius, point[1] - radius, point[0] + radius, point[1] + radius)]
    if math.isfinite(low) and math.isfinite(high):
        (left, bottom), (_, top) = ax.transData.transform([[x, low], [x, high]])
        marks.append(Bbox.from_extents(left - pixel, bottom, left + pixel, top))
    return marks


def _rules(ax: Axes, heights: Sequence[float]) -> list[Bbox]:
    """Horizontal lines at these heights, in pixels."""
    left, right = ax.get_xlim()
    ends = [ax.transData.transform([[left, height], [right, height]]) for height in heights]
    return [Bbox.from_extents(start[0], start[1] - 1, end[0], end[1] + 1) for start, end in ends]


def _candidates(
    point: Float64[np.ndarray, " 2"], width: float, height: float, pixel: float
) -> Iterator[tuple[tuple[float, float], float, Bbox]]:
    """Places of a label around a point: offset of its centre in points, distance, box in pixels."""
    for reach in REACHES:
        for turn in range(DIRECTIONS):
            angle = 2 * math.pi * turn / DIRECTIONS
            across, up = math.cos(angle), math.sin(angle)
            # The box touches a circle round the point rather than being centred on it.
            dx = reach * pixel * across + across * width / 2
            dy = reach * pixel * up + up * height / 2
            box = Bbox.from_extents(
                point[0] + dx - width / 2,
                point[1] + dy - height / 2,
                point[0] + dx + width / 2,
                point[1] + dy + height / 2,
            )
            yield (dx / pixel, dy / pixel), reach, box


def _covered(box: Bbox, taken: Sequence[Bbox], inside: Bbox) -> float:
    """Pixels of a box that something else holds, or that lie outside the axes."""
    overlaps = (Bbox.intersection(box, other) for other in taken)
    covered = sum(each.width * each.height for each in overlaps if each is not None)
    within = Bbox.intersection(box, inside)
    outside = box.width * box.height - (0.0 if within is None else within.width * within.height)
    return round(float(covered + 4 * outside), 3)


def _strange(points: Float64[np.ndarray, "n 2"], place: int, box: Bbox) -> bool:
    """Whether a label there could be taken for that of another point: not twice as near to its own."""
    gaps = [_gap(point, box) for point in points]
    own = gaps.pop(place)
    return bool(gaps) and own > min(gaps) / 2


def _gap(point: Float64[np.ndarray, " 2"], box: Bbox) -> float:
    """Pixels between a point and the nearest edge of a box."""
    across = max(box.x0 - point[0], 0.0, point[0] - box.x1)
    up = max(box.y0 - point[1], 0.0, point[1] - box.y1)
    return float(np.hypot(across, up))


def _leader(ax: Axes, point: Float64[np.ndarray, " 2"], box: Bbox) -> None:
    """A thin line from a point to the nearest edge of its label."""
    end = (min(max(point[0], box.x0), box.x1), min(max(point[1], box.y0), box.y1))
    start = ax.transData.inverted().transform(np.array([point, end]))
    (line,) = ax.plot(start[:, 0], start[:, 1], color=MUTED, linewidth=0.6, zorder=1)
    line.set_in_layout(False)
