"""Certificates against worked cases, literal versions, invariances, and their own coverage in simulation."""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import special
from scipy import stats as scipy_stats

from assay.core.errors import InputError, NonFiniteError, ShapeError, UnknownNameError
from assay.core.random import stream
from assay.stats import (
    Certificate,
    all_pairs_failure,
    all_pairs_order_failure,
    best_all_pairs_order,
    best_order_statistic,
    certificate,
    percentile_confidence,
    percentile_sample_size,
)


OF_PAIRS = ("ustat", "published")
LADDER = np.arange(1.0, 1001.0)  # the k-th smallest value is k


def gamma_pairs(n_clean: int, n_corrupted: int, name: str = "pairs") -> np.ndarray:
    return stream(0, name).gamma(2.0, size=(n_clean, n_corrupted))


# ----------------------------------------------------------------------------------------- independent values


def test_the_bound_is_the_best_order_statistic() -> None:
    made = certificate(stream(1, "order").permutation(LADDER), 0.95)
    assert (made.bound, made.order, made.n, made.n_values) == (962.0, 962, 1000, 1000)
    assert made.confidence == pytest.approx(0.9566518093930907, rel=1e-9)
    assert made.epsilon == pytest.approx(0.012)
    assert (made.method, made.rigorous, made.reason, made.n_needed) == ("order-statistic", True, None, None)


def test_an_epsilon_fixes_the_order_statistic() -> None:
    made = certificate(LADDER, 0.99, epsilon=0.005, delta=0.9)
    assert (made.bound, made.order, made.reason) == (995.0, 995, None)
    assert made.confidence == percentile_confidence(1000, 0.99, 0.005) == pytest.approx(0.9338604883927484)


def test_a_fixed_order_statistic_may_fall_short_of_delta() -> None:
    made = certificate(LADDER, 0.95, epsilon=0.01)
    assert made.bound == 960.0
    assert made.confidence == pytest.approx(0.91936, abs=5e-6)
    assert (made.reason, made.n_needed) == ("below_delta", 1326)


def test_the_size_beyond_a_tiny_epsilon_is_chernoffs() -> None:
    made = certificate(LADDER, 0.5, epsilon=1e-7)
    assert (made.order, made.reason) == (501, "below_delta")
    assert made.n_needed == percentile_sample_size(0.5, 0.95, 1e-7, "chernoff")


def test_three_values_by_hand() -> None:
    # Not all of 3 tosses are heads with probability 7/8: so surely does the maximum bound the median.
    values = np.array([5.0, 1.0, 3.0])
    made = certificate(values, 0.5, delta=0.875)
    assert (made.bound, made.order, made.failure, made.confidence) == (5.0, 3, 0.125, 0.875)
    # At most 1 of 3 with probability 1/2.
    assert certificate(values, 0.5, delta=0.5).bound == 3.0
    none = certificate(values, 0.5, delta=0.9)
    assert (none.bound, none.order, none.reason, none.n_needed) == (None, None, "too_few", 4)


def test_no_bound_is_stated_with_what_it_would_take() -> None:
    made = certificate(LADDER, 0.999)
    assert (made.bound, made.order, made.reason, made.n_needed) == (None, None, "too_few", 2995)
    assert math.isnan(made.confidence)
    assert math.isnan(made.failure)
    assert math.isnan(made.epsilon)
    assert made.statement == (
        "no bound on percentile 99.9 at confidence 0.95: "
        "1000 independent values, 2995 needed (order-statistic)"
    )


def test_a_statement_says_bound_confidence_and_how() -> None:
    assert certificate(LADDER, 0.95).statement == (
        "percentile 95 is at most 962 with confidence 0.956652 (order-statistic, 1000 independent values)"
    )
    approximate = certificate(gamma_pairs(80, 90), 0.9, method="published").statement
    assert approximate.endswith("(published, 80 independent values, approximate)")


