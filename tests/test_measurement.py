"""Measurements: identity, intervals, verdicts, subsets and their JSON."""

import hashlib
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.core.measurement import Measurement
from assay.core.random import stream
from assay.core.record import canonical_json, library_version, plain, record_id
from assay.core.verdict import Interval, Rule, undefined_interval
from assay.stats import mean_of, ratio_of


KEEP = np.array([1.0, 2.0, 3.0, 3.0])
FULL = np.array([2.0, 2.0, 4.0, 4.0])


def ratio(**changes: Any) -> Measurement:
    """A recovery of 9 / 12."""
    statistic = ratio_of("keep", "full")
    facts: dict[str, Any] = {
        "id": "D02.faithfulness",
        "name": "faithfulness",
        "value": 0.75,
        "n": 4,
        "per_example": statistic.linearised(np.stack([KEEP, FULL])),
        "components": {"keep": KEEP, "full": FULL},
        "statistic": statistic,
        "provenance": {"model": "m", "seed": 0},
    }
    return Measurement(**(facts | changes))


# ------------------------------------------------------------------------------------------- records


def test_canonical_json_sorts_keys_and_has_no_white_space() -> None:
    assert canonical_json({"b": (1, 2.5), "a": {"é": None}}) == '{"a":{"é":null},"b":[1,2.5]}'


def test_arrays_and_numpy_numbers_become_plain() -> None:
    record = {"a": np.array([1.0, np.nan]), "b": np.float64(0.5), "c": np.int64(3), "d": {2, 1}, 5: True}
    assert plain(record) == {"a": [1.0, None], "b": 0.5, "c": 3, "d": [1, 2], "5": True}


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(InputError, match="of type object; only JSON values"):
        plain({"a": object()})


def test_record_id_is_the_start_of_the_hash_without_machine_facts() -> None:
    text = '{"kind":"measurement","provenance":{"seed":0}}'
    expected = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert record_id("measurement", {"seed": 0}) == expected
    assert record_id("measurement", {"seed": 0, "machine": {"device": "cuda"}}) == expected
    assert record_id("measurement", {"seed": 1}) != expected
    assert record_id("circuit", {"seed": 0}) != expected


@given(
    st.dictionaries(st.text(), st.integers() | st.floats(allow_nan=False, allow_infinity=False), max_size=5)
)
def test_record_id_ignores_the_order_of_keys(provenance: dict) -> None:
    backwards = dict(reversed(provenance.items()))
    assert record_id("k", provenance) == record_id("k", backwards)


def test_the_library_knows_its_version() -> None:
    assert library_version()


# ------------------------------------------------------------------------------------------- intervals


def test_an_interval_knows_what_it_holds() -> None:
    interval = Interval(low=0.5, high=1.0, level=0.95, method="bca")
    assert 0.5 in interval
    assert 0.7 in interval
    assert 1.1 not in interval
    assert interval.to_dict() == {"low": 0.5, "high": 1.0, "level": 0.95, "method": "bca"}


def test_an_undefined_interval_holds_nothing_and_says_why() -> None:
    interval = undefined_interval(0.9, "delta", "too_few")
    assert not interval.defined
    assert 0.0 not in interval
    assert interval.to_dict() == {
        "low": None,
        "high": None,
        "level": 0.9,
        "method": "delta",
        "reason": "too_few",
    }


def test_intervals_are_computed_once_and_depend_on_the_seed_alone() -> None:
    measured = ratio()
    assert measured.interval() is measured.interval(0.95)
    assert measured.interval() == ratio().interval()
    assert measured.interval().low <= 0.75 <= measured.interval().high
    assert measured.interval(method="delta").method == "delta"


def test_another_seed_draws_other_resamples() -> None:
    data = stream(0, "data").normal(2.0, 1.0, 50)
    facts = {"statistic": mean_of("x"), "components": {"x": data}, "per_example": data, "value": 2.0, "n": 50}
    assert ratio(**facts, seed=1).interval() != ratio(**facts).interval()


def test_the_default_method_can_be_set() -> None:
    assert ratio(interval_method="fieller").interval().method == "fieller"


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_is_a_coverage(level: float) -> None:
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        ratio().interval(level)


def test_standard_error_is_the_spread_of_the_linearised_values() -> None:
    influence = (KEEP - 0.75 * FULL) / 3.0
    assert ratio().standard_error == pytest.approx(influence.std(ddof=1) / 2)


def test_excluded_examples_do_not_enter_the_interval() -> None:
    nan = np.append(KEEP, np.nan), np.append(FULL, 5.0)
    padded = ratio(components={"keep": nan[0], "full": nan[1]}, n_excluded=1, per_example=None)
    assert padded.interval() == ratio().interval()


