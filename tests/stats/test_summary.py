"""Summaries, tables of cells and their tests: golden values, literal versions, calibration, power."""

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError, ShapeError
from assay.core.random import stream
from assay.stats import (
    cell_table,
    cell_tests,
    mean_standard_error,
    summarize,
    top_indices,
)


def test_five_values_by_hand() -> None:
    # Type 7 takes place 4 q between the values 0 to 4; the sample variance is 2.5.
    summary = summarize(np.array([4.0, 0.0, 3.0, 1.0, 2.0]), thresholds=[1.0, 4.0, -1.0])
    shares = {"p25": 1.0, "p50": 2.0, "p75": 3.0, "p95": 3.8, "p99": 3.96, "p99.9": 3.996, "p99.99": 3.9996}
    moments = {"count": 5, "mean": 2.0, "std": math.sqrt(2.5), "min": 0.0}
    assert summary.absolute == pytest.approx({**moments, **shares, "max": 4.0})
    assert list(summary.z) == ["min", *shares, "max"]
    assert summary.z["max"] == pytest.approx(2 / math.sqrt(2.5))
    assert summary.standard_error == pytest.approx(math.sqrt(2.5 / 5))
    assert summary.exceedance == {1.0: 0.6, 4.0: 0.0, -1.0: 1.0}
    assert summary.few_tail_points == ("p95", "p99", "p99.9", "p99.99")
    few = summarize(np.arange(5.0), n_distinct=4)
    absolute = few.absolute
    assert (absolute["count"], absolute["p75"], absolute["p95"], few.z["p95"]) == (4, 3.0, None, None)


def test_standard_errors_of_crossed_samples_add_rows_and_columns() -> None:
    values = stream(0, "crossed").normal(size=(40, 30))
    parts = [values.mean(axis=axis).var(ddof=1) / n for axis, n in ((1, 40), (0, 30))]
    error = mean_standard_error(values)
    assert error == summarize(values).standard_error == pytest.approx(math.sqrt(sum(parts)), rel=1e-12)
    assert math.isnan(mean_standard_error(values[:1]))


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


def test_two_labels_over_four_inputs_by_hand() -> None:
    # Rows have 3, 2, 0 and 0 exceeding values of 3 each. Of the 6 ways to deal "a" to two rows one alone
    # gives it all 5, so p of "a" is about 1/6; "b" has 0, which every deal reaches.
    exceeds = np.array([[1, 1, 1], [1, 1, 0], [0, 0, 0], [0, 0, 0]], dtype=bool)
    tests = cell_tests(exceeds, np.array(["a", "a", "b", "b"])[:, None], permutations=9999)
    assert (tests.rows, tests.columns) == (("a", "b"), (None,))
    assert tests.n.tolist() == [[6], [6]]
    assert tests.n_inputs.tolist() == [[2], [2]]
    assert tests.exceed.ravel() == pytest.approx([5 / 6, 0])
    assert tests.pooled == pytest.approx(5 / 12)
    assert tests.p_value[0, 0] == pytest.approx(1 / 6, abs=3.5 * math.sqrt(5 / 36 / 9999))
    assert tests.p_value[1, 0] == 1
    assert tests.q_value.ravel() == pytest.approx([2 * tests.p_value[0, 0], 1])


def test_a_cross_of_two_by_two_by_hand() -> None:
    # One exceeding pair; a label on either side is at its input in half of the deals.
    exceeds = np.array([[True, False], [False, False]])
    rows, columns = np.array([["a"], ["b"]]), np.array([["x", "y"]])
    tests = cell_tests(exceeds, rows, columns, permutations=9999)
    assert tests.p_value[0, 0] == pytest.approx(1 / 4, abs=3.5 * math.sqrt(3 / 16 / 9999))
    assert tests.p_value.ravel()[1:].tolist() == [1, 1, 1]
    assert tests.n_inputs.tolist() == [[1, 1], [1, 1]]


def test_p_is_never_zero_and_one_where_nothing_exceeds() -> None:
    labels = np.repeat(["a", "b"], 50)[:, None]
    none = cell_tests(np.zeros((100, 7), dtype=bool), labels)
    assert (none.p_value == 1).all()
    planted = np.zeros((100, 7), dtype=bool)
    planted[:50] = True
    assert cell_tests(planted, labels).p_value.ravel().tolist() == [1 / 1000, 1]
    alone = cell_tests(planted, np.full((100, 1), "a"))
    assert (alone.p_value.item(), alone.exceed.item()) == (1, 0.5)