def test_a_certificate_is_finite_json_with_its_confidence() -> None:
    made, none = (json.loads(json.dumps(certificate(LADDER, p).to_dict())) for p in (0.99, 0.999))
    assert made["bound"] == 996.0
    assert made["confidence"] == pytest.approx(1 - made["failure"])
    assert none["bound"] is none["failure"] is none["confidence"] is none["epsilon"] is None
    assert none["reason"] == "too_few"


def test_half_precision_and_integers_are_values_too() -> None:
    assert certificate(LADDER.astype(np.float16), 0.95).bound == 962.0
    assert certificate(LADDER.astype(np.int64), 0.95).bound == 962.0


# -------------------------------------------------------------------------------------------------- all pairs


def test_all_pairs_take_the_u_statistic_by_default() -> None:
    values = gamma_pairs(300, 200)
    made, best = certificate(values, 0.95), best_all_pairs_order(300, 200, 0.95, 0.95)
    assert (made.method, made.rigorous, made.n, made.n_values) == ("ustat", True, 200, 60_000)
    assert (made.order, made.failure) == (best.order, best.failure)
    assert made.bound == np.sort(values, axis=None)[made.order - 1]
    assert all_pairs_order_failure(300, 200, 0.95, made.order - 1) > 0.05


def test_two_by_two_by_hand() -> None:
    # The maximum of four pairs: 1/4 by the convex bound; the third smallest: 1/2, see the test of the bounds.
    values = np.array([[4.0, 1.0], [3.0, 2.0]])
    assert certificate(values, 0.5, delta=0.75).bound == 4.0
    assert certificate(values, 0.5, delta=0.5).bound == 3.0
    assert certificate(values, 0.5, delta=0.8).n_needed == 3
    assert certificate(values, 0.5, epsilon=0.01, delta=0.5).failure == 0.5


def test_the_published_rule_scales_the_rank_of_as_many_independent_values() -> None:
    values = LADDER.reshape(20, 50)
    made = certificate(values, 0.8, method="published")
    best = best_order_statistic(20, 0.8, 0.95)
    assert best.order is not None
    assert (made.order, made.failure, made.rigorous) == (50 * best.order, best.failure, False)
    assert made.bound == 50 * best.order
    fixed = certificate(values, 0.8, method="published", epsilon=0.15)
    assert (fixed.order, fixed.confidence) == (950, percentile_confidence(20, 0.8, 0.15))


def test_an_epsilon_with_each_method_of_pairs() -> None:
    values = gamma_pairs(1000, 1000)
    ustat = certificate(values, 0.95, epsilon=0.01)
    assert (ustat.order, ustat.failure) == (960_000, all_pairs_failure(1000, 1000, 0.95, 0.01))
    assert ustat.confidence == pytest.approx(0.828, abs=5e-4)
    assert (ustat.reason, ustat.n_needed) == (
        "below_delta",
        2659,
    )  # Chernoff's size, enough for the sharper bound


@pytest.mark.parametrize("method", OF_PAIRS)
def test_a_thousand_inputs_a_side_cannot_bound_the_far_tail(method: str) -> None:
    values = np.broadcast_to(np.arange(1000.0), (1000, 1000))
    for percentile, needed in ((0.999, 2995), (0.9999, 29_956)):
        made = certificate(values, percentile, method=method)
        assert (made.bound, made.reason, made.n, made.n_needed) == (None, "too_few", 1000, needed)


# ------------------------------------------------------------------------------------------------- properties


samples = arrays.arrays(
    np.float64, st.integers(1, 60), elements=st.floats(-100, 100, allow_nan=False, width=32)
)
matrices = arrays.arrays(
    np.float64,
    st.tuples(st.integers(2, 12), st.integers(2, 12)),
    elements=st.integers(-5, 5).map(float),
)
percents = st.integers(1, 99).map(lambda percent: percent / 100)


