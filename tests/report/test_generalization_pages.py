"""Pages of rankings, monitors and evaluations over domains."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from pages import document, evaluated, ranked

from assay.analyses.generalization import monitor_page, ranking_page
from assay.analyses.generalization.monitor_page import evaluation_page
from assay.core.errors import InputError
from assay.page.text import plain_text
from assay.report.save import render


Document = dict[str, Any]


def points(ax: Axes, marker: str) -> list[tuple[float, float]]:
    """Places of the marks of a kind."""

    def places() -> Iterator[tuple[float, float]]:
        for line in ax.lines:
            if line.get_marker() == marker:
                yield from ((float(x), float(y)) for x, y in line.get_xydata())

    return list(places())


# ---- rankings -----------------------------------------------------------------------------------


@pytest.fixture
def ranking() -> Document:
    made: Document = document("ranking")
    return made


def test_the_picture_is_in_the_order_of_the_leading_metric(ranking: Document) -> None:
    forest = ranking_page.plot_forest(ranking)
    assert (forest.get_xlabel(), forest.get_yticklabels()[0].get_text()) == ("DDB output", "q<0.9>")
    values = [x for x, _ in points(forest, "o")]
    assert values[0] == max(values)
    ranking["performance"][0]["value"] = 0.999
    assert "the highest is 1.00, of q<0.1>" in ranking_page.verdict(ranking)


def test_without_labels_the_page_says_what_is_not_known() -> None:
    text = render(ranked(labelled=False))
    assert "the cost of picking by a metric is not known" in text
    assert "expected regret</th>" not in text
    assert "No motif: a motif needs the performance of the models" in text


def test_the_motif_picture_leaves_out_what_no_edge_joins() -> None:
    matrix = ranking_page.layer_matrix([[0.0, 1.0, 2.0], [None, 0.0, -3.0], [0.0, 0.0, 0.0]])
    assert (matrix.rows, matrix.columns) == (("input", "block 0"), ("block 0", "logits"))
    np.testing.assert_array_equal(matrix.values, [[1, 2], [math.nan, -3]])
    heads_to_mlp = ranking_page.layer_matrix([[0.0, 1.0, 2.0], [0.0, 4.0, -3.0], [0.0, 0.0, 0.0]])
    assert heads_to_mlp.values[1, 0] == 4


# ---- monitors -----------------------------------------------------------------------------------


@pytest.fixture
def monitor() -> Document:
    made: Document = document("monitor")
    return made


def test_the_page_says_which_statistic_raised_the_alarm(monitor: Document) -> None:
    assert "Shift of the outputs, the largest distance" not in render(monitor)
    monitor["limits"]["output shift"] = 0.4
    monitor["calibration"]["output_shifts"] = [0.1, 0.2]
    for each in monitor["readings"]:
        each |= {"output_shift": 0.5, "output_p_value": 0.05, "decided_by": "output shift"}
        each |= {"value": 0.5, "limit": 0.4, "top_share": 0.95}
    why, *_ = monitor_page.alarm_reasons(monitor)
    assert why == "The output shift of batch 4 is 0.500; the limit of the conformal rule is 0.400."
    text = render(monitor)
    assert "Shift of the outputs, the largest distance" in text
    assert "gives one class to more than 90" in text
    ax = monitor_page.plot_shift(monitor, outputs=True)
    assert [y for x, y in points(ax, "o") if x < 0] == [0.1, 0.2]
    assert {y for _, y in points(ax, "D")} == {0.5}


def test_a_monitor_of_more_batches_than_its_pictures_show(monitor: Document) -> None:
    one = monitor["readings"][0]
    monitor["readings"] = [{**one, "index": place} for place in range(3_000)]
    assert "without the first 2500" in render(monitor)
    with pytest.raises(InputError, match="no reading yet"):
        render({**monitor, "readings": []})


def test_caveats_name_sizes_far_thresholds_and_files_left_out(monitor: Document) -> None:
    before = [*monitor_page.caveats(monitor)]
    monitor |= {"calibration": None, "rule": "threshold"}
    monitor["reference"]["task"]["n"] = 400
    monitor["threshold"] = {"value": 0.3, "domain": "fog-1", "performance": 0.9, "target": 0.5}
    monitor["readings"][1]["skipped"] = ["bad.png"]
    monitor["readings"][0]["baselines"] |= {"atc": 1.0, "rankme": 1.9}
    text = " ".join(map(plain_text, monitor_page.caveats(monitor)))
    for caveat in (
        "rests on batches of 400 images, the readings on 12",
        "The threshold is that of fog-1, performance 0.90: no calibration domain is closer",
        "1 unreadable image file was left out",
        "Features have collapsed (RankMe below 2) in 1 batch.",
        "ATC of 1 batch is 0 or 1, which is not an estimate.",
    ):
        assert caveat in text
        assert caveat not in " ".join(map(plain_text, before))
    assert "unreadable" in render(monitor)


# ---- evaluations over domains -------------------------------------------------------------------


def test_what_is_undefined_is_left_out_and_few_domains_are_said_to_be_few() -> None:
    parts = replace(evaluated(), sources={"parts": 3})
    caveats = " ".join(map(str, evaluation_page(parts.to_dict()).caveats))
    assert "Test domains are parts of domains" in caveats
    assert f"With {len(parts.test)} domains, unrelated numbers have a rank correlation of" in caveats
    two = replace(evaluated(), test=evaluated().test[:2], known=(), own=None).to_dict()
    made = evaluation_page(two)
    assert "undefined for fewer than three domains" in str(made.verdict)
    assert [section.title for section in made.sections] == ["Shift and performance"]


def test_the_best_metric_is_chosen_in_the_direction_that_it_states() -> None:
    made = evaluated().to_dict()
    rows = made["correlations"]
    for row in rows.values():
        row["agreement"] = None
    rows["spearman"]["agreement"], rows["ac"]["agreement"] = -0.9, 0.3  # a shift that rises with accuracy
    assert "correlation with accuracy: 0.30 in size, by AC; spearman" in str(evaluation_page(made).verdict)
    rows["spearman"]["agreement"], rows["ac"]["agreement"] = -0.9, -0.3
    assert "No metric goes with accuracy in the direction" in str(evaluation_page(made).verdict)
    rows["spearman"]["agreement"], rows["ac"]["agreement"] = 0.9, 0.9  # equally good ones are all named
    assert "0.90 in size, by shift (spearman) and AC; " in str(evaluation_page(made).verdict)
