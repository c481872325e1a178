"""Permutation tests, groups, many hypotheses at once: golden values, literal rules, error rates."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats as scipy_stats

from assay.core.errors import InputError, NonFiniteError
from assay.core.random import stream
from assay.stats import (
    benjamini_hochberg,
    benjamini_yekutieli,
    bonferroni,
    e_benjamini_hochberg,
    group_differences,
    holm,
    mean_tests,
    partial_conjunction,
    spearman,
    spearman_test,
    true_discoveries,
)
from assay.stats.significance import MeanTest


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"
RNG = np.random.default_rng  # exact tests draw nothing from it


def mean_test(values: np.ndarray, **options: Any) -> MeanTest:
    """The tests of one column."""
    return mean_tests(values[:, None], **options)[0]


@given(arrays.arrays(np.float64, st.integers(1, 8), elements=st.integers(-3, 3).map(float)))
def test_exact_flips_are_the_literal_ones(x: np.ndarray) -> None:
    sums = [float(np.dot(signs, x)) for signs in itertools.product((1, -1), repeat=len(x))]
    found = mean_test(x, rng=RNG(0))
    assert found.exact
    assert found.sign_flip.p_value == np.mean([each >= x.sum() for each in sums])


def test_sums_that_differ_by_rounding_count_as_ties() -> None:
    x = np.array([0.1, 0.2, 0.3, -0.3, -0.2, -0.1])  # sums to -2.8e-17, or to 0 in another order
    whole = np.array([1.0, 2.0, 3.0, -3.0, -2.0, -1.0])
    assert mean_test(x, rng=RNG(0)).sign_flip.p_value == mean_test(whole, rng=RNG(0)).sign_flip.p_value


def test_random_flips_agree_with_counting_all() -> None:
    x = stream(0, "thirteen").normal(0.3, 1, size=13)
    signs = 1 - 2 * ((np.arange(2**13)[:, None] >> np.arange(13)) & 1)
    exact = float(np.mean(signs @ x >= x.sum() - 1e-9))
    found = mean_test(x, rng=stream(0, "flips"))
    assert not found.exact
    assert found.sign_flip.p_value == pytest.approx(exact, abs=3.5 * math.sqrt(exact * (1 - exact) / 10_000))
    fewest = mean_test(np.ones(40), rng=stream(0, "flips"), n_permutations=99)
    assert fewest.sign_flip.p_value == 0.01
    assert mean_test(x, rng=stream(0, "flips")) == found


def test_a_symmetric_null_is_rejected_at_its_level() -> None:
    worlds = stream(0, "null worlds").standard_t(3, size=(20, 2000))
    p_values = [test.sign_flip.p_value for test in mean_tests(worlds, rng=stream(0, "null flips"))]
    # Columns share their flips, yet each is its own world: three and a half standard errors of 5 %.
    assert np.mean(np.array(p_values) <= 0.05) == pytest.approx(0.05, abs=3.5 * math.sqrt(0.0475 / 2000))


@settings(max_examples=40)
@given(
    st.integers(2, 6).flatmap(
        lambda n: arrays.arrays(np.float64, (2, n), elements=st.integers(0, 4).map(float))
    )
)
def test_exact_rank_tests_are_the_literal_enumeration(pair: np.ndarray) -> None:
    x, y = pair
    upper = spearman_test(x, y, rng=RNG(0), alternative="greater")
    both = spearman_test(x, y, rng=RNG(0))
    if (x == x[0]).all() or (y == y[0]).all():
        assert upper.reason == both.reason == "zero_variance"
        assert math.isnan(upper.rho)
        return
    rho = spearman(x, y)
    orders = np.array([spearman(x, y[list(order)]) for order in itertools.permutations(range(len(x)))])
    assert upper.rho == pytest.approx(rho)
    for found, values, own in ((upper, orders, rho), (both, np.abs(orders), abs(rho))):
        assert found.p_value == pytest.approx(np.mean(values >= own - 1e-9))
        assert found.smallest_p == pytest.approx(np.mean(values >= values.max() - 1e-9))


P_VALUES = arrays.arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1))


@given(P_VALUES, st.floats(0.001, 0.999))
def test_rejections_are_those_of_the_literal_rules(p_values: np.ndarray, level: float) -> None:
    m, order = len(p_values), np.argsort(p_values, kind="stable")
    ordered = p_values[order]
    harmonic = sum(1 / rank for rank in range(1, m + 1))

    def step_down() -> int:
        return next((i for i in range(m) if ordered[i] > level / (m - i)), m)

    def step_up(at: float) -> int:
        return max((i + 1 for i in range(m) if ordered[i] <= (i + 1) * at / m), default=0)

    literal = {
        bonferroni: int(np.count_nonzero(p_values <= level / m)),
        holm: step_down(),
        benjamini_hochberg: step_up(level),
        benjamini_yekutieli: step_up(level / harmonic),
    }
    for rule, count in literal.items():
        adjusted = rule(p_values)
        if (np.abs(adjusted - level) > 1e-9).all():  # rounding decides at the limit itself
            assert np.count_nonzero(adjusted <= level) == count


@given(arrays.arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1e6)), st.floats(0.001, 0.999))
def test_e_rejections_are_those_of_the_literal_rule(e_values: np.ndarray, level: float) -> None:
    m, ordered = len(e_values), np.sort(e_values)[::-1]
    count = max((i + 1 for i in range(m) if ordered[i] >= m / ((i + 1) * level)), default=0)
    adjusted = e_benjamini_hochberg(e_values)
    if (np.abs(adjusted - level) > 1e-9).all():
        assert np.count_nonzero(adjusted <= level) == count


def test_what_was_not_tested_does_not_count() -> None:
    found = benjamini_hochberg(np.array([0.01, math.nan, 0.04]))
    assert found == pytest.approx([0.02, math.nan, 0.04], nan_ok=True)
    assert np.isnan(benjamini_hochberg(np.full(3, math.nan))).all()


def literal_partial_conjunction(p: list[float], least: int) -> float:
    """The largest of Simes' p-values of all sets of m - u + 1 hypotheses, one of which must be false."""

    def simes(chosen: tuple[float, ...]) -> float:
        return min(len(chosen) * each / rank for rank, each in enumerate(sorted(chosen), start=1))

    return max(simes(chosen) for chosen in itertools.combinations(p, len(p) - least + 1))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.data())
