"""Means of skewed values: a case by hand, a literal twin, and errors at the limit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from assay.core.errors import InputError
from assay.core.random import stream
from assay.stats import mean_above, skewed_mean_interval


def literal(values: list[float], least: float) -> float:
    """The formula of the docstring, value by value."""
    n = len(values)
    mean = sum(values) / n
    second = sum((each - mean) ** 2 for each in values) / n
    third = sum((each - mean) ** 3 for each in values) / n
    g = third / second**1.5 * (1 + 20 / n)
    s = (mean - least) / math.sqrt(second * n / (n - 1))
    q = s + g * s**2 / 3 + g**2 * s**3 / 27 + g / (6 * n)
    return max(float(scipy_stats.t.sf(math.sqrt(n) * each, n - 1)) for each in (s, q))


def test_a_symmetric_sample_is_tested_by_student_alone() -> None:
    """Values 1, 2, 3: mean 2, sd 1, no skewness, t = 2 root 3 with two degrees of freedom, p = 0.0371."""
    (p,) = mean_above(np.array([[1.0], [2.0], [3.0]]))
    t = 2 * math.sqrt(3)
    assert p == pytest.approx(0.5 * (1 - t / math.sqrt(2 + t**2)))


def test_a_skewed_sample_is_worked_by_hand() -> None:
    """Values 0 and -4, 16 and 4 of 20: mean -0.8, m2 2.56, m3 -6.144, skewness -1.5, doubled -3."""
    x = np.array([0.0] * 16 + [-4.0] * 4)[:, None]
    s = 0.7 / math.sqrt(2.56 * 20 / 19)  # against -1.5
    q = s - s**2 + s**3 / 3 - 3 / 120
    assert q < s
    assert mean_above(x, -1.5)[0] == pytest.approx(scipy_stats.t.sf(math.sqrt(20) * q, 19))


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=30), st.floats(-10, 10))
def test_it_is_the_literal_formula(values: list[float], least: float) -> None:
    x = np.array(values)
    if np.ptp(x) < 1e-3:
        return
    assert mean_above(x[:, None], least)[0] == pytest.approx(literal(values, least), rel=1e-6, abs=1e-12)


@given(st.integers(0, 10**6), st.floats(0.5, 0.98))
def test_the_bounds_are_the_means_that_the_test_just_rejects(seed: int, level: float) -> None:
    x = stream(seed, "ends").exponential(size=25) * (-1) ** seed
    interval = skewed_mean_interval(float(x.mean()), x, level=level)
    below, above = mean_above(x[:, None], interval.low), mean_above(-x[:, None], -interval.high)
    assert below[0] == pytest.approx((1 - level) / 2, rel=1e-6)
    assert above[0] == pytest.approx((1 - level) / 2, rel=1e-6)
    margin = scipy_stats.t.ppf((1 + level) / 2, 24) * x.std(ddof=1) / 5
    assert interval.low <= x.mean() - margin + 1e-12
    assert interval.high >= x.mean() + margin - 1e-12


def test_units_do_not_matter_and_equal_values_are_judged_by_their_value() -> None:
    x = stream(0, "scale").exponential(size=(30, 3)) - 0.8
    np.testing.assert_allclose(mean_above(1e-120 * x), mean_above(x), rtol=1e-9)
    assert mean_above(np.full((20, 1), 0.1), 0.0)[0] == 0.0
    assert mean_above(np.zeros((20, 1)), 0.0)[0] == 1.0
    flat = skewed_mean_interval(2.0, np.full(20, 2.0))
    assert (flat.low, flat.high, flat.reason) == (2.0, 2.0, "degenerate")
    assert skewed_mean_interval(2.0, np.ones(1)).reason == "too_few"
    with pytest.raises(InputError, match="got 1 value"):
        mean_above(np.ones((1, 2)))


@pytest.mark.parametrize("n", [20, 60])
@pytest.mark.parametrize("level", [0.05, 0.00625])
def test_exponential_values_at_the_limit_are_rejected_no_more_often_than_promised(
    n: int, level: float
) -> None:
    """20,000 samples of true mean 0; Student's t rejects 11 % at 5 % and 4 % at 0.6 % for n = 20."""
    x = 1 - stream(0, f"limit {n}").exponential(size=(n, 20_000))
    student = scipy_stats.ttest_1samp(x, 0.0, alternative="greater").pvalue
    assert (student <= level).mean() > 1.5 * level
    assert (mean_above(x) <= level).mean() <= 1.2 * level
