"""Cell tests against worked cases, a literal version, their calibration under the null, and their power."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats as scipy_stats

from assay.core.errors import InputError, ShapeError
from assay.core.random import stream
from assay.stats import CellTests, cell_table, cell_tests


# ----------------------------------------------------------------------------------------------- worked cases


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
    assert tests.sparse.all()
    assert tests.permutations == 9999


def test_a_cross_of_two_by_two_by_hand() -> None:
    # One exceeding pair; a label on either side is at its input in half of the deals.
    exceeds = np.array([[True, False], [False, False]])
    rows, columns = np.array([["a"], ["b"]]), np.array([["x", "y"]])
    tests = cell_tests(exceeds, rows, columns, permutations=9999)
    assert tests.p_value[0, 0] == pytest.approx(1 / 4, abs=3.5 * math.sqrt(3 / 16 / 9999))
    assert tests.p_value.ravel()[1:].tolist() == [1, 1, 1]
    assert tests.n_inputs.tolist() == [[1, 1], [1, 1]]


def test_pairs_drawn_one_by_one_have_the_hypergeometric_test_as_their_limit() -> None:
    # 30 of 200 pairs exceed, 12 of them among the 40 that bear "a".
    exceeds, labels = np.zeros(200, dtype=bool), np.array(["a"] * 40 + ["b"] * 160)
    exceeds[:12] = exceeds[100:118] = True
    tests = cell_tests(exceeds, labels, permutations=9999)
    exact = scipy_stats.hypergeom.sf(11, 200, 40, 30)
    assert tests.p_value[0, 0] == pytest.approx(exact, abs=3.5 * math.sqrt(exact / 9999) + 1e-4)


def test_p_is_never_zero_and_one_where_nothing_exceeds() -> None:
    labels = np.repeat(["a", "b"], 50)[:, None]
    none = cell_tests(np.zeros((100, 7), dtype=bool), labels)
    assert (none.p_value == 1).all()
    planted = np.zeros((100, 7), dtype=bool)
    planted[:50] = True
    assert cell_tests(planted, labels).p_value.ravel().tolist() == [1 / 1000, 1]
    alone = cell_tests(planted, np.full((100, 1), "a"))
    assert (alone.p_value.item(), alone.exceed.item()) == (1, 0.5)


# ------------------------------------------------------------------------------------------- draws and inputs


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


def test_twenty_distinct_inputs_make_a_cell_dense() -> None:
    labels = np.repeat(["a", "b"], [19, 20])[:, None]
    exceeds = np.zeros((39, 3), dtype=bool)
    assert cell_tests(exceeds, labels).sparse.ravel().tolist() == [True, False]
    cross = cell_tests(exceeds, labels, np.array([["x", "x", "y"]]))
    assert cross.n_inputs.tolist() == [[2, 1], [2, 1]]


def test_a_cross_within_one_side_has_cells_without_inputs() -> None:
    exceeds = stream(0, "cells").random((30, 20)) < 0.1
    place, thing = np.repeat(["p", "q"], 15)[:, None], np.repeat(["r", "s"], 15)[:, None]
    tests = cell_tests(exceeds, place, thing)
    assert tests.n.tolist() == [[300, 0], [0, 300]]
    assert (
        np.isnan(tests.p_value).tolist() == np.isnan(tests.q_value).tolist() == [[False, True], [True, False]]
    )
    assert tests.sparse[0, 1]
    assert not tests.significant(1.0)[0, 1]
    assert json.loads(json.dumps(tests.to_dict()))["exceed"][0][1] is None


# ----------------------------------------------------------------------------------- against the slow version


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
    if kind == "rows":
        found = cell_tests(exceeds, rows[:, None], permutations=number)
        expected = literal(exceeds, rows, np.zeros(18), number)
    elif kind == "columns":
        found = cell_tests(exceeds, columns[None], permutations=number)
        expected = literal(exceeds, np.zeros(24), columns, number)
    elif kind == "cross":
        found = cell_tests(exceeds, rows[:, None], columns[None], permutations=number)
        expected = literal(exceeds, rows, columns, number)
    else:
        found = cell_tests(exceeds, columns[None], rows[:, None], permutations=number)
        expected = literal(exceeds, rows, columns, number).reshape(3, 2).T.ravel()
    # Both are counts of 2,000: the difference of two has a standard deviation of at most .016.
    assert found.p_value.ravel() == pytest.approx(expected, abs=0.055)
    assert found.p_value.min() < 0.3


def test_shares_and_counts_are_those_of_the_cell_table() -> None:
    rng = stream(5, "cells")
    exceeds = rng.random((30, 40)) < 0.2
    rows, columns = rng.choice(list("abc"), (30, 1)), rng.choice(list("xy"), (1, 40))
    tests, table = cell_tests(exceeds, rows, columns), cell_table(exceeds.astype(float), rows, columns)
    assert (tests.rows, tests.columns) == (table.rows, table.columns)
    assert (tests.n == table.n).all()
    assert tests.exceed == pytest.approx(table.mean)


# ------------------------------------------------------------------------------------------------- properties


@given(
    exceeds=arrays.arrays(bool, st.tuples(st.integers(1, 8), st.integers(1, 8))),
    seed=st.integers(0, 10),
    n_labels=st.integers(1, 3),
)
@settings(max_examples=50)
def test_p_values_are_multiples_in_range_and_ignore_the_names_of_labels(
    exceeds: np.ndarray, seed: int, n_labels: int
) -> None:
    rng = stream(seed, "labels")
    rows, columns = (
        rng.integers(n_labels, size=(len(exceeds), 1)),
        rng.integers(n_labels, size=(1, exceeds.shape[1])),
    )
    crosses: list[tuple[np.ndarray, np.ndarray | None]] = [
        (rows, None),
        (columns, None),
        (rows, columns),
        (rows, rows % 2),
    ]
    for first, second in crosses:
        tests = cell_tests(exceeds, first, second, permutations=19)
        filled = tests.n > 0
        steps = 20 * tests.p_value[filled]
        assert (np.abs(steps - np.round(steps)) < 1e-9).all()
        assert ((steps >= 1 - 1e-9) & (steps <= 20 + 1e-9)).all()
        assert (np.isnan(tests.p_value) == ~filled).all()
        assert (tests.q_value[filled] >= tests.p_value[filled] - 1e-12).all()
        assert tests.n.sum() == exceeds.size
        renamed = cell_tests(exceeds, first + 7, None if second is None else second + 7, permutations=19)
        assert (renamed.p_value[filled] == tests.p_value[filled]).all()


@given(exceeds=arrays.arrays(bool, st.tuples(st.integers(1, 8), st.integers(1, 8))), seed=st.integers(0, 10))
@settings(max_examples=50)
def test_ids_without_duplicates_change_nothing(exceeds: np.ndarray, seed: int) -> None:
    rows = stream(seed, "labels").integers(2, size=(len(exceeds), 1))
    ids = (np.arange(len(exceeds)), np.arange(exceeds.shape[1]))
    plain, named = (cell_tests(exceeds, rows, inputs=each, permutations=19) for each in (None, ids))
    assert plain.to_dict() == named.to_dict()


def test_a_seed_fixes_the_result_and_arguments_are_left_alone() -> None:
    exceeds = stream(1, "cells").random((40, 30)) < 0.1
    rows = np.repeat(list("abcd"), 10)[:, None]
    before = exceeds.copy(), rows.copy()
    first, again, other = (cell_tests(exceeds, rows, seed=seed) for seed in (4, 4, 5))
    assert first.to_dict() == again.to_dict()
    assert (first.p_value != other.p_value).any()
    assert (exceeds == before[0]).all()
    assert (rows == before[1]).all()


def test_more_cells_get_more_permutations() -> None:
    exceeds = stream(2, "cells").random((200, 50)) < 0.01
    few, many = (cell_tests(exceeds, np.arange(200)[:, None] % n) for n in (4, 100))
    assert (few.permutations, many.permutations) == (999, 4000)
    # One bad value of a hundred is out of reach with 999: its q would be 100/1000.
    assert 100 / (1 + many.permutations) < 0.05


# -------------------------------------------------------------------------------------- calibration and power


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


def test_dealing_labels_to_values_instead_of_inputs_would_find_what_is_not_there() -> None:
    # Only the input matters. A value-wise test (its limit is hypergeometric) takes 50 copies for evidence.
    wrong = []
    for trial in range(100):
        rng = stream(trial, "copies")
        exceeds = np.repeat(rng.random((60, 1)) < 0.1, 50, axis=1)
        inside = int(exceeds[:15].sum())
        wrong.append(scipy_stats.hypergeom.sf(inside - 1, exceeds.size, 15 * 50, int(exceeds.sum())))
    assert (np.array(wrong) <= 0.05).mean() > 0.25


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
        marked = [label for label, yes in zip(found.rows, found.significant().ravel(), strict=True) if yes]
        hits += "ring" in marked
        others += len(marked) - ("ring" in marked)
    assert hits == 10
    assert others <= 2


def test_one_bad_value_of_a_hundred_and_twenty_is_found() -> None:
    rng = stream(0, "planted")
    nouns = np.array([f"noun{place:03}" for place in range(119)] + ["ring"])
    labels = nouns[np.arange(2400) % 120]
    found = cell_tests(planted(rng, labels, 100), labels[:, None])
    assert found.significant()[found.rows.index("ring"), 0]
    assert found.significant().sum() <= 3


def test_a_bad_combination_is_found_in_its_cell() -> None:
    rng = stream(0, "combination")
    rows, columns = np.arange(200) % 4, np.arange(240) % 4
    values = rng.gamma(2.0, size=(200, 240)) + 4.0 * np.outer(rows == 2, columns == 1)
    found = cell_tests(values > np.quantile(values, 0.99), rows[:, None], columns[None])
    assert np.argwhere(found.significant()).tolist() == [[2, 1]]


# ------------------------------------------------------------------------------------------------------ speed


# ----------------------------------------------------------------------------------------------------- errors


def test_values_are_pairs_or_a_matrix() -> None:
    with pytest.raises(
        ShapeError, match=r"exceeds has shape \(2, 2, 2\); expected \[P\] pairs or the matrix"
    ):
        cell_tests(np.zeros((2, 2, 2), dtype=bool), np.zeros((2, 1, 1)))
    with pytest.raises(InputError, match=r"exceeds has shape \(0, 3\); expected at least one value"):
        cell_tests(np.zeros((0, 3), dtype=bool), np.zeros((0, 1)))


def test_a_label_belongs_to_an_input() -> None:
    exceeds = np.zeros((3, 4), dtype=bool)
    for shape in ((3,), (4,), (3, 4), (2, 1)):
        with pytest.raises(ShapeError, match=r"labels of the rows have shape .* \(3, 1\) or \(1, 4\)"):
            cell_tests(exceeds, np.zeros(shape))
    with pytest.raises(ShapeError, match=r"labels of the columns have shape \(5,\)"):
        cell_tests(exceeds[0], np.zeros(4), np.zeros(5))


def test_an_input_has_one_label() -> None:
    ids = (np.array([0, 1, 1]), np.arange(4))
    with pytest.raises(InputError, match="draws 1 and 2 have the same input id but different labels"):
        cell_tests(np.zeros((3, 4), dtype=bool), np.array([["a"], ["a"], ["b"]]), inputs=ids)


def test_ids_cover_both_axes() -> None:
    with pytest.raises(
        ShapeError, match=r"inputs holds ids for \(3,\) draws, but the values have shape \(3, 4\)"
    ):
        cell_tests(np.zeros((3, 4), dtype=bool), np.zeros((3, 1)), inputs=(np.arange(3),))


def test_there_are_permutations() -> None:
    with pytest.raises(InputError, match="permutations is 0; expected at least 1"):
        cell_tests(np.zeros(4, dtype=bool), np.zeros(4), permutations=0)


def test_results_are_frozen() -> None:
    made: CellTests = cell_tests(np.zeros(4, dtype=bool), np.zeros(4))
    with pytest.raises(AttributeError):
        made.pooled = 0.0  # type: ignore[misc]
