"""Bootstrap and seeds: golden values, what is undefined, what changes nothing."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from planted import runs

from assay.analyses.calibration.reliability import retest
from assay.analyses.calibration.resampling import bootstrap_stability, seed_variance
from assay.core.random import stream


GOLDEN = Path(__file__).parent.parent / "golden"
BOOTSTRAP = {case["name"]: case for case in json.loads((GOLDEN / "bootstrap.json").read_text())}


def prompts(n: int, error: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Runs whose faithfulness, 0.8, has the given standard error at 40 prompts."""
    made = runs(stream(seed, f"{n} {error}"), n, sd=error * math.sqrt(40))
    return made.y_full, made.y_circuit


@pytest.mark.parametrize(
    ("standard_errors", "flags", "inner"),
    [
        (2.9, ("score_near_zero",), "faithfulness"),
        (-2.9, ("score_near_zero",), "completeness"),
        (3.1, (), "completeness"),
    ],
)
def test_a_score_that_may_be_0_is_flagged(standard_errors: float, flags: tuple[str, ...], inner: str) -> None:
    """Shares of a margin of 1 with a standard error of 0.01 in the pool and a mean of so many of them."""
    n = 120
    deviations = np.where(np.arange(n) % 2, 1.0, -1.0) * 0.01 * math.sqrt(n - 1)
    share = 0.01 * standard_errors + deviations
    full, run = np.ones(n), share if inner == "faithfulness" else 1 - share
    for found in (
        bootstrap_stability(full, run, inner=inner, n_boot=20),
        seed_variance(full, run, inner=inner),
        retest(full, run, inner=inner),
    ):
        assert set(found.warnings) == set(flags)
        assert found.reason is None
    assert bootstrap_stability(full, run, inner=inner, n_boot=20).status == "pass"


# ------------------------------------------------------------------------------------------------- bootstrap


@pytest.mark.parametrize("name", ["plain_n12", "skewed_n40", "sign_n8"])
def test_bootstrap_matches_golden_values(name: str) -> None:
    case = BOOTSTRAP[name]
    draws = np.array(case["index_draws"])
    found = bootstrap_stability(np.array(case["den"]), np.array(case["num"]), draws=draws)
    assert found.values["sigma"] == pytest.approx(case["sigma_ddof0"], rel=1e-9)
    if name == "sign_n8":  # denominators of either sign
        assert (found.status, found.reason) == ("inconclusive", "unbounded")
        assert "unstable_denominator" in found.warnings
        return
    assert found.values["standard_error"] == pytest.approx(case["delta_se_ddof1"], rel=1e-9)
    assert found.values["faithfulness"] == pytest.approx(case["faithfulness"], rel=1e-9)
    for kind, name_of in (("percentile", "percentile_95"), ("interval", "bca_95")):
        ends = [found.details[kind]["low"], found.details[kind]["high"]]
        assert ends == pytest.approx(case[name_of], rel=1e-9)
    dropped = bootstrap_stability(
        np.array(case["den"]), np.array(case["num"]), draws=draws, inner="completeness"
    )
    assert dropped.values["completeness"] == pytest.approx(case["completeness_from_same_vectors"], rel=1e-9)
    assert dropped.values["sigma"] == pytest.approx(case["sigma_ddof0"], rel=1e-9)


@pytest.mark.parametrize(
    ("full", "circuit", "reason"),
    [
        (np.arange(1.0, 121), np.zeros(120), "zero_mean"),
        (np.arange(1.0, 41), np.ones(40), "pool_too_small"),
    ],
)
def test_what_these_runs_do_not_determine(full: np.ndarray, circuit: np.ndarray, reason: str) -> None:
    found = seed_variance(full, circuit)
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)
    if reason == "pool_too_small":
        assert found.values["coefficient_of_variation"] == 0.0  # every subset is the pool


# ----------------------------------------------------------------------------------------------------- seeds


def test_seed_variance_between_its_limits_is_moderate() -> None:
    found = seed_variance(*prompts(1000, 0.8 * 0.15))
    assert found.status == "moderate"
    assert found.values["relative_standard_error"] == pytest.approx(0.15, rel=0.1)


def test_given_subsets_are_worked_by_hand() -> None:
    full = np.ones(6)
    circuit = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    subsets = [np.array([0, 1]), np.array([4, 5])]
    found = seed_variance(full, circuit, n_prompts=2, subsets=subsets, y_other=circuit - 1)
    assert found.values["mean"] == pytest.approx((1.5 + 5.5) / 2)
    assert found.values["coefficient_of_variation"] == pytest.approx(2 / 3.5)
    assert found.published == "fail"
    assert found.details["sign_consistency"] == 1.0
    mixed = seed_variance(full, circuit, n_prompts=2, subsets=subsets, y_other=7 - circuit)
    assert mixed.details["sign_consistency"] == 0.5


@pytest.mark.parametrize(
    ("second", "reading"), [(1.05, "excellent"), (1.16, "acceptable"), (1.4, "moderate"), (1.6, "fail")]
)
def test_the_spread_over_seeds_is_read_as_published(second: float, reading: str) -> None:
    """Two scores, 1 and a: their coefficient of variation is (a - 1) / (a + 1)."""
    found = seed_variance(
        np.ones(6),
        np.array([1.0, 1.0, 1.0, second, second, second]),
        n_prompts=3,
        subsets=[np.arange(3), np.arange(3, 6)],
    )
    assert found.values["coefficient_of_variation"] == pytest.approx((second - 1) / (second + 1))
    assert found.details["reading"] == reading
