"""The picture of a claim: what was measured against what was said."""

from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from assay.page.draw import INK, MUTED, OPPOSES, SUPPORTS, axes_of


if TYPE_CHECKING:
    from assay.analyses.claims.running import ClaimResult

COLOURS = {"held": SUPPORTS, "contradicted": OPPOSES}


def plot_claim(result: "ClaimResult", ax: Axes | None = None) -> Axes:
    """Draw a row per test: the value with its two one-sided 95 % bounds, the claimed size as a bar."""
    tests = result.outcomes
    ax = axes_of(ax, 7.2, 0.9 + 0.34 * max(2, len(tests)))
    for place, test in enumerate(tests):
        colour = COLOURS.get(test.state, MUTED)
        ax.plot([test.interval.low, test.interval.high], [place] * 2, color=colour, linewidth=2.2)
        ax.plot([test.value], [place], "o", color=colour, markersize=6)
        ax.plot([test.size], [place], "|", color=INK, markersize=13)
    ax.set_yticks(range(len(tests)), [f"{test.name} ({test.state})" for test in tests])
    ax.set_ylim(len(tests) - 0.5, -0.5)
    ax.set_xlabel("measured, in the unit of the claimed size (bar); line: one-sided 95 % bounds")
    return ax
