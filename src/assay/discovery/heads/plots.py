"""The picture of head scores."""

from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from assay.page.matrix import Matrix, plot_matrix


if TYPE_CHECKING:
    from assay.discovery.heads.scores import HeadScores


def plot_heads(scores: "HeadScores", ax: Axes | None = None) -> Axes:
    """Draw the score of each head as a cell: layers to the right, heads downwards."""
    matrix = Matrix(
        rows=tuple(f"head {head}" for head in range(scores.n_heads)),
        columns=tuple(f"layer {layer}" for layer in range(scores.n_layers)),
        values=scores.values.T,
        row_title="head",
        column_title=f"layer: {scores.name}" + (f", {scores.unit}" if scores.unit else ""),
    )
    return plot_matrix(matrix, ax)
