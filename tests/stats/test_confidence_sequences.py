"""Confidence sequences against golden values, a literal version, and their coverage under peeking."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from assay.core.errors import InputError, NonFiniteError, ShapeError, UnknownNameError
from assay.core.random import stream
from assay.stats import confidence_sequence, hoeffding_radius
from assay.stats.sequences import _log_capital


GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden/calibrations/confidence_sequences.json").read_text()
)
SHARES = arrays.arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1))
DIFFERENCES = (-1.0, 1.0)


def log_capital(z: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Log capital won against each candidate mean, after each observation."""
    whole = np.full(len(means), len(z), dtype=np.int64)
    return np.array([capital.copy() for capital in _log_capital(z, means, whole)])


def literal_log_capital(z: np.ndarray, m: float) -> list[float]:
    """The betting rule, one number at a time."""
    log_capital, bet, squares, found = 0.0, 0.0, 1.0, []
    for value in z.tolist():
        factor = 1 + bet * (value - m)
        log_capital += math.log(factor)
        gradient = (value - m) / factor
        squares += gradient**2
        bet = min(0.5, max(-0.5, bet + 2 / (2 - math.log(3)) * gradient / squares))
        found.append(log_capital)
    return found


# --------------------------------------------------------------------------------------------- golden values


@pytest.mark.parametrize("case", GOLDEN["radius"], ids=lambda case: f"n{case['n']}")
def test_radii_match_golden_values(case: dict) -> None:
    n = np.array([case["n"]])
    for width, key in ((1.0, "radius"), (3.0, "radius_weighted_w3"), (2.0, "radius_paired")):
        found = hoeffding_radius(n, failure=case["delta"], width=width)
        assert found[0] == pytest.approx(case[key], rel=1e-9)


@pytest.mark.parametrize("case", GOLDEN["hoeffding"], ids=lambda case: f"n{len(case['z'])}")
def test_hoeffding_intervals_match_golden_values(case: dict) -> None:
    found = confidence_sequence(np.array(case["z"]), method="hoeffding", running=False)
    assert found.mean[-1] == pytest.approx(case["r_hat"], rel=1e-9)
    assert (found.interval.low, found.interval.high) == pytest.approx(case["interval_for_mean"], rel=1e-9)


@pytest.mark.parametrize("case", GOLDEN["betting"], ids=lambda case: f"n{len(case['z'])}")
def test_betting_matches_golden_values(case: dict) -> None:
    z = np.array(case["z"])
    means = np.array([float(m) for m in case["log_capital"]])
    capital = log_capital(z, means)[-1]
    assert capital == pytest.approx(np.array(list(case["log_capital"].values())), rel=1e-9, abs=1e-12)
    found = confidence_sequence(z, running=False).interval
    assert (found.low, found.high) == pytest.approx(case["interval_for_mean"], abs=1e-4)


@pytest.mark.parametrize("case", GOLDEN["paired"], ids=lambda case: f"n{len(case['z1'])}")
def test_paired_differences_match_golden_values(case: dict) -> None:
    differences = np.array(case["z1"]) - np.array(case["z2"])
    wide = confidence_sequence(differences, bounds=DIFFERENCES, method="hoeffding", running=False)
    assert wide.mean[-1] == pytest.approx(case["mu_hat"], rel=1e-9)
    assert wide.interval.high - wide.mean[-1] == pytest.approx(case["hoeffding_radius"], rel=1e-9)
    assert (0.0 not in wide.interval) == case["hoeffding_excludes_zero"]
    narrow = confidence_sequence(differences, bounds=DIFFERENCES, running=False)
    assert (narrow.interval.low, narrow.interval.high) == pytest.approx(case["betting_interval"], abs=1e-4)
    assert (0.0 not in narrow.interval) == case["betting_excludes_zero"]


# ------------------------------------------------------------------------------------------ literal version


@given(SHARES, arrays.arrays(np.float64, st.integers(1, 5), elements=st.floats(0, 1)))
def test_capital_is_the_literal_one(z: np.ndarray, means: np.ndarray) -> None:
    found = log_capital(z, means)
    assert found.shape == (len(z), len(means))
    assert (found[0] == 0).all()
    for at, m in enumerate(means):
        assert found[:, at] == pytest.approx(literal_log_capital(z, m), abs=1e-9)


