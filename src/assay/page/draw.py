"""How pictures look, two that many results share (a matrix, names beside points), and pictures as text.

Drawing uses `Figure` objects only: no pyplot state, no global theme. Colours are named here once; in inline
SVG they become CSS variables, so that one picture serves light, dark and printed pages.
"""

import base64
import html
import io
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from assay.core.errors import InputError
from assay.page.blocks import Column, Table, columns
from assay.page.text import MINUS, number


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# matplotlib is imported where something is drawn: a terminal shows pages without pictures.

PAPER, INK, MUTED, RULE = "#fdfcf8", "#22262b", "#666d76", "#d8d5cc"
LONGEST_TICK, LONGEST_LABEL = 40, 120  # characters of a name at an axis, of any other text
SUPPORTS, OPPOSES = "#0b67a8", "#c5501c"

_CSS_VARIABLES = {PAPER: "--paper", INK: "--ink", MUTED: "--muted", RULE: "--rule"}
_CSS_VARIABLES |= {SUPPORTS: "--supports", OPPOSES: "--opposes"}


def _tame(figure: "Figure") -> None:
    """Texts of a picture are names as they are: no formula between dollars, none that fills the picture."""
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter, LogFormatterSciNotation

    class PlainPowers(LogFormatterSciNotation):
        """Ticks of a logarithmic axis without markup: 0.01, 1, 1,000, 10⁶; none where matplotlib has none."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return plain_power(x) if super().__call__(x, pos) else ""

    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        for ticks in (axis.major, axis.minor):
            if isinstance(ticks.formatter, LogFormatter):
                ticks.formatter = PlainPowers(labelOnlyBase=ticks.formatter.labelOnlyBase)
                ticks.formatter.set_axis(axis)
        labels = [label.get_text() for label in axis.get_ticklabels()]
        if any(len(label) > LONGEST_TICK for label in labels):
            axis.set_ticks(axis.get_ticklocs(), [clipped(label, LONGEST_TICK) for label in labels])
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
        text.set_text(clipped(text.get_text(), LONGEST_LABEL))


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain_power(x: float | int) -> str:
    """A number as a tick label: plain from 0.001 to 10,000, else with a power of ten.

    Example:
        >>> plain_power(0.01), plain_power(1000), plain_power(1e-6), plain_power(2e7)
        ('0.01', '1,000', '10⁻⁶', '2·10⁷')
    """
    if x == 0 or 1e-3 <= abs(x) <= 1e4:
        return f"{x:,g}"
    digits, _, power = f"{x:e}".partition("e")
    digits = f"{float(digits):g}"
    shown = f"10{str(int(power)).translate(_SUPERSCRIPTS)}"
    return shown if digits == "1" else f"{digits}·{shown}"


def clipped(text: str, most: int) -> str:
    """A text, or its beginning."""
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def to_svg(ax: "Axes", *, label: str, key: str) -> str:
    """The figure of `ax` as one inline `<svg>` element for HTML.

    Text stays text, metadata and unused ids are dropped, ids that are needed get the prefix `key`
    (so that many pictures fit one page), colours of this module become CSS variables, and the
    same picture always gives the same string.

    Args:
        ax: Axes of a finished drawing.
        label: Text alternative, read out instead of the picture.
        key: Prefix of ids, unique on the page.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    _tame(figure)
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": key}), warnings.catch_warnings():
        # Names may leave no room for the axes; the picture is then drawn without fitting it to them.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<title>.*?</title>", "", text, flags=re.DOTALL)
    hundredths = re.compile(r"(\.\d\d)\d+")  # of a point
    text = re.sub(r"<[^>]+>", lambda tag: hundredths.sub(r"\1", tag[0]), text)
    text = re.sub(r' transform="rotate\(-0 [^"]*"|<path d="[^"]*" style="fill: none"/>', "", text)
    text = text.replace("xlink:href", "href")
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda name: f' id="{key}-{name[1]}"' if name[1] in used else "", text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{key}-", text)
    text = re.sub(r"font-family:[^;\"]*;?", "", text)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", text)
    for colour, variable in _CSS_VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    view = re.search(r'viewBox="([^"]+)"', text)
    assert view is not None
    width = float(view[1].split()[2])
    opening = (
        f'<svg class="plot" viewBox="{view[1]}" style="max-width:{width * 4 / 3:.0f}px" role="img" '
        f'aria-label="{html.escape(label)}">'
    )
    text = re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1)
    text = re.sub(r"\s*\n\s*", "\n", text).strip()
    # Of the boxes of a path no more than their ends.
    return re.sub(r"M (\S+) (\S+)\nL (\S+) \2\nL \3 (\S+)\nL \1 \4\nz\n", r"M\1 \2H\3V\4H\1z", text)


