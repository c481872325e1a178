"""Bounds of a spread against worked cases, golden values, invariances and their own coverage."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from assay.core.errors import InputError, NonFiniteError
from assay.core.random import stream
from assay.stats import (
    bootstrap_spread,
    coefficient_of_variation,
    ratio_of,
)
from assay.stats.spread import bonett_logs, trimmed_kurtosis


GOLDEN = Path(__file__).parent.parent / "golden"
CV = json.loads((GOLDEN / "calibrations" / "cv.json").read_text())
BOOTSTRAP = json.loads((GOLDEN / "bootstrap.json").read_text())


def bounds(x: np.ndarray) -> np.ndarray:
    """One-sided 95 % bounds of the standard deviation of the values."""
    logs = bonett_logs(np.array(scipy_stats.norm.ppf(0.95)), len(x), trimmed_kurtosis(x))
    return np.asarray(x.std(ddof=1) * np.exp(logs))


@pytest.mark.parametrize("case", CV["bonett"], ids=lambda case: f"n{len(case['x'])}")
def test_bonett_bounds_match_golden_values(case: dict) -> None:
    low, high = bounds(np.array(case["x"]))
    assert low == pytest.approx(case["one_sided_95_lower"], rel=1e-9)
    assert high == pytest.approx(case["one_sided_95_upper"], rel=1e-9)


def test_the_bounds_are_the_formula_step_by_step() -> None:
    x = np.array([1.0, 2.0, 2.5, 3.0, 3.2, 4.0, 4.1, 5.0, 5.5, 9.0])
    n, z = 10, scipy_stats.norm.ppf(0.95)
    # 1 / (2 root 6) of ten values is 2.04: two values are trimmed at each side.
    centre = np.mean([2.5, 3.0, 3.2, 4.0, 4.1, 5.0])
    g4 = n * ((x - centre) ** 4).sum() / ((x - x.mean()) ** 2).sum() ** 2
    c = n / (n - z)
    se = c * math.sqrt((g4 - (n - 3) / n) / (n - 1))
    expected = [math.exp((math.log(c * x.var(ddof=1)) + sign * z * se) / 2) for sign in (-1, 1)]
    assert bounds(x).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_bounds_hold_about_as_often_as_they_say(draw: str) -> None:
    rng, n_worlds = stream(0, f"spread {draw}"), 1000
    above = below = 0
    for _ in range(n_worlds):
        low, high = bounds(getattr(rng, draw)(size=60))
        above, below = above + (low > 1), below + (high < 1)
    # Each end misses in about 5 %, but the upper one more often for skewed values, as the docstring says.
    assert above / n_worlds < 0.075
    assert below / n_worlds < (0.075 if draw == "normal" else 0.18)


# ----------------------------------------------------------------------------------------------- bootstrap


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


def test_the_bootstrap_spread_of_one_example_is_undefined() -> None:
    found = bootstrap_spread(np.ones((2, 1)), ratio_of("a", "b").of_sums, rng=stream(0, "x"))
    assert found.reason == "too_few"
    assert math.isnan(found.value)
    vanishing = np.array([[1.0, 2.0], [1.0, -1.0]])
    found = bootstrap_spread(vanishing, ratio_of("a", "b").of_sums, rng=stream(0, "x"))
    assert found.reason == "undefined_replicates"
    constant = np.full((2, 5), 0.3)
    assert bootstrap_spread(constant, ratio_of("a", "b").of_sums, rng=stream(0, "x")).value == 0.0


# ------------------------------------------------------------------------------- coefficient of variation


@pytest.mark.parametrize("case", CV["simple"], ids=str)
def test_the_coefficient_of_variation_matches_golden_values(case: dict) -> None:
    for ddof in (0, 1):
        found = coefficient_of_variation(np.array(case["values"]), ddof=ddof)
        if case[f"cv_ddof{ddof}"] == "inf":  # what published code returns
            assert math.isnan(found.value)
            assert found.reason == "zero_mean"
        else:
            assert found.value == pytest.approx(case[f"cv_ddof{ddof}"], rel=1e-9, abs=1e-12)


def test_relative_spread_needs_a_mean_and_enough_values() -> None:
    assert coefficient_of_variation(np.array([1e-9, -1e-9])).reason == "zero_mean"
    assert coefficient_of_variation(np.empty(0)).reason == "too_few"
    assert coefficient_of_variation(np.array([2.0]), ddof=1).reason == "too_few"
    assert coefficient_of_variation(np.array([2.0])).value == 0.0
    assert coefficient_of_variation(np.array([-1.0, -3.0])).value == 0.5
    with pytest.raises(InputError, match="ddof is 2; choose 0 or 1"):
        coefficient_of_variation(np.array([2.0]), ddof=2)
    with pytest.raises(NonFiniteError, match="overflows"), np.errstate(over="ignore"):
        coefficient_of_variation(np.array([1e308, 1e308]))
