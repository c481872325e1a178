"""Minimality: importance of each head, classes, circuits without heads."""

import math

import numpy as np
import pytest
from array_runs import GRAPH, ArrayRuns, with_margins

from assay.circuits import Circuit
from assay.metrics import measure_runs
from assay.metrics.minimality import minimality_class


HEADS = Circuit.from_heads(GRAPH, [(0, 1), (1, 0)])
FULL, KEEP = [2.0, 4.0], [1.5, 3.0]  # F = 0.75


def runs(*without: list[float], circuit: Circuit = HEADS, keep: list[float] = KEEP) -> ArrayRuns:
    others = {
        circuit.without_head(*head).hash: with_margins(margins)
        for head, margins in zip(circuit.kept_heads(), without, strict=True)
    }
    answers = {"answers": [[0]] * len(FULL), "wrong": [[1]] * len(FULL)}
    return ArrayRuns(
        circuit=circuit, others=others, full=with_margins(FULL), keep=with_margins(keep), **answers
    )


def test_worked_importances() -> None:
    measured = measure_runs(runs([0.5, 1.0], [1.5, 2.85]), "minimality")
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
    measured = measure_runs(runs([0.5, 1.0], [1.5, 2.85]), "minimality")
    lost = np.array(KEEP) - np.array([0.5, 1.0])
    influence = (lost - 0.5 * np.array(FULL)) / 3.0
    expected = influence.std(ddof=1) / math.sqrt(2)
    assert measured.details["heads"]["a0.h1"]["standard_error"] == pytest.approx(expected)


def test_a_head_whose_removal_helps_has_negative_importance() -> None:
    measured = measure_runs(runs([2.0, 4.0], [1.5, 3.0]), "minimality")
    assert measured.details["heads"]["a0.h1"]["importance"] == pytest.approx(-0.25)
    assert measured.details["essential"] == []
    assert measured.details["class"] == "not_minimal"


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
    measured = measure_runs(runs([0.0, 0.0], circuit=circuit), "minimality")
    assert list(measured.details["heads"]) == ["a0.h0"]
    assert measured.value == pytest.approx(0.75)


def test_without_heads_there_is_nothing_to_remove() -> None:
    circuit = Circuit.from_edges(GRAPH, ["input->logits"])
    measured = measure_runs(runs(circuit=circuit), "minimality")
    assert math.isnan(measured.value)
    assert measured.reason == "no_heads"
    assert measured.n == 2


def test_an_example_that_breaks_in_one_removal_is_left_out_of_all() -> None:
    measured = measure_runs(runs([0.5, math.nan], [1.5, 2.85]), "minimality")
    assert (measured.n, measured.n_excluded) == (1, 1)
    assert measured.details["heads"]["a1.h0"]["importance"] == pytest.approx(0.0)
    assert math.isnan(measured.details["heads"]["a0.h1"]["standard_error"])
