"""Relative standard errors and their three bounds: by hand, against loops over resamples, at the limit."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.core.errors import ShapeError
from assay.core.random import stream
from assay.core.verdict import ONE_SIDED_95
from assay.stats import relative_errors
from assay.stats.intervals import draw_counts
from assay.stats.spread import bonett_logs, trimmed_kurtosis


def log_theta(top: np.ndarray, bottom: np.ndarray) -> tuple[float, float]:
    """The logarithm of theta at n = 1 and its standard error, unit by unit."""
    n = len(top)
    f = top.sum() / bottom.sum()
    e = (top - f * bottom) / bottom.mean()
    s2 = (e**2).mean()
    g = bottom / bottom.mean()
    u = (e**2 / s2 - 1) / 2 - e / f - (g - 1) - e * (e * g).mean() / s2
    return 0.5 * math.log(s2 * n / (n - 1)) - math.log(abs(f)), math.sqrt((u**2).mean() / n)


def test_four_values_by_hand() -> None:
    # mean 5, deviations -3, -1, 1, 3: variance 20 / 3 with ddof 1, theta = root(20 / 3 / 4) / 5
    found = relative_errors(np.array([[2.0], [4.0], [6.0], [8.0]]), rng=stream(0, "t"))
    assert found.value == pytest.approx([math.sqrt(5 / 3) / 5])
    # mean of e^4 / s^4 is 41 / 25 and e^3 averages 0: var u = (41 / 25 - 1) / 4 + 5 / 25
    assert found.log_error == pytest.approx([math.sqrt((0.16 + 0.2) / 4)])
    assert np.isnan(found.bounds()).all()
    np.testing.assert_array_equal(found.p_below(0.5), 1.0)


@pytest.mark.parametrize("ratio", [False, True])
def test_sums_of_powers_are_loops_over_units(ratio: bool) -> None:
    rng = stream(1, "relative errors")
    n = 30
    top = rng.exponential(size=(n, 3)) - 0.3
    bottom = rng.normal(3.0, 0.8, n) if ratio else np.ones(n)
    found = relative_errors(top, bottom if ratio else None, n_at=12, rng=stream(2, "t"), n_resamples=40)
    counts = draw_counts(n, 40, stream(2, "t"))
    for column in range(3):
        base, error = log_theta(top[:, column], bottom)
        assert found.value[column] == pytest.approx(math.exp(base) / math.sqrt(12))
        assert found.log_error[column] == pytest.approx(error)
        resampled = []
        for row in counts:
            rows = np.repeat(np.arange(n), row.astype(int))
            log, its_error = log_theta(top[rows, column], bottom[rows])
            resampled.append((log - base, (log - base) / its_error))
        logs, t = np.sort(np.array(resampled), axis=0).T
        np.testing.assert_allclose(found.logs[:, column], logs, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.studentised[:, column], t, rtol=1e-7, atol=1e-10)


def test_the_outermost_of_three_bounds_is_taken() -> None:
    x = stream(3, "x").exponential(size=200) + 0.5
    found = relative_errors(x[:, None], rng=stream(4, "t"))
    theta, error = found.value[0], found.log_error[0]
    of_value = 1.6448536269514722 * x.std(ddof=1) / math.sqrt(200) / x.mean()
    spread = bonett_logs(np.array(1.6448536269514722), 200, trimmed_kurtosis(x))
    lows = [
        math.log(theta) - found.studentised[949, 0] * error,  # the 50th from the end of 999
        math.log(theta) + found.logs[49, 0],
        math.log(theta) - math.hypot(spread[0], of_value),
    ]
    highs = [
        math.log(theta) - found.studentised[49, 0] * error,
        math.log(theta) + found.logs[949, 0],
        math.log(theta) + math.hypot(spread[1], of_value),
    ]
    low, high = found.bounds(ONE_SIDED_95)[:, 0]
    assert low == pytest.approx(math.exp(min(lows)))
    assert high == pytest.approx(math.exp(max(highs)))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), tail=st.sampled_from([0.01, 0.05, 0.1]), ratio=st.booleans())
@example(seed=14625, tail=0.01, ratio=False)  # a bound beyond every float
def test_a_p_is_at_most_alpha_where_the_bound_lies_beyond_the_limit(
    seed: int, tail: float, ratio: bool
) -> None:
    rng = stream(seed, "x")
    top = rng.standard_t(5, size=(60, 4)) + np.array([0.5, 1.0, 2.0, -4.0])
    bottom = rng.normal(3.0, 0.5, 60) if ratio else None
    found = relative_errors(top, bottom, rng=rng)
    low, high = found.bounds(1 - 2 * tail)
    assert (low < found.value).all()
    assert (found.value < high).all()
    for limit in (0.05, 0.1, 0.2, 0.4):
        np.testing.assert_array_equal(found.p_below(limit) <= tail, high < limit)


@settings(max_examples=20, deadline=None)
@given(scale=st.floats(1e-6, 1e6), sign=st.sampled_from([-1.0, 1.0]))
def test_a_unit_of_measurement_changes_nothing(scale: float, sign: float) -> None:
    rng = stream(5, "x")
    top, bottom = rng.normal(1.0, 1.0, (40, 2)), rng.normal(3.0, 0.5, 40)
    before = relative_errors(top, bottom, rng=stream(6, "t"))
    after = relative_errors(sign * scale * top, scale * bottom, rng=stream(6, "t"))
    np.testing.assert_allclose(before.bounds(), after.bounds(), rtol=1e-6)


def test_columns_share_their_resamples_and_do_not_see_each_other() -> None:
    table = stream(7, "x").normal(1.0, 1.0, (50, 3))
    together = relative_errors(table, rng=stream(8, "t")).bounds()
    for column in range(3):
        alone = relative_errors(table[:, [column]], rng=stream(8, "t")).bounds()
        np.testing.assert_allclose(together[:, [column]], alone, rtol=1e-9)


def test_columns_without_a_spread_or_a_mean() -> None:
    table = np.stack([np.full(20, 0.1), np.tile([-1.0, 1.0], 10), np.arange(20.0)], axis=1)
    found = relative_errors(table, rng=stream(9, "t"))
    assert found.value[0] == 0
    assert math.isnan(found.value[1])
    low, high = found.bounds()
    assert low[0] == high[0] == 0
    assert math.isnan(low[1])
    assert 0 < low[2] < found.value[2] < high[2]
    np.testing.assert_array_equal(found.p_below(0.2)[:2], [0.0, 1.0])


def test_a_denominator_per_unit_is_needed() -> None:
    with pytest.raises(ShapeError, match="one value per unit"):
        relative_errors(np.ones((4, 1)), np.ones(3), rng=stream(0, "t"))