def test_duplicate_draws_are_one_input() -> None:
    # The bad input was drawn 3 times; taken for 3 inputs it makes "a" look worse than it can be known to be.
    ids, labels = np.array([5, 5, 5, 1, 2, 3, 4, 6]), np.array(list("aaaabbbb"))[:, None]
    exceeds = np.zeros((8, 10), dtype=bool)
    exceeds[:3] = True
    tests = cell_tests(exceeds, labels, inputs=(ids, np.arange(10)), permutations=9999)
    assert tests.n_inputs.ravel().tolist() == [2, 4]
    assert tests.n.ravel().tolist() == [40, 40]
    # Dealt to the six distinct inputs, "a" meets the bad one in 1/3 of the deals.
    assert tests.p_value[0, 0] == pytest.approx(1 / 3, abs=0.02)
    assert cell_tests(exceeds, labels, permutations=9999).p_value[0, 0] == pytest.approx(4 / 56, abs=0.01)


def test_a_cross_within_one_side_has_cells_without_inputs() -> None:
    exceeds = stream(0, "cells").random((30, 20)) < 0.1
    place, thing = np.repeat(["p", "q"], 15)[:, None], np.repeat(["r", "s"], 15)[:, None]
    tests = cell_tests(exceeds, place, thing)
    assert tests.n.tolist() == [[300, 0], [0, 300]]
    for p in (tests.p_value, tests.q_value):
        assert np.isnan(p).tolist() == [[False, True], [True, False]]
    assert json.loads(json.dumps(tests.to_dict()))["exceed"][0][1] is None


def literal(exceeds: np.ndarray, rows: np.ndarray, columns: np.ndarray, number: int) -> np.ndarray:
    """Every deal is written out over the matrix of values. Labels `[n_clean]` and `[n_corrupted]`."""
    rng = stream(0, "literal")
    hits: dict[tuple[object, object], int] = {}

    def share(row: object, column: object, rows: np.ndarray, columns: np.ndarray) -> float:
        return float(exceeds[rows == row][:, columns == column].mean())

    cells = list(itertools.product(np.unique(rows), np.unique(columns)))
    for _ in range(number):
        dealt, others = rng.permutation(rows), rng.permutation(columns)
        for cell in cells:
            hits[cell] = hits.get(cell, 0) + (share(*cell, dealt, others) >= share(*cell, rows, columns))
    return np.array([(1 + hits[cell]) / (1 + number) for cell in cells])


@pytest.mark.parametrize("kind", ["rows", "columns", "cross", "turned"])
def test_p_values_equal_those_of_the_literal_version(kind: str) -> None:
    number, rng = 2000, stream(3, "cells")
    rows, columns = rng.integers(3, size=24), rng.integers(2, size=18)
    chance = 0.1 + 0.1 * (rows == 1)[:, None] + 0.1 * (columns == 0) + 0.1 * rng.random((24, 1))
    exceeds = rng.random((24, 18)) < chance
    labels, dealt = {
        "rows": ((rows[:, None],), (rows, np.zeros(18))),
        "columns": ((columns[None],), (np.zeros(24), columns)),
        "cross": ((rows[:, None], columns[None]), (rows, columns)),
        "turned": ((columns[None], rows[:, None]), (rows, columns)),
    }[kind]
    found = cell_tests(exceeds, *labels, permutations=number).p_value
    expected = literal(exceeds, *dealt, number)
    # Both are counts of 2,000: the difference of two has a standard deviation of at most .016.
    table = found.T if kind == "turned" else found
    assert table.ravel() == pytest.approx(expected, abs=0.055)
    assert found.min() < 0.3


@pytest.mark.parametrize(("n_cells", "permutations"), [(4, 999), (100, 4000)])
def test_more_cells_get_more_permutations(n_cells: int, permutations: int) -> None:
    """One bad value of a hundred is out of reach with 999: its q would be 100/1000."""
    labels = np.arange(400)[:, None] % n_cells
    found = cell_tests(np.repeat(labels == 0, 5, axis=1), labels)
    assert found.p_value[0, 0] == 1 / (1 + permutations)