@given(values=samples, p=percents, delta=percents, data=st.data())
def test_a_bound_is_a_value_and_ignores_their_order(
    values: np.ndarray, p: float, delta: float, data: st.DataObject
) -> None:
    made = certificate(values, p, delta=delta)
    shuffled = np.array(data.draw(st.permutations(values.tolist())))
    assert certificate(shuffled, p, delta=delta) == made
    if made.bound is not None:
        assert made.bound in values
        assert made.confidence >= delta - 1e-12


@given(values=samples, p=percents, delta=percents)
def test_a_bound_grows_with_percentile_and_confidence(values: np.ndarray, p: float, delta: float) -> None:
    def bound(p: float, delta: float) -> float:
        found = certificate(values, p, delta=delta).bound
        return math.inf if found is None else found

    assert bound(p, delta) <= bound((p + 1) / 2, delta)
    assert bound(p, delta) <= bound(p, (delta + 1) / 2)


@given(values=matrices, p=percents, delta=percents, method=st.sampled_from(OF_PAIRS))
def test_bounds_of_all_pairs_ignore_the_order_of_inputs_and_which_side_they_are_on(
    values: np.ndarray, p: float, delta: float, method: str
) -> None:
    made = certificate(values, p, delta=delta, method=method)
    assert certificate(values[::-1], p, delta=delta, method=method) == made
    assert certificate(np.roll(values, 1, axis=1), p, delta=delta, method=method) == made
    assert certificate(values.T, p, delta=delta, method=method) == made


@given(values=matrices, p=percents, method=st.sampled_from(OF_PAIRS))
def test_bounds_follow_any_increasing_change_of_unit(values: np.ndarray, p: float, method: str) -> None:
    made = certificate(values, p, delta=0.5, method=method)
    moved = certificate(4 * values - 3, p, delta=0.5, method=method)
    assert moved.bound == (None if made.bound is None else 4 * made.bound - 3)
    assert (moved.order, moved.reason) == (made.order, made.reason)


def test_values_are_left_alone() -> None:
    values = gamma_pairs(30, 20)
    before = values.copy()
    for method in OF_PAIRS:
        certificate(values, 0.5, method=method)
    certificate(values[0], 0.5)
    assert (values == before).all()


# --------------------------------------------------------------------------------------------------- coverage


def monte_carlo(failure: float, n_trials: int) -> float:
    """Three and a half standard errors of an observed share."""
    return 3.5 * math.sqrt(failure * (1 - failure) / n_trials)


@pytest.mark.parametrize("epsilon", [None, 0.05])
def test_independent_values_fail_exactly_as_often_as_stated(epsilon: float | None) -> None:
    n_trials = 4000
    values = stream(0, "coverage").exponential(size=(n_trials, 80))
    made = certificate(values[0], 0.9, delta=0.8, epsilon=epsilon)
    assert made.order is not None
    bounds = np.sort(values, axis=1)[:, made.order - 1]
    assert made.bound == bounds[0]
    observed = float((bounds < -math.log(0.1)).mean())
    assert observed == pytest.approx(made.failure, abs=monte_carlo(made.failure, n_trials))


def test_discrete_values_fail_at_most_as_often_as_stated() -> None:
    n_trials = 4000
    values = stream(0, "coverage").poisson(3.0, (n_trials, 80))
    made = certificate(values[0], 0.9, delta=0.8)
    assert made.order is not None
    observed = float((np.sort(values, axis=1)[:, made.order - 1] < scipy_stats.poisson.ppf(0.9, 3.0)).mean())
    assert observed <= made.failure + monte_carlo(made.failure, n_trials)


# What pairs share: effects of the clean input, of the corrupted one, and noise of the pair itself.
SHARED = {"clean only": (1.0, 0.0, 0.0), "both": (1.0, 1.0, 0.3), "nothing": (0.0, 0.0, 1.0)}


def crossed(
    weights: tuple[float, float, float], n_clean: int, n_corrupted: int
) -> Callable[[np.random.Generator], np.ndarray]:
    rows, columns, noise = weights
    return lambda rng: (
        rows * rng.normal(size=(n_clean, 1))
        + columns * rng.normal(size=(1, n_corrupted))
        + noise * rng.normal(size=(n_clean, n_corrupted))
    )


