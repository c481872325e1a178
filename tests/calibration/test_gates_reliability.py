"""Reliability suite: golden values, what is undefined, what changes nothing."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted import items, profile, runs

from assay.analyses.calibration import reliability
from assay.analyses.calibration.reliability import (
    cronbach_items,
    reliability_suite,
    split_half,
    split_half_published,
)
from assay.analyses.calibration.resampling import seed_variance
from assay.core.errors import ShapeError
from assay.core.measurement import Verdict
from assay.core.random import stream
from assay.stats import draw_counts, intraclass_correlation, resampled_alpha_bounds


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"
ALPHA = json.loads((GOLDEN / "cronbach_alpha.json").read_text())
HALVES = json.loads((GOLDEN / "spearman_brown.json").read_text())


def prompts(n: int, relative: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Runs whose faithfulness has the given relative standard error at 40 prompts."""
    made = runs(stream(seed, f"{n} {relative}"), n, sd=0.8 * relative * 40**0.5)
    return made.y_full, made.y_circuit


# ------------------------------------------------------------------------------------------------ test-retest


def test_retest_is_worked_by_hand_and_needs_samples_that_differ() -> None:
    """Scores 2, 3, 4: mean 3, standard deviation root 2/3."""
    found = reliability.retest(
        np.ones(6),
        np.array([1.0, 3.0, 2.0, 4.0, 3.0, 5.0]),
        sample_id=np.array(["a", "a", "b", "b", "c", "c"]),
    )
    np.testing.assert_allclose(found.details["scores"], [2, 3, 4])
    assert found.values["test_retest"] == pytest.approx(1 - (2 / 3) ** 0.5 / 3)
    assert found.published == "fail"
    # A prompt source that ignores its seed would else get a perfect 1.
    full, circuit = (np.tile(each, 3) for each in prompts(20, 0.2))
    found = reliability.retest(full, circuit, sample_id=np.repeat(np.arange(3), 20))
    assert (found.status, found.published) == ("inconclusive", "inconclusive")
    assert found.reason == "identical_samples"
    full, circuit = prompts(60, 0.1)
    circuit[:20] = np.nan  # a sample that is missing
    found = reliability.retest(full, circuit, sample_id=np.repeat(np.arange(3), 20))
    assert (len(found.details["scores"]), found.warnings) == (2, ("prompts_dropped", "sample_missing"))


def test_blocks_and_samples_hold_classes_in_their_proportions() -> None:
    """Two classes that differ by a constant: samples balanced over them hardly vary."""
    strata = np.arange(120) % 2
    circuit = strata + 0.01 * stream(0, "noise").normal(size=120)
    assert np.ptp(reliability.retest(np.ones(120), circuit, strata=strata).details["scores"]) < 0.02
    plain, balanced = (
        seed_variance(np.ones(120), circuit, strata=each).values["coefficient_of_variation"]
        for each in (None, strata)
    )
    assert balanced < 0.1 * plain


def test_published_halves_of_natural_pairs_mean_something() -> None:
    rng = stream(0, "pairs")
    of_pair, pair_id, full = rng.normal(0.8, 0.3, 100), np.tile(np.arange(100), 2), rng.uniform(1, 2, 200)
    ratios = np.concatenate([of_pair, of_pair]) + rng.normal(0.0, 0.02, 200)
    found = split_half_published(full, ratios * full, pair_id=pair_id)
    assert (found.status, found.published, found.reason) == ("inconclusive", "pass", "normal_only")
    assert found.interval.low < found.values["split_half"] < found.interval.high  # type: ignore[operator]
    full[0] = 0.0
    unpaired = split_half_published(full, ratios * full, pair_id=pair_id)
    assert unpaired.warnings == ("prompts_dropped", "unpaired_prompts")
    assert (found.details["n_pairs"], unpaired.details["n_pairs"]) == (100, 99)


# ----------------------------------------------------------------------------------------------------- halves


@pytest.mark.parametrize(("n_heads", "tolerance"), [(15, 0.05), (144, 0.02)])
def test_random_halves_agree_with_the_intraclass_correlation(n_heads: int, tolerance: float) -> None:
    effects = profile(stream(3, "profile"), 40, n_heads, reliability=0.85)
    found = split_half(effects, n_halves=300)
    expected = intraclass_correlation(effects.T).consistency_mean.value
    assert found.values["icc"] == expected
    assert found.values["split_half"] == pytest.approx(expected, abs=tolerance)


def test_published_halves_match_golden_values() -> None:
    x = np.array(HALVES["odd_even"]["x"])
    found = split_half_published(np.ones(len(x)), x)
    assert found.values["r"] == pytest.approx(HALVES["odd_even"]["pearson_r"], rel=1e-9)
    assert found.values["split_half"] == pytest.approx(HALVES["odd_even"]["corrected"], rel=1e-9)
    reliable = split_half_published(*prompts(40, 0.05))
    assert (reliable.status, reliable.published) == ("inconclusive", "fail")
    assert reliable.reason == "order_means_nothing"


# ------------------------------------------------------------------------------------------------------ items


