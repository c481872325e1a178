"""Summaries against golden values, numpy, slow literal versions and worked cases."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError, ShapeError
from assay.core.random import stream
from assay.stats import (
    cell_table,
    compare_with_anchor,
    histogram,
    mean_standard_error,
    summarize,
    top_indices,
)


GOLDEN = Path(__file__).parent.parent / "golden" / "adversarial"
EXPECTED = json.loads((GOLDEN / "stats_expected.json").read_text())
KEYS = {f"{percent}%": f"p{percent}" for percent in ("25", "50", "75", "95", "99", "99.9", "99.99")}


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "stats_input.npz", allow_pickle=False) as file:
        return dict(file)


values_of = arrays.arrays(
    np.float64,
    arrays.array_shapes(min_dims=1, max_dims=2, max_side=12),
    elements=st.integers(0, 9).map(float),
)


# ---------------------------------------------------------------------------------------------------- summary


@pytest.mark.parametrize("part", ["abs", "z"])
def test_summary_matches_golden_values(part: str, data: dict[str, np.ndarray]) -> None:
    summary = summarize(data["kl"])
    found = summary.absolute if part == "abs" else summary.z
    expected = {KEYS.get(key, key): value for key, value in EXPECTED[f"summary_{part}"].items()}
    assert list(found) == list(expected)
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-9)
    assert summary.warnings == summary.few_tail_points == ()


def test_five_values_by_hand() -> None:
    # Type 7 takes place 4 q between the values 0 to 4; the sample variance is 2.5.
    summary = summarize(np.array([4.0, 0.0, 3.0, 1.0, 2.0]), thresholds=[1.0, 4.0, -1.0])
    assert summary.absolute == pytest.approx(
        {
            "count": 5,
            "mean": 2.0,
            "std": math.sqrt(2.5),
            "min": 0.0,
            "p25": 1.0,
            "p50": 2.0,
            "p75": 3.0,
            "p95": 3.8,
            "p99": 3.96,
            "p99.9": 3.996,
            "p99.99": 3.9996,
            "max": 4.0,
        }
    )
    assert list(summary.z) == ["min", "p25", "p50", "p75", "p95", "p99", "p99.9", "p99.99", "max"]
    assert summary.z["max"] == pytest.approx(2 / math.sqrt(2.5))
    assert summary.standard_error == pytest.approx(math.sqrt(2.5 / 5))
    assert summary.exceedance == {1.0: 0.6, 4.0: 0.0, -1.0: 1.0}
    assert summary.few_tail_points == ("p99.9", "p99.99")
    assert summary.warnings == ("few_tail_points",)


@pytest.mark.parametrize(
    ("n", "few"),
    [(999, ("p99.9", "p99.99")), (1000, ("p99.99",)), (9999, ("p99.99",)), (10_000, ())],
)
def test_percentiles_beyond_the_sample_are_named(n: int, few: tuple[str, ...]) -> None:
    summary = summarize(np.arange(float(n)))
    assert summary.few_tail_points == few
    assert ("few_tail_points" in summary.warnings) is bool(few)


def test_constant_values_have_no_z_scores() -> None:
    summary = summarize(np.full(10_000, 0.1))
    assert (summary.absolute["mean"], summary.absolute["std"]) == (0.1, 0.0)
    assert all(math.isnan(score) for score in summary.z.values())
    assert summary.warnings == ("no_spread",)


def test_one_value_has_no_standard_deviation() -> None:
    summary = summarize(np.array([2.0]))
    assert math.isnan(summary.absolute["std"])
    assert math.isnan(summary.standard_error)
    assert summary.warnings == ("few_tail_points", "no_spread")


def test_a_summary_is_finite_json() -> None:
    record = json.loads(json.dumps(summarize(np.full(3, 0.5), thresholds=[0.2]).to_dict()))
    assert record["absolute"]["max"] == 0.5
    assert record["z"]["max"] is None
    assert record["exceedance"] == {"0.2": 1.0}


@given(values=values_of)
def test_a_summary_ignores_shape_and_order_and_follows_the_unit(values: np.ndarray) -> None:
    summary, flat = summarize(values), summarize(np.sort(values, axis=None))
    assert flat.absolute == pytest.approx(dict(summary.absolute), nan_ok=True)
    scaled = summarize(8 * values)
    assert scaled.absolute["p95"] == pytest.approx(8 * summary.absolute["p95"])
    assert scaled.z == pytest.approx(dict(summary.z), nan_ok=True)


def test_standard_errors_of_crossed_samples_add_rows_and_columns() -> None:
    values = stream(0, "crossed").normal(size=(40, 30))
    rows, columns = values.mean(axis=1), values.mean(axis=0)
    expected = math.sqrt(rows.var(ddof=1) / 40 + columns.var(ddof=1) / 30)
    assert (
        mean_standard_error(values) == summarize(values).standard_error == pytest.approx(expected, rel=1e-12)
    )
    assert math.isnan(mean_standard_error(values[:1]))


def test_the_two_way_standard_error_is_the_spread_of_the_mean() -> None:
    rng = stream(0, "spread")
    draws = [rng.normal(size=(50, 1)) + 0.5 * rng.normal(size=(1, 40)) for _ in range(300)]
    truth = math.sqrt(1 / 50 + 0.25 / 40)
    # Of 300 means: 4 % by Monte Carlo; the naive formula would say a sixth of it.
    assert float(np.std([draw.mean() for draw in draws])) == pytest.approx(truth, rel=0.1)
    assert float(np.mean([mean_standard_error(draw) for draw in draws])) == pytest.approx(truth, rel=0.05)


# --------------------------------------------------------------------------------------------------- anchor


def test_an_anchor_by_hand() -> None:
    found = compare_with_anchor(np.array([[1.0, 2.0], [6.0, 3.0]]), np.array([[2.0, 4.0], [3.0, 3.0]]))
    assert found.ratio_of_means == 1.0
    assert found.share_above == 0.25
    # Ranks 1 2 4 3 beside 1 4 2.5 2.5: covariance 1/4 of 0.5, variances 1.25 and 1.125.
    assert found.spearman == pytest.approx(np.corrcoef([1, 2, 4, 3], [1, 4, 2.5, 2.5])[0, 1])


def test_an_anchor_of_zeros_has_no_ratio() -> None:
    with pytest.warns(DegenerateDataWarning, match="one vector is constant"):
        found = compare_with_anchor(np.array([1.0, 2.0]), np.zeros(2))
    assert math.isnan(found.ratio_of_means)
    assert math.isnan(found.spearman)
    assert found.share_above == 1.0


def test_an_anchor_has_the_same_pairs() -> None:
    with pytest.raises(ShapeError, match=r"shape \(2, 3\), the anchor \(3, 2\)"):
        compare_with_anchor(np.ones((2, 3)), np.ones((3, 2)))
    with pytest.raises(NonFiniteError, match=r"anchor values hold nan at \(1,\)"):
        compare_with_anchor(np.ones(2), np.array([0.0, math.nan]))


# ------------------------------------------------------------------------------------------------ histogram


def test_histogram_matches_golden_counts(data: dict[str, np.ndarray]) -> None:
    found = histogram(data["kl"])
    assert found.counts.tolist() == EXPECTED["histogram_counts"]
    assert [found.edges[0], found.edges[-1]] == EXPECTED["histogram_edges_first_last"]
    assert len(found.edges) == 101


def test_the_last_bin_is_closed_and_the_others_open_to_the_right() -> None:
    found = histogram(np.array([0.0, 1.0, 1.0, 2.0]), n_bins=2)
    assert (found.counts.tolist(), found.edges.tolist()) == ([1, 3], [0.0, 1.0, 2.0])


def test_values_that_are_all_zero_fill_one_bin() -> None:
    found = histogram(np.zeros((2, 3)))
    assert (found.counts.tolist(), found.edges.tolist()) == ([6], [0.0, 0.0])


def test_samples_share_a_range() -> None:
    found = histogram(np.array([1.0, 3.0]), n_bins=4, maximum=8.0)
    assert (found.counts.tolist(), found.edges.tolist()) == ([1, 1, 0, 0], [0.0, 2.0, 4.0, 6.0, 8.0])
    assert histogram(np.zeros(3), n_bins=4, maximum=8.0).counts.tolist() == [3, 0, 0, 0]


@given(values=values_of, n_bins=st.integers(1, 30))
def test_every_value_falls_in_one_bin(values: np.ndarray, n_bins: int) -> None:
    assert histogram(values, n_bins=n_bins).counts.sum() == values.size


def test_histograms_refuse_what_they_cannot_draw() -> None:
    with pytest.raises(InputError, match=r"the smallest value is -1; .* must not be negative"):
        histogram(np.array([-1.0, 1.0]))
    with pytest.raises(InputError, match=r"maximum is 1\.0; .* the largest value, 2"):
        histogram(np.array([2.0]), maximum=1.0)
    with pytest.raises(InputError, match="maximum is inf"):
        histogram(np.array([2.0]), maximum=math.inf)
    with pytest.raises(InputError, match="n_bins is 0; expected at least 1"):
        histogram(np.array([2.0]), n_bins=0)


# ------------------------------------------------------------------------------------------- largest values


def test_largest_values_match_golden_indices(data: dict[str, np.ndarray]) -> None:
    found = top_indices(data["kl"], 10)
    assert found.tolist() == EXPECTED["top10_indices"]
    assert data["kl"][found].tolist() == EXPECTED["top10_values"]
    assert data["kl"][17] == data["kl"][4000]  # the tie at the top


def test_ties_go_to_the_lower_clean_then_corrupted_index() -> None:
    values = np.array([[1.0, 5.0, 2.0], [5.0, 5.0, 3.0]])
    pairs = np.stack(np.unravel_index(top_indices(values, 4), values.shape), axis=1)
    assert pairs.tolist() == [[0, 1], [1, 0], [1, 1], [1, 2]]
    assert top_indices(values, 2).tolist() == [1, 3]  # the cut runs through the tie


@given(values=values_of, data=st.data())
def test_largest_values_equal_a_plain_sort(values: np.ndarray, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, values.size))
    flat = values.ravel().tolist()
    assert top_indices(values, k).tolist() == sorted(range(len(flat)), key=lambda at: (-flat[at], at))[:k]


def test_more_than_there_are_returns_all_and_warns() -> None:
    with pytest.warns(DegenerateDataWarning, match="5 largest values were requested, but there are only 2"):
        assert top_indices(np.array([1.0, 2.0]), 5).tolist() == [1, 0]


@pytest.mark.parametrize("k", [0, -1])
def test_at_least_one_value_is_asked_for(k: int) -> None:
    with pytest.raises(InputError, match=rf"k is {k}; expected at least 1"):
        top_indices(np.ones(3), k)


# -------------------------------------------------------------------------------------------------- cells


def test_cells_match_golden_values(data: dict[str, np.ndarray]) -> None:
    table = cell_table(data["kl"], data["field1"], data["field2"], quantiles=(1.0, 0.999, 0.9999))
    cells = EXPECTED["heatmap_field1_field2"]
    assert [f"{row}|{column}" for row in table.rows for column in table.columns] == list(cells)
    for at, (row, column) in enumerate(np.ndindex(table.n.shape)):
        expected = list(cells.values())[at]
        found = [table.mean[row, column], *table.quantiles[:, row, column]]
        if expected is None:
            assert table.n[row, column] == 0
            assert np.isnan(found).all()
        else:
            assert table.n[row, column] == expected["n"]
            assert found == pytest.approx(
                [expected[key] for key in ("mean", "max", "99.9%", "99.99%")], rel=1e-9
            )


def test_four_values_in_three_cells_by_hand() -> None:
    table = cell_table(
        np.array([1.0, 2.0, 4.0, 8.0]),
        np.array([7, 3, 7, 7]),
        np.array(["x", "y", "x", "y"]),
        quantiles=(0.5, 1.0),
    )
    assert (table.rows, table.columns, table.quantiles_at) == ((3, 7), ("x", "y"), (0.5, 1.0))
    assert table.n.tolist() == [[0, 1], [2, 1]]
    nan = math.nan
    np.testing.assert_array_equal(table.mean, [[nan, 2.0], [2.5, 8.0]])
    np.testing.assert_array_equal(table.quantiles, [[[nan, 2.0], [2.5, 8.0]], [[nan, 2.0], [4.0, 8.0]]])
    assert table.to_dict()["mean"] == [[None, 2.0], [2.5, 8.0]]


def test_labels_of_inputs_reach_all_their_pairs() -> None:
    values = stream(0, "pairs").gamma(2.0, size=(12, 9))
    clean, corrupted = np.array(list("abc") * 4), np.array(list("xyz") * 3)
    whole = cell_table(values, clean[:, None], corrupted[None, :], quantiles=(0.3, 1.0))
    labels = np.broadcast_to(clean[:, None], values.shape), np.broadcast_to(corrupted, values.shape)
    plain = cell_table(values.ravel(), *(each.ravel() for each in labels), quantiles=(0.3, 1.0))
    np.testing.assert_array_equal(whole.quantiles, plain.quantiles)
    for row, column in np.ndindex(3, 3):
        cell = values[clean == "abc"[row]][:, corrupted == "xyz"[column]]
        assert whole.quantiles[:, row, column] == pytest.approx(np.quantile(cell, [0.3, 1.0]), rel=1e-12)
        assert whole.mean[row, column] == pytest.approx(cell.mean(), rel=1e-12)
    # Two labels of the same side leave cells empty where they never meet.
    both = cell_table(values, clean[:, None], np.arange(12)[:, None] % 3)
    assert both.n.tolist() == [[36, 0, 0], [0, 36, 0], [0, 0, 36]]


@given(
    values=arrays.arrays(np.float64, st.integers(1, 60), elements=st.integers(0, 9).map(float)),
    share=st.floats(0, 1),
    data=st.data(),
)
def test_quantiles_of_cells_are_numpys(values: np.ndarray, share: float, data: st.DataObject) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values))))
    table = cell_table(values, labels, quantiles=(share,))
    assert table.columns == (None,)
    assert table.n.sum() == len(values)
    for at, label in enumerate(table.rows):
        expected = np.quantile(values[labels == label], share)
        assert table.quantiles[0, at, 0] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_more_cells_than_small_integers_count() -> None:
    values = stream(0, "many").gamma(2.0, size=400)
    labels = np.arange(400)
    table = cell_table(values, labels, labels)
    assert (np.diagonal(table.quantiles[0]) == values).all()
    assert np.isnan(table.quantiles).sum() == 400 * 399


def test_cells_refuse_labels_that_do_not_fit() -> None:
    with pytest.raises(
        ShapeError, match=r"labels of the rows have shape \(2,\); expected one that broadcasts to \(3,\)"
    ):
        cell_table(np.ones(3), np.array(["a", "b"]))
    with pytest.raises(ShapeError, match=r"labels of the columns have shape \(4, 3\)"):
        cell_table(np.ones(3), np.array(["a", "b", "c"]), np.full((4, 3), "x"))
    with pytest.raises(
        InputError, match=r"quantiles are \(99\.0,\); expected at least one fraction in \[0, 1\]"
    ):
        cell_table(np.ones(2), np.array(["a", "b"]), quantiles=(99.0,))
    with pytest.raises(InputError, match=r"quantiles are \(\)"):
        cell_table(np.ones(2), np.array(["a", "b"]), quantiles=())


# --------------------------------------------------------------------------------------------------- errors


def test_every_description_needs_finite_values() -> None:
    bad = np.array([0.0, math.nan, 1.0])
    for refused in (
        lambda values: summarize(values),
        lambda values: histogram(values),
        lambda values: top_indices(values, 1),
        lambda values: cell_table(values, np.zeros(len(values))),
        lambda values: compare_with_anchor(values, values),
        lambda values: mean_standard_error(values),
    ):
        with pytest.raises(NonFiniteError, match=r"values hold nan at \(1,\)"):
            refused(bad)
        with pytest.raises(InputError, match=r"values have shape \(0,\); expected at least one value"):
            refused(np.empty(0))


def test_a_standard_error_has_one_or_two_axes() -> None:
    with pytest.raises(ShapeError, match=r"shape \(2, 2, 2\); expected a vector or a matrix"):
        mean_standard_error(np.ones((2, 2, 2)))
