"""Pictures of rankings: models with intervals, every metric against performance, matrices of layers."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from assay.analyses.generalization.dependency import layer_names
from assay.core.errors import InputError
from assay.page.draw import INK, MUTED, RULE, SUPPORTS, axes_of
from assay.page.matrix import Matrix, plot_matrix
from assay.page.text import MINUS


if TYPE_CHECKING:
    from assay.analyses.generalization.comparison import RankingComparison
    from assay.analyses.generalization.dependency import Motif
    from assay.analyses.generalization.ranking_table import Ranking

Document = Mapping[str, Any]
LABELLED = 40  # models named on an axis; more are drawn without names
PANELS = 4  # scatter panels in a row
MEASURES = {"accuracy": "accuracy", "macro-f1": "macro-F1"}


def leading(document: Document) -> Document | None:
    """The metric that puts the models in order on the page: the first that can."""
    return next((each for each in document["metrics"] if picked(each)), None)


def picked(metric: Document) -> list[int]:
    """Places of the models that a metric ranks first."""
    return [place for place, row in enumerate(metric["rows"]) if row["rank"] == 1]


def order(document: Document) -> list[int]:
    """Places of the models, predicted best first by the leading metric; as given where none leads."""
    metric, places = leading(document), list(range(len(document["models"])))
    if metric is None:
        return places
    return sorted(places, key=lambda place: (metric["rows"][place]["rank"] or math.inf, place))


def plot_ranking(ranking: "Ranking", ax: Axes | None = None) -> Axes:
    """Draw the leading metric, and performance where it is known, with intervals; on given axes the former.

    Raises:
        InputError: If no metric puts the models in order and their performance is not known.
    """
    document = ranking.to_dict()
    if leading(document) is None and document["performance"] is None:
        raise InputError("none of the metrics orders these models, and their performance is not known")
    return plot_forest(document, ax)


def plot_comparison(comparison: "RankingComparison", ax: Axes | None = None) -> Axes:
    """Draw how each metric goes with performance: the average correlation and its standard error."""
    frame = comparison.to_frame().dropna(subset="average")
    if frame.empty:
        raise InputError("no target has labels, so correlations with performance are undefined")
    ax = axes_of(ax, 6.2, 0.9 + 0.32 * max(3, len(frame)))
    for place, row in enumerate(frame.to_dict("records")):
        ends = [row["average"] - row["sem"], row["average"] + row["sem"]]
        ax.plot(ends, [place] * 2, color=SUPPORTS, linewidth=2.0, alpha=0.55)
        ax.plot([row["average"]], [place], "o", color=INK, markersize=4.5)
    ax.set_yticks(range(len(frame)), frame["metric"].tolist())
    ax.set_ylim(len(frame) - 0.5, -0.5)
    ax.set_xlabel("average |correlation| with performance; line: standard error over all cells")
    return ax


def plot_motif(motif: "Motif", ax: Axes | None = None) -> Axes:
    """Draw the loadings or weights of a motif, layers by layers."""
    values = motif.values.numpy()
    return plot_matrix(layer_matrix(values, layer_names(len(values) - 2)), ax)


def layer_matrix(values: Sequence[Sequence[float | None]] | np.ndarray, layers: Sequence[str]) -> Matrix:
    """A motif or a dependency, layers by layers, without the first column and last row, which hold nothing.

    Cells that no edge joins are NaN: below the diagonal, and a layer with itself but for heads to their MLP.
    """
    table = np.array(values, dtype=float)
    rows, targets = np.indices(table.shape)
    table[(targets < rows) | ((targets == rows) & (table == 0))] = math.nan
    return Matrix(
        rows=tuple(layers[:-1]),
        columns=tuple(layers[1:]),
        values=table[:-1, 1:],
        row_title="source layer",
        column_title="target layer",
    )


def plot_forest(document: Document, ax: Axes | None = None) -> Axes:
    """Draw the intervals of the leading metric and, where known, of performance, a row per model.

    Args:
        document: Of a ranking in which a metric leads or performance is known.
        ax: For the first panel alone. Default: a new figure with all.

    Returns:
        The axes of the first panel; models are in the order of the leading metric.
    """
    metric, truth = leading(document), document["performance"]
    panels = [] if metric is None else [(metric["name"], metric["rows"])]
    panels += [] if truth is None else [(MEASURES[document["measure"]], truth)]
    places = order(document)
    n = len(places)
    axes: Any = np.array([ax])
    if ax is None:
        height = 0.9 + max(0.2 * n, 1.2) if n > LABELLED else 0.9 + 0.3 * n
        figure = Figure(figsize=(4.2 + 3.1 * len(panels), min(height, 14)), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for each, (title, rows) in zip(axes, panels, strict=False):
        axes_of(each, 0.0, 0.0)
        values, low, high = _ends([rows[place] for place in places])
        each.hlines(range(n), low, high, color=SUPPORTS, linewidth=2.0, alpha=0.55, zorder=2)
        each.plot(values, range(n), "o", color=INK, markersize=4.5, zorder=3)
        each.set_xlabel(title)
        for row in range(n):
            each.axhline(row, color=RULE, linewidth=0.6, zorder=0)
        each.tick_params(left=False)
        each.spines["left"].set_visible(False)
    names = [document["models"][place]["name"] for place in places]
    axes[0].set_yticks(range(n), names if n <= LABELLED else [""] * n)
    axes[0].set_ylim(n - 0.5, -0.5)
    first: Axes = axes[0]
    return first


def plot_scatter(document: Document) -> Axes:
    """Draw every metric against performance, a panel each, performance upwards in all.

    Args:
        document: Of a ranking whose performance is known.

    Returns:
        The axes of the first panel.
    """
    metrics = document["metrics"]
    y, y_low, y_high = _ends(document["performance"])
    n_rows = math.ceil(len(metrics) / PANELS)
    figure = Figure(figsize=(10.4, 0.2 + 2.35 * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, PANELS, sharey=True, squeeze=False)
    for ax, metric in zip(axes.flat, metrics, strict=False):
        axes_of(ax, 0.0, 0.0)
        x, x_low, x_high = _ends(metric["rows"])
        ax.hlines(y, x_low, x_high, color=SUPPORTS, linewidth=0.9, alpha=0.4, zorder=1)
        ax.vlines(x, y_low, y_high, color=SUPPORTS, linewidth=0.9, alpha=0.4, zorder=1)
        ax.plot(x, y, "o", color=INK, markersize=3.6, zorder=2)
        ax.set_title(metric["name"], fontsize=9, color=INK, loc="left")
        together = metric["correlation"]
        text = f"rank correlation {together['srcc']['value']:.2f}" if together else "no correlation"
        ax.set_xlabel(text.replace("-", MINUS), color=MUTED, fontsize=8)
    for ax in axes.flat[len(metrics) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel(MEASURES[document["measure"]])
    first: Axes = axes[0, 0]
    return first


def _ends(rows: Sequence[Document]) -> np.ndarray:
    """Values and the ends of their intervals, `[3, rows]`; NaN where undefined."""
    return np.array([[row[key] for row in rows] for key in ("value", "low", "high")], dtype=float)