def test_resampled_bounds_of_alpha_are_loops_over_cases() -> None:
    x = stream(0, "cases").exponential(size=(12, 3)) + stream(1, "cases").normal(size=(12, 1))
    rng = stream(2, "cases")
    low, high = resampled_alpha_bounds(x, level=0.8, rng=rng)
    logs, t = [], []
    whole, error = log_share(x)
    for row in draw_counts(12, 999, stream(2, "cases")):
        log, its_error = log_share(np.repeat(x, row.astype(int), axis=0))
        logs.append(log - whole)
        t.append((log - whole) / its_error)
    moved, studentised = np.sort(logs), np.sort(t)
    ends = (
        min(moved[99], -studentised[-100] * error),
        max(moved[-100], -studentised[99] * error),
    )
    assert high == pytest.approx(1.5 * (1 - math.exp(whole + ends[0])))
    assert low == pytest.approx(1.5 * (1 - math.exp(whole + ends[1])))


def log_share(x: np.ndarray) -> tuple[float, float]:
    """Logarithm of the items' variances over that of their sum, and its standard error, case by case."""
    d = x - x.mean(axis=0)
    parts, together = (d**2).sum(axis=1), d.sum(axis=1) ** 2
    u = parts / parts.mean() - together / together.mean()
    return math.log(parts.mean() / together.mean()), math.sqrt((u**2).mean() / len(x))


@pytest.mark.parametrize("case", ALPHA, ids=lambda case: f"{case['prompts']}x{case['items']}")
def test_alpha_matches_golden_values(case: dict) -> None:
    found = cronbach_items(np.array(case["scores_prompt_by_item"]))
    assert found.values["alpha"] == pytest.approx(case["alpha"], rel=1e-9)
    feldt = found.details["feldt"]
    assert [feldt["low"], feldt["high"]] == pytest.approx(case["feldt_one_sided_95"], rel=1e-9)
    if case["prompts"] < 20:
        assert (found.interval.reason, found.n_needed) == ("too_few", 20)
    else:
        assert found.interval.low < feldt["low"] < found.values["alpha"] < feldt["high"] < found.interval.high
    aligned = found.sub_results["sign_aligned"].values["alpha"]
    assert aligned == pytest.approx(case["sign_aligned_alpha"], rel=1e-9)
    assert found.published == ("pass" if case["alpha"] > 0.7 else "fail")


def test_an_opposing_head_depresses_alpha_and_is_listed() -> None:
    effects = 1 + items(stream(0, "opposing"), 200, 5, alpha=0.9)
    effects[:, 2] *= -1
    found = cronbach_items(effects)
    np.testing.assert_array_equal(found.details["erratic"], [2])
    np.testing.assert_array_equal(found.details["signs"], [1, 1, -1, 1, 1])
    aligned = found.sub_results["sign_aligned"]
    assert (found.published, aligned.status) == ("fail", "pass")


def test_too_few_heads_or_prompts_have_no_alpha() -> None:
    for shape in ((20, 0), (20, 1), (2, 3)):
        for found in (cronbach_items(np.ones(shape)), split_half(np.ones(shape))):
            assert (found.published, found.reason) == ("inconclusive", "too_few")
    assert split_half(profile(stream(0, "five"), 5, 10, reliability=0.9)).reason == "too_few"


# ------------------------------------------------------------------------------------------------------ suite


def suite(relative: float, reliability_of: float, alpha: float, seed: int = 0) -> Verdict:
    """Three samples of 40 prompts, 30 heads of which the first 15 form the circuit."""
    rng = stream(seed, "suite")
    effects = profile(rng, 120, 30, reliability=reliability_of)
    noise = effects[:, :15].std()
    effects[:, :15] = effects[:, :15].mean(axis=0) + noise * items(rng, 120, 15, alpha=alpha)
    return reliability_suite(*prompts(120, relative, seed), effects, np.arange(30) < 15)


def test_a_reliable_measurement_passes_as_a_whole() -> None:
    found = suite(0.04, 0.97, 0.93)
    assert found.status == "pass"
    assert set(found.sub_results) == {"test_retest", "split_half", "cronbach_alpha", "split_half_published"}
    assert found.published == "fail"  # its halves mean nothing
    assert json.loads(json.dumps(found.to_dict()))["sub_results"]["test_retest"]["status"] == "pass"


def test_a_part_without_verdict_leaves_the_whole_open() -> None:
    full, circuit = prompts(120, 0.04)
    effects = profile(stream(0, "open"), 120, 30, reliability=0.97)
    found = reliability_suite(full, circuit, effects, np.arange(30) < 1)
    assert (found.status, found.reason) == ("inconclusive", "too_few")
    assert found.details["open"] == ["cronbach_alpha"]
    empty = reliability_suite(full, circuit, effects, np.zeros(30, dtype=bool), circuit_size=0)
    assert empty.warnings == ("empty_circuit",)


@pytest.mark.usefixtures("unchecked")
def test_fresh_samples_may_be_prompts_without_effects() -> None:
    """A pool of three samples of 40; heads dropped on the first of them only."""
    full, circuit = prompts(120, 0.04)
    effects = profile(stream(0, "pool"), 40, 30, reliability=0.97)
    members = np.arange(30) < 15
    found = reliability_suite(full, circuit, effects, members)
    part = replace(found.sub_results["test_retest"], judged=None)
    assert part.to_dict() == reliability.retest(full, circuit).to_dict()
    assert found.sub_results["split_half"].details["n_prompts"] == 40
    pairs = np.repeat(np.arange(60), 2)
    with pytest.raises(ShapeError, match="unit_id"):
        reliability_suite(full, circuit, effects, members, unit_id=pairs)
    both = reliability_suite(full, circuit, effects, members, unit_id=pairs, effect_units=pairs[:40])
    assert both.sub_results["test_retest"].details["n_units"] == 60
    assert both.sub_results["split_half"].details["n_units"] == 20
