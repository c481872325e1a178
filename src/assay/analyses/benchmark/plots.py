"""The picture of a benchmark of discovery methods: quality against cost."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from assay.analyses.benchmark import DiscoveryBenchmark
from assay.analyses.benchmark.tables import title
from assay.page import draw
from assay.page.draw import INK, OPPOSES, RULE, SUPPORTS, axes_of
from assay.page.labels import LABEL_SIZE, place_labels


SIZE = (7.2, 4.6)  # inches
CHEAPEST = 0.1  # forward-equivalents; what costs less is drawn there


def benchmark_label(benchmark: DiscoveryBenchmark) -> str:
    """The picture of a benchmark in a sentence."""
    return f"CPR against cost of discovery methods, {benchmark.model['id']}, {benchmark.task}"


def plot_benchmark(benchmark: DiscoveryBenchmark, ax: Axes | None = None) -> Axes:
    """Draw quality upwards and cost to the right, on a logarithmic axis; labels keep clear of each other.

    A method is a point with the interval of its CPR, a line across where its cost is unknown.
    """
    ax = axes_of(ax, *SIZE)
    judged = [
        (title(row), row.forward_equivalents, row.cpr)
        for row in benchmark.rows
        if row.cpr is not None and not math.isnan(row.cpr.value)
    ]
    points = [(name, max(cost, CHEAPEST), cpr) for name, cost, cpr in judged if not math.isnan(cost)]
    ax.set_xscale("log")
    ax.axhline(1, color=RULE, linewidth=0.8, zorder=0)
    ax.axhline(0, color=RULE, linewidth=0.8, zorder=0)
    for _, cost, cpr in points:
        if math.isfinite(cpr.low) and math.isfinite(cpr.high):
            ax.plot([cost] * 2, [cpr.low, cpr.high], color=SUPPORTS, linewidth=2.0, alpha=0.55, zorder=2)
        ax.plot([cost], [cpr.value], "o", color=INK, markersize=5, zorder=3)
    levels = [(name, cpr.value) for name, cost, cpr in judged if math.isnan(cost)]
    for name, level in levels:
        ax.axhline(level, color=OPPOSES, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
        ax.annotate(
            f"{name} (cost unknown)",
            (1, level),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 3),
            textcoords="offset points",
            ha="right",
            color=OPPOSES,
            fontsize=LABEL_SIZE,
        )
    costs = np.array([cost for _, cost, _ in points], dtype=float)
    value, low, high = (
        np.array([getattr(cpr, end) for *_, cpr in points]) for end in ("value", "low", "high")
    )
    _limits(ax, costs, [*value, *low, *high, *(level for _, level in levels)])
    ax.xaxis.set_major_formatter(FuncFormatter(_cost_tick))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("cost of discovery in plain forward passes over the same examples")
    ax.set_ylabel("CPR (edges by signed score)")
    where = f"{benchmark.model['id']}, {benchmark.task}, n = {benchmark.evaluated_on['n']}"
    ax.set_title(draw.clipped(where, draw.LONGEST_LABEL), fontsize=9, color=INK, loc="left")
    place_labels(ax, tuple(name for name, *_ in points), costs, value, low=low, high=high)
    return ax


def _limits(ax: Axes, costs: Float64[np.ndarray, " n"], values: Sequence[float]) -> None:
    if len(costs):
        ax.set_xlim(float(costs.min()) / 2, float(costs.max()) * 4)
    if shown := [value for value in values if math.isfinite(value)]:
        low, high = min(0.0, *shown), max(1.0, *shown)
        room = 0.07 * (high - low)
        ax.set_ylim(low - room, high + room)


def _cost_tick(value: float, place: int | None) -> str:
    del place
    return f"≤ {CHEAPEST:g}" if math.isclose(value, CHEAPEST) else f"{value:,g}"
