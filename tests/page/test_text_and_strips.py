"""Numbers for reading, values on a short axis, and pictures as SVG."""

import math
import re
import subprocess
import sys
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from assay.page import draw
from assay.page.matrix import Matrix, plot_matrix
from assay.page.strip import WIDTH, strip
from assay.page.text import estimate, interval, number, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.923, "0.92"),
        (-0.5, "\N{MINUS SIGN}0.50"),
        (0.0034, "0.0034"),
        (3.2e-7, "3.2e\N{MINUS SIGN}07"),
        (1893, "1,893"),
        (12345.6, "12,346"),
        (0.0, "0.00"),
        (None, "n/a"),
        (math.inf, "n/a"),
    ],
)
def test_numbers_read_well(value: float | int | None, text: str) -> None:
    assert number(value) == text


def test_shares_are_percentages() -> None:
    shares = {0.0787: "7.9", 1.0: "100", 0.5: "50", 0.0004: "0.04", 0.9999: "100", 0.125: "12.5", 0.0: "0"}
    shown = [f"{text}\N{NARROW NO-BREAK SPACE}%" for text in shares.values()]
    assert [percent(share) for share in shares] == shown
    assert percent(None) == percent(math.nan) == "n/a"


@pytest.mark.parametrize(
    ("value", "low", "high", "shown"),
    [
        (-0.3, -0.69, 0.01, ("−0.30", "[−0.69, 0.01]")),
        (0.102, 0.101, 0.103, ("0.102", "[0.101, 0.103]")),
        (0.0004, -0.001, 0.002, ("0.000", "[−0.001, 0.002]")),
        (1200.4, 998.2, 1500.0, ("1,200", "[998, 1,500]")),
        (0.0, -0.0, 3e-4, ("0.0000", "[0.0000, 0.0003]")),
        (2e-7, 1e-7, 3e-7, ("2.0e−07", "[1.0e−07, 3.0e−07]")),
        (0.123, None, None, ("0.12", "")),
        (None, 0.1, 0.2, ("n/a", "[0.10, 0.20]")),
    ],
)
def test_a_number_and_its_interval_have_equal_decimals(
    value: float | None, low: float | None, high: float | None, shown: tuple[str, str]
) -> None:
    assert estimate(value, low, high) == shown
    assert interval(math.nan, high) == ""


def drawn(**facts: Any) -> str:
    measurement = {"value": 0.9, "direction": "higher", "verdict": {"thresholds": {"pass": 0.8}}, **facts}
    return strip(measurement)


def place(svg: str, pattern: str) -> float:
    match = re.search(pattern, svg)
    assert match is not None, svg
    return float(match[1])


def test_the_value_stands_between_its_ends_and_the_tint_where_the_verdict_would_be_a_pass() -> None:
    svg = drawn(interval={"low": 0.85, "high": 0.95}, baseline={"random": {"value": 0.1}})
    random = place(svg, r'class="random" x="([-\d.]+)"') + 2.5
    threshold = place(svg, r'class="threshold" x1="([\d.]+)"')
    low = place(svg, r'class="range" x1="([\d.]+)"')
    high = place(svg, r'class="range" x1="[\d.]+" x2="([\d.]+)"')
    assert random < threshold < low < place(svg, r'circle cx="([\d.]+)"') < high
    assert place(svg, r'class="good" x="([\d.]+)"') == threshold
    width = place(svg, r'class="good" x="[\d.]+" y="3" width="([\d.]+)"')
    assert width == pytest.approx(WIDTH - threshold, abs=0.1)
    assert "threshold 0.8" in svg
    svg = drawn(direction="lower")
    threshold = place(svg, r'class="threshold" x1="([\d.]+)"')
    assert place(svg, r'class="good" x="0.0" y="3" width="([\d.]+)"') == threshold
    assert "good" not in drawn(direction="report", verdict={})
    assert strip({"value": None}) == ""


@pytest.mark.parametrize("value", [-2.0, 0.0, 1e-9, 4000.0])
def test_every_place_is_on_the_axis(value: float) -> None:
    svg = drawn(value=value, interval={"low": value - 1, "high": value + 1}, direction="target")
    places = [float(x) for x in re.findall(r'(?:x1|x2|cx)="([-\d.]+)"', svg)]
    assert places
    assert all(0 <= x <= WIDTH for x in places)


def matrix(n_rows: int, n_columns: int) -> Matrix:
    values = np.random.default_rng(0).normal(size=(n_rows, n_columns))
    rows, columns = (tuple(f"layer {each}" for each in range(n)) for n in values.shape)
    return Matrix(rows=rows, columns=columns, values=values, row_title="writes", column_title="reads")


def test_svg_is_trimmed_themed_and_repeatable() -> None:
    before = dict(mpl.rcParams)
    label = 'a "quoted" <label>'
    svg, again = (draw.to_svg(plot_matrix(matrix(4, 4)), key="one", label=label) for _ in range(2))
    assert dict(mpl.rcParams) == before
    assert svg == again
    assert svg.startswith("<svg")
    assert svg.endswith("</svg>")
    assert 'aria-label="a &quot;quoted&quot; &lt;label&gt;"' in svg
    assert "metadata" not in svg
    assert "xlink" not in svg
    assert "var(--supports)" in svg
    assert not re.search("|".join((draw.INK, draw.SUPPORTS, draw.MUTED)), svg)
    assert all(name.startswith("one-") for name in re.findall(r' id="([^"]+)"', svg))
    assert "writes" in svg, "text stays text"
    large = draw.to_svg(plot_matrix(matrix(30, 20)), label="", key="k")
    assert len(large) < 60 * 600 * 2
    assert len(re.findall(r"M\S+ \S+H\S+V\S+H\S+z", large)) >= 1.9 * 600, "an ink of one cell is a box alone"


@pytest.mark.slow
def test_pages_leave_pyplot_alone() -> None:
    code = "import assay.page.html, assay.pipeline.audit_page, sys; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
