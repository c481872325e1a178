"""A value on its short axis: what is drawn where."""

import re
from typing import Any

import pytest

from assay.page.strip import WIDTH, strip


def drawn(**facts: Any) -> str:
    measurement = {"value": 0.9, "direction": "higher", "verdict": {"thresholds": {"pass": 0.8}}, **facts}
    picture = strip(measurement)
    assert picture is not None
    return picture.svg


def place(svg: str, pattern: str) -> float:
    match = re.search(pattern, svg)
    assert match is not None, svg
    return float(match[1])


def test_the_value_stands_between_the_ends_of_its_interval_and_right_of_its_threshold() -> None:
    svg = drawn(interval={"low": 0.85, "high": 0.95}, baseline={"random": {"value": 0.1}})
    random = place(svg, r'class="random" x="([-\d.]+)"') + 2.5
    threshold = place(svg, r'class="threshold" x1="([\d.]+)"')
    low, high = (
        place(svg, r'class="range" x1="([\d.]+)"'),
        place(svg, r'class="range" x1="[\d.]+" x2="([\d.]+)"'),
    )
    value = place(svg, r'circle cx="([\d.]+)"')
    assert random < threshold < low < value < high
    good = place(svg, r'class="good" x="([\d.]+)"')
    assert (good, place(svg, r'class="good" x="[\d.]+" y="3" width="([\d.]+)"')) == (
        threshold,
        pytest.approx(WIDTH - threshold, abs=0.1),
    )
    assert "threshold 0.8" in svg


def test_the_tint_is_where_the_verdict_would_be_a_pass() -> None:
    svg = drawn(direction="lower")
    assert place(svg, r'class="good" x="([\d.]+)"') == 0
    threshold = place(svg, r'class="threshold" x1="([\d.]+)"')
    assert place(svg, r'class="good" x="0.0" y="3" width="([\d.]+)"') == threshold
    assert "good" not in drawn(direction="report", verdict={})


def test_no_value_no_strip() -> None:
    assert strip({"value": None}) is None


@pytest.mark.parametrize("value", [-2.0, 0.0, 1e-9, 4000.0])
def test_every_place_is_on_the_axis(value: float) -> None:
    svg = drawn(value=value, interval={"low": value - 1, "high": value + 1}, direction="target")
    places = [float(x) for x in re.findall(r'(?:x1|x2|cx)="([-\d.]+)"', svg)]
    assert places
    assert all(0 <= x <= WIDTH for x in places)
