"""The estimate of accuracy: by hand, against a literal twin, when it is silent, in simulated worlds."""

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from assay.analyses.generalization import accuracy_estimate
from assay.analyses.generalization.accuracy_estimate import AccuracyEstimate, AccuracyEstimator
from assay.core.errors import InputError, NonFiniteError, ShapeError


N = 200


def drawn(rng: np.random.Generator, effect: float = 1.0, far: float = 0.0) -> tuple[dict[str, float], float]:
    """Readings and accuracy of a domain whose severity moves both; `far` leaves what is usual."""
    severity = rng.uniform(0, 1)
    accuracy = rng.binomial(N, 0.95 - 0.6 * effect * severity) / N
    confidence = 0.95 - 0.4 * severity + rng.normal(0, 0.02)
    readings = {"ac": confidence, "atc": confidence - 0.05 + rng.normal(0, 0.03)}
    return readings | {"spearman": 0.1 + 0.4 * severity + rng.normal(0, 0.04) + far}, float(accuracy)


def fitted(
    seed: int, n_families: int = 24, size: int = 1, effect: float = 1.0, **options: Any
) -> AccuracyEstimator:
    rng = np.random.default_rng(seed)
    domains = [drawn(rng, effect) for _ in range(n_families * size)]
    names = ("ac", "atc", "spearman")
    return AccuracyEstimator(
        names=names,
        readings=tuple(tuple(readings[name] for name in names) for readings, _ in domains),
        performance=tuple(accuracy for _, accuracy in domains),
        families=tuple(f"family-{i % n_families}" for i in range(n_families * size)),
        id_performance=0.95,
        n=N,
        **options,
    )


# ------------------------------------------------------------------------------------------------ the numbers


def literal_fit(z: np.ndarray, y: np.ndarray, votes: np.ndarray) -> np.ndarray:
    """Intercept and weights of the penalised sum of squares, by a solver with bounds."""
    root = np.sqrt(votes)
    rows = np.concatenate([np.ones((len(z), 1)), z], axis=1) * root[:, None]
    ridge = np.sqrt(accuracy_estimate.RIDGE * votes.sum()) * np.eye(z.shape[1] + 1)[1:]
    low = [-np.inf, *[0.0] * z.shape[1]]
    target = np.concatenate([y * root, np.zeros(z.shape[1])])
    return np.asarray(optimize.lsq_linear(np.concatenate([rows, ridge]), target, (low, np.inf), tol=1e-14).x)


def literal_interval(
    stack: AccuracyEstimator, readings: dict[str, float], alpha: float
) -> tuple[float, float]:
    """CV+ over families, one loop at a time."""

    def link(x: float) -> float:
        return math.asin(math.sqrt((x * N + 0.5) / (N + 1)))

    def row(values: tuple[float, ...]) -> list[float]:
        return [link(values[0]), link(values[1]), -values[2]]

    families = list(dict.fromkeys(stack.families))
    votes = np.array([1 / stack.families.count(each) for each in stack.families])
    rows = np.array([row(each) for each in stack.readings])
    mean = np.average(rows, axis=0, weights=votes)
    spread = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=votes))
    z, y = (rows - mean) / spread, np.array([link(each) for each in stack.performance])
    new = (np.array(row(tuple(readings[name] for name in stack.names))) - mean) / spread
    lows, highs = [], []
    for family in families:
        used = np.array([each != family for each in stack.families])
        fit = literal_fit(z[used], y[used], votes[used])
        for i in np.flatnonzero(~used):
            miss = abs(y[i] - fit[0] - z[i] @ fit[1:])
            share = votes[i] / (len(families) + 1)
            lows.append((fit[0] + new @ fit[1:] - miss, share))
            highs.append((-fit[0] - new @ fit[1:] - miss, share))
    ends = []
    for side in (lows, highs):
        total, end = 0.0, -math.inf
        for value, share in sorted(side):
            total += share
            if total <= alpha + 1e-9:
                end = value
        ends.append(end)
    back = [
        min(max((math.sin(min(max(e, 0), math.pi / 2)) ** 2 * (N + 1) - 0.5) / N, 0), 1)
        for e in (ends[0], -ends[1])
    ]
    return back[0], back[1]


@pytest.mark.parametrize(("n_families", "size"), [(24, 1), (20, 3), (10, 2)])
def test_the_interval_is_that_of_the_definition(n_families: int, size: int) -> None:
    stack = fitted(n_families, n_families, size)
    readings, _ = drawn(np.random.default_rng(99))
    estimate = stack.estimate(readings, n=N)
    assert estimate.interval is not None
    low, high = literal_interval(stack, readings, 1 - stack.offered)
    assert (estimate.interval.low, estimate.interval.high) == pytest.approx((low, high), abs=1e-6)
    assert estimate.value in estimate.interval