def test_an_undefined_value_has_an_undefined_interval_with_its_reason() -> None:
    measured = ratio(value=math.nan, per_example=None, reason="zero_denominator")
    assert measured.interval().reason == "zero_denominator"
    assert math.isnan(measured.standard_error)


def test_a_value_without_components_has_no_interval() -> None:
    measured = Measurement(id="X", name="x", value=1.0, n=3)
    assert measured.interval().reason == "no_per_example_values"
    with pytest.raises(InputError, match="no per-example components"):
        measured.value_on(np.array([0]))


# ------------------------------------------------------------------------------------------- subsets


def test_values_on_subsets_need_no_model() -> None:
    measured = ratio()
    assert measured.value_on(np.arange(4)) == pytest.approx(0.75)
    halves = measured.value_on(np.array([[0, 1], [2, 3]]))
    assert halves.tolist() == [0.75, 0.75]
    assert measured.value_on(np.array([0, 0])) == pytest.approx(0.5)


def test_a_subset_with_an_excluded_example_is_undefined() -> None:
    components = {"keep": np.array([1.0, np.nan]), "full": np.array([2.0, 2.0])}
    measured = ratio(components=components, per_example=None, value=0.5, n=1, n_excluded=1)
    assert np.isnan(measured.value_on(np.array([[0], [1]]))).tolist() == [False, True]


def test_value_on_bootstrap_draws_reproduces_the_interval() -> None:
    measured = ratio()
    draws = stream(0, "bootstrap").integers(0, 4, (2000, 4))
    low, high = np.quantile(measured.value_on(draws), [0.025, 0.975])
    interval = measured.interval(method="percentile")
    assert (interval.low, interval.high) == (pytest.approx(low), pytest.approx(high))


# ------------------------------------------------------------------------------------------- verdicts


HIGHER = Rule(pass_at=0.8, strict=False)
LOWER = Rule(pass_at=0.1, fail_at=1.0, higher=False)


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        (HIGHER, 0.8, "pass"),
        (HIGHER, 0.79, "fail"),
        (Rule(pass_at=0.8), 0.8, "fail"),
        (LOWER, 0.05, "pass"),
        (LOWER, 0.1, "moderate"),
        (LOWER, 1.0, "moderate"),
        (LOWER, 1.1, "fail"),
        (HIGHER, math.nan, "inconclusive"),
        (Rule(pass_at=0.5, fail_at=0.1), 0.3, "moderate"),
        (Rule(pass_at=0.5, fail_at=0.1), 0.05, "fail"),
    ],
)
def test_the_published_rule_reads_the_point(rule: Rule, value: float, expected: str) -> None:
    assert rule.published(value) == expected


@pytest.mark.parametrize(
    ("rule", "low", "high", "expected"),
    [
        (HIGHER, 0.85, 0.95, "pass"),
        (HIGHER, 0.75, 0.95, "inconclusive"),
        (HIGHER, 0.5, 0.7, "fail"),
        (LOWER, 0.01, 0.05, "pass"),
        (LOWER, 0.05, 0.2, "inconclusive"),
        (LOWER, 0.2, 0.9, "moderate"),
        (LOWER, 0.9, 1.2, "inconclusive"),
        (LOWER, 1.2, 2.0, "fail"),
        (HIGHER, math.nan, math.nan, "inconclusive"),
    ],
)
def test_the_rigorous_rule_reads_both_ends(rule: Rule, low: float, high: float, expected: str) -> None:
    assert rule.rigorous(Interval(low=low, high=high, level=0.9, method="bca")) == expected


@given(st.floats(-2, 2), st.floats(0, 1), st.sampled_from([HIGHER, LOWER]))
def test_a_confident_verdict_never_contradicts_the_point(value: float, width: float, rule: Rule) -> None:
    status = rule.rigorous(Interval(low=value - width, high=value + width, level=0.9, method="bca"))
    assert status in ("inconclusive", rule.published(value))


def test_an_open_verdict_says_how_many_examples_would_settle_it() -> None:
    rule = Rule(pass_at=0.75)
    interval = Interval(low=0.5, high=1.25, level=0.9, method="bca")
    verdict = rule.judge(0.875, interval, 40)
    assert verdict.status == "inconclusive"
    assert verdict.n_needed == 360  # 40 (0.375 / 0.125)^2
    assert rule.judge(0.75, interval, 40).n_needed is None  # at the threshold no n would


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0.625, 0.375, 0.875, 160),  # symmetric: 40 (halfwidth / distance)^2
        (0.375, 0.25, 0.75, 360),  # below: only the upper end reaches over, by three times the distance
        (0.625, 0.25, 0.65, 360),  # above: only the lower end does
        (0.4, 0.39, 0.5, 41),  # the end on the limit: one more at least
        (0.4, 0.38, 0.51, 49),  # the half-width would name 17 of the 40 there are
    ],
)
def test_the_end_that_reaches_over_the_limit_counts(
    value: float, low: float, high: float, expected: int
) -> None:
    interval = Interval(low=low, high=high, level=0.9, method="bonett")
    for rule in (Rule(pass_at=0.5), Rule(pass_at=0.5, higher=False)):
        verdict = rule.judge(value, interval, 40)
        assert (verdict.status, verdict.n_needed) == ("inconclusive", expected)


