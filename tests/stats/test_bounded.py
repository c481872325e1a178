"""The mean of bounded values: worked by hand, against a literal search, and its error where BCa collapses."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import one_of

from assay.core.errors import InputError, ShapeError
from assay.core.random import stream
from assay.core.verdict import ONE_SIDED_95
from assay.stats import bounded_mean, clopper_pearson, mean_of, statistic_from_dict


values = st.lists(st.floats(0, 1), min_size=1, max_size=12).map(np.array)


def capital(z: np.ndarray, m: float) -> float:
    """The mean over 200 bets of the product over values."""
    total = 0.0
    for bet in range(200):
        stake, product = (bet + 0.5) / 200 / m, 1.0
        for each in z.tolist():
            product *= 1 + stake * (each - m)
        total += product / 200
    return total


def test_one_value_by_hand() -> None:
    # The shares c average 1/2, so K(m), the mean of 1 + c (1 / m - 1), is (1 + 1 / m) / 2: 20 at m = 1/39.
    interval = bounded_mean(np.array([1.0]), level=ONE_SIDED_95)
    assert interval.low == pytest.approx(1 / 39, abs=1e-9)
    assert (interval.high, interval.method) == (1.0, "betting")
    zero = bounded_mean(np.array([0.0]), level=ONE_SIDED_95)
    assert (zero.low, zero.high) == pytest.approx((0.0, 38 / 39), abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(values)
def test_the_lower_end_is_the_smallest_mean_that_a_capital_of_20_does_not_refute(z: np.ndarray) -> None:
    interval = bounded_mean(z, level=ONE_SIDED_95)
    for end, sample in ((interval.low, z), (1 - interval.high, 1 - z)):
        if end > 1e-6:
            assert capital(sample, end * 0.999) > 20 > capital(sample, min(end * 1.001, 1.0))


@settings(max_examples=40, deadline=None)
@given(values, st.randoms())
def test_ranges_mirror_and_order(z: np.ndarray, order: object) -> None:
    interval = bounded_mean(z)
    assert 0 <= interval.low < interval.high <= 1
    assert interval.low <= z.mean() + 1e-9
    assert interval.high >= z.mean() - 1e-9
    mirrored = bounded_mean(1 - z)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((interval.low, interval.high), abs=1e-9)
    again = bounded_mean(np.sort(z))
    assert (again.low, again.high) == pytest.approx((interval.low, interval.high), abs=1e-9)
    wider = bounded_mean(z, level=0.99)
    assert wider.low <= interval.low
    assert wider.high >= interval.high


def test_bounds_move_with_the_values() -> None:
    tau = stream(0, "tau").uniform(-1, 1, 30)
    signed, share = bounded_mean(tau, bounds=(-1.0, 1.0)), bounded_mean((tau + 1) / 2)
    assert (signed.low, signed.high) == pytest.approx((2 * share.low - 1, 2 * share.high - 1))


def test_values_of_one_unit_are_averaged_first() -> None:
    z = np.array([0.0, 1.0, 1.0, 0.5, 0.25])
    found = bounded_mean(z, unit_id=np.array(["a", "a", "b", "c", "c"]))
    assert found == bounded_mean(np.array([0.5, 1.0, 0.375]))
    with pytest.raises(ShapeError, match="one per value"):
        bounded_mean(z, unit_id=np.arange(4))


def test_what_cannot_be_bounded_is_refused() -> None:
    assert bounded_mean(np.array([])).reason == "too_few"
    with pytest.raises(InputError, match="expected values in"):
        bounded_mean(np.array([1.2]))
    with pytest.raises(InputError, match="level"):
        bounded_mean(np.ones(3), level=1.0)
    with pytest.raises(InputError, match="known bounds"):
        mean_of("x").interval(np.ones((1, 4)), method="betting")


def test_overlaps_that_are_all_1_do_not_prove_a_mean_of_1() -> None:
    """BCa gives [1, 1], a false pass in six of ten such samples of 5 from a mean of .9."""
    statistic = mean_of("overlap", bounds=(0.0, 1.0))
    interval = statistic.interval(np.ones((1, 5)), level=ONE_SIDED_95)
    assert interval.low < 0.9
    assert interval.low <= clopper_pearson(5, 5, level=ONE_SIDED_95).low + 0.01
    assert statistic_from_dict(statistic.to_dict()) == statistic
    assert "bounds" not in mean_of("overlap").to_dict()


@pytest.mark.parametrize("n", one_of([5, 20, 100], 20))
def test_a_lower_bound_is_above_the_mean_in_at_most_5_percent(n: int) -> None:
    rng = stream(1, f"bounded {n}")
    samples = {
        "two-valued": (rng.random((200, n)) < 0.9).astype(np.float64),
        "fifths": rng.binomial(5, 0.9, (200, n)) / 5,
        "beta": rng.beta(4.5, 0.5, (200, n)),
    }
    for drawn in samples.values():
        lows = [bounded_mean(z, level=ONE_SIDED_95).low for z in drawn]
        assert sum(low > 0.9 for low in lows) <= 17  # of 200: what 5 % exceeds in one of a hundred counts
        assert not any(math.isnan(low) for low in lows)
