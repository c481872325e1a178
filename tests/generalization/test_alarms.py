"""Correlation with performance; thresholds and curves; p-values and bets at the stated rate by simulation."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.analyses.generalization.alarms import (
    DELTAS,
    JUMP,
    POWERS,
    AlarmRules,
    Calibration,
    SequentialTest,
    TaskCorrelation,
    alarm_curve,
    batches_for,
    calibrate_threshold,
    conformal_limit,
    conformal_p_value,
    correlate,
    rate_bound,
    ratio_ablation,
    summarize_correlations,
)
from assay.analyses.generalization.dependency import dependency_depth_bias, output_shift
from assay.circuits import EdgeScores
from assay.core.errors import (
    DegenerateDataWarning,
    GraphMismatchError,
    InputError,
    NonFiniteError,
    UnknownNameError,
)
from assay.graph import build_graph


FILE = Path(__file__).parent.parent / "golden" / "generalization" / "aggregation.json"
GOLDEN = json.loads(FILE.read_text())
ALARM = GOLDEN["alarm"]
SHIFTS = {"mild": 0.1, "fog": 0.4, "snow": 0.2, "frost": 0.8}
ACCURACY = {"mild": 0.9, "fog": 0.8, "snow": 0.7, "frost": 0.5}


# ------------------------------------------------------------------------------------------ correlations


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
    assert summary["average"] == pytest.approx(GOLDEN["average"], rel=1e-9)
    assert summary["sem"] == pytest.approx(GOLDEN["sem"], rel=1e-9)
    for name, expected in GOLDEN["per_dataset"].items():
        cells = [summary[f"{name} {key}"] for key in ("r2", "srcc", "krcc")]
        assert cells == pytest.approx([expected["r2"], expected["abs_srcc"], expected["abs_krcc"]], rel=1e-9)


def test_signs_are_kept_if_asked_for() -> None:
    tasks = {"a": [TaskCorrelation(r2=0.5, srcc=s, krcc=s / 2, n=9) for s in (0.4, -0.8)]}
    sizes, signed = (summarize_correlations(tasks, absolute=each) for each in (True, False))
    names = ("a r2", "a srcc", "a krcc")
    assert [sizes[name] for name in names] == pytest.approx([0.5, 0.6, 0.3])
    assert [signed[name] for name in names] == pytest.approx([0.5, -0.2, -0.1])
    assert signed["sem"] == pytest.approx(np.std([0.5, -0.2, -0.1]) / math.sqrt(3))


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


def test_pairs_that_do_not_correlate_are_nan_or_refused() -> None:
    for metric, reason in (([1.0, 2.0], "2 pair"), ([1.0, 1.0, 1.0], "one side is constant")):
        with pytest.warns(DegenerateDataWarning, match=reason):
            found = correlate(metric, [0.1, 0.2, 0.3][: len(metric)])
        assert all(math.isnan(each) for each in (found.r2, found.srcc, found.krcc))
        assert math.isnan(summarize_correlations({"a": [found]})["average"])
    with pytest.raises(InputError, match=r"scores have shape \(2,\), performance \(3,\)"):
        correlate([1.0, 2.0], [0.1, 0.2, 0.3])
    with pytest.raises(NonFiniteError, match="performance 1 is nan"):
        correlate([1.0, 2.0, 3.0], [0.1, math.nan, 0.3])
    with pytest.raises(InputError, match="at least one task"):
        summarize_correlations({"a": [correlate([0.0, 1.0, 2.0], [0.0, 1.0, 3.0])], "b": []})


# --------------------------------------------------------------------------------- thresholds and curves


@pytest.mark.parametrize("case", ALARM["results"], ids=lambda case: str(case["delta"]))
def test_alarms_equal_the_golden_ones(case: dict) -> None:
    scores, performance = (dict(enumerate(ALARM[key])) for key in ("cal_css", "cal_perf"))
    scores, performance = ({str(name): x for name, x in each.items()} for each in (scores, performance))
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
    assert curve[0, 0] == pytest.approx(expected, nan_ok=True)


def test_thresholds_by_hand() -> None:
    # From 0.5 to 0.9 the shifts are 0.8, 0.2, 0.4, 0.1: the middle two break the order and become 0.3.
    found = calibrate_threshold(SHIFTS, ACCURACY, 0.6)
    assert found.value == pytest.approx(0.55)  # half way between 0.8 and 0.3
    assert found.performance == 0.6
    assert calibrate_threshold(SHIFTS, ACCURACY, 0.85).value == pytest.approx(0.2)
    # Beyond the domains the nearest performance is named.
    low, high = calibrate_threshold(SHIFTS, ACCURACY, 0.2), calibrate_threshold(SHIFTS, ACCURACY, 0.99)
    assert [(each.value, each.performance) for each in (low, high)] == [(0.8, 0.5), (0.1, 0.9)]
    confidence = calibrate_threshold({"a": 0.9, "b": 0.5}, {"a": 0.8, "b": 0.4}, 0.6, higher_is_shift=False)
    assert confidence.value == pytest.approx(0.7)
    assert [confidence.alarm(score) for score in (0.6, confidence.value, 0.8)] == [True, False, False]
    assert [high.alarm(score) for score in (0.05, 0.1, 0.2)] == [False, False, True]
    # The first of equally near domains.
    found = calibrate_threshold({"b": 0.3, "a": 0.1}, {"a": 0.75, "b": 0.25}, 0.5, method="nearest")
    assert (found.domain, found.value, found.target, found.performance) == ("b", 0.3, 0.5, 0.25)


def test_the_curve_on_pairs_of_domains_is_one_of_the_few_possible() -> None:
    known, rates = [0.1, 0.5, 0.4, 0.9], [0.9, 0.6, 0.6, 0.2]
    new, new_rates = [0.2, 0.45, 0.8, 0.95], [0.95, 0.7, 0.5, 0.65]
    curve = alarm_curve(known, rates, new, new_rates, deltas=[0.6], subset_size=2, n_subsets=3000)[0]
    possible: dict[float, float] = {}
    for pair in itertools.combinations(range(4), 2):
        limit = known[min(pair, key=lambda place: abs(rates[place] - 0.6))]
        raised, due = [score > limit for score in new], [rate < 0.6 for rate in new_rates]
        hits = sum(a and b for a, b in zip(raised, due, strict=True))
        f1 = 2 * hits / (sum(raised) + sum(due))
        possible[f1] = possible.get(f1, 0) + 1 / 6
    values, counts = np.unique(curve.round(12), return_counts=True)
    for value, count in zip(values, counts, strict=True):
        share = next(share for f1, share in possible.items() if f1 == pytest.approx(value))
        assert count / 3000 == pytest.approx(share, abs=0.05)  # five standard errors


def test_draws_depend_on_seed_and_delta_alone_and_no_alarm_has_no_f1() -> None:
    arguments = ALARM["cal_css"], ALARM["cal_perf"], ALARM["test_css"], ALARM["test_perf"]
    whole = alarm_curve(*arguments)
    assert (whole.shape, DELTAS[0], DELTAS[20], DELTAS[-1]) == ((46, 100), 0.5, 0.7, 0.95)
    np.testing.assert_array_equal(alarm_curve(*arguments, deltas=[0.7])[0], whole[20])
    assert not np.array_equal(alarm_curve(*arguments, seed=1), whole)
    curve = alarm_curve([0.5], [0.5], [0.1, 0.2], [0.9, 0.8], deltas=[0.5, 0.85], n_subsets=3)
    assert np.isnan(curve[0]).all()
    assert curve[1].tolist() == [0.0] * 3


def test_domains_that_do_not_fit_are_refused() -> None:
    for error, message, arguments in (
        (InputError, "missing for: snow", ({"fog": 0.1}, {"fog": 0.9, "snow": 0.5})),
        (InputError, "give one of each", ({}, {})),
        (NonFiniteError, "score 0 is inf", ({"fog": math.inf}, {"fog": 0.9})),
    ):
        with pytest.raises(error, match=message):
            calibrate_threshold(*arguments, 0.7)
    with pytest.raises(UnknownNameError, match="method of a threshold"):
        calibrate_threshold(SHIFTS, ACCURACY, 0.6, method="linear")


# ------------------------------------------------------------------------------- rules with a known rate


def test_over_all_orders_the_p_value_is_at_most_a_in_at_most_a_share_a() -> None:
    """The guarantee itself: every order of five exchangeable scores, ties included."""
    for scores in ([0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.2, 0.2, 0.4, 0.4]):
        found = [conformal_p_value(order[:-1], order[-1]) for order in itertools.permutations(scores)]
        for alpha in (0.2, 0.4, 0.6, 0.8):
            assert np.mean(np.array(found) <= alpha + 1e-12) <= alpha + 1e-12
    untied = [conformal_p_value(o[:-1], o[-1]) for o in itertools.permutations([1.0, 2.0, 3.0, 4.0, 5.0])]
    assert np.mean(np.array(untied) <= 0.2 + 1e-12) == pytest.approx(0.2)


def test_the_alarm_is_the_p_value_at_most_alpha() -> None:
    rng = np.random.default_rng(3)
    known = rng.integers(0, 12, 39).astype(float).tolist()
    for score in np.arange(-1, 14, 0.5).tolist():
        assert (score > conformal_limit(known, 0.1)) == (conformal_p_value(known, score) <= 0.1 + 1e-12)


def test_so_many_batches_give_an_alarm_at_alpha_and_fewer_do_not() -> None:
    for alpha, needed in ((0.05, 19), (0.1, 9), (0.5, 1), (0.01, 99), (0.03, 33)):
        assert batches_for(alpha) == needed
        known = [float(each) for each in range(needed)]
        assert conformal_p_value(known, 1e9) <= alpha + 1e-12 < conformal_p_value(known[1:], 1e9)


def test_the_rate_given_the_known_batches_keeps_its_bound() -> None:
    """Scores are uniform, so the rate given the known ones is 1 - limit."""
    rng = np.random.default_rng(5)
    rates = np.array([1 - conformal_limit(rng.random(39).tolist(), 0.1) for _ in range(2000)])
    bound = rate_bound(39, 0.1, 0.95)
    assert rates.mean() == pytest.approx(0.1, abs=0.005)  # k / (m + 1) = 4 / 40
    assert 0.935 < np.mean(rates <= bound) < 0.965
    assert 0.1 < bound < 0.2


def test_two_statistics_keep_the_rate_together_and_find_what_either_finds() -> None:
    """Batches of 20 outputs of four classes and a correlated circuit's shift, 39 known batches, rate 0.1."""
    rng = np.random.default_rng(7)
    known = rng.dirichlet(np.ones(4), 300)

    def batch(*, outputs: float = 0.0, circuit: float = 0.0) -> tuple[float, float]:
        p = rng.dirichlet(np.ones(4), 20)
        p[:, 0] += outputs
        moved = output_shift(known, p / p.sum(1, keepdims=True))
        return moved + 0.05 * rng.normal() + circuit, moved

    raised = {"nothing": 0, "outputs": 0, "circuit": 0}
    runs = 300
    for _ in range(runs):
        shifts, moves = zip(*(batch() for _ in range(39)), strict=True)
        calibration = Calibration(shifts=shifts, output_shifts=moves, n=20)
        rules = AlarmRules(asked="conformal", alpha=0.1).calibrated(calibration)
        assert len(rules.tests) == 2
        for name, change in (("nothing", {}), ("outputs", {"outputs": 0.5}), ("circuit", {"circuit": 0.5})):
            raised[name] += bool(rules.verdict(*batch(**change))["alarm"])
    # 0.1 is the bound; 3 standard errors of 300 runs above it would be 0.152.
    assert 0.03 < raised["nothing"] / runs <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / runs)
    assert raised["outputs"] > 0.9 * runs
    assert raised["circuit"] > 0.9 * runs


