"""A threshold between domains, with its interval, and the smallest drop that a batch detects."""

import math

import numpy as np
import pytest

from assay.analyses.generalization.alarms import Calibration
from assay.analyses.generalization.detectable_drop import detectable_drops
from assay.analyses.generalization.domain_shifts import DomainCalibration, DomainShift
from assay.analyses.generalization.thresholds import calibrate_threshold, monotone, threshold_of
from assay.core.errors import InputError, UnknownNameError


SHIFTS = {"mild": 0.1, "fog": 0.4, "snow": 0.2, "frost": 0.8}
ACCURACY = {"mild": 0.9, "fog": 0.8, "snow": 0.7, "frost": 0.5}


def test_isotonic_by_hand() -> None:
    # From 0.5 to 0.9 the shifts are 0.8, 0.2, 0.4, 0.1: the middle two break the order and become 0.3.
    places, fit = monotone(np.array(list(ACCURACY.values())), np.array(list(SHIFTS.values())), falls=True)
    assert places.tolist() == [0.5, 0.7, 0.8, 0.9]
    assert fit == pytest.approx([0.8, 0.3, 0.3, 0.1])
    found = calibrate_threshold(SHIFTS, ACCURACY, 0.6)
    assert found.value == pytest.approx(0.55)  # half way between 0.8 and 0.3
    assert (found.performance, found.method) == (0.6, "isotonic")
    assert calibrate_threshold(SHIFTS, ACCURACY, 0.85).value == pytest.approx(0.2)
    assert calibrate_threshold(SHIFTS, ACCURACY, 0.6, method="nearest").value in (0.2, 0.8)


def test_beyond_the_domains_the_nearest_performance_is_named() -> None:
    low, high = calibrate_threshold(SHIFTS, ACCURACY, 0.2), calibrate_threshold(SHIFTS, ACCURACY, 0.99)
    assert (low.value, low.performance) == (0.8, 0.5)
    assert (high.value, high.performance) == (0.1, 0.9)


def test_confidence_rises_with_performance() -> None:
    found = calibrate_threshold({"a": 0.9, "b": 0.5}, {"a": 0.8, "b": 0.4}, 0.6, higher_is_shift=False)
    assert found.value == pytest.approx(0.7)


def test_the_interval_holds_the_truth_and_shrinks_with_domains() -> None:
    rng = np.random.default_rng(0)
    widths, held = {}, 0
    for n in (12, 48):
        widths[n] = []
        for _ in range(25):
            accuracy = rng.uniform(0.3, 0.95, n)
            shift = 1 - accuracy + 0.05 * rng.standard_normal(n)
            found = calibrate_threshold(
                {str(i): shift[i] for i in range(n)}, {str(i): accuracy[i] for i in range(n)}, 0.7
            )
            assert found.interval is not None
            widths[n].append(found.interval.high - found.interval.low)
            held += n == 48 and found.interval.low <= 0.3 <= found.interval.high
    assert np.mean(widths[48]) < np.mean(widths[12])
    assert held >= 21


def test_draws_of_performance_widen_the_interval() -> None:
    sure = calibrate_threshold(SHIFTS, ACCURACY, 0.6).interval
    rng = np.random.default_rng(0)
    draws = {name: tuple(ACCURACY[name] + 0.2 * rng.standard_normal(100)) for name in ACCURACY}
    unsure = calibrate_threshold(SHIFTS, ACCURACY, 0.6, performance_draws=draws).interval
    assert sure is not None
    assert unsure is not None
    assert unsure != sure
    with pytest.raises(InputError, match=r"\[3, 100\] draws of performance; give as many for each"):
        calibrate_threshold(SHIFTS, ACCURACY, 0.6, performance_draws={**draws, "fog": (0.1, 0.2, 0.3)})


def test_other_methods_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="method of a threshold"):
        calibrate_threshold(SHIFTS, ACCURACY, 0.6, method="linear")


def domains(n: int = 8, clean: float = 1.0) -> DomainCalibration:
    known = tuple(
        DomainShift(domain=str(drop), n=n, performance=1 - drop, shifts={"spearman": 0.1 + drop})
        for drop in (0.0, 0.1, 0.2, 0.4)
    )
    return DomainCalibration(known=known, clean=clean)


def test_a_drop_out_of_reach_is_said() -> None:
    batches = Calibration(shifts=tuple(np.linspace(0.4, 0.6, 19)), n=8)
    found = detectable_drops(domains(), batches)
    assert all(math.isnan(each.drop) for each in found)
    assert "No corrupted domain shifts far enough" in found[0].statement


def test_larger_power_needs_a_larger_drop() -> None:
    batches = Calibration(shifts=tuple(np.linspace(0.0, 0.2, 19)), n=8)
    half, most = detectable_drops(domains(), batches)
    # The limit is the largest known shift, 0.2; the 20 % quantile lies 0.06 * 10 / 9 below the median.
    assert half.drop == pytest.approx(0.1)
    assert most.drop == pytest.approx(0.1 + 0.3 * 0.2)
    assert half.interval.low <= half.drop
    assert "detects a drop of 10.0 points of accuracy" in half.statement


def test_under_the_threshold_rule_the_threshold_is_what_must_be_exceeded() -> None:
    # m(x) = 0.1 + x up to 0.4. Power 50 %: m = 0.3, a drop of 0.2. Known batches 0, 0.02 .. 0.2: median 0.1,
    # 20 % quantile 0.04, so power 80 % needs m = 0.36. Two of eleven exceed 0.17; the conformal limit is 0.2.
    batches = Calibration(shifts=tuple(np.linspace(0.0, 0.2, 11)), n=8)
    half, most = detectable_drops(domains(), batches, threshold=threshold_of(0.3, needed=True), alpha=0.1)
    assert (half.drop, most.drop) == (pytest.approx(0.2), pytest.approx(0.26))
    assert (half.rule, half.limit, half.rate) == ("threshold", 0.3, 0.0)
    assert "by the threshold rule (0 of 11 known batches lie above it)" in half.statement
    low, _ = detectable_drops(domains(), batches, threshold=threshold_of(0.17, needed=True))
    assert "(2 of 11 known batches lie above it)" in low.statement
    assert (low.drop, low.rate) == (pytest.approx(0.07), pytest.approx(2 / 11))
    conformal, _ = detectable_drops(domains(), batches, alpha=0.1)
    assert (conformal.rule, conformal.limit, conformal.drop) == ("conformal", 0.2, pytest.approx(0.1))
    with pytest.raises(InputError, match="3 known batches do not show how batches scatter; measure 4 or"):
        detectable_drops(
            domains(), Calibration(shifts=(0.1,) * 3, n=8), threshold=threshold_of(0.3, needed=True)
        )


def test_sizes_must_agree_and_clean_performance_be_known() -> None:
    batches = Calibration(shifts=(0.1,) * 19, n=9)
    with pytest.raises(InputError, match=r"measured on \[8\] images, known batches hold 9"):
        detectable_drops(domains(), batches)
    with pytest.raises(InputError, match="clean images is unknown"):
        detectable_drops(domains(clean=math.nan), batches)
