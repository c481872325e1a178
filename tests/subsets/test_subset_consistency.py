"""Overlap of selections, between that of two random draws and nesting."""

import json
import math
from fractions import Fraction
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.analyses.subsets.consistency import SelectionConsistency, expected_jaccard, selection_consistency
from assay.core.errors import InputError, ShapeError


GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "oodselect"
# The exact sums hold up to rounding; golden values have 12 decimals.
EXACT = 1e-11


def literal_expectation(first: int, second: int, n: int) -> Fraction:
    """E[h / (a + b - h)] in whole numbers, counting draws of `first` that share h with a fixed set."""
    total = Fraction(0)
    for h in range(max(0, first + second - n), min(first, second) + 1):
        ways = comb(second, h) * comb(n - second, first - h)
        total += Fraction(ways, comb(n, first)) * Fraction(h, first + second - h)
    return total


def literal_matrices(sets: list[list[int]], n: int) -> dict[str, np.ndarray]:
    k = len(sets)
    found = {name: np.ones((k, k)) for name in ("jaccard", "maximum", "expected", "normalised")}
    for i in range(k):
        for j in range(k):
            if i == j:
                continue
            a, b = sorted((len(sets[i]), len(sets[j])))
            together, either = set(sets[i]) & set(sets[j]), set(sets[i]) | set(sets[j])
            chance = literal_expectation(a, b, n)
            jaccard, most = Fraction(len(together), len(either)), Fraction(a, b)
            found["jaccard"][i, j] = jaccard
            found["maximum"][i, j] = most
            found["expected"][i, j] = chance
            found["normalised"][i, j] = (jaccard - chance) / (most - chance) if most > chance else math.nan
    return found


@st.composite
def selections(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    n = draw(st.integers(2, 30))
    sets = draw(
        st.lists(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True), min_size=1, max_size=5)
    )
    return sets, n


def test_two_of_four_by_hand() -> None:
    # h = 0, 1, 2 with probability 1/6, 4/6, 1/6: E = 4/6 * 1/3 + 1/6 = 7/18.
    found = selection_consistency([[0, 1], [1, 2]], 4)
    assert found.jaccard[0, 1] == 1 / 3
    assert found.expected[0, 1] == pytest.approx(7 / 18, abs=EXACT)
    assert found.normalised[0, 1] == pytest.approx((1 / 3 - 7 / 18) / (1 - 7 / 18), abs=EXACT)
    assert found.mean == found.mean_adjacent == found.lowest == found.normalised[0, 1] < 0
    assert found.lowest_pair == (0, 1)


@pytest.mark.parametrize("name", ["small_101", "small_102"])
def test_golden_sets(name: str) -> None:
    for case in json.loads((GOLDEN / f"{name}.json").read_text())["jaccard"]:
        found = selection_consistency(case["sets"], case["universe"])
        for golden, ours in (
            ("expected_random", "expected"),
            *((key, key) for key in ("jaccard", "maximum")),
        ):
            np.testing.assert_allclose(getattr(found, ours), case[golden], atol=EXACT)
        np.testing.assert_allclose(found.normalised, case["normalised"], atol=EXACT)


@given(selections())
def test_all_matrices_equal_the_literal_ones(case: tuple[list[list[int]], int]) -> None:
    sets, n = case
    found = selection_consistency([np.array(each) for each in sets], n)
    for name, wanted in literal_matrices(sets, n).items():
        np.testing.assert_allclose(getattr(found, name), wanted, atol=EXACT)


@given(selections(), st.randoms(use_true_random=False))
def test_neither_order_inside_a_set_nor_names_of_examples_matter(
    case: tuple[list[list[int]], int], random: Any
) -> None:
    sets, n = case
    renamed = random.sample(range(n), n)
    moved = [random.sample([renamed[each] for each in of], len(of)) for of in sets]
    before, after = selection_consistency(sets, n), selection_consistency(moved, n)
    np.testing.assert_array_equal(before.normalised, after.normalised)


@given(selections())
def test_values_lie_at_most_at_one_and_are_symmetric(case: tuple[list[list[int]], int]) -> None:
    found = selection_consistency(*case)
    defined = found.normalised[np.isfinite(found.normalised)]
    assert (defined <= 1 + EXACT).all()
    np.testing.assert_array_equal(found.normalised, found.normalised.T)
    assert (np.diag(found.normalised) == 1).all()
    assert (found.expected <= found.maximum + EXACT).all()


