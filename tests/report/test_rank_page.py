"""The page of a ranking and of several: numbers of the document, nothing from elsewhere."""

import copy
import functools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted_zoo import SETTINGS, planted

from assay.analyses.generalization import page, rank_plots, rank_words
from assay.analyses.generalization.comparison import compare_rankings
from assay.analyses.generalization.predictors import ORDER
from assay.analyses.generalization.ranking import rank_inspections
from assay.analyses.generalization.ranking_table import Ranking
from assay.page.text import plain_text
from assay.report import save_report


QUALITIES = (0.1, 0.5, 0.9, 0.3, 0.7)


@functools.cache
def ranked(*, labelled: bool = True, seed: int = 0) -> Ranking:
    shown = {f"q<{q:g}>": planted(q, seed=seed, labelled=labelled) for q in QUALITIES}
    metrics = [key for key in ORDER if key != "cot"]
    known = {f"q<{q:g}>": planted(q, n=80, seed=seed + 5) for q in QUALITIES}
    return rank_inspections(shown, known, metrics=metrics, settings=SETTINGS)


@functools.cache
def document(*, labelled: bool = True) -> dict[str, Any]:
    return ranked(labelled=labelled).to_dict()


def test_the_result_itself_can_be_given(tmp_path: Path) -> None:
    one = save_report(tmp_path / "one.html", ranked()).read_text()
    assert one == save_report(tmp_path / "two.html", document()).read_text()


def test_rows_are_in_the_order_of_the_leading_metric() -> None:
    table = page.ranking_page(document()).sections[0].blocks[0]
    assert [row[0] for row in table.rows] == ["q<0.9>", "q<0.7>", "q<0.5>", "q<0.3>", "q<0.1>"]
    assert table.columns[1].name == "accuracy"
    assert (table.columns[2].name, table.columns[2].arrow) == ("DDB output", "\N{UPWARDS ARROW}")
    assert plain_text(table.rows[0][2].text).endswith(" #1")
    assert plain_text(table.rows[1][2].text).endswith(" #2")


def test_arrows_follow_the_direction_of_a_metric() -> None:
    arrows = {metric["key"]: rank_words.arrow(metric) for metric in document()["metrics"]}
    assert arrows["sharpness"] == "\N{DOWNWARDS ARROW}"
    assert arrows["alpha-req"] == "\N{RIGHTWARDS ARROW}1"
    assert arrows["energy"] == ""


def test_the_verdict_names_the_pick_and_what_is_better_if_anything() -> None:
    best = rank_words.verdict(document())
    assert best.startswith("DDB output picks q<0.9>, the best by it in 100")
    assert "It has the highest accuracy" in best
    worse = copy.deepcopy(document())
    worse["performance"][0]["value"] = 0.999
    text = rank_words.verdict(worse)
    assert "the highest is 1.00, of q<0.1>" in text


def test_without_labels_the_page_says_what_is_not_known(tmp_path: Path) -> None:
    text = save_report(tmp_path / "page.html", document(labelled=False)).read_text()
    assert "the cost of picking by a metric is not known here" in text
    assert "expected regret</th>" not in text
    assert "Each metric against true" not in text
    assert "No motif: a motif needs the performance of the models" in text


@pytest.mark.slow
def test_a_comparison_is_followed_by_its_rankings(tmp_path: Path) -> None:
    both = compare_rankings({"planted": [ranked(), ranked(seed=1)]})
    text = save_report(tmp_path / "page.html", both).read_text()
    assert "Metrics over 2 targets" in text
    assert text.count("Which of 5 models to deploy on target") == 4  # headings, and the title of the page
    assert len(set(re.findall(r'<article class="page rank" id="([^"]+)"', text))) == 3
    assert "Universal motif" in text


# ------------------------------------------------------------------------------------------- pictures


def test_the_motif_picture_leaves_out_what_no_edge_joins() -> None:
    matrix = rank_plots.layer_matrix(
        [[0.0, 1.0, 2.0], [None, 0.0, -3.0], [0.0, 0.0, 0.0]], ["input", "block 0", "logits"]
    )
    assert matrix.rows == ("input", "block 0")
    assert matrix.columns == ("block 0", "logits")
    np.testing.assert_array_equal(matrix.values, [[1, 2], [math.nan, -3]])
    heads_to_mlp = rank_plots.layer_matrix(
        [[0.0, 1.0, 2.0], [0.0, 4.0, -3.0], [0.0, 0.0, 0.0]], ["input", "block 0", "logits"]
    )
    assert heads_to_mlp.values[1, 0] == 4


def test_the_forest_has_a_panel_for_performance_where_it_is_known() -> None:
    first, second = rank_plots.plot_forest(document()).get_figure().axes
    assert [first.get_xlabel(), second.get_xlabel()] == ["DDB output", "accuracy"]
    assert first.get_yticklabels()[0].get_text() == "q<0.9>"
    (dots,) = [line for line in first.get_lines() if line.get_marker() == "o"]
    assert dots.get_xdata()[0] == max(dots.get_xdata())
    assert len(rank_plots.plot_forest(document(labelled=False)).get_figure().axes) == 1


def test_the_scatter_has_a_panel_per_metric() -> None:
    figure = rank_plots.plot_scatter(document()).get_figure()
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_title("left") for ax in shown] == [metric["name"] for metric in document()["metrics"]]
    (dots,) = [line for line in shown[0].get_lines() if line.get_marker() == "o"]
    assert dots.get_ydata() == pytest.approx([row["value"] for row in document()["performance"]])
    assert shown[0].get_xlabel() == "rank correlation 1.00"


def test_costs_are_drawn_from_the_most_expensive_stage() -> None:
    costs = {
        "inspect": {"seconds": 1.0, "passes": {"forward": 1}},
        "edge-scores": {"seconds": 9.0, "passes": {"forward": 7.0, "backward": 5.0}},
    }
    ax = rank_plots.plot_cost(costs)
    assert [bar.get_width() for bar in ax.patches] == [9.0, 1.0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["all edges", "logits and features"]
    assert ax.texts[0].get_text() == "9 s; per image 7 forward, 5 backward"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0004, "0.00"), (-0.0004, "0.00"), (-0.5, "\N{MINUS SIGN}0.50"), (None, "")]
)
def test_fixed_decimals_have_no_minus_before_zero(value: float | None, text: str) -> None:
    assert rank_words.fixed(value, 2) == text
