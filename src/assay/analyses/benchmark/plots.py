"""Pictures of a benchmark of discovery methods: quality against cost, and the map of planted truth."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from assay.analyses.benchmark import DiscoveryBenchmark, TruthTable
from assay.analyses.benchmark.tables import title
from assay.page import draw
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of
from assay.page.labels import LABEL_SIZE, place_labels


SIZE = (7.2, 4.6)  # inches
CHEAPEST = 0.1  # forward-equivalents; what costs less is drawn there
CELL = (0.46, 0.2)  # inches
CHANCE = 0.5


def benchmark_label(benchmark: DiscoveryBenchmark) -> str:
    """The picture of a benchmark in a sentence."""
    return f"CPR against cost of discovery methods, {benchmark.model['id']}, {benchmark.task}"


def truth_label(table: TruthTable) -> str:
    """The picture of a truth table in a sentence."""
    return (
        f"AUROC of {len(table.methods)} discovery methods on {len(table.models)} planted models, for "
        f"{' and '.join(served_objectives(table))}"
    )


def served_objectives(table: TruthTable) -> tuple[str, ...]:
    """Objectives under which some method has an AUROC."""
    served = {cell.objective for cell in table.cells if math.isfinite(cell.auroc)}
    return tuple(name for name in table.objectives if name in served)


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


def plot_truth(table: TruthTable, ax: Axes | None = None) -> Axes:
    """Draw a panel per objective: planted models downwards, methods across, AUROC in the cells.

    On given axes the first panel alone; objectives that no method served are left out. Cells are inked by
    how far the AUROC is from chance, 0.5: the one colour above it, the other below. A dot stands where a
    method did not serve, and what was never measured is left blank.
    """
    objectives = served_objectives(table)
    if ax is not None:
        _truth_panel(ax, table, objectives[0])
        return ax
    n_panels = max(1, len(objectives))
    width = 2.6 + CELL[0] * len(table.methods) * n_panels + 0.3 * n_panels
    height = 1.9 + CELL[1] * len(table.models)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, n_panels, sharey=True, squeeze=False)[0]
    for each, objective in zip(axes, objectives, strict=False):
        _truth_panel(each, table, objective)
    for each in axes[1:]:
        each.tick_params(labelleft=False)
    first: Axes = axes[0]
    return first


def _truth_panel(ax: Axes, table: TruthTable, objective: str) -> None:
    axes_of(ax, 0.0, 0.0)
    models, methods = table.models, table.methods
    values = np.full((len(models), len(methods)), np.nan)
    measured = np.zeros(values.shape, dtype=bool)
    rows, columns = ({name: place for place, name in enumerate(names)} for names in (models, methods))
    for cell in table.cells:
        if cell.objective == objective:
            place = rows[cell.model], columns[cell.method]
            values[place], measured[place] = cell.auroc, True
    # One image with rules over it rather than a patch for each cell: a tenth of the file.
    ax.imshow(_colours(values, measured), interpolation="none", aspect="auto", zorder=0)
    for cuts, rule in ((len(methods), ax.axvline), (len(models), ax.axhline)):
        for cut in range(cuts + 1):
            rule(cut - 0.5, color=PAPER, linewidth=1.2, zorder=1)
    for row, column in zip(*np.nonzero(measured), strict=True):
        value = values[row, column]
        defined = math.isfinite(value)
        dark = defined and _ink(value) > 0.8
        ax.text(
            column,
            row,
            _auroc(value) if defined else "·",
            ha="center",
            va="center",
            fontsize=6.5,
            color=PAPER if dark else INK if defined else MUTED,
        )
    ax.set_xlim(-0.55, len(methods) - 0.45)
    ax.set_ylim(len(models) - 0.45, -0.55)
    ax.set_xticks(range(len(methods)), methods, rotation=60, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(models)), models)
    ax.tick_params(length=0, labelsize=7.5)
    ax.set_xlabel("method; cells: AUROC of |score|")
    ax.set_title(objective, fontsize=9, color=INK, loc="left")
    for spine in ax.spines.values():
        spine.set_visible(False)


def _ink(value: float) -> float:
    """Distance of an AUROC from chance, in [0, 1]."""
    return min(1.0, abs(value - CHANCE) / (1 - CHANCE))


def _colours(
    values: Float64[np.ndarray, "n_models n_methods"], measured: Bool[np.ndarray, "n_models n_methods"]
) -> Float64[np.ndarray, "n_models n_methods 3"]:
    """Cells on paper: light where nothing was served, inked by the distance from chance elsewhere."""
    paper, rule, above, below = (np.array(to_rgb(name)) for name in (PAPER, RULE, SUPPORTS, OPPOSES))
    cells = np.tile(paper, (*values.shape, 1))
    cells[measured] += 0.25 * (rule - paper)
    for place in zip(*np.nonzero(np.isfinite(values)), strict=True):
        # Squared, so that the last hundredths, where good methods differ, can be distinguished by eye.
        share = 0.95 * _ink(values[place]) ** 2
        cells[place] += share * ((above if values[place] >= CHANCE else below) - cells[place])
    return cells


def _auroc(value: float) -> str:
    """Two decimals; 1 only where it is exactly 1, so that .995 and above is shown as .99+."""
    if value == 1:
        return "1"
    return ".99+" if value >= 0.995 else f"{value:.2f}".replace("0.", ".", 1)
