"""A circuit drawing as a picture file: the layout of the viewer, drawn by Matplotlib."""

import io
import re
from collections.abc import Mapping

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path

from assay.page.circuit import CircuitDrawing, DrawnNode
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS


UNIT = 1 / 100  # inches of a unit of the drawing
LABEL = 12  # characters of a label that fit a node


def picture_bytes(drawing: CircuitDrawing, form: str, *, labels: Mapping[str, str]) -> bytes:
    """The drawing as `svg` or `pdf`; the same drawing gives the same bytes.

    Args:
        drawing: Places of nodes and edges.
        form: `svg` or `pdf`.
        labels: Node -> text that is shown in place of its name.
    """
    figure = Figure(figsize=(drawing.width * UNIT, drawing.height * UNIT), facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    axes.set_axis_off()
    for band in drawing.bands:
        axes.text(band.x + band.width / 2, 15, band.label, color=MUTED, fontsize=8, ha="center", va="center")
    for edge in reversed(drawing.edges):
        colour, dashes = (OPPOSES, (0, (4, 2))) if edge.score < 0 else (SUPPORTS, "solid")
        width = edge.width * UNIT * 72
        line = PathPatch(
            _path(edge.path), fill=False, edgecolor=colour, linewidth=width, linestyle=dashes, alpha=0.55
        )
        axes.add_patch(line)
    joined = {0, len(drawing.nodes) - 1} | {
        end for edge in drawing.edges for end in (edge.source, *edge.feeds)
    }
    for node in drawing.nodes:
        _draw_node(axes, node, labels.get(node.name, node.label), on=node.index in joined)
    buffer = io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}[form]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "circuit", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=form, metadata=dates)
    return buffer.getvalue()


def _draw_node(axes: Axes, node: DrawnNode, text: str, *, on: bool) -> None:
    rounding = node.height / 2 if node.kind == "head" else 4
    box = FancyBboxPatch(
        (node.x, node.y),
        node.width,
        node.height,
        boxstyle=f"round,pad=0,rounding_size={rounding}",
        facecolor=PAPER,
        edgecolor=INK if on else RULE,
        linewidth=0.9,
        zorder=3,
    )
    axes.add_patch(box)
    axes.text(
        node.x + node.width / 2,
        node.y + node.height / 2,
        text if len(text) <= LABEL else f"{text[: LABEL - 1]}\N{HORIZONTAL ELLIPSIS}",
        color=INK if on else MUTED,
        fontsize=7,
        ha="center",
        va="center",
        rotation=90 if node.kind == "bar" else 0,
        zorder=4,
        parse_math=False,
    )


def _path(text: str) -> Path:
    """A path of the drawing (moves, level lines and curves) as Matplotlib holds it."""
    points: list[tuple[float, float]] = []
    codes: list[int] = []
    for letter, body in re.findall(r"([MHC])([^MHC]*)", text):
        numbers = [float(number) for number in body.split()]
        if letter == "H":
            points.append((numbers[0], points[-1][1]))
            codes.append(int(Path.LINETO))
        else:
            points += list(zip(numbers[::2], numbers[1::2], strict=True))
            codes += [int(Path.MOVETO)] if letter == "M" else [int(Path.CURVE4)] * 3
    return Path(points, codes)
