"""Pictures and tables of a benchmark: what is drawn, labels that keep clear of each other, words of cells."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from assay.analyses.benchmark import BenchmarkRow, Bounded, DiscoveryBenchmark, Ranked
from assay.analyses.benchmark import page as tables
from assay.analyses.benchmark.results import Difference
from assay.page.draw import place_labels


def ranked(cpr: float, cmd: float) -> Ranked:
    return Ranked(
        cpr=Bounded(value=cpr, low=cpr - 0.02, high=cpr + 0.02),
        cmd=Bounded(value=cmd, low=cmd, high=cmd),
        faithfulness=(0.0, 1.0),
        kept_edges=(1, 8),
    )


def row(name: str, cpr: float, seconds: float = 2.0, **facts: object) -> BenchmarkRow:
    known = {"signed": ranked(cpr, 0.3), "absolute": ranked(cpr / 2, 0.4), "seconds": seconds}
    return BenchmarkRow(name=name, method=name, **{"plain_seconds": 0.5, **known, **facts})  # type: ignore[arg-type]


@pytest.fixture
def benchmark() -> DiscoveryBenchmark:
    rows = (
        row("random", 0.2, 0.01),
        row("eap", 0.7, 2.0, peak_memory=3 * 2**20, warnings=("mind the gap",)),
        row("ugs", 0.9, 900.0, options={"updates": 300}, details={"converged": False}),
        row("theirs", 0.8, math.nan, plain_seconds=math.nan),
        BenchmarkRow(name="acdc", method="acdc", reason="no images here"),
    )
    return DiscoveryBenchmark(
        model={"id": "mini"},
        discovered_on={"name": "ioi", "n": 20},
        evaluated_on={"name": "ioi", "n": 30},
        settings={"evaluate": "held-out", "objective": "logit_diff", "ablation": "resample", "n_edges": 1519},
        rows=rows,
    )


def test_points_have_a_cost_and_levels_do_not(benchmark: DiscoveryBenchmark) -> None:
    ax = benchmark.plot()
    points = [line.get_xydata()[0].tolist() for line in ax.lines if line.get_marker() == "o"]  # type: ignore[index]
    assert points == [[0.1, 0.2], [4.0, 0.7], [1800.0, 0.9]]  # by signed score; the cheapest at the edge
    intervals = [line.get_ydata() for line in ax.lines if line.get_linewidth() == 2.0]
    assert np.array(intervals).T[0] == pytest.approx((0.18, 0.68, 0.88))
    (level,) = (line for line in ax.lines if line.get_linestyle() == "--")
    assert set(level.get_ydata()) == {0.8}
    assert ax.get_title(loc="left") == "mini, ioi, n = 30"
    assert {text.get_text() for text in ax.texts} == {
        "random",
        "eap",
        "ugs (updates=300)",
        "theirs (cost unknown)",
    }


def overlap(first: Bbox, second: Bbox) -> float:
    common = Bbox.intersection(first, second)
    return 0.0 if common is None else float(common.width * common.height)


def test_labels_of_crowded_points_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    x, y = 10 ** rng.uniform(0.6, 1.4, 12), rng.uniform(0.85, 1.0, 12)
    ax = Figure(figsize=(7.2, 4.6), layout="constrained").subplots()
    ax.set_xscale("log")
    ax.set_xlim(0.1, 1000)
    ax.set_ylim(-0.1, 1.1)
    names = [f"method-{place}" for place in range(12)]
    place_labels(ax, names, x, y, low=y - 0.01, high=y + 0.01)
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    renderer = FigureCanvasAgg(figure).get_renderer()
    frame = ax.get_window_extent(renderer)
    drawn = [Text.get_window_extent(text, renderer) for text in ax.texts]  # without their lines
    assert max(overlap(*pair) for pair in itertools.combinations(drawn, 2)) < 1
    for box in drawn:
        assert overlap(box, frame) == pytest.approx(box.width * box.height, rel=0.02)
    points = ax.transData.transform(np.column_stack([x, y]))
    assert not any(box.contains(*point) for box in drawn for point in points)


def test_the_quality_table_ranks_by_cpr_and_leaves_out_who_did_not_serve(
    benchmark: DiscoveryBenchmark,
) -> None:
    table = tables.quality_table(benchmark)
    assert [each[0] for each in table.texts()] == ["ugs (updates=300)", "theirs", "eap", "random"]
    assert tuple(table.texts()[2][1:]) == (
        "0.700 [0.680, 0.720]",
        "0.400 [0.400, 0.400]",
        "0.350",
        "0.300",
        "4.0",
        "2.0",
        "3.0",
    )
    assert tuple(table.texts()[1][-3:]) == ("n/a", "n/a", "n/a")


def test_the_finding_names_the_best_and_whom_it_cannot_be_told_from(benchmark: DiscoveryBenchmark) -> None:
    gaps = {"eap": (0.1, 0.3), "theirs": (-0.1, 0.2), "random": (0.6, 0.8)}
    paired = tuple(
        Difference(first="ugs", second=name, cpr=Bounded(value=0.1, low=low, high=high))
        for name, (low, high) in gaps.items()
    )
    told = "ugs has the highest CPR, above 2 other methods by a paired 95 % interval; "
    assert tables.finding(replace(benchmark, differences=paired)) == f"{told}theirs cannot be told from it."


def test_notes_say_who_is_missing_and_what_did_not_converge(benchmark: DiscoveryBenchmark) -> None:
    assert tables.notes(benchmark) == [
        "acdc did not compete: no images here",
        "eap: mind the gap",
        "ugs: not converged",
    ]
    assert "30 other examples" in tables.heading(benchmark)