@settings(max_examples=25)
@given(SHARES, st.sampled_from([0.05, 0.3, 0.6]))
def test_ends_are_where_the_literal_capital_reaches_its_limit(z: np.ndarray, failure: float) -> None:
    found = confidence_sequence(z, failure=failure, running=False)
    limit, slack = -math.log(failure), 2e-6  # of the bisection
    for n in (1, (len(z) + 1) // 2, len(z)):
        low, high = found.low[n - 1], found.high[n - 1]
        if math.isnan(low):
            continue
        for end, outward in ((low, -1), (high, 1)):
            if 0 < end < 1:
                assert literal_log_capital(z[:n], end)[-1] >= limit - 1e-9
                assert literal_log_capital(z[:n], end - outward * slack)[-1] < limit
        assert low <= high
        outside = [m for m in np.linspace(0, 1, 1001) if not low <= m <= high]
        assert all(literal_log_capital(z[:n], m)[-1] >= limit for m in outside[::97])


@given(SHARES, st.sampled_from(["betting", "hoeffding"]))
def test_running_intervals_are_intersections_of_all_before(z: np.ndarray, method: str) -> None:
    single = confidence_sequence(z, method=method, failure=0.4, running=False)
    running = confidence_sequence(z, method=method, failure=0.4)
    low, high = np.maximum.accumulate(single.low), np.minimum.accumulate(single.high)
    met = running.low <= running.high
    assert np.array_equal(met, low <= high)
    assert running.low[met] == pytest.approx(low[met], abs=1e-12)
    assert running.high[met] == pytest.approx(high[met], abs=1e-12)
    assert (running.reason == "drift") == (not met[-1])


@given(SHARES)
def test_turning_the_values_turns_the_interval(z: np.ndarray) -> None:
    first, second = confidence_sequence(z), confidence_sequence(1 - z)
    assert second.low == pytest.approx(1 - first.high, abs=2e-6, nan_ok=True)
    assert second.high == pytest.approx(1 - first.low, abs=2e-6, nan_ok=True)


@given(SHARES, st.floats(0.1, 10), st.floats(-5, 5))
def test_a_declared_range_is_a_unit(z: np.ndarray, width: float, least: float) -> None:
    bounds = (least, least + width)
    for method in ("betting", "hoeffding"):
        first = confidence_sequence(z, method=method)
        second = confidence_sequence(np.clip(least + width * z, *bounds), bounds=bounds, method=method)
        assert second.low == pytest.approx(least + width * first.low, rel=1e-5, abs=1e-5 * width, nan_ok=True)
        assert second.high == pytest.approx(
            least + width * first.high, rel=1e-5, abs=1e-5 * width, nan_ok=True
        )


def test_weights_of_one_change_nothing() -> None:
    z = stream(0, "plain").uniform(size=50)
    for method in ("betting", "hoeffding"):
        plain = confidence_sequence(z, method=method)
        weighted = confidence_sequence(z, method=method, weights=np.ones(50))
        assert weighted.low == pytest.approx(plain.low, abs=1e-12)
        assert weighted.high == pytest.approx(plain.high, abs=1e-12)
    half = confidence_sequence(z, weights=np.ones(50), largest_weight=2.0)
    whole = confidence_sequence(z).interval
    assert half.interval.high - half.interval.low > whole.high - whole.low


# -------------------------------------------------------------------------------------------- early answers


def test_claims_are_certified_when_the_lower_end_passes_them() -> None:
    found = confidence_sequence(np.ones(40))
    n = found.n_certify(0.5)
    assert n is not None
    assert found.low[n - 1] > 0.5 >= found.low[n - 2]
    assert found.n_certify(0.99) is None
    down = confidence_sequence(-np.ones(40), bounds=DIFFERENCES)
    assert down.n_certify(0.0) is None
    # One success more or less at the end does not undo it.
    assert confidence_sequence(np.append(np.ones(39), 0.0)).n_certify(0.5) == n


def test_values_that_no_mean_fits_are_reported() -> None:
    found = confidence_sequence(np.repeat([0.0, 1.0], 200))
    assert found.reason == "drift"
    assert not found.interval.defined
    assert found.interval.reason == "drift"
    lost = int(np.isnan(found.low).argmax())
    assert 200 < lost < 400
    assert np.isnan(found.high[lost:]).all()
    assert found.high[lost - 1] < 0.1
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_hull_between_two_points_of_the_grid_is_found() -> None:
    centre = 0.50037
    for running in (True, False):
        found = confidence_sequence(np.full(1000, centre), failure=0.9, running=running)
        assert 0.5 < found.interval.low < centre < found.interval.high < 0.501
        assert found.interval.high - found.interval.low < 8e-4


def test_no_observation_gives_no_interval() -> None:
    found = confidence_sequence(np.empty(0))
    assert len(found) == 0
    assert found.reason == found.interval.reason == "too_few"
    assert found.n_certify(0.0) is None
    one = confidence_sequence(np.array([1.0]))
    assert (one.interval.low, one.interval.high) == (0.0, 1.0)


def test_bets_are_narrower_than_hoeffding_where_the_variance_is_small(unchecked: None) -> None:
    z = (stream(0, "fast").uniform(size=1000) < 0.9) * 1.0
    found = confidence_sequence(z)
    wide = confidence_sequence(z, method="hoeffding")
    assert found.interval.high - found.interval.low < 0.6 * (wide.interval.high - wide.interval.low)


# ------------------------------------------------------------------------------------------------- coverage

DRAWS: dict[str, tuple[Callable[[np.random.Generator, tuple[int, int]], np.ndarray], float]] = {
    "rare": (lambda rng, shape: (rng.uniform(size=shape) < 0.05) * 1.0, 0.05),
    "even": (lambda rng, shape: (rng.uniform(size=shape) < 0.5) * 1.0, 0.5),
    "beta": (lambda rng, shape: rng.beta(8, 2, size=shape), 0.8),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWS)
def test_the_mean_is_ever_left_outside_as_seldom_as_they_say(kind: str) -> None:
    # The interval misses the mean at some time exactly if the capital against it ever reaches 1 / failure.
    draw, mean = DRAWS[kind]
    worlds, n, failure = 400, 200, 0.1
    z = draw(stream(0, f"coverage {kind}"), (worlds, n))
    ever = sum(bool((log_capital(row, np.array([mean])) >= -math.log(failure)).any()) for row in z)
    assert ever / worlds < failure + 3.5 * math.sqrt(failure * (1 - failure) / worlds)
    radius = hoeffding_radius(np.arange(1, n + 1), failure=failure)
    running = np.cumsum(z, axis=1) / np.arange(1, n + 1)
    assert (np.abs(running - mean) > radius).any(axis=1).mean() < failure


def test_stopping_at_the_first_certificate_does_not_break_it() -> None:
    # A tester stops as soon as the lower end passes the true mean.
    worlds, wrong, right = 60, 0, 0
    rng = stream(0, "stopping")
    for _ in range(worlds):
        z = (rng.uniform(size=150) < 0.7) * 1.0
        found = confidence_sequence(z)
        wrong += found.n_certify(0.7) is not None
        right += found.n_certify(0.4) is not None
    assert wrong / worlds < 0.05 + 3.5 * math.sqrt(0.0475 / worlds)
    assert right / worlds > 0.9


def test_importance_sampling_stays_valid() -> None:
    # Ten kinds of prompt, uniform target; the proposal (1 - a) q + a uniform prefers the kinds of high value.
    rng, worlds, n = stream(0, "importance"), 300, 150
    values = np.linspace(0.05, 0.95, 10)
    proposal = 0.5 * values / values.sum() + 0.5 / 10
    weight = 0.1 / proposal
    misses = 0
    for at in range(worlds):
        kinds = rng.choice(10, size=n, p=proposal)
        z = (rng.uniform(size=n) < values[kinds]) * 1.0
        scaled = z * weight[kinds] / 2.0
        misses += bool((log_capital(scaled, np.array([0.25])) >= math.log(20)).any())
        if at < 3:
            found = confidence_sequence(z, weights=weight[kinds], largest_weight=2.0)
            assert found.interval.low < 0.5 < found.interval.high
            assert found.interval.high - found.interval.low < 0.4
            assert found.mean[-1] == pytest.approx((z * weight[kinds]).mean())
    assert misses / worlds < 0.05 + 3.5 * math.sqrt(0.0475 / worlds)


@pytest.mark.parametrize("mean", [0.2, 0.5])
def test_capital_against_the_mean_is_an_e_value(mean: float) -> None:
    rng, worlds = stream(0, f"e-value {mean}"), 1500
    final = [
        math.exp(log_capital((rng.uniform(size=25) < mean) * 1.0, np.array([mean]))[-1, 0])
        for _ in range(worlds)
    ]
    assert np.mean(final) == pytest.approx(1.0, abs=3.5 * np.std(final) / math.sqrt(worlds))


# ------------------------------------------------------------------------------------------------ bad input


def test_bad_input_is_named(unchecked: None) -> None:
    z = np.array([0.5, 1.5])
    with pytest.raises(InputError, match=r"values run from 0\.5 to 1\.5; expected values in \[0, 1\]"):
        confidence_sequence(z)
    with pytest.raises(NonFiniteError, match="values hold nan"):
        confidence_sequence(np.array([math.nan]))
    with pytest.raises(
        InputError, match=r"bounds are \(1\.0, 0\.0\); expected two finite numbers in ascending order"
    ):
        confidence_sequence(z, bounds=(1.0, 0.0))
    with pytest.raises(UnknownNameError, match="unknown method of confidence sequences 'bets'"):
        confidence_sequence(z, method="bets")
    for failure in (0.0, 1.0):
        with pytest.raises(
            InputError, match=f"failure is {failure}; expected a number strictly between 0 and 1"
        ):
            confidence_sequence(z, failure=failure)
    with pytest.raises(InputError, match="n is 0; expected at least 1 observation"):
        hoeffding_radius(np.array([3, 0]))
    ones = np.ones(2)
    with pytest.raises(ShapeError, match=r"weights have shape \(3,\); expected one per value, \(2,\)"):
        confidence_sequence(ones, weights=np.ones(3))
    with pytest.raises(InputError, match=r"weights run from 1 to 1; expected values in \[0, 0\.5\]"):
        confidence_sequence(ones, weights=ones, largest_weight=0.5)
    with pytest.raises(InputError, match=r"largest_weight is 0\.0; expected a finite number above 0"):
        confidence_sequence(ones, weights=ones, largest_weight=0.0)
