"""Distribution of attributions against golden values and worked cases."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from planted import allowed_errors, attributions

from assay.analyses.calibration.distribution import distributional_characterization, moments


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"
RATIO = json.loads((GOLDEN / "attribution_ratio.json").read_text())
RANKS = json.loads((GOLDEN / "effective_rank_moments.json").read_text())
QUICK = {"n_boot": 100, "n_perm": 20}


@pytest.mark.parametrize("case", RATIO)
def test_ratios_match_golden_values(case: dict) -> None:
    table = np.array(case["attributions_prompt_by_head"])
    members = np.isin(np.arange(table.shape[1]), case["circuit"])
    found = distributional_characterization(table, members, **QUICK)
    for ours, theirs in (
        ("value", "ratio_abs_of_means"),
        ("ratio_mean_of_abs", "ratio_mean_of_abs"),
        ("circuit_mean_variance", "circuit_mean_variance"),
        ("others_mean_variance", "non_circuit_mean_variance"),
        ("auroc", "auroc_abs_mean"),
    ):
        assert found.values[ours] == pytest.approx(case[theirs], rel=1e-9)
    assert (found.status, found.published) == ("pass", "pass")


@pytest.mark.parametrize("case", RANKS["moments"])
def test_moments_match_golden_values(case: dict) -> None:
    found = moments(np.array(case["x"])[:, None])
    for ours, theirs in (
        ("mean", "mean"),
        ("variance", "variance_ddof1"),
        ("skewness", "skewness_adjusted"),
        ("kurtosis", "kurtosis_b2"),
        ("sparsity", "sparsity_abs_lt_0_01"),
    ):
        assert found[ours][0] == pytest.approx(case[theirs], rel=1e-9, abs=1e-12)


def test_the_rank_of_outputs_matches_golden_values() -> None:
    case = RANKS["effective_rank"][0]
    matrix = np.array(case["matrix"])
    outputs = np.stack([matrix, np.zeros_like(matrix), matrix], axis=1)
    world = attributions(np.random.default_rng(0), ratio=3.0, n_prompts=len(matrix), k=1, n_heads=3)
    found = distributional_characterization(world.scores, world.members, outputs=outputs, **QUICK)
    rank = case["sv_participation"]
    np.testing.assert_allclose(found.details["per_head"]["effective_rank"], [rank, 0, rank], rtol=1e-9)


def test_membership_by_chance_has_a_large_p_and_a_perfect_order_a_small_one() -> None:
    world = attributions(np.random.default_rng(2), ratio=6.0)
    found = distributional_characterization(world.scores, world.members, n_boot=50, n_perm=199)
    assert found.values["auroc_p"] == 1 / 200
    shuffled = np.random.default_rng(3).permutation(world.members)
    assert (
        distributional_characterization(world.scores, shuffled, n_boot=50, n_perm=199).values["auroc_p"]
        > 0.05
    )


def test_scale_sign_and_order_of_heads_change_no_ratio() -> None:
    world = attributions(np.random.default_rng(5), ratio=2.5, n_heads=40, k=6)
    first = distributional_characterization(world.scores, world.members, **QUICK)
    scaled = distributional_characterization(-9 * world.scores, world.members, **QUICK)
    order = np.random.default_rng(6).permutation(40)
    moved = distributional_characterization(world.scores[:, order], world.members[order], **QUICK)
    for other in (scaled, moved):
        assert other.values["value"] == pytest.approx(first.values["value"], rel=1e-9)
        assert other.interval.low == pytest.approx(first.interval.low, rel=1e-9)


@pytest.mark.parametrize("n", [8, 12, 40])
def test_a_clean_circuit_passes_though_resamples_of_the_others_are_zero_or_change_sign(n: int) -> None:
    """Five other heads: of no effect on average, or with an effect on one prompt in twenty alone."""
    members = np.arange(8) < 3
    for at in range(20):
        rng = np.random.default_rng([n, at])
        noisy = np.where(members, 1.0, 0.0) + np.where(members, 0.3, 0.1) * rng.normal(size=(n, 8))
        sparse = np.where(members | (rng.random((n, 8)) < 0.05), noisy, 0.0)
        sparse[0, 3] = 0.1  # some effect in each sample
        for table in (noisy, sparse):
            found = distributional_characterization(table, members, **QUICK)
            assert (found.status, found.reason) == ("pass", None)
            assert found.interval.low < found.values["value"] < found.interval.high < np.inf  # type: ignore[operator]


def test_at_ratio_two_a_side_of_few_noisy_heads_is_rarely_judged() -> None:
    """One member against five heads whose mean changes sign between resamples; 5 % are allowed."""
    counts: Counter[str] = Counter()
    for at in range(200):
        rng = np.random.default_rng([17, at])
        table = np.where(np.arange(6) < 1, 0.2, 0.1) + 0.3 * (rng.exponential(size=(12, 6)) - 1)
        counts[distributional_characterization(table, np.arange(6) < 1, **QUICK).status] += 1
    assert max(counts["pass"], counts["fail"]) <= allowed_errors(200)
