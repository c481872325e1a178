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
TRUTHS = {
    "limit": "the limit",
    "pass": "pass",
    "fail": "fail",
    "not-pass": "limit of a pass",
    "not-fail": "limit of a fail",
    "none": "no effect",
}
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


def table(records: list[Record]) -> str:
    """Per gate, part and world: the largest share of wrong verdicts over n, for each distribution."""
    order = ("normal", "t5", "exponential", "mirrored exponential")
    broken = [each for each in records if not each["holds"]]
    rows = [
        f"{FIRST} repetitions of each cell; a cell with more than {MOST_OF_FIRST} wrong verdicts of one kind "
        f"is counted with {SECOND:,} and must stay at or below {MOST_OF_SECOND}. An entry is the largest "
        "share of wrong passes or wrong fails over the numbers n, with the n it was seen at. *Other* is the "
        "distribution that the world names. **Bold**: above what is allowed, in "
        f"{len(broken)} of {len(records)} cells, of which {sum(each['promised'] for each in broken)} are "
        "promised.",
        "",
        "| gate | world | truth | n | " + " | ".join(order) + " | other | 5 % outliers |",
        "|---|---|---|---|" + "--:|" * (len(order) + 2),
    ]
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for each in records:
        groups.setdefault((title_of(each), each["world"], each["truth"]), []).append(each)
    for (title, world, truth), cells in groups.items():
        numbers = sorted({each["n"] for each in cells})
        columns = [[each for each in cells if each["shape"] == shape] for shape in order]
        columns.append([each for each in cells if each["shape"] not in SHAPES])
        columns.append([each for each in cells if each["shape"] == "5 % outliers"])
        shown = " | ".join(map(_entry, columns))
        rows.append(f"| {title} | {world} | {TRUTHS[truth]} | {', '.join(map(str, numbers))} | {shown} |")
    return "\n".join(rows)


def share_of(record: Record) -> float:
    """The larger share of wrong verdicts, of passes or of fails."""
    return max(record["errors"].values()) / record["repetitions"]


def _entry(cells: list[Record]) -> str:
    if not cells:
        return ""
    worst = max(cells, key=share_of)
    words = f"{100 * share_of(worst):.1f} % ({worst['n']})"
    return words if all(each["holds"] for each in cells) else f"**{words}**"


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
