"""The picture of a worst case: the distribution of divergences, its percentiles, their certified bounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from assay.page.draw import MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of


FAR = 100.0  # a median that far below the largest value calls for a logarithmic axis
MARKED = ("p50", "p95", "p99", "p99.9", "p99.99", "max")


@dataclass(frozen=True, kw_only=True)
class MarkData:
    """A percentile of the sample and what is certified about that of the distribution.

    Attributes:
        name: `p99`, `max`, ...
        value: Sample percentile; the empty circuit's is `anchor`.
        bound: Certified upper bound, or None.
        confidence: Of the bound; None without one.
        n_needed: Independent values that a bound takes where there is none for lack of them, else None.
    """

    name: str
    value: float
    anchor: float | None
    bound: float | None
    confidence: float | None
    n_needed: int | None


@dataclass(frozen=True, kw_only=True)
class TailData:
    """A histogram of divergences with the empty circuit's behind it.

    Attributes:
        edges: Bin edges, ascending, one more than bins.
        counts, anchor_counts: Pairs per bin, of the circuit and of the empty circuit; those of an enumerated
            population count by their probability.
        marks: Percentiles, ascending.
        unit: Of the divergence.
        n: Pairs.
        counted: What of the sample is independent, `inputs` or `pairs`.
        weighted: Whether the pairs are a population and count by their probability.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    anchor_counts: tuple[float, ...]
    marks: tuple[MarkData, ...]
    unit: str
    n: int
    counted: str = "inputs"
    weighted: bool = False


def sound_certificate(document: Mapping[str, Any], percentile: float) -> Mapping[str, Any] | None:
    """The first certificate of a percentile that holds for every distribution; one with a bound if any."""
    found = [
        each
        for each in document["certificates"]
        if each["rigorous"] and abs(each["percentile"] - percentile) < 1e-12
    ]
    return next((each for each in found if each["bound"] is not None), found[0] if found else None)


def tail_data(document: Mapping[str, Any]) -> TailData:
    """What the document of a worst case draws."""
    absolute, anchor = document["summary"]["absolute"], (document.get("anchor") or {}).get("absolute") or {}
    marks = []
    for name in MARKED:
        if absolute.get(name) is None:
            continue
        made = None if name == "max" else sound_certificate(document, float(name[1:]) / 100)
        made = made or {}
        marks.append(
            MarkData(
                name=name,
                value=float(absolute[name]),
                anchor=anchor.get(name),
                bound=made.get("bound"),
                confidence=made.get("confidence"),
                n_needed=made.get("n_needed") if made.get("bound") is None else None,
            )
        )
    drawn = document["histogram"]
    return TailData(
        edges=tuple(map(float, drawn["edges"])),
        counts=tuple(map(float, drawn["counts"])),
        anchor_counts=tuple(map(float, drawn.get("anchor_counts") or ())),
        marks=tuple(marks),
        unit=str(document.get("unit") or ""),
        n=int(document.get("n_distinct_pairs", document["n_pairs"])),
        counted="inputs" if document["protocol"] == "all" else "pairs",
        weighted=bool(document.get("enumerated")),
    )


def plot_histogram(data: TailData, ax: Axes | None = None) -> Axes:
    """Draw both histograms, pairs on a logarithmic axis: the tail is where the news is."""
    ax = axes_of(ax, 7.6, 3.0)
    edges = np.array(data.edges)
    if edges[-1] == edges[0]:  # all divergences are 0: one bin of no width
        edges = np.array([0.0, 1.0])
    ax.set_yscale("log")
    # A pair of small probability counts for less than one, and its bin is to stand out all the same.
    floor = min([1.0, *(count for count in (*data.counts, *data.anchor_counts) if count > 0)]) / 2
    if data.anchor_counts:
        ax.stairs(_shown(data.anchor_counts), edges, baseline=floor, fill=True, color=MUTED, alpha=0.22)
        ax.stairs(_shown(data.anchor_counts), edges, baseline=floor, color=MUTED, linewidth=0.9)
    ax.stairs(_shown(data.counts), edges, baseline=floor, fill=True, color=SUPPORTS, alpha=0.28)
    ax.stairs(_shown(data.counts), edges, baseline=floor, color=SUPPORTS, linewidth=1.4)
    ax.set_ylim(floor, 2.5 * max(*data.counts, *data.anchor_counts, 1))
    ax.set_xlim(0, edges[-1] * 1.02)
    ax.yaxis.set_major_formatter(
        FuncFormatter(lambda count, _: f"{count:,.0f}" if count >= 1 else f"{count:g}")
    )
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(f"divergence from the model, {data.unit}")
    ax.set_ylabel("pairs per bin, by probability" if data.weighted else "pairs per bin")
    return ax


