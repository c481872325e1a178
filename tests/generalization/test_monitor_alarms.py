"""Conformal p-values and the sequential test: exact on small cases, at the stated rate by simulation."""

import itertools
import math

import numpy as np
import pytest

from assay.analyses.generalization.alarms import (
    JUMP,
    POWERS,
    AlarmRules,
    Calibration,
    SequentialTest,
    batches_for,
    conformal_limit,
    conformal_p_value,
    rate_bound,
)
from assay.analyses.generalization.shift import output_shift
from assay.core.errors import InputError


def test_the_p_value_counts_the_scores_that_are_at_least_as_large() -> None:
    assert conformal_p_value([1.0, 2.0, 3.0], 2.5) == 0.5
    assert conformal_p_value([1.0, 2.0, 3.0], 2.0) == 0.75  # ties count
    assert conformal_p_value([1.0, 2.0, 3.0], 9.0) == 0.25
    assert conformal_p_value([1.0, 2.0, 3.0], 0.0) == 1.0


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


@pytest.mark.parametrize(("alpha", "needed"), [(0.05, 19), (0.1, 9), (0.5, 1), (0.01, 99), (0.03, 33)])
def test_so_many_batches_give_an_alarm_at_alpha_and_fewer_do_not(alpha: float, needed: int) -> None:
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
    test = SequentialTest.start([1.0, 2.0, 3.0]).observe(2.5, 0.5)
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
    start = SequentialTest.start(np.arange(9.0).tolist())
    v = (np.arange(80) + 0.5) / 80
    u, weights = v**4, 4 * v**3  # a change of variable that takes the pole at p = 0 away
    capital = [
        [math.exp(start.observe(gap - 0.5, float(draw)).log_capital) for draw in u] for gap in range(10)
    ]
    assert np.mean(np.array(capital) * weights) == pytest.approx(1, abs=1e-3)


def first_alarm(scores: np.ndarray, known: int, rng: np.random.Generator, alpha: float) -> int | None:
    test = SequentialTest.start(scores[:known].tolist())
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


def test_p_values_against_a_fixed_set_would_break_the_rate() -> None:
    """Why each score joins the bag: against ten fixed scores the p-values depend on each other."""
    rng = np.random.default_rng(2)
    runs, powers = 1000, np.array(POWERS)
    known = rng.random((runs, 10))
    shares = np.full((runs, len(POWERS)), 1 / len(POWERS))
    peak = np.ones(runs)
    for _ in range(400):
        score = rng.random((runs, 1))
        p = ((known > score).sum(1, keepdims=True) + 1 - rng.random((runs, 1))) / 11
        shares = (1 - JUMP) * shares + JUMP * shares.mean(1, keepdims=True)
        shares = shares * powers * p ** (powers - 1)
        peak = np.maximum(peak, shares.sum(1))
    assert np.mean(peak >= 20) > 0.15  # three times the 0.05 that Ville's bound would allow


def test_a_change_raises_the_alarm_soon_also_after_a_long_quiet_time() -> None:
    rng = np.random.default_rng(1)
    for quiet in (0, 60):
        delays = []
        for _ in range(20):
            scores = rng.gamma(3, 1, 20 + quiet + 25)
            scores[20 + quiet :] += 20
            found = first_alarm(scores, 20, rng, 0.05)
            assert found is not None
            delays.append(found - quiet)
        assert np.median(delays) <= 8


def test_an_alarm_stays_on() -> None:
    test = SequentialTest.start([0.1 * each for each in range(20)])
    for each in range(6):
        test = test.observe(100.0 + each, 0.5)
    assert test.alarm(0.05)
    for _ in range(60):
        test = test.observe(-1.0, 0.9)
    assert test.log_capital < math.log(20)
    assert test.alarm(0.05)


def test_a_level_that_is_no_probability_is_refused() -> None:
    with pytest.raises(InputError, match="alpha is 1.5"):
        AlarmRules(alpha=1.5)
