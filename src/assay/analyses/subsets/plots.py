"""Pictures of a chosen subset: R by size, whether it is real, what it hangs on. Each reads the document."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

from assay.analyses.subsets.line import AOTIL
from assay.analyses.subsets.page_words import BASELINES, NAMES, baselines, headline_row, signed
from assay.core.record import plain
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of
from assay.page.text import MINUS, number


if TYPE_CHECKING:
    from assay.analyses.subsets.baselines import BaselineRow
    from assay.analyses.subsets.consistency import SelectionConsistency
    from assay.analyses.subsets.path import SelectionPath
    from assay.analyses.subsets.selection import Subset

DOTTED = (0, (1, 2.5))
LONG_DASHES = (0, (6, 3))
BIN = 0.05  # of the null distribution
PRINTED_SIZES = 12  # a heat map with more sizes prints no digits
# Colour, dash, marker of each kind: distinct in grey too.
STYLES: dict[str, tuple[str, Any, str]] = {
    "selection": (OPPOSES, "-", "o"),
    "random": (MUTED, "-", ""),
    "hard": (INK, (0, (4, 2)), "s"),
    "marginal": (SUPPORTS, (0, (1, 1.6)), "^"),
    "distance": (SUPPORTS, (0, (6, 2, 1, 2)), "D"),
    "holdout": (OPPOSES, (0, (1, 1.6)), "D"),
}
KEYS = {"pearson": ("r", "low", "high"), "spearman": ("spearman", "spearman_low", "spearman_high")}
Document = Mapping[str, Any]


def plot_subset(subset: "Subset", ax: Axes | None = None) -> Axes:
    """Draw R of a subset with its interval beside R of all examples; nothing is judged for it."""
    return plot_comparison(_drawn([subset], {}, subset.size), ax)


def plot_path(path: "SelectionPath", ax: Axes | None = None) -> Axes:
    """Draw R of the subsets by size, with the baselines; verdicts are marked once they are known."""
    return plot_size(_drawn(path.selections, path.baselines, path.headline.size), ax)


def plot_overlap(consistency: "SelectionConsistency", ax: Axes | None = None) -> Axes:
    """Draw the overlap of every two selections."""
    return plot_consistency(consistency.to_dict(), ax)


def _drawn(
    subsets: "Sequence[Subset]", baselines: "Mapping[str, Sequence[BaselineRow]]", size: int
) -> dict[str, Any]:
    """The entries of a document that pictures of R read, with the verdicts that are known."""
    rows = [
        {
            "size": each.size,
            "test": each.correlation["test"],
            "verdict": each.verdict if each.judged else None,
            **{kind: rows[place] for kind, rows in baselines.items() if kind != "all"},
        }
        for place, each in enumerate(subsets)
    ]
    first = subsets[0]
    document = {
        "size": size,
        "rows": rows,
        "full": first.full,
        "data": {"n_examples": first.facts["n_examples"]},
    }
    drawn: dict[str, Any] = plain(document)
    return drawn


def plot_size(document: Document, ax: Axes | None = None, *, statistic: str = "pearson") -> Axes:
    """Draw the correlation against subset size on a logarithmic axis; below 0, better models do worse.

    Args:
        document: Of a path over sizes.
        ax: Where to draw; default a new figure.
        statistic: `pearson` (in probit space) or `spearman`.
    """
    rows = sorted(document["rows"], key=lambda row: row["size"])
    sizes = [row["size"] for row in rows]
    ax = axes_of(ax, 5.6, 4.1)
    ax.set_xscale("log")
    ax.axhline(0, color=MUTED, linewidth=0.8, zorder=1)
    ax.axhline(AOTIL, color=MUTED, linewidth=0.8, linestyle=DOTTED, zorder=1)
    (full,) = _correlations([document["full"]["test"]], statistic)[0]
    ax.axhline(full, color=MUTED, linewidth=0.9, linestyle=LONG_DASHES, zorder=1)
    kinds = baselines(document)
    for kind in reversed(kinds):
        _draw_series(ax, kind, sizes, [row.get(kind) for row in rows], statistic)
    values = _draw_series(ax, "selection", sizes, [row["test"] for row in rows], statistic)
    _mark_verdicts(ax, sizes, values, [(row.get("verdict") or {}).get("status") for row in rows])
    _ring(ax, document["size"], dict(zip(sizes, values, strict=True)).get(document["size"], math.nan))
    _size_legend(ax, kinds)
    size_axis(ax, sizes, document["data"]["n_examples"])
    ax.set_ylim(-1.06, 1.06)
    ranks = statistic == "spearman"
    ax.set_ylabel("Spearman’s rank correlation" if ranks else "R over held-out models (probit axes)")
    return ax


def _correlations(records: Sequence[Document | None], statistic: str) -> np.ndarray:
    """Values and the ends of their intervals, `[3, records]`; NaN where undefined."""
    return np.array([[(record or {}).get(key) for record in records] for key in KEYS[statistic]], dtype=float)


def _draw_series(
    ax: Axes, kind: str, sizes: Sequence[int], records: Sequence[Document | None], statistic: str
) -> np.ndarray:
    """The line of the chosen subsets or of a baseline, with a band for the former and for random ones."""
    values: np.ndarray
    values, low, high = _correlations(records, statistic)
    colour, dash, marker = STYLES[kind]
    chosen = kind == "selection"
    if chosen or kind == "random":
        ax.fill_between(sizes, low, high, color=colour, alpha=0.16, linewidth=0, zorder=1)
    ax.plot(
        sizes,
        values,
        color=colour,
        linestyle=dash,
        linewidth=1.8 if chosen else 1.2,
        marker="" if chosen else marker,
        markersize=3.5,
        zorder=4 if chosen else 3,
    )
    return values


def _mark_verdicts(
    ax: Axes, sizes: Sequence[int], values: np.ndarray, statuses: Sequence[str | None]
) -> None:
    """A dot per size: filled where the subset is supported, or where none was judged."""
    for size, value, status in zip(sizes, values, statuses, strict=True):
        filled = status == "supported" or not any(statuses)
        ax.plot(
            [size], [value], "o", color=OPPOSES, markersize=5.5, zorder=5,
            markerfacecolor=OPPOSES if filled else PAPER,
        )  # fmt: skip


def _ring(ax: Axes, x: int, y: float) -> None:
    """Mark the size that the page is about."""
    if math.isfinite(y):
        ax.plot(
            [x], [y], "o", markersize=11, markerfacecolor="none", color=INK, markeredgewidth=1.0, zorder=6
        )


def _size_legend(ax: Axes, kinds: Sequence[str]) -> None:
    handles = [Line2D([], [], color=OPPOSES, linewidth=1.8, marker="o", markersize=5.5)]
    for kind in kinds:
        colour, dash, marker = STYLES[kind]
        handles.append(Line2D([], [], color=colour, linestyle=dash, marker=marker, markersize=3.5))
    handles.append(Line2D([], [], color=MUTED, linewidth=0.9, linestyle=LONG_DASHES))
    handles.append(Line2D([], [], color=MUTED, linewidth=0.8, linestyle=DOTTED))
    labels = [NAMES[kind] for kind in ("selection", *kinds)]
    legend_above(
        ax, handles, [*labels, "all examples", f"inverse line from {signed(AOTIL, 1)} down"], columns=2
    )


def plot_comparison(document: Document, ax: Axes | None = None) -> Axes:
    """Draw R at the size of the page with its interval: all examples, the chosen ones, the baselines."""
    row = headline_row(document)
    records = {"all": document["full"]["test"], "selection": row["test"]}
    return _correlation_lines(records | {kind: row[kind] for kind in BASELINES if row.get(kind)}, ax)


def plot_holdout(document: Document, ax: Axes | None = None) -> Axes:
    """Draw R on the chosen examples, on those that a rule learned on others picks, and on random ones."""
    holdout = document["holdout"]
    random = {
        end: holdout[f"random_{name}"] for end, name in (("r", "mean"), ("low", "low"), ("high", "high"))
    }
    chosen = headline_row(document)["test"]
    return _correlation_lines({"selection": chosen, "holdout": holdout["correlation"], "random": random}, ax)


def _correlation_lines(records: Mapping[str, Document], ax: Axes | None) -> Axes:
    """Correlations over the test models as points with intervals, one below the other."""
    ax = axes_of(ax, 6.4, 0.95 + 0.38 * len(records))
    for place, (kind, (value, low, high)) in enumerate(
        zip(records, _correlations([*records.values()], "pearson").T, strict=True)
    ):
        colour, _, marker = STYLES.get(kind, (MUTED, "", ""))
        ax.axhline(place, color=RULE, linewidth=0.6, zorder=0)
        ax.plot([low, high], [place, place], color=colour, linewidth=2.2, alpha=0.55)
        ax.plot(
            [value], [place], marker or "o", color=colour, markersize=6 if kind == "selection" else 5,
            markerfacecolor=PAPER if kind in ("random", "all") else colour, zorder=3,
        )  # fmt: skip
    ax.axvline(0, color=MUTED, linewidth=0.8, zorder=1)
    ax.axvline(AOTIL, color=MUTED, linewidth=0.8, linestyle=DOTTED, zorder=1)
    ax.set_yticks(range(len(records)), [NAMES.get(kind, "all examples") for kind in records])
    ax.set_ylim(len(records) - 0.5, -0.5)
    ax.set_xlim(-1.05, 1.05)
    ax.set_xlabel("R over held-out models; left of 0, better models do worse")
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return ax


# ---------------------------------------------------------------------------------------- whether it is real


def plot_null(null: Document, ax: Axes | None = None) -> Axes:
    """Draw the permutation null as a histogram with the observed value as a line.

    Args:
        null: `null` of a document: cross-fitted R under shuffled accuracies, the lowest over the sizes.
        ax: Where to draw; default a new figure.
    """
    ax = axes_of(ax, 5.6, 3.2)
    values = np.array(null["values"], dtype=float)
    values, observed = values[np.isfinite(values)], float(null["observed"])
    low, high = min((*values, observed)), max((*values, observed))
    edges = np.arange(math.floor(low / BIN) - 1, math.ceil(high / BIN) + 2) * BIN
    counts = np.histogram(values, edges)[0]
    ax.bar(edges[:-1], counts, width=BIN, align="edge", color=MUTED, alpha=0.4, linewidth=0)
    ax.stairs(counts, edges, color=MUTED, linewidth=0.9)
    ax.axvline(observed, color=OPPOSES, linewidth=2.0, zorder=3)
    right = observed < 0.5 * (edges[0] + edges[-1])
    ax.annotate(
        f"observed {signed(observed)}",
        (observed, 0.96),
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
    several = f"lowest R over {null['n_sizes']} sizes" if null["n_sizes"] > 1 else "R"
    ax.set_xlabel(f"{several}, cross-fitted, after shuffling the accuracies")
    ax.set_ylabel("permutations")
    return ax


def plot_replication(replication: Document, ax: Axes | None = None) -> Axes:
    """Draw the examples' own correlations over held-out models: the chosen ones and all others.

    Args:
        replication: `replication` of a document; a share per bin of correlations, for each side.
        ax: Where to draw; default a new figure.
    """
    ax = axes_of(ax, 5.6, 3.2)
    edges = np.array(replication["edges"], dtype=float)
    selected, others = replication["selected"], replication["pool"]
    chosen, pool = (100 * np.array(side["shares"], dtype=float) for side in (selected, others))
    rest = ax.stairs(pool, edges, fill=True, color=MUTED, alpha=0.35)
    ax.stairs(pool, edges, color=MUTED, linewidth=0.9)
    ax.stairs(chosen, edges, fill=True, color=OPPOSES, alpha=0.2)
    outline = ax.stairs(chosen, edges, color=OPPOSES, linewidth=1.7)
    ax.axvline(0, color=MUTED, linewidth=0.8, zorder=1)
    labels = [f"{number(selected['n'])} chosen", f"{number(others['n'])} others"]
    legend_above(ax, [outline, rest], labels, columns=2)
    filled = np.flatnonzero(np.nan_to_num(chosen) + np.nan_to_num(pool) > 0)
    if len(filled):
        ax.set_xlim(min(edges[filled[0]], -0.1) - 0.03, max(edges[filled[-1] + 1], 0.1) + 0.03)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("correlation of an example with in-distribution accuracy, over held-out models")
    ax.set_ylabel("per cent of the examples")
    return ax


# ---------------------------------------------------------------------------------------- what it hangs on


def plot_consistency(consistency: Document, ax: Axes | None = None) -> Axes:
    """Draw the overlap of every two sizes as cells: full ink nested, none as random, vermilion less.

    Args:
        consistency: `consistency` of a document: 1 where the smaller subset lies in the larger, 0 as random.
        ax: Where to draw; default a new figure.
    """
    sizes = consistency["sizes"]
    n = len(sizes)
    cell = 0.46 if n <= PRINTED_SIZES else max(0.2, 5.4 / n)
    ax = axes_of(ax, 0.9 + cell * n, 0.8 + cell * 0.8 * n)
    for (row, column), value in np.ndenumerate(np.array(consistency["normalised"], dtype=float)):
        _overlap_cell(ax, row, column, float(value), printed=n <= PRINTED_SIZES)
    step = 1 if n <= 16 else 2
    names = [f"{size:,}" for size in sizes]
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


def _overlap_cell(ax: Axes, row: int, column: int, value: float, *, printed: bool) -> None:
    if not math.isfinite(value):
        ax.text(column, row, "–", ha="center", va="center", color=MUTED, fontsize=7.5)
        return
    ink = min(1.0, abs(value))
    ax.add_patch(
        Rectangle(
            (column - 0.47, row - 0.46),
            0.94,
            0.92,
            facecolor=SUPPORTS if value >= 0 else OPPOSES,
            alpha=round(0.06 + 0.84 * ink, 3),
            linewidth=0,
        )
    )
    if printed:
        shown = f"{value:.2f}"
        shown = "1" if shown == "1.00" else shown.replace("0.", ".", 1).replace("-", MINUS)
        colour = PAPER if ink > 0.6 else INK
        ax.text(column, row, shown, ha="center", va="center", fontsize=7.5, color=colour)


def plot_models(needed: Document, ax: Axes | None = None) -> Axes:
    """Draw the correlation on all examples against the number of models, with where it settles.

    Args:
        needed: `models_needed` of a document; the range of settling is over random orders of the models.
        ax: Where to draw; default a new figure.
    """
    ax = axes_of(ax, 5.6, 3.4)
    for used, curve in zip(needed["n_used"], needed["curves"], strict=True):
        ax.plot(
            np.array(used, dtype=float),
            np.array(curve, dtype=float),
            color=MUTED,
            linewidth=0.6,
            alpha=0.45,
            zorder=1,
        )
    k = needed["k"]
    ax.plot(k, np.array(needed["mean"], dtype=float), color=SUPPORTS, linewidth=1.9, zorder=3)
    stable, low, high = np.array([needed["median"], *needed["range"]], dtype=float).tolist()
    if math.isfinite(stable):
        if math.isfinite(low) and math.isfinite(high):
            ax.axvspan(low, high, color=SUPPORTS, alpha=0.1, linewidth=0, zorder=0)
        ax.axvline(stable, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=2)
        left = stable < 0.6 * k[-1]
        ax.annotate(
            f"settled at {stable:.0f}",
            (stable, 0.03),
            xycoords=("data", "axes fraction"),
            xytext=(5 if left else -5, 0),
            textcoords="offset points",
            ha="left" if left else "right",
            color=INK,
            fontsize=8.5,
        )
    ax.set_xlabel("models, in random order")
    ax.set_ylabel("R on all examples")
    ax.set_xlim(0, k[-1] * 1.02)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return ax


# ------------------------------------------------------------------------------------------------ pieces


def legend_above(ax: Axes, handles: Sequence[Any], labels: Sequence[str], *, columns: int) -> None:
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


def size_axis(ax: Axes, sizes: Sequence[int], n_examples: int | None = None) -> None:
    """Ticks at sizes 1, 2, 5 times powers of ten; at the ends where fewer than two lie between them."""
    first, last = min(sizes), max(sizes)
    powers = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
    coarse, fine = (
        [step * 10**power for power in powers for step in steps if first <= step * 10**power <= last]
        for steps in ((1,), (1, 2, 5))
    )
    ticks = coarse if last >= 60 * first and len(coarse) > 1 else fine
    if len(ticks) < 2:
        ticks = sorted({first, last})
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())
    room = (last / first) ** 0.04 if last > first else 1.6
    ax.set_xlim(first / room, last * room)
    ax.set_xlabel("examples in the subset" + ("" if n_examples is None else f" (of {number(n_examples)})"))
