"""Divergence and cross-entropy metrics, output variants and d'."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from array_runs import ArrayRuns, margin_runs
from scipy import stats as scipy_stats

from assay.core.errors import InputError
from assay.core.random import stream
from assay.metrics import measure_runs
from assay.metrics.behaviour import pairwise_wins
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


# ------------------------------------------------------------------------------------------- C21


def test_worked_output_variants() -> None:
    runs = probability_runs(
        full=[[0.8, 0.1, 0.1], [0.6, 0.2, 0.2]],
        keep=[[0.4, 0.1, 0.5], [0.6, 0.2, 0.2]],
        empty=[[0.1, 0.1, 0.8], [0.1, 0.1, 0.8]],
    )
    measured = measure_runs(runs, "output-variants")
    margin = (math.log(4) + math.log(3)) / (math.log(8) + math.log(3))
    probability = 1.0 / 1.4
    top1 = 0.5

    def kl(p: list[float], q: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    first, second = [0.8, 0.1, 0.1], [0.6, 0.2, 0.2]
    none = [0.1, 0.1, 0.8]
    recovered = 1 - kl(first, [0.4, 0.1, 0.5]) / (kl(first, none) + kl(second, none))
    values = [margin, probability, top1, recovered]
    expected = np.std(values) / np.mean(values)
    assert measured.value == pytest.approx(expected)
    for name, value in zip(("margin", "probability", "top-1", "kl"), values, strict=True):
        assert measured.parts[name].value == pytest.approx(value)
    log_ratio = (math.log(0.4) + math.log(0.6)) / (math.log(0.8) + math.log(0.6))
    assert measured.parts["log-probability"].value == pytest.approx(log_ratio)
    with_log = measure_runs(runs, "output-variants", include_logprob=True)
    assert with_log.value == pytest.approx(np.std([*values, log_ratio]) / np.mean([*values, log_ratio]))
    assert measured.interval().level == 0.95


def test_outputs_that_agree_have_no_spread() -> None:
    same = [[0.8, 0.1, 0.1], [0.6, 0.2, 0.2]]
    runs = probability_runs(full=same, keep=same, empty=[[0.2, 0.2, 0.6]] * 2)
    measured = measure_runs(runs, "output-variants")
    assert measured.value == pytest.approx(0.0, abs=1e-12)
    assert measured.passed


def test_an_undefined_output_is_left_out_and_named() -> None:
    wrong = [[0.2, 0.7, 0.1], [0.1, 0.8, 0.1]]  # the model is never right: no top-1 faithfulness
    runs = probability_runs(full=wrong, keep=wrong, empty=[[0.4, 0.4, 0.2]] * 2)
    measured = measure_runs(runs, "output-variants")
    assert measured.details["undefined"] == ["top-1"]
    assert measured.value == pytest.approx(0.0, abs=1e-12)
    assert "task_not_solved" in measured.warnings


# ------------------------------------------------------------------------------------------- EX1


@pytest.mark.parametrize("case", DETECTION["gaussian"], ids=range(3))
def test_auc_matches_golden_values(case: dict) -> None:
    above, below = pairwise_wins(np.array(case["signal"]), np.array(case["noise"]))
    assert above.mean() == pytest.approx(case["auroc"], rel=1e-9, abs=1e-12)
    assert below.mean() == pytest.approx(case["auroc"], rel=1e-9, abs=1e-12)


def test_ties_count_half_in_the_auc() -> None:
    above, below = pairwise_wins(np.array([1.0, 2.0]), np.array([1.0, 0.0, 3.0]))
    assert above.tolist() == pytest.approx([1.5 / 3, 2 / 3])
    assert below.tolist() == pytest.approx([1.5 / 2, 1.0, 0.0])


def test_worked_dprime() -> None:
    full, drop = [2.0, 1.0, 3.0, -1.0], [-1.0, 0.5, -2.0, -3.0]
    measured = measure_runs(margin_runs(full=full, drop=drop), "dprime")
    hit, false_alarm = 3.5 / 5, 1.5 / 5
    quantiles = scipy_stats.norm.ppf([hit, false_alarm])
    assert measured.value == pytest.approx(quantiles[0] - quantiles[1])
    assert measured.details["criterion"] == pytest.approx(-quantiles.mean(), abs=1e-12)
    assert measured.details["hit_rate"] == 0.75
    assert measured.details["false_alarm_rate"] == 0.25
    wins = scipy_stats.mannwhitneyu(full, drop).statistic / 16
    assert measured.parts["auc"].value == pytest.approx(wins)
    published = measure_runs(margin_runs(full=full, drop=drop), "dprime", correction="clip-half")
    assert published.value == pytest.approx(scipy_stats.norm.ppf(0.75) - scipy_stats.norm.ppf(0.25))


def test_a_model_that_rarely_answers_has_a_positive_criterion() -> None:
    measured = measure_runs(margin_runs(full=[1.0, -1.0, -1.0], drop=[-1.0, -1.0, -2.0]), "dprime")
    assert measured.details["criterion"] == pytest.approx(-scipy_stats.norm.ppf([1.5 / 4, 0.5 / 4]).mean())
    assert measured.details["criterion"] > 0


def test_dprime_passes_only_with_its_auc() -> None:
    rng = stream(0, "margins")
    full = list(np.abs(rng.normal(3.0, 1.0, 80)) + 0.1)
    clear = measure_runs(margin_runs(full=full, drop=[y - 8.0 for y in full]), "dprime")
    assert (clear.passed, clear.status) == (True, "pass")
    same = measure_runs(margin_runs(full=full, drop=full), "dprime")
    assert (same.passed, same.verdict.published) == (False, "fail")
    assert same.value == pytest.approx(0.0, abs=1e-12)
    # Margins just above zero fall just below it: a large d', while the margins hardly differ.
    tiny = list(rng.normal(0.0, 1e-3, 40) + 2e-3) + list(rng.normal(-5.0, 3.0, 40))
    shift = measure_runs(margin_runs(full=tiny, drop=[y - 1e-2 for y in tiny]), "dprime")
    assert shift.parts["auc"].value < 0.7
    assert shift.verdict.published == "fail"


def test_dprime_without_usable_examples_is_undefined() -> None:
    measured = measure_runs(margin_runs(full=[math.nan] * 3, drop=[1.0] * 3), "dprime")
    assert measured.reason == "no_valid_prompt"
    assert measured.status == "inconclusive"
    assert measured.passed is None
