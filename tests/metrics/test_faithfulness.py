"""Faithfulness, completeness, minimality: worked cases, golden values, degenerate data."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from array_runs import GRAPH, ArrayRuns, margin_runs, with_margins
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.circuits import Circuit
from assay.metrics import measure_runs
from assay.metrics.faithfulness import minimality_class, recovery_reading


# --------------------------------------------------------------------------------------- of the margin


GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "output_distributions.json").read_text())


FULL, KEEP, DROP, EMPTY = [2.0, 2.0, 4.0], [1.0, 2.0, 3.0], [1.0, 0.5, 0.5], [0.0, 1.0, 1.0]


NAMES = ("faithfulness", "faithfulness-norm", "completeness")


def runs() -> ArrayRuns:
    return margin_runs(full=FULL, keep=KEEP, drop=DROP, empty=EMPTY)


def golden_runs(case: dict) -> ArrayRuns:
    return ArrayRuns(
        full=case["full_logits"],
        keep=case["circuit_logits"],
        empty=case["all_ablated_logits"],
        answers=[[token] for token in case["correct"]],
        wrong=[[token] for token in case["incorrect"]],
    )


def test_worked_values() -> None:
    assert measure_runs(runs(), "faithfulness").value == pytest.approx(6 / 8)
    assert measure_runs(runs(), "faithfulness-norm").value == pytest.approx((6 - 2) / (8 - 2))
    assert measure_runs(runs(), "completeness").value == pytest.approx(1 - 2 / 8)
    ratios = measure_runs(runs(), "faithfulness", aggregate="mean_of_ratios")
    assert ratios.value == pytest.approx((0.5 + 1.0 + 0.75) / 3)
    np.testing.assert_allclose(ratios.per_example, [0.5, 1.0, 0.75])


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_golden_values(case: dict) -> None:
    measured = golden_runs(case)
    values = [
        measure_runs(measured, "faithfulness").value,
        measure_runs(measured, "faithfulness", aggregate="mean_of_ratios").value,
        measure_runs(measured, "faithfulness-norm").value,
    ]
    names = ("ratio_of_sums", "mean_of_ratios", "baseline_corrected")
    expected = [case[f"faithfulness_{name}"] for name in names]
    assert values == pytest.approx(expected, rel=1e-9)


def test_the_objective_decides_what_the_margin_is() -> None:
    logits = {"full": [[2.0, 0.0, 1.0], [3.0, 0.0, 0.5]], "keep": [[1.0, 0.0, 2.0], [3.0, 0.0, 0.5]]}
    common = {"answers": [[0], [0]], "wrong": [[1, 2], [1, 2]]}
    largest = measure_runs(ArrayRuns(objective="logit_diff_max", **common, **logits), "faithfulness")
    assert largest.value == pytest.approx((-1 + 2.5) / (1 + 2.5))
    mean = measure_runs(ArrayRuns(objective="logit_diff", **common, **logits), "faithfulness")
    assert mean.value == pytest.approx((0 + 2.75) / (1.5 + 2.75))


MARGINS = hnp.arrays(np.float64, 6, elements=st.floats(0.1, 5))


@settings(max_examples=25)
@given(MARGINS)
def test_the_whole_model_recovers_everything_and_the_empty_circuit_nothing(
    margins: np.ndarray,
) -> None:
    full, none = list(margins), list(margins / 4)
    whole = margin_runs(full=full, keep=full, drop=none, empty=none)
    assert measure_runs(whole, "faithfulness").value == pytest.approx(1.0, rel=1e-12)
    assert measure_runs(whole, "faithfulness-norm").value == pytest.approx(1.0, rel=1e-12)
    nothing = margin_runs(full=full, keep=none, drop=full, empty=none)
    assert measure_runs(nothing, "faithfulness-norm").value == pytest.approx(0.0, abs=1e-12)
    assert measure_runs(nothing, "faithfulness").value == pytest.approx(0.25, rel=1e-9)
    assert measure_runs(nothing, "completeness").value == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.2, "opposing_components_left_out"),
        (1.07, None),
        (1.0, "whole_margin_explained"),
        (0.8, "main_mechanism"),
        (0.6, None),
        (0.2, "primary_path_missing"),
    ],
)
def test_readings(value: float, expected: str | None) -> None:
    assert recovery_reading(value) == expected


def test_verdict_of_a_faithful_and_an_unfaithful_circuit() -> None:
    margins = np.linspace(1.0, 3.0, 40)
    noise = 0.05 * np.sin(np.arange(40))
    good = measure_runs(margin_runs(full=list(margins), keep=list(0.95 * margins + noise)), "faithfulness")
    assert (good.passed, good.status, good.details["reading"]) == (True, "pass", "whole_margin_explained")
    bad = measure_runs(margin_runs(full=list(margins), keep=list(0.3 * margins + noise)), "faithfulness")
    assert (bad.passed, bad.status, bad.details["reading"]) == (False, "fail", "primary_path_missing")
    assert good.direction == "target"


def test_a_vanishing_margin_is_undefined_not_zero() -> None:
    for name in NAMES:
        flat = margin_runs(full=[1.0, -1.0], keep=[1.0, 1.0], drop=[0.5, 1.0], empty=[1.0, -1.0])
        measured = measure_runs(flat, name)
        assert math.isnan(measured.value)
        assert measured.reason == "zero_denominator"
        assert (measured.passed, measured.status) == (None, "inconclusive")
        assert measured.per_example is None
        assert measured.to_dict()["value"] is None


def test_an_unstable_denominator_is_flagged_and_changes_the_interval() -> None:
    full = [3.0, -2.0, 4.0, -1.0, 2.0, -1.0, 3.0]
    measured = measure_runs(margin_runs(full=full, keep=[y / 2 for y in full]), "faithfulness")
    assert "unstable_denominator" in measured.warnings
    assert measured.interval().method == "fieller"


def test_examples_with_non_finite_logits_are_left_out_and_counted() -> None:
    full, keep = with_margins(FULL), with_margins(KEEP)
    keep[1][3] = math.inf
    broken = ArrayRuns(answers=[[0]] * 3, wrong=[[1]] * 3, full=full, keep=keep)
    measured = measure_runs(broken, "faithfulness")
    assert measured.value == pytest.approx((1 + 3) / (2 + 4))
    assert (measured.n, measured.n_excluded) == (2, 1)
    assert "many_excluded" in measured.warnings
    assert measured.per_example is not None
    assert np.isnan(measured.per_example).tolist() == [False, True, False]
    assert np.isnan(measured.components["full"]).tolist() == [False, True, False]


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_a_divergence_objective_makes_the_corrected_form_one_minus_a_ratio(case: dict) -> None:
    measured = golden_runs(case)
    measured.objective = "kl"
    assert measure_runs(measured, "faithfulness-norm").value == pytest.approx(
        case["kl_faithfulness"], rel=1e-9
    )
    plain = measure_runs(measured, "faithfulness")
    assert plain.reason == "zero_denominator"
    assert plain.warnings == ()


def test_tiny_margins_do_not_enter_a_mean_of_ratios() -> None:
    measured = measure_runs(
        margin_runs(full=[2.0, 1e-6, 4.0], keep=[1.0, 5.0, 3.0]), "faithfulness", aggregate="mean_of_ratios"
    )
    assert measured.value == pytest.approx((0.5 + 0.75) / 2)
    assert measured.details["n_small_margin"] == 1


# ---------------------------------------------------------------------------------------- of each head


HEADS = Circuit.from_heads(GRAPH, [(0, 1), (1, 0)])


PAIR, KEPT = [2.0, 4.0], [1.5, 3.0]  # F = 0.75


def head_circuit_runs(*without: list[float], circuit: Circuit = HEADS, keep: list[float] = KEPT) -> ArrayRuns:
    others = {
        circuit.without_head(*head).hash: with_margins(margins)
        for head, margins in zip(circuit.kept_heads(), without, strict=True)
    }
    answers = {"answers": [[0]] * len(PAIR), "wrong": [[1]] * len(PAIR)}
    return ArrayRuns(
        circuit=circuit, others=others, full=with_margins(PAIR), keep=with_margins(keep), **answers
    )


def test_worked_importances() -> None:
    measured = measure_runs(head_circuit_runs([0.5, 1.0], [1.5, 2.85]), "minimality")
    # F without the first head 1.5 / 6 = 0.25, without the second 4.35 / 6 = 0.725.
    heads = measured.details["heads"]
    assert heads["a0.h1"]["importance"] == pytest.approx(0.75 - 0.25)
    assert heads["a1.h0"]["importance"] == pytest.approx(0.75 - 0.725)
    assert measured.value == pytest.approx((0.5 + 0.025) / 2)
    assert measured.details["essential"] == ["a0.h1"]
    assert measured.details["share_essential"] == 0.5
    assert measured.details["class"] == "quasi_minimal"
    assert measured.status == "none"


def test_the_error_of_an_importance_is_that_of_its_influence() -> None:
    measured = measure_runs(head_circuit_runs([0.5, 1.0], [1.5, 2.85]), "minimality")
    lost = np.array(KEPT) - np.array([0.5, 1.0])
    influence = (lost - 0.5 * np.array(PAIR)) / 3.0
    expected = influence.std(ddof=1) / math.sqrt(2)
    assert measured.details["heads"]["a0.h1"]["standard_error"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("faithfulness", "without", "expected"),
    [
        (0.4, [0.9, 0.9], "not_faithful"),
        (math.nan, [0.9], "not_faithful"),
        (0.5, [0.5, 0.6], "not_minimal"),
        (0.9, [0.4, 0.6], "quasi_minimal"),
        (0.9, [0.4, 0.49], "locally_minimal"),
    ],
)
def test_classes(faithfulness: float, without: list[float], expected: str) -> None:
    assert minimality_class(faithfulness, np.array(without), 0.5) == expected


def test_heads_of_an_edge_circuit_are_those_on_a_path_to_the_output() -> None:
    edges = ["input->a0.h0.v", "a0.h0->logits", "input->a1.h1.v"]  # a1.h1 leads nowhere
    circuit = Circuit.from_edges(GRAPH, edges)
    measured = measure_runs(head_circuit_runs([0.0, 0.0], circuit=circuit), "minimality")
    assert list(measured.details["heads"]) == ["a0.h0"]
    assert measured.value == pytest.approx(0.75)


def test_without_heads_there_is_nothing_to_remove() -> None:
    circuit = Circuit.from_edges(GRAPH, ["input->logits"])
    measured = measure_runs(head_circuit_runs(circuit=circuit), "minimality")
    assert math.isnan(measured.value)
    assert measured.reason == "no_heads"
    assert measured.n == 2


def test_an_example_that_breaks_in_one_removal_is_left_out_of_all() -> None:
    measured = measure_runs(head_circuit_runs([0.5, math.nan], [1.5, 2.85]), "minimality")
    assert (measured.n, measured.n_excluded) == (1, 1)
    assert measured.details["heads"]["a1.h0"]["importance"] == pytest.approx(0.0)
    assert math.isnan(measured.details["heads"]["a0.h1"]["standard_error"])
