"""A number against its limits on an axis of its own: the small picture beside a gate or a part of one."""

import html
import math
from dataclasses import dataclass

from assay.analyses.calibration.page_words import picture_words
from assay.analyses.calibration.quantity import Judged
from assay.core.verdict import Rule


WIDTH = 260.0  # of a strip
_REACH = 4.0  # how many times the distance of number and limit an axis goes to either side
_LABEL = 34.0  # room of a number below a strip, of a word above
_CROWDED = 24.0  # nearer than that two numbers would run into each other

Stretch = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Places of what is drawn, in units of the drawing, 0 to `WIDTH`; None where absent.

    Attributes:
        value, low, high: The number and the ends of its interval, cut to the axis.
        published: The number of the published rule, where it is another.
        cut_low, cut_high: Whether the interval goes on beyond the axis.
        zones: Kind (`pass` or `fail`), place, width and word (empty where there is no room).
        ticks: Place and text of each limit, no text where there is no room.
        ends: Place, text and side (`first`, `last`) of the ends of the axis, where there is room.
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

    def svg(self, label: str) -> str:
        """The picture, with what is read out in its place."""
        parts = []
        for kind, x, width, word in self.zones:
            parts.append(f'<rect class="{kind}" x="{x}" y="13" width="{width}" height="20"/>')
            if word:
                parts.append(_text("zone", round(x + width / 2, 1), 9, word))
        parts.append(f'<line class="axis" x1="0" x2="{WIDTH:.0f}" y1="23" y2="23"/>')
        for x, text in self.ticks:
            parts += [_upright("threshold", x, 11, 35), _text("limit", x, 46, text)]
        parts += [_text(side, x, 46, text) for x, text, side in self.ends]
        if self.low is not None and self.high is not None:
            parts += _range(self.low, self.high, cut_low=self.cut_low, cut_high=self.cut_high)
        if self.published is not None:
            parts.append(_diamond(self.published))
        parts.append(_dot(self.value, alone=self.low is None))
        spoken = f'role="img" aria-label="{html.escape(label)}"'
        content = "\n".join(parts)
        return f'<svg class="gate-strip" viewBox="-6 0 272 50" {spoken}>{content}</svg>'


def _text(style: str, x: float, y: int, text: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}">{html.escape(text)}</text>'


def _upright(style: str, x: float, top: int, bottom: int) -> str:
    return f'<line class="{style}" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>'


def _range(low: float, high: float, *, cut_low: bool, cut_high: bool) -> list[str]:
    """The interval; an end that goes on beyond the axis is an arrow head."""
    parts = [f'<line class="range" x1="{low}" x2="{high}" y1="23" y2="23"/>']
    for x, cut, back in ((low, cut_low, 1), (high, cut_high, -1)):
        arrow = f"M{x + 5 * back} 18L{x - 3 * back} 23L{x + 5 * back} 28"
        parts.append(f'<path class="cut" d="{arrow}"/>' if cut else _upright("range-end", x, 18, 28))
    return parts


def _diamond(x: float) -> str:
    return f'<path class="published" d="M{x - 5.5} 23L{x} 17.5L{x + 5.5} 23L{x} 28.5Z"/>'


def _dot(x: float, *, alone: bool) -> str:
    style = ' class="alone"' if alone else ""
    return f'<circle{style} cx="{x}" cy="23" r="4.2"/>'


def legend() -> list[tuple[str, str]]:
    """What the signs of a strip mean."""
    interval = _range(6.0, 54.0, cut_low=False, cut_high=False)
    zones = [f'<rect class="{kind}" x="0" y="13" width="60" height="20"/>' for kind in ("pass", "fail")]
    signs = (
        (zones[0], "pass"),
        (zones[1], "fail"),
        ("".join([*interval, _dot(30.0, alone=False)]), "number with its 90 % interval"),
        (_dot(30.0, alone=True), "number without one"),
        (_diamond(30.0), "number judged by the published rule, if it differs"),
    )
    opening = '<svg class="gate-strip" viewBox="0 12 60 22" aria-hidden="true">'
    return [(f"{opening}{sign}</svg>", words) for sign, words in signs]


def strip(judged: Judged) -> str:
    """The picture of a gate; empty where the number is undefined or has no limits."""
    places = strip_places(judged)
    return "" if places is None else places.svg(picture_words(judged))


def strip_places(judged: Judged) -> Strip | None:
    """Where everything in the picture of a gate lies."""
    if judged.value is None or judged.rule is None:
        return None
    first, last, logarithmic = _axis(judged.value, judged, judged.rule)

    def place(value: float) -> float:
        inside = min(max(value, first), last)
        if logarithmic:
            share = math.log(inside / first) / math.log(last / first)
        else:
            share = (inside - first) / (last - first)
        return round(WIDTH * share, 1)

    stretches = _stretches(judged.rule)
    zones = []
    for word, (low, high) in stretches.items():
        start, end = place(low), place(high)
        if end > start:
            zones.append((word, start, round(end - start, 1), word if end - start > _LABEL else ""))
    ticks: list[tuple[float, str]] = []
    for each in sorted({end for stretch in stretches.values() for end in stretch}):
        if first < each < last:
            crowded = bool(ticks) and place(each) - ticks[-1][0] < _CROWDED
            ticks.append((place(each), "" if crowded else _short(each)))
    ends = [
        (place(value), _short(value), side)
        for value, side in ((first, "first"), (last, "last"))
        if all(abs(place(value) - tick) > _LABEL for tick, _ in ticks)
    ]
    published = None if judged.published_value is None else place(judged.published_value)
    at, interval = place(judged.value), judged.interval
    return Strip(
        value=at,
        low=None if interval is None else place(interval.low),
        high=None if interval is None else place(interval.high),
        published=published if published is not None and abs(published - at) > 1 else None,
        cut_low=interval is not None and interval.low < first,
        cut_high=interval is not None and interval.high > last,
        zones=tuple(zones),
        ticks=tuple(ticks),
        ends=tuple(ends),
    )


def _stretches(rule: Rule) -> dict[str, Stretch]:
    """Where the verdict would be a pass, and where a fail."""
    sides = (("pass", rule.pass_at, rule.higher), ("fail", rule.fails_beyond, not rule.higher))
    return {
        word: (limit, math.inf) if above else (-math.inf, limit)
        for word, limit, above in sides
        if limit is not None
    }


def _axis(value: float, judged: Judged, rule: Rule) -> tuple[float, float, bool]:
    """Ends of the axis of a strip, and whether it is logarithmic.

    All that is drawn fits, unless an end of the interval lies several times further from the limit than the
    number does: that end is cut.
    """
    interval, centre = judged.interval, rule.pass_at
    reach = _REACH * max(abs(value - centre), judged.unit)
    ends = [] if interval is None else [interval.low, interval.high]
    ends += [] if judged.published_value is None else [judged.published_value]
    spread = [*rule.limits, value, *(min(max(each, centre - reach), centre + reach) for each in ends)]
    if judged.ratio and min(spread) > 0 and max(spread) > 6 * min(spread):
        return min(spread) / 1.4, max(spread) * 1.4, True
    low, high = min(spread), max(spread)
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
    text = f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"
    return text.replace("-", "\N{MINUS SIGN}")
