"""Binomial bounds against golden values, worked cases, brute force and each other."""

import json
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from assay.core.errors import InputError, UnknownNameError
from assay.stats import (
    all_pairs_failure,
    all_pairs_order_failure,
    best_all_pairs_order,
    best_order_statistic,
    certificates,
    maximum_exceedance,
    percentile_confidence,
    percentile_failure,
    percentile_sample_size,
)


GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "adversarial" / "bounds.json").read_text())


def case_name(case: dict[str, Any]) -> str:
    return "-".join(f"{case[key]:g}" for key in ("n", "n_clean", "p", "delta", "epsilon") if key in case)


golden = {key: pytest.mark.parametrize("case", cases, ids=case_name) for key, cases in GOLDEN.items()}


# Two-digit shares, as users write them.
def shares(low: int = 1, high: int = 99) -> st.SearchStrategy[float]:
    return st.integers(low, high).map(lambda percent: percent / 100)


def exact(value: float) -> Fraction:
    return Fraction(str(value))


# -------------------------------------------------------------------------------------- one order statistic


@golden["probability"]
def test_failures_match_golden_values(case: dict[str, Any]) -> None:
    n, p, epsilon = case["n"], case["p"], case["epsilon"]
    for bound in ("exact", "chernoff", "hoeffding"):
        assert percentile_failure(n, p, epsilon, bound) == pytest.approx(case[f"fail_{bound}"], rel=1e-9)
    assert percentile_confidence(n, p, epsilon) == pytest.approx(case["pr_exact"], rel=1e-9)


@golden["probability"]
def test_ranks_follow_the_decimals_and_not_the_floats(case: dict[str, Any]) -> None:
    n, p, epsilon = case["n"], case["p"], case["epsilon"]
    assert certificates.order_of(n, p, epsilon) == case["k"]
    assert math.ceil((p + epsilon) * n) == case["k_float_ceil"]  # 58 and 495 where the ranks are 57 and 494


def test_a_coin_tossed_three_times() -> None:
    # k = ceil(0.6 * 3) = 2 and 3 of the 8 outcomes have two heads, one has three.
    assert percentile_failure(3, 0.5, 0.1) == pytest.approx(4 / 8, rel=1e-15)
    # k = ceil(0.7 * 3) = 3
    assert percentile_failure(3, 0.5, 0.2) == pytest.approx(1 / 8, rel=1e-15)
    assert percentile_failure(3, 0.5, 0.2, "hoeffding") == pytest.approx(math.exp(-2 * 3 * 0.04), rel=1e-12)
    divergence = 0.7 * math.log(1.4) + 0.3 * math.log(0.6)
    assert percentile_failure(3, 0.5, 0.2, "chernoff") == pytest.approx(math.exp(-3 * divergence), rel=1e-12)


@given(n=st.integers(1, 3000), p=shares(), epsilon=st.integers(1, 98).map(lambda percent: percent / 100))
def test_each_closed_form_is_weaker_than_the_one_before(n: int, p: float, epsilon: float) -> None:
    assume(exact(p) + exact(epsilon) < 1)
    sharpest, middle, simplest = (
        percentile_failure(n, p, epsilon, bound) for bound in ("exact", "chernoff", "hoeffding")
    )
    assert 0 <= sharpest <= middle * (1 + 1e-12)
    assert middle <= simplest * (1 + 1e-12)
    assert percentile_confidence(n, p, epsilon) == 1 - sharpest


@given(n=st.integers(1, 300), p=shares(1, 97), epsilon=shares(1, 97))
def test_a_higher_rank_fails_less_and_a_higher_percentile_more(n: int, p: float, epsilon: float) -> None:
    assume(exact(p) + exact(epsilon) < exact(0.99))
    failure = percentile_failure(n, p, epsilon)
    assert percentile_failure(n, p, float(exact(epsilon) + exact(0.01))) <= failure
    if exact(epsilon) > exact(0.01):  # the same rank, a higher percentile
        assert (
            percentile_failure(n, float(exact(p) + exact(0.01)), float(exact(epsilon) - exact(0.01)))
            >= failure
        )


