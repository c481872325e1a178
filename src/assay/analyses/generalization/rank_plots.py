"""Pictures of a ranking: intervals of the models, every metric against performance, the motif, the cost."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from assay.analyses.generalization.rank_words import leading, measure_name, order
from assay.analyses.generalization.ranking_table import layer_names
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
COST_COLUMNS, COST_CHARACTER = 44, 0.0165  # characters of a line beside a bar; width of one, of the axis
STAGES = {
    "inspect": "logits and features",
    "plain-forward": "one plain pass",
    "forward": "forward passes",
    "backward": "backward passes",
    "contraction": "contraction and the rest",
    "output-scores": "edges into the logits",
    "edge-scores": "all edges",
    "sharpness": "sharpness",
    "metrics": "matrices and resamples",
}


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
    panels += [] if truth is None else [(measure_name(document), truth)]
    places = order(document)
    n = len(places)
    height = 0.9 + max(0.2 * n, 1.2) if n > LABELLED else 0.9 + 0.3 * n
    if ax is None:
        figure = Figure(figsize=(4.2 + 3.1 * len(panels), min(height, 14)), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    else:
        axes = np.array([ax])
    for ax, (title, rows) in zip(axes, panels, strict=False):
        axes_of(ax, 0.0, 0.0)
        values, low, high = _columns([rows[place] for place in places])
        for row in range(n):
            ax.plot([low[row], high[row]], [row, row], color=SUPPORTS, linewidth=2.0, alpha=0.55, zorder=2)
        ax.plot(values, range(n), "o", color=INK, markersize=4.5, zorder=3)
        ax.set_xlabel(title)
        for row in range(n):
            ax.axhline(row, color=RULE, linewidth=0.6, zorder=0)
        ax.tick_params(left=False)
        ax.spines["left"].set_visible(False)
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
    metrics, truth = document["metrics"], document["performance"]
    n_rows = math.ceil(len(metrics) / PANELS)
    figure = Figure(figsize=(10.4, 0.2 + 2.35 * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, PANELS, sharey=True, squeeze=False)
    for ax, metric in zip(axes.flat, metrics, strict=False):
        _scatter(ax, metric, truth)
    for ax in axes.flat[len(metrics) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel(measure_name(document))
    first: Axes = axes[0, 0]
    return first


def _scatter(ax: Axes, metric: Document, truth: Sequence[Document]) -> None:
    axes_of(ax, 0.0, 0.0)
    (x, x_low, x_high), (y, y_low, y_high) = _columns(metric["rows"]), _columns(truth)
    for at, low, high in zip(y, x_low, x_high, strict=True):
        ax.plot([low, high], [at, at], color=SUPPORTS, linewidth=0.9, alpha=0.4, zorder=1)
    for at, low, high in zip(x, y_low, y_high, strict=True):
        ax.plot([at, at], [low, high], color=SUPPORTS, linewidth=0.9, alpha=0.4, zorder=1)
    ax.plot(x, y, "o", color=INK, markersize=3.6, zorder=2)
    ax.set_title(metric["name"], fontsize=9, color=INK, loc="left")
    together = metric["correlation"]
    label = "no correlation"
    if together is not None:
        label = f"rank correlation {together['srcc']['value']:.2f}".replace("-", MINUS)
    ax.set_xlabel(label, color=MUTED, fontsize=8)


def _columns(rows: Sequence[Document]) -> np.ndarray:
    """Values and the ends of their intervals, `[3, rows]`; NaN where undefined."""
    return np.array([[row[key] for row in rows] for key in ("value", "low", "high")], dtype=float)


def layer_matrix(values: Sequence[Sequence[float | None]] | np.ndarray, layers: Sequence[str]) -> Matrix:
    """A motif or a dependency, layers by layers, without the first column and last row, which hold nothing.

    Cells that no edge joins are NaN: below the diagonal, and a layer with itself but for heads to their MLP.
    """
    table = np.array(values, dtype=float)
    rows, columns = np.indices(table.shape)
    table[(columns < rows) | ((columns == rows) & (table == 0))] = math.nan
    return Matrix(
        rows=tuple(layers[:-1]),
        columns=tuple(layers[1:]),
        values=table[:-1, 1:],
        row_title="source layer",
        column_title="target layer",
    )


def plot_cost(costs: Document, ax: Axes | None = None) -> Axes:
    """Draw the seconds of each stage as bars with their passes beside them, most expensive stage first.

    Args:
        costs: By stage: `seconds`, and `passes` per image by kind.
        ax: Where to draw; default a new figure of fitting size.
    """
    stages = sorted(costs, key=lambda name: -costs[name]["seconds"])
    seconds = [float(costs[name]["seconds"]) for name in stages]
    rows = np.arange(len(stages))
    ax = axes_of(ax, 6.6, 0.7 + 0.42 * len(stages))
    ax.barh(rows, seconds, height=0.55, color=SUPPORTS, alpha=0.75)
    furthest = 0.0
    for row, name, length in zip(rows, stages, seconds, strict=True):
        passes = ", ".join(f"{count:g} {kind}" for kind, count in costs[name]["passes"].items() if count)
        text = f"{length:.3g} s" + (f"; per image {passes}" if passes else "")
        text = "\n".join(textwrap.wrap(text, COST_COLUMNS))
        beside = COST_CHARACTER * min(len(text), COST_COLUMNS)  # share of the axis that the text takes
        furthest = max(furthest, length / (1 - beside))
        ax.annotate(
            text,
            (length, row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=MUTED,
            fontsize=8.5,
        )
    ax.set_yticks(rows, [STAGES.get(name, name) for name in stages])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, furthest or 1.0)
    ax.set_xlabel("seconds over all models and images")
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return ax
