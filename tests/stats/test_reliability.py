"""Reliability against worked cases, golden values and invariances."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from assay.core.errors import InputError, NonFiniteError
from assay.core.random import stream
from assay.stats import cronbach_alpha, intraclass_correlation, pearson, spearman, spearman_brown


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"
HALVES = json.loads((GOLDEN / "spearman_brown.json").read_text())
ALPHA = json.loads((GOLDEN / "cronbach_alpha.json").read_text())
TABLES = arrays.arrays(
    np.float64,
    st.tuples(st.integers(3, 12), st.integers(2, 6)),
    elements=st.floats(-5, 5).map(lambda x: round(x, 3)),
)


@pytest.mark.parametrize("case", HALVES["formula"], ids=lambda case: str(case["r_half"]))
def test_stepping_up_halves_matches_golden_values(case: dict) -> None:
    found = spearman_brown(case["r_half"])
    if case["spearman_brown"] is None:
        assert math.isnan(found.value)
        assert found.reason == "pole"
    else:
        assert found.value == pytest.approx(case["spearman_brown"], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("case", HALVES["prophecy"], ids=str)
def test_prophecy_matches_golden_values(case: dict) -> None:
    found = spearman_brown(case["r"], factor=float(case["length_factor"]))
    assert found.value == pytest.approx(case["prophecy"], rel=1e-9)


def test_split_halves_match_golden_values() -> None:
    x = np.array(HALVES["odd_even"]["x"])
    r = pearson(x[0::2], x[1::2])
    assert r == pytest.approx(HALVES["odd_even"]["pearson_r"], rel=1e-9)
    assert spearman_brown(r).value == pytest.approx(HALVES["odd_even"]["corrected"], rel=1e-9)
    profile = HALVES["head_profile"]
    table = np.array(profile["effects_prompt_by_head"])
    first, second = table[profile["first_half"]].mean(axis=0), table[profile["second_half"]].mean(axis=0)
    assert spearman_brown(pearson(first, second)).value == pytest.approx(
        profile["corrected_pearson"], rel=1e-9
    )
    assert spearman_brown(spearman(first, second)).value == pytest.approx(
        profile["corrected_spearman"], rel=1e-9
    )


@given(st.floats(-0.9, 1), st.floats(0.1, 1), st.floats(0.1, 10))
def test_lengthening_twice_is_lengthening_by_the_product(r: float, first: float, second: float) -> None:
    once = spearman_brown(r, factor=first).value  # shorter, so still a correlation where r is not negative
    if abs(once) <= 1 and abs(1 + (first * second - 1) * r) > 1e-3 and abs(1 + (second - 1) * once) > 1e-3:
        assert spearman_brown(once, factor=second).value == pytest.approx(
            spearman_brown(r, factor=first * second).value, rel=1e-6, abs=1e-9
        )


def test_stepping_up_refuses_what_is_no_correlation() -> None:
    assert spearman_brown(math.nan).reason == "undefined"
    assert spearman_brown(-0.5, factor=3.0).reason == "pole"
    with pytest.raises(InputError, match=r"r is 1\.5; expected a correlation in \[-1, 1\]"):
        spearman_brown(1.5)
    with pytest.raises(InputError, match=r"factor is 0\.0; expected a finite number above 0"):
        spearman_brown(0.5, factor=0.0)


# --------------------------------------------------------------------------------------------------- alpha


@pytest.mark.parametrize("case", ALPHA, ids=lambda case: f"{case['prompts']}x{case['items']}")
def test_alpha_matches_golden_values(case: dict) -> None:
    table = np.array(case["scores_prompt_by_item"])
    found = cronbach_alpha(table)
    assert found.alpha.value == pytest.approx(case["alpha"], rel=1e-9)
    for level, ends in ((0.90, case["feldt_one_sided_95"]), (0.95, case["feldt_ci95"])):
        bounds = cronbach_alpha(table, level=level).alpha.interval
        assert bounds is not None
        assert (bounds.low, bounds.high) == pytest.approx(ends, rel=1e-9)
    assert found.standardised.value == pytest.approx(case["standardized_alpha"], rel=1e-9)
    assert found.sign_aligned.value == pytest.approx(case["sign_aligned_alpha"], rel=1e-9)


def test_three_cases_of_two_items_by_hand() -> None:
    # Variances 1 and 1, of the sum (2, 5, 5) 3: alpha = 2 (1 - 2/3); r = 1/2, standardised the same.
    found = cronbach_alpha(np.array([[1.0, 1.0], [2.0, 3.0], [3.0, 2.0]]))
    assert found.alpha.value == pytest.approx(2 / 3)
    assert found.standardised.value == pytest.approx(2 / 3)
    assert found.item_rest == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("case", ALPHA[:3], ids=lambda case: f"{case['prompts']}x{case['items']}")
def test_item_rest_correlations_are_the_literal_ones(case: dict) -> None:
    table = np.array(case["scores_prompt_by_item"])
    found = cronbach_alpha(table)
    for item in range(table.shape[1]):
        rest = np.delete(table, item, axis=1).sum(axis=1)
        assert found.item_rest[item] == pytest.approx(pearson(table[:, item], rest))


def test_opposing_items_lower_alpha_until_their_sign_is_turned() -> None:
    rng = stream(0, "opposing")
    common = rng.normal(1.0, 1.0, size=(200, 1))
    table = np.hstack([common, common, common, -common]) + 0.3 * rng.normal(size=(200, 4))
    found = cronbach_alpha(table)
    assert found.signs.tolist() == [1.0, 1.0, 1.0, -1.0]
    assert found.alpha.value < 0.7 < 0.95 < found.sign_aligned.value
    assert found.item_rest[3] < 0
    turned = cronbach_alpha(table * found.signs)
    assert turned.alpha == found.sign_aligned


@given(TABLES, st.integers(0, 2**32 - 1))
def test_alpha_ignores_order_and_equals_the_consistency_of_means(table: np.ndarray, seed: int) -> None:
    found = cronbach_alpha(table)
    rng = np.random.default_rng(seed)
    shuffled = cronbach_alpha(rng.permutation(rng.permutation(table), axis=1))
    assert shuffled.alpha.value == pytest.approx(found.alpha.value, rel=1e-9, abs=1e-9, nan_ok=True)
    moved = cronbach_alpha(table + np.arange(table.shape[1]))
    assert moved.alpha.value == pytest.approx(found.alpha.value, rel=1e-6, abs=1e-6, nan_ok=True)
    if found.alpha.defined and found.alpha.value > -50:
        consistency = intraclass_correlation(table).consistency_mean
        assert consistency.value == pytest.approx(found.alpha.value, rel=1e-6, abs=1e-6)
        assert consistency.interval is not None
        assert found.alpha.interval is not None
        assert consistency.interval.low == pytest.approx(found.alpha.interval.low, rel=1e-6, abs=1e-6)


def test_too_little_or_nothing_to_compare_is_undefined() -> None:
    for shape in ((5, 1), (1, 5), (0, 3), (3, 0)):
        found = cronbach_alpha(np.ones(shape))
        assert {found.alpha.reason, found.sign_aligned.reason, found.standardised.reason} == {"too_few"}
        assert math.isnan(found.alpha.value)
        assert np.isnan(found.item_rest).all()
    cancelling = np.outer(np.arange(5.0), [1.0, -1.0])
    found = cronbach_alpha(cancelling)
    assert found.alpha.reason == found.alpha.interval.reason == "zero_variance"
    assert found.standardised.reason == "pole"
    assert found.sign_aligned.value == pytest.approx(1.0)
    partly = cronbach_alpha(np.column_stack([np.arange(5.0), np.ones(5), np.arange(5.0)]))
    assert partly.standardised.reason == "zero_variance"
    assert partly.alpha.value == pytest.approx(0.75)
    assert np.isnan(partly.item_rest[1])
    assert partly.item_rest[0] == pytest.approx(1.0)
    with pytest.raises(NonFiniteError, match=r"scores hold nan at \(0, 1\)"):
        cronbach_alpha(np.array([[1.0, math.nan], [2.0, 3.0]]))
    json.dumps(found.to_dict(), allow_nan=False)
