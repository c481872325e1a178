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

from assay.analyses.generalization.comparison import compare_rankings
from assay.analyses.generalization.predictors import ORDER
from assay.analyses.generalization.ranking import rank_inspections
from assay.analyses.generalization.ranking_table import Ranking
from assay.core.errors import InputError
from assay.report import rank_figures, rank_page, save_report


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


def test_the_page_shows_every_model_and_metric_and_fetches_nothing(tmp_path: Path) -> None:
    text = save_report(tmp_path / "page.html", document()).read_text()
    assert "Which of 5 models to deploy on target" in text
    assert "q&lt;0.9&gt;" in text
    assert "q<0.9>" not in text
    for metric in document()["metrics"]:
        assert metric["name"] in text
    assert not re.search(r'(src|href)="https?:', text)
    assert text.count('role="img"') == 6  # forest, scatter, motif, two matrices, cost


def test_the_result_itself_can_be_given(tmp_path: Path) -> None:
    one = save_report(tmp_path / "one.html", ranked()).read_text()
    assert one == save_report(tmp_path / "two.html", document()).read_text()


def test_rows_are_in_the_order_of_the_leading_metric() -> None:
    table = rank_page.table(document())
    assert [row["name"] for row in table["rows"]] == ["q<0.9>", "q<0.7>", "q<0.5>", "q<0.3>", "q<0.1>"]
    assert table["columns"][0]["name"] == "accuracy"
    assert table["columns"][1] == {"name": "DDB output", "arrow": "\N{UPWARDS ARROW}"}
    assert table["rows"][0]["cells"][1]["rank"] == "1"


def test_arrows_follow_the_direction_of_a_metric() -> None:
    arrows = {metric["key"]: rank_page.arrow(metric) for metric in document()["metrics"]}
    assert arrows["sharpness"] == "\N{DOWNWARDS ARROW}"
    assert arrows["alpha-req"] == "\N{RIGHTWARDS ARROW}1"
    assert arrows["energy"] == ""


def test_the_verdict_names_the_pick_and_what_is_better_if_anything() -> None:
    best = rank_page.ranking_views(document(), "r")[0]["verdict"]
    assert best.startswith("DDB output picks q<0.9>, the best by it in 100")
    assert "It has the highest accuracy" in best
    worse = copy.deepcopy(document())
    worse["performance"][0]["value"] = 0.999
    text = rank_page.ranking_views(worse, "r")[0]["verdict"]
    assert "the highest is 1.00, of q<0.1>" in text


def test_many_tied_picks_are_counted_and_not_listed() -> None:
    tied = copy.deepcopy(document())
    for row in tied["metrics"][0]["rows"]:
        row["rank"] = 1.0
    assert rank_page.worth(tied)[0]["pick"] == "q<0.1> and 4 others that tie"
    assert "picks q<0.1> and 4 others that tie." in rank_page.ranking_views(tied, "r")[0]["verdict"]


def test_without_labels_the_page_says_what_is_not_known(tmp_path: Path) -> None:
    text = save_report(tmp_path / "page.html", document(labelled=False)).read_text()
    assert "what picking by a metric costs here is not known" in text
    assert "expected regret</th>" not in text
    assert "No motif: a motif needs the performance of the models" in text


def test_regret_elsewhere_is_shown_where_it_is_known(tmp_path: Path) -> None:
    shown = {f"q{q:g}": planted(q, labelled=False) for q in QUALITIES}
    found = rank_inspections(shown, settings=SETTINGS, elsewhere=[ranked()])
    text = save_report(tmp_path / "page.html", found).read_text()
    assert "regret elsewhere</th>" in text
    assert "only what it cost on other domains" in text
    assert "absent: needs labelled images" in text


def test_few_models_and_images_are_cautioned_about() -> None:
    notes = rank_page.caveats(document())
    assert any(note.startswith("5 models: correlations") for note in notes)
    assert any(note.startswith("60 images:") for note in notes)


