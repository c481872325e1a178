"""Intervals against worked cases, golden values, literal versions, scipy and their own coverage."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from thorough import one_of

from assay.core.errors import InputError
from assay.core.measurement import ONE_SIDED_95, Interval
from assay.core.random import stream
from assay.stats import (
    bootstrap_interval,
    bounded_mean,
    clopper_pearson,
    delta_interval,
    draw_counts,
    fieller_interval,
    fisher_z_interval,
    mean_above,
    mean_of,
    outermost,
    ratio_of,
    resampled_ratios,
    skewed_mean_interval,
    statistic_from_dict,
    studentized_interval,
)


GOLDEN = Path(__file__).parent.parent / "golden"
BOOTSTRAP = json.loads((GOLDEN / "bootstrap.json").read_text())


def ratio(sums: np.ndarray, n: int) -> np.ndarray:
    return np.asarray(sums[..., 0] / sums[..., 1])


def mean(sums: np.ndarray, n: int) -> np.ndarray:
    return np.asarray(sums[..., 0] / n)


@pytest.mark.parametrize("case", BOOTSTRAP, ids=lambda case: case["name"])
@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_bootstrap_of_a_ratio_matches_golden_values_on_the_same_draws(case: dict, method: str) -> None:
    values = np.array([case["num"], case["den"]])
    draws = np.array(case["index_draws"])
    interval = bootstrap_interval(
        values, ratio, rng=stream(0, "unused"), method=method, draws=draws, n_resamples=len(draws)
    )
    expected = case[f"{method}_95"]
    if expected is None:  # degenerate: the file says that both ends are the point
        expected = [case["faithfulness"]] * 2
    assert [interval.low, interval.high] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_bootstrap_covers_about_as_often_as_it_says(method: str) -> None:
    rng, hits, how = stream(11, "coverage"), 0, {"method": method, "n_resamples": 400}
    for _ in range(200):
        hits += 2.0 in bootstrap_interval(rng.normal(2.0, 1.0, (1, 60)), mean, rng=rng, **how)
    # 95 % nominal, a little below at n = 60; 200 trials have a standard error of 1.6 points.
    assert 0.88 <= hits / 200 <= 0.99


def test_counts_add_up_and_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.stats import intervals

    whole = draw_counts(7, 50, stream(1, "counts"))
    monkeypatch.setattr(intervals, "_BLOCK", 21)
    assert (draw_counts(7, 50, stream(1, "counts")) == whole).all()
    assert (whole.sum(axis=1) == 7).all()


def test_undefined_replicates_leave_the_interval_undefined() -> None:
    values = np.array([[1.0, 2.0, 3.0], [1.0, 0.0, 0.0]])  # a third of the draws has no denominator
    interval = bootstrap_interval(values, ratio_of("a", "b")._of_pair, rng=stream(0, "draws"))
    assert interval.reason == "undefined_replicates"
    assert not interval.defined


def test_bca_falls_back_to_percentiles_when_all_replicates_lie_on_one_side() -> None:
    def away(sums: np.ndarray, n: int) -> np.ndarray:
        total = np.asarray(sums[..., 0])
        return np.where(total == 6.0, 100.0, total)

    # None of the given draws reaches the sum of the sample itself, which the function sends far away.
    values = np.array([[1.0, 2.0, 3.0]])
    draws = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 1]] * 10)
    interval = bootstrap_interval(values, away, rng=stream(0, "draws"), draws=draws, n_resamples=30)
    assert (interval.method, interval.reason) == ("percentile", "bca_undefined")


def test_closed_forms() -> None:
    values = np.array([1.0, 2.0, 4.0, 7.0])
    students = scipy_stats.t.interval(0.9, 3, values.mean(), scipy_stats.sem(values))
    z, margin = math.atanh(0.5), scipy_stats.norm.ppf(0.975) / 5  # r = 0.5, n = 28
    widened = scipy_stats.norm.ppf(0.975) * math.sqrt(1.125 / 25)  # of ranks
    for interval, ends in (
        (delta_interval(values.mean(), values, level=0.9), students),
        # 0 of n ends at 1 - (alpha/2)^(1/n), n of n starts at (alpha/2)^(1/n).
        (clopper_pearson(0, 10), (0.0, 1 - 0.025**0.1)),
        (clopper_pearson(10, 10), (0.025**0.1, 1.0)),
        (clopper_pearson(1, 2), (1 - math.sqrt(0.975), math.sqrt(0.975))),
        (fisher_z_interval(0.5, 28), np.tanh([z - margin, z + margin])),
        (fisher_z_interval(0.5, 28, kind="spearman"), np.tanh([z - widened, z + widened])),
    ):
        assert (interval.low, interval.high) == pytest.approx(tuple(ends), rel=1e-9, abs=1e-12)
    one, other = (Interval(low=low, high=low + 2, level=0.9, method=str(low)) for low in (0.0, 1.0))
    assert outermost(one, other) == Interval(low=0.0, high=3.0, level=0.9, method="0.0")


@pytest.mark.parametrize("case", BOOTSTRAP, ids=lambda case: case["name"])
def test_linearised_values_match_the_golden_influence_and_standard_error(case: dict) -> None:
    values = np.array([case["num"], case["den"]])
    linear = ratio_of("num", "den").linearised(values)
    np.testing.assert_allclose(linear - case["faithfulness"], case["influence"], atol=1e-12)
    error = linear.std(ddof=1) / math.sqrt(len(linear))
    assert error == pytest.approx(case["delta_se_ddof1"], rel=1e-9, abs=1e-12)


def test_fieller_ends_solve_its_equation() -> None:
    rng = stream(2, "fieller")
    den = rng.normal(3.0, 1.0, 25)
    num = 0.7 * den + rng.normal(0.0, 0.5, 25)
    interval = fieller_interval(num, den, level=0.9)
    t = scipy_stats.t.ppf(0.95, 24)
    for end in (interval.low, interval.high):
        rest = num - end * den
        assert rest.mean() ** 2 == pytest.approx(t**2 * rest.var(ddof=1) / 25, rel=1e-9)
    assert interval.low < num.sum() / den.sum() < interval.high


def test_the_ends_are_those_of_the_studentised_replicates() -> None:
    """Quantiles of t = -2, -1, 0, 1, 4 around 10 with error 3: the 10 % and 90 % orders are -2 and 4."""
    replicates, errors = np.array([8.0, 9.0, 10.0, 11.0, 12.0]), np.array([1.0, 1.0, 1.0, 1.0, 0.5])
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


def bootstrap_t(top: np.ndarray, bottom: np.ndarray, counts: np.ndarray, level: float = 0.95) -> Interval:
    """Bootstrap-t interval of a ratio of sums."""
    ratios, errors = resampled_ratios(top[:, None], bottom, np.vstack([np.ones(len(top)), counts]))
    ends = float(ratios[0, 0]), float(errors[0, 0])
    return studentized_interval(*ends, ratios[1:, 0], errors[1:, 0], level=level)


def literal_t(top: np.ndarray, bottom: np.ndarray, draws: np.ndarray, level: float) -> tuple[float, float]:
    """One resample after the other, by the formula of the error."""

    def ratio_and_error(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        ratio = x.sum() / y.sum()
        error = math.sqrt(((x - ratio * y) ** 2).sum() / (len(x) * (len(x) - 1))) / abs(y.mean())
        return float(ratio), error

    point, error = ratio_and_error(top, bottom)
    resamples = [ratio_and_error(top[rows], bottom[rows]) for rows in draws]
    t = sorted((ratio - point) / its for ratio, its in resamples)
    low, high = t[math.floor((1 - level) / 2 * (len(t) - 1))], t[math.ceil((1 + level) / 2 * (len(t) - 1))]
    return point - high * error, point - low * error


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_fast_interval_equals_the_literal_one(level: float) -> None:
    rng = stream(0, "studentized")
    top, bottom = rng.exponential(size=25), rng.normal(3, 0.4, size=25)
    draws = rng.integers(0, 25, (200, 25))
    found = bootstrap_t(top, bottom, counts=draw_counts(25, 200, rng, draws), level=level)
    assert (found.low, found.high) == pytest.approx(literal_t(top, bottom, draws, level), rel=1e-9)


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


def literal_p(values: list[float], least: float) -> float:
    """The formula of the docstring, value by value."""
    n = len(values)
    mean = sum(values) / n
    second = sum((each - mean) ** 2 for each in values) / n
    third = sum((each - mean) ** 3 for each in values) / n
    g = third / second**1.5 * (1 + 20 / n)
    s = (mean - least) / math.sqrt(second * n / (n - 1))
    q = s + g * s**2 / 3 + g**2 * s**3 / 27 + g / (6 * n)
    return max(float(scipy_stats.t.sf(math.sqrt(n) * each, n - 1)) for each in (s, q))


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
    assert mean_above(x[:, None], least)[0] == pytest.approx(literal_p(values, least), rel=1e-6, abs=1e-12)


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


SAME = np.full(12, 0.1 + 0.2), np.full(12, 0.3), draw_counts(12, 50, stream(0, "equal"))


@pytest.mark.parametrize(
    ("interval", "reason"),
    [
        (lambda: bootstrap_interval(np.ones((1, 1)), mean, rng=stream(0, "draws")), "too_few"),
        (lambda: bootstrap_interval(np.full((1, 9), 0.1), mean, rng=stream(0, "draws")), "degenerate"),
        (lambda: delta_interval(1.0, np.array([1.0])), "too_few"),
        (lambda: delta_interval(2.0, np.full(5, 2.0)), "degenerate"),
        (lambda: fieller_interval(np.array([1.0]), np.array([1.0])), "too_few"),
        (lambda: fieller_interval(np.array([1.0, 2.0, 3.0]), np.array([1.0, -1.1, 0.2])), "unbounded"),
        (lambda: fieller_interval(np.array([2.0, -2.2, 0.4]), np.array([1.0, -1.1, 0.2])), "degenerate"),
        (lambda: clopper_pearson(0, 0), "too_few"),
        (lambda: fisher_z_interval(0.5, 3), "too_few"),
        (lambda: fisher_z_interval(math.nan, 30), "undefined"),
        (lambda: fisher_z_interval(1.0, 30), "degenerate"),
        (lambda: bounded_mean(np.array([])), "too_few"),
        (lambda: bootstrap_t(*SAME), "degenerate"),
        (lambda: skewed_mean_interval(2.0, np.full(20, 2.0)), "degenerate"),
        (lambda: outermost(clopper_pearson(1, 4), clopper_pearson(0, 0)), "too_few"),
    ],
)
def test_an_interval_says_why_there_is_none(interval: Any, reason: str) -> None:
    found = interval()
    assert found.reason == reason
    assert found.low == found.high or not found.defined


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: bootstrap_interval(np.ones((1, 3)), mean, rng=stream(0, "x"), method="basic"), "'bca'"),
        (lambda: draw_counts(3, 0, stream(0, "draws")), "n_resamples is 0"),
        (lambda: clopper_pearson(4, 3), "successes is 4 of n = 3"),
        (lambda: fisher_z_interval(1.2, 30), "expected a correlation in"),
        (lambda: fisher_z_interval(0.2, 30, kind="kendall"), "known: pearson, spearman"),
        (lambda: bounded_mean(np.array([1.2])), "expected values in"),
        (lambda: bounded_mean(np.ones(3), level=1.0), "level"),
        (lambda: mean_of("x").interval(np.ones((1, 4)), method="betting"), "known bounds"),
        (lambda: mean_of("x").interval(np.full((1, 4), 0.5), method="clopper-pearson"), "that are 0 or 1"),
        (lambda: mean_of("x").interval(np.ones((1, 4)), method="fielder"), "did you mean 'fieller'"),
        (lambda: mean_above(np.ones((1, 2))), "got 1 value"),
    ],
)
def test_bad_input_is_named(refused: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        refused()