@pytest.mark.parametrize("kind", SHARED)
def test_crossed_samples_fail_at_most_as_often_as_stated(kind: str) -> None:
    n_trials, p, delta = 150, 0.9, 0.9
    draw = crossed(SHARED[kind], 100, 120)
    truth = math.hypot(*SHARED[kind]) * float(special.ndtri(p))
    stated = certificate(draw(stream(0, "any")), p, delta=delta).failure
    rng = stream(0, "coverage")
    bounds = [certificate(draw(rng), p, delta=delta).bound for _ in range(n_trials)]
    observed = float(np.mean(np.array(bounds) < truth))
    assert observed <= stated + monte_carlo(stated, n_trials)


def test_taking_crossed_pairs_for_independent_ones_is_badly_wrong() -> None:
    # Only the clean input matters: 200 values, 200 times each. Rank 38,400 of 40,000 is the 192nd of the 200.
    assert percentile_confidence(200 * 200, 0.95, 0.01) == pytest.approx(1.0, abs=1e-9)
    truth = float(scipy_stats.binom.cdf(191, 200, 0.95))
    assert truth == pytest.approx(0.675, abs=5e-3)  # the published .675 was simulated
    values = np.repeat(np.arange(1.0, 201.0)[:, None], 200, axis=1)
    assert certificate(values.ravel(), 0.95, epsilon=0.01).bound == 192.0
    assert certificate(values, 0.95, epsilon=0.01).confidence < truth


# ----------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("percentile", [0.0, 1.0, math.nan])
def test_a_percentile_is_a_share(percentile: float) -> None:
    with pytest.raises(InputError, match=r"percentile is .*strictly between 0 and 1"):
        certificate(LADDER, percentile)


def test_percent_are_recognised() -> None:
    with pytest.raises(InputError, match=r"percentile is 99\.0; .* write 0\.99 for 99 %"):
        certificate(LADDER, 99.0)


def test_bad_confidences_and_epsilons_are_refused() -> None:
    with pytest.raises(InputError, match=r"delta is 1\.0"):
        certificate(LADDER, 0.9, delta=1.0)
    with pytest.raises(InputError, match=r"p \+ epsilon is 1\.0004; it must stay below 1"):
        certificate(LADDER, 0.9999, epsilon=5e-4)
    with pytest.raises(InputError, match="epsilon is 0"):
        certificate(LADDER, 0.9, epsilon=0.0)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_there_must_be_values(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="expected at least one value"):
        certificate(np.empty(shape), 0.9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_are_finite(bad: float) -> None:
    values = gamma_pairs(4, 5)
    values[2, 3] = bad
    with pytest.raises(NonFiniteError, match=rf"values hold {bad} at \(2, 3\); every value must be finite"):
        certificate(values, 0.5)
    with pytest.raises(FloatingPointError):
        certificate(values.ravel(), 0.5)


@pytest.mark.parametrize("shape", [(), (2, 2, 2)])
def test_values_are_a_vector_or_a_matrix(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"\[n\] independent draws or the matrix \[n_clean, n_corrupted\]"):
        certificate(np.ones(shape), 0.5)


def test_methods_fit_what_the_values_share() -> None:
    with pytest.raises(
        InputError, match=r"'ustat' does not fit independent values \[n\]; choose 'order-statistic'"
    ):
        certificate(LADDER, 0.5, method="ustat")
    with pytest.raises(
        InputError, match="'order-statistic' does not fit a matrix of pairs .* choose 'ustat' or"
    ):
        certificate(np.ones((3, 3)), 0.5, method="order-statistic")
    with pytest.raises(UnknownNameError, match="unknown certificate method 'u-stat'; did you mean 'ustat'"):
        certificate(np.ones((3, 3)), 0.5, method="u-stat")


def test_certificates_are_frozen() -> None:
    made: Certificate = certificate(LADDER, 0.5)
    with pytest.raises(AttributeError):
        made.bound = 0.0  # type: ignore[misc]
