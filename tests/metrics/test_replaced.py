"""Everything outside a circuit replaced, for circuits of heads and of edges."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from head_runs import golden_model, golden_task, stored

from assay.circuits import Circuit
from assay.discovery.heads import MeasurementTable
from assay.execution import CircuitRuns
from assay.metrics.replaced import Complement, heads_alone
from assay.models import Model
from assay.tasks import PairTask


@pytest.fixture(scope="module")
def model() -> Model:
    return golden_model()


@pytest.fixture(scope="module")
def task() -> PairTask:
    return golden_task()


def edges_of(circuit: Circuit) -> Circuit:
    """The same edges, without saying that they are those of heads."""
    return Circuit(graph=circuit.graph, mask=circuit.mask)


def test_golden_margins_and_divergences(model: Model, task: PairTask) -> None:
    golden = stored()
    runs = CircuitRuns(model, task, Circuit.from_heads(model.graph, golden["circuit"]))
    complement = Complement(runs=runs)
    complement.setting.donors = np.array(golden["donor"])
    for method, expected in golden["y_keep"].items():
        found = complement.draw(method, draws=1, kl=True)
        np.testing.assert_allclose(found.margins[0], expected, rtol=1e-9)
        assert found.served.all()
        if method in golden["kl_keep"]:
            assert found.kl is not None
            np.testing.assert_allclose(found.kl[0], golden["kl_keep"][method], rtol=1e-8)


@pytest.mark.parametrize("method", ["zero", "mean", "resample-donor", "resample"])
def test_edges_of_a_head_circuit_say_the_same(model: Model, task: PairTask, method: str) -> None:
    circuit = Circuit.from_heads(model.graph, stored()["circuit"])
    heads, edges = (
        Complement(runs=CircuitRuns(model, task, each, seed=4, batch_size=5)).draw(method, kl=True)
        for each in (circuit, edges_of(circuit))
    )
    assert heads.kl is not None
    np.testing.assert_allclose(edges.margins, heads.margins, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(edges.kl, heads.kl, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", ["heads", "edges"])
def test_a_measurement_table_has_the_same_margins(model: Model, task: PairTask, kind: str) -> None:
    circuit = Circuit.from_heads(model.graph, stored()["circuit"])
    circuit = circuit if kind == "heads" else edges_of(circuit)
    table = MeasurementTable(model, task, circuit, seed=6)
    complement = Complement(runs=CircuitRuns(model, task, circuit, seed=6))
    for method in ("mean", "resample-donor", "noise-additive", *(("soft",) if kind == "heads" else ())):
        column = table.column(f"y_keep/{method}")
        drawn = complement.draw(method).margins
        np.testing.assert_allclose(drawn.T.squeeze(), column, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", ["heads", "edges"])
def test_draws_differ_where_something_is_drawn(model: Model, task: PairTask, kind: str) -> None:
    circuit = Circuit.from_heads(model.graph, stored()["circuit"])
    circuit = circuit if kind == "heads" else edges_of(circuit)
    for method in ("noise-additive", "resample-donor"):
        whole, parts = (
            Complement(runs=CircuitRuns(model, task, circuit, batch_size=size)).draw(method, draws=2)
            for size in (24, 7)
        )
        assert np.abs(whole.margins[0] - whole.margins[1]).max() > 1e-3
        np.testing.assert_allclose(parts.margins, whole.margins, rtol=1e-6, atol=1e-8)
    assert len(Complement(runs=CircuitRuns(model, task, circuit)).draw("mean", draws=5).margins) == 1


def test_what_cannot_be_run_is_said_by_a_code(model: Model, task: PairTask) -> None:
    circuit = Circuit.from_heads(model.graph, stored()["circuit"])
    by_heads, by_edges = (
        Complement(runs=CircuitRuns(model, task, each)) for each in (circuit, edges_of(circuit))
    )
    for method in ("soft", "attn-uniform", "mean-last"):
        assert by_heads.refusal(method) is None
        assert by_edges.refusal(method) == "no_edge_ablation"
    for method in ("zero", "mean", "noise-additive", "resample-donor", "resample-donor-same-class"):
        assert by_heads.refusal(method) is by_edges.refusal(method) is None
    short = task.lengths.clone()
    short[3] -= 2
    ragged = replace(task, lengths=short, positions=short - 1)
    alone = Complement(runs=CircuitRuns(model, ragged, circuit))
    assert alone.refusal("resample-donor") is alone.refusal("resample-donor-same-class") is None
    assert np.flatnonzero(~alone.draw("resample-donor").served).tolist() == [3]
    apart = ragged.subset([0, 3])
    assert Complement(runs=CircuitRuns(model, apart, circuit)).refusal("resample-donor") == "no_donor"
    different = replace(task, answers=torch.arange(task.n)[:, None], wrong=torch.full((task.n, 1), 90))
    assert Complement(runs=CircuitRuns(model, different, circuit)).refusal("resample-donor-same-class") == (
        "no_donor"
    )


def test_a_circuit_of_heads_without_mlps_is_one_of_edges(model: Model) -> None:
    assert heads_alone(Circuit.from_heads(model.graph, [(0, 1)]))
    assert not heads_alone(Circuit.from_heads(model.graph, [(0, 1)], mlps=False))
    assert not heads_alone(Circuit.full(model.graph))