def plot_percentiles(data: TailData, ax: Axes | None = None) -> Axes:
    """Draw a row per percentile: the sample's, a line up to its certified bound, the empty circuit's.

    The axis is logarithmic where the circuit's median and the empty circuit's worst lie far apart.
    """
    ax = axes_of(ax, 7.6, 0.3 + 0.28 * len(data.marks))
    shown = [
        number
        for mark in data.marks
        for number in (mark.value, mark.anchor, mark.bound)
        if number is not None and number > 0
    ]
    start, end = 0.0, max(shown, default=1.0) * 1.02
    if shown and end > FAR * min(shown):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        start, end = min(shown) / 1.3, end * 1.1
    ax.set_xlim(start, end)

    def place(value: float) -> float:
        """Where a value stands on the axis, 0 left to 1 right."""
        inside = ax.transAxes.inverted().transform(ax.transData.transform((max(value, start), 0.0)))
        return float(inside[0])

    for row, mark in enumerate(data.marks):
        ax.axhline(row, color=RULE, linewidth=0.6, zorder=0)
        if mark.anchor is not None:
            ax.plot(mark.anchor, row, "s", color=MUTED, markersize=4, markerfacecolor="none", clip_on=False)
        if mark.bound is not None:
            ax.plot([mark.value, mark.bound], [row, row], color=OPPOSES, linewidth=2, solid_capstyle="butt")
            ax.plot(mark.bound, row, "|", color=OPPOSES, markersize=10, markeredgewidth=2, clip_on=False)
        ax.plot(mark.value, row, "o", color=SUPPORTS, markersize=5, clip_on=False, zorder=4)
        if mark.n_needed is not None:
            first, last = sorted((mark.value, mark.value if mark.anchor is None else mark.anchor))
            # In the widest gap of its row, at the end where a mark stands.
            gaps = {"left": place(first), "middle": place(last) - place(first), "right": 1 - place(last)}
            gap = max(gaps, key=lambda name: gaps[name])
            ax.annotate(
                f"no bound: takes {mark.n_needed:,} independent {data.counted}",
                (last if gap == "right" else first, row),
                xytext=(-8 if gap == "left" else 8, 0),
                textcoords="offset points",
                ha="right" if gap == "left" else "left",
                va="center",
                color=MUTED,
                fontsize=7.5,
                bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.0},
            )
    ax.set_yticks(range(len(data.marks)), [_label(mark.name) for mark in data.marks])
    ax.set_ylim(len(data.marks) - 0.5, -0.6)
    ax.tick_params(axis="y", left=False)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(f"divergence, {data.unit}")
    ax.legend(
        handles=[
            Line2D(
                [], [], linestyle="", marker="o", color=SUPPORTS, markersize=5, label="circuit, this sample"
            ),
            Line2D(
                [],
                [],
                linestyle="",
                marker="|",
                color=OPPOSES,
                markersize=10,
                markeredgewidth=2,
                label="certified: at most here",
            ),
            Line2D(
                [],
                [],
                linestyle="",
                marker="s",
                color=MUTED,
                markersize=4,
                markerfacecolor="none",
                label="empty circuit",
            ),
        ],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=3,
        frameon=False,
        fontsize=8.5,
        labelcolor=MUTED,
        handletextpad=0.2,
        borderaxespad=0.1,
    )
    return ax


def draw_tail(data: TailData) -> Axes:
    """The histogram above, its percentiles below; the axes of the histogram."""
    height = 0.7 + 0.27 * len(data.marks)
    figure = Figure(figsize=(7.6, height + 2.7), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[2.7, height])
    plot_histogram(data, above)
    plot_percentiles(data, below)
    for ax in (above, below):
        ax.set_facecolor("none")
    assert isinstance(above, Axes)
    return above


def _shown(counts: tuple[float, ...]) -> np.ndarray:
    """Counts for a logarithmic axis: a bin with one pair stands out from an empty one."""
    return np.where(np.array(counts) > 0, np.array(counts, dtype=float), np.nan)


def _label(name: str) -> str:
    return {"p50": "median", "max": "worst"}.get(name, f"percentile {name[1:]}")
