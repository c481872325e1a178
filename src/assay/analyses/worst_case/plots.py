"""The picture of a worst case: the distribution of divergences, its percentiles, their certified bounds."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from assay.analyses.worst_case.page_words import Percentile, counted, noun, percentiles, unit_of
from assay.page.draw import MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.analyses.worst_case.result import WorstCase

FAR = 100.0  # a median that far below the largest value calls for a logarithmic axis
MARKED = ("p50", "p95", "p99", "p99.9", "p99.99", "max")
Document = Mapping[str, Any]


def plot_worst_case(worst: "WorstCase", ax: "Axes | None" = None) -> "Axes":
    """Draw the divergences of all pairs and their percentiles; on given axes the histogram alone."""
    document = worst.distribution()
    return plot_tail(document) if ax is None else plot_histogram(document, ax)


def plot_tail(document: Document) -> "Axes":
    """Draw the histogram above, its percentiles below; returns the axes of the histogram."""
    from matplotlib.figure import Figure

    height = 0.7 + 0.27 * len(marks(document))
    figure = Figure(figsize=(7.6, height + 2.7), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[2.7, height])
    plot_histogram(document, above)
    plot_percentiles(document, below)
    for ax in (above, below):
        ax.set_facecolor("none")
    return cast("Axes", above)


def marks(document: Document) -> list[Percentile]:
    """The percentiles that are drawn, ascending."""
    named = {each.key: each for each in percentiles(document) if each.value is not None}
    return [named[key] for key in MARKED if key in named]


def plot_histogram(document: Document, ax: "Axes | None" = None) -> "Axes":
    """Draw the divergences of circuit and empty circuit, pairs on a logarithmic axis: the tail is news."""
    from matplotlib.ticker import NullFormatter

    ax = axes_of(ax, 7.6, 3.0)
    histogram = document["histogram"]
    edges, counts, anchor = (
        np.array(histogram.get(name) or (), dtype=float) for name in ("edges", "counts", "anchor_counts")
    )
    if edges[-1] == edges[0]:  # all divergences are 0: one bin of no width
        edges = np.array([0.0, 1.0])
    ax.set_yscale("log")
    # A pair of small probability counts for less than one, and its bin is to stand out all the same.
    both = np.concatenate([counts, anchor])
    floor = min(1.0, both[both > 0].min(initial=1.0)) / 2
    for values, colour, alpha, width in ((anchor, MUTED, 0.22, 0.9), (counts, SUPPORTS, 0.28, 1.4)):
        if values.size:
            shown = np.where(values > 0, values, np.nan)
            ax.stairs(shown, edges, baseline=floor, fill=True, color=colour, alpha=alpha)
            ax.stairs(shown, edges, baseline=floor, color=colour, linewidth=width)
    ax.set_ylim(floor, 2.5 * both.max(initial=1.0))
    ax.set_xlim(0, edges[-1] * 1.02)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(f"divergence from the model, {unit_of(document)}")
    what = noun(document)
    ax.set_ylabel(f"{what} per bin")
    return ax


def plot_percentiles(document: Document, ax: "Axes | None" = None) -> "Axes":
    """Draw a row per percentile: the sample's, a line up to its certified bound, the empty circuit's.

    The axis is logarithmic where the circuit's median and the empty circuit's worst lie far apart.
    """
    rows = marks(document)
    ax = axes_of(ax, 7.6, 0.3 + 0.28 * len(rows))
    shown = [value for row in rows for value in (row.value, row.anchor, row.bound) if value and value > 0]
    start, end = 0.0, max(shown, default=1.0) * 1.02
    if shown and end > FAR * min(shown):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        start, end = min(shown) / 1.3, end * 1.1
    ax.set_xlim(start, end)
    for place, row in enumerate(rows):
        assert row.value is not None
        ax.axhline(place, color=RULE, linewidth=0.6, zorder=0)
        if row.anchor is not None:
            ax.plot(row.anchor, place, "s", color=MUTED, markersize=4, markerfacecolor="none", clip_on=False)
        if row.bound is not None:
            ax.plot([row.value, row.bound], [place] * 2, color=OPPOSES, linewidth=2, solid_capstyle="butt")
            ax.plot(row.bound, place, "|", color=OPPOSES, markersize=10, markeredgewidth=2, clip_on=False)
        ax.plot(row.value, place, "o", color=SUPPORTS, markersize=5, clip_on=False, zorder=4)
        if row.n_needed is not None:
            text = f"no bound: needs {row.n_needed:,} independent {counted(document)}"
            _write_beside(ax, place, text, row.value, row.value if row.anchor is None else row.anchor, start)
    ax.set_yticks(range(len(rows)), [row.name for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.6)
    ax.tick_params(axis="y", left=False)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(f"divergence, {unit_of(document)}")
    _explain_marks(ax)
    return ax


def _write_beside(ax: "Axes", row: int, text: str, value: float, anchor: float, start: float) -> None:
    """Write into the widest gap of a row, at the end where a mark stands."""

    def place(x: float) -> float:
        """Where a value stands on the axis, 0 left to 1 right."""
        inside = ax.transAxes.inverted().transform(ax.transData.transform((max(x, start), 0.0)))
        return float(inside[0])

    first, last = sorted((value, anchor))
    gaps = {"left": place(first), "middle": place(last) - place(first), "right": 1 - place(last)}
    gap = max(gaps, key=lambda name: gaps[name])
    ax.annotate(
        text,
        (last if gap == "right" else first, row),
        xytext=(-8 if gap == "left" else 8, 0),
        textcoords="offset points",
        ha="right" if gap == "left" else "left",
        va="center",
        color=MUTED,
        fontsize=7.5,
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.0},
    )


def _explain_marks(ax: "Axes") -> None:
    from matplotlib.lines import Line2D

    styles: dict[str, dict[str, Any]] = {
        "circuit, this sample": {"marker": "o", "color": SUPPORTS, "markersize": 5},
        "certified: at most here": {
            "marker": "|",
            "color": OPPOSES,
            "markersize": 10,
            "markeredgewidth": 2,
        },
        "empty circuit": {"marker": "s", "color": MUTED, "markersize": 4, "markerfacecolor": "none"},
    }
    ax.legend(
        handles=[Line2D([], [], linestyle="", label=name, **style) for name, style in styles.items()],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=3,
        frameon=False,
        fontsize=8.5,
        labelcolor=MUTED,
        handletextpad=0.2,
        borderaxespad=0.1,
    )
