"""Pictures of calibrations: a strip for each gate on its own scale, and all gates around one line."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of
from assay.report.calibration_headlines import Headline, headline
from assay.report.calibration_words import KINDS, kind, number_line, picture_words, published_words


if TYPE_CHECKING:
    from assay.analyses.calibration import CalibrationReport

WIDTH = 260.0  # of a strip
_REACH = 4.0  # how many times the distance of number and limit an axis goes to either side
_LABEL = 34.0  # room of a number below a strip, of a word above
_CROWDED = 24.0  # nearer than that two numbers would run into each other
COLOURS = {"pass": SUPPORTS, "moderate": INK, "fail": OPPOSES}


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A number against its limits; places are units of the drawing, 0 to `WIDTH`, None where absent.

    Attributes:
        value, low, high: The number and the ends of its interval, cut to the axis.
        published: The number of the published rule, where it is another.
        cut_low, cut_high: Whether the interval goes on beyond the axis.
        zones: Kind (`pass` or `fail`), place, width and word (empty where there is no room).
        ticks: Place and text of each limit, no text where there is no room.
        ends: Place, text and side (`first`, `last`) of the ends of the axis, where there is room.
        label: Text alternative.
    """

    value: float
    low: float | None
    high: float | None
    published: float | None
    cut_low: bool
    cut_high: bool
    zones: tuple[tuple[str, float, float, str], ...]
    ticks: tuple[tuple[float, str], ...]
    ends: tuple[tuple[float, str, str], ...]
    label: str


def strip(shown: Headline, state: str) -> Strip | None:
    """The picture of a gate; None where the number is undefined or has no limits."""
    if shown.value is None or not shown.limits:
        return None
    first, last, logarithmic = _axis(shown)

    def place(value: float) -> float:
        inside = min(max(value, first), last)
        if logarithmic:
            share = math.log(inside / first) / math.log(last / first)
        else:
            share = (inside - first) / (last - first)
        return round(WIDTH * share, 1)

    zones = []
    for word, stretches in (("pass", shown.passes), ("fail", shown.fails)):
        for low, high in stretches:
            start, end = place(low), place(high)
            if end > start:
                zones.append((word, start, round(end - start, 1), word if end - start > _LABEL else ""))
    drawn_limits = dict.fromkeys(
        each for stretch in shown.passes + shown.fails for each in stretch if first <= each <= last
    )
    ticks: list[tuple[float, str]] = []
    for each in sorted(drawn_limits):
        if first < each < last:
            crowded = bool(ticks) and place(each) - ticks[-1][0] < _CROWDED
            ticks.append((place(each), "" if crowded else _short(each)))
    ends = []
    for value, side in ((first, "first"), (last, "last")):
        at = place(value)
        if all(abs(at - tick) > _LABEL for tick, _ in ticks):
            ends.append((at, _short(value), side))
    published = None if shown.published is None else place(shown.published)
    at = place(shown.value)
    return Strip(
        value=at,
        low=None if shown.low is None or not shown.bounded else place(shown.low),
        high=None if shown.high is None or not shown.bounded else place(shown.high),
        published=published if published is not None and abs(published - at) > 1 else None,
        cut_low=shown.bounded and shown.low is not None and shown.low < first,
        cut_high=shown.bounded and shown.high is not None and shown.high > last,
        zones=tuple(zones),
        ticks=tuple(ticks),
        ends=tuple(ends),
        label=picture_words(shown, state),
    )


def _axis(shown: Headline) -> tuple[float, float, bool]:
    """Ends of the axis of a strip, and whether it is logarithmic.

    All that is drawn fits, unless an end of the interval lies several times further from the limit than the
    number does: that end is cut.
    """
    assert shown.value is not None
    centre = shown.limits[0]
    reach = _REACH * max(abs(shown.value - centre), shown.scale)
    ends = [each for each in (shown.low, shown.high, shown.published) if each is not None]
    found = [*shown.limits, shown.value]
    spread = [*found, *(min(max(each, centre - reach), centre + reach) for each in ends)]
    if shown.ratio and min(spread) > 0 and max(spread) > 6 * min(spread):
        return min(spread) / 1.4, max(spread) * 1.4, True
    low, high = min(spread), max(spread)
    room = 0.16 * (high - low) or 0.5 * shown.scale
    step = 10.0 ** math.floor(math.log10(high - low + 2 * room))
    step /= 10 if high - low + 2 * room < 3 * step else 5
    first = max(shown.least, step * math.floor((low - room) / step))
    last = min(shown.most, step * math.ceil((high + room) / step))
    if not shown.higher and shown.least == 0:
        first = 0.0  # errors and shares that should be small are seen from 0
    return first, last, False


def _short(value: float) -> str:
    """At most three characters of a number that count."""
    text = f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"
    return text.replace("-", "\N{MINUS SIGN}")


# ------------------------------------------------------------------------------------------------ all of them


@dataclass(frozen=True, kw_only=True)
class Row:
    """A gate in the picture of all.

    Attributes:
        code, name: Of the gate.
        state: Its verdict with confidence, as `calibration_words.kind` names it.
        published: The published verdict.
        value, low, high, published_value: Places in (-1, 1): 0 is the limit of a pass, right of it passes.
        reading: A phrase for the number, or why there is none.
    """

    code: str
    name: str
    state: str
    published: str
    value: float | None
    low: float | None
    high: float | None
    published_value: float | None
    reading: str


