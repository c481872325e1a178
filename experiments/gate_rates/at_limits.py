"""Counts of the cells of `limits`: every gate at its thresholds, over the family that the promise names."""

from collections import Counter
from typing import Any

from limits import CELLS, PROMISED, SHAPES, Cell
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from assay.core.random import stream
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS
from assay.stats import clopper_pearson


SEED = 42
FIRST, MOST_OF_FIRST = 400, 30  # a cell with more wrong verdicts than this is counted again
SECOND, MOST_OF_SECOND = 2000, 120
MARKERS = {"normal": "o", "t5": "s", "exponential": ">", "mirrored exponential": "<", "5 % outliers": "x"}
Record = dict[str, Any]


def tally_cell(index: int) -> Record:
    """Verdicts in one cell, counted; counted again with more draws where the first are wrong too often."""
    cell = CELLS[index]
    status = _count(cell, 0, FIRST)
    repetitions, most = FIRST, MOST_OF_FIRST
    if _worst(cell, status) > MOST_OF_FIRST:
        status += _count(cell, FIRST, SECOND)
        repetitions, most = SECOND, MOST_OF_SECOND
    return {
        "gate": cell.gate,
        "part": cell.part,
        "world": cell.world,
        "shape": cell.shape,
        "n": cell.n,
        "truth": cell.truth,
        "promised": cell.promised,
        "repetitions": repetitions,
        "status": dict(sorted(status.items())),
        "errors": {word: status[word] for word in cell.errors},
        "holds": _worst(cell, status) <= most,
    }


def _count(cell: Cell, start: int, stop: int) -> Counter[str]:
    return Counter(cell.judge(stream(SEED, f"{cell.key} {at}")).status for at in range(start, stop))


def _worst(cell: Cell, status: Counter[str]) -> int:
    return max(status[word] for word in cell.errors)


def key_of(record: Record) -> str:
    """The key of a counted cell."""
    return Cell(
        **{name: record[name] for name in ("gate", "part", "world", "shape", "n", "truth")},
        judge=lambda rng: None,  # type: ignore[arg-type,return-value]
    ).key


def shapes_of(records: list[Record]) -> list[str]:
    """Distributions in the order of the family, then any others."""
    found = {each["shape"] for each in records}
    return [*(name for name in SHAPES if name in found), *sorted(found - set(SHAPES))]


def title_of(record: Record) -> str:
    """Gate and part."""
    return f"{record['gate']} {record['part']}".strip()


def table(records: list[Record], worlds: list[Record]) -> str:
    """A row per gate: the largest share of wrong verdicts at its limits, and the most away from them."""
    draws = sum(worlds[0]["status"].values())
    rows = [
        "| gate | cells | most wrong at a limit | n | worlds | most wrong away | published rule |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for gate in sorted({each["gate"] for each in records}):
        cells = [each for each in records if each["gate"] == gate]
        worst = max((each for each in cells if each["promised"]), key=share_of)
        away = [each for each in worlds if each["gate"] == gate and each["truth"] != "null"]
        wrong = max(max(each["errors"].values()) for each in away)
        published = max(each["published"][word] for each in away for word in each["errors"])
        cells_shown = f"{len(cells)} | {100 * share_of(worst):.1f} % | {worst['n']}"
        worlds_shown = f"{len(away)} | {100 * wrong / draws:.1f} % | {100 * published / draws:.1f} %"
        rows.append(f"| {gate} | {cells_shown} | {worlds_shown} |")
    return "\n".join(rows)


def share_of(record: Record) -> float:
    """The larger share of wrong verdicts, of passes or of fails."""
    return max(record["errors"].values()) / record["repetitions"]


def picture(records: list[Record]) -> Figure:
    """A row per gate and part, a mark per cell at its share of wrong verdicts."""
    titles = list(dict.fromkeys(title_of(each) for each in records))
    height = 0.26 * len(titles) + 1.5
    figure = Figure(figsize=(9.5, height), facecolor=PAPER)
    ax = figure.subplots()
    figure.subplots_adjust(left=0.24, right=0.97, bottom=0.62 / height, top=1 - 0.78 / height)
    most = max(map(share_of, records))
    for share, style in ((0.05, "-"), (MOST_OF_SECOND / SECOND, ":")):
        ax.axvline(share, color=INK, linewidth=0.9, linestyle=style)
    shapes = shapes_of(records)
    for each in records:
        shape = each["shape"]
        place = titles.index(title_of(each)) + 0.6 * (shapes.index(shape) / max(1, len(shapes) - 1) - 0.5)
        colour = MUTED if not each["promised"] else SUPPORTS if each["holds"] else OPPOSES
        marker = MARKERS.get(shape, "D")
        ax.plot(share_of(each), place, marker=marker, color=colour, markersize=4, alpha=0.75, linestyle="")
    ax.set_yticks(range(len(titles)), titles, fontsize=8.5, color=INK)
    ax.set_ylim(len(titles) - 0.4, -0.6)
    ax.set_xlim(-0.002, max(0.08, most + 0.005))
    ax.set_xlabel("share of wrong verdicts, passes or fails", fontsize=9, color=INK)
    ax.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    ax.tick_params(length=0, labelsize=8.5, colors=MUTED)
    ax.grid(axis="y", color=RULE, linewidth=0.5)
    ax.set_axisbelow(True)
    ax.set_facecolor(PAPER)
    ax.spines[:].set_visible(False)
    keys = [
        Line2D([], [], marker=MARKERS.get(shape, "D"), linestyle="", markersize=5, label=shape)
        for shape in (*PROMISED, "5 % outliers")
    ]
    keys.append(Line2D([], [], marker="D", linestyle="", markersize=5, label="other"))
    for key in keys:
        key.set_color(MUTED if key.get_label() == "5 % outliers" else SUPPORTS)
    figure.legend(handles=keys, loc="upper right", ncols=6, fontsize=8, frameon=False)
    figure.text(
        0.012,
        1 - 0.1 / height,
        f"{len(records)} worlds at a limit or near it.\n"
        "Solid line: the 5 % promised. Dotted: 6 %, the most that 2,000 draws may show.",
        fontsize=9.5,
        va="top",
        color=INK,
    )
    return figure


def beyond(records: list[Record]) -> list[str]:
    """Promised cells whose verdicts are wrong more often than the promise allows."""
    return [
        f"{key_of(each)}: {max(each['errors'].values())} of {each['repetitions']} "
        f"({clopper_pearson(max(each['errors'].values()), each['repetitions']).low:.3f} at least)"
        for each in records
        if each["promised"] and not each["holds"]
    ]
