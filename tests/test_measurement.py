"""Measurements: identity, intervals, verdicts, subsets and their JSON."""

import hashlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.core.measurement import Interval, Measurement, Rule, undefined_interval
from assay.core.random import stream
from assay.core.record import canonical_json, plain, record_id
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


# ---- records ------------------------------------------------------------------------------------


def test_records_are_canonical_json_of_plain_values() -> None:
    assert canonical_json({"b": (1, 2.5), "a": {"é": None}}) == '{"a":{"é":null},"b":[1,2.5]}'
    record = {"a": np.array([1.0, np.nan]), "b": np.float64(0.5), "c": np.int64(3), "d": {2, 1}, 5: True}
    assert plain(record) == {"a": [1.0, None], "b": 0.5, "c": 3, "d": [1, 2], "5": True}
    with pytest.raises(InputError, match="of type object; only JSON values"):
        plain({"a": object()})


def test_record_id_is_the_start_of_the_hash_without_machine_facts() -> None:
    text = '{"kind":"measurement","provenance":{"seed":0}}'
    expected = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert record_id("measurement", {"seed": 0}) == expected
    assert record_id("measurement", {"seed": 0, "machine": {"device": "cuda"}}) == expected
    assert expected not in (record_id("measurement", {"seed": 1}), record_id("circuit", {"seed": 0}))
    machine = {"model": "m", "seed": 0, "machine": {"seconds": 3}}
    assert ratio().id_hash == ratio(provenance=machine).id_hash == record_id("measurement", machine)
    assert record_id("k", {"a": 1, "b": 2}) == record_id("k", {"b": 2, "a": 1})


# ---- intervals ----------------------------------------------------------------------------------


def test_an_interval_knows_what_it_holds_and_an_undefined_one_why() -> None:
    interval = Interval(low=0.5, high=1.0, level=0.95, method="bca")
    assert [value in interval for value in (0.4, 0.5, 0.7, 1.0, 1.1)] == [False, True, True, True, False]
    assert interval.to_dict() == {"low": 0.5, "high": 1.0, "level": 0.95, "method": "bca"}
    undefined = undefined_interval(0.9, "delta", "too_few")
    assert 0.0 not in undefined
    ends = {"low": None, "high": None}
    assert undefined.to_dict() == {**ends, "level": 0.9, "method": "delta", "reason": "too_few"}


def test_intervals_are_computed_once_and_depend_on_the_seed_alone() -> None:
    measured = ratio()
    assert measured.interval() is measured.interval(0.95)
    assert measured.interval() == ratio().interval()
    assert measured.interval().low <= 0.75 <= measured.interval().high
    assert measured.interval(method="delta").method == "delta"
    data = stream(0, "data").normal(2.0, 1.0, 50)
    facts = {"statistic": mean_of("x"), "components": {"x": data}, "per_example": data, "value": 2.0, "n": 50}
    assert ratio(**facts, seed=1).interval() != ratio(**facts).interval()
    for level in (0.0, 1.0, 95.0):
        with pytest.raises(InputError, match="strictly between 0 and 1"):
            measured.interval(level)


def test_standard_error_is_the_spread_of_the_linearised_values() -> None:
    influence = (KEEP - 0.75 * FULL) / 3.0
    assert ratio().standard_error == pytest.approx(influence.std(ddof=1) / 2)


def test_what_is_undefined_or_excluded_does_not_enter() -> None:
    nan = np.append(KEEP, np.nan), np.append(FULL, 5.0)
    padded = ratio(components={"keep": nan[0], "full": nan[1]}, n_excluded=1, per_example=None)
    assert padded.interval() == ratio().interval()
    assert np.isnan(padded.value_on(np.array([[0], [4]]))).tolist() == [False, True]
    undefined = ratio(value=math.nan, per_example=None, reason="zero_denominator", rule=HIGHER, n=10)
    assert undefined.interval().reason == undefined.verdict.reason == "zero_denominator"
    assert (undefined.passed, undefined.status) == (None, "inconclusive")
    bare = Measurement(id="X", name="x", value=1.0, n=3)
    assert bare.interval().reason == "no_per_example_values"
    with pytest.raises(InputError, match="no per-example components"):
        bare.value_on(np.array([0]))


