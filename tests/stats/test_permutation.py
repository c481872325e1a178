"""Permutation tests against worked cases, golden values, literal enumeration and their own size."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats as scipy_stats

from assay.core.errors import InputError, NonFiniteError, ShapeError, UnknownNameError
from assay.core.random import stream
from assay.stats import MeanTest, benjamini_hochberg, mean_tests, spearman, spearman_test


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"
STABILITY = json.loads((GOLDEN / "certified_stability.json").read_text())
NOMOLOGICAL = json.loads((GOLDEN / "nomological.json").read_text())
RNG = np.random.default_rng  # exact tests draw nothing from it
SHORT = arrays.arrays(np.float64, st.integers(1, 8), elements=st.integers(-3, 3).map(float))


def mean_test(values: np.ndarray, **options: Any) -> MeanTest:
    """The tests of one column."""
    return mean_tests(values[:, None], **options)[0]


@pytest.mark.parametrize("case", STABILITY, ids=lambda case: str(len(case["effects_prompt_by_head"])))
def test_tests_of_means_match_golden_values(case: dict) -> None:
    found = mean_tests(np.array(case["effects_prompt_by_head"]), rng=stream(0, "heads"))
    t_values = np.array([test.t.p_value for test in found])
    assert t_values == pytest.approx(np.array(case["t_test_p_greater"]), rel=1e-9)
    assert (benjamini_hochberg(t_values) <= 0.05).tolist() == case["bh_certified_t"]
    if "sign_flip_exact_p_greater" in case:
        assert all(test.exact for test in found)
        assert [test.sign_flip.p_value for test in found] == pytest.approx(
            case["sign_flip_exact_p_greater"], rel=1e-9
        )


@given(SHORT)
def test_exact_flips_are_the_literal_ones(x: np.ndarray) -> None:
    sums = [float(np.dot(signs, x)) for signs in itertools.product((1, -1), repeat=len(x))]
    found = mean_test(x, rng=RNG(0))
    assert found.exact
    assert found.sign_flip.p_value == np.mean([each >= x.sum() for each in sums])


@given(SHORT, st.floats(0.01, 100))
def test_a_scale_changes_no_p_value(x: np.ndarray, scale: float) -> None:
    first, second = mean_test(x, rng=RNG(0)), mean_test(scale * x, rng=RNG(0))
    assert first.sign_flip.p_value == second.sign_flip.p_value
    assert first.t.p_value == pytest.approx(second.t.p_value, nan_ok=True)


def test_sums_that_differ_by_rounding_count_as_ties() -> None:
    x = np.array([0.1, 0.2, 0.3, -0.3, -0.2, -0.1])  # sums to -2.8e-17, or to 0 in another order
    whole = np.array([1.0, 2.0, 3.0, -3.0, -2.0, -1.0])
    assert mean_test(x, rng=RNG(0)).sign_flip.p_value == mean_test(whole, rng=RNG(0)).sign_flip.p_value


def test_random_flips_agree_with_counting_all() -> None:
    x = stream(0, "thirteen").normal(0.3, 1, size=13)
    signs = 1 - 2 * ((np.arange(2**13)[:, None] >> np.arange(13)) & 1)
    exact = float(np.mean(signs @ x >= x.sum() - 1e-9))
    found = mean_test(x, rng=stream(0, "flips"))
    assert not found.exact
    assert found.sign_flip.p_value == pytest.approx(exact, abs=3.5 * math.sqrt(exact * (1 - exact) / 10_000))
    fewest = mean_test(np.ones(40), rng=stream(0, "flips"), n_permutations=99)
    assert fewest.sign_flip.p_value == 0.01
    assert mean_test(x, rng=stream(0, "flips")) == found


def test_means_without_spread_or_values() -> None:
    zeros = mean_test(np.zeros(20), rng=RNG(0))
    assert zeros.sign_flip.p_value == 1.0
    assert zeros.t.reason == "zero_variance"
    assert math.isnan(zeros.t.p_value)
    up, down = mean_test(np.full(3, 0.1), rng=RNG(0)), mean_test(np.full(3, -0.1), rng=RNG(0))
    assert (up.sign_flip.p_value, up.t.statistic, up.t.p_value) == (0.125, math.inf, 0.0)
    assert (down.sign_flip.p_value, down.t.statistic, down.t.p_value) == (1.0, -math.inf, 1.0)
    assert up.t.reason == "degenerate"
    one = mean_test(np.array([2.0]), rng=RNG(0))
    assert one.sign_flip.p_value == 0.5
    assert one.t.reason == "too_few"
    none = mean_test(np.empty(0), rng=RNG(0))
    assert none.sign_flip.reason == none.t.reason == "too_few"
    assert math.isnan(none.sign_flip.p_value)
    assert mean_tests(np.empty((4, 0)), rng=RNG(0)) == ()
    json.dumps(up.to_dict(), allow_nan=False)
    with pytest.raises(NonFiniteError, match="values hold nan"):
        mean_test(np.array([math.nan]), rng=RNG(0))
    with pytest.raises(InputError, match="n_permutations is 0; expected at least 1"):
        mean_test(np.ones(3), rng=RNG(0), n_permutations=0)


def test_a_symmetric_null_is_rejected_at_its_level() -> None:
    worlds = stream(0, "null worlds").standard_t(3, size=(20, 2000))
    p_values = [test.sign_flip.p_value for test in mean_tests(worlds, rng=stream(0, "null flips"))]
    # Columns share their flips, yet each is its own world: three and a half standard errors of 5 %.
    assert np.mean(np.array(p_values) <= 0.05) == pytest.approx(0.05, abs=3.5 * math.sqrt(0.0475 / 2000))


# ------------------------------------------------------------------------------------------------- ranks


@settings(max_examples=40)
@given(
    st.integers(2, 6).flatmap(
        lambda n: arrays.arrays(np.float64, (2, n), elements=st.integers(0, 4).map(float))
    )
)
def test_exact_rank_tests_are_the_literal_enumeration(pair: np.ndarray) -> None:
    x, y = pair
    upper = spearman_test(x, y, rng=RNG(0), alternative="greater")
    both = spearman_test(x, y, rng=RNG(0))
    if (x == x[0]).all() or (y == y[0]).all():
        assert upper.reason == both.reason == "zero_variance"
        assert math.isnan(upper.rho)
        return
    rho = spearman(x, y)
    orders = np.array([spearman(x, y[list(order)]) for order in itertools.permutations(range(len(x)))])
    assert upper.rho == pytest.approx(rho)
    assert upper.p_value == pytest.approx(np.mean(orders >= rho - 1e-9))
    assert both.p_value == pytest.approx(np.mean(np.abs(orders) >= abs(rho) - 1e-9))
    assert upper.smallest_p == pytest.approx(np.mean(orders >= orders.max() - 1e-9))
    assert both.smallest_p == pytest.approx(np.mean(np.abs(orders) >= np.abs(orders).max() - 1e-9))
    assert upper.smallest_p <= upper.p_value


@pytest.mark.parametrize("case", NOMOLOGICAL, ids=lambda case: f"{len(case['pathway_depth'])}-roles")
def test_exact_p_values_of_roles_match_golden_values(case: dict) -> None:
    roles = case["circuit"]["roles"]
    layers = np.array([np.mean([layer for layer, _ in roles[role]]) for role in case["pathway_depth"]])
    depths = np.array(list(case["pathway_depth"].values()))
    found = spearman_test(layers, depths, rng=RNG(0), alternative="greater")
    assert found.rho == pytest.approx(case["role_level_rho"], rel=1e-9)
    assert found.p_value == pytest.approx(case["role_level_exact_p_greater"], rel=1e-9)


def test_all_orders_of_eight_are_counted_once() -> None:
    found = spearman_test(np.arange(8.0), np.arange(8.0), rng=RNG(0), alternative="greater")
    assert found.exact
    assert found.p_value == found.smallest_p == pytest.approx(1 / math.factorial(8))
    # Three in order of three: p = 1/6 whatever they are, which no level of 0.05 can reject.
    assert spearman_test(np.arange(3.0), np.arange(3.0), rng=RNG(0), alternative="greater").smallest_p > 0.05


def test_random_orders_agree_with_the_t_approximation() -> None:
    rng = stream(0, "ranks")
    x = rng.normal(size=40)
    y = 0.3 * x + rng.normal(size=40)
    found = spearman_test(x, y, rng=stream(0, "orders"))
    reference = scipy_stats.spearmanr(x, y)
    assert not found.exact
    assert found.rho == pytest.approx(reference.statistic)
    assert found.p_value == pytest.approx(reference.pvalue, abs=0.012)
    assert found.smallest_p == 1 / 10_001


@given(st.integers(0, 2**32 - 1))
def test_monotone_maps_and_swapped_sides_change_nothing(seed: int) -> None:
    x, y = np.random.default_rng(seed).normal(size=(2, 6))
    first = spearman_test(x, y, rng=RNG(0))
    assert spearman_test(np.exp(x), 3 * y - 7, rng=RNG(0)) == first
    assert spearman_test(y, x, rng=RNG(0)) == first
    assert spearman_test(-x, y, rng=RNG(0)).rho == pytest.approx(-first.rho)


def test_rank_tests_refuse_what_they_cannot_rank(unchecked: None) -> None:
    assert spearman_test(np.ones(1), np.ones(1), rng=RNG(0)).reason == "too_few"
    with pytest.raises(UnknownNameError, match="unknown alternative 'greatest'; did you mean 'greater'"):
        spearman_test(np.ones(3), np.ones(3), rng=RNG(0), alternative="greatest")
    with pytest.raises(ShapeError, match=r"got shapes \(3,\) and \(4,\)"):
        spearman_test(np.ones(3), np.ones(4), rng=RNG(0))
    with pytest.raises(NonFiniteError, match="y hold nan"):
        spearman_test(np.ones(2), np.array([1.0, math.nan]), rng=RNG(0))
