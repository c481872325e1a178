"""A value on a short axis of its own, against the limit of its verdict: a picture for one cell of a table."""

from collections.abc import Mapping
from typing import Any


WIDTH = 120.0  # of the axis, in units of the picture


def strip(measurement: Mapping[str, Any]) -> str:
    """A measurement against its threshold; empty where the value is undefined.

    The tinted stretch is where the verdict would be a pass.
    """
    value, direction = measurement.get("value"), measurement.get("direction")
    if value is None:
        return ""
    threshold = ((measurement.get("verdict") or {}).get("thresholds") or {}).get("pass")
    interval = measurement.get("interval") or {}
    low, high = interval.get("low"), interval.get("high")
    random = ((measurement.get("baseline") or {}).get("random") or {}).get("value")
    shown = [number for number in (value, low, high, threshold, random) if number is not None]
    first, last = min(0.0, *shown), max(1.0 if direction == "target" else 0.0, *shown)
    room = (last - first) * 0.06 or 1.0
    first, last = (first - room if first < 0 else first), last + room

    def place(number: float) -> float:
        return float(round(WIDTH * (number - first) / (last - first), 1))

    label = f"axis from {first:.3g} to {last:.3g}"
    parts = [f'<line class="axis" x1="0" x2="{WIDTH:.0f}" y1="9" y2="9"/>']
    if threshold is not None:
        at, label = place(threshold), f"{label}, threshold {threshold:g}"
        start, width = (0.0, at) if direction == "lower" else (at, WIDTH - at)
        if direction in ("higher", "target", "lower"):
            parts.insert(0, f'<rect class="good" x="{start}" y="3" width="{max(width, 0):.1f}" height="12"/>')
        parts.append(f'<line class="threshold" x1="{at}" x2="{at}" y1="2" y2="16"/>')
    if low is not None and high is not None:
        parts.append(f'<line class="range" x1="{place(low)}" x2="{place(high)}" y1="9" y2="9"/>')
    if random is not None:
        parts.append(f'<rect class="random" x="{place(random) - 2.5:.1f}" y="6.5" width="5" height="5"/>')
    parts.append(f'<circle cx="{place(value)}" cy="9" r="3.4"/>')
    opening = f'<svg class="strip" viewBox="-3 0 126 18" role="img" aria-label="{label}">'
    return "\n".join([opening, *parts, "</svg>"])
