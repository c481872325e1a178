"""Pictures of a chosen subset: R by size, accuracies on probit axes, what is in it, whether it is real.

`*_data` reads the document of a selection or of a path over sizes, `plot_*` draws it, `save_data` writes what
was drawn as a table or as JSON.
"""

import base64
import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator
from scipy.special import ndtri

from assay.page import text as words
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of
from assay.report.subset_data import (
    NAMES,
    AccuracyData,
    BarsData,
    Cloud,
    ComparisonData,
    CompositionData,
    ConsistencyData,
    FigureData,
    GalleryData,
    ModelsData,
    NullData,
    ReplicationData,
    ScatterData,
    SizeData,
    accuracy_data,
    comparison_data,
    composition_data,
    consistency_data,
    gallery_data,
    models_data,
    null_data,
    prevalence_data,
    replication_data,
    save_data,
    scatter_data,
    signed,
    size_data,
)


INVERSE = -0.3  # accuracy is on the inverse line from here down
DOTTED = (0, (1, 2.5))
CLIP = 1e-6  # accuracies 0 and 1 are drawn where the statistic puts them
SHOWN_CLASSES = 24  # rows of the composition
NAMED_CLASSES = 4  # lines of the composition that have a colour and a name
PRINTED_SIZES = 12  # a heat map with more sizes prints no digits
# Colour, dash, marker of each kind: distinct in grey too.
STYLES: dict[str, tuple[str, Any, str]] = {
    "selection": (OPPOSES, "-", "o"),
    "random": (MUTED, "-", ""),
    "hard": (INK, (0, (4, 2)), "s"),
    "marginal": (SUPPORTS, (0, (1, 1.6)), "^"),
    "distance": (SUPPORTS, (0, (6, 2, 1, 2)), "D"),
}
TICKS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99, 0.999)


def plot_size(data: SizeData, ax: Axes | None = None) -> Axes:
    """Draw the correlation against subset size on a logarithmic axis; below 0, better models do worse."""
    ax = axes_of(ax, 5.6, 4.1)
    sizes = np.array(data.sizes, dtype=float)
    ax.set_xscale("log")
    ax.axhline(0, color=MUTED, linewidth=0.8, zorder=1)
    ax.axhline(INVERSE, color=MUTED, linewidth=0.8, linestyle=DOTTED, zorder=1)
    ax.axhline(data.full, color=MUTED, linewidth=0.9, linestyle=(0, (6, 3)), zorder=1)
    handles: list[Line2D] = []
    for each in reversed(data.series):
        colour, dash, marker = STYLES[each.kind]
        first = each.kind == "selection"
        if first or each.kind == "random":
            ax.fill_between(sizes, each.low, each.high, color=colour, alpha=0.16, linewidth=0, zorder=1)
        ax.plot(
            sizes,
            each.values,
            color=colour,
            linestyle=dash,
            linewidth=1.8 if first else 1.2,
            marker="" if first else marker,
            markersize=3.5,
            zorder=4 if first else 3,
        )
        if not first:
            handles.insert(0, Line2D([], [], color=colour, linestyle=dash, marker=marker, markersize=3.5))
    judged = any(data.verdicts)
    for size, value, status in zip(sizes, data.series[0].values, data.verdicts, strict=True):
        filled = status == "supported" or not judged
        ax.plot(
            [size], [value], "o", color=OPPOSES, markersize=5.5, zorder=5,
            markerfacecolor=OPPOSES if filled else PAPER,
        )  # fmt: skip
    _ring(ax, data.headline, dict(zip(data.sizes, data.series[0].values, strict=True)).get(data.headline))
    labels = [NAMES[each.kind] for each in data.series]
    chosen = Line2D([], [], color=OPPOSES, linewidth=1.8, marker="o", markersize=5.5)
    whole = Line2D([], [], color=MUTED, linewidth=0.9, linestyle=(0, (6, 3)))
    inverse = Line2D([], [], color=MUTED, linewidth=0.8, linestyle=DOTTED)
    below = f"inverse line from {signed(INVERSE, 1)} down"
    _legend(ax, [chosen, *handles, whole, inverse], [*labels, "all examples", below], columns=2)
    _size_axis(ax, data.sizes, data.n_examples)
    ax.set_ylim(-1.06, 1.06)
    ax.set_ylabel(
        "R over held-out models (probit axes)"
        if data.statistic == "pearson"
        else "Spearman’s rank correlation"
    )
    return ax