def axes_of(ax: "Axes | None", width: float, height: float) -> "Axes":
    """The axes given, or new ones of this size in inches, in the style of the report."""
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(width, height), layout="constrained").subplots()
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(MUTED)
        ax.spines[side].set_linewidth(0.7)
    ax.tick_params(colors=MUTED, width=0.7, length=3, labelsize=8.5, which="both")
    ax.tick_params(which="minor", length=2)
    ax.xaxis.label.set(color=INK, fontsize=9)
    ax.yaxis.label.set(color=INK, fontsize=9)
    return ax


LARGEST_PRINTED = 14  # rows or columns of a matrix whose cells hold numbers


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A labelled matrix; `values` is `[rows, columns]`, NaN where there is no cell."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    row_title: str
    column_title: str


def plot_matrix(data: Matrix, ax: "Axes | None" = None, *, percent: bool = False) -> "Axes":
    """Draw a matrix as cells whose ink grows with |value|; hue gives the sign, digits the value.

    Args:
        data: Rows are drawn from top to bottom.
        ax: Where to draw; default a new figure of fitting size.
        percent: Print values as whole per cents instead of two significant digits.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    n_rows, n_columns = data.values.shape
    printed = max(n_rows, n_columns) <= LARGEST_PRINTED
    cell, step = (0.52, 1) if printed else (0.3, 2)
    ax = axes_of(ax, 0.9 + cell * n_columns, 0.75 + cell * 0.72 * n_rows)
    largest = np.nanmax(np.abs(data.values)) if np.isfinite(data.values).any() else 0.0
    exponent = 0 if percent or not 0 < largest < 0.1 else math.floor(math.log10(largest))
    inks: dict[tuple[str, float], list[Path]] = {}  # cells of one ink are one path
    corners = np.array([[-0.47, -0.46], [0.47, -0.46], [0.47, 0.46], [-0.47, 0.46], [-0.47, -0.46]])
    for (row, column), value in np.ndenumerate(data.values):
        if not math.isfinite(value):
            continue
        share = abs(value) / largest if largest > 0 else 0.0
        for ink in ((RULE, 0.25), (SUPPORTS if value >= 0 else OPPOSES, round(0.9 * share, 2))):
            inks.setdefault(ink, []).append(Path(corners + np.array([column, row]), closed=True))
        if printed and share >= 0.02:
            shown = value * (100 if percent else 10.0**-exponent)
            digits = f"{shown:.{0 if percent or abs(shown) >= 9.995 else 2}f}"
            text = digits.replace("0.", ".", 1).replace("-", MINUS)
            shade = PAPER if share > 0.6 else INK
            ax.text(column, row, text, ha="center", va="center", fontsize=7.5, color=shade)
    for (colour, alpha), boxes in inks.items():
        ax.add_patch(PathPatch(Path.make_compound_path(*boxes), facecolor=colour, alpha=alpha, linewidth=0))
    ax.set_xlim(-0.55, n_columns - 0.45)
    ax.set_ylim(n_rows - 0.45, -0.55)
    ax.set_xticks(range(0, n_columns, step), [_last_word(name) for name in data.columns[::step]])
    ax.set_yticks(range(0, n_rows, step), [_last_word(name) for name in data.rows[::step]])
    ax.tick_params(length=0)
    scaled = f" (numbers in units of {plain_power(10.0**exponent)})" if exponent else ""
    ax.set_xlabel(data.column_title + scaled)
    ax.set_ylabel(data.row_title)
    ax.spines[:].set_visible(False)
    return ax


def _last_word(name: str) -> str:
    """The number of a block without the word; a share of the depth, as `25-50 %`, whole."""
    return name if name.endswith("%") else name.rsplit(" ", 1)[-1]


def matrix_table(matrix: Matrix) -> Table:
    """The numbers behind the picture."""
    corner = Column(name=f"{matrix.row_title} \\ {matrix.column_title}")
    return Table(
        columns=[corner, *columns(*matrix.columns, numeric=True)],
        rows=[
            [name, *("" if math.isnan(value) else number(float(value), 3) for value in row)]
            for name, row in zip(matrix.rows, matrix.values, strict=True)
        ],
    )


LABEL_SIZE = 8.5  # points
REACHES = (8.0, 16.0, 28.0, 44.0, 64.0)  # points from a marker to its label, nearest first
DIRECTIONS = 16
MARKER = 4.0  # points from the middle of a marker to its edge


def place_labels(
    ax: "Axes",
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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

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