def relative(shown: Headline, value: float | None) -> float | None:
    """Where a number stands if the limit of a pass is 0 and passing is to the right; in (-1, 1).

    The distance is counted in units of the limit itself (of 0.1 where that is 0) and bent, x / (1 + |x|), so
    that every number has a place: half way to the edge lies one unit.
    """
    if value is None or not shown.limits:
        return None
    distance = (value - shown.limits[0]) / shown.scale * (1 if shown.higher else -1)
    return distance / (1 + abs(distance))


def rows(gates: Sequence[Mapping[str, Any]]) -> list[Row]:
    """What the picture of all gates draws, in the order given."""
    found = []
    for gate in gates:
        shown = headline(gate)
        state = kind(gate["verdict"], shown)
        ends = [relative(shown, each) for each in (shown.low, shown.high)]
        low, high = sorted(each for each in ends if each is not None) if None not in ends else (None, None)
        reading = "" if shown.value is None else number_line(shown)[0]
        found.append(
            Row(
                code=str(gate["code"]),
                name=str(gate["name"]),
                state=state,
                published=str(gate["verdict"].get("published")),
                value=relative(shown, shown.value),
                low=low,
                high=high,
                published_value=relative(shown, shown.published),
                reading=reading,
            )
        )
    return found


def plot_gates(found: list[Row], ax: Axes | None = None) -> Axes:
    """Draw a row per gate: the interval around one line, the published number, both verdicts as text."""
    ax = axes_of(ax, 9.2, 0.9 + 0.3 * len(found))
    ax.set_facecolor("none")
    ax.axvspan(0, 1.02, color=SUPPORTS, alpha=0.06, linewidth=0)
    ax.axvspan(-1.02, 0, color=OPPOSES, alpha=0.05, linewidth=0)
    ax.plot([0, 0], [-0.6, len(found) - 0.4], color=MUTED, linewidth=1, linestyle=(0, (3, 2)))
    for at, row in enumerate(found):
        if row.value is not None:
            ax.plot([-1.02, 1.02], [at, at], color=RULE, linewidth=0.6, zorder=0)
        colour = COLOURS.get(row.state, MUTED)
        if row.low is not None and row.high is not None:
            ax.plot([row.low, row.high], [at, at], color=colour, linewidth=3, solid_capstyle="butt")
        if row.value is not None:
            filled = colour if row.low is not None else PAPER
            ax.plot(
                row.value, at, "o", color=colour, markersize=6, markerfacecolor=filled, markeredgewidth=1.6
            )
        else:
            ax.text(-0.98, at, KINDS[row.state][1], va="center", color=MUTED, fontsize=8, style="italic")
        if row.published_value is not None:
            ax.plot(
                row.published_value,
                at,
                "D",
                color=COLOURS.get(row.published, MUTED),
                markersize=8.5,
                markerfacecolor="none",
                markeredgewidth=1,
                zorder=4,
            )
        for x, state, word in (
            (1.06, row.state, KINDS[row.state][1]),
            (1.5, row.published, published_words(row.published)[1]),
        ):
            ax.text(x, at, word, va="center", color=COLOURS.get(state, MUTED), fontsize=8.5, clip_on=False)
    for x, text in ((1.06, "with confidence"), (1.5, "published")):
        ax.text(x, -0.95, text, va="center", color=INK, fontsize=8.5, clip_on=False)
    ax.text(-0.98, -0.95, "\N{LEFTWARDS ARROW} fails", va="center", color=MUTED, fontsize=8.5)
    ax.text(0.98, -0.95, "passes \N{RIGHTWARDS ARROW}", va="center", ha="right", color=MUTED, fontsize=8.5)
    ax.text(0, -0.95, "limit", va="center", ha="center", color=MUTED, fontsize=8.5)
    names = [f"{_cut(row.name, 36)}  {_cut(row.code, 8)}" for row in found]
    ax.set_yticks(range(len(found)), names, parse_math=False)
    ax.tick_params(axis="y", length=0, colors=INK)
    ax.set_ylim(len(found) - 0.4, -1.4)
    ax.set_xlim(-1.02, 1.82)
    ax.set_xticks([])
    ax.set_xlabel(
        "distance from the limit in units of the limit, drawn shorter the further it is", loc="left"
    )
    ax.xaxis.set_label_position("top")
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.legend(
        handles=[
            Line2D([], [], color=INK, marker="o", markersize=6, linewidth=3, label="number with interval"),
            Line2D(
                [],
                [],
                color=INK,
                marker="o",
                markersize=6,
                linewidth=0,
                markerfacecolor=PAPER,
                label="without",
            ),
            Line2D(
                [],
                [],
                color=INK,
                marker="D",
                markersize=8,
                linewidth=0,
                markerfacecolor="none",
                label="number of the published rule",
            ),
        ],
        loc="upper left",
        bbox_to_anchor=(0, 0),
        ncols=3,
        frameon=False,
        fontsize=8.5,
        labelcolor=MUTED,
    )
    return ax


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def plot_calibration(report: "CalibrationReport", ax: Axes | None = None) -> Axes:
    """Draw the gates of a calibration around the limit of a pass."""
    return plot_gates(rows(report.to_dict()["gates"]), ax)


def draw_gates(gates: list[Mapping[str, Any]]) -> Figure:
    """The picture of all gates as a figure of its own."""
    figure = plot_gates(rows(gates)).get_figure()
    assert isinstance(figure, Figure)
    return figure
