"""Ranks, chances, regret and correlation against small cases worked by hand and literal loops."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from assay.analyses.generalization.metrics import METRICS
from assay.analyses.generalization.picking import (
    correlation_with_intervals,
    interval_of,
    ranks,
    regret_of_picking,
    shares_of_best,
)


def test_ranks_start_at_the_best_and_leave_out_what_is_undefined() -> None:
    np.testing.assert_array_equal(ranks(np.array([0.1, 0.9, math.nan, 0.9])), [3, 1, math.nan, 1])


def test_chances_share_ties_and_sum_to_one() -> None:
    draws = np.array([[1.0, 2.0, 2.0], [5.0, 1.0, math.nan], [math.nan, math.nan, 1.0]])
    np.testing.assert_allclose(shares_of_best(draws).mean(0), [1 / 3, 1 / 6, 1 / 2])


def test_regret_of_a_hand_made_case() -> None:
    performance = np.array([[0.9, 0.6], [0.9, 0.6], [0.8, 0.7]])
    oriented = np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]])  # the worse model; the better one in the second
    found = regret_of_picking(oriented, performance)
    assert found.observed == pytest.approx(0.3)
    assert found.expected == pytest.approx(0.15)
    assert found.random == pytest.approx((0.15 + 0.05) / 2)


def test_picking_by_performance_itself_has_no_regret() -> None:
    rng = np.random.default_rng(0)
    draws = rng.uniform(size=(50, 4))
    found = regret_of_picking(draws, draws)
    assert found.observed == 0
    assert found.expected == 0
    assert found.random > 0


def test_a_model_without_a_value_is_never_picked() -> None:
    found = regret_of_picking(np.tile([math.nan, 1.0], (4, 1)), np.tile([0.9, 0.6], (4, 1)))
    assert found.observed == pytest.approx(0.3)


def test_intervals_are_those_of_resampled_values_cut_at_what_a_metric_can_be() -> None:
    draws = np.random.default_rng(1).normal(3.0, 0.1, size=200)  # only their spread counts
    found = interval_of(np.array([0.9, *draws]), 20, METRICS["average-confidence"])
    margin = scipy_stats.t.ppf(0.975, 19) * draws.std(ddof=1)
    assert found.low == pytest.approx(0.9 - margin)
    assert found.high == 1.0


@pytest.mark.parametrize(
    ("value", "draws", "reason"),
    [
        (math.nan, np.zeros(30), "no_replicates"),
        (1.0, np.full(30, math.nan), "no_replicates"),
        (1.0, np.array([math.nan] * 2 + [1.0] * 28), "undefined_replicates"),
    ],
)
def test_intervals_that_the_data_do_not_determine_are_nan(value: float, draws, reason: str) -> None:
    found = interval_of(np.array([value, *draws]), 9, METRICS["energy"])
    assert not found.defined
    assert found.reason == reason


def test_correlations_of_resampled_models_equal_those_of_scipy() -> None:
    rng = np.random.default_rng(2)
    metric = rng.normal(size=(41, 8)).round(1)  # with ties
    performance = metric + rng.normal(size=(41, 8)).round(1)
    found = correlation_with_intervals(metric, performance, seed=3)
    from assay.core.random import stream

    chosen = stream(3, "rank/models").integers(0, 8, (40, 8))
    x, y = (np.take_along_axis(each, chosen, axis=1) for each in (metric[1:], performance[1:]))
    literal = {
        "r2": [scipy_stats.pearsonr(a, b)[0] ** 2 for a, b in zip(x, y, strict=True)],
        "srcc": [scipy_stats.spearmanr(a, b)[0] for a, b in zip(x, y, strict=True)],
        "krcc": [scipy_stats.kendalltau(a, b)[0] for a, b in zip(x, y, strict=True)],
    }
    for name, values in literal.items():
        low, high = np.quantile(values, [0.025, 0.975])
        assert getattr(found, name).interval.low == pytest.approx(low)
        assert getattr(found, name).interval.high == pytest.approx(high)


def test_four_models_have_no_interval_of_a_correlation() -> None:
    numbers = np.random.default_rng(4).normal(size=(20, 4))
    found = correlation_with_intervals(numbers, numbers)
    assert found.srcc.interval.reason == "too_few"
    assert found.to_dict()["srcc"]["interval"]["low"] is None
