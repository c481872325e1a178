"""Divergence and cross-entropy metrics, output variants and d'."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from array_runs import ArrayRuns

from assay.core.errors import InputError
from assay.metrics import measure_runs
from assay.metrics.cross_entropy import drop_reading
from assay.metrics.divergence import kl_reading


GOLDEN_DIRECTORY = Path(__file__).parent.parent / "golden"
GOLDEN = json.loads((GOLDEN_DIRECTORY / "output_distributions.json").read_text())
DETECTION = json.loads((GOLDEN_DIRECTORY / "signal_detection.json").read_text())


def golden_runs(case: dict) -> ArrayRuns:
    return ArrayRuns(
        full=case["full_logits"],
        keep=case["circuit_logits"],
        drop=case["circuit_logits"],
        empty=case["all_ablated_logits"],
        answers=[[token] for token in case["correct"]],
        wrong=[[token] for token in case["incorrect"]],
    )


def probability_runs(**runs: list[list[float]]) -> ArrayRuns:
    """Runs with given output probabilities; answer 0, wrong answer 1."""
    n = len(next(iter(runs.values())))
    logits = {which: np.log(rows) for which, rows in runs.items()}
    return ArrayRuns(answers=[[0]] * n, wrong=[[1]] * n, **logits)


# ------------------------------------------------------------------------------------------- D01, D03


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_golden_divergences(case: dict) -> None:
    measured = measure_runs(golden_runs(case), "kl")
    assert measured.value == pytest.approx(case["mean_kl"], rel=1e-9, abs=1e-12)
    assert measured.parts["reverse-kl"].value == pytest.approx(np.mean(case["kl_circuit_full"]), abs=1e-12)
    assert measured.parts["js"].value == pytest.approx(np.mean(case["js"]), abs=1e-12)
    assert measured.parts["tv"].value == pytest.approx(np.mean(case["tv"]), abs=1e-12)
    assert measured.details["median"] == pytest.approx(np.median(case["kl_full_circuit"]), abs=1e-12)
    assert measured.details["p95"] == pytest.approx(np.percentile(case["kl_full_circuit"], 95), abs=1e-12)
    assert measure_runs(golden_runs(case), "output-divergence").value == measured.value
    faithfulness = measure_runs(golden_runs(case), "kl-faithfulness")
    assert faithfulness.value == pytest.approx(case["kl_faithfulness"], rel=1e-9)
    np.testing.assert_allclose(measured.per_example, case["kl_full_circuit"], rtol=1e-9, atol=1e-12)


def test_output_divergence_can_be_another_one() -> None:
    measured = measure_runs(golden_runs(GOLDEN[0]), "output-divergence", divergence="tv")
    assert measured.value == pytest.approx(np.mean(GOLDEN[0]["tv"]))
    assert measured.unit == "fraction"
    with pytest.raises(InputError, match="unknown divergence 'l2'"):
        measure_runs(golden_runs(GOLDEN[0]), "output-divergence", divergence="l2")


def test_restriction_renormalises_on_the_answers() -> None:
    runs = probability_runs(full=[[0.4, 0.4, 0.2]], keep=[[0.6, 0.2, 0.2]])
    measured = measure_runs(runs, "kl", restricted_to="answers")
    assert measured.id == "D03.kl_restricted"
    assert measured.value == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))
    assert measure_runs(runs, "kl", restricted_to=[0, 1]).value == pytest.approx(measured.value)
    assert measure_runs(runs, "kl", restricted_to=[0, 1, 2]).value == pytest.approx(
        measure_runs(runs, "kl").value
    )


@pytest.mark.parametrize("ids", [[], [-1], [0, 3]])
def test_restriction_to_impossible_outputs_is_refused(ids: list[int]) -> None:
    runs = probability_runs(full=[[0.4, 0.4, 0.2]], keep=[[0.6, 0.2, 0.2]])
    with pytest.raises(InputError, match="restricted_to"):
        measure_runs(runs, "kl", restricted_to=ids)


def test_a_dropped_mode_is_told_from_an_invented_one() -> None:
    dropped = probability_runs(full=[[0.5, 0.5]] * 3, keep=[[1 - 1e-12, 1e-12]] * 3)
    assert measure_runs(dropped, "kl").details["drops_modes"]
    invented = probability_runs(full=[[0.9, 0.1]] * 3, keep=[[0.4, 0.6]] * 3)
    assert not measure_runs(invented, "kl").details["drops_modes"]


@pytest.mark.parametrize(
    ("nats", "expected"),
    [(0.005, "near_perfect"), (0.05, "good"), (0.5, "components_missing"), (2.0, "another_prediction")],
)
def test_readings_of_kl(nats: float, expected: str) -> None:
    assert kl_reading(nats) == expected


def test_small_divergence_passes_and_large_fails() -> None:
    good = probability_runs(full=[[0.5, 0.5]] * 10, keep=[[0.52, 0.48]] * 10)
    assert measure_runs(good, "kl").passed
    assert measure_runs(good, "output-divergence").status == "pass"
    bad = probability_runs(full=[[0.5, 0.5]] * 9, keep=[[0.99, 0.01]] * 9)
    assert measure_runs(bad, "kl").verdict.published == "fail"


def test_kl_faithfulness_against_an_empty_circuit_that_is_already_perfect_is_undefined() -> None:
    runs = probability_runs(full=[[0.5, 0.5]], keep=[[0.6, 0.4]], empty=[[0.5, 0.5]])
    assert measure_runs(runs, "kl-faithfulness").reason == "zero_denominator"


# ------------------------------------------------------------------------------------------- D04


def entropy_runs() -> ArrayRuns:
    return probability_runs(
        full=[[0.8, 0.2], [0.4, 0.6]], keep=[[0.4, 0.6], [0.2, 0.8]], drop=[[0.1, 0.9], [0.1, 0.9]]
    )


def test_worked_cross_entropy_deltas() -> None:
    measured = measure_runs(entropy_runs(), "ce-delta")
    drop = (math.log(8) + math.log(4)) / 2
    assert measured.value == pytest.approx(drop)
    assert measured.parts["keep"].value == pytest.approx(math.log(2))
    assert measured.parts["ratio"].value == pytest.approx(drop / math.log(2))
    assert measure_runs(entropy_runs(), "ce-ratio").value == pytest.approx(drop / math.log(2))
    assert measured.details["reading"] == "significant"
    np.testing.assert_allclose(measured.per_example, np.log([8, 4]))


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_golden_cross_entropy_delta(case: dict) -> None:
    measured = measure_runs(golden_runs(case), "ce-delta")
    expected = case["mean_ce_delta_circuit_minus_full"]
    assert measured.parts["keep"].value == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_cross_entropy_uses_the_mass_on_all_valid_answers() -> None:
    rows = {"full": [[0.3, 0.3, 0.4]], "keep": [[0.2, 0.2, 0.6]], "drop": [[0.05, 0.05, 0.9]]}
    logits = {which: np.log(values) for which, values in rows.items()}
    measured = measure_runs(ArrayRuns(answers=[[0, 1]], wrong=[[2]], **logits), "ce-delta")
    assert measured.value == pytest.approx(math.log(0.6 / 0.1))


def test_a_circuit_that_costs_nothing_to_keep_has_no_ratio() -> None:
    same = [[0.8, 0.2], [0.4, 0.6]]
    measured = measure_runs(probability_runs(full=same, keep=same, drop=[[0.1, 0.9]] * 2), "ce-delta")
    assert measured.parts["ratio"].reason == "zero_denominator"
    assert measured.value > 0


@pytest.mark.parametrize(
    ("nats", "expected"), [(3.0, "critical"), (1.0, "significant"), (0.3, "minor"), (0.05, "not_necessary")]
)
def test_readings_of_dropping(nats: float, expected: str) -> None:
    assert drop_reading(nats) == expected
