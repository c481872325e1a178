"""The faithfulness curve: golden integrals, worked cases on arrays, and a run of a real model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from array_runs import margin_runs
from torch import nn

from assay.circuits import EdgeScores
from assay.core.errors import InputError
from assay.core.random import stream, torch_stream
from assay.execution import CircuitRuns
from assay.metrics import faithfulness_curve, measure
from assay.metrics.curve import FRACTIONS, FaithfulnessCurve, _Margins, integrate, trapezoid_weights
from assay.models import Model, load_model
from assay.tasks import PairTask


GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "faithfulness_integrals.json").read_text())


def integrals(values: np.ndarray, fractions: np.ndarray, *, log_scale: bool = False) -> tuple[float, float]:
    """CPR and CMD of a curve whose points have the given faithfulness, through per-example margins."""
    n = 7
    rng = stream(0, "margins")
    full, empty = rng.normal(3.0, 0.5, n), rng.normal(0.5, 0.5, n)
    gained = full.mean() - empty.mean()
    points = [empty.mean() + value * gained + rng.permutation(np.arange(n) - 3.0) for value in values]
    margins = _Margins(full=full, empty=empty, points=points)
    weights = trapezoid_weights(fractions, log_scale=log_scale)
    runs = margin_runs(full=list(full))
    found, area, distance = integrate(runs, margins, fractions, weights, provenance={"scores": {}})
    np.testing.assert_allclose([point.value for point in found], values, rtol=1e-9, atol=1e-12)
    return area.value, distance.value


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_golden_integrals(case: dict) -> None:
    values, fractions = np.array(case["f"]), np.array(case["k"])
    assert integrals(values, fractions) == pytest.approx((case["cpr"], case["cmd"]), rel=1e-9)
    logarithmic = integrals(values, fractions, log_scale=True)
    assert logarithmic == pytest.approx((case["cpr_log"], case["cmd_log"]), rel=1e-9)


def test_overshoot_is_what_both_areas_have_beyond_one() -> None:
    margins = _Margins(
        full=np.array([2.0, 2.0]),
        empty=np.array([0.0, 0.0]),
        points=[np.array([1.0, 1.0]), np.array([2.0, 4.0]), np.array([2.0, 2.0])],  # F = .5, 1.5, 1
    )
    fractions = np.array([0.2, 0.6, 1.0])
    weights = trapezoid_weights(fractions)
    runs = margin_runs(full=list(margins.full))
    _, area, distance = integrate(runs, margins, fractions, weights, provenance={"scores": {}})
    clipped, overshoot, lacking = area.parts["clipped"], area.parts["overshoot"], distance.parts["clipped"]
    assert (area.value, clipped.value, overshoot.value) == pytest.approx((0.9, 0.7, 0.2))
    assert (distance.value, lacking.value) == pytest.approx((0.3, 0.1))
    # Resampled jointly: the first example twice has F = 1 in the middle, the second F = 2.
    draws = np.array([[0, 0], [1, 1]])
    assert overshoot.value_on(draws) == pytest.approx([0.0, 0.4])
    assert clipped.value_on(draws) == pytest.approx([0.7, 0.7])
    for whole, part in ((area, clipped), (distance, lacking)):
        assert whole.value_on(draws) == pytest.approx(part.value_on(draws) + overshoot.value_on(draws))
    assert len({each.id_hash for each in (area, clipped, overshoot, distance, lacking)}) == 5


def integrated(margins: _Margins) -> tuple[Any, ...]:
    """Points, area and distance at half of the edges and all."""
    fractions, provenance = np.array([0.5, 1.0]), {"scores": {}}
    weights = trapezoid_weights(fractions)
    return integrate(margin_runs(full=list(margins.full)), margins, fractions, weights, provenance=provenance)


def test_an_empty_circuit_as_good_as_the_model_leaves_everything_undefined() -> None:
    same = np.array([1.0, 2.0, 3.0])
    points, area, distance = integrated(_Margins(full=same, empty=same[::-1].copy(), points=[same, same]))
    assert {each.reason for each in (*points, area, distance)} == {"zero_denominator"}


def test_an_example_that_breaks_anywhere_counts_nowhere() -> None:
    full, empty = np.array([2.0, 2.0, 9.0]), np.array([0.0, 0.0, 1.0])
    points = [np.array([1.0, 1.0, 1.0]), np.array([2.0, 2.0, np.nan])]
    found, area, _ = integrated(_Margins(full=full, empty=empty, points=points))
    assert [point.value for point in found] == pytest.approx([0.5, 1.0])
    assert (area.n, area.n_excluded) == (2, 1)
    assert "many_excluded" in area.warnings


@pytest.fixture(scope="module")
def model(tiny_module: Callable[..., nn.Module]) -> Model:
    return load_model(tiny_module("gpt2", torch.float64))


@pytest.fixture(scope="module")
def task(model: Model) -> PairTask:
    """A task that the model solves: its own prediction against its least likely output."""
    generator = torch_stream(3, "curve-task")
    clean, corrupted = (torch.randint(1, 61, (12, 5), generator=generator) for _ in range(2))
    with torch.no_grad():
        logits = model.module(clean).logits[:, -1]
    return PairTask(
        clean=clean,
        corrupted=corrupted,
        answers=logits.argmax(dim=1, keepdim=True),
        wrong=logits.argmin(dim=1, keepdim=True),
    )


@pytest.fixture(scope="module")
def scores(model: Model) -> EdgeScores:
    shape = (model.graph.n_sources, model.graph.n_targets)
    return EdgeScores(model.graph, torch.randn(shape, generator=torch_stream(4, "curve-scores")))


@pytest.fixture(scope="module")
def curve(model: Model, task: PairTask, scores: EdgeScores) -> FaithfulnessCurve:
    return faithfulness_curve(scores, model, task, random_circuits=2)


def test_points_are_the_corrected_faithfulness_of_the_chosen_circuits(
    curve: FaithfulnessCurve, model: Model, task: PairTask, scores: EdgeScores
) -> None:
    sizes = [int(share * model.graph.n_edges) for share in FRACTIONS]
    assert (curve.fractions.tolist(), curve.n_edges.tolist()) == (list(FRACTIONS), sizes)
    assert (curve.n_edges[0], curve.values[0], curve.values[-1], curve.area.warnings) == (0, 0.0, 1.0, ())
    for index in (6, 8):
        circuit = scores.top(int(curve.n_edges[index])).connected(warn=False)
        assert curve.circuits[index] == circuit
        assert curve.kept_edges[index] == circuit.n_edges
        alone = measure(circuit, model, task, "faithfulness-norm")
        assert curve.values[index] == pytest.approx(alone.value, rel=1e-9)
        assert curve.points[index].interval() == alone.interval()
    assert curve.cpr == pytest.approx(np.trapezoid(curve.values, curve.fractions), rel=1e-9)
    assert curve.cmd == pytest.approx(np.trapezoid(np.abs(1 - curve.values), curve.fractions), rel=1e-9)
    assert curve.area.interval().low < curve.cpr < curve.area.interval().high
    assert curve.distance.interval().defined
    assert (curve.clipped_cpr, curve.clipped_cmd) == pytest.approx(
        (curve.cpr - curve.overshoot, curve.cmd - curve.overshoot), rel=1e-9
    )
    assert curve.clipped_cpr + curve.clipped_cmd == pytest.approx(0.999, rel=1e-9)


def test_batch_size_changes_nothing_and_a_setting_changes_the_identity(
    curve: FaithfulnessCurve, model: Model, task: PairTask, scores: EdgeScores
) -> None:
    again = faithfulness_curve(scores, model, task, random_circuits=2, batch_size=5)
    np.testing.assert_allclose(again.values, curve.values, rtol=1e-9, atol=1e-12)
    assert again.area.id_hash == curve.area.id_hash
    signed = faithfulness_curve(scores, model, task, absolute=False)
    assert not signed.absolute
    assert signed.area.id_hash != curve.area.id_hash
    assert signed.circuits[8] == scores.top(int(signed.n_edges[8]), absolute=False).connected()
    assert signed.circuits[8] != curve.circuits[8]


def test_runs_made_earlier_are_used(model: Model, task: PairTask, scores: EdgeScores) -> None:
    runs = CircuitRuns(model, task, scores.top(20), objective="kl")
    fractions = [0.3, 1.0]
    shared = faithfulness_curve(scores, model, task, fractions=fractions, runs=runs)
    alone = faithfulness_curve(scores, model, task, fractions=fractions, objective="kl")
    assert shared.values.tolist() == alone.values.tolist()
    assert shared.area.id_hash == alone.area.id_hash
    circuit = shared.circuits[0]
    kl = measure(circuit, model, task, "faithfulness-norm", objective="kl")
    assert shared.values[0] == pytest.approx(kl.value, rel=1e-9)


def test_greedy_and_unpruned_selection(model: Model, task: PairTask, scores: EdgeScores) -> None:
    greedy = faithfulness_curve(scores, model, task, fractions=[0.3, 1.0], selection="greedy")
    assert greedy.circuits[0] == scores.greedy(int(greedy.n_edges[0]))
    raw = faithfulness_curve(scores, model, task, fractions=[0.3, 1.0], prune=False)
    assert raw.kept_edges[0] == raw.n_edges[0]


def test_impossible_fractions_are_refused(model: Model, task: PairTask, scores: EdgeScores) -> None:
    for fractions in ([0.0, 1.0], [0.5, 0.2], [0.5, 1.2], [0.5], [0.5, 0.5]):
        with pytest.raises(InputError, match="ascending shares of edges"):
            faithfulness_curve(scores, model, task, fractions=fractions)
