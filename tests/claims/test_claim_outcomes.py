"""The directed tests on margins whose truth is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.analyses.claims import Outcome, Prediction
from assay.analyses.claims.outcomes import (
    CONTRADICTED,
    HELD,
    LOST,
    OPEN,
    joint_state,
    predicted,
    rivalled,
    settle,
)


N = 60
# What is said, the mean of the run over the model's at which it is clearly so, and at which clearly not.
SAID = [
    ("dropping", "lowers_by_at_least", 0.3, 0.4, 0.9),
    ("dropping", "raises_by_at_least", 0.2, 1.5, 1.0),
    ("dropping", "changes_at_most", 0.2, 1.05, 1.5),
    ("keeping", "changes_at_most", 0.2, 0.95, 0.5),
    ("keeping", "retains_at_least", 0.8, 0.9, 0.6),
    ("keeping", "retains_at_most", 0.5, 0.3, 0.7),
]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def margins(share: float, seed: int = 0, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Margins of a model and of a run that keeps a share of them."""
    made = np.random.default_rng(seed)
    full = made.normal(4, 0.5, n)
    return full, share * full + made.normal(0, 0.2, n)


def said(what: str, relation: str, size: float, unit: str = "share") -> Prediction:
    return Prediction(what=what, of="circuit", on="t", relation=relation, size=size, unit=unit)


def judged(prediction: Prediction, full: np.ndarray, run: np.ndarray, **options: bool) -> Outcome:
    return predicted(prediction, full, run, of=0, name="x", rng=rng(), **options)


@pytest.mark.parametrize(("what", "relation", "size", "so", "not_so"), SAID)
def test_each_relation_holds_where_it_is_so_and_is_contradicted_where_not(
    what: str, relation: str, size: float, so: float, not_so: float
) -> None:
    for unit, scale in (("share", 1.0), ("margin", 4.0)):
        prediction = said(what, relation, size * scale, unit)
        found, opposite = (settle([judged(prediction, *margins(share))])[0][0] for share in (so, not_so))
        assert (found.state, opposite.state) == (HELD, CONTRADICTED)
        assert found.p < 0.001 < 0.99 < opposite.p
        assert opposite.p_against < 0.001 < 0.99 < found.p_against


def test_a_worked_case() -> None:
    # Losses are 3 and 5 of 10: their mean, 4, exceeds 0.2 of 10 by 2 with a standard error of 1.
    full, run = np.array([10.0, 10.0, 10.0, 10.0]), np.array([7.0, 5.0, 7.0, 5.0])
    found = judged(said("dropping", "lowers_by_at_least", 0.2), full, run)
    assert found.value == pytest.approx(0.4)
    # Student's t = 2 / (1.1547 / 2) = 3.464 on 3 degrees of freedom; of 16 flips only none flipped reaches.
    assert found.p == pytest.approx(1 / 16)
    assert found.p_kind == "exact"
    assert found.state == OPEN


@pytest.mark.parametrize("relation", ["lowers_by_at_least", "raises_by_at_least", "retains_at_least"])
def test_a_control_must_stay_below_the_size(relation: str) -> None:
    what = "keeping" if relation.startswith("retains") else "dropping"
    reaching, below = {
        "lowers_by_at_least": (0.5, 0.9),
        "raises_by_at_least": (1.5, 1.1),
        "retains_at_least": (0.5, 0.1),
    }[relation]
    prediction = said(what, relation, 0.3)
    states = [
        settle([judged(prediction, *margins(share), avoided=True)])[0][0].state for share in (below, reaching)
    ]
    assert states == [HELD, CONTRADICTED]


def test_a_head_that_works_against_the_task_is_tested_the_other_way_round() -> None:
    lowers = said("dropping", "lowers_by_at_least", 0.1)
    raises = said("dropping", "raises_by_at_least", 0.1)
    up, down = margins(1.4), margins(0.6)
    assert settle([judged(lowers, *up, opposed=True)])[0][0].state == HELD
    assert settle([judged(lowers, *down, opposed=True)])[0][0].state == CONTRADICTED
    assert settle([judged(raises, *down, opposed=True)])[0][0].state == HELD


def test_a_rival_that_overshoots_departs_too() -> None:
    full, own = margins(0.9)
    for share, state in ((0.5, HELD), (1.6, HELD), (0.99, CONTRADICTED)):
        other = share * full
        found = rivalled(full, own, other, of=0, name="r", task="t", rng=rng())
        assert settle([found])[0][0].state == state
        assert found.details["faithfulness_of_rival"] == pytest.approx(share)


def test_prompts_that_are_not_finite_leave_every_run() -> None:
    full, run = margins(0.4)
    run[3], full[5] = np.nan, np.inf
    kept = np.isfinite(run) & np.isfinite(full)
    found = judged(said("dropping", "lowers_by_at_least", 0.3), full, run)
    assert (found.n, found.n_dropped) == (N - 2, 2)
    assert found.value == pytest.approx(1 - run[kept].sum() / full[kept].sum())


