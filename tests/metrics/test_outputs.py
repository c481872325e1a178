"""Kernels on output distributions: worked cases, golden values, limits."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.core.errors import InputError, ShapeError, UnknownNameError
from assay.core.random import stream
from assay.metrics import outputs
from assay.metrics.outputs import answer_is_top, answer_log_probability, divergences, restrict


GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "output_distributions.json").read_text())
LOGITS = st.tuples(*[hnp.arrays(np.float64, (3, 5), elements=st.floats(-30, 30))] * 2)


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_golden_divergences(case: dict) -> None:
    full, circuit = np.array(case["full_logits"]), np.array(case["circuit_logits"])
    found = divergences(full, circuit, kinds=outputs.DIVERGENCES)
    names = {"kl": "kl_full_circuit", "reverse-kl": "kl_circuit_full", "js": "js", "tv": "tv"}
    for kind, name in names.items():
        np.testing.assert_allclose(found[kind], case[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_golden_cross_entropies(case: dict) -> None:
    answers = np.array(case["correct"])[:, None]
    for run, name in (("full_logits", "ce_full"), ("circuit_logits", "ce_circuit")):
        found = -answer_log_probability(np.array(case[run]), answers)
        np.testing.assert_allclose(found, case[name], rtol=1e-9, atol=1e-12)


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


@given(LOGITS, st.floats(-50, 50))
def test_divergences_ignore_a_shift_and_the_order_of_outputs(
    pair: tuple[np.ndarray, np.ndarray], shift: float
) -> None:
    full, circuit = pair
    plain = divergences(full, circuit, kinds=outputs.DIVERGENCES)
    moved = divergences(full[:, ::-1] + shift, circuit[:, ::-1] - shift, kinds=outputs.DIVERGENCES)
    for kind in outputs.DIVERGENCES:
        np.testing.assert_allclose(moved[kind], plain[kind], rtol=1e-9, atol=1e-9)


@given(LOGITS)
def test_js_and_tv_are_symmetric_and_kl_turns_into_its_reverse(pair: tuple[np.ndarray, np.ndarray]) -> None:
    there = divergences(*pair, kinds=outputs.DIVERGENCES)
    back = divergences(*pair[::-1], kinds=outputs.DIVERGENCES)
    np.testing.assert_allclose(there["js"], back["js"], atol=1e-12)
    np.testing.assert_allclose(there["tv"], back["tv"], atol=1e-12)
    np.testing.assert_allclose(there["kl"], back["reverse-kl"], atol=1e-12)


def test_equal_distributions_do_not_diverge() -> None:
    logits = stream(0, "logits").normal(size=(4, 11)).astype(np.float32)
    found = divergences(logits, logits, kinds=outputs.DIVERGENCES)
    for kind in ("kl", "reverse-kl", "tv"):
        assert (found[kind] == 0).all()
    assert (found["js"] < 1e-15).all()  # the logarithm of the mixture rounds


def test_impossible_outputs_add_nothing() -> None:
    full, circuit = np.array([[0.0, 0.0, -np.inf]]), np.array([[0.0, 0.0, 0.0]])
    assert divergences(full, circuit)["kl"][0] == pytest.approx(math.log(1.5))
    assert divergences(circuit, full)["kl"][0] == math.inf


def test_a_nan_row_is_nan_alone() -> None:
    full = np.array([[0.0, 1.0], [0.0, np.nan]])
    assert np.isnan(divergences(full, np.zeros((2, 2)))["kl"]).tolist() == [False, True]


def test_blocks_of_rows_do_not_change_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    full, circuit = stream(0, "logits").normal(size=(2, 7, 5))
    whole = divergences(full, circuit)["kl"]
    probability = answer_log_probability(full, np.zeros((7, 1), dtype=np.int64))
    monkeypatch.setattr(outputs, "_BLOCK", 10)
    assert (divergences(full, circuit)["kl"] == whole).all()
    assert (answer_log_probability(full, np.zeros((7, 1), dtype=np.int64)) == probability).all()


def test_no_examples_are_no_divergences() -> None:
    assert divergences(np.empty((0, 4)), np.empty((0, 4)))["kl"].shape == (0,)


def test_unequal_shapes_are_refused(unchecked: None) -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3\), \(2, 4\)"):
        divergences(np.zeros((2, 3)), np.zeros((2, 4)))


def test_unknown_divergences_list_near_matches() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'reverse-kl'"):
        divergences(np.zeros((1, 2)), np.zeros((1, 2)), kinds=("reverse_kl",))


# ------------------------------------------------------------------------------------------- answers


def test_several_valid_answers_share_their_mass() -> None:
    logits = np.log([[1.0, 2.0, 5.0], [1.0, 2.0, 5.0]])
    found = answer_log_probability(logits, np.array([[0, 1], [2, -1]]))
    np.testing.assert_allclose(np.exp(found), [3 / 8, 5 / 8], rtol=1e-12)


def test_a_repeated_answer_counts_once() -> None:
    logits = np.log([[1.0, 2.0, 5.0]])
    assert np.exp(answer_log_probability(logits, np.array([[1, 1, -1]])))[0] == pytest.approx(2 / 8)


def test_restriction_keeps_only_the_set() -> None:
    picked = restrict(np.array([[1.0, 2.0, 5.0]]), np.array([[2, 0, 2, -1]]))
    assert sorted(picked[0].tolist()) == [-math.inf, -math.inf, 1.0, 5.0]


def test_the_top_output_may_be_any_valid_answer_and_ties_go_to_the_smaller_index() -> None:
    logits = np.array([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0], [3.0, 3.0, 1.0]])
    answers = np.array([[2, 1], [2, -1], [1, -1]])
    assert answer_is_top(logits, answers).tolist() == [True, False, False]


def test_answers_outside_the_vocabulary_or_missing_are_refused() -> None:
    with pytest.raises(InputError, match="example 1 has answer id 3, but the vocabulary ends at 2"):
        answer_is_top(np.zeros((2, 3)), np.array([[0], [3]]))
    with pytest.raises(InputError, match="example 1 has no answer id"):
        answer_log_probability(np.zeros((2, 3)), np.array([[0], [-1]]))
