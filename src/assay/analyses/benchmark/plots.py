"""Pictures of a benchmark of discovery methods: quality against cost, and the map of planted truth."""

import html
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float64
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from assay.analyses.benchmark import DiscoveryBenchmark, TruthTable
from assay.analyses.benchmark.tables import title
from assay.circuits import write_atomically
from assay.page import draw
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of, to_svg
from assay.page.labels import LABEL_SIZE, place_labels


SIZE = (7.2, 4.6)  # inches
CHEAPEST = 0.1  # forward-equivalents; what costs less is drawn there
CELL = (0.46, 0.2)  # inches
CHANCE = 0.5
PICTURE_DPI = 150


@dataclass(frozen=True, kw_only=True)
class QualityCostData:
    """Quality against cost: one point per method, one line per row whose cost is unknown.

    Attributes:
        names: Methods that have both.
        cost: Plain forward passes over the same examples.
        quality, low, high: CPR by signed score with its 95 % interval.
        levels: Rows without a cost, such as imported scores: name and CPR.
        n: Examples behind each quality.
        where: Model and task.
    """

    names: tuple[str, ...]
    cost: tuple[float, ...]
    quality: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    levels: tuple[tuple[str, float], ...]
    n: int
    where: str

    @property
    def label(self) -> str:
        """The picture in a sentence."""
        return f"CPR against cost of discovery methods, {self.where}"


@dataclass(frozen=True, kw_only=True)
class TruthMapData:
    """AUROC of methods on planted models.

    Attributes:
        models: Rows.
        methods: Columns.
        objectives: One panel each.
        values: `[n_objectives, n_models, n_methods]`; NaN where a method did not serve.
        measured: Where there is a cell at all, served or not.
    """

    models: tuple[str, ...]
    methods: tuple[str, ...]
    objectives: tuple[str, ...]
    values: Float64[np.ndarray, "n_objectives n_models n_methods"]
    measured: Bool[np.ndarray, "n_objectives n_models n_methods"]

    @property
    def label(self) -> str:
        """The picture in a sentence."""
        return (
            f"AUROC of {len(self.methods)} discovery methods on {len(self.models)} planted models, for "
            f"{' and '.join(self.objectives)}"
        )


def quality_cost_data(benchmark: DiscoveryBenchmark) -> QualityCostData:
    """Every row with a CPR: those with a cost as points, the others as levels."""
    points, levels = [], []
    for row in benchmark.rows:
        if row.cpr is None or math.isnan(row.cpr.value):
            continue
        if math.isnan(row.forward_equivalents):
            levels.append((title(row), row.cpr.value))
        else:
            points.append((title(row), row.forward_equivalents, row.cpr))
    return QualityCostData(
        names=tuple(name for name, _, _ in points),
        cost=tuple(cost for _, cost, _ in points),
        quality=tuple(cpr.value for _, _, cpr in points),
        low=tuple(cpr.low for _, _, cpr in points),
        high=tuple(cpr.high for _, _, cpr in points),
        levels=tuple(levels),
        n=int(benchmark.evaluated_on["n"]),
        where=f"{benchmark.model['id']}, {benchmark.task}",
    )


def truth_map_data(table: TruthTable) -> TruthMapData:
    """AUROC of |score| in every cell; objectives that no method served are left out."""
    values = np.full((len(table.objectives), len(table.models), len(table.methods)), np.nan)
    measured = np.zeros(values.shape, dtype=bool)
    places = [
        {name: place for place, name in enumerate(names)}
        for names in (table.objectives, table.models, table.methods)
    ]
    for cell in table.cells:
        place = places[0][cell.objective], places[1][cell.model], places[2][cell.method]
        values[place], measured[place] = cell.auroc, True
    served = np.isfinite(values).any(axis=(1, 2))
    return TruthMapData(
        models=table.models,
        methods=table.methods,
        objectives=tuple(name for name, kept in zip(table.objectives, served, strict=True) if kept),
        values=values[served],
        measured=measured[served],
    )


# ---------------------------------------------------------------------------------------------- drawing


def plot_benchmark(benchmark: DiscoveryBenchmark, ax: Axes | None = None) -> Axes:
    """Draw quality against cost, a point per method."""
    return plot_quality_cost(quality_cost_data(benchmark), ax)


def plot_truth(table: TruthTable, ax: Axes | None = None) -> Axes:
    """Draw AUROC of methods on planted models, a panel per objective; on given axes the first."""
    return plot_truth_map(truth_map_data(table), ax)


def plot_quality_cost(data: QualityCostData, ax: Axes | None = None) -> Axes:
    """Draw quality upwards and cost to the right, on a logarithmic axis; labels keep clear of each other."""
    ax = axes_of(ax, *SIZE)
    cost = np.maximum(np.array(data.cost, dtype=float), CHEAPEST)
    ax.set_xscale("log")
    ax.axhline(1, color=RULE, linewidth=0.8, zorder=0)
    ax.axhline(0, color=RULE, linewidth=0.8, zorder=0)
    for x, value, low, high in zip(cost, data.quality, data.low, data.high, strict=True):
        if math.isfinite(low) and math.isfinite(high):
            ax.plot([x, x], [low, high], color=SUPPORTS, linewidth=2.0, alpha=0.55, zorder=2)
        ax.plot([x], [value], "o", color=INK, markersize=5, zorder=3)
    for name, value in data.levels:
        ax.axhline(value, color=OPPOSES, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
        ax.annotate(
            f"{name} (cost unknown)",
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 3),
            textcoords="offset points",
            ha="right",
            color=OPPOSES,
            fontsize=LABEL_SIZE,
        )
    _limits(ax, data, cost)
    ax.xaxis.set_major_formatter(FuncFormatter(_cost_tick))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("cost of discovery in plain forward passes over the same examples")
    ax.set_ylabel("CPR (edges by signed score)")
    ax.set_title(f"{data.where}, n = {data.n}", fontsize=9, color=INK, loc="left")
    place_labels(
        ax, data.names, cost, np.array(data.quality), low=np.array(data.low), high=np.array(data.high)
    )
    return ax


