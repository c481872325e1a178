"""Faithfulness, its corrected form and completeness: worked cases, golden values, degenerate data."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from array_runs import ArrayRuns, margin_runs, with_margins
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.core.errors import InputError
from assay.metrics import measure_runs
from assay.metrics.faithfulness import recovery_reading


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


# ------------------------------------------------------------------------------------------- values


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


def test_normalised_is_another_spelling_of_the_corrected_form() -> None:
    plain, option = (
        measure_runs(runs(), "faithfulness-norm"),
        measure_runs(runs(), "faithfulness", normalised=True),
    )
    assert (option.id, option.value) == (plain.id, plain.value)


def test_per_example_values_average_to_the_value_and_components_are_kept() -> None:
    for name in NAMES:
        measured = measure_runs(runs(), name)
        assert measured.per_example is not None
        assert measured.per_example.mean() == pytest.approx(measured.value, rel=1e-12)
        assert measured.per_example.shape == (3,)
    components = measure_runs(runs(), "faithfulness").components
    np.testing.assert_array_equal(components["keep"], KEEP)
    np.testing.assert_array_equal(components["full"], FULL)


def test_only_the_runs_that_are_needed_are_asked_for() -> None:
    for name, which in (("faithfulness", "full keep"), ("completeness", "full drop")):
        asked = runs()
        measure_runs(asked, name)
        assert set(asked.asked) == set(which.split())


def test_the_objective_decides_what_the_margin_is() -> None:
    logits = {"full": [[2.0, 0.0, 1.0], [3.0, 0.0, 0.5]], "keep": [[1.0, 0.0, 2.0], [3.0, 0.0, 0.5]]}
    common = {"answers": [[0], [0]], "wrong": [[1, 2], [1, 2]]}
    largest = measure_runs(ArrayRuns(objective="logit_diff_max", **common, **logits), "faithfulness")
    assert largest.value == pytest.approx((-1 + 2.5) / (1 + 2.5))
    mean = measure_runs(ArrayRuns(objective="logit_diff", **common, **logits), "faithfulness")
    assert mean.value == pytest.approx((0 + 2.75) / (1.5 + 2.75))


# ------------------------------------------------------------------------------------------- properties


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


@settings(max_examples=25)
@given(MARGINS, MARGINS, st.permutations(range(6)))
def test_the_order_of_examples_does_not_matter(full: np.ndarray, keep: np.ndarray, order: list[int]) -> None:
    one = measure_runs(margin_runs(full=list(full), keep=list(keep)), "faithfulness").value
    two = measure_runs(margin_runs(full=list(full[order]), keep=list(keep[order])), "faithfulness").value
    assert one == pytest.approx(two, rel=1e-12)


def test_a_circuit_that_keeps_more_margin_is_more_faithful() -> None:
    less, more = (margin_runs(full=FULL, keep=[share * y for y in FULL]) for share in (0.5, 0.9))
    assert measure_runs(less, "faithfulness").value < measure_runs(more, "faithfulness").value


def test_dropping_something_that_matters_more_is_more_complete() -> None:
    little, much = (margin_runs(full=FULL, drop=[share * y for y in FULL]) for share in (0.9, 0.1))
    assert measure_runs(little, "completeness").value < measure_runs(much, "completeness").value


# --------------------------------------------------------------------------------- verdicts, warnings


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


@pytest.mark.parametrize("full", [[-1.0, -2.0, 0.5], [9.0, -0.1, -0.1]], ids=["negative-sum", "few-right"])
def test_an_unsolved_task_is_flagged(full: list[float]) -> None:
    assert "task_not_solved" in measure_runs(margin_runs(full=full, keep=KEEP), "faithfulness").warnings


def test_a_solved_task_is_not_flagged() -> None:
    assert measure_runs(runs(), "faithfulness").warnings == ()


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


def test_up_to_five_percent_left_out_is_not_flagged() -> None:
    full = with_margins([1.0] * 20)
    full[3][2] = math.nan
    tasks = {"answers": [[0]] * 20, "wrong": [[1]] * 20}
    measured = measure_runs(ArrayRuns(**tasks, full=full, keep=with_margins([0.5] * 20)), "faithfulness")
    assert (measured.n_excluded, measured.warnings) == (1, ())


def test_no_usable_example_is_undefined() -> None:
    bad = [[math.nan] * 4] * 2
    broken = ArrayRuns(answers=[[0]] * 2, wrong=[[1]] * 2, full=bad, keep=bad, drop=bad, empty=bad)
    for name in NAMES:
        measured = measure_runs(broken, name)
        assert (measured.reason, measured.n, measured.n_excluded) == ("no_valid_prompt", 0, 2)


def test_a_divergence_objective_makes_the_corrected_form_one_minus_a_ratio() -> None:
    case = GOLDEN[0]
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


def test_unknown_aggregates_are_refused() -> None:
    with pytest.raises(InputError, match="unknown aggregate"):
        measure_runs(runs(), "faithfulness", aggregate="median")