def plot_comparison(data: ComparisonData, ax: Axes | None = None) -> Axes:
    """Draw the correlations at one size as points with their intervals."""
    ax = axes_of(ax, 6.4, 0.95 + 0.38 * len(data.names))
    rows = np.arange(len(data.names))
    for row, kind in enumerate(data.kinds):
        colour = STYLES[kind][0] if kind in STYLES else MUTED
        marker = (STYLES[kind][2] if kind in STYLES else "") or "o"
        ax.axhline(row, color=RULE, linewidth=0.6, zorder=0)
        ax.plot([data.low[row], data.high[row]], [row, row], color=colour, linewidth=2.2, alpha=0.55)
        ax.plot(
            [data.values[row]], [row], marker, color=colour, markersize=6 if kind == "selection" else 5,
            markerfacecolor=PAPER if kind in ("random", "all") else colour, zorder=3,
        )  # fmt: skip
    ax.axvline(0, color=MUTED, linewidth=0.8, zorder=1)
    ax.axvline(INVERSE, color=MUTED, linewidth=0.8, linestyle=DOTTED, zorder=1)
    ax.set_yticks(rows, data.names)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(-1.05, 1.05)
    ax.set_xlabel("R over held-out models; left of 0, better models do worse")
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return ax


def plot_scatter(data: ScatterData, ax: Axes | None = None) -> Axes:
    """Draw accuracy out of against in distribution on probit axes: all examples and the chosen ones."""
    ax = axes_of(ax, 5.6, 4.5)
    shown = [each for each in data.clouds if each.name != "rest"]
    for each in shown:
        _cloud(ax, data, each)
    handles = [Line2D([], [], color=_ink(each), marker=_mark(each), markersize=5) for each in shown]
    _legend(ax, handles, [_line_label(each) for each in shown], columns=1)
    _probit_axes(ax, data.id_accuracy, [value for each in shown for value in each.accuracy])
    ax.set_xlabel("accuracy in distribution")
    ax.set_ylabel("accuracy out of distribution")
    return ax


def plot_three(data: ScatterData) -> Axes:
    """Draw all, chosen and other examples in a panel each, on the same axes; the first panel comes back."""
    figure = Figure(figsize=(10.4, 3.7), layout="constrained")
    panels = figure.subplots(1, max(1, len(data.clouds)), sharex=True, sharey=True, squeeze=False)[0]
    names = {"all": "All", "selected": "Chosen", "rest": "Not chosen"}
    everything = [value for each in data.clouds for value in each.accuracy]
    for ax, each in zip(panels, data.clouds, strict=False):
        axes_of(ax, 0.0, 0.0)
        _cloud(ax, data, each)
        _probit_axes(ax, data.id_accuracy, everything)
        ax.set_title(f"{names[each.name]} ({words.number(each.size)})", fontsize=9.5, color=INK, loc="left")
        ax.set_xlabel(
            f"R {signed(each.r)}, slope {signed(each.slope)}, intercept {signed(each.intercept)}",
            color=MUTED,
            fontsize=8.5,
        )
    panels[0].set_ylabel("accuracy out of distribution")
    figure.supxlabel("accuracy in distribution", fontsize=9, color=INK)
    first: Axes = panels[0]
    return first


