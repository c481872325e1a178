"""The contract of gates: names, streams, paired deletion, verdicts without data."""

import numpy as np
import pytest

from assay.analyses.calibration import gate as gates
from assay.analyses.calibration.gate import GATES, gate_stream, undefined
from assay.analyses.calibration.samples import sample
from assay.core.errors import ShapeError, UnknownNameError


def test_a_prompt_that_is_not_finite_in_one_run_is_dropped_from_all() -> None:
    left = np.array([1.0, np.nan, 3.0, 4.0])
    right = np.array([[1.0, 2.0], [3.0, 4.0], [np.inf, 1.0], [5.0, 6.0]])
    found = sample(y_full=left, y_keep=right)
    np.testing.assert_array_equal(found.vectors[0], [1, 4])
    np.testing.assert_array_equal(found.vectors[1], [[1, 2], [5, 6]])
    assert (found.n, found.n_dropped) == (2, 2)


def test_arrays_of_other_lengths_are_named() -> None:
    with pytest.raises(ShapeError, match=r"y_full \(3,\), y_keep \(2,\)"):
        sample(y_full=np.zeros(3), y_keep=np.zeros(2))


def test_streams_depend_on_gate_task_and_seed_alone() -> None:
    first = gate_stream("C11", "ioi").integers(0, 100, 5)
    np.testing.assert_array_equal(first, gate_stream("C11", "ioi").integers(0, 100, 5))
    for other in (gate_stream("C13", "ioi"), gate_stream("C11", "sva"), gate_stream("C11", "ioi", seed=1)):
        assert (first != other.integers(0, 100, 5)).any()


def test_what_the_data_do_not_determine_is_neither_pass_nor_fail() -> None:
    verdict = undefined("too_few", values={"sigma": None})
    assert (verdict.status, verdict.published, verdict.reason) == ("inconclusive", "inconclusive", "too_few")
    assert verdict.to_dict()["values"] == {"sigma": None}


def test_unknown_gates_and_counts_out_of_range_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown gate"):
        gates.find_gate("C99")


def test_criteria_are_those_of_the_frameworks_table() -> None:
    """Its page on calibrations, the column Criterion of the reference table."""
    assert {each.code: each.criterion for each in GATES.values()} == {
        **dict.fromkeys(("C11", "C16", "C30", "F59"), "M1 Reliability"),
        **dict.fromkeys(("C12", "C23", "C36"), "C5 Convergent validity"),
        "C13": "M2 Invariance",
        "C14": "M4 Sensitivity",
        "C17": "M3 Baseline separation",
        "S1": "S1 Distributional Characterization",
        "S3": "S3 Distributional Stability",
        "M93": "M5 Statistical Rigor",
        "M98": "Method Robustness",
        "E1b": "E1b Method Invariance",
        "M3b": "Head-level stability",
    }
