"""A value on a short axis of its own, against the limit of its verdict: a picture for one cell of a table."""

import html
from collections.abc import Mapping
from typing import Any

from assay.page.blocks import Drawing


WIDTH = 120.0  # of the axis, in units of the picture


def strip(measurement: Mapping[str, Any]) -> Drawing | None:
    """A measurement against its threshold; None where the value is undefined.

    The tinted stretch is where the verdict would be a pass.
    """
    value = measurement.get("value")
    if value is None:
        return None
    threshold = ((measurement.get("verdict") or {}).get("thresholds") or {}).get("pass")
    interval = measurement.get("interval") or {}
    low, high = interval.get("low"), interval.get("high")
    random = ((measurement.get("baseline") or {}).get("random") or {}).get("value")
    direction = measurement.get("direction")
    shown = [number for number in (value, low, high, threshold, random) if number is not None]
    first, last = min(0.0, *shown), max(1.0 if direction == "target" else 0.0, *shown)
    room = (last - first) * 0.06 or 1.0
    first, last = (first - room if first < 0 else first), last + room

    def place(number: float) -> float:
        return float(round(WIDTH * (number - first) / (last - first), 1))

    parts = []
    if threshold is not None and direction in ("higher", "target", "lower"):
        at = place(threshold)
        start, width = (0.0, at) if direction == "lower" else (at, WIDTH - at)
        parts.append(f'<rect class="good" x="{start}" y="3" width="{max(width, 0):.1f}" height="12"/>')
    parts.append(f'<line class="axis" x1="0" x2="{WIDTH:.0f}" y1="9" y2="9"/>')
    if threshold is not None:
        parts.append(upright("threshold", place(threshold)))
    if low is not None and high is not None:
        parts.append(f'<line class="range" x1="{place(low)}" x2="{place(high)}" y1="9" y2="9"/>')
    if random is not None:
        parts.append(f'<rect class="random" x="{place(random) - 2.5:.1f}" y="6.5" width="5" height="5"/>')
    parts.append(f'<circle cx="{place(value)}" cy="9" r="3.4"/>')
    label = f"axis from {first:.3g} to {last:.3g}"
    if threshold is not None:
        label += f", threshold {threshold:g}"
    return small_picture(parts, label)


def upright(style: str, x: float) -> str:
    """A line across the axis."""
    return f'<line class="{style}" x1="{x}" x2="{x}" y1="2" y2="16"/>'


def small_picture(parts: list[str], label: str = "") -> Drawing:
    """The parts as one element; without a label it is passed over when the page is read out."""
    spoken = f'role="img" aria-label="{html.escape(label)}"' if label else 'aria-hidden="true"'
    content = "\n".join(parts)
    return Drawing(svg=f'<svg class="strip" viewBox="-3 0 126 18" {spoken}>\n{content}\n</svg>')
