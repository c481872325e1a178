"""Group comparisons against worked cases, golden values, invariances and their own coverage."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from assay.core.errors import NonFiniteError
from assay.core.random import stream
from assay.stats import group_differences


CASES = json.loads((Path(__file__).parent.parent / "golden/calibrations/welch_anova.json").read_text())


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: "-".join(str(len(group)) for group in case["groups"])
)
def test_group_differences_match_golden_values(case: dict) -> None:
    found = group_differences([np.array(group) for group in case["groups"]])
    welch, classic = found.welch, found.classic
    assert (welch.statistic, *welch.degrees_of_freedom, welch.p_value) == pytest.approx(
        (case["welch_F"], case["ddof1"], case["ddof2"], case["welch_p"]), rel=1e-9
    )
    assert (classic.statistic, classic.p_value) == pytest.approx(
        (case["classic_F"], case["classic_p"]), rel=1e-9
    )
    assert found.eta_squared.value == pytest.approx(case["partial_eta_sq"], rel=1e-9)
    assert found.omega_squared.value == pytest.approx(case["omega_sq"], rel=1e-9)
    assert found.epsilon_squared.value == pytest.approx(case["epsilon_sq"], rel=1e-9)
    bounds = found.eta_squared.interval
    assert bounds is not None
    assert (bounds.low, bounds.high) == pytest.approx(case["eta_pop_one_sided_95"], rel=1e-9, abs=1e-12)
    spread, ranks = found.brown_forsythe, found.kruskal_wallis
    assert (spread.statistic, spread.p_value) == pytest.approx(
        (case["brown_forsythe_W"], case["brown_forsythe_p"]), rel=1e-9
    )
    assert (ranks.statistic, ranks.p_value) == pytest.approx((case["kruskal_H"], case["kruskal_p"]), rel=1e-9)
    assert found.means == pytest.approx(case["group_means"], rel=1e-9)


def test_two_groups_by_hand() -> None:
    # Means 2 and 3, SSB = 6 / 4, SSW = 4: eta^2 = 1.5 / 5.5, F = 1.5; MSW = 1.
    found = group_differences([np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 4.0])])
    assert found.eta_squared.value == pytest.approx(1.5 / 5.5)
    assert found.omega_squared.value == pytest.approx(0.5 / 6.5)
    assert found.epsilon_squared.value == pytest.approx(0.5 / 5.5)
    assert found.expected_eta_squared == pytest.approx(1 / 5)
    assert found.classic.degrees_of_freedom == (1.0, 4.0)


def test_welch_of_two_groups_is_the_square_of_his_t() -> None:
    rng = stream(0, "welch")
    first, second = rng.normal(size=9), rng.normal(1, 3, size=14)
    t = scipy_stats.ttest_ind(first, second, equal_var=False)
    welch = group_differences([first, second]).welch
    assert (welch.statistic, welch.p_value) == pytest.approx((t.statistic**2, t.pvalue), rel=1e-9)
    assert welch.degrees_of_freedom[1] == pytest.approx(t.df, rel=1e-9)


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0, 30.0])
def test_the_bounds_of_eta_squared_solve_the_noncentral_f(shift: float) -> None:
    rng = stream(0, "noncentral")
    groups = [rng.normal(at * shift, 1, size=12) for at in range(3)]
    found = group_differences(groups)
    bounds, f, df = found.eta_squared.interval, found.classic.statistic, found.classic.degrees_of_freedom
    assert bounds is not None
    for end, probability in ((bounds.low, 0.95), (bounds.high, 0.05)):
        if end == 0:
            assert scipy_stats.f.cdf(f, *df) <= probability
        else:
            reached = scipy_stats.ncf.cdf(f, *df, 36 * end / (1 - end))
            assert reached == pytest.approx(probability, abs=1e-9)


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100), st.floats(-10, 10), st.booleans())
def test_affine_maps_and_relabelled_groups_change_nothing(
    seed: int, scale: float, shift: float, turned: bool
) -> None:
    rng = np.random.default_rng(seed)
    groups = [rng.normal(rng.normal(), 1, size=size) for size in (5, 8, 6)]
    first = group_differences(groups)
    factor = -scale if turned else scale
    second = group_differences([factor * groups[at] + shift for at in (2, 0, 1)])
    for name in ("eta_squared", "omega_squared", "epsilon_squared"):
        assert getattr(second, name).value == pytest.approx(getattr(first, name).value, rel=1e-6, abs=1e-9)
    for name in ("welch", "classic", "brown_forsythe", "kruskal_wallis"):
        assert getattr(second, name).statistic == pytest.approx(getattr(first, name).statistic, rel=1e-6)
    assert first.eta_squared.interval is not None
    assert second.eta_squared.interval is not None
    assert second.eta_squared.interval.high == pytest.approx(first.eta_squared.interval.high, rel=1e-6)
    assert 0 <= first.eta_squared.interval.low <= first.eta_squared.interval.high <= 1


def test_constant_groups() -> None:
    equal = group_differences([np.full(4, 0.1), np.full(3, 0.1)])
    apart = group_differences([np.full(4, 0.1), np.full(3, 0.2)])
    for found, share in ((equal, 0.0), (apart, 1.0)):
        bounds = found.eta_squared.interval
        assert bounds is not None
        assert (found.eta_squared.value, bounds.low, bounds.high, bounds.reason) == (
            share,
            share,
            share,
            "degenerate",
        )
        for test in (found.welch, found.classic, found.brown_forsythe, found.kruskal_wallis):
            assert math.isnan(test.p_value)
            assert test.reason == "zero_variance"
    one = group_differences([np.full(4, 0.1), np.array([0.1, 0.2, 0.4])])
    assert one.welch.reason == "zero_variance"
    assert math.isnan(one.welch.statistic)
    assert one.classic.statistic == pytest.approx(scipy_stats.f_oneway([0.1] * 4, [0.1, 0.2, 0.4]).statistic)
    steady = group_differences([np.array([0.0, 0.0, 1.0, 1.0]), np.array([2.0, 2.0, 4.0, 4.0])])
    assert steady.brown_forsythe.reason == "zero_variance"
    assert not math.isnan(steady.welch.p_value)


def test_small_groups_are_left_out_and_one_is_too_few() -> None:
    groups = [np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0]), np.empty(0), np.array([2.0, 3.0, 4.0])]
    found = group_differences(groups)
    assert found.used == (1, 3)
    assert found.sizes == (3, 3)
    assert found.eta_squared.value == pytest.approx(1.5 / 5.5)
    for few in ([], groups[:1], groups[:2]):
        nothing = group_differences(few)
        assert nothing.eta_squared.reason == nothing.welch.reason == "too_few_groups"
        assert math.isnan(nothing.eta_squared.value)
        assert math.isnan(nothing.expected_eta_squared)
        json.dumps(nothing.to_dict(), allow_nan=False)
    with pytest.raises(NonFiniteError, match="values of group 1 hold nan"):
        group_differences([np.arange(3.0), np.array([1.0, math.nan, 2.0])])


def test_the_bounds_hold_as_often_as_they_say() -> None:
    rng, n_worlds = stream(0, "eta worlds"), 600
    means = np.array([-0.6, 0.0, 0.6])
    truth = means.var() / (means.var() + 1)
    misses = np.zeros(2)
    null_above = 0
    for _ in range(n_worlds):
        noise = rng.normal(size=(3, 20))
        bounds = group_differences(list(noise + means[:, None])).eta_squared.interval
        null = group_differences(list(noise)).eta_squared.interval
        assert bounds is not None
        assert null is not None
        misses += (bounds.low > truth, bounds.high < truth)
        null_above += null.low > 0
    # 5 % each: three and a half standard errors of 600 worlds are 3.1 points.
    assert (misses / n_worlds < 0.082).all()
    assert (misses / n_worlds > 0.02).all()
    assert null_above / n_worlds < 0.082
