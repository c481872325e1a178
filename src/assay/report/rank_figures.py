"""Pictures of a ranking: intervals of the models, every metric against performance, the motif, the cost."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from assay.page.draw import INK, MUTED, RULE, SUPPORTS, axes_of
from assay.page.matrix import Matrix, plot_matrix


Document = Mapping[str, Any]
LABELLED = 40  # models named on an axis; more are drawn without names
PANELS = 4  # scatter panels in a row
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


@dataclass(frozen=True, kw_only=True)
class ForestData:
    """A number with its interval for each model, predicted best on top; NaN where undefined.

    Attributes:
        names: Models.
        values, low, high: One each.
        title: What the number is.
    """

    names: tuple[str, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    title: str


@dataclass(frozen=True, kw_only=True)
class ScatterData:
    """One metric against true performance: a point with both intervals per model.

    Attributes:
        name: Of the metric.
        x, x_low, x_high: The metric and its interval.
        y, y_low, y_high: Performance and its interval.
        label: A sentence on the correlations.
        measure: What performance is.
    """

    name: str
    x: tuple[float, ...]
    x_low: tuple[float, ...]
    x_high: tuple[float, ...]
    y: tuple[float, ...]
    y_low: tuple[float, ...]
    y_high: tuple[float, ...]
    label: str
    measure: str


@dataclass(frozen=True, kw_only=True)
class CostData:
    """Seconds of each stage over all models and images, and a phrase on its passes per image."""

    stages: tuple[str, ...]
    seconds: tuple[float, ...]
    passes: tuple[str, ...]


def metric_of(document: Document, key: str) -> Document | None:
    """A metric of a ranking, if it is there."""
    return next((each for each in document["metrics"] if each["key"] == key), None)


def leading(document: Document) -> Document | None:
    """The metric that puts the models in order on the page: the first that can."""
    return next((each for each in document["metrics"] if any(row["rank"] for row in each["rows"])), None)


def order(document: Document) -> list[int]:
    """Places of the models, predicted best first by the leading metric; as given where none leads."""
    first = leading(document)
    places = list(range(len(document["models"])))
    if first is None:
        return places
    return sorted(places, key=lambda place: (first["rows"][place]["rank"] or math.inf, place))


def forest_data(document: Document) -> list[ForestData]:
    """The leading metric and, where known, performance, with one order of models."""
    places = order(document)
    names = tuple(document["models"][place]["name"] for place in places)
    found = []
    first = leading(document)
    if first is not None:
        found.append(_forest(names, [first["rows"][place] for place in places], first["name"]))
    if document["performance"] is not None:
        rows = [document["performance"][place] for place in places]
        found.append(_forest(names, rows, measure_name(document)))
    return found


def _forest(names: tuple[str, ...], rows: Sequence[Document], title: str) -> ForestData:
    values, low, high = (numbers(row[key] for row in rows) for key in ("value", "low", "high"))
    return ForestData(names=names, values=values, low=low, high=high, title=title)


def measure_name(document: Document) -> str:
    """True performance, as axes call it."""
    return {"accuracy": "accuracy", "macro-f1": "macro-F1"}[document["measure"]]


def scatter_data(document: Document) -> list[ScatterData]:
    """Every metric against performance; empty without labels."""
    truth = document["performance"]
    if truth is None:
        return []
    y, y_low, y_high = (numbers(row[key] for row in truth) for key in ("value", "low", "high"))
    found = []
    for metric in document["metrics"]:
        x, x_low, x_high = (numbers(row[key] for row in metric["rows"]) for key in ("value", "low", "high"))
        together = metric["correlation"]
        label = "no correlation"
        if together is not None:
            label = f"rank correlation {together['srcc']['value']:.2f}".replace("-", "\N{MINUS SIGN}")
        found.append(
            ScatterData(
                name=metric["name"],
                x=x,
                x_low=x_low,
                x_high=x_high,
                y=y,
                y_low=y_low,
                y_high=y_high,
                label=label,
                measure=measure_name(document),
            )
        )
    return found


def motif_data(values: Sequence[Sequence[float | None]] | np.ndarray, layers: Sequence[str]) -> Matrix:
    """A matrix of layers by layers, without the first column and last row, which hold nothing.

    Cells that no edge joins are NaN: below the diagonal, and a layer with itself but for heads to their MLP.
    """
    table = np.array([[math.nan if cell is None else cell for cell in row] for row in values], dtype=float)
    rows, columns = np.indices(table.shape)
    table[(columns < rows) | ((columns == rows) & (table == 0))] = math.nan
    return Matrix(
        rows=tuple(layers[:-1]),
        columns=tuple(layers[1:]),
        values=table[:-1, 1:],
        row_title="source layer",
        column_title="target layer",
    )


def cost_data(costs: Document) -> CostData:
    """The cost of a ranking, most expensive stage first."""
    stages = sorted(costs, key=lambda name: -costs[name]["seconds"])
    return CostData(
        stages=tuple(STAGES.get(name, name) for name in stages),
        seconds=tuple(float(costs[name]["seconds"]) for name in stages),
        passes=tuple(
            ", ".join(f"{count:g} {kind}" for kind, count in costs[name]["passes"].items() if count)
            for name in stages
        ),
    )


# ---------------------------------------------------------------------------------------------- drawing


def plot_forest(panels: Sequence[ForestData]) -> Axes:
    """Draw intervals side by side, one row per model; the axes of the first panel come back."""
    n = len(panels[0].names)
    height = 0.9 + max(0.2 * n, 1.2) if n > LABELLED else 0.9 + 0.3 * n
    figure = Figure(figsize=(4.2 + 3.1 * len(panels), min(height, 14)), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    rows = np.arange(n)
    for ax, panel in zip(axes, panels, strict=True):
        axes_of(ax, 0.0, 0.0)
        for row, low, high in zip(rows, panel.low, panel.high, strict=True):
            ax.plot([low, high], [row, row], color=SUPPORTS, linewidth=2.0, alpha=0.55, zorder=2)
        ax.plot(panel.values, rows, "o", color=INK, markersize=4.5, zorder=3)
        ax.set_xlabel(panel.title)
        for row in rows:
            ax.axhline(row, color=RULE, linewidth=0.6, zorder=0)
        ax.tick_params(left=False)
        ax.spines["left"].set_visible(False)
    axes[0].set_yticks(rows, panels[0].names if n <= LABELLED else [""] * n)
    axes[0].set_ylim(n - 0.5, -0.5)
    first: Axes = axes[0]
    return first


def plot_scatter(panels: Sequence[ScatterData]) -> Axes:
    """Draw one small panel per metric, performance upwards in all; the axes of the first come back."""
    n_rows = math.ceil(len(panels) / PANELS)
    figure = Figure(figsize=(10.4, 0.2 + 2.35 * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, PANELS, sharey=True, squeeze=False)
    for place, ax in enumerate(axes.flat):
        if place >= len(panels):
            ax.set_visible(False)
            continue
        panel = panels[place]
        axes_of(ax, 0.0, 0.0)
        for y, low, high in zip(panel.y, panel.x_low, panel.x_high, strict=True):
            ax.plot([low, high], [y, y], color=SUPPORTS, linewidth=0.9, alpha=0.4, zorder=1)
        for x, low, high in zip(panel.x, panel.y_low, panel.y_high, strict=True):
            ax.plot([x, x], [low, high], color=SUPPORTS, linewidth=0.9, alpha=0.4, zorder=1)
        ax.plot(panel.x, panel.y, "o", color=INK, markersize=3.6, zorder=2)
        ax.set_title(panel.name, fontsize=9, color=INK, loc="left")
        ax.set_xlabel(panel.label, color=MUTED, fontsize=8)
        if place % PANELS == 0:
            ax.set_ylabel(panel.measure)
    first: Axes = axes[0, 0]
    return first


def plot_motif(data: Matrix, ax: Axes | None = None) -> Axes:
    """Draw a motif: rows are source layers, hue the sign, ink the size, the centre 0."""
    return plot_matrix(data, ax)


COST_COLUMNS, COST_CHARACTER = 44, 0.0165  # characters of a line beside a bar; width of one, of the axis


def plot_cost(data: CostData, ax: Axes | None = None) -> Axes:
    """Draw the seconds of each stage as bars with their passes beside them."""
    ax = axes_of(ax, 6.6, 0.7 + 0.42 * len(data.stages))
    rows = np.arange(len(data.stages))
    ax.barh(rows, data.seconds, height=0.55, color=SUPPORTS, alpha=0.75)
    furthest = 0.0
    for row, seconds, passes in zip(rows, data.seconds, data.passes, strict=True):
        text = f"{seconds:.3g} s" + (f"; per image {passes}" if passes else "")
        text = "\n".join(textwrap.wrap(text, COST_COLUMNS))
        beside = COST_CHARACTER * min(len(text), COST_COLUMNS)  # share of the axis that the text takes
        furthest = max(furthest, seconds / (1 - beside))
        ax.annotate(
            text,
            (seconds, row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=MUTED,
            fontsize=8.5,
        )
    ax.set_yticks(rows, data.stages)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, furthest or 1.0)
    ax.set_xlabel("seconds over all models and images")
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return ax


def numbers(values: Any) -> tuple[float, ...]:
    """Numbers of a document, undefined ones as NaN."""
    return tuple(math.nan if value is None else float(value) for value in values)


__all__ = [
    "CostData",
    "ForestData",
    "ScatterData",
    "cost_data",
    "forest_data",
    "leading",
    "measure_name",
    "metric_of",
    "motif_data",
    "order",
    "plot_cost",
    "plot_forest",
    "plot_motif",
    "plot_scatter",
    "scatter_data",
]