def test_the_outermost_values_by_hand() -> None:
    values, mass = np.array([3.0, 1.0, 2.0, 4.0]), np.full(4, 0.2)
    beyond = accuracy_estimate._beyond
    assert [beyond(values, mass, alpha) for alpha in (0.2, 0.39, 0.4)] == [1.0, 1.0, 2.0]
    assert beyond(values, mass, 0.1) == -math.inf


def test_the_p_value_of_the_backtest_is_that_of_all_deals() -> None:
    # Three families of one domain and two of two: 3! deals of the former, 2! of the latter, 2! within each.
    families = ("a", "b", "c", "d", "d", "e", "e")
    truth = (0.95, 0.6, 0.72, 0.9, 0.55, 0.7, 0.8)
    stack = AccuracyEstimator(
        names=("ac",),
        readings=tuple((each + 0.05 * (-1) ** i,) for i, each in enumerate(truth)),
        performance=truth,
        families=families,
        id_performance=0.95,
        n=N,
    )
    votes = np.array([1, 1, 1, 0.5, 0.5, 0.5, 0.5]) / 5
    predicted = stack._accuracy(stack._left_out)
    errors = [
        float(np.abs(np.array([*singles, *first, *second]) - predicted) @ votes)
        for singles in itertools.permutations(truth[:3])
        for blocks in itertools.permutations((truth[3:5], truth[5:]))
        for first in itertools.permutations(blocks[0])
        for second in itertools.permutations(blocks[1])
    ]
    assert len(errors) == 48
    assert stack.backtest.error == pytest.approx(errors[0])
    exact = np.mean(np.array(errors) <= errors[0] + 1e-12)
    assert 1 / 48 <= exact < 0.5
    assert stack.backtest.p_value == pytest.approx(exact, abs=0.05)  # 999 deals: three standard errors


def test_the_support_by_hand() -> None:
    # One reading; families at 0, 1, ..., 9 (standardised alike): a batch at 30 is farther than any family.
    stack = AccuracyEstimator(
        names=("l2",),
        readings=tuple((float(i),) for i in range(10)),
        performance=tuple(0.9 - 0.05 * i for i in range(10)),
        families=tuple(map(str, range(10))),
        id_performance=0.9,
        n=N,
    )
    assert stack.estimate({"l2": 30.0}, n=N).support == pytest.approx(1 / 11)
    assert stack.estimate({"l2": 4.5}, n=N).support == 1.0
    # at 10.5: 2.5 from its 3 nearest; ends of the row are 2 from theirs
    assert stack.estimate({"l2": 10.5}, n=N).support == pytest.approx(1 / 11)
    assert stack.estimate({"l2": 10.0}, n=N).support == pytest.approx(3 / 11)  # 2, as far as both ends


@pytest.mark.parametrize(
    ("n_families", "level", "offered"), [(9, 0.95, 0.9), (18, 0.95, 0.9), (19, 0.95, 0.95), (24, 0.99, 0.96)]
)
def test_the_level_is_what_the_families_allow(n_families: int, level: float, offered: float) -> None:
    stack = fitted(1, n_families, level=level)
    assert stack.offered == pytest.approx(offered)
    assert f"level {offered:g}" in stack.source


# ---------------------------------------------------------------------------------------------------- silence


def test_it_is_silent_with_the_reason() -> None:
    readings, _ = drawn(np.random.default_rng(5))
    few = fitted(1, 8)
    assert math.isnan(few.offered)
    assert "8 families" in few.estimate(readings, n=N).reason
    shared = fitted(1, pool=799).estimate(readings, n=N)
    assert shared.reason.startswith(
        "the calibration domains of 200 images are drawn from 799; 800 are needed"
    )
    assert fitted(1, pool=800).estimate(readings, n=N).interval is not None
    stack = fitted(1)
    assert "holds 64 images, the calibration domains 200" in stack.estimate(readings, n=64).reason
    assert "has no spearman" in stack.estimate({**readings, "spearman": math.nan}, n=N).reason
    outside = stack.estimate({**readings, "spearman": 2.0}, n=N)
    assert "unlike the calibration domains" in outside.reason
    assert (outside.value, outside.interval) == (None, None)
    assert str(outside).startswith("cannot say: ")
    useless = fitted(1, effect=0.0).estimate(readings, n=N)
    assert "it is not better" in useless.reason