def null_p_values(n_trials: int, kind: str) -> np.ndarray:
    """First cell's p-value when labels mean nothing but inputs differ strongly."""
    found = []
    for trial in range(n_trials):
        rng = stream(trial, f"null-{kind}")
        rows, columns = rng.permutation(np.arange(60) % 4), rng.permutation(np.arange(50) % 3)
        if kind == "pairs":
            exceeds = rng.random(400) < 0.2
            tests = cell_tests(exceeds, rng.integers(4, size=400), permutations=39, seed=trial)
        else:
            values = rng.gamma(1.0, size=(60, 1)) + rng.gamma(1.0, size=(1, 50)) + 0.3 * rng.random((60, 50))
            exceeds = values > np.quantile(values, 0.95)
            crossed = columns[None] if kind == "cross" else None
            tests = cell_tests(exceeds, rows[:, None], crossed, permutations=39, seed=trial)
        found.append(tests.p_value[0, 0])
    return np.array(found)


@pytest.mark.parametrize("kind", ["rows", "cross", "pairs"])
def test_p_values_are_uniform_or_larger_where_labels_mean_nothing(kind: str) -> None:
    n_trials = 250
    p_values = null_p_values(n_trials, kind)
    for level in (0.05, 0.1, 0.25, 0.5):
        # Three and a half standard errors; ties only make p larger.
        slack = 3.5 * math.sqrt(level * (1 - level) / n_trials)
        assert (p_values <= level).mean() <= level + slack
    assert (p_values <= 0.5).mean() > 0.3  # and not by never rejecting


def planted(rng: np.random.Generator, labels: np.ndarray, n_columns: int) -> np.ndarray:
    values = rng.gamma(2.0, size=(len(labels), 1)) + rng.gamma(2.0, size=(1, n_columns))
    values = values + rng.gamma(1.0, size=values.shape) + 6.0 * (labels == "ring")[:, None]
    return np.asarray(values > np.quantile(values, 0.99))


def test_a_planted_bad_value_is_found_and_nothing_else() -> None:
    objects = np.array(["ball", "bone", "book", "drink", "kiss", "lamp", "ring", "snack"])
    others, hits = 0, 0
    for seed in range(10):
        rng = stream(seed, "planted")
        labels = rng.choice(objects, 400)
        found = cell_tests(planted(rng, labels, 300), labels[:, None], seed=seed)
        marked = [label for label, yes in zip(found.rows, found.q_value.ravel() <= 0.05, strict=True) if yes]
        hits += "ring" in marked
        others += len(marked) - ("ring" in marked)
    assert hits == 10
    assert others <= 2


def test_descriptions_of_little_or_of_nothing() -> None:
    flat, one = summarize(np.full(10_000, 0.1)), summarize(np.array([2.0]))
    assert (flat.absolute["mean"], flat.absolute["std"]) == (0.1, 0.0)
    assert all(math.isnan(score) for score in flat.z.values())
    assert math.isnan(one.absolute["std"])
    assert summarize(np.arange(999.0)).few_tail_points == ("p99.9", "p99.99")
    assert summarize(np.arange(1000.0)).few_tail_points == ("p99.99",)
    assert json.loads(json.dumps(summarize(np.full(3, 0.5)).to_dict()))["z"]["max"] is None
    with pytest.warns(DegenerateDataWarning, match="5 largest values were requested"):
        assert top_indices(np.array([1.0, 2.0]), 5).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("refused", "error", "message"),
    [
        (lambda: top_indices(np.ones(3), 0), InputError, "k is 0; expected at least 1"),
        (lambda: cell_table(np.ones(3), np.array(["a", "b"])), ValueError, r"\(2,\)"),
        (lambda: mean_standard_error(np.ones((2, 2, 2))), ShapeError, "expected a vector or a matrix"),
        (lambda: summarize(np.array([0.0, math.nan])), NonFiniteError, r"values hold nan at \(1,\)"),
        (lambda: summarize(np.empty(0)), InputError, "expected at least one value"),
        (lambda: cell_tests(np.zeros((3, 4)) > 0, np.zeros((3, 4))), ValueError, "shape mismatch"),
        (lambda: cell_tests(np.zeros((3, 4)) > 0, np.zeros((1, 3))), ValueError, r"\(1,3\)"),
        (
            lambda: cell_tests(np.zeros(2) > 0, np.arange(2), inputs=(np.zeros(2),)),
            InputError,
            "a property of",
        ),
    ],
)
def test_what_cannot_be_described_is_refused(
    refused: Any, error: type, message: str, unchecked: None
) -> None:
    with pytest.raises(error, match=message):
        refused()
