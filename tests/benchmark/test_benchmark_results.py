"""Pictures and tables of a benchmark, edges against planted truth by hand, and who competes."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from assay.analyses.benchmark import BenchmarkRow, Bounded, DiscoveryBenchmark, Ranked, choose_entries, detect
from assay.analyses.benchmark import page as tables
from assay.analyses.benchmark.results import Difference
from assay.app.options import parse_options
from assay.circuits import EdgeScores
from assay.core.errors import InputError, UnknownNameError
from assay.graph import build_graph
from assay.page.draw import place_labels


GRAPH = build_graph(1, 1)
NAMES = [GRAPH.edge_name(row, column) for row, column in GRAPH.valid.nonzero().tolist()]


def ranked(cpr: float, cmd: float) -> Ranked:
    ends = Bounded(value=cpr, low=cpr - 0.02, high=cpr + 0.02), Bounded(value=cmd, low=cmd, high=cmd)
    return Ranked(cpr=ends[0], cmd=ends[1], faithfulness=(0.0, 1.0), kept_edges=(1, 8))


def row(name: str, cpr: float, seconds: float = 2.0, **facts: object) -> BenchmarkRow:
    known = {"signed": ranked(cpr, 0.3), "absolute": ranked(cpr / 2, 0.4), "seconds": seconds}
    return BenchmarkRow(name=name, method=name, **{"plain_seconds": 0.5, **known, **facts})


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
    points = [line.get_xydata()[0].tolist() for line in ax.lines if line.get_marker() == "o"]
    assert points == [[0.1, 0.2], [4.0, 0.7], [1800.0, 0.9]]  # by signed score; the cheapest at the edge
    intervals = [line.get_ydata() for line in ax.lines if line.get_linewidth() == 2.0]
    assert np.array(intervals).T[0] == pytest.approx((0.18, 0.68, 0.88))
    (level,) = (line for line in ax.lines if line.get_linestyle() == "--")
    assert set(level.get_ydata()) == {0.8}
    assert ax.get_title(loc="left") == "mini, ioi, n = 30"
    labels = {text.get_text() for text in ax.texts}
    assert labels == {"random", "eap", "ugs (updates=300)", "theirs (cost unknown)"}


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


def test_the_table_ranks_by_cpr_and_the_words_say_what_it_leaves_out(benchmark: DiscoveryBenchmark) -> None:
    rows = tables.quality_table(benchmark).texts()
    assert [each[0] for each in rows] == ["ugs (updates=300)", "theirs", "eap", "random"]
    quality = ["0.700 [0.680, 0.720]", "0.400 [0.400, 0.400]", "0.350", "0.300"]
    assert list(rows[2][1:]) == [*quality, "4.0", "2.0", "3.0"]
    assert tuple(rows[1][-3:]) == ("n/a", "n/a", "n/a")
    missing = ["acdc did not compete: no images here", "eap: mind the gap", "ugs: not converged"]
    assert tables.notes(benchmark) == missing
    assert "30 other examples" in tables.heading(benchmark)
    gaps = {"eap": (0.1, 0.3), "theirs": (-0.1, 0.2), "random": (0.6, 0.8)}
    paired = tuple(
        Difference(first="ugs", second=name, cpr=Bounded(value=0.1, low=low, high=high))
        for name, (low, high) in gaps.items()
    )
    told = "ugs has the highest CPR, above 2 other methods by a paired 95 % interval; "
    assert tables.finding(replace(benchmark, differences=paired)) == f"{told}theirs cannot be told from it."


def test_what_the_highest_cpr_owes_to_overshoot_is_said(benchmark: DiscoveryBenchmark) -> None:
    def bounded(value: float) -> Bounded:
        return Bounded(value=value, low=value, high=value)

    def clipped(name: str, cpr: float, overshoot: float) -> BenchmarkRow:
        areas = {"clipped_cpr": bounded(cpr - overshoot), "overshoot": bounded(overshoot)}
        both = replace(ranked(cpr, 0.3), clipped_cmd=bounded(0.1), **areas)
        return row(name, cpr, signed=both, absolute=both)

    found = replace(benchmark, rows=(clipped("eap", 1.3, 0.4), clipped("relp", 1.0, 0.0)))
    assert tables.quality_table(found).texts()[0][3:6] == ["0.900", "0.100", "0.400"]
    end = "0.40 of it is overshoot, faithfulness above 1, which CMD counts as bad; by clipped CPR relp leads."
    assert tables.finding(found).endswith(end)
    assert found.to_frame().overshoot_signed.tolist() == [0.4, 0.0]


def scores_of(values: list[float] | list[int]) -> EdgeScores:
    table = torch.zeros(GRAPH.n_sources, GRAPH.n_targets)
    table[GRAPH.valid] = torch.tensor(values, dtype=table.dtype)
    return EdgeScores(GRAPH, table)


def test_a_true_edge_between_two_others_is_scored_as_by_hand() -> None:
    # |score|: 4 is true, 3 is not, then the tie of a true and another edge at 2; the rest is 0.
    found = detect(scores_of([-4, 3, 2, -2, 0, 0, 0, 0]), [NAMES[0], NAMES[2]])
    # 12 pairs: the first true edge wins 6; the second loses to 3, ties with -2, wins 4.
    assert found.auroc == pytest.approx((6 + 4 + 0.5) / 12)
    assert found.average_precision == pytest.approx((1 + 2 / 4) / 2)  # a tie shares its threshold
    # Signed: -4 is below everything (0 of 6), 2 loses to 3 alone. Among the two best one is true.
    assert found.auroc_signed == pytest.approx((0 + 5) / 12)
    assert (found.recall, found.recall_signed) == (0.5, 0.5)
    with pytest.raises(UnknownNameError, match="a3"):
        detect(scores_of([0.0] * 8), ["input->a3.h0.q"])


@given(values=st.lists(st.integers(-3, 3), min_size=8, max_size=8), members=st.integers(1, 254))
def test_auroc_is_the_share_of_pairs_that_are_in_order(values: list[int], members: int) -> None:
    true = np.array([bool(members >> place & 1) for place in range(8)])
    found = detect(scores_of(values), [name for name, kept in zip(NAMES, true, strict=True) if kept])
    for value, ranking in ((found.auroc, np.abs(values)), (found.auroc_signed, np.array(values))):
        pairs = itertools.product(ranking[true], ranking[~true])
        assert value == pytest.approx(np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs]))


def test_competitors_are_checked_by_name_and_option() -> None:
    entries = choose_entries(["eap-ig-inputs", "eap-ig-inputs@ten"], {"eap-ig-inputs@ten": {"steps": 10}})
    assert [(entry.name, entry.key, dict(entry.options)) for entry in entries] == [
        ("eap-ig-inputs", "eap-ig-inputs", {}),
        ("eap-ig-inputs@ten", "eap-ig-inputs", {"steps": 10}),
    ]
    assert choose_entries(None, {"random@two": {}})[-1].name == "random@two"
    for methods, options, error, match in (
        ([], {}, InputError, "methods is empty"),
        (["eap", "eap"], {}, InputError, "named twice"),
        (["eap"], {"exact": {"steps": 3}}, UnknownNameError, "among those judged 'exact'"),
        (["ugs"], {"ugs": {"temperature": 3}}, UnknownNameError, "unknown ugs option 'temperature'"),
        (["eap"], {"eap": {"temperature": 3}}, UnknownNameError, "unknown eap option 'temperature'"),
    ):
        with pytest.raises(error, match=match):
            choose_entries(methods, options)


def test_options_are_read_as_json_or_text() -> None:
    found = parse_options(["ugs.updates=300", "ugs@warm.warm-start=eap", "x.y=True", "x.z=null", "x.w=false"])
    x = {"y": True, "z": None, "w": False}
    assert found == {"ugs": {"updates": 300}, "ugs@warm": {"warm_start": "eap"}, "x": x}
    for text in ("ugs", "ugs=3", ".updates=3", "ugs.=3"):
        with pytest.raises(InputError, match="not of the form"):
            parse_options([text])