@given(
    p=st.integers(1, 9999).map(lambda digits: Fraction(digits, 10_000)),
    exponent=st.floats(-12, 0),
    sign=st.sampled_from([-1, 1]),
)
def test_the_divergence_of_close_coins_keeps_its_precision(p: Fraction, exponent: float, sign: int) -> None:
    other = p + sign * exact(float(f"{10**exponent:.3g}"))
    assume(0 < other < 1)
    with localcontext() as context:
        context.prec = 60
        a, b = (Decimal(each.numerator) / Decimal(each.denominator) for each in (other, p))
        expected = float(a * (a / b).ln() + (1 - a) * ((1 - a) / (1 - b)).ln())
    assert certificates._divergence(other, p) == pytest.approx(expected, rel=1e-12)


# --------------------------------------------------------------------------------------- best order statistic


@golden["best_order_statistic"]
def test_best_order_statistics_match_golden_values(case: dict[str, Any]) -> None:
    best = best_order_statistic(case["n"], case["p"], case["delta"])
    assert (best.order, best.n_needed) == (case["k"], case["min_n"])
    if case["pr"] is None:
        assert math.isnan(best.failure)
    else:
        assert 1 - best.failure == pytest.approx(case["pr"], rel=1e-9)


@pytest.mark.parametrize(("p", "n_needed"), [(0.95, 59), (0.99, 299), (0.999, 2995), (0.9999, 29_956)])
def test_the_maximum_needs_this_many_values(p: float, n_needed: int) -> None:
    assert best_order_statistic(1, p, 0.95).n_needed == n_needed
    assert best_order_statistic(n_needed, p, 0.95).order == n_needed
    assert best_order_statistic(n_needed - 1, p, 0.95).order is None


@pytest.mark.parametrize(
    ("n", "p", "delta", "order"),
    # Failures that meet 1 - delta to the last digit; the logarithms of 0.3^2 round to the wrong side.
    [(2, 0.5, 0.75, 2), (2, 0.9, 0.19, 2), (2, 0.1, 0.81, 1), (4, 0.5, 0.3125, 2), (2, 0.3, 0.91, 2)],
)
def test_a_failure_of_exactly_one_minus_delta_is_allowed(n: int, p: float, delta: float, order: int) -> None:
    assert best_order_statistic(n, p, delta).order == order


@given(n=st.integers(1, 2000), p=shares(), delta=shares())
def test_the_best_rank_is_the_smallest_that_reaches_delta(n: int, p: float, delta: float) -> None:
    best = best_order_statistic(n, p, delta)
    allowed = float(1 - exact(delta))
    if best.order is None:
        assert n < best.n_needed
        assert p**n > allowed
        return
    assert n >= best.n_needed
    assert best.failure <= allowed * (1 + 1e-12)
    assert scipy_stats.binom.sf(best.order - 2, n, p) > allowed or best.order == 1


# ----------------------------------------------------------------------------------------------- sample sizes


@golden["table"]
def test_sample_sizes_match_golden_values(case: dict[str, Any]) -> None:
    asked = (case["p"], case["delta"], case["epsilon"])
    size = percentile_sample_size(*asked, details=True)
    assert (size.first, size.stable) == (case["n_first"], case["n_stable"])
    assert percentile_sample_size(*asked) == case["n_stable"]
    assert percentile_sample_size(*asked, "chernoff") == case["n_chernoff"]
    assert percentile_sample_size(*asked, "hoeffding") == case["n_hoeffding"]
    for n, expected in (
        (size.first, "pr_at_n_first"),
        (size.first - 1, "pr_at_n_first_minus_1"),
        (size.stable - 1, "pr_at_n_stable_minus_1"),
        (case["n_bisection"], "pr_at_n_bisection"),
    ):
        assert percentile_confidence(n, case["p"], case["epsilon"]) == pytest.approx(case[expected], rel=1e-9)


@pytest.mark.parametrize(
    ("p", "delta", "epsilon", "sizes"),
    [
        (0.95, 0.95, 0.01, (1148, 1326, 2659, 14_979)),
        (0.95, 0.99, 0.01, (2348, 2526, 4088, 23_026)),
        (0.95, 0.95, 0.04, (59, 59, 122, 937)),
        (0.99, 0.95, 0.005, (773, 1049, 1937, 59_915)),
        (0.99, 0.99, 0.005, (1596, 2010, 2978, 92_104)),
        (0.999, 0.999, 0.0005, (29_844, 32_616, 44_987, 13_815_511)),
    ],
)
def test_the_published_table_with_its_exact_column_split_in_two(
    p: float, delta: float, epsilon: float, sizes: tuple[int, ...]
) -> None:
    size = percentile_sample_size(p, delta, epsilon, details=True)
    closed = tuple(percentile_sample_size(p, delta, epsilon, bound) for bound in ("chernoff", "hoeffding"))
    assert (size.first, size.stable, *closed) == sizes


