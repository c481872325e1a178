"""Nodes and neurons: scores, circuits and runs, against literal twins, hand-worked cases and edges."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import literal
import pytest
import torch
from cut_models import model_and_task, random_prompts
from torch import Tensor, nn

from assay.circuits import (
    Circuit,
    EdgeScores,
    Level,
    NodeScores,
    certify,
    load_circuit,
    load_node_scores,
    load_scores,
)
from assay.core.errors import FileFormatError, GraphMismatchError, InputError, ShapeError, UnknownNameError
from assay.core.random import torch_stream
from assay.discovery.edges import METHODS, discover
from assay.execution import run_circuit, run_model
from assay.graph import build_graph
from assay.metrics.metric import random_like
from assay.models import Model, load_model
from assay.tasks import Task


GRAPH = build_graph(2, 2)  # input, a0.h0, a0.h1, m0, a1.h0, a1.h1, m1
EXACT = {"gpt2": 1e-10, "neox": 1e-10, "llama": 2e-5}  # Llama's norms round to float32 in float64 too


def some_cells(model: Model, share: float = 0.6) -> Tensor:
    """Random neurons; one node keeps none of its own."""
    draw = torch.rand(model.graph.n_sources, model.d_model, generator=torch_stream(3, "cells"))
    cells = draw < share
    cells[2] = False
    return cells


# ------------------------------------------------------------------------------------------------ scores


def test_scores_of_neurons_are_the_literal_ones(module64: nn.Module) -> None:
    model = load_model(module64)
    task = random_prompts(model, ragged=True)
    found = discover(model, task, "eap", level="neuron", per_example=True)
    batch = next(iter(task.batches(task.n)))
    logits, clean = literal.run_plain(model, task.clean)
    at_read = logits[torch.arange(task.n), task.positions]
    loss = literal.loss_of(model, "logit_diff", batch, task.positions, at_read.detach())
    gradients = literal.edge_gradients(model, task.clean, loss)
    ablated = literal.ablated_outputs(model, task, "resample")
    real = (torch.arange(task.length) < task.lengths[:, None])[..., None]
    graph, expected = model.graph, torch.zeros(task.n, *found.values.shape, dtype=torch.float64)
    for row, column in graph.valid.nonzero().tolist():
        source, target = graph.sources[row], graph.targets[column]
        expected[:, row] += ((ablated[source] - clean[source]) * gradients[target] * real).sum(1).detach()
    assert found.per_example is not None
    assert found.level == "neuron"
    scale = float(expected.abs().max())
    torch.testing.assert_close(found.per_example, expected, rtol=0, atol=1e-4 * scale)
    torch.testing.assert_close(found.values, expected.mean(0), rtol=0, atol=1e-4 * scale)


BY_NEURON = [key for key, known in METHODS.items() if "neuron" in known.levels and known.keeps_examples]
OTHERS = [("neox", "eap"), ("llama", "eap"), ("pooled", "eap-ig-inputs")]


@pytest.mark.parametrize(("name", "method"), [*(("gpt2", key) for key in BY_NEURON), *OTHERS])
def test_neurons_add_up_to_nodes_and_nodes_are_rows_of_edges(
    name: str, method: str, tiny_module: Callable[..., nn.Module]
) -> None:
    model, task = model_and_task(name, tiny_module)
    how: dict[str, Any] = {"steps": 2, "objective": "ce" if name == "pooled" else "logit_diff"}
    edges = discover(model, task, method, **how, batch_size=3)
    nodes = discover(model, task, method, level="node", **how, per_example=True)
    neurons = discover(model, task, method, level="neuron", **how, batch_size=2)
    torch.testing.assert_close(nodes.values, edges.values.sum(1), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(NodeScores.of(neurons).values, nodes.values, rtol=1e-9, atol=1e-11)
    assert nodes.per_example is not None
    torch.testing.assert_close(nodes.per_example.mean(0), nodes.values, rtol=1e-12, atol=1e-13)
    assert neurons.details["passes"] == edges.details["passes"]
    assert neurons.provenance == {**edges.provenance, "level": "neuron"}
    if "completeness_gap" in edges.details:
        assert neurons.details["completeness_gap"] == pytest.approx(edges.details["completeness_gap"])


def test_selection_counts_in_nodes_and_neurons_and_keeps_what_has_no_score(tmp_path: Path) -> None:
    nan = torch.nan
    nodes = NodeScores(GRAPH, torch.tensor([nan, -3.0, 1.0, 2.0, 0.5, 2.0, 0.1]))
    assert nodes.n_items == 6
    assert nodes["m0"] == 2
    assert nodes.top(2).nodes() == ["input", "a0.h0", "m0", "logits"]
    assert nodes.top(2, absolute=False).nodes() == ["input", "m0", "a1.h1", "logits"]
    assert nodes.threshold(2, absolute=False) == nodes.top(2, absolute=False)
    assert nodes.to_frame()["node"].tolist() == ["a0.h0", "m0", "a1.h1", "a0.h1", "a1.h0", "m1"]
    values = torch.zeros(GRAPH.n_sources, 3)
    values[0], values[1], values[3, 1] = nan, torch.tensor([1.0, -4.0, 2.0]), 3.0
    neurons = NodeScores(GRAPH, values)
    circuit = neurons.top(3)
    assert circuit.n_items == 6
    assert circuit.level == "neuron"
    assert circuit.to_frame()[["node", "neuron"]].values.tolist()[3:] == [
        ["a0.h0", 1],
        ["a0.h0", 2],
        ["m0", 1],
    ]
    assert NodeScores.of(neurons).values[1:4].tolist() == [-1, 0, 3]
    for scores in (nodes, neurons):
        again = load_node_scores(scores.save(tmp_path / "scores.safetensors"), GRAPH)
        torch.testing.assert_close(again.values, scores.values, equal_nan=True)
        assert load_circuit(scores.top(2).save(tmp_path / "c.safetensors")) == scores.top(2)


# ---------------------------------------------------------------------------------------------- circuits


def test_circuits_of_nodes_hold_the_edges_among_them() -> None:
    circuit = Circuit.from_nodes(GRAPH, "input, a0.h1, m1")
    assert (circuit.level, circuit.n_items, circuit.n_edges) == ("node", 3, 8)
    assert circuit.edges() == [
        "input->a0.h1.q",
        "input->a0.h1.k",
        "input->a0.h1.v",
        "input->m1",
        "input->logits",
        "a0.h1->m1",
        "a0.h1->logits",
        "m1->logits",
    ]
    assert circuit.dropped().nodes() == ["a0.h0", "m0", "a1.h0", "a1.h1", "logits"]
    assert circuit == Circuit.from_nodes(GRAPH, circuit.nodes()) != Circuit(graph=GRAPH, mask=circuit.mask)
    other = Circuit.from_nodes(GRAPH, ["input", "m1", "m0"])
    assert (circuit & other).nodes() == ["input", "m1", "logits"]
    assert (circuit | other).n_items == 4
    assert (circuit - other).n_items == 1
    assert circuit.jaccard(other) == 0.5
    assert repr(circuit).startswith("Circuit(3 of 7 nodes, 42.9%")
    assert circuit.without_head(0, 1).n_items == 2
    assert circuit.connected() == circuit
    with pytest.warns(UserWarning, match="none of the 1 nodes"):
        assert Circuit.from_nodes(GRAPH, ["m1"]).connected().n_items == 0
    drawn = random_like(circuit, seed=0, index=0)
    assert drawn.n_items == 3
    assert drawn.nodes()[0] == "input"
    neurons = Circuit.random(GRAPH, 9, level="neuron", d_model=4)
    assert neurons.n_items == 9
    assert random_like(neurons, seed=0, index=1).n_items == 9
    assert (neurons | ~neurons).n_items == 28
    assert neurons.partial
    assert not Circuit.full(GRAPH).partial


def outside(circuit: Circuit, task: Task, model: Model, ablation: str) -> Tensor:
    logits = literal.run_circuit(model, circuit, task.clean, literal.ablated_outputs(model, task, ablation))
    return logits[torch.arange(task.n), task.positions].detach()


@pytest.mark.parametrize("ablation", ["resample", "mean"])
def test_runs_of_nodes_and_neurons_equal_the_literal_run(
    module64: nn.Module, family: str, ablation: str
) -> None:
    model = load_model(module64)
    task = random_prompts(model, ragged=ablation == "resample")
    cells = some_cells(model)
    for circuit in (Circuit.from_cells(model.graph, cells), Circuit.from_cells(model.graph, cells[:, 0])):
        found = run_circuit(circuit, model, task, ablation=ablation, batch_size=3)
        expected = outside(circuit, task, model, ablation)
        torch.testing.assert_close(found, expected, rtol=0, atol=EXACT[family] * float(expected.abs().max()))
    whole = Circuit.from_cells(model.graph, torch.ones_like(cells))
    torch.testing.assert_close(run_circuit(whole, model, task), run_model(model, task))


def test_edges_out_of_nodes_that_are_cut_change_nothing(module64: nn.Module) -> None:
    """A circuit of nodes leaves out the edges into other nodes: what those write is cut anyway."""
    model = load_model(module64)
    task, rows = random_prompts(model), some_cells(model)[:, 0]
    outgoing = Circuit(graph=model.graph, mask=model.graph.valid & rows[:, None])
    one, other = (
        run_circuit(each, model, task) for each in (outgoing, Circuit.from_cells(model.graph, rows))
    )
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


# --------------------------------------------------------------------------------------------- bad input


def test_what_does_not_fit_is_refused(gpt2_tiny: nn.Module, tmp_path: Path, unchecked: None) -> None:
    model = load_model(gpt2_tiny)
    task, graph = random_prompts(model), model.graph
    wrong: list[tuple[str, Level]] = [("acdc", "node"), ("exact", "neuron"), ("ugs", "node")]
    for method, level in wrong:
        with pytest.raises(InputError, match=f"{method} does not score {level}s; use one of eap-ig-inputs"):
            discover(model, task, method, level=level)
    with pytest.raises(UnknownNameError, match="level"):
        discover(model, task, level="head")  # type: ignore[call-overload]  # on purpose
    with pytest.raises(InputError, match="spans needs scores of edges, not of nodes"):
        discover(model, task, level="node", spans="each")
    scores = NodeScores(graph, torch.rand(graph.n_sources))
    for k in (0, graph.n_sources + 1):
        with pytest.raises(InputError, match=f"cannot keep {k} nodes; choose k from 1 to {graph.n_sources}"):
            scores.top(k)
    with pytest.raises(FileFormatError, match="holds 'node scores', not 'scores'"):
        load_scores(scores.save(tmp_path / "nodes.safetensors"))
    edges = EdgeScores(graph, torch.rand(graph.valid.shape))
    with pytest.raises(FileFormatError, match="holds 'scores', not 'node scores'"):
        load_node_scores(edges.save(tmp_path / "edges.safetensors"))
    with pytest.raises(InputError, match="certify takes scores of edges; these are of nodes"):
        certify(scores, 1)  # type: ignore[arg-type]  # on purpose
    nodes, neurons = scores.top(2), Circuit.random(graph, 5, level="neuron", d_model=3)
    with pytest.raises(InputError, match="one circuit is of nodes, the other of neurons"):
        _ = nodes | neurons
    with pytest.raises(GraphMismatchError, match="3 neurons per node"):
        run_circuit(neurons, model, task)
    with pytest.raises(ShapeError, match="cells are"):
        Circuit.from_cells(graph, torch.ones(3, dtype=torch.bool))
    with pytest.raises(InputError, match="keeps every edge among its nodes"):
        Circuit(graph=graph, mask=graph.valid, cells=nodes.cells)