def test_of_two_limits_those_reached_over_count() -> None:
    rule = Rule(pass_at=0.75, fail_at=0.25)

    def needed(value: float, low: float, high: float) -> int | None:
        interval = Interval(low=low, high=high, level=0.9, method="bonett")
        return rule.judge(value, interval, 40).n_needed

    assert needed(0.375, 0.3125, 0.875) == 72  # 40 (0.5 / 0.375)^2: the nearer limit is settled
    assert needed(0.375, 0.125, 0.875) == 160  # 40 (0.25 / 0.125)^2, more than the 72 of the other
    assert needed(0.375, 0.125, math.inf) is None
    assert needed(0.75, 0.125, 0.875) is None


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.sampled_from([HIGHER, LOWER]))
def test_an_open_verdict_never_asks_for_fewer_than_there_are(
    value: float, below: float, above: float, rule: Rule
) -> None:
    interval = Interval(low=value - below, high=value + above, level=0.9, method="bonett")
    verdict = rule.judge(value, interval, 40)
    assert verdict.n_needed is None or (verdict.status == "inconclusive" and verdict.n_needed > 40)


def test_measurements_are_judged_by_their_rule() -> None:
    passed = ratio(rule=Rule(pass_at=0.1), n=10)
    assert (passed.passed, passed.status) == (True, "pass")
    failed = ratio(rule=Rule(pass_at=0.99), n=10)
    assert (failed.passed, failed.status) == (False, "fail")
    open_ = ratio(rule=Rule(pass_at=0.74), n=10)
    assert (open_.passed, open_.status) == (True, "inconclusive")
    assert open_.verdict.interval == open_.interval(0.90)


def test_without_confidence_the_published_word_stays() -> None:
    for reason, changes in (("few_prompts", {"n": 9}), ("same_prompts", {"warnings": ("same_prompts",)})):
        measured = ratio(**{"rule": Rule(pass_at=0.1), "n": 10, **changes})
        assert (measured.passed, measured.status) == (True, "inconclusive")
        assert measured.verdict.reason == reason


def test_without_a_rule_there_is_no_verdict() -> None:
    assert (ratio().passed, ratio().status) == (None, "none")


def test_an_undefined_value_is_neither_pass_nor_fail() -> None:
    measured = ratio(value=math.nan, per_example=None, reason="zero_denominator", rule=HIGHER, n=10)
    assert (measured.passed, measured.status) == (None, "inconclusive")
    assert measured.verdict.reason == "zero_denominator"


# ------------------------------------------------------------------------------------------- JSON


def test_a_measurement_is_finite_json() -> None:
    part = ratio(id="D02.part", value=math.nan, per_example=None, reason="zero_denominator")
    measured = ratio(rule=HIGHER, parts={"other": part}, details={"K": [1], "tau": {5: math.nan}})
    record = json.loads(json.dumps(measured.to_dict(per_example=True), allow_nan=False))
    assert record["value"] == 0.75
    assert record["interval"]["method"] == "bca"
    assert record["details"] == {"K": [1], "tau": {"5": None}}
    assert record["parts"]["other"]["value"] is None
    assert record["parts"]["other"]["reason"] == "zero_denominator"
    assert record["verdict"]["thresholds"] == {"pass": 0.8, "fail": 0.8}
    assert len(record["per_example"]) == 4
    assert "per_example" not in measured.to_dict()


def test_identity_is_the_hash_of_the_provenance() -> None:
    assert ratio().id_hash == record_id("measurement", {"model": "m", "seed": 0})
    machine = {"model": "m", "seed": 0, "machine": {"seconds": 3}}
    assert replace(ratio(), provenance=machine).id_hash == ratio().id_hash


def test_arrays_hold_components_of_the_whole_and_its_parts() -> None:
    part = replace(ratio(), statistic=mean_of("x"), components={"x": KEEP}, per_example=KEEP)
    arrays = ratio(parts={"p": part}).arrays()
    assert set(arrays) == {"components/keep", "components/full", "parts/p/components/x"}
    assert arrays["parts/p/components/x"] is KEEP


def test_excluded_examples_keep_their_own_reason() -> None:
    facts = {"n": 0, "value": math.nan, "reason": "no_valid_prompt"}
    undefined = replace(ratio(rule=Rule(pass_at=0.1)), n_excluded=20, **facts)
    assert undefined.verdict.reason == "no_valid_prompt"
    assert replace(undefined, n_excluded=9).verdict.reason == "few_prompts"