@settings(max_examples=60)
@given(p=shares(), delta=shares(), epsilon=st.integers(5, 900).map(lambda mille: mille / 1000))
def test_sizes_equal_those_of_trying_every_n(p: float, delta: float, epsilon: float) -> None:
    assume(exact(p) + exact(epsilon) < 1)
    largest = percentile_sample_size(p, delta, epsilon, "chernoff")  # from here on every n is enough
    assume(largest < 20_000)
    n = np.arange(1, largest + 1)
    target = exact(p) + exact(epsilon)
    orders = -(-n * target.numerator // target.denominator)
    enough = scipy_stats.binom.sf(orders - 1, n, p) <= float(1 - exact(delta)) * (1 + 1e-12)
    lacking = n[~enough]
    size = percentile_sample_size(p, delta, epsilon, details=True)
    assert size.first == n[np.argmax(enough)]
    assert size.stable == (lacking[-1] + 1 if len(lacking) else 1)


def test_sizes_of_a_tiny_epsilon_are_exact() -> None:
    p, delta, epsilon = 0.5, 0.95, 0.001  # 7e5 runs up to Chernoff's size
    size = percentile_sample_size(p, delta, epsilon, details=True)
    # Around the size of the normal approximation, z^2 p (1 - p) / epsilon^2, by about a part in root n.
    assert size.first == pytest.approx(1.6448536**2 / 4 / epsilon**2, rel=5e-3)
    for n, reached in (
        (size.first - 1, False),
        (size.first, True),
        (size.stable - 1, False),
        (size.stable, True),
    ):
        assert (percentile_confidence(n, p, epsilon) >= delta) is reached


def test_an_epsilon_beyond_exact_reach_points_to_the_closed_form() -> None:
    with pytest.raises(InputError, match=r"exact sizes are computed only up to 1e\+07; use bound='chernoff'"):
        percentile_sample_size(0.5, 0.95, 1e-9)
    assert percentile_sample_size(0.5, 0.95, 1e-9, "chernoff") == pytest.approx(
        -math.log(0.05) / 2e-18, rel=1e-9
    )


# -------------------------------------------------------------------------------------------------- all pairs


@golden["all_pairs"]
def test_bounds_of_all_pairs_match_golden_values(case: dict[str, Any]) -> None:
    asked = (case["n_clean"], case["n_corrupted"], case["p"])
    assert certificates.order_of(asked[0] * asked[1], asked[2], case["epsilon"]) == case["k_all_pairs"]
    assert all_pairs_failure(*asked, case["epsilon"]) == pytest.approx(case["fail_convex"], rel=1e-9)
    for bound in ("chernoff", "hoeffding"):
        found = all_pairs_failure(*asked, case["epsilon"], bound)
        assert found == pytest.approx(case[f"fail_{bound}_m"], rel=1e-9)


def convex_bound(n_clean: int, n_corrupted: int, p: float, order: int) -> tuple[float, int]:
    """The bound and its j, from the closed form of the expectation."""
    m = min(n_clean, n_corrupted)
    target = Fraction(order * m, n_clean * n_corrupted)

    def excess(j: int) -> float:
        return m * p * scipy_stats.binom.sf(j - 1, m - 1, p) - j * scipy_stats.binom.sf(j, m, p)

    return min((excess(j) / float(target - j), j) for j in range(math.ceil(target)))


@golden["all_pairs"]
def test_the_convex_bound_is_its_formula(case: dict[str, Any]) -> None:
    asked = (case["n_clean"], case["n_corrupted"], case["p"])
    literal, j = convex_bound(*asked, case["k_all_pairs"])
    assert j == case["argmin_j"]
    assert all_pairs_order_failure(*asked, case["k_all_pairs"]) == pytest.approx(literal, rel=1e-9)


def test_treating_two_inputs_a_side_as_two_independent_values_is_no_bound() -> None:
    # Four pairs with independent noise, third smallest: it fails when at least 3 of 4 fall below the median.
    truth = float(scipy_stats.binom.sf(2, 4, 0.5))
    assert truth == pytest.approx(0.3125)
    assert percentile_failure(2, 0.5, 0.01) == pytest.approx(0.25)  # k = ceil(1.02) = 2 of "two" values
    # j = 0: E B / 1.5 = 2/3; j = 1: E (B - 1)_+ / 0.5 = 1/2.
    assert all_pairs_failure(2, 2, 0.5, 0.01) == 0.5 > truth


@given(
    n_clean=st.integers(1, 120),
    n_corrupted=st.integers(1, 120),
    p=shares(),
    epsilon=st.integers(1, 98).map(lambda percent: percent / 100),
)
def test_the_convex_bound_is_the_sharpest_for_all_pairs(
    n_clean: int, n_corrupted: int, p: float, epsilon: float
) -> None:
    assume(exact(p) + exact(epsilon) < 1)
    sharpest, middle, simplest = (
        all_pairs_failure(n_clean, n_corrupted, p, epsilon, bound)
        for bound in ("convex", "chernoff", "hoeffding")
    )
    assert 0 <= sharpest <= middle * (1 + 1e-12)
    assert middle <= simplest * (1 + 1e-12)
    assert sharpest == all_pairs_failure(n_corrupted, n_clean, p, epsilon)
    literal, _ = convex_bound(
        n_clean, n_corrupted, p, certificates.order_of(n_clean * n_corrupted, p, epsilon)
    )
    assert sharpest == pytest.approx(min(literal, 1.0), rel=1e-6, abs=1e-14)  # the closed form cancels


def test_the_bound_cannot_beat_independent_values_by_much_nor_vanish() -> None:
    # The largest of all pairs fails with p^m at most, which the bound reaches.
    assert all_pairs_order_failure(10, 12, 0.8, 120) == pytest.approx(0.8**10, rel=1e-12)
    assert all_pairs_order_failure(10, 12, 0.8, 120, "chernoff") == pytest.approx(0.8**10, rel=1e-12)
    assert all_pairs_order_failure(10, 12, 0.8, 96) == 1.0
    assert all_pairs_order_failure(10, 12, 0.8, 1, "hoeffding") == 1.0


@given(n_clean=st.integers(1, 90), n_corrupted=st.integers(1, 90), p=shares(), delta=shares())
def test_the_best_rank_of_all_pairs_is_the_smallest(
    n_clean: int, n_corrupted: int, p: float, delta: float
) -> None:
    best = best_all_pairs_order(n_clean, n_corrupted, p, delta)
    assert best.n_needed == best_order_statistic(1, p, delta).n_needed
    allowed = float(1 - exact(delta))
    if best.order is None:
        assert min(n_clean, n_corrupted) < best.n_needed
        return
    assert best.failure <= allowed * (1 + 1e-9)
    if best.order > 1:
        lower = all_pairs_order_failure(n_clean, n_corrupted, p, best.order - 1)
        assert lower >= allowed * (1 - 1e-9)


@pytest.mark.parametrize(
    ("m", "p", "delta", "disjoint", "all_pairs"),
    [
        (1000, 0.95, 0.95, 0.0120, 0.0138),
        (1000, 0.95, 0.99, 0.0160, 0.0175),
        (1000, 0.99, 0.95, 0.0060, 0.0059),
        (1000, 0.99, 0.99, 0.0080, 0.0073),
        (3000, 0.95, 0.95, 0.0067, 0.0081),
        (3000, 0.95, 0.99, 0.0093, 0.0104),
        (10_000, 0.99, 0.95, 0.0017, 0.0020),
        (10_000, 0.99, 0.99, 0.0023, 0.0026),
        (10_000, 0.999, 0.95, 0.0006, 0.0006),
        (10_000, 0.999, 0.99, 0.0008, 0.0007),
    ],
)
def test_what_all_pairs_cost_beside_disjoint_ones(
    m: int, p: float, delta: float, disjoint: float, all_pairs: float
) -> None:
    order = best_order_statistic(m, p, delta).order
    assert order is not None
    assert order / m - p == pytest.approx(disjoint, abs=5.1e-5)
    order = best_all_pairs_order(m, m, p, delta).order
    assert order is not None
    # The table was read off a grid, which overstates by up to 1.4e-4; the rank itself is checked above.
    assert all_pairs - 1.5e-4 <= order / m**2 - p <= all_pairs + 5e-5


# ---------------------------------------------------------------------------------------------------- maximum


def test_a_new_value_seldom_exceeds_the_maximum() -> None:
    assert maximum_exceedance(1000) == pytest.approx(1 - 0.05 ** (1 / 1000), rel=1e-12)
    assert maximum_exceedance(1000) == pytest.approx(0.003, abs=1e-5)
    assert maximum_exceedance(1, delta=0.75) == pytest.approx(0.75, rel=1e-12)
    # It is the percentile that the maximum bounds: n values are just enough for it.
    assert best_order_statistic(1, 1 - maximum_exceedance(59), 0.95).n_needed == 59


@given(n=st.integers(1, 10**9), delta=shares())
def test_more_values_leave_less_above_their_maximum(n: int, delta: float) -> None:
    assert 0 < maximum_exceedance(n + 1, delta=delta) < maximum_exceedance(n, delta=delta) < 1


# ----------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, math.nan, math.inf])
def test_a_percentile_is_a_share(p: float) -> None:
    with pytest.raises(InputError, match=r"p is .*strictly between 0 and 1"):
        percentile_failure(10, p, 0.01)


def test_percent_are_recognised() -> None:
    with pytest.raises(InputError, match=r"p is 99\.9; .* write 0\.999 for 99\.9 %"):
        best_order_statistic(100, 99.9, 0.95)


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, math.nan])
def test_a_confidence_is_a_share(delta: float) -> None:
    for refused in (
        lambda: best_order_statistic(10, 0.5, delta),
        lambda: best_all_pairs_order(10, 10, 0.5, delta),
        lambda: percentile_sample_size(0.5, delta, 0.1),
        lambda: maximum_exceedance(10, delta=delta),
    ):
        with pytest.raises(InputError, match=r"delta is .*strictly between 0 and 1"):
            refused()


