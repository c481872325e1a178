"""A threshold between domains."""

import pytest

from assay.analyses.generalization.alarms import calibrate_threshold
from assay.core.errors import UnknownNameError


SHIFTS = {"mild": 0.1, "fog": 0.4, "snow": 0.2, "frost": 0.8}
ACCURACY = {"mild": 0.9, "fog": 0.8, "snow": 0.7, "frost": 0.5}


def test_isotonic_by_hand() -> None:
    # From 0.5 to 0.9 the shifts are 0.8, 0.2, 0.4, 0.1: the middle two break the order and become 0.3.
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


def test_other_methods_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="method of a threshold"):
        calibrate_threshold(SHIFTS, ACCURACY, 0.6, method="linear")