def test_an_estimate_reads_as_a_sentence() -> None:
    readings, _ = drawn(np.random.default_rng(5))
    estimate = fitted(1).estimate(readings, n=N)
    assert estimate.interval is not None
    assert str(estimate) == (
        f"{estimate.value:.2f} [{estimate.interval.low:.2f}, {estimate.interval.high:.2f}] at 95%"
    )
    assert estimate.source == (
        "3 readings, calibrated on 24 labelled domains of 24 families, 200 images each, level 0.95"
    )


def test_records_bring_everything_back() -> None:
    stack = fitted(1)
    assert AccuracyEstimator.from_dict(json.loads(json.dumps(stack.to_dict(), allow_nan=False))) == stack
    readings, _ = drawn(np.random.default_rng(5))
    for estimate in (stack.estimate(readings, n=N), stack.estimate(readings, n=1)):
        assert (
            AccuracyEstimate.from_dict(json.loads(json.dumps(estimate.to_dict(), allow_nan=False)))
            == estimate
        )


def test_tables_that_do_not_fit_are_refused() -> None:
    facts: dict[str, Any] = {"names": ("ac",), "families": ("a", "b"), "id_performance": 0.9, "n": 10}
    good = {"readings": ((0.5,), (0.6,)), "performance": (0.5, 0.6)}
    with pytest.raises(ShapeError, match="2 rows of readings, 1 accuracies"):
        AccuracyEstimator(**facts, **{**good, "performance": (0.5,)})
    with pytest.raises(InputError, match="an accuracy is 1.5"):
        AccuracyEstimator(**facts, **{**good, "performance": (0.5, 1.5)})
    with pytest.raises(NonFiniteError, match="leave that reading out"):
        AccuracyEstimator(**facts, **{**good, "readings": ((0.5,), (math.nan,))})
    with pytest.raises(InputError, match="level is 1"):
        AccuracyEstimator(**facts, **good, level=1.0)
    with pytest.raises(InputError, match="missing"):
        AccuracyEstimator(**{**facts, "names": ()}, readings=((), ()), performance=(0.5, 0.6))


# ------------------------------------------------------------------------------------------------- properties


@given(st.integers(0, 200))
@settings(max_examples=10, deadline=None)
def test_the_order_of_domains_changes_nothing(seed: int) -> None:
    stack = fitted(seed, 20, 2)
    order = np.random.default_rng(seed).permutation(40)
    mixed = AccuracyEstimator(
        names=stack.names,
        readings=tuple(stack.readings[i] for i in order),
        performance=tuple(stack.performance[i] for i in order),
        families=tuple(stack.families[i] for i in order),
        id_performance=stack.id_performance,
        n=N,
    )
    readings, _ = drawn(np.random.default_rng(seed + 1))
    one, other = stack.estimate(readings, n=N), mixed.estimate(readings, n=N)
    assert one.support == pytest.approx(other.support)
    assert (one.value is None) == (other.value is None)
    if one.value is not None and one.interval is not None and other.interval is not None:
        assert one.value == pytest.approx(other.value)
        assert one.interval.low == pytest.approx(other.interval.low)


@given(st.integers(0, 200))
@settings(max_examples=10, deadline=None)
def test_labels_do_not_enter_the_support(seed: int) -> None:
    stack = fitted(seed)
    dealt = np.random.default_rng(seed).permutation(stack.performance)
    other = AccuracyEstimator(
        names=stack.names,
        readings=stack.readings,
        performance=tuple(dealt.tolist()),
        families=stack.families,
        id_performance=0.95,
        n=N,
    )
    readings, _ = drawn(np.random.default_rng(seed + 1))
    assert stack.estimate(readings, n=N).support == other.estimate(readings, n=N).support


def test_promises_hold_in_simple_worlds() -> None:
    covered, spoke, silent, used = [], [], [], []
    for seed in range(120):
        stack, rng = fitted(seed), np.random.default_rng(10_000 + seed)
        readings, accuracy = drawn(rng)
        estimate = stack.estimate(readings, n=N)
        spoke.append(estimate.interval is not None)
        if estimate.interval is not None:
            covered.append(accuracy in estimate.interval)
        silent.append(stack.estimate(drawn(rng, far=1.0)[0], n=N).interval is None)
        used.append(not fitted(seed, effect=0.0).silence)
    # 120 draws: three standard errors around 0.95 and 0.05 are 6 points
    assert np.mean(covered) > 0.89
    assert np.mean(covered) < 1.0
    assert np.mean(spoke) > 0.75
    assert np.mean(silent) > 0.9
    assert np.mean(used) < 0.11  # at most 0.05
