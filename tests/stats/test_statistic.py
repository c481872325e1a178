"""Statistics as functions of sums: values, resampling, round trips."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.core.errors import FileFormatError, InputError, UnknownNameError
from assay.core.random import stream
from assay.stats import (
    FunctionOfSums,
    RatioOfSums,
    clopper_pearson,
    mean_difference,
    mean_of,
    ratio_of,
    recovery_of,
    statistic_from_dict,
)


DETECTION = json.loads((Path(__file__).parent.parent / "golden" / "signal_detection.json").read_text())["sdt"]
KEEP = np.array([1.0, 2.0, 3.0])
FULL = np.array([2.0, 2.0, 4.0])
EMPTY = np.array([0.0, 1.0, 1.0])


def value(statistic: RatioOfSums | FunctionOfSums, *vectors: np.ndarray) -> float:
    table = np.stack(vectors)
    return float(statistic.of_sums(table.sum(axis=1), table.shape[1]))


def test_each_form_has_its_worked_value() -> None:
    assert value(mean_of("x"), KEEP) == 2.0
    assert value(mean_of("x", offset=1.0, scale=-1.0), KEEP) == -1.0
    assert value(mean_difference("keep", "empty"), KEEP, EMPTY) == pytest.approx(4 / 3)
    assert value(ratio_of("keep", "full"), KEEP, FULL) == 0.75
    assert value(ratio_of("keep", "full", offset=1.0, scale=-1.0), KEEP, FULL) == 0.25
    recovery = recovery_of("keep")
    assert recovery.components == ("keep", "empty", "full")
    assert value(recovery, KEEP, EMPTY, FULL) == pytest.approx((6 - 2) / (8 - 2))


def test_a_vanishing_denominator_is_undefined_not_zero() -> None:
    assert math.isnan(value(ratio_of("a", "b"), KEEP, np.array([1.0, -2.0, 1.0])))
    assert math.isnan(value(ratio_of("a", "b"), KEEP, np.full(3, 0.9e-8)))
    assert value(ratio_of("a", "b"), KEEP, np.full(3, 1.1e-8)) == pytest.approx(2 / 1.1e-8)
    assert math.isnan(value(mean_of("x"), np.empty(0)))


VECTORS = hnp.arrays(np.float64, (3, 8), elements=st.floats(0.5, 10))


@given(VECTORS)
def test_linearised_values_average_to_the_statistic(table: np.ndarray) -> None:
    forms = (mean_of("a"), ratio_of("a", "b"), ratio_of("a", "b", offset=1.0, scale=-1.0))
    for form in forms:
        used = table[: len(form.components)]
        assert form.linearised(used).mean() == pytest.approx(value(form, *used), rel=1e-9)


def test_linearised_values_of_a_mean_are_the_data() -> None:
    np.testing.assert_allclose(mean_of("x").linearised(KEEP[None]), KEEP, rtol=1e-15)


@given(VECTORS, st.floats(0.1, 10))
def test_a_ratio_ignores_a_common_scale(table: np.ndarray, scale: float) -> None:
    form = ratio_of("a", "b")
    assert value(form, *(scale * table[:2])) == pytest.approx(value(form, *table[:2]), rel=1e-9)


def test_sums_may_have_leading_axes() -> None:
    sums = np.stack([np.stack([KEEP, FULL], -1), np.stack([FULL, KEEP], -1)])
    assert ratio_of("keep", "full").of_sums(sums, 1).shape == (2, 3)


# ------------------------------------------------------------------------------------------- intervals


def test_default_interval_is_bca_and_fieller_where_the_denominator_is_unstable() -> None:
    rng = stream(0, "data")
    steady = rng.normal(2.0, 0.5, (2, 40))
    shaky = np.stack([rng.normal(0.5, 1.0, 40), rng.normal(0.3, 1.0, 40)])
    assert ratio_of("a", "b").interval(steady).method == "bca"
    assert ratio_of("a", "b").unstable(shaky)
    assert ratio_of("a", "b").interval(shaky).method == "fieller"
    assert mean_of("a").interval(shaky[:1]).method == "bca"


@pytest.mark.parametrize("method", ["bca", "percentile", "delta", "fieller"])
def test_a_negative_scale_mirrors_the_interval(method: str) -> None:
    data = stream(0, "data").normal(2.0, 0.5, (2, 40))
    kept = ratio_of("a", "b").interval(data, method=method)
    lost = ratio_of("a", "b", offset=1.0, scale=-1.0).interval(data, method=method)
    # Percentile and BCa interpolate between the same replicates seen from the other side.
    assert (lost.low, lost.high) == pytest.approx((1 - kept.high, 1 - kept.low), rel=1e-9)


def test_all_methods_agree_on_a_large_symmetric_sample() -> None:
    data = stream(0, "data").normal(2.0, 0.5, (2, 900))
    intervals = [
        ratio_of("a", "b").interval(data, method=method)
        for method in ("bca", "percentile", "delta", "fieller")
    ]
    for interval in intervals[1:]:
        # Quantiles of 2,000 replicates wander by some 5 % of the half-width.
        tolerance = 0.075 * (interval.high - interval.low)
        assert interval.low == pytest.approx(intervals[0].low, abs=tolerance)
        assert interval.high == pytest.approx(intervals[0].high, abs=tolerance)


def test_shares_have_an_exact_interval_and_nothing_else_has() -> None:
    hits = np.array([[1.0, 1.0, 0.0, 1.0]])
    assert mean_of("hit").interval(hits, method="clopper-pearson") == clopper_pearson(3, 4)
    with pytest.raises(InputError, match="values that are 0 or 1"):
        mean_of("x").interval(KEEP[None], method="clopper-pearson")


def test_unknown_interval_methods_list_near_matches() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'fieller'"):
        mean_of("x").interval(KEEP[None], method="fielder")


# ---------------------------------------------------------------------------------- functions of sums


def test_distance_area_weighs_the_absolute_gap_to_one() -> None:
    form = FunctionOfSums(
        function="distance-area",
        components=("empty", "full", "p", "q"),
        parameters={"weights": [0.5, 2.0], "smallest": 1e-12},
    )
    half, twice = EMPTY + (FULL - EMPTY) / 2, EMPTY + 2 * (FULL - EMPTY)
    assert value(form, EMPTY, FULL, half, twice) == pytest.approx(0.5 * 0.5 + 2.0 * 1.0)
    assert math.isnan(value(form, FULL, FULL, half, twice))


def test_jackknifed_values_of_a_mean_like_function_are_the_data() -> None:
    form = FunctionOfSums(
        function="distance-area",
        components=("empty", "full", "p"),
        parameters={"weights": [1.0], "smallest": 1e-12},
    )
    point = np.array([0.1, 0.4, 0.3])
    linear = form.linearised(np.stack([np.zeros(3), np.ones(3), point]))
    np.testing.assert_allclose(linear, 1 - point, atol=1e-12)
    assert form.interval(np.stack([np.zeros(3), np.ones(3), point]), method="delta").method == "delta"


@pytest.mark.parametrize(
    "form",
    [
        mean_of("x"),
        recovery_of("keep", smallest=1e-12),
        FunctionOfSums(
            function="distance-area",
            components=("empty", "full", "p"),
            parameters={"weights": [1.0], "smallest": 1e-12},
        ),
    ],
)
def test_statistics_survive_json(form: RatioOfSums | FunctionOfSums) -> None:
    assert statistic_from_dict(json.loads(json.dumps(form.to_dict()))) == form


def test_an_unknown_kind_of_statistic_is_refused() -> None:
    with pytest.raises(FileFormatError, match="newer version"):
        statistic_from_dict({"kind": "median"})