def test_a_partial_conjunction_is_the_worst_set(p: list[float], data: st.DataObject) -> None:
    least = data.draw(st.integers(1, len(p)))
    assert partial_conjunction(np.array(p), least) == pytest.approx(literal_partial_conjunction(p, least))


def test_a_count_of_discoveries_is_no_bound_and_the_partial_conjunction_is() -> None:
    """7 of 15 effects are real: 8 are claimed to be, the limit."""
    rng = np.random.default_rng(0)
    counted = proven = 0
    for _ in range(400):
        p = np.concatenate([np.full(7, 1e-9), rng.uniform(size=8)])
        counted += int((benjamini_hochberg(p) <= 0.05).sum() >= 8)
        proven += int(partial_conjunction(p, 8) <= 0.05)
    assert counted > 60
    assert proven <= 30


def literal_true_discoveries(p: list[float], chosen: list[int], alpha: float) -> int:
    """Closed testing: the least number of false ones among the chosen over all sets that Simes keeps."""
    m = len(p)
    least = len(chosen)
    for size in range(1, m + 1):
        for kept in itertools.combinations(range(m), size):
            ordered = sorted(p[at] for at in kept)
            if all(each > alpha * rank / size for rank, each in enumerate(ordered, start=1)):
                least = min(least, len(set(chosen) - set(kept)))
    return least


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.sampled_from((0.05, 0.2, 0.5)), st.data())
def test_true_discoveries_are_what_closed_testing_leaves(
    p: list[float], alpha: float, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(p) - 1), unique=True))
    flags = np.isin(np.arange(len(p)), chosen)
    assert true_discoveries(np.array(p), flags, alpha=alpha) == literal_true_discoveries(p, chosen, alpha)
    with pytest.raises(InputError, match="expected values in"):
        true_discoveries(np.array([*p, math.nan]), np.append(flags, True))


