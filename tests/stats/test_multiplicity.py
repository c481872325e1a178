"""Adjusted p-values and e-values against worked cases, golden values and the literal rules."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
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
    partial_conjunction,
    true_discoveries,
)


GOLDEN = json.loads((Path(__file__).parent.parent / "golden/calibrations/multiplicity.json").read_text())
RULES = {
    "bonferroni": bonferroni,
    "holm": holm,
    "fdr_bh": benjamini_hochberg,
    "fdr_by": benjamini_yekutieli,
}
P_VALUES = arrays.arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", GOLDEN["sets"], ids=lambda case: f"m{len(case['p'])}")
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


@pytest.mark.parametrize("rule", RULES.values())
@given(p_values=P_VALUES, seed=st.integers(0, 2**32 - 1))
def test_order_does_not_matter_and_nothing_shrinks(
    rule: Callable[[np.ndarray], np.ndarray], p_values: np.ndarray, seed: int
) -> None:
    adjusted, order = rule(p_values), np.random.default_rng(seed).permutation(len(p_values))
    assert rule(p_values[order]) == pytest.approx(adjusted[order])
    assert (adjusted >= p_values - 1e-15).all()
    assert (adjusted <= 1).all()


@given(P_VALUES)
def test_rules_are_ordered_by_what_they_promise(p_values: np.ndarray) -> None:
    assert (holm(p_values) <= bonferroni(p_values) + 1e-12).all()
    assert (benjamini_hochberg(p_values) <= holm(p_values) + 1e-12).all()
    assert (benjamini_hochberg(p_values) <= benjamini_yekutieli(p_values) + 1e-12).all()


@pytest.mark.parametrize("rule", [*RULES.values(), e_benjamini_hochberg])
def test_nothing_tested_stays_nothing(rule: Callable[[np.ndarray], np.ndarray]) -> None:
    assert rule(np.empty(0)).shape == (0,)
    found = rule(np.array([[0.5, math.nan], [1.0, math.nan]]))
    assert np.isnan(found).tolist() == [[False, True], [False, True]]


# ---------------------------------------------------------------------------------------------- e-values


@given(arrays.arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1e6)), st.floats(0.001, 0.999))
def test_e_rejections_are_those_of_the_literal_rule(e_values: np.ndarray, level: float) -> None:
    m, ordered = len(e_values), np.sort(e_values)[::-1]
    count = max((i + 1 for i in range(m) if ordered[i] >= m / ((i + 1) * level)), default=0)
    adjusted = e_benjamini_hochberg(e_values)
    if (np.abs(adjusted - level) > 1e-9).all():
        assert np.count_nonzero(adjusted <= level) == count


def test_e_values_may_be_infinite_but_not_negative() -> None:
    assert e_benjamini_hochberg(np.array([math.inf, 0.0])).tolist() == [0.0, 1.0]
    with pytest.raises(InputError, match="the smallest e-value is -1; expected values of at least 0"):
        e_benjamini_hochberg(np.array([-1.0, math.nan]))


def test_dependent_e_values_keep_their_promise() -> None:
    # All e-values of a world are the same bet, at most 1 on average: the worst dependence there is.
    rng, n_worlds = stream(0, "e worlds"), 4000
    shared = (rng.uniform(size=n_worlds) < 0.05) * 20.0
    false = sum(bool((e_benjamini_hochberg(np.full(10, each)) <= 0.05).any()) for each in shared)
    assert 0 < false / n_worlds < 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / n_worlds)


# ------------------------------------------------------------------------------------ Benjamini-Hochberg


def test_four_p_values_by_hand() -> None:
    # Ascending .01 .03 .04 .5 over their ranks, times 4: .04 .06 .0533 .5; the .06 is undercut by the .0533.
    found = benjamini_hochberg(np.array([[0.01, 0.04], [0.03, 0.5]]))
    assert found == pytest.approx(np.array([[0.04, 0.16 / 3], [0.16 / 3, 0.5]]))


def test_what_was_not_tested_does_not_count() -> None:
    found = benjamini_hochberg(np.array([0.01, math.nan, 0.04]))
    assert found == pytest.approx([0.02, math.nan, 0.04], nan_ok=True)
    assert np.isnan(benjamini_hochberg(np.full(3, math.nan))).all()


@given(arrays.arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1)))
def test_q_values_are_the_literal_minimum(p_values: np.ndarray) -> None:
    m, ordered = len(p_values), np.sort(p_values)
    found = benjamini_hochberg(p_values)
    for p, q in zip(p_values, found, strict=True):
        ranks = [rank for rank in range(1, m + 1) if ordered[rank - 1] >= p]
        assert q == pytest.approx(min(1.0, *(m * ordered[rank - 1] / rank for rank in ranks)))
        assert p <= q + 1e-15


def test_p_values_are_probabilities() -> None:
    with pytest.raises(InputError, match=r"p-values run from 0\.5 to 1\.5; expected values in \[0, 1\]"):
        benjamini_hochberg(np.array([0.5, 1.5]))


# --------------------------------------------------------------------------------------- partial conjunction


def literal_partial_conjunction(p: list[float], least: int) -> float:
    """The largest of Simes' p-values of all sets of m - u + 1 hypotheses, one of which must be false."""

    def simes(chosen: tuple[float, ...]) -> float:
        return min(len(chosen) * each / rank for rank, each in enumerate(sorted(chosen), start=1))

    return max(simes(chosen) for chosen in itertools.combinations(p, len(p) - least + 1))


def test_a_partial_conjunction_is_worked_by_hand() -> None:
    """Values 0.001, 0.02, 0.03, 0.9 and u = 2: the least of 3 * 0.02, 3/2 * 0.03 and 0.9."""
    p = np.array([0.9, 0.02, 0.001, 0.03])
    assert partial_conjunction(p, 2) == pytest.approx(0.045)
    assert partial_conjunction(p, 1) == pytest.approx(0.004)
    assert partial_conjunction(p, 4) == pytest.approx(0.9)


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


def test_a_partial_conjunction_names_what_it_cannot_take() -> None:
    for least in (0, 3):
        with pytest.raises(InputError, match=f"least is {least} of 2 p-values"):
            partial_conjunction(np.array([0.1, 0.2]), least)
    for wrong in (math.nan, 1.5):
        with pytest.raises(InputError, match="expected values in"):
            partial_conjunction(np.array([0.1, wrong]), 1)


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


def test_true_discoveries_are_worked_by_hand() -> None:
    """P 0.001, 0.004, 0.03, 0.6: Simes keeps {0.03, 0.6}, not with a third; h = 2, two are below 0.05 / 2."""
    p = np.array([0.001, 0.004, 0.03, 0.6])
    assert true_discoveries(p, p < 0.05) == 2
    assert true_discoveries(p, p > 0.01) == 0
