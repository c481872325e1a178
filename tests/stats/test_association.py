"""Correlations, rank agreement and group differences: scipy, enumeration, golden values, coverage."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats as scipy_stats

from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError, ShapeError
from assay.core.random import stream
from assay.stats import fagin_tau_rows, group_differences, kendall_tau, kendall_tau_rows, pearson, spearman


# -------------------------------------------------------------------------------------------- correlations


GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "topk_agreement.json").read_text())


CORRELATIONS = [pearson, spearman, kendall_tau]


PAIRS = st.integers(3, 12).flatmap(
    lambda n: st.tuples(*[hnp.arrays(np.float64, n, elements=st.integers(-5, 5)) for _ in range(2)])
)


def varies(x: np.ndarray) -> bool:
    return bool((x != x[0]).any())


@given(PAIRS)
def test_correlations_agree_with_scipy(pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = pair
    if not (varies(x) and varies(y)):
        return
    assert pearson(x, y) == pytest.approx(scipy_stats.pearsonr(x, y).statistic, abs=1e-12)
    assert spearman(x, y) == pytest.approx(scipy_stats.spearmanr(x, y).statistic, abs=1e-12)
    assert kendall_tau(x, y) == pytest.approx(scipy_stats.kendalltau(x, y).statistic, abs=1e-12)


def test_spearman_uses_average_ranks() -> None:
    # Ranks of x: 1.5, 1.5, 3; of y: 1, 2, 3. r = 1.5 / root(1.5 * 2).
    assert spearman(np.array([0, 0, 1]), np.array([1, 2, 3])) == pytest.approx(1.5 / math.sqrt(3.0))


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_pearson_survives_extreme_scales(scale: float) -> None:
    x, y = stream(0, "pairs").normal(size=(2, 20))
    assert pearson(scale * x, y) == pytest.approx(pearson(x, y), abs=1e-9)


@given(
    st.integers(2, 7).flatmap(
        lambda n: st.tuples(*[hnp.arrays(np.float64, (4, n), elements=st.integers(0, 3)) for _ in range(2)])
    )
)
def test_row_wise_tau_equals_the_plain_one(pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = pair
    rows = kendall_tau_rows(x, y)
    for row, a, b in zip(rows, x, y, strict=True):
        if varies(a) and varies(b):
            assert row == pytest.approx(scipy_stats.kendalltau(a, b).statistic, abs=1e-12)
        else:
            assert math.isnan(row)


def test_unused_entries_do_not_count() -> None:
    x, y = np.array([[1.0, 2.0, 3.0, 9.0]]), np.array([[1.0, 2.0, 3.0, -9.0]])
    used = np.array([[True, True, True, False]])
    assert kendall_tau_rows(x, y)[0] == 0.0
    assert kendall_tau_rows(x, y, used=used)[0] == 1.0
    assert math.isnan(kendall_tau_rows(x, y, used=np.array([[True, False, False, False]]))[0])


def literal_fagin(a: list[int], b: list[int]) -> float:
    """The four rules, pair by pair."""
    distance = 0.0
    for i, j in itertools.combinations(sorted({*a, *b}), 2):
        in_a, in_b = [item for item in (i, j) if item in a], [item for item in (i, j) if item in b]
        if len(in_a) == 2 and len(in_b) == 2:
            distance += (a.index(i) < a.index(j)) != (b.index(i) < b.index(j))
        elif len(in_a) == 2 or len(in_b) == 2:
            both, single = (a, in_b) if len(in_a) == 2 else (b, in_a)
            if not single:
                distance += 0.5
            else:
                other = j if single[0] == i else i
                distance += both.index(other) < both.index(single[0])
        else:
            distance += 1
    k = len(a)
    return 1 - 2 * distance / (k * k + k * (k - 1) / 2)


@given(st.integers(1, 6).flatmap(lambda k: st.tuples(*[st.permutations(range(9)).map(lambda p: p[:k])] * 2)))
def test_fagin_equals_its_four_rules(lists: tuple[list[int], list[int]]) -> None:
    a, b = lists
    found = fagin_tau_rows(np.array([a]), np.array([b]))[0]
    assert found == pytest.approx(literal_fagin(a, b), abs=1e-12)
    assert found == pytest.approx(fagin_tau_rows(np.array([b]), np.array([a]))[0], abs=1e-12)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["mode"])
def test_fagin_matches_golden_lists(case: dict) -> None:
    for prompt in case["per_prompt"]:
        for entry in prompt.values():
            if "fagin_tau" in entry:
                lists = [np.array([entry[side]]) for side in ("top_full", "top_circuit")]
                assert fagin_tau_rows(*lists)[0] == pytest.approx(entry["fagin_tau"], rel=1e-9)


# -------------------------------------------------------------------------------------------------- groups


CASES = json.loads((Path(__file__).parent.parent / "golden/calibrations/welch_anova.json").read_text())


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: "-".join(str(len(group)) for group in case["groups"])
)
def test_group_differences_match_golden_values(case: dict) -> None:
    found = group_differences([np.array(group) for group in case["groups"]])
    welch, classic = found.welch, found.classic
    assert (welch.statistic, welch.p_value) == pytest.approx((case["welch_F"], case["welch_p"]), rel=1e-9)
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


def test_two_groups_by_hand() -> None:
    # Means 2 and 3, SSB = 6 / 4, SSW = 4: eta^2 = 1.5 / 5.5, F = 1.5; MSW = 1.
    found = group_differences([np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 4.0])])
    assert found.eta_squared.value == pytest.approx(1.5 / 5.5)
    assert found.omega_squared.value == pytest.approx(0.5 / 6.5)
    assert found.epsilon_squared.value == pytest.approx(0.5 / 5.5)
    assert found.expected_eta_squared == pytest.approx(1 / 5)


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0, 30.0])
def test_the_bounds_of_eta_squared_solve_the_noncentral_f(shift: float) -> None:
    rng = stream(0, "noncentral")
    groups = [rng.normal(at * shift, 1, size=12) for at in range(3)]
    found = group_differences(groups)
    bounds, f, df = found.eta_squared.interval, found.classic.statistic, (2, 33)
    assert bounds is not None
    for end, probability in ((bounds.low, 0.95), (bounds.high, 0.05)):
        if end == 0:
            assert scipy_stats.f.cdf(f, *df) <= probability
        else:
            reached = scipy_stats.ncf.cdf(f, *df, 36 * end / (1 - end))
            assert reached == pytest.approx(probability, abs=1e-9)


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


@pytest.mark.parametrize("correlation", CORRELATIONS)
def test_what_has_no_correlation_is_nan_with_a_warning_or_refused(correlation: Any, unchecked: None) -> None:
    for x, y in (
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]),
        ([1.0, 2.0, 3.0], [0.1, 0.1, 0.1]),
        ([1.0], [2.0]),
        ([], []),
    ):
        with pytest.warns(DegenerateDataWarning, match="is undefined"):
            assert math.isnan(correlation(np.array(x), np.array(y)))
    with pytest.raises(ShapeError, match=r"got shapes \(3,\) and \(2,\)"):
        correlation(np.ones(3), np.ones(2))
    with pytest.raises(InputError, match="drop those pairs first"):
        correlation(np.array([1.0, np.nan]), np.array([1.0, 2.0]))
    x = stream(0, "pairs").normal(size=20)
    assert (correlation(x, x), correlation(x, -x)) == (1.0, -1.0)  # exactly, or an interval is not degenerate
