"""Pictures of what is in a chosen subset: shares of classes, and of the values of attributes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from assay.analyses.subsets.page_words import class_shares
from assay.analyses.subsets.plots import legend_above, size_axis
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of, clipped


SHOWN_VALUES = 14  # bars of prevalence
SHOWN_CLASSES = 24  # rows of the composition
LOOKS: list[tuple[str, Any, str]] = [  # of the classes that have a name
    (OPPOSES, "-", "o"),
    (SUPPORTS, (0, (4, 2)), "s"),
    (INK, (0, (1, 1.6)), "^"),
    (MUTED, (0, (6, 2, 1, 2)), "D"),
]
FEW_SIZES = 3  # of fewer, only the size of the page is drawn
Document = Mapping[str, Any]


def plot_composition(document: Document, ax: Axes | None = None) -> Axes:
    """Draw class shares: lines over sizes, or for one size the chosen share beside that of the pool.

    Args:
        document: Of a selection or a path whose examples have labels.
        ax: Where to draw; default a new figure.
    """
    few = len(document["composition"]["rows"]) < FEW_SIZES
    return _composition_rows(document, ax) if few else _composition_lines(document["composition"], ax)


def _composition_rows(document: Document, ax: Axes | None) -> Axes:
    shares = sorted(class_shares(document), key=lambda each: each.pool - each.chosen)[:SHOWN_CLASSES]
    ax = axes_of(ax, 5.6, 0.9 + 0.3 * len(shares))
    for row, each in enumerate(shares):
        ax.axhline(row, color=RULE, linewidth=0.6, zorder=0)
        ax.plot(
            [100 * each.pool, 100 * each.chosen], [row, row], linewidth=2.2, alpha=0.6,
            color=SUPPORTS if each.chosen >= each.pool else OPPOSES, zorder=1,
        )  # fmt: skip
        ax.plot([100 * each.pool], [row], "o", color=MUTED, markerfacecolor=PAPER, markersize=5.5)
        ax.plot([100 * each.chosen], [row], "D", color=OPPOSES, markersize=5)
    ax.set_yticks(range(len(shares)), [_shown(each.name, 36) for each in shares])
    ax.set_ylim(len(shares) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xlabel("share of the examples, per cent")
    marks = [
        Line2D([], [], color=OPPOSES, marker="D", linestyle="", markersize=5),
        Line2D([], [], color=MUTED, marker="o", linestyle="", markerfacecolor=PAPER, markersize=5.5),
    ]
    legend_above(ax, marks, ["chosen", "pool"], columns=2)
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return ax


def _composition_lines(composition: Document, ax: Axes | None) -> Axes:
    names, sizes = composition["names"], [row["size"] for row in composition["rows"]]
    shares = 100 * np.array([row["shares"] for row in composition["rows"]], dtype=float)
    pool = 100 * np.array(composition["pool"], dtype=float)
    moved = np.nanmax(np.abs(shares - pool), axis=0)
    named = [int(place) for place in np.argsort(-moved, kind="stable")[: len(LOOKS)]]
    ax = axes_of(ax, 5.6, 3.9)
    ax.set_xscale("log")
    for place in range(len(names)):
        if place not in named:
            ax.plot(sizes, shares[:, place], color=MUTED, linewidth=0.7, alpha=0.5, zorder=1)
    handles, labels = [], []
    for (colour, dash, marker), place in zip(LOOKS, named, strict=False):
        ax.plot(
            sizes, shares[:, place], color=colour, linestyle=dash, linewidth=1.6, marker=marker,
            markersize=3.5, zorder=3,
        )  # fmt: skip
        # The pool's share stands at the right edge, where a subset of everything would end.
        ax.plot(
            [1.012], [pool[place]], "<", color=colour, markersize=5, markerfacecolor=PAPER, clip_on=False,
            transform=ax.get_yaxis_transform(), zorder=4,
        )  # fmt: skip
        handles.append(Line2D([], [], color=colour, linestyle=dash, marker=marker, markersize=3.5))
        labels.append(_shown(names[place], 28))
    if len(names) > len(named):
        handles.append(Line2D([], [], color=MUTED, linewidth=0.7, alpha=0.5))
        labels.append(f"{len(names) - len(named)} others")
    legend_above(ax, handles, labels, columns=3)
    size_axis(ax, sizes)
    ax.set_ylim(bottom=-1)
    ax.set_ylabel("share of the subset, per cent")
    return ax


def most_different(prevalence: Document | None) -> Sequence[Document]:
    """Values of attributes by how much their shares differ, largest first; means of numbers left out."""
    rows = (prevalence or {}).get("rows") or ()
    shares = [row for row in rows if row.get("difference") is not None and not row.get("numeric")]
    return sorted(shares, key=lambda row: -abs(row["difference"]))


def plot_prevalence(prevalence: Document, ax: Axes | None = None) -> Axes:
    """Draw differences of shares with intervals; filled bars are significant after correction.

    Args:
        prevalence: `prevalence` of a document, with at least one share.
        ax: Where to draw; default a new figure.
    """
    rows = most_different(prevalence)
    several = len({row["attribute"] for row in rows}) > 1
    shown = rows[:SHOWN_VALUES]
    ax = axes_of(ax, 5.6, 0.9 + 0.3 * len(shown))
    for place, row in enumerate(shown):
        difference, low, high = 100 * np.array([row["difference"], row["low"], row["high"]], dtype=float)
        colour = SUPPORTS if difference >= 0 else OPPOSES
        sure = bool(row["significant"])
        ax.barh(
            [place], [difference], height=0.62, color=colour if sure else "none",
            alpha=0.75 if sure else 1.0, edgecolor=colour, linewidth=0.9,
        )  # fmt: skip
        ax.plot([low, high], [place, place], color=INK, linewidth=1.3, zorder=3)
    ax.axvline(0, color=MUTED, linewidth=0.8)
    names = [f"{row['attribute']}: {row['value']}" if several else str(row["value"]) for row in shown]
    ax.set_yticks(range(len(shown)), [_shown(name, 42) for name in names])
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlabel("share among the chosen less share in the pool, percentage points")
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return ax


def _shown(text: str, most: int) -> str:
    """A name without control characters, not too long."""
    printable = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return clipped(printable, most)
