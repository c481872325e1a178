"""Numbers for reading, and pictures as SVG."""

import math
import re
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest

from assay.page import draw
from assay.page.draw import Matrix, plot_matrix
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