def plot_accuracies(data: AccuracyData) -> Axes:
    """Draw how many models have which accuracy, in and out of distribution, counts on a log axis."""
    figure = Figure(figsize=(10.4, 2.7), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    edges = np.array(data.edges)
    for ax in (left, right):
        axes_of(ax, 0.0, 0.0)
        ax.set_yscale("log")
        ax.set_xlim(0, 1)
    left.stairs(data.known, edges, fill=True, color=MUTED, alpha=0.35, baseline=0.7)
    left.stairs(data.known, edges, color=INK, linewidth=1.0, baseline=0.7)
    right.stairs(data.everything, edges, fill=True, color=MUTED, alpha=0.35, baseline=0.7)
    whole = right.stairs(data.everything, edges, color=INK, linewidth=1.0, baseline=0.7)
    chosen = right.stairs(data.selected, edges, color=OPPOSES, linewidth=1.8, baseline=0.7)
    _legend(right, [whole, chosen], ["all examples", "chosen examples"], columns=2)
    left.set_ylim(0.7, 1.5 * max(1, *data.known, *data.everything, *data.selected))
    left.set_ylabel("models")
    left.set_xlabel("accuracy in distribution")
    right.set_xlabel("accuracy out of distribution")
    first: Axes = left
    return first


def plot_prevalence(data: BarsData, ax: Axes | None = None) -> Axes:
    """Draw differences of shares with intervals; filled bars are significant after correction."""
    ax = axes_of(ax, 5.6, 0.9 + 0.3 * len(data.names))
    rows = np.arange(len(data.names))
    for row, value, low, high, sure in zip(
        rows, data.difference, data.low, data.high, data.significant, strict=True
    ):
        colour = SUPPORTS if value >= 0 else OPPOSES
        ax.barh(
            [row], [100 * value], height=0.62, color=colour if sure else "none", alpha=0.75 if sure else 1.0,
            edgecolor=colour, linewidth=0.9,
        )  # fmt: skip
        ax.plot([100 * low, 100 * high], [row, row], color=INK, linewidth=1.3, zorder=3)
    ax.axvline(0, color=MUTED, linewidth=0.8)
    ax.set_yticks(rows, [_clipped(name, 42) for name in data.names])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlabel("share among the chosen less share in the pool, percentage points")
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return ax


def plot_consistency(data: ConsistencyData, ax: Axes | None = None) -> Axes:
    """Draw the overlap of every two sizes as cells: full ink nested, none as random, vermilion less."""
    n = len(data.sizes)
    cell = 0.46 if n <= PRINTED_SIZES else max(0.2, 5.4 / n)
    ax = axes_of(ax, 0.9 + cell * n, 0.8 + cell * 0.8 * n)
    for row, values in enumerate(data.values):
        for column, value in enumerate(values):
            if not math.isfinite(value):
                ax.text(column, row, "–", ha="center", va="center", color=MUTED, fontsize=7.5)
                continue
            size = min(1.0, abs(value))
            ax.add_patch(
                Rectangle(
                    (column - 0.47, row - 0.46),
                    0.94,
                    0.92,
                    facecolor=SUPPORTS if value >= 0 else OPPOSES,
                    alpha=round(0.06 + 0.84 * size, 3),
                    linewidth=0,
                )
            )
            if n <= PRINTED_SIZES:
                ink = PAPER if size > 0.6 else INK
                ax.text(column, row, _short(value), ha="center", va="center", fontsize=7.5, color=ink)
    names = [_thousands(size) for size in data.sizes]
    step = 1 if n <= 16 else 2
    ax.set_xticks(range(0, n, step), names[::step], rotation=90 if n > 8 else 0)
    ax.set_yticks(range(0, n, step), names[::step])
    ax.set_xlim(-0.55, n - 0.45)
    ax.set_ylim(n - 0.45, -0.55)
    ax.tick_params(length=0)
    ax.set_xlabel("subset size")
    ax.set_ylabel("subset size")
    for spine in ax.spines.values():
        spine.set_visible(False)
    return ax


def plot_models(data: ModelsData, ax: Axes | None = None) -> Axes:
    """Draw the correlation on all examples against the number of models, with where it settles."""
    ax = axes_of(ax, 5.6, 3.4)
    for used, curve in zip(data.used, data.curves, strict=True):
        ax.plot(used, curve, color=MUTED, linewidth=0.6, alpha=0.45, zorder=1)
    ax.plot(data.k, data.mean, color=SUPPORTS, linewidth=1.9, zorder=3)
    if math.isfinite(data.stable):
        if math.isfinite(data.stable_low) and math.isfinite(data.stable_high):
            ax.axvspan(data.stable_low, data.stable_high, color=SUPPORTS, alpha=0.1, linewidth=0, zorder=0)
        ax.axvline(data.stable, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=2)
        left = data.stable < 0.6 * data.k[-1]
        ax.annotate(
            f"settled at {data.stable:.0f}",
            (data.stable, 0.03),
            xycoords=("data", "axes fraction"),
            xytext=(5 if left else -5, 0),
            textcoords="offset points",
            ha="left" if left else "right",
            color=INK,
            fontsize=8.5,
        )
    ax.set_xlabel("models, in random order")
    ax.set_ylabel("R on all examples")
    ax.set_xlim(0, data.k[-1] * 1.02)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return ax


def plot_composition(data: CompositionData, ax: Axes | None = None) -> Axes:
    """Draw class shares: lines over sizes, or for one size the chosen share beside that of the pool."""
    return _composition_rows(data, ax) if len(data.sizes) < 3 else _composition_lines(data, ax)


def _composition_rows(data: CompositionData, ax: Axes | None) -> Axes:
    chosen = data.chosen
    order = sorted(range(len(data.names)), key=lambda place: (data.pool[place] - chosen[place], place))
    order = order[:SHOWN_CLASSES]
    ax = axes_of(ax, 5.6, 0.9 + 0.3 * len(order))
    for row, place in enumerate(order):
        more = chosen[place] >= data.pool[place]
        ax.axhline(row, color=RULE, linewidth=0.6, zorder=0)
        ax.plot(
            [100 * data.pool[place], 100 * chosen[place]], [row, row], linewidth=2.2, alpha=0.6,
            color=SUPPORTS if more else OPPOSES, zorder=1,
        )  # fmt: skip
        ax.plot([100 * data.pool[place]], [row], "o", color=MUTED, markerfacecolor=PAPER, markersize=5.5)
        ax.plot([100 * chosen[place]], [row], "D", color=OPPOSES, markersize=5)
    ax.set_yticks(range(len(order)), [_clipped(data.names[place], 36) for place in order])
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xlabel("share of the examples, per cent")
    marks = [
        Line2D([], [], color=OPPOSES, marker="D", linestyle="", markersize=5),
        Line2D([], [], color=MUTED, marker="o", linestyle="", markerfacecolor=PAPER, markersize=5.5),
    ]
    _legend(ax, marks, ["chosen", "pool"], columns=2)
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return ax


def _composition_lines(data: CompositionData, ax: Axes | None) -> Axes:
    ax = axes_of(ax, 5.6, 3.9)
    shares = 100 * np.array(data.shares)
    pool = 100 * np.array(data.pool)
    moved = np.nanmax(np.abs(shares - pool), axis=0)
    named = [int(place) for place in np.argsort(-moved, kind="stable")[:NAMED_CLASSES]]
    looks: list[tuple[str, Any, str]] = [
        (OPPOSES, "-", "o"),
        (SUPPORTS, (0, (4, 2)), "s"),
        (INK, (0, (1, 1.6)), "^"),
        (MUTED, (0, (6, 2, 1, 2)), "D"),
    ]
    ax.set_xscale("log")
    for place in range(len(data.names)):
        if place not in named:
            ax.plot(data.sizes, shares[:, place], color=MUTED, linewidth=0.7, alpha=0.5, zorder=1)
    handles, labels = [], []
    for (colour, dash, marker), place in zip(looks, named, strict=False):
        ax.plot(
            data.sizes, shares[:, place], color=colour, linestyle=dash, linewidth=1.6, marker=marker,
            markersize=3.5, zorder=3,
        )  # fmt: skip
        # The pool's share stands at the right edge, where a subset of everything would end.
        ax.plot(
            [1.012], [pool[place]], "<", color=colour, markersize=5, markerfacecolor=PAPER, clip_on=False,
            transform=ax.get_yaxis_transform(), zorder=4,
        )  # fmt: skip
        handles.append(Line2D([], [], color=colour, linestyle=dash, marker=marker, markersize=3.5))
        labels.append(_clipped(data.names[place], 28))
    if len(data.names) > len(named):
        handles.append(Line2D([], [], color=MUTED, linewidth=0.7, alpha=0.5))
        labels.append(f"{len(data.names) - len(named)} others")
    _legend(ax, handles, labels, columns=3)
    _size_axis(ax, data.sizes, None)
    ax.set_ylim(bottom=-1)
    ax.set_ylabel("share of the subset, per cent")
    return ax


def plot_null(data: NullData, ax: Axes | None = None) -> Axes:
    """Draw the permutation null as a histogram with the observed value as a line."""
    ax = axes_of(ax, 5.6, 3.2)
    low = min((*data.values, data.observed), default=-1.0)
    high = max((*data.values, data.observed), default=1.0)
    edges = np.arange(math.floor(low / 0.05) - 1, math.ceil(high / 0.05) + 2) * 0.05
    counts = np.histogram(data.values, edges)[0]
    ax.bar(edges[:-1], counts, width=0.05, align="edge", color=MUTED, alpha=0.4, linewidth=0)
    ax.stairs(counts, edges, color=MUTED, linewidth=0.9)
    ax.axvline(data.observed, color=OPPOSES, linewidth=2.0, zorder=3)
    right = data.observed < 0.5 * (edges[0] + edges[-1])
    ax.annotate(
        f"observed {signed(data.observed)}",
        (data.observed, 0.96),
        xycoords=("data", "axes fraction"),
        xytext=(6 if right else -6, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="top",
        color=OPPOSES,
        fontsize=9,
    )
    ax.set_ylim(0, 1.25 * max(1, int(counts.max(initial=0))))
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.set_xlim(edges[0], edges[-1])
    several = f"lowest R over {data.n_sizes} sizes" if data.n_sizes > 1 else "R"
    ax.set_xlabel(f"{several}, cross-fitted, after shuffling the accuracies")
    ax.set_ylabel("permutations")
    return ax


def plot_replication(data: ReplicationData, ax: Axes | None = None) -> Axes:
    """Draw the examples' own correlations over held-out models: the chosen ones and all others."""
    ax = axes_of(ax, 5.6, 3.2)
    edges = np.array(data.edges)
    pool = 100 * np.array(data.pool)
    chosen = 100 * np.array(data.selected)
    rest = ax.stairs(pool, edges, fill=True, color=MUTED, alpha=0.35)
    ax.stairs(pool, edges, color=MUTED, linewidth=0.9)
    ax.stairs(chosen, edges, fill=True, color=OPPOSES, alpha=0.2)
    outline = ax.stairs(chosen, edges, color=OPPOSES, linewidth=1.7)
    ax.axvline(0, color=MUTED, linewidth=0.8, zorder=1)
    _legend(
        ax,
        [outline, rest],
        [f"{words.number(data.n_selected)} chosen", f"{words.number(data.n_pool)} others"],
        columns=2,
    )
    finite = np.flatnonzero(np.nan_to_num(chosen) + np.nan_to_num(pool) > 0)
    if len(finite):
        ax.set_xlim(min(edges[finite[0]], -0.1) - 0.03, max(edges[finite[-1] + 1], 0.1) + 0.03)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("correlation of an example with in-distribution accuracy, over held-out models")
    ax.set_ylabel("per cent of the examples")
    return ax


def plot_gallery(data: GalleryData, columns: int = 8) -> Axes:
    """Draw the pictures in rows with their labels; the axes of the first come back."""
    from PIL import Image

    n_rows = max(1, math.ceil(len(data.images) / columns))
    figure = Figure(figsize=(1.2 * columns, 1.45 * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, image, title in zip(axes.flat, data.images, data.titles, strict=False):
        with Image.open(io.BytesIO(base64.b64decode(image.partition(",")[2]))) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        ax.imshow(pixels, interpolation="nearest")
        ax.set_title(_clipped(title, 18), fontsize=8, color=INK)
    first: Axes = axes[0, 0]
    return first


# ------------------------------------------------------------------------------------------------ pieces


def _ring(ax: Axes, x: float | int, y: float | None) -> None:
    """Mark the size that the page is about."""
    if y is not None and math.isfinite(y):
        ax.plot(
            [x], [y], "o", markersize=11, markerfacecolor="none", color=INK, markeredgewidth=1.0, zorder=6
        )


def _legend(ax: Axes, handles: Sequence[Any], labels: Sequence[str], *, columns: int) -> None:
    """A legend above the axes, where no line can hide it."""
    ax.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        handletextpad=0.5,
        columnspacing=1.4,
        borderaxespad=0.2,
    )


def _size_axis(ax: Axes, sizes: Sequence[int], n_examples: int | None) -> None:
    """Ticks at sizes 1, 2, 5 times powers of ten, and at all examples."""
    first, last = min(sizes), max(sizes)
    steps = (1, 2, 5) if last < 60 * first else (1,)
    ticks = [
        step * 10**power
        for power in range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
        for step in steps
        if first <= step * 10**power <= last
    ] or [first]
    ax.set_xticks(ticks, [_thousands(tick) for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())
    room = (last / first) ** 0.04 if last > first else 1.6
    ax.set_xlim(first / room, last * room)
    ax.set_xlabel(
        "examples in the subset" + ("" if n_examples is None else f" (of {words.number(n_examples)})")
    )


def _cloud(ax: Axes, data: ScatterData, each: Cloud) -> None:
    """Points and line of one set of examples, in probit space."""
    x, y = probit_places(data.id_accuracy), probit_places(each.accuracy)
    colour = _ink(each)
    ax.plot(x, y, _mark(each), color=colour, markersize=3.6, alpha=0.55, markeredgewidth=0, zorder=2)
    finite = np.isfinite(x)
    if finite.any() and math.isfinite(each.slope):
        ends = np.array([x[finite].min(), x[finite].max()])
        ax.plot(ends, each.slope * ends + each.intercept, color=colour, linewidth=1.8, zorder=3)


def probit_places(values: Sequence[float]) -> np.ndarray:
    """Standard normal quantiles of accuracies, those of 0 and 1 clipped."""
    found: np.ndarray = ndtri(np.clip(np.array(values, dtype=float), CLIP, 1 - CLIP))
    return found


def _ink(each: Cloud) -> str:
    return {"all": SUPPORTS, "selected": OPPOSES, "rest": MUTED}[each.name]


def _mark(each: Cloud) -> str:
    return {"all": "o", "selected": "D", "rest": "s"}[each.name]


def _line_label(each: Cloud) -> str:
    name = {"all": "all", "selected": "the chosen", "rest": "the other"}[each.name]
    return (
        f"{name} {words.number(each.size)}:  R {signed(each.r)},  slope {signed(each.slope)},  "
        f"intercept {signed(each.intercept)}"
    )


def _probit_axes(ax: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    """Ticks at accuracies; the far ends mean exactly 0 and 1."""
    for axis, values, limits in ((ax.xaxis, x, ax.set_xlim), (ax.yaxis, y, ax.set_ylim)):
        finite = np.array([value for value in values if math.isfinite(value)] or [0.5])
        low, high = float(finite.min()), float(finite.max())
        ends = probit_places([low, high])
        room = max(0.06 * float(ends[1] - ends[0]), 0.05)
        start, stop = float(ends[0]) - room, float(ends[1]) + room
        ticks: list[float] = []
        for grid in _grids():
            ticks = [tick for tick in grid if start <= float(ndtri(tick)) <= stop]
            if len(ticks) >= 4:
                break
        # Labels closer than a fourteenth of the axis would run into each other.
        kept: list[float] = []
        for tick in ticks:
            if not kept or float(ndtri(tick) - ndtri(kept[-1])) > (stop - start) / 14:
                kept.append(tick)
        places = [(float(ndtri(tick)), f"{tick:g}") for tick in kept]
        if low <= CLIP:
            places.insert(0, (float(ndtri(CLIP)), "0"))
        if high >= 1 - CLIP:
            places.append((float(ndtri(1 - CLIP)), "1"))
        axis.set_ticks([place for place, _ in places], [text for _, text in places])
        limits(start, stop)


def _grids() -> Iterator[Sequence[float]]:
    """Accuracies to put ticks at, from coarse to fine."""
    yield TICKS
    for step in (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001):
        yield [round(step * place, 6) for place in range(1, round(1 / step))]


def _clipped(text: str, most: int) -> str:
    """A name as it is: no formula between dollar signs, no control characters, not too long."""
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _thousands(size: float | int) -> str:
    return f"{size:,.0f}"


def _short(value: float) -> str:
    text = f"{value:.2f}"
    text = "1" if text == "1.00" else text.replace("0.", ".", 1)
    return text.replace("-", words.MINUS)


__all__ = [
    "AccuracyData",
    "BarsData",
    "ComparisonData",
    "CompositionData",
    "ConsistencyData",
    "FigureData",
    "GalleryData",
    "ModelsData",
    "NullData",
    "ReplicationData",
    "ScatterData",
    "SizeData",
    "accuracy_data",
    "comparison_data",
    "composition_data",
    "consistency_data",
    "gallery_data",
    "models_data",
    "null_data",
    "plot_accuracies",
    "plot_comparison",
    "plot_composition",
    "plot_consistency",
    "plot_gallery",
    "plot_models",
    "plot_null",
    "plot_prevalence",
    "plot_replication",
    "plot_scatter",
    "plot_size",
    "plot_three",
    "prevalence_data",
    "replication_data",
    "save_data",
    "scatter_data",
    "size_data",
]
