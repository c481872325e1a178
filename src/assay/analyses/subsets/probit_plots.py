"""Pictures of the models of a chosen subset: accuracies in and out of distribution, on probit axes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.special import ndtr, ndtri

from assay.analyses.subsets.line import EPS, FittedLine, probit
from assay.analyses.subsets.page_words import signed
from assay.analyses.subsets.plots import legend_above
from assay.page.draw import INK, MUTED, OPPOSES, SUPPORTS, axes_of
from assay.page.text import number


DRAWN_MODELS = 600  # points of a scatter; of more, evenly spaced ones by accuracy are drawn
BINS = 25  # of accuracies
TICKS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99, 0.999)
# Colour and marker of each set of examples, its name in a legend and over a panel.
SETS = {
    "all": (SUPPORTS, "o", "all", "All"),
    "selected": (OPPOSES, "D", "the chosen", "Chosen"),
    "rest": (MUTED, "s", "the other", "Not chosen"),
}
Document = Mapping[str, Any]


def plot_scatter(document: Document, ax: Axes | None = None) -> Axes:
    """Draw accuracy out of against in distribution of held-out models: all examples and the chosen ones."""
    ax = axes_of(ax, 5.6, 4.5)
    places = drawn_models(document)
    shown = [name for name in example_sets(document) if name != "rest"]
    handles, labels = [], []
    for name in shown:
        _cloud(ax, document, name, places)
        colour, marker, called, _ = SETS[name]
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=5))
        labels.append(f"{called} {number(_size(document, name))}:  {_line_words(document, name, ',  ')}")
    legend_above(ax, handles, labels, columns=1)
    _probit_axes(ax, document, shown, places)
    ax.set_xlabel("accuracy in distribution")
    ax.set_ylabel("accuracy out of distribution")
    return ax


def plot_three(document: Document) -> Axes:
    """Draw all, chosen and other examples in a panel each, on the same axes; the first panel comes back."""
    places, sets = drawn_models(document), example_sets(document)
    figure = Figure(figsize=(10.4, 3.7), layout="constrained")
    panels = figure.subplots(1, max(1, len(sets)), sharex=True, sharey=True, squeeze=False)[0]
    for ax, name in zip(panels, sets, strict=False):
        axes_of(ax, 0.0, 0.0)
        _cloud(ax, document, name, places)
        _probit_axes(ax, document, sets, places)
        heading = f"{SETS[name][3]} ({number(_size(document, name))})"
        ax.set_title(heading, fontsize=9.5, color=INK, loc="left")
        ax.set_xlabel(_line_words(document, name, ", "), color=MUTED, fontsize=8.5)
    panels[0].set_ylabel("accuracy out of distribution")
    figure.supxlabel("accuracy in distribution", fontsize=9, color=INK)
    first: Axes = panels[0]
    return first


def plot_evaluation(document: Document, ax: Axes | None = None) -> Axes:
    """Draw other models on a subset and on all examples, over the lines and where those expect them."""
    ax = axes_of(ax, 5.6, 4.5)
    models, level, lines = document["models"][:DRAWN_MODELS], document["level"], document["subset"]["lines"]
    unrated = models[0]["id_accuracy"] is None
    x = reached = np.array(
        [each["accuracy_all"]["value"] if unrated else each["id_accuracy"] for each in models]
    )
    shown, handles, labels = [], [], []
    for name, key in (("all", "accuracy_all"), ("selected", "accuracy")):
        colour, marker, called, _ = SETS[name]
        shown.append(np.array([list(each[key].values()) for each in models], dtype=float))
        y = probit(shown[-1]).T
        reach = (y[0] - y[1], y[2] - y[0])
        ax.errorbar(probit(x), y[0], reach, fmt=marker, color=colour, ms=4.5, lw=1)
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=5))
        labels.append(f"{called} examples")
        if lines and lines[name]["slope"] is not None and not unrated:
            line = FittedLine.from_dict(lines[name])
            known = line.centre + np.array([-2, 2]) * np.sqrt(line.variance)
            reached = ndtr(np.append(probit(x), known))
            places = probit(reached)
            places = np.linspace(places.min(), places.max(), 60)
            band = line.predict(ndtr(places), level=level)
            ax.plot(places, band[0], color=colour, lw=1.4, zorder=1)
            ax.fill_between(places, band[1], band[2], color=colour, alpha=0.12, lw=0, zorder=0)
    legend_above(ax, handles, labels, columns=2)
    _axes_for(ax, reached, np.concatenate(shown, axis=None))
    ax.set_xlabel("accuracy on all examples" if unrated else "accuracy in distribution")
    ax.set_ylabel("accuracy")
    return ax


def plot_accuracies(document: Document) -> Axes:
    """Draw how many models have which accuracy, in and out of distribution, counts on a log axis."""
    models, edges = document["models"], np.linspace(0, 1, BINS + 1)
    known, everything, selected = (
        np.histogram(np.array(models[name], dtype=float), edges)[0]
        for name in ("id_accuracy", "all", "selected")
    )
    figure = Figure(figsize=(10.4, 2.7), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for ax in (left, right):
        axes_of(ax, 0.0, 0.0)
        ax.set_yscale("log")
        ax.set_xlim(0, 1)
    left.stairs(known, edges, fill=True, color=MUTED, alpha=0.35, baseline=0.7)
    left.stairs(known, edges, color=INK, linewidth=1.0, baseline=0.7)
    right.stairs(everything, edges, fill=True, color=MUTED, alpha=0.35, baseline=0.7)
    whole = right.stairs(everything, edges, color=INK, linewidth=1.0, baseline=0.7)
    chosen = right.stairs(selected, edges, color=OPPOSES, linewidth=1.8, baseline=0.7)
    legend_above(right, [whole, chosen], ["all examples", "chosen examples"], columns=2)
    left.set_ylim(0.7, 1.5 * max(1, *known, *everything, *selected))
    left.set_ylabel("models")
    left.set_xlabel("accuracy in distribution")
    right.set_xlabel("accuracy out of distribution")
    first: Axes = left
    return first


# ---------------------------------------------------------------------------------------------- the points


def example_sets(document: Document) -> list[str]:
    """The sets of examples that have accuracies and a line: all, the chosen ones, the others."""
    lines, models = document["lines"], document["models"]
    return [name for name in SETS if lines.get(name) is not None and models[name] is not None]


def drawn_models(document: Document) -> list[int]:
    """Places of the held-out models; of very many, evenly spaced ones by accuracy in distribution."""
    models = document["models"]
    held_out = [place for place, part in enumerate(models["part"]) if part == "test"]
    if len(held_out) <= DRAWN_MODELS:
        return held_out
    ordered = sorted(held_out, key=lambda place: models["id_accuracy"][place])
    return [ordered[place] for place in np.linspace(0, len(ordered) - 1, DRAWN_MODELS).round().astype(int)]


def _accuracies(document: Document, name: str, places: Sequence[int]) -> np.ndarray:
    return np.array(document["models"][name], dtype=float)[places]


def _size(document: Document, name: str) -> int:
    """Examples of a set."""
    chosen, n_examples = document["size"], document["data"]["n_examples"]
    return int({"all": n_examples, "selected": chosen, "rest": n_examples - chosen}[name])


def _line_words(document: Document, name: str, between: str) -> str:
    """The least-squares line of a set, for a label."""
    line = document["lines"][name]
    words = [
        f"R {signed(line['r'])}",
        f"slope {signed(line['slope'])}",
        f"intercept {signed(line['intercept'])}",
    ]
    return between.join(words)


def _cloud(ax: Axes, document: Document, name: str, places: Sequence[int]) -> None:
    """Points and line of one set of examples, in probit space."""
    x = probit(_accuracies(document, "id_accuracy", places))
    y = probit(_accuracies(document, name, places))
    colour, marker, *_ = SETS[name]
    ax.plot(x, y, marker, color=colour, markersize=3.6, alpha=0.55, markeredgewidth=0, zorder=2)
    line, finite = document["lines"][name], np.isfinite(x)
    slope, intercept = np.array([line["slope"], line["intercept"]], dtype=float)
    if finite.any() and math.isfinite(slope):
        ends = np.array([x[finite].min(), x[finite].max()])
        ax.plot(ends, slope * ends + intercept, color=colour, linewidth=1.8, zorder=3)


# ------------------------------------------------------------------------------------------------ the axes


def _probit_axes(ax: Axes, document: Document, sets: Sequence[str], places: Sequence[int]) -> None:
    """Axes that hold the points of some sets of examples."""
    y = np.concatenate([_accuracies(document, name, places) for name in sets] or [np.array([])])
    _axes_for(ax, _accuracies(document, "id_accuracy", places), y)


def _axes_for(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Ticks at accuracies; the far ends mean exactly 0 and 1."""
    for axis, values, limits in ((ax.xaxis, x, ax.set_xlim), (ax.yaxis, y, ax.set_ylim)):
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.5, 0.5)
        ends = probit(np.array([low, high]))
        room = max(0.06 * float(ends[1] - ends[0]), 0.05)
        start, stop = float(ends[0]) - room, float(ends[1]) + room
        ticks = [(float(ndtri(tick)), f"{tick:g}") for tick in _ticks(start, stop)]
        if low <= EPS:
            ticks.insert(0, (float(ndtri(EPS)), "0"))
        if high >= 1 - EPS:
            ticks.append((float(ndtri(1 - EPS)), "1"))
        axis.set_ticks([place for place, _ in ticks], [label for _, label in ticks])
        limits(start, stop)


def _ticks(start: float, stop: float) -> list[float]:
    """Accuracies for ticks on an axis from one quantile to another."""
    ticks: list[float] = []
    for grid in _grids():
        ticks = [tick for tick in grid if start <= float(ndtri(tick)) <= stop]
        if len(ticks) >= 4:
            break
    # Labels closer than a fourteenth of the axis would run into each other.
    apart: list[float] = []
    for tick in ticks:
        if not apart or float(ndtri(tick) - ndtri(apart[-1])) > (stop - start) / 14:
            apart.append(tick)
    return apart


def _grids() -> Iterator[Sequence[float]]:
    """Accuracies to put ticks at, from coarse to fine."""
    yield TICKS
    for step in (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001):
        yield [round(step * place, 6) for place in range(1, round(1 / step))]
