"""Certificates of percentiles: golden values, worked cases, every n tried, and how often they fail."""

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
from scipy import special
from scipy import stats as scipy_stats

from assay.core.errors import InputError, NonFiniteError
from assay.core.random import stream
from assay.stats import (
    all_pairs_order_failure,
    best_all_pairs_order,
    certificate,
    certificates,
    maximum_exceedance,
    percentile_confidence,
    percentile_failure,
    percentile_sample_size,
)
from assay.stats.certificates import best_order_statistic, order_of


GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "adversarial" / "bounds.json").read_text())


def case_name(case: dict[str, Any]) -> str:
    return "-".join(f"{case[key]:g}" for key in ("n", "n_clean", "p", "delta", "epsilon") if key in case)


golden = {key: pytest.mark.parametrize("case", cases, ids=case_name) for key, cases in GOLDEN.items()}


def shares(low: int = 1, high: int = 99) -> st.SearchStrategy[float]:
    return st.integers(low, high).map(lambda percent: percent / 100)


def exact(value: float) -> Fraction:
    return Fraction(str(value))


@golden["probability"]
def test_failures_and_ranks_match_golden_values(case: dict[str, Any]) -> None:
    n, p, epsilon = case["n"], case["p"], case["epsilon"]
    for bound in ("exact", "chernoff", "hoeffding"):
        assert percentile_failure(n, p, epsilon, bound) == pytest.approx(case[f"fail_{bound}"], rel=1e-9)
    assert percentile_confidence(n, p, epsilon) == pytest.approx(case["pr_exact"], rel=1e-9)
    assert order_of(n, p, epsilon) == case["k"]  # by the decimals, not the floats
    assert math.ceil((p + epsilon) * n) == case["k_float_ceil"]  # 58 and 495 where the ranks are 57 and 494


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
    assert certificates._rate("chernoff", p, other) == pytest.approx(expected, rel=1e-12)


@golden["best_order_statistic"]
def test_best_order_statistics_match_golden_values(case: dict[str, Any]) -> None:
    best = best_order_statistic(case["n"], case["p"], case["delta"])
    assert (best.order, best.n_needed) == (case["k"], case["min_n"])
    expected = math.nan if case["pr"] is None else case["pr"]
    assert 1 - best.failure == pytest.approx(expected, rel=1e-9, nan_ok=True)


def test_a_failure_of_exactly_one_minus_delta_is_allowed() -> None:
    # Failures that meet 1 - delta to the last digit; the logarithms of 0.3^2 round to the wrong side.
    cases = [(2, 0.5, 0.75, 2), (2, 0.9, 0.19, 2), (2, 0.1, 0.81, 1), (4, 0.5, 0.3125, 2), (2, 0.3, 0.91, 2)]
    for n, p, delta, order in cases:
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


@golden["table"]
def test_sample_sizes_match_golden_values(case: dict[str, Any]) -> None:
    asked = (case["p"], case["delta"], case["epsilon"])
    first, stable = percentile_sample_size(*asked, details=True)
    assert (first, stable) == (case["n_first"], case["n_stable"])
    assert percentile_sample_size(*asked) == case["n_stable"]
    assert percentile_sample_size(*asked, "chernoff") == case["n_chernoff"]
    assert percentile_sample_size(*asked, "hoeffding") == case["n_hoeffding"]
    for n, expected in (
        (first, "pr_at_n_first"),
        (first - 1, "pr_at_n_first_minus_1"),
        (stable - 1, "pr_at_n_stable_minus_1"),
        (case["n_bisection"], "pr_at_n_bisection"),
    ):
        assert percentile_confidence(n, case["p"], case["epsilon"]) == pytest.approx(case[expected], rel=1e-9)


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
    first, stable = percentile_sample_size(p, delta, epsilon, details=True)
    assert first == n[np.argmax(enough)]
    assert stable == (lacking[-1] + 1 if len(lacking) else 1)


def test_sizes_of_a_tiny_epsilon_are_exact() -> None:
    p, delta, epsilon = 0.5, 0.95, 0.001
    first, stable = percentile_sample_size(p, delta, epsilon, details=True)
    # Around the size of the normal approximation, z^2 p (1 - p) / epsilon^2, by about a part in root n.
    assert first == pytest.approx(1.6448536**2 / 4 / epsilon**2, rel=5e-3)
    for n, reached in ((first - 1, False), (first, True), (stable - 1, False), (stable, True)):
        assert (percentile_confidence(n, p, epsilon) >= delta) is reached
    assert percentile_sample_size(1 / 3, 0.9, 0.1) > 30  # sixteen digits, beyond 64-bit products


