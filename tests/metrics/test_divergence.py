"""Divergences and cross-entropies: worked cases, inequalities, golden values, input that fits neither."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from array_runs import ArrayRuns
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.core.errors import InputError, ShapeError, UnknownNameError
from assay.core.random import stream
from assay.metrics import divergence as outputs
from assay.metrics import measure_runs
from assay.metrics.divergence import (
    answer_is_top,
    answer_log_probability,
    divergences,
    drop_reading,
    kl_reading,
)


GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "output_distributions.json").read_text())
LOGITS = st.tuples(*[hnp.arrays(np.float64, (3, 5), elements=st.floats(-30, 30))] * 2)


def test_worked_divergence() -> None:
    # p = (1/2, 1/2), q = (3/4, 1/4).
    p, q = np.zeros((1, 2)), np.log([[3.0, 1.0]])
    found = divergences(p, q, kinds=outputs.DIVERGENCES)
    assert found["kl"][0] == pytest.approx(0.5 * math.log(2 / 3) + 0.5 * math.log(2))
    assert found["reverse-kl"][0] == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert found["tv"][0] == pytest.approx(0.25)
    m = np.array([5 / 8, 3 / 8])
    js = (0.5 * np.log(0.5 / m)).sum() + (np.array([0.75, 0.25]) * np.log(np.array([0.75, 0.25]) / m)).sum()
    assert found["js"][0] == pytest.approx(js / 2)


@given(LOGITS)
def test_divergences_stay_in_their_ranges(pair: tuple[np.ndarray, np.ndarray]) -> None:
    found = divergences(*pair, kinds=outputs.DIVERGENCES)
    kl, reverse, js, tv = (found[kind] for kind in ("kl", "reverse-kl", "js", "tv"))
    assert ((tv >= 0) & (tv <= 1 + 1e-12)).all()
    for each in (kl, reverse):
        assert (2 * tv**2 <= each + 1e-9).all()  # Pinsker
    assert ((tv**2 / 2 <= js + 1e-9) & (js <= math.log(2) * tv + 1e-9)).all()  # Lin 1991, theorem 3
    assert (js <= (kl + reverse) / 4 + 1e-9).all()  # convexity


def test_impossible_outputs_add_nothing() -> None:
    full, circuit = np.array([[0.0, 0.0, -np.inf]]), np.array([[0.0, 0.0, 0.0]])
    assert divergences(full, circuit)["kl"][0] == pytest.approx(math.log(1.5))
    assert divergences(circuit, full)["kl"][0] == math.inf


def test_blocks_of_rows_do_not_change_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    full, circuit = stream(0, "logits").normal(size=(2, 7, 5))
    whole = divergences(full, circuit)["kl"]
    probability = answer_log_probability(full, np.zeros((7, 1), dtype=np.int64))
    monkeypatch.setattr(outputs, "_BLOCK", 10)
    assert (divergences(full, circuit)["kl"] == whole).all()
    assert (answer_log_probability(full, np.zeros((7, 1), dtype=np.int64)) == probability).all()


def test_several_valid_answers_share_their_mass_and_a_repeated_one_counts_once() -> None:
    logits = np.log([[1.0, 2.0, 5.0]] * 3)
    found = answer_log_probability(logits, np.array([[0, 1, -1], [2, -1, -1], [1, 1, -1]]))
    np.testing.assert_allclose(np.exp(found), [3 / 8, 5 / 8, 2 / 8], rtol=1e-12)


def test_the_top_output_may_be_any_valid_answer_and_ties_go_to_the_smaller_index() -> None:
    logits = np.array([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0], [3.0, 3.0, 1.0]])
    answers = np.array([[2, 1], [2, -1], [1, -1]])
    assert answer_is_top(logits, answers).tolist() == [True, False, False]


def test_what_cannot_be_compared_is_refused(unchecked: None) -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3\), \(2, 4\)"):
        divergences(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(UnknownNameError, match="did you mean 'reverse-kl'"):
        divergences(np.zeros((2, 3)), np.zeros((2, 3)), kinds=("reverse_kl",))
    for answers in ([[0], [3]], [[0], [-1]]):
        for of_answers in (answer_is_top, answer_log_probability):
            with pytest.raises(InputError, match="example 1 has answer ids .* at least one, below 3"):
                of_answers(np.zeros((2, 3)), np.array(answers))


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


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_golden_divergences_and_cross_entropies(case: dict) -> None:
    measured = measure_runs(golden_runs(case), "kl")
    close = {"rtol": 1e-9, "atol": 1e-12}
    assert measured.value == pytest.approx(case["mean_kl"], rel=1e-9, abs=1e-12)
    assert measured.details["median"] == pytest.approx(np.median(case["kl_full_circuit"]), abs=1e-12)
    assert measured.details["p95"] == pytest.approx(np.percentile(case["kl_full_circuit"], 95), abs=1e-12)
    assert measure_runs(golden_runs(case), "output-divergence").value == measured.value
    np.testing.assert_allclose(measured.per_example, case["kl_full_circuit"], **close)
    for kind, name in {"reverse-kl": "kl_circuit_full", "js": "js", "tv": "tv"}.items():
        np.testing.assert_allclose(measured.parts[kind].per_example, case[name], **close)
    answers = np.array(case["correct"])[:, None]
    for run, name in (("full_logits", "ce_full"), ("circuit_logits", "ce_circuit")):
        np.testing.assert_allclose(-answer_log_probability(np.array(case[run]), answers), case[name], **close)
    delta = measure_runs(golden_runs(case), "ce-delta").parts["keep"].value
    assert delta == pytest.approx(case["mean_ce_delta_circuit_minus_full"], rel=1e-9, abs=1e-12)


def test_restriction_renormalises_on_the_answers_and_refuses_impossible_outputs() -> None:
    runs = probability_runs(full=[[0.4, 0.4, 0.2]], keep=[[0.6, 0.2, 0.2]])
    measured = measure_runs(runs, "kl", restricted_to="answers")
    assert measured.id == "D03.kl_restricted"
    assert measured.value == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))
    for ids, same in (([0, 1], measured), ([0, 1, 2], measure_runs(runs, "kl"))):
        assert measure_runs(runs, "kl", restricted_to=ids).value == pytest.approx(same.value)
    for ids in ([], [-1], [0, 3]):
        with pytest.raises(InputError, match="restricted_to"):
            measure_runs(runs, "kl", restricted_to=ids)


def test_a_dropped_mode_is_told_from_an_invented_one() -> None:
    dropped = probability_runs(full=[[0.5, 0.5]] * 3, keep=[[1 - 1e-12, 1e-12]] * 3)
    assert measure_runs(dropped, "kl").details["drops_modes"]
    invented = probability_runs(full=[[0.9, 0.1]] * 3, keep=[[0.4, 0.6]] * 3)
    assert not measure_runs(invented, "kl").details["drops_modes"]


def test_readings() -> None:
    kl = {0.005: "near_perfect", 0.05: "good", 0.5: "components_missing", 2.0: "another_prediction"}
    assert {nats: kl_reading(nats) for nats in kl} == kl
    drop = {3.0: "critical", 1.0: "significant", 0.3: "minor", 0.05: "not_necessary"}
    assert {nats: drop_reading(nats) for nats in drop} == drop


def test_worked_cross_entropy_deltas() -> None:
    keep, drop = [[0.4, 0.6], [0.2, 0.8]], [[0.1, 0.9], [0.1, 0.9]]
    measured = measure_runs(probability_runs(full=[[0.8, 0.2], [0.4, 0.6]], keep=keep, drop=drop), "ce-delta")
    expected = (math.log(8) + math.log(4)) / 2
    assert measured.value == pytest.approx(expected)
    assert measured.parts["keep"].value == pytest.approx(math.log(2))
    assert measured.parts["ratio"].value == pytest.approx(expected / math.log(2))
    assert measured.details["reading"] == "significant"
    np.testing.assert_allclose(measured.per_example, np.log([8, 4]))