@pytest.mark.parametrize("epsilon", [0.0, -0.1, math.nan, math.inf])
def test_epsilon_is_positive(epsilon: float) -> None:
    with pytest.raises(InputError, match=r"epsilon is .*a positive number with p \+ epsilon < 1"):
        percentile_sample_size(0.5, 0.9, epsilon)


@pytest.mark.parametrize(("p", "epsilon"), [(0.9999, 0.0005), (0.9999, 0.0001), (0.7, 0.3)])
def test_no_order_statistic_lies_beyond_the_maximum(p: float, epsilon: float) -> None:
    for refused in (
        lambda: percentile_confidence(10**6, p, epsilon),
        lambda: percentile_sample_size(p, 0.95, epsilon),
        lambda: all_pairs_failure(10, 10, p, epsilon),
    ):
        with pytest.raises(InputError, match=r"p \+ epsilon is 1.*must stay below 1.*Use epsilon < "):
            refused()


@pytest.mark.parametrize("n", [0, -5])
def test_counts_start_at_one(n: int) -> None:
    for refused in (
        lambda: percentile_confidence(n, 0.5, 0.1),
        lambda: best_order_statistic(n, 0.5, 0.9),
        lambda: maximum_exceedance(n),
    ):
        with pytest.raises(InputError, match=rf"n is {n}; expected at least 1"):
            refused()
    for refused in (
        lambda: all_pairs_failure(4, n, 0.5, 0.1),
        lambda: all_pairs_order_failure(4, n, 0.5, 1),
        lambda: best_all_pairs_order(4, n, 0.5, 0.9),
    ):
        with pytest.raises(InputError, match=rf"n_corrupted is {n}; expected at least 1"):
            refused()


def test_unknown_bounds_list_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'chernoff'"):
        percentile_failure(10, 0.5, 0.1, "chernov")
    with pytest.raises(UnknownNameError, match="known: chernoff, exact, hoeffding"):
        percentile_sample_size(0.5, 0.9, 0.1, "z")
    with pytest.raises(UnknownNameError, match="known: chernoff, convex, hoeffding"):
        all_pairs_failure(5, 5, 0.5, 0.1, "z")


@pytest.mark.parametrize("order", [0, 21])
def test_a_rank_lies_among_the_values(order: int) -> None:
    with pytest.raises(
        InputError, match=rf"order is {order}; expected a rank among the 4 x 5 values, 1 to 20"
    ):
        all_pairs_order_failure(4, 5, 0.5, order)