def _limits(ax: Axes, data: QualityCostData, cost: Float64[np.ndarray, " n"]) -> None:
    if len(cost):
        ax.set_xlim(float(cost.min()) / 2, float(cost.max()) * 4)
    values = [value for _, value in data.levels]
    shown = [value for value in (*data.quality, *data.low, *data.high, *values) if math.isfinite(value)]
    if shown:
        low, high = min(0.0, *shown), max(1.0, *shown)
        room = 0.07 * (high - low)
        ax.set_ylim(low - room, high + room)


def _cost_tick(value: float, place: int | None) -> str:
    del place
    return f"≤ {CHEAPEST:g}" if math.isclose(value, CHEAPEST) else f"{value:,g}"


def plot_truth_map(data: TruthMapData, ax: Axes | None = None) -> Axes:
    """Draw a panel per objective: planted models downwards, methods across, AUROC in the cells.

    Ink grows with the distance from chance; a light cell with a dot was not served, and where there is none
    nothing was measured.

    Args:
        data: What to draw.
        ax: Axes for a single objective; default: a new figure with a panel for each.
    """
    if ax is not None:
        _truth_panel(ax, data, 0)
        return ax
    n_panels = max(1, len(data.objectives))
    width = 2.6 + CELL[0] * len(data.methods) * n_panels + 0.3 * n_panels
    height = 1.9 + CELL[1] * len(data.models)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, n_panels, sharey=True, squeeze=False)[0]
    for place, each in enumerate(axes[: len(data.objectives)]):
        _truth_panel(each, data, place)
    for each in axes[1:]:
        each.tick_params(labelleft=False)
    first: Axes = axes[0]
    return first


def _truth_panel(ax: Axes, data: TruthMapData, place: int) -> None:
    axes_of(ax, 0.0, 0.0)
    values = data.values[place]
    # One image with rules over it rather than a patch for each cell: a tenth of the file.
    ax.imshow(_colours(values, data.measured[place]), interpolation="none", aspect="auto", zorder=0)
    for cuts, rule in ((len(data.methods), ax.axvline), (len(data.models), ax.axhline)):
        for cut in range(cuts + 1):
            rule(cut - 0.5, color=PAPER, linewidth=1.2, zorder=1)
    for (row, column), value in np.ndenumerate(values):
        if not data.measured[place, row, column]:
            continue
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
    ax.set_xlim(-0.55, len(data.methods) - 0.45)
    ax.set_ylim(len(data.models) - 0.45, -0.55)
    ax.set_xticks(range(len(data.methods)), data.methods, rotation=60, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(data.models)), data.models)
    ax.tick_params(length=0, labelsize=7.5)
    ax.set_xlabel("method; cells: AUROC of |score|")
    ax.set_title(data.objectives[place], fontsize=9, color=INK, loc="left")
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


def write_picture(folder: Path, name: str, ax: Axes, *, label: str) -> dict[str, Path]:
    """The figure of `ax` as PNG and SVG, without a date, so that equal numbers give equal files.

    Args:
        folder: Where; it exists.
        name: Stem of the files.
        ax: Axes of a finished drawing.
        label: Text alternative of the SVG.

    Returns:
        The files by kind.
    """
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=PICTURE_DPI, facecolor=PAPER)
    return {
        "png": write_atomically(folder / f"{name}.png", content.getvalue()),
        "svg": write_atomically(folder / f"{name}.svg", svg_file(ax, label=label, key=name).encode()),
    }


def svg_file(ax: Axes, *, label: str, key: str) -> str:
    """What `to_svg` makes, as a file of its own: with a size, a ground, colours and a font in it."""
    text = to_svg(ax, label=label, key=key)
    text = re.sub(r"var\(--(\w+)\)", lambda match: str(getattr(draw, match[1].upper())), text)
    text = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", text)  # upright text
    text = re.sub(r"<g>\n(<text[^>]*>[^<]*</text>)\n</g>", r"\1", text)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), text)  # of a point
    styles = dict.fromkeys(re.findall(r'<text style="([^"]*)"', text))
    for place, style in enumerate(styles):  # said once rather than by every text
        text = text.replace(f'<text style="{style}"', f'<text class="t{place}"')
    rules = "".join(f".t{place}{{{style}}}" for place, style in enumerate(styles))
    view = re.search(r'viewBox="([^"]+)"', text)
    assert view is not None
    width, height = view[1].split()[2:]
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}pt" height="{height}pt" viewBox="{view[1]}" '
        f'font-family="DejaVu Sans, Verdana, sans-serif" role="img" aria-label="{html.escape(label)}">\n'
        f'<style>{rules}</style>\n<rect width="100%" height="100%" fill="{PAPER}"/>'
    )
    return re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1) + "\n"


__all__ = [
    "QualityCostData",
    "TruthMapData",
    "place_labels",
    "plot_quality_cost",
    "plot_truth_map",
    "quality_cost_data",
    "svg_file",
    "truth_map_data",
    "write_picture",
]
