"""Correlation with performance and alarms: golden values, worked cases, slow literal versions, refusals."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.analyses.generalization import (
    TaskCorrelation,
    alarm_curve,
    calibrate_threshold,
    correlate,
    dependency_depth_bias,
    ratio_ablation,
    summarize_correlations,
)
from assay.analyses.generalization.alarms import Threshold
from assay.circuits import EdgeScores
from assay.core.errors import DegenerateDataWarning, GraphMismatchError, InputError, NonFiniteError
from assay.graph import build_graph


GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "generalization" / "aggregation.json").read_text()
)
ALARM = GOLDEN["alarm"]


# -------------------------------------------------------------------------------------- correlation


@pytest.mark.parametrize("task", GOLDEN["tasks"], ids=lambda task: task["task"])
def test_correlations_equal_the_golden_values(task: dict) -> None:
    found = correlate(task["metric"], task["gt"])
    expected = [task[name] for name in ("r2", "srcc", "krcc")]
    assert [found.r2, found.srcc, found.krcc] == pytest.approx(expected, rel=1e-9)
    assert found.n == len(task["gt"])


def test_the_summary_equals_the_golden_one() -> None:
    groups = itertools.groupby(GOLDEN["tasks"], key=lambda task: task["dataset"])
    tasks = {name: [correlate(task["metric"], task["gt"]) for task in group] for name, group in groups}
    summary = summarize_correlations(tasks)
    assert summary.average == pytest.approx(GOLDEN["average"], rel=1e-9)
    assert summary.sem == pytest.approx(GOLDEN["sem"], rel=1e-9)
    for name, expected in GOLDEN["per_dataset"].items():
        cells = summary.per_dataset[name]
        assert list(cells.values()) == pytest.approx(
            [expected["r2"], expected["abs_srcc"], expected["abs_krcc"]], rel=1e-9
        )


def test_correlations_worked_by_hand() -> None:
    found = correlate([1.0, 2.0, 3.0, 4.0], [0.9, 0.7, 0.8, 0.1])
    assert found.srcc == pytest.approx(1 - 6 * (9 + 0 + 0 + 9) / (4 * 15))  # ranks 4 2 3 1
    assert found.krcc == pytest.approx((1 - 5) / 6)
    assert found.r2 == pytest.approx(1.15**2 / (5 * 0.3875))


@given(st.integers(0, 1000), st.floats(0.1, 10))
def test_turning_a_metric_around_turns_ranks_around(seed: int, scale: float) -> None:
    generator = np.random.default_rng(seed)
    x, y = generator.normal(size=7), generator.random(7)
    found, turned = correlate(x, y), correlate(-scale * x + 1, y)
    assert turned.r2 == pytest.approx(found.r2)
    assert (turned.srcc, turned.krcc) == pytest.approx((-found.srcc, -found.krcc))
    assert 0 <= found.r2 <= 1


def test_signs_are_kept_if_asked_for() -> None:
    tasks = {"a": [TaskCorrelation(r2=0.5, srcc=s, krcc=s / 2, n=9) for s in (0.4, -0.8)]}
    assert summarize_correlations(tasks).per_dataset["a"] == pytest.approx(
        {"r2": 0.5, "srcc": 0.6, "krcc": 0.3}
    )
    signed = summarize_correlations(tasks, absolute=False)
    assert signed.per_dataset["a"] == pytest.approx({"r2": 0.5, "srcc": -0.2, "krcc": -0.1})
    assert signed.sem == pytest.approx(np.std([0.5, -0.2, -0.1]) / math.sqrt(3))


@pytest.mark.parametrize(
    ("metric", "reason"), [([1.0, 2.0], "2 pair"), ([1.0, 1.0, 1.0], "one side is constant")]
)
def test_undefined_correlations_are_nan(metric: list[float], reason: str) -> None:
    with pytest.warns(DegenerateDataWarning, match=reason):
        found = correlate(metric, [0.1, 0.2, 0.3][: len(metric)])
    assert all(math.isnan(each) for each in (found.r2, found.srcc, found.krcc))
    assert math.isnan(summarize_correlations({"a": [found]}).average)


def test_each_ratio_is_that_of_the_bias_itself() -> None:
    graph = build_graph(10, 2)
    generator = torch.Generator().manual_seed(0)
    zoo = [
        EdgeScores(graph, torch.randn(graph.n_sources, graph.n_targets, generator=generator))
        for _ in range(6)
    ]
    performance = [0.3, 0.5, 0.4, 0.9, 0.7, 0.6]
    for targets in ("output", "deep", "global"):
        found = ratio_ablation(zoo, performance, targets=targets)
        assert list(found) == [0.1, 0.2, 0.3, 0.4, 0.5]
        for ratio, correlation in found.items():
            biases = [dependency_depth_bias(each, targets=targets, ratio=ratio) for each in zoo]
            assert correlation.r2 == pytest.approx(correlate(biases, performance).r2)
    zoo[3] = EdgeScores(build_graph(9, 2), torch.zeros(28, 64))
    with pytest.raises(GraphMismatchError, match="different graphs"):
        ratio_ablation(zoo, performance)


def test_models_found_in_different_ways_are_not_ranked_together() -> None:
    graph = build_graph(2, 1)
    zoo = [EdgeScores(graph, torch.ones(5, 9), provenance={"steps": steps}) for steps in (5, 5, 3)]
    with pytest.raises(InputError, match="steps is 5 and 3"):
        ratio_ablation(zoo, [0.1, 0.2, 0.3])


# ------------------------------------------------------------------------------------------- alarms


def literal_f1(scores: list[float], performance: list[float], threshold: Threshold) -> float:
    raised = [threshold.alarm(score) for score in scores]
    due = [rate < threshold.target for rate in performance]
    hits = sum(a and b for a, b in zip(raised, due, strict=True))
    return 2 * hits / (sum(raised) + sum(due))


@pytest.mark.parametrize("case", ALARM["results"], ids=lambda case: str(case["delta"]))
def test_alarms_equal_the_golden_ones(case: dict) -> None:
    scores, performance = (
        {str(index): value for index, value in enumerate(ALARM[key])} for key in ("cal_css", "cal_perf")
    )
    threshold = calibrate_threshold(
        scores, performance, case["delta"], higher_is_shift=ALARM["higher_is_shift"], method="nearest"
    )
    assert (threshold.value, threshold.domain) == (case["threshold"], str(case["chosen_domain"]))
    pairs = [
        (threshold.alarm(score), rate < case["delta"])
        for score, rate in zip(ALARM["test_css"], ALARM["test_perf"], strict=True)
    ]
    kinds = {"tp": (True, True), "fp": (True, False), "fn": (False, True), "tn": (False, False)}
    assert {name: pairs.count(kind) for name, kind in kinds.items()} == {name: case[name] for name in kinds}
    curve = alarm_curve(
        *(ALARM[key] for key in ("cal_css", "cal_perf", "test_css", "test_perf")),
        deltas=[case["delta"]],
        subset_size=len(ALARM["cal_css"]),
        n_subsets=1,
        higher_is_shift=ALARM["higher_is_shift"],
    )
    expected = math.nan if case["f1"] in (None, "nan") else case["f1"]
    assert curve.f1[0, 0] == pytest.approx(expected, nan_ok=True)


def test_the_first_of_equally_near_domains_is_the_threshold() -> None:
    found = calibrate_threshold({"b": 0.3, "a": 0.1}, {"a": 0.75, "b": 0.25}, 0.5, method="nearest")
    assert (found.domain, found.value, found.target, found.performance) == ("b", 0.3, 0.5, 0.25)


def test_an_alarm_is_strict_and_has_a_direction() -> None:
    shift = calibrate_threshold({"a": 0.3}, {"a": 0.5}, 0.5)
    confidence = calibrate_threshold({"a": 0.3}, {"a": 0.5}, 0.5, higher_is_shift=False)
    assert [shift.alarm(score) for score in (0.2, 0.3, 0.4)] == [False, False, True]
    assert [confidence.alarm(score) for score in (0.2, 0.3, 0.4)] == [True, False, False]


def test_the_curve_on_all_domains_is_the_plain_alarm() -> None:
    names = [f"{index:02d}" for index in range(39)]
    scores, performance = (dict(zip(names, ALARM[key], strict=True)) for key in ("cal_css", "cal_perf"))
    curve = alarm_curve(
        ALARM["cal_css"],
        ALARM["cal_perf"],
        ALARM["test_css"],
        ALARM["test_perf"],
        subset_size=39,
        n_subsets=2,
    )
    assert curve.deltas.tolist() == [round(0.5 + index / 100, 2) for index in range(46)]
    for delta, row in zip(curve.deltas.tolist(), curve.f1, strict=True):
        threshold = calibrate_threshold(scores, performance, delta, method="nearest")
        expected = literal_f1(ALARM["test_css"], ALARM["test_perf"], threshold)
        np.testing.assert_allclose(row, expected)
    np.testing.assert_allclose(curve.std, 0, atol=1e-15)


def test_the_curve_on_pairs_of_domains_is_one_of_the_few_possible() -> None:
    known, rates = [0.1, 0.5, 0.4, 0.9], [0.9, 0.6, 0.6, 0.2]
    new, new_rates = [0.2, 0.45, 0.8, 0.95], [0.95, 0.7, 0.5, 0.65]
    curve = alarm_curve(known, rates, new, new_rates, deltas=[0.6], subset_size=2, n_subsets=3000)
    possible: dict[float, float] = {}
    for pair in itertools.combinations(range(4), 2):
        names = [str(index) for index in pair]
        threshold = calibrate_threshold(
            {name: known[int(name)] for name in names},
            {name: rates[int(name)] for name in names},
            0.6,
            method="nearest",
        )
        f1 = literal_f1(new, new_rates, threshold)
        possible[f1] = possible.get(f1, 0) + 1 / 6
    values, counts = np.unique(curve.f1.round(12), return_counts=True)
    for value, count in zip(values, counts, strict=True):
        share = next(share for f1, share in possible.items() if f1 == pytest.approx(value))
        assert count / 3000 == pytest.approx(share, abs=0.05)  # five standard errors
    assert curve.mean[0] == pytest.approx(sum(f1 * share for f1, share in possible.items()), abs=0.03)
    assert curve.low[0] <= curve.mean[0] <= curve.high[0]


def test_draws_depend_on_seed_and_delta_alone() -> None:
    arguments = ALARM["cal_css"], ALARM["cal_perf"], ALARM["test_css"], ALARM["test_perf"]
    whole = alarm_curve(*arguments)
    assert whole.f1.shape == (46, 100)
    np.testing.assert_array_equal(alarm_curve(*arguments, deltas=[0.7]).f1[0], whole.f1[20])
    assert not np.array_equal(alarm_curve(*arguments, seed=1).f1, whole.f1)


def test_no_alarm_due_and_none_raised_has_no_f1() -> None:
    curve = alarm_curve([0.5], [0.5], [0.1, 0.2], [0.9, 0.8], deltas=[0.5, 0.85], subset_size=1, n_subsets=3)
    assert np.isnan(curve.f1[0]).all()
    assert math.isnan(curve.mean[0])
    assert curve.mean[1] == 0.0


# ------------------------------------------------------------------------------------------ refusals


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"scores have shape \(2,\), performance \(3,\)"):
        correlate([1.0, 2.0], [0.1, 0.2, 0.3])
    with pytest.raises(NonFiniteError, match="performance 1 is nan"):
        correlate([1.0, 2.0, 3.0], [0.1, math.nan, 0.3])
    with pytest.raises(InputError, match="missing for: snow"):
        calibrate_threshold({"fog": 0.1}, {"fog": 0.9, "snow": 0.5}, 0.7)
    with pytest.raises(InputError, match="no domain"):
        calibrate_threshold({}, {}, 0.7)
    with pytest.raises(NonFiniteError, match="score of domain 'fog' is inf"):
        calibrate_threshold({"fog": math.inf}, {"fog": 0.9}, 0.7)
    with pytest.raises(InputError, match="subset_size is 20.* 1 calibration domains"):
        alarm_curve([0.1], [0.9], [0.1], [0.9])
    with pytest.raises(InputError, match="empty: b"):
        summarize_correlations({"a": [correlate([0.0, 1.0, 2.0], [0.0, 1.0, 3.0])], "b": []})
    with pytest.raises(InputError, match="empty: all"):
        summarize_correlations({})
