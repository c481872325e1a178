"""Telling members from others: worked cases, golden values, literal versions and invariances."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import special

from assay.core.errors import NonFiniteError, ShapeError, UnknownNameError
from assay.core.random import stream
from assay.stats import auroc, average_precision, corrected_rate, d_prime, precision_at


GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "signal_detection.json").read_text())
LABELLED = st.integers(2, 15).flatmap(
    lambda n: st.tuples(
        arrays.arrays(np.float64, n, elements=st.integers(-3, 3).map(float)), arrays.arrays(np.bool_, n)
    )
)


@pytest.mark.parametrize("case", GOLDEN["gaussian"], ids=lambda case: str(len(case["signal"])))
def test_distances_of_groups_match_golden_values(case: dict) -> None:
    signal, noise = np.array(case["signal"]), np.array(case["noise"])
    assert d_prime(signal, noise).value == pytest.approx(case["d_prime"], rel=1e-9)
    found = auroc(np.concatenate([signal, noise]), np.arange(len(signal) + len(noise)) < len(signal))
    assert found.value == pytest.approx(case["auroc"], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("case", GOLDEN["sdt"], ids=lambda case: f"{case['hits']}of{case['n_signal']}")
@pytest.mark.parametrize("correction", ["loglinear", "clip-half"])
def test_rates_match_golden_values(case: dict, correction: str) -> None:
    hits, alarms = (
        special.ndtri(corrected_rate(np.array([float(case[count])]), case[n], correction=correction))[0]
        for count, n in (("hits", "n_signal"), ("false_alarms", "n_noise"))
    )
    expected = case[correction.replace("-", "_")]
    assert hits - alarms == pytest.approx(expected["d_prime"], rel=1e-9, abs=1e-12)
    assert -(hits + alarms) / 2 == pytest.approx(expected["criterion"], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("case", GOLDEN["auroc"], ids=["continuous", "ties"])
def test_ranking_scores_match_golden_values(case: dict) -> None:
    scores, members = np.array(case["scores"]), np.array(case["labels"], dtype=bool)
    k = int(members.sum())
    assert auroc(scores, members).value == pytest.approx(case["auroc"], rel=1e-9)
    assert average_precision(scores, members).value == pytest.approx(case["average_precision"], rel=1e-9)
    assert precision_at(scores, members, k).value == pytest.approx(case["precision_at_k"], rel=1e-9)


@given(LABELLED)
def test_ranking_scores_are_the_literal_ones(labelled: tuple[np.ndarray, np.ndarray]) -> None:
    scores, members = labelled
    if members.all() or not members.any():
        reason = "no_others" if members.all() else "no_members"
        for score in (auroc, average_precision):
            found = score(scores, members)
            assert math.isnan(found.value)
            assert found.reason == reason
        return
    pairs = [(a > b) + (a == b) / 2 for a in scores[members] for b in scores[~members]]
    assert auroc(scores, members).value == pytest.approx(np.mean(pairs))
    total, recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        taken = scores >= threshold
        reached = members[taken].sum() / members.sum()
        total, recall = total + (reached - recall) * members[taken].mean(), reached
    assert average_precision(scores, members).value == pytest.approx(total)


@given(LABELLED, st.integers(0, 2**32 - 1))
def test_ranks_alone_matter(labelled: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    scores, members = labelled
    order = np.random.default_rng(seed).permutation(len(scores))
    for score in (auroc, average_precision):
        first, second = score(scores, members), score(np.exp(scores)[order], members[order])
        assert first.value == pytest.approx(second.value, nan_ok=True)
    if auroc(scores, members).defined:
        assert auroc(-scores, members).value == pytest.approx(1 - auroc(scores, members).value)
        assert auroc(scores, ~members).value == pytest.approx(1 - auroc(scores, members).value)


def test_a_label_permutation_centres_every_score() -> None:
    rng = stream(0, "labels")
    scores = rng.normal(size=144)
    members = np.arange(144) < 15
    drawn = [rng.permutation(members) for _ in range(200)]
    assert np.mean([auroc(scores, each).value for each in drawn]) == pytest.approx(0.5, abs=0.02)
    assert np.mean([d_prime(scores[each], scores[~each]).value for each in drawn]) == pytest.approx(
        0, abs=0.07
    )


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 10), st.floats(-5, 5))
def test_distance_ignores_the_unit_and_turns_with_the_sides(seed: int, scale: float, shift: float) -> None:
    rng = np.random.default_rng(seed)
    signal, noise = rng.normal(1, 1, size=5), rng.normal(size=9)
    found = d_prime(signal, noise).value
    assert d_prime(scale * signal + shift, scale * noise + shift).value == pytest.approx(found, rel=1e-6)
    assert d_prime(noise, signal).value == pytest.approx(-found)


def test_degenerate_groups_are_undefined() -> None:
    assert d_prime(np.ones(1), np.arange(4.0)).reason == "too_few"
    assert d_prime(np.arange(4.0), np.empty(0)).reason == "too_few"
    assert d_prime(np.full(3, 0.1) * 3, np.full(4, 0.7)).reason == "zero_variance"
    assert math.isnan(d_prime(np.ones(3), np.zeros(3)).value)
    assert precision_at(np.ones(3), np.array([True, False, True]), 0).reason == "too_few"
    assert precision_at(np.ones(3), np.array([True, False, True]), 2).value == 0.5


def test_bad_input_is_named(unchecked: None) -> None:
    with pytest.raises(UnknownNameError, match="unknown rate correction 'none'"):
        corrected_rate(np.array([1.0]), 5, correction="none")
    with pytest.raises(ShapeError, match=r"scores have shape \(2,\) and members \(3,\)"):
        auroc(np.ones(2), np.ones(3, dtype=bool))
    with pytest.raises(NonFiniteError, match="scores hold nan"):
        auroc(np.array([1.0, math.nan]), np.array([True, False]))
