"""The pictures of gates: a number against its limits on an axis of its own, and all gates around one line."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.analyses.calibration.gate import Judged
from assay.core.errors import InputError
from assay.core.verdict import JUDGED
from assay.page.blocks import STATUSES
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of, clipped
from assay.page.text import MINUS, estimate, number


if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.analyses.calibration.battery import CalibrationReport

WIDTH = 260.0  # of a strip
_REACH = 4.0  # how many times the distance of number and limit an axis goes to either side
_LABEL = 34.0  # room of a number below a strip, of a word above
_CROWDED = 24.0  # nearer than that two numbers would run into each other
_CONFIDENT, _PUBLISHED = 1.06, 1.5  # places of the two columns of verdicts

COLOURS = {"pass": SUPPORTS, "moderate": INK, "fail": OPPOSES}
KINDS = {
    **{name: STATUSES[name] for name in ("pass", "fail", "moderate", "inconclusive")},
    "not applicable": ("\N{EN DASH}", "not applicable"),
    "undefined": ("\N{EN DASH}", "undefined"),
    "none": STATUSES["none"],
}


# ---- words ------------------------------------------------------------------------------------------


def judged_of(record: Mapping[str, Any]) -> Judged:
    """What a gate, or a part of one, decided about its number.

    Raises:
        InputError: For a document without it, as earlier versions wrote.
    """
    if "judged" not in record:
        raise InputError("these calibrations do not name what was judged; run `assay calibrate` again")
    return Judged.from_dict(record["judged"])


def published_words(judged: Judged) -> tuple[str, str]:
    """Mark and word of the published verdict."""
    return KINDS[judged.published] if judged.published in JUDGED else ("\N{EN DASH}", "says nothing")


def number_words(judged: Judged) -> str:
    """The number with its interval, where that has a width."""
    interval = judged.interval
    if interval is None or interval.high <= interval.low:
        return number(judged.value)
    return " ".join(estimate(judged.value, interval.low, interval.high))


def passes_words(judged: Judged) -> str:
    """Where the number passes and fails; empty without limits."""
    if judged.rule is None:
        return ""
    side, other = ("above", "below") if judged.rule.higher else ("below", "above")
    first, *more = (f"{limit:g}".replace("-", MINUS) for limit in judged.limits)
    words = f"passes {side} {first}" if judged.rule.strict else f"passes at {first} or {side}"
    return f"{words}, fails {other} {more[0]}" if more else words


# ---- one number -------------------------------------------------------------------------------------


def strip(judged: Judged) -> str:
    """The picture of a gate; empty where the number is undefined or has no limits."""
    if judged.value is None or judged.rule is None:
        return ""
    first, last, logarithmic = _axis(judged.value, judged)

    def place(value: float) -> float:
        inside = min(max(value, first), last)
        if logarithmic:
            return round(WIDTH * math.log(inside / first) / math.log(last / first), 1)
        return round(WIDTH * (inside - first) / (last - first), 1)

    parts, limits = [], set[float]()
    for kind, low, high in zones(judged):
        start, width = place(low), round(place(high) - place(low), 1)
        limits |= {each for each in (low, high) if first < each < last}
        if width > 0:
            parts.append(f'<rect class="{kind}" x="{start}" y="13" width="{width}" height="20"/>')
        if width > _LABEL:
            parts.append(_text("zone", round(start + width / 2, 1), 9, kind))
    parts.append(f'<line class="axis" x1="0" x2="{WIDTH:.0f}" y1="23" y2="23"/>')
    labelled: list[float] = []
    for limit in sorted(limits):
        parts.append(_upright("threshold", place(limit), 11, 35))
        if not labelled or place(limit) - labelled[-1] >= _CROWDED:
            parts.append(_text("limit", place(limit), 46, _short(limit)))
            labelled.append(place(limit))
    for end, side in ((first, "first"), (last, "last")):
        if all(abs(place(end) - place(limit)) > _LABEL for limit in limits):
            parts.append(_text(side, place(end), 46, _short(end)))
    interval, by = judged.interval, judged.published_value
    if interval is not None:
        low, high = interval.low, interval.high
        parts.append(_range(place(low), place(high), cut=(low < first, high > last)))
    if by is not None and abs(place(by) - place(judged.value)) > 1:
        parts.append(_diamond(place(by)))
    parts.append(_dot(place(judged.value), alone=interval is None))
    state = KINDS.get(judged.state, KINDS["none"])[1]
    words = f"{judged.label}: {number_words(judged)}; {passes_words(judged)}; {state} with confidence"
    spoken = f'role="img" aria-label="{html.escape(words)}"'
    return f'<svg class="gate-strip" viewBox="-6 0 272 50" {spoken}>{"".join(parts)}</svg>'


def legend() -> list[tuple[str, str]]:
    """What the signs of a strip mean."""
    interval = _range(6.0, 54.0, cut=(False, False)) + _dot(30.0, alone=False)
    signs = {
        kind: f'<rect class="{kind}" x="0" y="13" width="60" height="20"/>' for kind in ("pass", "fail")
    } | {
        "number with its 90 % interval": interval,
        "number without one": _dot(30.0, alone=True),
        "number judged by the published rule, if it differs": _diamond(30.0),
    }
    opening = '<svg class="gate-strip" viewBox="0 12 60 22" aria-hidden="true">'
    return [(f"{opening}{sign}</svg>", words) for words, sign in signs.items()]


def zones(judged: Judged) -> list[tuple[str, float, float]]:
    """Where the verdict would be a pass, and where a fail: kind and both ends."""
    assert judged.rule is not None
    rule = judged.rule
    sides = (("pass", rule.pass_at, rule.higher), ("fail", rule.fails_beyond, not rule.higher))
    return [
        (kind, *((limit, math.inf) if above else (-math.inf, limit)))
        for kind, limit, above in sides
        if limit is not None
    ]


def _axis(value: float, judged: Judged) -> tuple[float, float, bool]:
    """Ends of the axis of a strip, and whether it is logarithmic.

    All that is drawn fits, unless an end of the interval lies several times further from the limit than the
    number does: that end is cut.
    """
    assert judged.rule is not None
    rule, interval, centre = judged.rule, judged.interval, judged.rule.pass_at
    reach = _REACH * max(abs(value - centre), judged.unit)
    ends = [] if interval is None else [interval.low, interval.high]
    ends += [] if judged.published_value is None else [judged.published_value]
    spread = [*rule.limits, value, *(min(max(each, centre - reach), centre + reach) for each in ends)]
    low, high = min(spread), max(spread)
    if judged.ratio and low > 0 and high > 6 * low:
        return low / 1.4, high * 1.4, True
    room = 0.16 * (high - low) or 0.5 * judged.unit
    step = 10.0 ** math.floor(math.log10(high - low + 2 * room))
    step /= 10 if high - low + 2 * room < 3 * step else 5
    first, last = step * math.floor((low - room) / step), step * math.ceil((high + room) / step)
    first = first if judged.least is None else max(judged.least, first)
    last = last if judged.most is None else min(judged.most, last)
    if not rule.higher and judged.least == 0:
        first = 0.0  # errors and shares that should be small are seen from 0
    return first, last, False


def _short(value: float) -> str:
    """At most three characters of a number that count."""
    return (f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}").replace("-", MINUS)


def _text(style: str, x: float, y: int, text: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}">{html.escape(text)}</text>'


def _upright(style: str, x: float, top: int, bottom: int) -> str:
    return f'<line class="{style}" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>'


def _range(low: float, high: float, *, cut: tuple[bool, bool]) -> str:
    """The interval; an end that goes on beyond the axis is an arrow head."""
    parts = [f'<line class="range" x1="{low}" x2="{high}" y1="23" y2="23"/>']
    for x, beyond, back in ((low, cut[0], 1), (high, cut[1], -1)):
        arrow = f"M{x + 5 * back} 18L{x - 3 * back} 23L{x + 5 * back} 28"
        parts.append(f'<path class="cut" d="{arrow}"/>' if beyond else _upright("range-end", x, 18, 28))
    return "".join(parts)


def _diamond(x: float) -> str:
    return f'<path class="published" d="M{x - 5.5} 23L{x} 17.5L{x + 5.5} 23L{x} 28.5Z"/>'


def _dot(x: float, *, alone: bool) -> str:
    style = ' class="alone"' if alone else ""
    return f'<circle{style} cx="{x}" cy="23" r="4.2"/>'


# ---- all of them ------------------------------------------------------------------------------------


def relative(judged: Judged, value: float | None) -> float | None:
    """Where a number is if the limit of a pass is 0 and passing is to the right; in (-1, 1).

    The distance is counted in units of the limit itself (of 0.1 where that is 0) and bent, x / (1 + |x|), so
    that every number has a place: half way to the edge lies one unit.
    """
    if value is None or judged.rule is None:
        return None
    distance = (value - judged.rule.pass_at) / judged.unit * (1 if judged.rule.higher else -1)
    return distance / (1 + abs(distance))


def plot_gates(gates: Sequence[Mapping[str, Any]], ax: "Axes | None" = None) -> "Axes":
    """Draw a line per gate: the interval around its limit, the published number, both verdicts as text.

    Args:
        gates: As documents hold them: `code`, `name` and `verdict`.
        ax: Where; default: axes of their own.
    """
    ax = axes_of(ax, 9.2, 0.9 + 0.3 * len(gates))
    ax.set_facecolor("none")
    ax.axvspan(0, 1.02, color=SUPPORTS, alpha=0.06, linewidth=0)
    ax.axvspan(-1.02, 0, color=OPPOSES, alpha=0.05, linewidth=0)
    ax.plot([0, 0], [-0.6, len(gates) - 0.4], color=MUTED, linewidth=1, linestyle=(0, (3, 2)))
    for at, gate in enumerate(gates):
        _draw_line(ax, at, judged_of(gate["verdict"]))
    for x, text in ((_CONFIDENT, "with confidence"), (_PUBLISHED, "published")):
        ax.text(x, -0.95, text, va="center", color=INK, fontsize=8.5, clip_on=False)
    for x, text, side in (
        (-0.98, "\N{LEFTWARDS ARROW} fails", "left"),
        (0, "limit", "center"),
        (0.98, "passes \N{RIGHTWARDS ARROW}", "right"),
    ):
        ax.text(x, -0.95, text, va="center", ha=side, color=MUTED, fontsize=8.5)
    names = [f"{clipped(str(gate['name']), 36)}  {clipped(str(gate['code']), 8)}" for gate in gates]
    ax.set_yticks(range(len(gates)), names, parse_math=False)
    ax.tick_params(axis="y", length=0, colors=INK)
    ax.set_ylim(len(gates) - 0.4, -1.4)
    ax.set_xlim(-1.02, 1.82)
    ax.set_xticks([])
    ax.set_xlabel(
        "distance from the limit in units of the limit, drawn shorter the further it is", loc="left"
    )
    ax.xaxis.set_label_position("top")
    ax.spines[:].set_visible(False)
    for marker, size, width, face, label in (
        ("o", 6, 3, INK, "number with interval"),
        ("o", 6, 0, PAPER, "without"),
        ("D", 8, 0, "none", "number of the published rule"),
    ):
        ax.plot([], [], color=INK, marker=marker, ms=size, lw=width, mfc=face, label=label)
    look = {"frameon": False, "fontsize": 8.5, "labelcolor": MUTED}
    ax.legend(loc="upper left", bbox_to_anchor=(0, 0), ncols=3, **look)
    return ax


def _draw_line(ax: "Axes", at: int, judged: Judged) -> None:
    state = judged.state if judged.state in KINDS else "none"
    colour, interval, value = COLOURS.get(state, MUTED), judged.interval, relative(judged, judged.value)
    ends = [] if interval is None else [relative(judged, each) for each in (interval.low, interval.high)]
    bounded = [end for end in ends if end is not None]
    if bounded:
        ax.plot(bounded, [at, at], color=colour, linewidth=3, solid_capstyle="butt")
    if value is None:
        ax.text(-0.98, at, KINDS[state][1], va="center", color=MUTED, fontsize=8, style="italic")
    else:
        ax.plot([-1.02, 1.02], [at, at], color=RULE, linewidth=0.6, zorder=0)
        ax.plot(value, at, "o", color=colour, ms=6, mfc=colour if bounded else PAPER, mew=1.6)
    if (by := relative(judged, judged.published_value)) is not None:
        published = COLOURS.get(judged.published, MUTED)
        ax.plot(by, at, "D", color=published, ms=8.5, mfc="none", mew=1, zorder=4)
    for x, word, shown in (
        (_CONFIDENT, state, KINDS[state][1]),
        (_PUBLISHED, judged.published, published_words(judged)[1]),
    ):
        ax.text(x, at, shown, va="center", color=COLOURS.get(word, MUTED), fontsize=8.5, clip_on=False)


def plot_calibration(report: "CalibrationReport", ax: "Axes | None" = None) -> "Axes":
    """Draw the gates of a calibration around the limit of a pass."""
    return plot_gates(report.to_dict()["gates"], ax)