CASES = json.loads((GOLDEN / "welch_anova.json").read_text())


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: "-".join(str(len(group)) for group in case["groups"])
)
def test_group_differences_match_golden_values(case: dict) -> None:
    found = group_differences([np.array(group) for group in case["groups"]])
    for test, name, key in (
        (found.welch, "welch_F", "welch_p"),
        (found.classic, "classic_F", "classic_p"),
        (found.brown_forsythe, "brown_forsythe_W", "brown_forsythe_p"),
        (found.kruskal_wallis, "kruskal_H", "kruskal_p"),
    ):
        assert (test.statistic, test.p_value) == pytest.approx((case[name], case[key]), rel=1e-9)
    shares = [found.eta_squared.value, found.omega_squared.value, found.epsilon_squared.value]
    names = ("partial_eta_sq", "omega_sq", "epsilon_sq")
    assert shares == pytest.approx([case[name] for name in names], rel=1e-9)
    bounds = found.eta_squared.interval
    assert (bounds.low, bounds.high) == pytest.approx(case["eta_pop_one_sided_95"], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0, 30.0])
def test_the_bounds_of_eta_squared_solve_the_noncentral_f(shift: float) -> None:
    rng = stream(0, "noncentral")
    groups = [rng.normal(at * shift, 1, size=12) for at in range(3)]
    found = group_differences(groups)
    bounds, f, df = found.eta_squared.interval, found.classic.statistic, (2, 33)
    for end, probability in ((bounds.low, 0.95), (bounds.high, 0.05)):
        if end == 0:
            assert scipy_stats.f.cdf(f, *df) <= probability
        else:
            reached = scipy_stats.ncf.cdf(f, *df, 36 * end / (1 - end))
            assert reached == pytest.approx(probability, abs=1e-9)


def test_constant_groups() -> None:
    for last, share in ((0.1, 0.0), (0.2, 1.0)):
        found = group_differences([np.full(4, 0.1), np.full(3, last)])
        bounds = found.eta_squared.interval
        assert [found.eta_squared.value, bounds.low, bounds.high] == [share] * 3
        tests = (found.welch, found.classic, found.brown_forsythe, found.kruskal_wallis)
        assert [bounds.reason, *(test.reason for test in tests)] == ["degenerate", *["zero_variance"] * 4]
    one = group_differences([np.full(4, 0.1), np.array([0.1, 0.2, 0.4])])
    assert (one.welch.reason, math.isnan(one.welch.statistic)) == ("zero_variance", True)
    assert one.classic.statistic == pytest.approx(scipy_stats.f_oneway([0.1] * 4, [0.1, 0.2, 0.4]).statistic)
    steady = group_differences([np.array([0.0, 0.0, 1.0, 1.0]), np.array([2.0, 2.0, 4.0, 4.0])])
    assert (steady.brown_forsythe.reason, steady.welch.reason) == ("zero_variance", None)


def test_small_groups_are_left_out_and_one_is_too_few() -> None:
    groups = [np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0]), np.empty(0), np.array([2.0, 3.0, 4.0])]
    found = group_differences(groups)
    assert (found.used, found.sizes) == ((1, 3), (3, 3))
    # Means 2 and 3, SSB = 6 / 4, SSW = 4: eta^2 = 1.5 / 5.5; MSW = 1.
    shares = [found.eta_squared.value, found.omega_squared.value, found.epsilon_squared.value]
    assert [*shares, found.expected_eta_squared] == pytest.approx([1.5 / 5.5, 0.5 / 6.5, 0.5 / 5.5, 1 / 5])
    for few in ([], groups[:1], groups[:2]):
        nothing = group_differences(few)
        assert nothing.eta_squared.reason == nothing.welch.reason == "too_few_groups"
        assert np.isnan([nothing.eta_squared.value, nothing.expected_eta_squared]).all()
        json.dumps(nothing.to_dict(), allow_nan=False)
    with pytest.raises(NonFiniteError, match="values of group 1 hold nan"):
        group_differences([np.arange(3.0), np.array([1.0, math.nan, 2.0])])


def test_the_bounds_hold_as_often_as_they_say() -> None:
    rng, n_worlds, misses = stream(0, "eta worlds"), 600, np.zeros(3)
    means = np.array([-0.6, 0.0, 0.6])
    truth = means.var() / (means.var() + 1)
    for _ in range(n_worlds):
        noise = rng.normal(size=(3, 20))
        worlds = (noise + means[:, None], noise)
        bounds, null = (group_differences(list(world)).eta_squared.interval for world in worlds)
        misses += (bounds.low > truth, bounds.high < truth, null.low > 0)
    # 5 % each: three and a half standard errors of 600 worlds are 3.1 points.
    assert (misses / n_worlds < 0.082).all()
    assert (misses[:2] / n_worlds > 0.02).all()
