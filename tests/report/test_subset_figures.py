"""Pictures of a subset: what is read off the document, what is drawn, what is written."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from assay.report.figures import to_svg
from matplotlib.figure import Figure
from synthetic_subset import CLASSES, SIZES, document

from assay.core.errors import OutputError
from assay.report import subset_figures as pictures
from assay.report.subset_data import BASELINES, DRAWN_MODELS


def texts(ax: Any) -> list[str]:
    legend = ax.get_legend()
    return [text.get_text() for text in legend.get_texts()]


def every_data(found: dict[str, Any]) -> list[pictures.FigureData]:
    data = [
        pictures.size_data(found),
        pictures.size_data(found, "spearman"),
        pictures.comparison_data(found),
        pictures.scatter_data(found),
        pictures.accuracy_data(found),
        pictures.prevalence_data(found),
        pictures.consistency_data(found),
        pictures.models_data(found),
        pictures.composition_data(found),
        pictures.null_data(found),
        pictures.replication_data(found),
        pictures.gallery_data(found),
    ]
    return [each for each in data if each is not None]


def test_the_curve_over_sizes_is_that_of_the_test_models() -> None:
    found = document()
    data = pictures.size_data(found)
    assert data.sizes == SIZES
    assert [each.kind for each in data.series] == ["selection", "random", "hard", "marginal"]
    assert data.series[0].values == tuple(row["test"]["r"] for row in found["rows"])
    assert data.series[0].low == tuple(row["test"]["low"] for row in found["rows"])
    assert math.isnan(data.series[2].values[0]), "no hard baseline at the smallest size"
    assert data.full == found["full"]["test"]["r"]
    assert data.verdicts[4] == "supported"
    assert data.verdicts[-1] == "inconclusive"


def test_sizes_are_drawn_in_ascending_order_whatever_the_order_of_the_rows() -> None:
    found = document()
    found["rows"].reverse()
    assert pictures.size_data(found) == pictures.size_data(document())


def test_the_spearman_version_reads_the_rank_correlations() -> None:
    found = document()
    data = pictures.size_data(found, "spearman")
    assert data.series[0].values == tuple(row["test"]["spearman"] for row in found["rows"])
    assert data.series[1].low == tuple(row["random"]["spearman_low"] for row in found["rows"])
    assert "Spearman" in pictures.plot_size(data).get_ylabel()


def test_supported_sizes_are_filled_and_inconclusive_ones_open() -> None:
    ax = pictures.plot_size(pictures.size_data(document()))
    dots = [line for line in ax.get_lines() if line.get_marker() == "o" and line.get_markersize() == 5.5]
    filled = [line.get_markerfacecolor() == line.get_color() for line in dots]
    assert filled == [True] * 7 + [False] * 3
    assert ax.get_xscale() == "log"
    assert "chosen subset" in texts(ax)
    assert len(ax.collections) == 2, "bands of the chosen and of the random subsets"


def test_the_ring_marks_the_size_of_the_page() -> None:
    ax = pictures.plot_size(pictures.size_data(document()))
    (ring,) = [line for line in ax.get_lines() if line.get_markersize() == 11]
    assert ring.get_xdata()[0] == 250


def test_the_comparison_at_one_size_has_all_examples_first() -> None:
    data = pictures.comparison_data(document(path=False))
    assert data.kinds == ("all", "selection", "random", "hard", "marginal")
    assert data.values[1] == -0.86
    labels = [text.get_text() for text in pictures.plot_comparison(data).get_yticklabels()]
    assert labels == list(data.names)


def test_the_scatter_shows_the_test_models_alone() -> None:
    found = document()
    data = pictures.scatter_data(found)
    places = [place for place, part in enumerate(found["models"]["part"]) if part == "test"]
    assert data.n_models == len(places) == 96
    assert data.id_accuracy == tuple(found["models"]["id_accuracy"][place] for place in places)
    assert [each.name for each in data.clouds] == ["all", "selected", "rest"]
    assert data.clouds[1].slope == found["lines"]["selected"]["slope"] < 0 < data.clouds[0].slope


def test_a_scatter_of_very_many_models_draws_evenly_spaced_ones() -> None:
    found = document()
    for name, values in found["models"].items():
        found["models"][name] = None if values is None else values * 40
    data = pictures.scatter_data(found)
    assert data.n_models == 96 * 40
    assert len(data.id_accuracy) == DRAWN_MODELS
    accuracies = found["models"]["id_accuracy"]
    test = [accuracies[place] for place, part in enumerate(found["models"]["part"]) if part == "test"]
    assert (min(data.id_accuracy), max(data.id_accuracy)) == (min(test), max(test))


def test_the_probit_axes_are_labelled_with_accuracies() -> None:
    data = pictures.scatter_data(document())
    ax = pictures.plot_scatter(data)
    labels = dict(
        zip(ax.get_xticks().tolist(), [text.get_text() for text in ax.get_xticklabels()], strict=True)
    )
    assert labels[0.0] == "0.5"
    assert f"R {pictures.signed(data.clouds[1].r)}" in texts(ax)[1]
    assert "slope" in texts(ax)[1]
    assert "intercept" in texts(ax)[1]


def test_a_narrow_range_of_accuracies_still_has_round_ticks() -> None:
    found = document()
    rng = np.random.default_rng(0)
    for name in ("all", "selected", "rest"):
        found["models"][name] = rng.uniform(0.701, 0.719, 480).tolist()
    ax = pictures.plot_scatter(pictures.scatter_data(found))
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert len(labels) >= 4
    assert all(len(label) <= 5 for label in labels)


def test_models_at_exactly_zero_stand_at_the_clip_and_are_labelled_so() -> None:
    found = document()
    found["models"]["selected"] = [0.0] * 240 + found["models"]["selected"][240:]
    ax = pictures.plot_scatter(pictures.scatter_data(found))
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert labels[0] == "0"
    assert ax.get_yticks()[0] == pytest.approx(-4.753, abs=1e-3)
    assert pictures.probit_places([0.0, 0.5, 1.0]).round(3).tolist() == [-4.753, 0.0, 4.753]


def test_the_histograms_count_every_model() -> None:
    data = pictures.accuracy_data(document())
    assert sum(data.known) == sum(data.everything) == sum(data.selected) == 480
    assert pictures.plot_accuracies(data).get_yscale() == "log"


def test_prevalence_has_the_largest_differences_first_and_no_means() -> None:
    data = pictures.prevalence_data(document())
    assert data is not None
    assert data.names[0] == "label: person"
    assert list(np.abs(data.difference)) == sorted(np.abs(data.difference), reverse=True)
    assert "brightness: mean" not in data.names
    assert data.n_values == 8
    ax = pictures.plot_prevalence(data)
    hollow = [bar.get_facecolor()[3] == 0 for bar in ax.patches]
    assert hollow == [not sure for sure in data.significant]


def test_undefined_overlaps_are_a_dash() -> None:
    data = pictures.consistency_data(document())
    assert data is not None
    assert math.isnan(data.values[0][-1])
    ax = pictures.plot_consistency(data)
    shown = [text.get_text() for text in ax.texts]
    assert shown.count("–") == 18
    assert "\N{MINUS SIGN}.08" in shown
    assert len(ax.patches) == 100 - 18


def test_the_model_curve_marks_where_it_settles() -> None:
    ax = pictures.plot_models(pictures.models_data(document()))
    assert "settled at 130" in [text.get_text() for text in ax.texts]
    never = document()
    never["models_needed"] |= {"median": None, "range": [60, None]}
    assert not [*pictures.plot_models(pictures.models_data(never)).texts]


def test_the_composition_is_lines_over_sizes_and_rows_at_one_size() -> None:
    data = pictures.composition_data(document())
    assert data is not None
    assert data.names == CLASSES
    assert data.chosen == data.shares[4]
    ax = pictures.plot_composition(data)
    assert texts(ax)[0] == "dog"
    assert texts(ax)[-1] == "3 others"
    one = pictures.plot_composition(pictures.composition_data(document(path=False)))
    assert next(text.get_text() for text in one.get_yticklabels()) == "dog"


def test_the_null_is_counted_and_the_observed_value_named() -> None:
    data = pictures.null_data(document())
    assert data is not None
    ax = pictures.plot_null(data)
    assert sum(bar.get_height() for bar in ax.patches if hasattr(bar, "get_height")) == 99
    assert "observed \N{MINUS SIGN}0.86" in [text.get_text() for text in ax.texts]


def test_example_correlations_are_shares() -> None:
    data = pictures.replication_data(document())
    assert data is not None
    assert sum(data.selected) == pytest.approx(1)
    assert len(data.edges) == len(data.pool) + 1
    assert texts(pictures.plot_replication(data)) == ["250 chosen", "7,750 others"]


def test_the_gallery_draws_the_pictures() -> None:
    data = pictures.gallery_data(document())
    assert data is not None
    ax = pictures.plot_gallery(data, columns=6)
    assert ax.get_title() == "dog"
    assert ax.get_images()[0].get_array().shape == (16, 16, 3)


def test_what_is_not_known_is_not_drawn() -> None:
    bare = document(bare=True)
    assert pictures.prevalence_data(bare) is None
    assert pictures.composition_data(bare) is None
    assert pictures.gallery_data(bare) is None
    assert pictures.consistency_data(document(path=False)) is None
    assert pictures.null_data({**bare, "null": None}) is None


def test_plots_draw_on_given_axes_and_return_them() -> None:
    found = document()
    for plot, data in (
        (pictures.plot_size, pictures.size_data(found)),
        (pictures.plot_comparison, pictures.comparison_data(found)),
        (pictures.plot_scatter, pictures.scatter_data(found)),
        (pictures.plot_prevalence, pictures.prevalence_data(found)),
        (pictures.plot_consistency, pictures.consistency_data(found)),
        (pictures.plot_models, pictures.models_data(found)),
        (pictures.plot_composition, pictures.composition_data(found)),
        (pictures.plot_null, pictures.null_data(found)),
        (pictures.plot_replication, pictures.replication_data(found)),
    ):
        ax = Figure().subplots()
        assert plot(data, ax) is ax
        assert ax.get_xlabel()


def test_names_are_drawn_as_they_are() -> None:
    found = document()
    names = ["$\\frac{$", "US$ or A$", "bell\x07"]
    found["composition"]["names"] = names + found["composition"]["names"][3:]
    axes = pictures.plot_composition(pictures.composition_data(found))
    to_svg(axes, key="k", label="l")  # a formula that is none would fail here
    assert "\x07" not in " ".join(texts(axes))


def test_every_figure_writes_its_data_as_a_table_and_as_json(tmp_path: Path) -> None:
    for data in every_data(document()):
        name = type(data).__name__
        columns = data.table()
        assert len({len(column) for column in columns.values()}) == 1, name
        rows = list(csv.reader(pictures.save_data(data, tmp_path / f"{name}.csv").read_text().splitlines()))
        assert rows[0] == list(columns)
        assert len(rows) == 1 + len(next(iter(columns.values())))
        record = json.loads(pictures.save_data(data, tmp_path / f"{name}.json").read_text())
        assert record["figure"] == name


def test_undefined_numbers_are_empty_cells_and_null(tmp_path: Path) -> None:
    data = pictures.size_data(document())
    rows = list(csv.DictReader(pictures.save_data(data, tmp_path / "size.csv").read_text().splitlines()))
    assert next(row for row in rows if row["kind"] == "hard")["pearson"] == ""
    assert (
        json.loads(pictures.save_data(data, tmp_path / "size.json").read_text())["series"][2]["values"][0]
        is None
    )


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"ends in \.csv or \.json"):
        pictures.save_data(pictures.null_data(document()), tmp_path / "null.xlsx")


def test_every_baseline_has_a_name_and_a_style() -> None:
    assert {"selection", *BASELINES} == set(pictures.STYLES)
