"""Pictures of subsets: R by size, the models, whether it is real, what it holds. Each reads the record."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
from scipy.special import ndtri

from assay.analyses.subsets.line import AOTIL, EPS, probit
from assay.analyses.subsets.path import SelectionPath
from assay.analyses.subsets.selection import Subset
from assay.core.record import plain
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, SUPPORTS, axes_of, clipped
from assay.page.text import MINUS, number, rounded


DOTTED, LONG_DASHES = (0, (1, 2.5)), (0, (6, 3))
BIN = 0.05  # of the null distribution
PRINTED_SIZES = 12  # a heat map with more sizes prints no digits
DRAWN_MODELS = 600  # points of a scatter; of more, evenly spaced ones by accuracy are drawn
SHOWN_VALUES = 14  # bars of prevalence
TICKS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99, 0.999)
# Name, colour, dash, marker of each kind: distinct in grey too.
STYLES: dict[str, tuple[str, str, Any, str]] = {
    "random": ("random subset", MUTED, "-", ""),
    "hard": ("hardest examples", INK, (0, (4, 2)), "s"),
    "marginal": ("one-pass screening", SUPPORTS, (0, (1, 1.6)), "^"),
    "distance": ("furthest from the known data", SUPPORTS, (0, (6, 2, 1, 2)), "D"),
}
SETS = {"all": (SUPPORTS, "o", "all examples"), "chosen": (OPPOSES, "D", "chosen examples")}
Record = Mapping[str, Any]


def plot_subset(subset: Subset, ax: Axes | None = None) -> Axes:
    """Draw R of a subset with its interval, beside R of all examples; nothing is judged for it."""
    return plot_size({"subsets": [subset.to_dict()], "baselines": [], "size": subset.size}, ax)


def plot_path(path: SelectionPath, ax: Axes | None = None) -> Axes:
    """Draw R of the subsets by size, with the baselines; verdicts are marked once they are known."""
    rows, subsets = plain(path.baselines.to_dict("records")), [each.to_dict() for each in path]
    return plot_size({"subsets": subsets, "baselines": rows, "size": path.headline.size}, ax)


def plot_size(record: Record, ax: Axes | None = None) -> Axes:
    """Draw R over the test models against subset size, logarithmic; below 0, better models do worse.

    Args:
        record: Of a path over sizes.
        ax: Where to draw; default a new figure.
    """
    subsets = record["subsets"]
    sizes = [each["size"] for each in subsets]
    ax = axes_of(ax, 5.6, 4.1)
    ax.set_xscale("log")
    full = subsets[0]["full"]["test"]["r"]
    for height, style in ((0, "-"), (AOTIL, DOTTED), (np.nan if full is None else full, LONG_DASHES)):
        ax.axhline(height, color=MUTED, linewidth=0.85, linestyle=style, zorder=1)
    handles = {"chosen subset": Line2D([], [], color=OPPOSES, linewidth=1.8, marker="o", markersize=5.5)}
    for kind, (name, colour, dash, marker) in STYLES.items():
        rows = [each for each in record["baselines"] if each["kind"] == kind]
        if not rows:
            continue
        x, (values, low, high) = [each["size"] for each in rows], _ends(rows)
        if kind == "random":
            ax.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0, zorder=1)
        handles[name] = ax.plot(
            x, values, color=colour, linestyle=dash, linewidth=1.2, marker=marker, markersize=3.5, zorder=3
        )[0]
    values, low, high = _ends([each["correlation"]["test"] for each in subsets])
    ax.fill_between(sizes, low, high, color=OPPOSES, alpha=0.16, linewidth=0, zorder=1)
    ax.plot(sizes, values, color=OPPOSES, linewidth=1.8, zorder=4)
    statuses = [(each["verdict"] or {}).get("status") for each in subsets]
    for size, value, status in zip(sizes, values, statuses, strict=True):
        face = OPPOSES if status == "supported" or not any(statuses) else PAPER
        ax.plot([size], [value], "o", color=OPPOSES, markersize=5.5, markerfacecolor=face, zorder=5)
        if size == record["size"] and len(sizes) > 1:  # that of the page
            ax.plot([size], [value], "o", markersize=11, markerfacecolor="none", color=INK, zorder=6)
    if len(sizes) == 1:
        ax.plot(sizes * 2, [low[0], high[0]], color=OPPOSES, linewidth=2.2, alpha=0.55)
    handles["all examples"] = Line2D([], [], color=MUTED, linewidth=0.9, linestyle=LONG_DASHES)
    handles[f"inverse line from {rounded(AOTIL, 1)} down"] = Line2D([], [], color=MUTED, linestyle=DOTTED)
    _legend_above(ax, handles, columns=2)
    _size_axis(ax, sizes)
    ax.set(ylim=(-1.06, 1.06), ylabel="R over held-out models (probit axes)")
    return ax


def _ends(rows: Sequence[Record]) -> Float64[np.ndarray, "3 rows"]:
    """Values and the ends of their intervals; NaN where undefined."""
    return np.array([[row[key] for row in rows] for key in ("r", "low", "high")], dtype=float)


def _size_axis(ax: Axes, sizes: Sequence[int]) -> None:
    """Ticks at sizes 1, 2, 5 times powers of ten; at the powers alone where they are many."""
    first, last = min(sizes), max(sizes)
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if last >= 60 * first else (1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())
    room = (last / first) ** 0.04 if last > first else 1.6
    ax.set(xlim=(first / room, last * room), xlabel="examples in the subset")


def _legend_above(ax: Axes, handles: Mapping[str, Any], *, columns: int) -> None:
    """A legend above the axes, where no line can hide it."""
    ax.legend(
        handles.values(), handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False,
        fontsize=8.5, labelcolor=INK, handletextpad=0.5, columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- the models


def plot_scatter(contents: Record, ax: Axes | None = None) -> Axes:
    """Draw accuracy out of against in distribution of held-out models: all examples and the chosen ones.

    Args:
        contents: `contents` of a path; of very many models, evenly spaced ones by accuracy are drawn.
        ax: Where to draw; default a new figure.
    """
    ax = axes_of(ax, 5.6, 4.5)
    models = {name: np.array(values) for name, values in contents["models"].items()}
    test = np.flatnonzero(models["part"] == "test")
    test = test[np.argsort(models["id_accuracy"][test], kind="stable")]
    test = test[np.linspace(0, len(test) - 1, min(len(test), DRAWN_MODELS)).round().astype(int)]
    x, handles = models["id_accuracy"][test], {}
    for name, (colour, marker, words) in SETS.items():
        line = contents["lines"][name]
        ax.plot(
            probit(x), probit(models[name][test]), marker, color=colour, markersize=3.6, alpha=0.55,
            markeredgewidth=0,
        )  # fmt: skip
        if line["slope"] is not None:
            ends = probit(x[[0, -1]])
            ax.plot(ends, line["slope"] * ends + line["intercept"], color=colour, linewidth=1.8, zorder=3)
            words += f":  R {number(line['r'])},  slope {number(line['slope'])}"
        handles[words] = Line2D([], [], color=colour, marker=marker, markersize=5)
    _legend_above(ax, handles, columns=1)
    y = np.concatenate([models[name][test] for name in SETS])
    for axis, values, limits in ((ax.xaxis, x, ax.set_xlim), (ax.yaxis, y, ax.set_ylim)):
        start, stop = probit(np.array([values.min(), values.max()]))
        room = max(0.06 * (stop - start), 0.05)
        ticks = _ticks(start - room, stop + room)
        ends = {EPS: "0"} if values.min() <= EPS else {}
        ends |= {1 - EPS: "1"} if values.max() >= 1 - EPS else {}  # exactly these accuracies
        axis.set_ticks(ndtri([*ticks, *ends]), [*(f"{tick:g}" for tick in ticks), *ends.values()])
        limits(start - room, stop + room)
    ax.set(xlabel="accuracy in distribution", ylabel="accuracy out of distribution")
    return ax


def _ticks(start: float, stop: float) -> list[float]:
    """Accuracies for ticks on an axis from one quantile to another, none too close to the one before."""
    steps = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
    grids = (TICKS, *([round(step * at, 6) for at in range(1, round(1 / step))] for step in steps))
    inside = ([tick for tick in grid if start <= ndtri(tick) <= stop] for grid in grids)
    apart: list[float] = []
    for tick in next((ticks for ticks in inside if len(ticks) >= 4), []):
        if not apart or ndtri(tick) - ndtri(apart[-1]) > (stop - start) / 14:
            apart.append(tick)
    return apart


def plot_models(needed: Record, ax: Axes | None = None) -> Axes:
    """Draw the correlation on all examples against the number of models, with where it settles.

    Args:
        needed: `models_needed` of the contents; the range of settling is over random orders of the models.
        ax: Where to draw; default a new figure.
    """
    ax = axes_of(ax, 5.6, 3.4)
    for used, curve in zip(needed["n_used"], np.array(needed["curves"], dtype=float), strict=True):
        ax.plot(used, curve, color=MUTED, linewidth=0.6, alpha=0.45, zorder=1)
    k = needed["k"]
    ax.plot(k, np.array(needed["mean"], dtype=float), color=SUPPORTS, linewidth=1.9, zorder=3)
    stable, low, high = np.array([needed["median"], *needed["range"]], dtype=float).tolist()
    if math.isfinite(stable):
        if math.isfinite(low + high):
            ax.axvspan(low, high, color=SUPPORTS, alpha=0.1, linewidth=0, zorder=0)
        ax.axvline(stable, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=2)
        _beside(ax, f"settled at {stable:.0f}", stable, 0.03, right=stable < 0.6 * k[-1], colour=INK)
    ax.set(xlabel="models, in random order", ylabel="R on all examples", xlim=(0, k[-1] * 1.02))
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return ax


def _beside(ax: Axes, text: str, x: float, y: float, *, right: bool, colour: str) -> None:
    """A remark on one side of a vertical line."""
    ax.annotate(
        text, (x, y), xycoords=("data", "axes fraction"), xytext=(6 if right else -6, 0),
        textcoords="offset points", ha="left" if right else "right", va="bottom", color=colour, fontsize=8.5,
    )  # fmt: skip


# ------------------------------------------------------------------------- is it real, and what it holds


def plot_null(verdict: Record, ax: Axes | None = None) -> Axes:
    """Draw the lowest R of each permutation as a histogram with the observed value as a line.

    Args:
        verdict: A verdict with its null.
        ax: Where to draw; default a new figure.
    """
    ax = axes_of(ax, 5.6, 3.2)
    values, observed = np.array(verdict["null"], dtype=float), float(verdict["r"])
    values = values[np.isfinite(values)]
    low, high = min((*values, observed)), max((*values, observed))
    edges = np.arange(math.floor(low / BIN) - 1, math.ceil(high / BIN) + 2) * BIN
    counts = np.histogram(values, edges)[0]
    ax.bar(edges[:-1], counts, width=BIN, align="edge", color=MUTED, alpha=0.4, linewidth=0)
    ax.axvline(observed, color=OPPOSES, linewidth=2.0, zorder=3)
    right = observed < 0.5 * float(edges[0] + edges[-1])
    _beside(ax, f"observed {rounded(observed)}", observed, 0.9, right=right, colour=OPPOSES)
    several = f"lowest R over {len(verdict['sizes'])} sizes" if len(verdict["sizes"]) > 1 else "R"
    ax.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.25 * max(1, int(counts.max(initial=0)))))
    ax.set(xlabel=f"{several}, cross-fitted, after shuffling the accuracies", ylabel="permutations")
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    return ax


def plot_consistency(
    overlap: Sequence[Sequence[float | None]], sizes: Sequence[int], ax: Axes | None = None
) -> Axes:
    """Draw the overlap of every two sizes as cells: full ink nested, none as random, vermilion less.

    Args:
        overlap: J_norm of every two sizes.
        sizes: Of rows and columns.
        ax: Where to draw; default a new figure.
    """
    n = len(sizes)
    cell = 0.46 if n <= PRINTED_SIZES else max(0.2, 5.4 / n)
    ax = axes_of(ax, 0.9 + cell * n, 0.8 + cell * 0.8 * n)
    for (row, column), value in np.ndenumerate(np.array(overlap, dtype=float)):
        known, ink = math.isfinite(value), min(1.0, abs(value))
        if known:
            colour, alpha = SUPPORTS if value >= 0 else OPPOSES, round(0.06 + 0.84 * ink, 3)
            corner = (column - 0.47, row - 0.46)
            ax.add_patch(Rectangle(corner, 0.94, 0.92, facecolor=colour, alpha=alpha, linewidth=0))
        text = f"{value:.2f}".replace("0.", ".", 1).replace("1.00", "1").replace("-", MINUS) if known else "–"
        colour = (PAPER if ink > 0.6 else INK) if known else MUTED
        if n <= PRINTED_SIZES or not known:
            ax.text(column, row, text, ha="center", va="center", fontsize=7.5, color=colour)
    step = 1 if n <= 16 else 2
    names = [f"{size:,}" for size in sizes][::step]
    ax.set_xticks(range(0, n, step), names, rotation=90 if n > 8 else 0)
    ax.set_yticks(range(0, n, step), names)
    ax.set(xlim=(-0.55, n - 0.45), ylim=(n - 0.45, -0.55), xlabel="subset size", ylabel="subset size")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def plot_prevalence(rows: Sequence[Record], ax: Axes | None = None) -> Axes:
    """Draw differences of shares with intervals, the largest first; filled bars are significant.

    Args:
        rows: Of `prevalence_shift`, at least one of a share.
        ax: Where to draw; default a new figure.
    """
    shares = [row for row in rows if row["value"] is not None]
    shown = sorted(shares, key=lambda row: -abs(row["difference"]))[:SHOWN_VALUES]
    several = len({row["attribute"] for row in shares}) > 1
    ax = axes_of(ax, 5.6, 0.9 + 0.3 * len(shown))
    for place, row in enumerate(shown):
        difference, low, high = 100 * np.array([row["difference"], row["low"], row["high"]], dtype=float)
        colour, sure = SUPPORTS if difference >= 0 else OPPOSES, bool(row["significant"])
        ax.barh(
            [place], [difference], height=0.62, color=colour if sure else "none",
            alpha=0.75 if sure else 1.0, edgecolor=colour, linewidth=0.9,
        )  # fmt: skip
        ax.plot([low, high], [place, place], color=INK, linewidth=1.3, zorder=3)
    ax.axvline(0, color=MUTED, linewidth=0.8)
    names = [f"{row['attribute']}: {row['value']}" if several else str(row["value"]) for row in shown]
    printable = (
        "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in name)
        for name in names
    )
    ax.set_yticks(range(len(shown)), [clipped(name, 42) for name in printable])
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlabel("share among the chosen less share in the pool, percentage points")
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return ax
