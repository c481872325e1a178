"""Bootstrap-t intervals: worked cases, a slow literal twin, properties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.random import stream
from assay.core.verdict import Interval
from assay.stats import draw_counts, outermost, resampled_ratios, studentized_interval


def test_the_ends_are_those_of_the_studentised_replicates() -> None:
    """Quantiles of t = -2, -1, 0, 1, 4 around 10 with error 3: the 10 % and 90 % orders are -2 and 4."""
    replicates = np.array([8.0, 9.0, 10.0, 11.0, 12.0])
    errors = np.array([1.0, 1.0, 1.0, 1.0, 0.5])
    found = studentized_interval(10.0, 3.0, replicates, errors, level=0.8)
    assert (found.low, found.high) == (10 - 4 * 3, 10 + 2 * 3)
    assert (found.method, found.reason, found.level) == ("bootstrap-t", None, 0.8)


def test_no_spread_and_too_many_undefined_resamples() -> None:
    ones = np.ones(100)
    assert studentized_interval(2.0, 0.0, ones, ones).reason == "degenerate"
    holed = np.where(np.arange(100) < 2, np.nan, 1.0)
    assert studentized_interval(2.0, 1.0, holed, ones).reason == "undefined_replicates"
    # More than 2.5 % of the resamples lie infinitely far below, without any spread of their own.
    flat = np.arange(100) < 4
    found = studentized_interval(2.0, 1.0, np.where(flat, 0.0, 2.5), np.where(flat, 0.0, 1.0))
    assert (found.low, found.high, found.reason) == (1.5, math.inf, None)
    assert studentized_interval(math.nan, 1.0, ones, ones).reason == "undefined_replicates"


def bounds(top: np.ndarray, bottom: np.ndarray, counts: np.ndarray, level: float = 0.95) -> Interval:
    """Bootstrap-t interval of a ratio of sums."""
    ratios, errors = resampled_ratios(top[:, None], bottom, np.concatenate([np.ones((1, len(top))), counts]))
    return studentized_interval(
        float(ratios[0, 0]), float(errors[0, 0]), ratios[1:, 0], errors[1:, 0], level=level
    )


def literal(top: np.ndarray, bottom: np.ndarray, draws: np.ndarray, level: float) -> tuple[float, float]:
    """One resample after the other, by the formula of the error."""

    def ratio_and_error(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        ratio = x.sum() / y.sum()
        error = math.sqrt(((x - ratio * y) ** 2).sum() / (len(x) * (len(x) - 1))) / abs(y.mean())
        return float(ratio), error

    point, error = ratio_and_error(top, bottom)
    t = []
    for rows in draws:
        ratio, its = ratio_and_error(top[rows], bottom[rows])
        t.append((ratio - point) / its)
    t.sort()
    low = t[math.floor((1 - level) / 2 * (len(t) - 1))]
    high = t[math.ceil((1 + level) / 2 * (len(t) - 1))]
    return point - high * error, point - low * error


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_fast_interval_equals_the_literal_one(level: float) -> None:
    rng = stream(0, "studentized")
    top, bottom = rng.exponential(size=25), rng.normal(3, 0.4, size=25)
    draws = rng.integers(0, 25, (200, 25))
    found = bounds(top, bottom, counts=draw_counts(25, 200, rng, draws), level=level)
    assert (found.low, found.high) == pytest.approx(literal(top, bottom, draws, level), rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 100), st.floats(-1e6, 1e6))
def test_scale_and_shift_of_a_mean_carry_over(seed: int, scale: float, shift: float) -> None:
    rng = np.random.default_rng(seed)
    x, ones = rng.exponential(size=20), np.ones(20)
    counts = draw_counts(20, 99, rng)
    plain = bounds(x, ones, counts)
    moved = bounds(scale * x + shift, ones, counts)
    assert moved.low == pytest.approx(scale * plain.low + shift, rel=1e-6, abs=1e-6 * scale)
    assert moved.high == pytest.approx(scale * plain.high + shift, rel=1e-6, abs=1e-6 * scale)


def test_the_sign_of_the_denominator_turns_the_interval() -> None:
    rng = stream(1, "studentized")
    top, bottom = rng.normal(1, 1, 30), rng.normal(3, 0.4, 30)
    counts = draw_counts(30, 199, rng)
    plain, turned = bounds(top, bottom, counts), bounds(top, -bottom, counts)
    assert (turned.low, turned.high) == pytest.approx((-plain.high, -plain.low), rel=1e-9)


def test_equal_examples_have_no_spread() -> None:
    counts = draw_counts(12, 50, stream(0, "equal"))
    found = bounds(np.full(12, 0.1 + 0.2), np.full(12, 0.3), counts)
    assert (found.low, found.high, found.reason) == (pytest.approx(1.0), pytest.approx(1.0), "degenerate")


def test_ratios_of_several_numerators_are_each_their_own() -> None:
    rng = stream(2, "studentized")
    tops, bottom = rng.normal(1, 1, (15, 3)), rng.normal(3, 0.4, 15)
    counts = draw_counts(15, 20, rng)
    ratios, errors = resampled_ratios(tops, bottom, counts)
    for at in range(3):
        alone = resampled_ratios(tops[:, at : at + 1], bottom, counts)
        np.testing.assert_allclose(ratios[:, at], alone[0][:, 0])
        np.testing.assert_allclose(errors[:, at], alone[1][:, 0])
    np.testing.assert_allclose(ratios, (counts @ tops) / (counts @ bottom)[:, None])


def test_the_outermost_ends_and_the_first_undefined() -> None:
    one = Interval(low=0.0, high=2.0, level=0.9, method="delta")
    other = Interval(low=1.0, high=3.0, level=0.9, method="bootstrap-t")
    assert (outermost(one, other).low, outermost(one, other).high) == (0.0, 3.0)
    assert outermost(one, other).method == "delta"
    unknown = Interval(low=math.nan, high=math.nan, level=0.9, method="delta", reason="too_few")
    assert outermost(one, unknown) is unknown