def test_what_cannot_be_tested_is_open_with_a_reason() -> None:
    prediction = said("dropping", "lowers_by_at_least", 0.3)
    few = judged(prediction, np.ones(2), np.zeros(2))
    assert (few.state, few.reason, math.isnan(few.p)) == (OPEN, "too_few", True)
    around_zero = np.random.default_rng(1).normal(0, 1, N)
    for full in (around_zero, -np.ones(N)):
        found = judged(prediction, full, np.zeros(N))
        assert (found.state, found.reason, math.isnan(found.value)) == (OPEN, "no_behaviour", True)
    # In the margin's own unit nothing is divided by.
    assert judged(said("dropping", "changes_at_most", 1.0, "margin"), around_zero, around_zero).reason is None
    settled, verdict = settle([few])
    assert settled[0].state == OPEN
    assert verdict.reason == "not_applicable"


def test_equal_runs_are_no_loss_and_an_unchanged_margin() -> None:
    full, _ = margins(1.0)
    loss = judged(said("dropping", "lowers_by_at_least", 0.0), full, full)
    assert (loss.p, loss.p_against) == (1.0, 1.0)
    assert settle([judged(said("dropping", "changes_at_most", 0.1), full, full)])[0][0].state == HELD


@given(share=st.floats(0.0, 1.5), seed=st.integers(0, 50))
def test_the_bounds_of_a_share_say_what_the_test_says(share: float, seed: int) -> None:
    full, run = margins(share, seed, n=30)
    found = judged(said("dropping", "lowers_by_at_least", 0.3), full, run)
    if found.p_kind == "t":  # sign flips may be more careful than Student's t, and so than the bounds
        assert (found.p < 0.05) == (found.interval.low > 0.3)
    else:
        assert found.p >= 0.05 or found.interval.low > 0.3


def test_the_number_of_prompts_that_would_do() -> None:
    # Losses exceed the size by 1 with a deviation of 2.309; (t(0.95, 3) 2.309)^2 = (2.353 2.309)^2 = 29.5.
    prediction = said("dropping", "lowers_by_at_least", 2.0, "margin")
    full = np.full(4, 10.0)
    assert judged(prediction, full, full - np.array([5.0, 1.0, 5.0, 1.0])).n_needed == 30
    assert judged(prediction, full, full - np.array([3.0, 0.0, 3.0, 0.0])).n_needed is None
    assert judged(prediction, *margins(0.2)).n_needed is None


def test_a_prediction_that_does_not_survive_the_number_of_tests_is_lost() -> None:
    def outcome(name: str, p: float) -> Outcome:
        base = judged(said("dropping", "lowers_by_at_least", 0.3), *margins(0.6))
        return Outcome(**{**vars(base), "name": name, "p": p, "p_against": 1 - p})

    settled, verdict = settle([outcome("a", 0.03), *(outcome(f"b{i}", 0.9) for i in range(9))])
    assert [each.state for each in settled] == [LOST] + [OPEN] * 9
    assert settled[0].q == pytest.approx(0.3)
    assert verdict.status == "inconclusive"
    # The opposite needs Holm's correction: 0.0051 ten times over is too much, 0.0049 is not.
    for p, state in ((0.9949, OPEN), (0.9951, CONTRADICTED)):
        assert settle([outcome("a", p), *(outcome(f"b{i}", 0.5) for i in range(9))])[0][0].state == state


def test_several_tests_together() -> None:
    base = judged(said("dropping", "lowers_by_at_least", 0.3), *margins(0.6))

    def joined(*states: str) -> str:
        return joint_state([Outcome(**{**vars(base), "state": state}) for state in states])

    assert joined(HELD, HELD) == HELD
    assert joined(HELD, LOST) == LOST
    assert joined(HELD, LOST, OPEN) == OPEN
    assert joined(HELD, CONTRADICTED, OPEN) == CONTRADICTED
    assert joined() == OPEN


@pytest.mark.parametrize(
    ("relation", "what", "size", "share"),
    [
        ("lowers_by_at_least", "dropping", 0.3, 0.7),
        ("changes_at_most", "dropping", 0.2, 0.8),
        ("changes_at_most", "dropping", 0.2, 1.2),
        ("retains_at_least", "keeping", 0.8, 0.8),
    ],
)
def test_at_the_size_itself_either_error_is_rare(relation: str, what: str, size: float, share: float) -> None:
    held = contradicted = 0
    for seed in range(200):
        found = settle([judged(said(what, relation, size), *margins(share, seed, n=12))])[0][0]
        held += found.state == HELD
        contradicted += found.state == CONTRADICTED
    assert held <= 16  # 5 % of 200, and the 99 % bound of its count
    assert contradicted <= 16