def test_value_on_bootstrap_draws_reproduces_the_interval() -> None:
    measured = ratio()
    assert measured.value_on(np.array([0, 0])) == pytest.approx(0.5)
    draws = stream(0, "bootstrap").integers(0, 4, (2000, 4))
    low, high = np.quantile(measured.value_on(draws), [0.025, 0.975])
    interval = measured.interval(method="percentile")
    assert (interval.low, interval.high) == (pytest.approx(low), pytest.approx(high))


# ---- verdicts -----------------------------------------------------------------------------------

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


@given(st.floats(-2, 2), st.floats(0, 1), st.floats(0, 1), st.sampled_from([HIGHER, LOWER]))
def test_a_confident_verdict_never_contradicts_the_point_and_an_open_one_asks_for_more(
    value: float, below: float, above: float, rule: Rule
) -> None:
    verdict = rule.judge(value, Interval(low=value - below, high=value + above, level=0.9, method="bca"), 40)
    assert verdict.status in ("inconclusive", rule.published(value))
    assert verdict.n_needed is None or (verdict.status == "inconclusive" and verdict.n_needed > 40)


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0.625, 0.375, 0.875, 160),  # symmetric: 40 (halfwidth / distance)^2
        (0.375, 0.25, 0.75, 360),  # below: only the upper end reaches over, by three times the distance
        (0.625, 0.25, 0.65, 360),  # above: only the lower end does
        (0.4, 0.39, 0.5, 41),  # the end on the limit: one more at least
        (0.5, 0.25, 0.75, None),  # at the limit no n would settle it
    ],
)
def test_the_end_that_reaches_over_the_limit_says_how_many_would_settle_it(
    value: float, low: float, high: float, expected: int | None
) -> None:
    interval = Interval(low=low, high=high, level=0.9, method="bonett")
    for rule in (Rule(pass_at=0.5), Rule(pass_at=0.5, higher=False)):
        verdict = rule.judge(value, interval, 40)
        assert (verdict.status, verdict.n_needed) == ("inconclusive", expected)
    two = Rule(pass_at=0.75, fail_at=0.25)
    both = Interval(low=0.125, high=0.875, level=0.9, method="bonett")
    assert two.judge(0.375, both, 40).n_needed == 160  # 40 (0.25 / 0.125)^2, more than the 72 of the other


def test_measurements_are_judged_by_their_rule() -> None:
    for limit, passed, status in ((0.1, True, "pass"), (0.99, False, "fail"), (0.74, True, "inconclusive")):
        measured = ratio(rule=Rule(pass_at=limit), n=10)
        assert (measured.passed, measured.status) == (passed, status)
        assert measured.verdict.interval == measured.interval(0.90)
    assert (ratio().passed, ratio().status) == (None, "none")
    # Without confidence the published word stays.
    for reason, changes in (("few_prompts", {"n": 9}), ("same_prompts", {"warnings": ("same_prompts",)})):
        measured = ratio(**{"rule": Rule(pass_at=0.1), "n": 10, **changes})
        assert (measured.passed, measured.status) == (True, "inconclusive")
        assert measured.verdict.reason == reason


# ---- JSON ---------------------------------------------------------------------------------------


def test_a_measurement_is_finite_json() -> None:
    part = ratio(id="D02.part", value=math.nan, per_example=None, reason="zero_denominator")
    measured = ratio(rule=HIGHER, parts={"other": part}, details={"K": [1], "tau": {5: math.nan}})
    record = json.loads(json.dumps(measured.to_dict(per_example=True), allow_nan=False))
    assert record["value"] == 0.75
    assert record["interval"]["method"] == "bca"
    assert record["details"] == {"K": [1], "tau": {"5": None}}
    assert record["parts"]["other"]["value"] is None
    assert record["verdict"]["thresholds"] == {"pass": 0.8, "fail": 0.8}
    assert len(record["per_example"]) == 4
    assert "per_example" not in measured.to_dict()
    names = {"components/keep", "components/full", "parts/other/components/keep"}
    assert names <= set(measured.arrays())
