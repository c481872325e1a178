"""Permutation tests and many hypotheses at once: golden values, literal rules, error rates."""

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

from assay.core.errors import InputError
from assay.core.random import stream
from assay.stats import (
    benjamini_hochberg,
    benjamini_yekutieli,
    bonferroni,
    e_benjamini_hochberg,
    holm,
    mean_tests,
    partial_conjunction,
    spearman,
    spearman_test,
    true_discoveries,
)
from assay.stats.significance import MeanTest


# -------------------------------------------------------------------------------------------- permutations


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"


STABILITY = json.loads((GOLDEN / "certified_stability.json").read_text())


NOMOLOGICAL = json.loads((GOLDEN / "nomological.json").read_text())


RNG = np.random.default_rng  # exact tests draw nothing from it


SHORT = arrays.arrays(np.float64, st.integers(1, 8), elements=st.integers(-3, 3).map(float))


def mean_test(values: np.ndarray, **options: Any) -> MeanTest:
    """The tests of one column."""
    return mean_tests(values[:, None], **options)[0]


@pytest.mark.parametrize("case", STABILITY, ids=lambda case: str(len(case["effects_prompt_by_head"])))
def test_tests_of_means_match_golden_values(case: dict) -> None:
    found = mean_tests(np.array(case["effects_prompt_by_head"]), rng=stream(0, "heads"))
    t_values = np.array([test.t.p_value for test in found])
    assert t_values == pytest.approx(np.array(case["t_test_p_greater"]), rel=1e-9)
    assert (benjamini_hochberg(t_values) <= 0.05).tolist() == case["bh_certified_t"]
    if "sign_flip_exact_p_greater" in case:
        assert all(test.exact for test in found)
        assert [test.sign_flip.p_value for test in found] == pytest.approx(
            case["sign_flip_exact_p_greater"], rel=1e-9
        )


@given(SHORT)
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
    assert upper.p_value == pytest.approx(np.mean(orders >= rho - 1e-9))
    assert both.p_value == pytest.approx(np.mean(np.abs(orders) >= abs(rho) - 1e-9))
    assert upper.smallest_p == pytest.approx(np.mean(orders >= orders.max() - 1e-9))
    assert both.smallest_p == pytest.approx(np.mean(np.abs(orders) >= np.abs(orders).max() - 1e-9))
    assert upper.smallest_p <= upper.p_value


@pytest.mark.parametrize("case", NOMOLOGICAL, ids=lambda case: f"{len(case['pathway_depth'])}-roles")
def test_exact_p_values_of_roles_match_golden_values(case: dict) -> None:
    roles = case["circuit"]["roles"]
    layers = np.array([np.mean([layer for layer, _ in roles[role]]) for role in case["pathway_depth"]])
    depths = np.array(list(case["pathway_depth"].values()))
    found = spearman_test(layers, depths, rng=RNG(0), alternative="greater")
    assert found.rho == pytest.approx(case["role_level_rho"], rel=1e-9)
    assert found.p_value == pytest.approx(case["role_level_exact_p_greater"], rel=1e-9)


# ----------------------------------------------------------------------------------------- many hypotheses


MULTIPLICITY = json.loads((GOLDEN / "multiplicity.json").read_text())


RULES = {
    "bonferroni": bonferroni,
    "holm": holm,
    "fdr_bh": benjamini_hochberg,
    "fdr_by": benjamini_yekutieli,
}


P_VALUES = arrays.arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", MULTIPLICITY["sets"], ids=lambda case: f"m{len(case['p'])}")
def test_adjusted_p_values_match_golden_values(case: dict, rule: str) -> None:
    found = RULES[rule](np.array(case["p"]))
    assert found == pytest.approx(np.array(case[rule]["adjusted"]), rel=1e-9, abs=1e-12)
    assert (found <= 0.05).tolist() == case[rule]["reject"]


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
