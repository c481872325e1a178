"""Stability of single heads: golden values, what is undefined, what changes nothing."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from assay.calibration.planted import allowed_errors, head_effects
from assay.calibration.stability import certified_stability, distributional_stability
from assay.errors import InputError, ShapeError
from assay.rng import stream


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
    for ours, theirs in (
        ("cv_mean", "cv_mean"),
        ("cv_variance", "cv_variance"),
        ("cv_skewness", "cv_skewness"),
    ):
        expected = [nan(head[theirs]) for head in case["per_head"]]
        np.testing.assert_allclose(found.details[ours], expected, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert found.values["share_passing"] == case["fraction_passing"]
    np.testing.assert_array_equal(found.details["passing"], [head["pass_both"] for head in case["per_head"]])
    errors = [head["rel_se_mean_full_n"] for head in case["per_head"]]
    # Ours is an upper bound: the mean is lowered by t standard errors.
    t = scipy_stats.t.ppf(0.95, len(table) - 1)
    expected = [each / (1 - t * each) if nan(each) * t < 1 else math.inf for each in errors]
    np.testing.assert_allclose(found.details["relative_error_mean"], expected, rtol=1e-9, atol=1e-12)


def test_the_error_of_a_variance_is_worked_by_hand() -> None:
    """Values -1 and 1: kurtosis 1, so the variance of 100 of them is known to root((1 - 97/99)/100)."""
    table = np.tile([[-1.0], [1.0]], (50, 1)) + 5
    found = distributional_stability(table)
    assert found.details["relative_error_variance"][0] == pytest.approx(math.sqrt(2 / 99 / 100))


def test_a_small_sample_does_not_tell_how_well_it_knows_a_variance() -> None:
    """Values 4 and 6: errors 0.03 of the mean and root((1 - 37/39)/40) = 0.04 of the variance, 40 prompts."""
    found = distributional_stability(np.tile([[4.0], [6.0]], (20, 6)))
    assert found.details["relative_error_variance"] == pytest.approx(math.sqrt(2 / 39 / 40))
    assert found.values["share_stable"] == 1.0
    assert (found.status, found.reason, found.n_needed) == ("inconclusive", "too_few", 60)


def test_the_published_rule_fails_stable_heads_for_the_size_of_the_sample() -> None:
    table = head_effects(stream(0, "small"), 40, (1.0,) * 15, sd=0.3)
    found = distributional_stability(table)
    assert (found.published, found.status, found.n_needed) == ("fail", "inconclusive", 60)
    large = distributional_stability(head_effects(stream(0, "large"), 1500, (1.0,) * 15, sd=0.3))
    assert (large.published, large.status) == ("pass", "pass")


def test_heads_that_depend_on_the_group_are_found() -> None:
    groups = np.arange(100) % 2
    shifted, same = [], []
    for seed in range(8):
        table = head_effects(stream(seed, "groups"), 100, (1.0,) * 15, sd=0.3)
        same.append(distributional_stability(table, groups=groups).sub_results["groups"])
        shifted.append(distributional_stability(table + 0.3 * groups[:, None], groups=groups))
    assert Counter(each.status for each in same)["fail"] <= allowed_errors(8)
    assert not any(each.status == "pass" for each in same)
    for each in shifted:
        assert (each.status, each.sub_results["groups"].status) == ("fail", "fail")


def test_spread_that_depends_on_the_group_is_found_too() -> None:
    groups = np.arange(200) % 2
    table = 1 + (0.05 + 0.3 * groups[:, None]) * stream(0, "spread").normal(size=(200, 6))
    found = distributional_stability(table, groups=groups)
    np.testing.assert_array_equal(found.sub_results["groups"].details["unstable"], np.arange(6))
    relabelled = distributional_stability(table, groups=np.array(["b", "a"])[groups])
    assert relabelled.sub_results["groups"].values == found.sub_results["groups"].values


def test_one_group_is_no_comparison() -> None:
    table = head_effects(stream(0, "one"), 100, (1.0,) * 6, sd=0.3)
    found = distributional_stability(table, groups=np.zeros(100, dtype=int))
    assert found.sub_results["groups"].reason == "not_applicable"


def test_one_image_in_many_groups_is_not_taken_for_many() -> None:
    table = np.repeat(head_effects(stream(0, "images"), 100, (1.0,) * 6, sd=0.3), 3, axis=0)
    unit, groups = np.repeat(np.arange(100), 3), np.tile(np.arange(3), 100)
    found = distributional_stability(table, groups=groups, unit_id=unit)
    assert found.warnings == ("units_cross_groups",)
    assert found.sub_results["groups"].reason == "units_cross_groups"
    assert found.details["n_units"] == 100


def test_constant_heads_are_not_stable_and_alone_undefined() -> None:
    table = head_effects(stream(0, "constant"), 100, (1.0,) * 6, sd=0.3)
    table[:, 2] = 0.7
    found = distributional_stability(table)
    assert found.details["cv_mean"][2] == 0.0
    assert math.isnan(found.details["cv_variance"][2])
    np.testing.assert_array_equal(found.details["stable"], [True, True, False, True, True, True])
    alone = distributional_stability(np.full((100, 6), 0.7))
    assert (alone.status, alone.reason, alone.published) == ("inconclusive", "zero_variance", "fail")


@pytest.mark.parametrize(
    ("shape", "reason"), [((0, 5), "no_valid_prompt"), ((14, 5), "too_few"), ((40, 0), "no_heads")]
)
def test_too_little_for_subsets_is_undefined(shape: tuple[int, int], reason: str) -> None:
    found = distributional_stability(np.ones(shape))
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


def test_four_heads_leave_a_share_open_whatever_they_do() -> None:
    found = distributional_stability(head_effects(stream(0, "four"), 200, (1.0,) * 4, sd=0.3))
    assert (found.status, found.reason, found.published) == ("inconclusive", "too_few_heads", "fail")
    assert found.values["share_stable"] == 1.0


def test_undefined_prompts_and_heads_are_dropped() -> None:
    table = head_effects(stream(0, "dropped"), 101, (1.0,) * 7, sd=0.3)
    table[5, 0], table[:, 6] = np.nan, np.nan
    found = distributional_stability(table)
    assert found.warnings == ("prompts_dropped", "head_dropped")
    np.testing.assert_array_equal(found.details["columns"], np.arange(6))
    kept = distributional_stability(np.delete(table, 5, axis=0)[:, :6])
    assert found.values == kept.values
    with pytest.raises(InputError, match="n_subsets is 1"):
        distributional_stability(table, n_subsets=1)


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


def test_half_samples_certify_fewer_heads_without_effect() -> None:
    effects = head_effects(stream(0, "halves"), 40, (0.0,) * 300)
    usual = certified_stability(effects)
    half = certified_stability(effects, fraction=0.5, n_draws=200)
    assert half.values["published_share_certified"] < 0.1  # type: ignore[operator]
    assert usual.values["published_share_certified"] > 0.15  # type: ignore[operator]


def test_a_subsample_is_a_share_of_the_prompts_without_repeats() -> None:
    """Effects 1, ..., 10, -54: positive over a subsample of 8 exactly if the last prompt is out."""
    effects = np.array([*range(1, 11), -54.0])[:, None]
    rate = certified_stability(effects, n_draws=2000).details["pass_rates"][0]
    assert rate == pytest.approx(3 / 11, abs=0.05)  # 8 of 11 are drawn


def test_declared_opposing_heads_are_tested_the_other_way() -> None:
    effects = head_effects(stream(0, "signs"), 40, (1.0, -1.0, 1.0))
    plain = certified_stability(effects)
    assert plain.details["labels"].tolist() == ["certified", "unstable", "certified"]
    signed = certified_stability(effects, signs=np.array([1, -1, 1]))
    assert signed.details["labels"].tolist() == ["certified"] * 3
    assert signed.details["mean_effects"][1] < 0
    with pytest.raises(ShapeError, match="one of 1 or -1 for each of 3 heads"):
        certified_stability(effects, signs=np.array([1, 0, 1]))


def test_heads_without_effect_or_without_numbers_are_unstable() -> None:
    effects = head_effects(stream(0, "odd"), 40, (1.0, 1.0, 1.0, 1.0))
    effects[:, 1], effects[:, 2], effects[3, 3] = 0.0, np.nan, np.nan
    found = certified_stability(effects)
    assert found.details["labels"].tolist() == ["certified", "unstable", "unstable", "certified"]
    assert found.details["published_labels"].tolist() == ["certified", "unstable", "unstable", "certified"]
    assert found.warnings == ("prompts_dropped", "head_not_finite")


def test_equal_prompts_certify_by_their_sign() -> None:
    found = certified_stability(np.tile([0.5, -0.5, 0.2], (6, 1)))
    assert found.details["labels"].tolist() == ["certified", "unstable", "certified"]
    assert (found.status, found.warnings) == ("pass", ("zero_variance",))


@pytest.mark.parametrize(
    ("shape", "reason"), [((40, 0), "not_applicable"), ((0, 3), "no_valid_prompt"), ((4, 3), "too_few")]
)
def test_nothing_to_certify_is_undefined(shape: tuple[int, int], reason: str) -> None:
    found = certified_stability(np.ones(shape))
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


def test_contingent_heads_say_how_many_prompts_they_need() -> None:
    effects = head_effects(stream(4, "contingent"), 40, (0.1,) * 8)
    found = certified_stability(effects)
    needs = found.details["n_to_certify"]
    for label, needed in zip(found.details["labels"], needs, strict=True):
        assert (needed is not None) == (label == "contingent")
    assert any(needs)


def test_sequences_certify_at_any_time_and_edits_have_a_radius() -> None:
    effects = head_effects(stream(0, "any"), 80, (1.0, 1.0, -0.3), sd=0.5)
    found = certified_stability(effects, sequence="sign", deletion=0.9)
    counts = found.sub_results["anytime"].details["n_certify"]
    assert counts[2] is None
    assert all(5 < each < 80 for each in counts[:2])
    clipped = certified_stability(effects, sequence="clipped", bounds=(-2.0, 2.0))
    assert clipped.sub_results["anytime"].details["n_certify"][2] is None
    edits = found.sub_results["edits"].details
    assert edits["radius"][0] > 0
    assert edits["radius"][2] is None
    assert edits["largest_radius"] >= max(edits["radius"][:2])
    # A fifth deleted certifies nothing against even one changed prompt.
    few = certified_stability(effects, deletion=0.2).sub_results["edits"].details
    assert few["largest_radius"] == 0


def test_units_count_once() -> None:
    effects = head_effects(stream(0, "units"), 40, (0.3,) * 6)
    found = certified_stability(effects)
    repeated = certified_stability(np.repeat(effects, 4, axis=0), unit_id=np.repeat(np.arange(40), 4))
    np.testing.assert_allclose(repeated.details["p"], found.details["p"])
    np.testing.assert_array_equal(repeated.details["pass_rates"], found.details["pass_rates"])


def test_tiny_effects_are_as_stable_as_large_ones() -> None:
    table = head_effects(stream(0, "tiny"), 100, (1.0,) * 6, sd=0.3)
    tiny, usual = distributional_stability(1e-90 * table), distributional_stability(table)
    np.testing.assert_allclose(
        tiny.details["relative_error_variance"], usual.details["relative_error_variance"], rtol=1e-9
    )


def test_shapes_and_subsets_that_make_no_sense_are_named(unchecked: None) -> None:
    for judge in (certified_stability, distributional_stability):
        with pytest.raises(ShapeError, match=r"a table of heads has shape \(40,\)"):
            judge(np.ones(40))
    with pytest.raises(InputError, match=r"subsets hold \[1, 39\] units"):
        distributional_stability(np.ones((40, 2)), subsets=[np.array([0]), np.arange(1, 40)])


def test_options_out_of_range_are_named() -> None:
    effects = np.ones((10, 2))
    with pytest.raises(InputError, match=r"fraction is 1\.5"):
        certified_stability(effects, fraction=1.5)
    with pytest.raises(InputError, match="sequence is 'signs'"):
        certified_stability(effects, sequence="signs")
    with pytest.raises(InputError, match="n_draws is 0"):
        certified_stability(effects, n_draws=0)
