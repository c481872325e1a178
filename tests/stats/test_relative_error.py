"""Functions of sums, spreads and relative errors: by hand, golden values, loops over resamples."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from assay.core.measurement import ONE_SIDED_95
from assay.core.random import stream
from assay.stats import (
    FunctionOfSums,
    RatioOfSums,
    bootstrap_spread,
    clopper_pearson,
    coefficient_of_variation,
    mean_of,
    poisson_weights,
    ratio_of,
    recovery_of,
    relative_errors,
    statistic_from_dict,
)
from assay.stats.intervals import draw_counts
from assay.stats.relative_error import bonett_logs, trimmed_kurtosis


KEEP = np.array([1.0, 2.0, 3.0])
FULL = np.array([2.0, 2.0, 4.0])
EMPTY = np.array([0.0, 1.0, 1.0])
PARAMETERS = {"weights": [0.5, 2.0], "smallest": 1e-12}
AREA = FunctionOfSums(function="distance-area", components=("empty", "full", "p", "q"), parameters=PARAMETERS)


def value(statistic: RatioOfSums | FunctionOfSums, *vectors: np.ndarray) -> float:
    return float(statistic.of_sums(np.stack(vectors).sum(axis=1), len(vectors[0])))


def test_each_form_has_its_worked_value() -> None:
    assert value(mean_of("x"), KEEP) == 2.0
    assert value(mean_of("x", offset=1.0, scale=-1.0), KEEP) == -1.0
    assert value(RatioOfSums(numerator={"keep": 1.0, "empty": -1.0}), KEEP, EMPTY) == pytest.approx(4 / 3)
    assert value(ratio_of("keep", "full"), KEEP, FULL) == 0.75
    assert value(ratio_of("keep", "full", offset=1.0, scale=-1.0), KEEP, FULL) == 0.25
    assert recovery_of("keep").components == ("keep", "empty", "full")
    assert value(recovery_of("keep"), KEEP, EMPTY, FULL) == pytest.approx((6 - 2) / (8 - 2))
    half, twice = EMPTY + (FULL - EMPTY) / 2, EMPTY + 2 * (FULL - EMPTY)
    assert value(AREA, EMPTY, FULL, half, twice) == pytest.approx(0.5 * 0.5 + 2.0 * 1.0)
    assert math.isnan(value(AREA, FULL, FULL, half, twice))
    for form in (mean_of("x"), recovery_of("keep", smallest=1e-12), AREA):
        assert statistic_from_dict(json.loads(json.dumps(form.to_dict()))) == form


def test_a_vanishing_denominator_is_undefined_not_zero() -> None:
    assert math.isnan(value(ratio_of("a", "b"), KEEP, np.array([1.0, -2.0, 1.0])))
    assert math.isnan(value(ratio_of("a", "b"), KEEP, np.full(3, 0.9e-8)))
    assert value(ratio_of("a", "b"), KEEP, np.full(3, 1.1e-8)) == pytest.approx(2 / 1.1e-8)
    assert math.isnan(value(mean_of("x"), np.empty(0)))


def test_default_interval_is_bca_and_fieller_where_the_denominator_is_unstable() -> None:
    rng = stream(0, "data")
    steady = rng.normal(2.0, 0.5, (2, 40))
    shaky = np.stack([rng.normal(0.5, 1.0, 40), rng.normal(0.3, 1.0, 40)])
    assert ratio_of("a", "b").interval(steady).method == mean_of("a").interval(shaky[:1]).method == "bca"
    assert ratio_of("a", "b").unstable(shaky)
    assert ratio_of("a", "b").interval(shaky).method == "fieller"
    hits = np.array([[1.0, 1.0, 0.0, 1.0]])
    assert mean_of("hit").interval(hits, method="clopper-pearson") == clopper_pearson(3, 4)


@pytest.mark.parametrize("method", ["bca", "percentile", "delta", "fieller"])
def test_a_negative_scale_mirrors_the_interval(method: str) -> None:
    data = stream(0, "data").normal(2.0, 0.5, (2, 40))
    kept = ratio_of("a", "b").interval(data, method=method)
    lost = ratio_of("a", "b", offset=1.0, scale=-1.0).interval(data, method=method)
    # Percentile and BCa interpolate between the same replicates seen from the other side.
    assert (lost.low, lost.high) == pytest.approx((1 - kept.high, 1 - kept.low), rel=1e-9)


GOLDEN = Path(__file__).parent.parent / "golden"
CV = json.loads((GOLDEN / "calibrations" / "cv.json").read_text())
BOOTSTRAP = json.loads((GOLDEN / "bootstrap.json").read_text())


@pytest.mark.parametrize("case", CV["bonett"], ids=lambda case: f"n{len(case['x'])}")
def test_bonett_bounds_match_golden_values(case: dict) -> None:
    x = np.array(case["x"])
    logs = bonett_logs(np.array(scipy_stats.norm.ppf(0.95)), len(x), trimmed_kurtosis(x))
    expected = [case[f"one_sided_95_{end}"] for end in ("lower", "upper")]
    assert x.std(ddof=1) * np.exp(logs) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("case", BOOTSTRAP, ids=lambda case: case["name"])
def test_the_bootstrap_spread_matches_golden_values_on_the_same_draws(case: dict) -> None:
    table = np.array([case["num"], case["den"]])
    statistic = ratio_of("num", "den")
    draws = np.array(case["index_draws"])
    found = bootstrap_spread(
        table, statistic.of_sums, rng=stream(0, "unused"), n_resamples=len(draws), draws=draws
    )
    if found.defined:
        assert found.value == pytest.approx(case["sigma_ddof0"], rel=1e-9, abs=1e-12)
    else:
        assert found.reason == "undefined_replicates"


@pytest.mark.parametrize("case", CV["simple"], ids=str)
def test_the_coefficient_of_variation_matches_golden_values(case: dict) -> None:
    for ddof in (0, 1):
        found, stored = coefficient_of_variation(np.array(case["values"]), ddof=ddof), case[f"cv_ddof{ddof}"]
        expected = (
            (math.nan, "zero_mean") if stored == "inf" else (stored, None)
        )  # what published code returns
        assert found.reason == expected[1]
        assert found.value == pytest.approx(expected[0], rel=1e-9, abs=1e-12, nan_ok=True)


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
    theta, t, logs = found.value[0], found.studentised[:, 0] * found.log_error[0], found.logs[:, 0]
    of_value = 1.6448536269514722 * x.std(ddof=1) / math.sqrt(200) / x.mean()
    spread = bonett_logs(np.array(1.6448536269514722), 200, trimmed_kurtosis(x))
    # The 50th from either end of 999.
    low = min(-t[949], logs[49], -math.hypot(spread[0], of_value))
    high = max(-t[49], logs[949], math.hypot(spread[1], of_value))
    assert found.bounds(ONE_SIDED_95)[:, 0] == pytest.approx(theta * np.exp([low, high]))


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


def test_columns_without_a_spread_or_a_mean() -> None:
    table = np.stack([np.full(20, 0.1), np.tile([-1.0, 1.0], 10), np.arange(20.0)], axis=1)
    found = relative_errors(table, rng=stream(9, "t"))
    low, high = found.bounds()
    assert (found.value[0], low[0], high[0]) == (0, 0, 0)
    assert np.isnan([found.value[1], low[1]]).all()
    assert 0 < low[2] < found.value[2] < high[2]
    np.testing.assert_array_equal(found.p_below(0.2)[:2], [0.0, 1.0])


def test_counts_have_the_poisson_distribution() -> None:
    weights = poisson_weights(np.arange(5000), 200)
    shares = np.bincount(weights.astype(int).ravel(), minlength=6)[:6] / weights.size
    expected = [math.exp(-1) / math.factorial(k) for k in range(6)]
    # A share over a million draws has a standard error of at most 0.0005.
    assert shares == pytest.approx(expected, abs=0.002)
    assert weights.mean() == pytest.approx(1, abs=0.004)
    assert weights.var() == pytest.approx(1, abs=0.008)


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20), st.randoms(), st.integers(-5, 2**40))
def test_a_weight_follows_its_id(ids: list[int], random: object, seed: int) -> None:
    shuffled = list(ids)
    random.shuffle(shuffled)
    whole = poisson_weights(np.array(ids), 7, seed=seed)
    by_id = {each: whole[:, place] for place, each in enumerate(ids)}
    for place, each in enumerate(shuffled):
        alone = poisson_weights(np.array(shuffled), 7, seed=seed)[:, place]
        assert np.array_equal(alone, by_id[each])
        assert np.array_equal(poisson_weights(np.array([each]), 7, seed=seed)[:, 0], alone)