def all_pairs_failure(
    n_clean: int, n_corrupted: int, p: float, epsilon: float, bound: str = "convex"
) -> float:
    order = order_of(n_clean * n_corrupted, p, epsilon)
    return all_pairs_order_failure(n_clean, n_corrupted, p, order, bound)


@golden["all_pairs"]
def test_bounds_of_all_pairs_match_golden_values(case: dict[str, Any]) -> None:
    asked = (case["n_clean"], case["n_corrupted"], case["p"])
    assert order_of(asked[0] * asked[1], asked[2], case["epsilon"]) == case["k_all_pairs"]
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
    literal, _ = convex_bound(n_clean, n_corrupted, p, order_of(n_clean * n_corrupted, p, epsilon))
    assert sharpest == pytest.approx(min(literal, 1.0), rel=1e-6, abs=1e-14)  # the closed form cancels


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


def test_a_new_value_seldom_exceeds_the_maximum() -> None:
    assert maximum_exceedance(1000) == pytest.approx(1 - 0.05 ** (1 / 1000), rel=1e-12)
    assert maximum_exceedance(1000) == pytest.approx(0.003, abs=1e-5)
    assert maximum_exceedance(1, delta=0.75) == pytest.approx(0.75, rel=1e-12)
    # It is the percentile that the maximum bounds: n values are just enough for it.
    assert best_order_statistic(1, 1 - maximum_exceedance(59), 0.95).n_needed == 59


LADDER = np.arange(1.0, 1001.0)  # the k-th smallest value is k


def test_three_values_by_hand() -> None:
    # Not all of 3 tosses are heads with probability 7/8: so surely does the maximum bound the median.
    values = np.array([5.0, 1.0, 3.0])
    made = certificate(values, 0.5, delta=0.875)
    assert (made.bound, made.order, made.failure, made.confidence) == (5.0, 3, 0.125, 0.875)
    # At most 1 of 3 with probability 1/2.
    assert certificate(values, 0.5, delta=0.5).bound == 3.0
    none = certificate(values, 0.5, delta=0.9)
    assert (none.bound, none.order, none.reason, none.n_needed) == (None, None, "too_few", 4)


def test_a_statement_says_bound_confidence_and_how_or_what_a_bound_would_take() -> None:
    none = certificate(LADDER, 0.999)
    assert (none.bound, none.order, none.reason, none.n_needed) == (None, None, "too_few", 2995)
    assert np.isnan([none.confidence, none.failure, none.epsilon]).all()
    start = "no bound on percentile 99.9 at confidence 0.95"
    assert none.statement == f"{start}: 1000 independent values, 2995 needed (order statistic)"
    how = "(order statistic, 1000 independent values)"
    bound = certificate(LADDER, 0.95).statement
    assert bound == f"percentile 95 is at most 962 with confidence 0.956652 {how}"
    approximate = certificate(stream(0, "pairs").gamma(2.0, size=(80, 90)), 0.9, method="published").statement
    assert approximate.endswith("(as published, approximate, 80 independent values)")


def test_the_published_rule_scales_the_rank_of_as_many_independent_values() -> None:
    values, best = LADDER.reshape(20, 50), best_order_statistic(20, 0.8, 0.95)
    made = certificate(values, 0.8, method="published")
    assert (made.order, made.failure, made.rigorous) == (50 * best.order, best.failure, False)
    assert made.bound == 50 * best.order
    fixed = certificate(values, 0.8, method="published", epsilon=0.15)
    assert (fixed.order, fixed.confidence) == (950, percentile_confidence(20, 0.8, 0.15))


def test_an_epsilon_with_each_method_of_pairs() -> None:
    ustat = certificate(stream(0, "pairs").gamma(2.0, size=(1000, 1000)), 0.95, epsilon=0.01)
    assert (ustat.order, ustat.failure) == (960_000, all_pairs_failure(1000, 1000, 0.95, 0.01))
    assert ustat.confidence == pytest.approx(0.828, abs=5e-4)
    # Chernoff's size, enough for the sharper bound.
    assert (ustat.reason, ustat.n_needed) == ("below_delta", 2659)


EFFECTS = {
    "pair": (0.0, 0.0, 1.0),
    "clean": (1.0, 0.0, 0.0),
    "both": (1.0, 1.0, 0.3),
    "weak": (0.2, 0.2, 1.0),
}


def below(kind: str, shape: tuple[int, int], p: float, n_trials: int, *, steps: bool) -> np.ndarray:
    """Whether each value lies below the percentile of its distribution, `[trials, n_clean, n_corrupted]`."""
    rows, columns, noise = EFFECTS[kind]
    rng = stream(0, f"{kind} {shape} {p} {steps}")
    values = rows * rng.normal(size=(n_trials, shape[0], 1))
    values = values + columns * rng.normal(size=(n_trials, 1, shape[1]))
    if noise:
        values = values + noise * rng.normal(size=(n_trials, *shape))
    truth = math.hypot(*EFFECTS[kind]) * float(special.ndtri(p))
    return np.asarray(np.floor(2 * values) < math.floor(2 * truth) if steps else values < truth)