def test_the_capital_by_hand() -> None:
    test = SequentialTest(scores=(3.0, 1.0, 2.0)).observe(2.5, 0.5)
    p = (1 + 0.5 * 1) / 4
    bets = [each * p ** (each - 1) for each in POWERS]
    assert math.exp(test.log_capital) == pytest.approx(np.mean(bets))
    again = test.observe(9.0, 0.25)
    q = (0 + 0.25 * 1) / 5
    shares = (1 - JUMP) * np.array(bets) / len(POWERS) + JUMP * np.mean(bets) / len(POWERS)
    expected = sum(share * each * q ** (each - 1) for share, each in zip(shares, POWERS, strict=True))
    assert math.exp(again.log_capital) == pytest.approx(expected)
    assert again.scores == (1.0, 2.0, 2.5, 3.0, 9.0)


def test_bets_are_fair() -> None:
    """The capital after one batch has mean 1 over a uniform p-value: the integral of k p^(k - 1)."""
    start = SequentialTest(scores=tuple(np.arange(9.0).tolist()))
    v = (np.arange(80) + 0.5) / 80
    u, weights = v**4, 4 * v**3  # a change of variable that takes the pole at p = 0 away
    capital = [
        [math.exp(start.observe(gap - 0.5, float(draw)).log_capital) for draw in u] for gap in range(10)
    ]
    assert np.mean(np.array(capital) * weights) == pytest.approx(1, abs=1e-3)


def first_alarm(scores: np.ndarray, known: int, rng: np.random.Generator, alpha: float) -> int | None:
    test = SequentialTest(scores=tuple(scores[:known].tolist()))
    for place, score in enumerate(scores[known:].tolist()):
        test = test.observe(score, 1 - rng.random())
        if test.alarm(alpha):
            return place
    return None


@pytest.mark.parametrize("known", [0, 10])
def test_without_change_the_alarm_ever_goes_off_at_most_at_its_rate(known: int) -> None:
    rng = np.random.default_rng(11 + known)
    runs = 250
    raised = sum(first_alarm(rng.gamma(3, 1, known + 40), known, rng, 0.2) is not None for _ in range(runs))
    # Ville's bound is 0.2; 3 standard errors of 250 runs above it would be 0.28.
    assert 0.02 < raised / runs <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / runs)


def test_an_alarm_stays_on() -> None:
    test = SequentialTest(scores=tuple(0.1 * each for each in range(20)))
    for each in range(6):
        test = test.observe(100.0 + each, 0.5)
    assert test.alarm(0.05)
    for _ in range(60):
        test = test.observe(-1.0, 0.9)
    assert test.log_capital < math.log(20)
    assert test.alarm(0.05)
