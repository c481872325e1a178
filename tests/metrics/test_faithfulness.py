"""Faithfulness, completeness, minimality: worked cases, golden values, degenerate data."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from array_runs import GRAPH, ArrayRuns, margin_runs, with_margins

from assay.circuits import Circuit
from assay.metrics import measure_runs
from assay.metrics.faithfulness import minimality_class, recovery_reading


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
    tiny = margin_runs(full=[2.0, 1e-6, 4.0], keep=[1.0, 5.0, 3.0])  # the second margin enters no ratio
    measured = measure_runs(tiny, "faithfulness", aggregate="mean_of_ratios")
    assert measured.value == pytest.approx((0.5 + 0.75) / 2)
    assert measured.details["n_small_margin"] == 1


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_golden_values(case: dict) -> None:
    measured = golden_runs(case)
    for name, key, options in (
        ("faithfulness_ratio_of_sums", "faithfulness", {}),
        ("faithfulness_mean_of_ratios", "faithfulness", {"aggregate": "mean_of_ratios"}),
        ("faithfulness_baseline_corrected", "faithfulness-norm", {}),
    ):
        assert measure_runs(measured, key, **options).value == pytest.approx(case[name], rel=1e-9)
    measured.objective = "kl"  # the corrected form is then one minus a ratio, the plain one undefined
    corrected = measure_runs(measured, "faithfulness-norm").value
    assert corrected == pytest.approx(case["kl_faithfulness"], rel=1e-9)
    plain = measure_runs(measured, "faithfulness")
    assert (plain.reason, plain.warnings) == ("zero_denominator", ())


def test_the_objective_decides_what_the_margin_is() -> None:
    logits = {"full": [[2.0, 0.0, 1.0], [3.0, 0.0, 0.5]], "keep": [[1.0, 0.0, 2.0], [3.0, 0.0, 0.5]]}
    common = {"answers": [[0], [0]], "wrong": [[1, 2], [1, 2]]}
    largest = measure_runs(ArrayRuns(objective="logit_diff_max", **common, **logits), "faithfulness")
    assert largest.value == pytest.approx((-1 + 2.5) / (1 + 2.5))
    mean = measure_runs(ArrayRuns(objective="logit_diff", **common, **logits), "faithfulness")
    assert mean.value == pytest.approx((0 + 2.75) / (1.5 + 2.75))


def test_readings() -> None:
    for value, expected in (
        (1.2, "opposing_components_left_out"),
        (1.07, None),
        (1.0, "whole_margin_explained"),
        (0.8, "main_mechanism"),
        (0.6, None),
        (0.2, "primary_path_missing"),
    ):
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
    assert np.isnan(measured.per_example).tolist() == [False, True, False]
    assert np.isnan(measured.components["full"]).tolist() == [False, True, False]


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
    assert (measured.details["essential"], measured.details["share_essential"]) == (["a0.h1"], 0.5)
    assert (measured.details["class"], measured.status) == ("quasi_minimal", "none")
    # The error is that of the influence.
    influence = (np.array(KEPT) - np.array([0.5, 1.0]) - 0.5 * np.array(PAIR)) / 3.0
    assert heads["a0.h1"]["standard_error"] == pytest.approx(influence.std(ddof=1) / math.sqrt(2))


def test_classes() -> None:
    for faithfulness, without, expected in (
        (0.4, [0.9, 0.9], "not_faithful"),
        (math.nan, [0.9], "not_faithful"),
        (0.5, [0.5, 0.6], "not_minimal"),
        (0.9, [0.4, 0.6], "quasi_minimal"),
        (0.9, [0.4, 0.49], "locally_minimal"),
    ):
        assert minimality_class(faithfulness, np.array(without), 0.5) == expected


def test_heads_of_an_edge_circuit_are_those_on_a_path_to_the_output() -> None:
    edges = ["input->a0.h0.v", "a0.h0->logits", "input->a1.h1.v"]  # a1.h1 leads nowhere
    circuit = Circuit.from_edges(GRAPH, edges)
    measured = measure_runs(head_circuit_runs([0.0, 0.0], circuit=circuit), "minimality")
    assert (list(measured.details["heads"]), measured.value) == (["a0.h0"], pytest.approx(0.75))
    nothing = head_circuit_runs(circuit=Circuit.from_edges(GRAPH, ["input->logits"]))
    measured = measure_runs(nothing, "minimality")  # without heads there is nothing to remove
    assert (measured.reason, measured.n, math.isnan(measured.value)) == ("no_heads", 2, True)


def test_an_example_that_breaks_in_one_removal_is_left_out_of_all() -> None:
    measured = measure_runs(head_circuit_runs([0.5, math.nan], [1.5, 2.85]), "minimality")
    assert (measured.n, measured.n_excluded) == (1, 1)
    assert measured.details["heads"]["a1.h0"]["importance"] == pytest.approx(0.0)
    assert math.isnan(measured.details["heads"]["a0.h1"]["standard_error"])