def slack(failure: float, n_trials: int) -> float:
    """Three and a half standard errors of an observed share."""
    return 3.5 * math.sqrt(failure * (1 - failure) / n_trials)


@pytest.mark.parametrize("steps", [False, True], ids=["continuous", "steps"])
@pytest.mark.parametrize(("n", "p", "delta"), [(59, 0.95, 0.95), (300, 0.9, 0.99), (700, 0.99, 0.8)])
def test_independent_values(n: int, p: float, delta: float, steps: bool) -> None:
    n_trials = 2000
    made = certificate(np.arange(float(n)), p, delta=delta)
    counts = below("pair", (n, 1), p, n_trials, steps=steps).sum(axis=(1, 2))
    observed = float((counts >= made.order).mean())
    assert observed <= made.failure + slack(made.failure, n_trials)
    if not steps:  # exact for continuous values
        assert observed >= made.failure - slack(made.failure, n_trials)


@pytest.mark.parametrize("steps", [False, True], ids=["continuous", "steps"])
@pytest.mark.parametrize("kind", EFFECTS)
@pytest.mark.parametrize(
    ("shape", "p", "delta"), [((30, 30), 0.8, 0.9), ((60, 25), 0.7, 0.8), ((120, 120), 0.95, 0.8)]
)
def test_crossed_values(shape: tuple[int, int], p: float, delta: float, kind: str, steps: bool) -> None:
    n_trials = 600
    made = certificate(np.zeros(shape), p, delta=delta)
    assert (made.method, made.rigorous) == ("ustat", True)
    low = below(kind, shape, p, n_trials, steps=steps)
    observed = float((low.sum(axis=(1, 2)) >= made.order).mean())
    assert observed <= made.failure + slack(made.failure, n_trials)


def test_the_published_rule_is_no_theorem() -> None:
    # Two by two, the third smallest: 3 or 4 of 4 independent values below the median, 5/16; it says 1/4.
    made = certificate(np.zeros((2, 2)), 0.5, epsilon=0.01, method="published")
    assert (made.order, made.failure, made.rigorous) == (3, 0.25, False)
    n_trials = 20_000
    counts = below("pair", (2, 2), 0.5, n_trials, steps=False).sum(axis=(1, 2))
    observed = float((counts >= 3).mean())
    assert observed == pytest.approx(5 / 16, abs=slack(5 / 16, n_trials))
    assert observed > made.failure + slack(made.failure, n_trials)
    sound = certificate(np.zeros((2, 2)), 0.5, epsilon=0.01)
    assert sound.failure >= 5 / 16


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: certificate(LADDER, 99.0), r"percentile is 99\.0; .* write 0\.99 for 99 %"),
        (lambda: certificate(LADDER, 0.9, delta=1.0), r"delta is 1\.0"),
        (lambda: certificate(LADDER, 0.9999, epsilon=5e-4), r"0\.0005; .* a positive number below 0\.0001"),
        (lambda: certificate(LADDER, 0.9, epsilon=0.0), "epsilon is 0"),
        (lambda: certificate(np.empty((0, 3)), 0.9), "expected at least one value"),
        (lambda: certificate(np.array([0.0, np.inf]), 0.5), r"values hold inf at \(1,\); every value"),
        (lambda: certificate(np.ones((2, 2, 2)), 0.5), r"\[n\] independent draws or the matrix"),
        (lambda: certificate(LADDER, 0.5, method="ustat"), "certificate method for these values 'ustat'"),
        (lambda: certificate(np.ones((3, 3)), 0.5, method="u-stat"), "did you mean 'ustat'"),
        (lambda: percentile_sample_size(0.5, 0.95, 1e-9), "exact sizes are computed only up to 2,000,000"),
        (lambda: percentile_failure(10, 0.5, 0.1, "chernov"), "did you mean 'chernoff'"),
        (lambda: percentile_failure(0, 0.5, 0.1), "n is 0; expected at least 1"),
        (lambda: best_all_pairs_order(4, 0, 0.5, 0.9), "n_corrupted is 0; expected at least 1"),
        (lambda: all_pairs_order_failure(4, 5, 0.5, 21), "order is 21; expected a rank among the 4 x 5"),
        (lambda: maximum_exceedance(10, delta=0.0), "delta is"),
    ],
)
def test_bad_input_is_named(refused: Any, message: str) -> None:
    with pytest.raises((InputError, NonFiniteError), match=message):
        refused()
