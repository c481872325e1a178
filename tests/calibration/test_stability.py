"""Stability of single heads: golden values, what is undefined, what changes nothing."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from planted import head_effects
from scipy import stats as scipy_stats

from assay.analyses.calibration.certified import certified_stability
from assay.analyses.calibration.stability import _beyond_limit, distributional_stability
from assay.core.random import stream


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"
DISTRIBUTIONS = json.loads((GOLDEN / "distributional_stability.json").read_text())
CERTIFIED = json.loads((GOLDEN / "certified_stability.json").read_text())


def nan(value: float | str) -> float:
    """The published code's infinity is undefined here."""
    return math.nan if value == "inf" else float(value)


# ----------------------------------------------------------------------------------- distributional stability


@pytest.mark.parametrize("case", DISTRIBUTIONS, ids=lambda case: str(len(case["subsets"][0])))
def test_spread_over_subsets_matches_golden_values(case: dict) -> None:
    table = np.array(case["attributions_prompt_by_head"])
    found = distributional_stability(table, subsets=[np.array(rows) for rows in case["subsets"]])
    for name in ("cv_mean", "cv_variance", "cv_skewness"):
        expected = [nan(head[name]) for head in case["per_head"]]
        np.testing.assert_allclose(found.details[name], expected, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert found.values["share_passing"] == case["fraction_passing"]
    np.testing.assert_array_equal(found.details["passing"], [head["pass_both"] for head in case["per_head"]])
    errors = [nan(head["rel_se_mean_full_n"]) for head in case["per_head"]]
    np.testing.assert_allclose(found.details["relative_error_mean"], errors, rtol=1e-9, atol=1e-12)


def test_a_variance_is_never_said_to_be_known_and_may_be_known_not_to_be() -> None:
    """Values 4 and 6 have an error of root((1 - 37/39)/40) = 0.04; of 40 normal ones it is above 0.2."""
    two = distributional_stability(np.tile([[4.0], [6.0]], (20, 6)))
    part = two.sub_results["variance"]
    assert part.details["relative_error"] == pytest.approx(math.sqrt(2 / 39 / 40))
    assert (part.status, part.reason, part.values["share_stable"]) == ("inconclusive", "no_upper_bound", 1.0)
    heavy = 9 + stream(0, "heavy").laplace(size=(15, 15))
    assert distributional_stability(heavy).sub_results["variance"].status == "fail"
    for n in (52, 200, 1000):  # the first is the limit for normal heads
        table = head_effects(stream(n, "variance"), n, (3.0,) * 15)
        assert distributional_stability(table).sub_results["variance"].status == "inconclusive"


def test_the_limit_of_a_relative_error_is_a_mean_worked_by_hand() -> None:
    """Values 1 and 3 at 50 prompts: |m| 2, s with ddof 1 is root(50/49), 2 - root(50/49) / (0.2 root 50)."""
    x = np.tile([[1.0], [3.0]], (25, 1))
    expected = 2 - math.sqrt(50 / 49) / (0.2 * math.sqrt(50))
    assert _beyond_limit(x).mean() == pytest.approx(expected)
    assert _beyond_limit(-x).mean() == pytest.approx(expected)
    skewed = stream(0, "linear").exponential(size=(200, 1)) + 1
    found = []
    for step in (-1e-6, 1e-6):  # more weight on a value moves the estimate by that value's distance
        weights = np.full(200, 1 / 200)
        weights[3] += step
        weights /= weights.sum()
        mean = float(weights @ skewed[:, 0])
        spread = math.sqrt(float(weights @ (skewed[:, 0] - mean) ** 2))
        found.append(mean - spread / (0.2 * math.sqrt(199)))
    slope = (found[1] - found[0]) / 2e-6
    values = _beyond_limit(skewed)[:, 0]
    assert values[3] - values.mean() == pytest.approx(slope, rel=1e-4)


def test_the_published_rule_fails_stable_heads_for_the_size_of_the_sample() -> None:
    table = head_effects(stream(0, "small"), 40, (1.0,) * 15, sd=0.3)
    found = distributional_stability(table)
    assert (found.published, found.status) == ("fail", "pass")
    large = distributional_stability(head_effects(stream(0, "large"), 1500, (1.0,) * 15, sd=0.3))
    assert (large.published, large.status) == ("pass", "pass")


def test_one_image_in_many_groups_is_not_taken_for_many() -> None:
    table = np.repeat(head_effects(stream(0, "images"), 100, (1.0,) * 6, sd=0.3), 3, axis=0)
    unit, groups = np.repeat(np.arange(100), 3), np.tile(np.arange(3), 100)
    found = distributional_stability(table, groups=groups, unit_id=unit)
    assert found.warnings == ("units_cross_groups",)
    assert found.sub_results["groups"].reason == "units_cross_groups"
    assert found.details["n_units"] == 100


# ------------------------------------------------------------------------------------------- certified heads


@pytest.mark.parametrize("fraction", ["0.8", "0.5"])
@pytest.mark.parametrize("case", CERTIFIED, ids=lambda case: str(len(case["effects_prompt_by_head"])))
def test_certified_heads_match_golden_values(case: dict, fraction: str) -> None:
    given = case["fractions"][fraction]
    effects = np.array(case["effects_prompt_by_head"])
    found = certified_stability(effects, subsamples=np.array(given["index_draws"]))
    np.testing.assert_allclose(found.details["pass_rates"], given["pass_rate"], rtol=1e-9)
    assert found.details["published_labels"].tolist() == given["labels"]
    assert found.values["published_share_certified"] == pytest.approx(given["fraction_certified"], rel=1e-9)
    assert found.published == ("pass" if given["passed"] else "fail")
    np.testing.assert_allclose(found.details["t_p"], case["t_test_p_greater"], rtol=1e-9)
    if len(effects) <= 12:
        np.testing.assert_allclose(found.details["p"], case["sign_flip_exact_p_greater"], rtol=1e-9)
    assert [label == "certified" for label in found.details["labels"]] == case["bh_certified_t"]


def test_a_subsample_is_a_share_of_the_prompts_without_repeats() -> None:
    """Effects 1, ..., 10, -54: positive over a subsample of 8 exactly if the last prompt is out."""
    effects = np.array([*range(1, 11), -54.0])[:, None]
    rate = certified_stability(effects, n_draws=2000).details["pass_rates"][0]
    assert rate == pytest.approx(3 / 11, abs=0.05)  # 8 of 11 are drawn


def test_heads_without_effect_or_without_numbers_are_unstable() -> None:
    effects = head_effects(stream(0, "odd"), 40, (1.0, 1.0, 1.0, 1.0))
    effects[:, 1], effects[:, 2], effects[3, 3] = 0.0, np.nan, np.nan
    found = certified_stability(effects)
    assert found.details["labels"].tolist() == ["certified", "unstable", "unstable", "certified"]
    assert found.details["published_labels"].tolist() == ["certified", "unstable", "unstable", "certified"]
    assert found.warnings == ("prompts_dropped", "head_not_finite", "smallest_is_zero")
    effects = head_effects(stream(0, "signs"), 40, (1.0, -1.0, 1.0))  # one head is declared to oppose
    for signs, of_second in ((None, "unstable"), (np.array([1, -1, 1]), "certified")):
        found = certified_stability(effects, signs=signs)
        assert found.details["labels"].tolist() == ["certified", of_second, "certified"]
    assert found.details["mean_effects"][1] < 0


def test_the_majorities_of_heads_are_worked_by_hand() -> None:
    """Three heads, effects of mean 2, 1 and 0 with spread 1 at 25 prompts: half are two, more than half too.

    No skewness, so p are Student's. Above 0: the second of 2e-10, 2.4e-5, 0.5 times 2 / 1, or the third times
    2 / 2. Below 1.5: those of t = 5 (2 - 1.5), 5 (1 - 1.5), 5 (0 - 1.5); the second smallest decides.
    """
    shape = np.concatenate([np.arange(1, 13), [0], -np.arange(1, 13)]).astype(float)
    effects = shape[:, None] / shape.std(ddof=1) + np.array([2.0, 1.0, 0.0])
    p = scipy_stats.t.sf([10.0, 5.0, 0.0], 24)
    found = certified_stability(effects, smallest=1.5)
    np.testing.assert_allclose(found.details["p_negligible"], scipy_stats.t.sf([-2.5, 2.5, 7.5], 24))
    # The two heads below 1.5 with p below 0.05 are negligible, and therefore not positive.
    np.testing.assert_allclose(found.details["p_positive"], [p[0], 1.0, 1.0])
    assert found.details["negligible"].tolist() == [False, True, True]
    assert found.values["p_most_negligible"] == pytest.approx(2 * scipy_stats.t.sf(2.5, 24))
    assert (found.status, found.values["p_half_positive"]) == ("fail", 1.0)
    assert found.values["share_positive"] == pytest.approx(1 / 3)
    low = certified_stability(effects, smallest=0.01)
    np.testing.assert_allclose(low.details["p_positive"], p)
    assert (low.status, low.values["p_half_positive"]) == ("pass", pytest.approx(2 * p[1]))
    assert low.thresholds == {"pass": 0.5, "fail": 0.5, "smallest": 0.01}


def test_the_prompts_needed_are_the_fewest_that_prove_a_majority() -> None:
    """One head of mean 0.2 and spread 1: Student's p is 0.05 at 70 prompts; in its error at 20 (t = 0.9)."""
    shape = np.concatenate([np.arange(1, 13), [0], -np.arange(1, 13)]).astype(float)
    effects = shape[:, None] / shape.std(ddof=1)
    needed = certified_stability(effects + 0.3).n_needed
    assert needed is not None
    assert scipy_stats.t.sf(0.3 * math.sqrt(needed), needed - 1) <= 0.05
    assert scipy_stats.t.sf(0.3 * math.sqrt(needed - 1), needed - 2) > 0.05
    assert certified_stability(effects + 0.19).n_needed is None
    assert certified_stability(effects - 0.3).n_needed == needed
    assert certified_stability(effects + 0.3, smallest=1.0).status == "fail"
