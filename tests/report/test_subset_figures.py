"""Pictures of a subset: what is drawn is what the document says."""

import math

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from synthetic_subset import SIZES, document

from assay.analyses.subsets import content_plots, plots, probit_plots
from assay.analyses.subsets.line import probit
from assay.analyses.subsets.page_words import signed
from assay.page.draw import to_svg


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def rows_of(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.get_yticklabels()]


def curves(ax: Axes, n: int = len(SIZES)) -> list[Line2D]:
    """Lines with a point per size, those drawn last first."""
    lines = [line for line in ax.get_lines() if len(line.get_xdata()) == n]
    return sorted(lines, key=lambda line: -line.get_zorder())


def test_the_curve_over_sizes_is_that_of_the_test_models() -> None:
    found = document()
    chosen, marginal, hard, random = curves(plots.plot_size(found))
    assert tuple(chosen.get_xdata()) == SIZES
    assert chosen.get_ydata().tolist() == [row["test"]["r"] for row in found["rows"]]
    assert marginal.get_ydata().tolist() == [row["marginal"]["r"] for row in found["rows"]]
    assert math.isnan(hard.get_ydata()[0]), "no hard baseline at the smallest size"
    assert random.get_ydata().tolist() == [row["random"]["r"] for row in found["rows"]]


def test_sizes_are_drawn_in_ascending_order_whatever_the_order_of_the_rows() -> None:
    found = document()
    found["rows"].reverse()
    for line, other in zip(curves(plots.plot_size(found)), curves(plots.plot_size(document())), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), other.get_xydata())


def test_supported_sizes_are_filled_and_inconclusive_ones_open() -> None:
    ax = plots.plot_size(document())
    dots = [line for line in ax.get_lines() if line.get_marker() == "o" and line.get_markersize() == 5.5]
    filled = [line.get_markerfacecolor() == line.get_color() for line in dots]
    assert filled == [True] * 7 + [False] * 3
    assert ax.get_xscale() == "log"
    assert texts(ax)[:4] == ["chosen subset", "random subset", "hardest examples", "one-pass screening"]
    assert len(ax.collections) == 2, "bands of the chosen and of the random subsets"


def test_the_scatter_shows_the_test_models_alone() -> None:
    found = document()
    places = [place for place, part in enumerate(found["models"]["part"]) if part == "test"]
    assert probit_plots.drawn_models(found) == places
    assert len(places) == 96
    points = [line for line in probit_plots.plot_scatter(found).get_lines() if line.get_marker() != "None"]
    assert len(points) == 2, "all examples and the chosen ones"
    accuracy = np.array(found["models"]["selected"])[places]
    np.testing.assert_array_equal(points[1].get_ydata(), probit(accuracy))


def test_a_scatter_of_very_many_models_draws_evenly_spaced_ones() -> None:
    found = document()
    accuracies, parts = found["models"]["id_accuracy"], found["models"]["part"]
    test = [accuracy for accuracy, part in zip(accuracies, parts, strict=True) if part == "test"]
    for name, values in found["models"].items():
        found["models"][name] = None if values is None else values * 40
    drawn = [found["models"]["id_accuracy"][place] for place in probit_plots.drawn_models(found)]
    assert len(drawn) == probit_plots.DRAWN_MODELS
    assert (min(drawn), max(drawn)) == (min(test), max(test))


def test_the_probit_axes_are_labelled_with_accuracies() -> None:
    found = document()
    ax = probit_plots.plot_scatter(found)
    labels = dict(
        zip(ax.get_xticks().tolist(), [text.get_text() for text in ax.get_xticklabels()], strict=True)
    )
    assert labels[0.0] == "0.5"
    assert f"R {signed(found['lines']['selected']['r'])}," in texts(ax)[1]
    assert "slope" in texts(ax)[1]
    assert "intercept" in texts(ax)[1]


def test_models_at_exactly_zero_stand_at_the_clip_and_are_labelled_so() -> None:
    found = document()
    found["models"]["selected"] = [0.0] * 240 + found["models"]["selected"][240:]
    ax = probit_plots.plot_scatter(found)
    assert rows_of(ax)[0] == "0"
    assert ax.get_yticks()[0] == pytest.approx(-4.753, abs=1e-3)


def test_the_histograms_count_every_model() -> None:
    ax = probit_plots.plot_accuracies(document())
    _, right = ax.get_figure().axes
    assert ax.get_yscale() == "log"
    assert [sum(stairs.get_data().values) for stairs in (*ax.patches, *right.patches)] == [480] * 5


def test_prevalence_has_the_largest_differences_first_and_no_means() -> None:
    prevalence = document()["prevalence"]
    rows = content_plots.most_different(prevalence)
    assert [abs(row["difference"]) for row in rows] == sorted(
        (abs(row["difference"]) for row in rows), reverse=True
    )
    ax = content_plots.plot_prevalence(prevalence)
    assert len(rows_of(ax)) == 8
    assert rows_of(ax)[0] == "label: person"
    assert "brightness: mean" not in rows_of(ax)
    hollow = [bar.get_facecolor()[3] == 0 for bar in ax.patches]
    assert hollow == [not row["significant"] for row in rows]


def test_the_null_is_counted_and_the_observed_value_named() -> None:
    ax = plots.plot_null(document()["null"])
    assert sum(bar.get_height() for bar in ax.patches if hasattr(bar, "get_height")) == 99
    assert "observed \N{MINUS SIGN}0.86" in [text.get_text() for text in ax.texts]


def test_example_correlations_are_counted_on_both_sides() -> None:
    ax = plots.plot_replication(document()["replication"])
    assert texts(ax) == ["250 chosen", "7,750 others"]
    assert sum(ax.patches[-1].get_data().values) == pytest.approx(100)


def test_names_are_drawn_as_they_are() -> None:
    found = document()
    names = ["$\\frac{$", "US$ or A$", "bell\x07"]
    found["composition"]["names"] = names + found["composition"]["names"][3:]
    axes = content_plots.plot_composition(found)
    to_svg(axes, key="k", label="l")  # a formula that is none would fail here
    assert "\x07" not in " ".join(texts(axes))