def test_a_comparison_is_followed_by_its_rankings(tmp_path: Path) -> None:
    both = compare_rankings({"planted": [ranked(), ranked(seed=1)]})
    text = save_report(tmp_path / "page.html", both).read_text()
    assert "Metrics over 2 targets" in text
    assert text.count("Which of 5 models to deploy on target") == 4  # headings, and the title of the page
    assert len(set(re.findall(r'<article class="page rank" id="([^"]+)"', text))) == 3
    assert "Universal motif" in text


def test_a_comparison_without_labels_has_nothing_to_compare(tmp_path: Path) -> None:
    both = compare_rankings([ranked(labelled=False)])
    text = save_report(tmp_path / "page.html", both).read_text()
    assert "No target has labels" in text
    assert "No universal motif" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [({"schema": "assay-ranking/9"}, "schema 'assay-ranking/9'"), ({"metrics": None}, "lacks metrics")],
)
def test_documents_that_cannot_be_read_are_refused(tmp_path: Path, change: dict, message: str) -> None:
    broken = {**document(), **change}
    broken = {key: value for key, value in broken.items() if value is not None or key == "performance"}
    with pytest.raises(InputError, match=message):
        save_report(tmp_path / "page.html", broken)
    assert not (tmp_path / "page.html").exists()


# ------------------------------------------------------------------------------------------- pictures


def test_the_motif_picture_leaves_out_what_no_edge_joins() -> None:
    data = rank_figures.motif_data(
        [[0.0, 1.0, 2.0], [0.0, 0.0, -3.0], [0.0, 0.0, 0.0]], ["input", "block 0", "logits"]
    )
    assert data.rows == ("input", "block 0")
    assert data.columns == ("block 0", "logits")
    np.testing.assert_array_equal(data.values, [[1, 2], [math.nan, -3]])
    heads_to_mlp = rank_figures.motif_data(
        [[0.0, 1.0, 2.0], [0.0, 4.0, -3.0], [0.0, 0.0, 0.0]], ["input", "block 0", "logits"]
    )
    assert heads_to_mlp.values[1, 0] == 4
    ax = rank_figures.plot_motif(data)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["input", "0"]


def test_the_forest_has_a_panel_for_performance_where_it_is_known() -> None:
    panels = rank_figures.forest_data(document())
    assert [panel.title for panel in panels] == ["DDB output", "accuracy"]
    assert panels[0].names[0] == "q<0.9>"
    assert panels[0].values[0] == max(panels[0].values)
    assert len(rank_figures.forest_data(document(labelled=False))) == 1
    assert len(rank_figures.plot_forest(panels).get_figure().axes) == 2


def test_the_scatter_has_a_panel_per_metric_and_none_without_labels() -> None:
    panels = rank_figures.scatter_data(document())
    assert [panel.name for panel in panels] == [metric["name"] for metric in document()["metrics"]]
    assert panels[0].y == pytest.approx([row["value"] for row in document()["performance"]])
    assert panels[0].label == "rank correlation 1.00"
    assert rank_figures.scatter_data(document(labelled=False)) == []
    shown = [ax for ax in rank_figures.plot_scatter(panels).get_figure().axes if ax.get_visible()]
    assert len(shown) == len(panels)


def test_costs_are_drawn_from_the_most_expensive_stage() -> None:
    costs = {
        "inspect": {"seconds": 1.0, "passes": {"forward": 1}},
        "edge-scores": {"seconds": 9.0, "passes": {"forward": 7.0, "backward": 5.0}},
    }
    data = rank_figures.cost_data(costs)
    assert data.stages == ("all edges", "logits and features")
    assert data.passes[0] == "7 forward, 5 backward"
    ax = rank_figures.plot_cost(data)
    assert [bar.get_width() for bar in ax.patches] == [9.0, 1.0]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0004, "0.00"), (-0.0004, "0.00"), (-0.5, "\N{MINUS SIGN}0.50"), (None, "")]
)
def test_fixed_decimals_have_no_minus_before_zero(value: float | None, text: str) -> None:
    assert rank_page.fixed(value, 2) == text
