"""A labelled matrix as a picture and as a table."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.page.blocks import Column, Table, columns
from assay.page.draw import INK, OPPOSES, PAPER, RULE, SUPPORTS, axes_of, plain_power
from assay.page.text import MINUS, number


if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