def test_nested_selections_are_fully_consistent() -> None:
    order = np.random.default_rng(0).permutation(500)
    found = selection_consistency([order[:size] for size in (10, 60, 200, 499)], 500)
    np.testing.assert_allclose(found.normalised, 1.0, atol=1e-9)
    assert found.mean == pytest.approx(1.0, abs=1e-9)


def test_random_selections_are_consistent_as_chance_is() -> None:
    rng = np.random.default_rng(1)
    found = selection_consistency([rng.permutation(2000)[:300] for _ in range(40)], 2000)
    assert abs(found.mean) < 0.01


def test_the_whole_pool_has_no_consistency_with_a_part_of_it() -> None:
    found = selection_consistency([[0, 1], [1, 2, 3], range(9)], 9)
    assert np.isnan(found.normalised[2, :2]).all()
    assert found.mean == found.mean_adjacent == found.lowest == found.normalised[0, 1]


def test_one_selection_has_no_pair() -> None:
    found = selection_consistency([[3]], 9)
    assert math.isnan(found.mean)
    assert math.isnan(found.lowest)
    assert found.lowest_pair is None


def test_neighbours_are_neighbours_in_size() -> None:
    sets = [list(range(30)), [0], list(range(20, 50)), list(range(5))]
    found = selection_consistency(sets, 100)
    pairs = [(1, 3), (3, 0), (0, 2)]
    assert found.mean_adjacent == pytest.approx(np.mean([found.normalised[pair] for pair in pairs]))


@pytest.mark.parametrize(
    ("first", "second", "n"), [(1, 1, 7), (3, 5, 9), (40, 300, 700), (700, 350, 700), (250, 900, 1000)]
)
def test_the_expectation_is_exact(first: int, second: int, n: int) -> None:
    wanted = float(literal_expectation(first, second, n))
    assert expected_jaccard(first, second, n) == pytest.approx(wanted, rel=EXACT)
    assert expected_jaccard(first, second, n) == expected_jaccard(second, first, n)


def test_a_large_pool_is_summed_as_exactly_as_a_small_one() -> None:
    # Whole numbers over a pool of 150,000 are slow; one pair with a short sum is enough.
    wanted = float(literal_expectation(12, 60_000, 150_000))
    assert expected_jaccard(12, 60_000, 150_000) == pytest.approx(wanted, rel=EXACT)
    # Concentrated around ab/N: J of the mean overlap up to the variance of h.
    a, b, n = 60_000, 90_000, 150_000
    h = a * b / n
    assert expected_jaccard(a, b, n) == pytest.approx(h / (a + b - h), rel=1e-5)
    assert expected_jaccard(60_000, 150_000, 150_000) == 60_000 / 150_000


def test_random_pairs_estimate_the_expectation() -> None:
    sets = [list(range(20)), list(range(10, 70)), list(range(60, 100))]
    exact = selection_consistency(sets, 120)
    drawn = selection_consistency(sets, 120, n_random=4000, seed=3)
    again = selection_consistency(sets, 120, n_random=4000, seed=3)
    np.testing.assert_array_equal(drawn.expected, again.expected)
    # Standard error of the mean of 4000 overlaps is below 0.001.
    np.testing.assert_allclose(drawn.expected, exact.expected, atol=0.004)
    assert (drawn.expected != exact.expected).any()
    assert drawn.n_random == 4000


def test_a_record_gives_the_value_back() -> None:
    found = selection_consistency([[0, 1], [1, 2, 3], range(9)], 9)
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    back = SelectionConsistency.from_dict(record)
    assert back.to_dict() == record
    np.testing.assert_array_equal(back.normalised, found.normalised)
    assert selection_consistency([[0]], 2).to_dict()["mean"] is None
    assert math.isnan(SelectionConsistency.from_dict(selection_consistency([[0]], 2).to_dict()).lowest)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([], "sets is empty"),
        ([[0], []], r"sets\[1\] has shape \(0,\)"),
        ([[0, 1, 1]], r"sets\[0\] holds 1 more than once"),
        ([[0], [1, 10]], r"sets\[1\] holds 10; positions must lie in \[0, 9\]"),
        ([[-1]], r"sets\[0\] holds -1"),
    ],
)
def test_sets_that_are_none_are_named(sets: list[list[int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        selection_consistency(sets, 10)


def test_a_mask_is_no_selection() -> None:
    with pytest.raises(ShapeError, match="np.flatnonzero converts a mask"):
        selection_consistency([np.array([True, False])], 2)
    with pytest.raises(InputError, match="n_random is 0"):
        selection_consistency([[0], [1]], 2, n_random=0)
    with pytest.raises(InputError, match="a selection of 5 examples from n_examples=4"):
        expected_jaccard(5, 2, 4)
