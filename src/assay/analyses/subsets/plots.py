"""Pictures of subsets: R by size, the models, whether it is real, what it holds. Each reads the record."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
from scipy.special import ndtr

from assay.analyses.subsets.line import AOTIL, probit
from assay.analyses.subsets.path import SelectionPath
from assay.analyses.subsets.selection import Subset
from assay.core.record import plain
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, SUPPORTS, axes_of, clipped
from assay.page.text import MINUS, number, rounded


BIN = 0.05  # of the null distribution
PRINTED_SIZES = 12  # a heat map with more sizes prints no digits
SHOWN_VALUES = 14  # bars of prevalence
DOTTED, LONG_DASHES = (0, (1, 2.5)), (0, (6, 3))
# Name and line of each kind of baseline: distinct in grey too.
STYLES: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("random subset", {"color": MUTED}),
    "hard": ("hardest examples", {"color": INK, "linestyle": (0, (4, 2)), "marker": "s"}),
    "marginal": ("one-pass screening", {"color": SUPPORTS, "linestyle": (0, (1, 1.6)), "marker": "^"}),
    "distance": ("furthest", {"color": SUPPORTS, "linestyle": (0, (6, 2, 1, 2)), "marker": "D"}),
}
SETS = {"all": ("all examples", SUPPORTS, "o"), "chosen": ("chosen examples", OPPOSES, "D")}
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
    ax = axes_of(ax, 5.6, 4.1)
    for kind, (label, style) in STYLES.items():
        rows = [each for each in record["baselines"] if each["kind"] == kind]
        x, (r, low, high) = [each["size"] for each in rows], _ends(rows)
        if rows:
            ax.plot(x, r, linewidth=1.2, markersize=3.5, label=label, **style)
        if kind == "random":
            ax.fill_between(x, low, high, color=MUTED, alpha=0.16, linewidth=0)
    sizes = [each["size"] for each in subsets]
    r, low, high = _ends([each["correlation"]["test"] for each in subsets])
    ends, style = np.maximum([r - low, high - r], 0), {"color": OPPOSES, "marker": "o", "linewidth": 1.8}
    ax.errorbar(sizes, r, ends, elinewidth=1, label="chosen subset", **style)
    for place, each in enumerate(subsets):
        if (each["verdict"] or {}).get("status") == "inconclusive":
            ax.plot(sizes[place], r[place], "o", color=OPPOSES, markerfacecolor=PAPER, zorder=5)
        if each["size"] == record["size"] and len(sizes) > 1:  # that of the page
            ax.plot(sizes[place], r[place], "o", markersize=11, markerfacecolor="none", color=INK, zorder=6)
    ax.axhline(0, color=MUTED, linewidth=0.85)
    full = float(np.array(subsets[0]["full"]["test"]["r"], dtype=float))
    ax.axhline(full, color=MUTED, linewidth=0.9, linestyle=LONG_DASHES, label="all examples")
    inverse = f"inverse line from {rounded(AOTIL, 1)} down"
    ax.axhline(AOTIL, color=MUTED, linewidth=0.9, linestyle=DOTTED, label=inverse)
    _legend_above(ax, columns=2)
    ax.set_xscale("log")
    steps = (1.0,) if max(sizes) >= 60 * min(sizes) else (1.0, 2.0, 5.0)
    ax.xaxis.set_major_locator(LogLocator(subs=steps))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set(ylim=(-1.06, 1.06), ylabel="R over held-out models (probit axes)")
    ax.set_xlabel("examples in the subset")
    return ax


def _ends(rows: Sequence[Record]) -> Float64[np.ndarray, "3 rows"]:
    """Values and the ends of their intervals; NaN where undefined."""
    return np.array([[row[key] for row in rows] for key in ("r", "low", "high")], dtype=float)


def _legend_above(ax: Axes, *, columns: int = 1) -> None:
    """A legend above the axes, where no line can hide it."""
    style: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "labelcolor": INK, "ncols": columns}
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, columnspacing=1.4, **style)


def plot_scatter(contents: Record, ax: Axes | None = None) -> Axes:
    """Draw accuracy out of against in distribution of held-out models: all examples and the chosen ones.

    Args:
        contents: `contents` of a path.
        ax: Where to draw; default a new figure.
    """
    ax = axes_of(ax, 5.6, 4.5)
    models = {name: np.array(values) for name, values in contents["models"].items()}
    test = np.flatnonzero(models["part"] == "test")
    test = test[np.argsort(models["id_accuracy"][test], kind="stable")]
    x = models["id_accuracy"][test]
    for name, (label, colour, marker) in SETS.items():
        line = contents["lines"][name]
        if line["slope"] is not None:
            label += f":  R {number(line['r'])},  slope {number(line['slope'])}"
            along = np.linspace(x[0], x[-1], 50)
            ax.plot(along, ndtr(line["slope"] * probit(along) + line["intercept"]), color=colour, zorder=3)
        style: dict[str, Any] = {"markersize": 3.6, "alpha": 0.55, "markeredgewidth": 0}
        ax.plot(x, models[name][test], marker, color=colour, label=label, **style)
    _legend_above(ax)
    ax.set_xscale("function", functions=(probit, ndtr))
    ax.set_yscale("function", functions=(probit, ndtr))
    ax.set(xlabel="accuracy in distribution", ylabel="accuracy out of distribution")
    return ax


def plot_models(needed: Record, ax: Axes | None = None) -> Axes:
    """Draw the correlation on all examples against the number of models, with where it settles.

    Args:
        needed: `models_needed` of the contents.
        ax: Where to draw; default a new figure.
    """
    ax = axes_of(ax, 5.6, 3.4)
    for used, curve in zip(needed["n_used"], np.array(needed["curves"], dtype=float), strict=True):
        ax.plot(used, curve, color=MUTED, linewidth=0.6, alpha=0.45)
    k = needed["k"]
    ax.plot(k, np.array(needed["mean"], dtype=float), color=SUPPORTS, linewidth=1.9, zorder=3)
    if (stable := needed["median"]) is not None:
        ax.axvline(stable, color=INK, linewidth=0.9, label=f"settled at {stable:.0f}")
        _legend_above(ax)
    ax.set(xlabel="models, in random order", ylabel="R on all examples", xlim=(0, k[-1] * 1.02))
    return ax


def plot_null(verdict: Record, ax: Axes | None = None) -> Axes:
    """Draw the lowest R of each permutation as a histogram with the observed value as a line.

    Args:
        verdict: A verdict with its null.
        ax: Where to draw; default a new figure.
    """
    ax = axes_of(ax, 5.6, 3.2)
    values, observed = np.array(verdict["null"], dtype=float), float(verdict["r"])
    values = values[np.isfinite(values)]
    ax.hist(values, max(1, round(np.ptp(values) / BIN)), color=MUTED, alpha=0.4)
    ax.axvline(observed, color=OPPOSES, linewidth=2.0, label=f"observed {rounded(observed)}")
    _legend_above(ax)
    several = f"lowest R over {len(verdict['sizes'])} sizes" if len(verdict["sizes"]) > 1 else "R"
    ax.set(xlabel=f"{several}, cross-fitted, after shuffling the accuracies", ylabel="permutations")
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    return ax


def plot_consistency(overlap: Any, sizes: Sequence[int], ax: Axes | None = None) -> Axes:
    """Draw the overlap of every two sizes as cells: full ink nested, none as random, vermilion less.

    Args:
        overlap: J_norm of every two sizes, None where undefined.
        sizes: Of rows and columns.
        ax: Where to draw; default a new figure.
    """
    n, values = len(sizes), np.array(overlap, dtype=float)
    cell = 0.46 if n <= PRINTED_SIZES else max(0.2, 5.4 / n)
    ax = axes_of(ax, 0.9 + cell * n, 0.8 + cell * 0.8 * n)
    colours = LinearSegmentedColormap.from_list("overlap", [OPPOSES, PAPER, SUPPORTS])
    ax.pcolormesh(values, cmap=colours, vmin=-1, vmax=1, edgecolor=PAPER, linewidth=1)
    for (row, column), value in np.ndenumerate(values):
        text = f"{value:.2f}".replace("-", MINUS) if math.isfinite(value) else "–"
        colour = PAPER if abs(value) > 0.6 else INK
        if n <= PRINTED_SIZES:
            ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7, color=colour)
    places, names = np.arange(n)[:: 1 + n // 17] + 0.5, [f"{size:,}" for size in sizes][:: 1 + n // 17]
    ax.set_xticks(places, names, rotation=90 if n > 8 else 0)
    ax.set_yticks(places, names)
    ax.set(ylim=(n, 0), xlabel="subset size", ylabel="subset size")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def plot_prevalence(rows: Sequence[Record], ax: Axes | None = None) -> Axes:
    """Draw differences of shares with intervals, the largest first; filled bars are significant.

    Args:
        rows: Of `prevalence_shift`, at least one.
        ax: Where to draw; default a new figure.
    """
    shown = sorted(rows, key=lambda row: -abs(row["difference"]))[:SHOWN_VALUES]
    ax = axes_of(ax, 5.6, 0.9 + 0.3 * len(shown))
    for place, row in enumerate(shown):
        difference, low, high = 100 * np.array([row["difference"], row["low"], row["high"]], dtype=float)
        colour = SUPPORTS if difference >= 0 else OPPOSES
        face = colour if row["significant"] else "none"
        ax.barh(place, difference, height=0.62, color=face, alpha=0.75, edgecolor=colour)
        ax.plot([low, high], [place, place], color=INK, linewidth=1.3)
    ax.axvline(0, color=MUTED, linewidth=0.8)
    names = [f"{row['attribute']}: {row['value']}" for row in shown]
    printable = ["".join(each if each.isprintable() else "\ufffd" for each in name) for name in names]
    ax.set_yticks(range(len(shown)), [clipped(name, 42) for name in printable])
    ax.invert_yaxis()
    ax.set_xlabel("difference of shares, percentage points")
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return ax
