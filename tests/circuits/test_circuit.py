from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.circuits import Circuit, EdgeScores
from assay.core.errors import AssayWarning, GraphMismatchError, InputError, NonFiniteError, ShapeError
from assay.graph import Graph, build_graph


GRAPH = build_graph(3, 4, 2)


def test_set_operations_act_on_edges() -> None:
    a = Circuit.from_edges(GRAPH, ["input->m0", "m0->logits"])
    b = Circuit.from_edges(GRAPH, ["m0->logits", "m1->logits"])
    assert (a | b).edges() == ["input->m0", "m0->logits", "m1->logits"]
    assert (a & b).edges() == ["m0->logits"]
    assert (a - b).edges() == ["input->m0"]
    assert (~a).n_edges == GRAPH.n_edges - 2
    assert a.jaccard(b) == pytest.approx(1 / 3)
    assert Circuit.empty(GRAPH).jaccard(Circuit.empty(GRAPH)) == 1.0
    assert a.nodes() == ["input", "m0", "logits"]


def test_circuit_of_heads_holds_all_edges_among_kept_nodes() -> None:
    circuit = Circuit.from_heads(GRAPH, [(0, 1), (2, 3)])
    assert circuit.nodes() == ["input", "a0.h1", "m0", "m1", "a2.h3", "m2", "logits"]
    assert "a0.h1->a2.kv1.k" in circuit.edges()  # key/value head 1 serves head 3
    assert "a0.h1->a2.kv0.k" not in circuit.edges()
    assert circuit.heads == ((0, 1), (2, 3)) == circuit.kept_heads()
    assert Circuit.from_heads(GRAPH, [(0, 1)], mlps=False).nodes() == ["input", "a0.h1", "logits"]


def test_dropping_a_head_circuit_ablates_its_heads_only() -> None:
    dropped = Circuit.from_heads(GRAPH, [(0, 1)]).dropped()
    assert dropped.edges() == [edge for edge in Circuit.full(GRAPH).edges() if not edge.startswith("a0.h1->")]
    edges = Circuit.from_edges(GRAPH, ["input->m0"])
    assert edges.dropped() == ~edges


def test_published_head_circuit_of_ioi(shared: Callable[[str], Path]) -> None:
    graph = build_graph(12, 12)
    circuit = Circuit.from_heads(graph, shared("data/circuits_heads/ioi_gpt2_wang26.json"))
    assert len(circuit.kept_heads()) == 26
    every_edge_but_those_of_other_heads = graph.valid.clone()
    for layer in range(12):
        for head in range(12):
            if (layer, head) not in circuit.kept_heads():
                every_edge_but_those_of_other_heads[graph.head_source(layer, head)] = False
    assert int(every_edge_but_those_of_other_heads.sum()) == 6540  # the published node version
    assert (
        Circuit(graph=graph, mask=every_edge_but_those_of_other_heads).connected().edges() == circuit.edges()
    )


def test_frames_and_networkx_name_every_edge() -> None:
    circuit = Circuit.from_edges(GRAPH, ["input->a0.kv1.k", "m0->logits"])
    frame = circuit.to_frame()
    assert (frame["source"] + "->" + frame["target"]).tolist() == circuit.edges()
    exported = circuit.to_networkx()
    assert list(exported.edges(data="target")) == [
        ("input", "a0.kv1", "a0.kv1.k"),
        ("m0", "logits", "logits"),
    ]
    assert exported.nodes["a0.kv1"]["heads"] == ("a0.h2", "a0.h3")
    assert Circuit.full(GRAPH).to_networkx().number_of_edges() == GRAPH.n_edges


# ---- selection ------------------------------------------------------------------------------------


def some_scores(seed: int = 0, graph: Graph = GRAPH) -> EdgeScores:
    return EdgeScores(
        graph, torch.randn(graph.n_sources, graph.n_targets, generator=torch.Generator().manual_seed(seed))
    )


def test_top_takes_magnitudes_or_signs() -> None:
    values = torch.zeros(GRAPH.n_sources, GRAPH.n_targets)
    values[GRAPH.edge_index("input->m0")] = -3.0
    values[GRAPH.edge_index("input->logits")] = 2.0
    values[GRAPH.edge_index("m0->logits")] = 1.0
    scores = EdgeScores(GRAPH, values)
    assert scores.top(2).edges() == ["input->m0", "input->logits"]
    assert scores.top(2, absolute=False).edges() == ["input->logits", "m0->logits"]
    assert scores.threshold(1.0).n_edges == 3
    assert scores.threshold(1.0, absolute=False).n_edges == 2


def test_ties_go_to_the_smaller_edge_index() -> None:
    scores = EdgeScores(GRAPH, torch.ones(GRAPH.n_sources, GRAPH.n_targets))
    assert scores.top(5).edges() == Circuit.full(GRAPH).edges()[:5]


def literal_greedy(scores: EdgeScores, k: int) -> Circuit:
    values = scores.values.abs()
    mask = torch.zeros_like(GRAPH.valid)
    targets = {GRAPH.n_targets - 1}
    for _ in range(k):
        candidates = [
            (row, column)
            for column in targets
            for row in range(GRAPH.n_sources)
            if GRAPH.valid[row, column] and not mask[row, column]
        ]
        if not candidates:
            break
        row, column = max(candidates, key=lambda edge: (values[edge].item(), -edge[0], -edge[1]))
        mask[row, column] = True
        targets |= set(GRAPH.feeds[:, row].nonzero().squeeze(1).tolist())
    return Circuit(graph=GRAPH, mask=mask).connected(warn=False)


@settings(max_examples=15)
@given(st.integers(0, 1000), st.integers(1, 60))
def test_greedy_grows_from_the_logits(seed: int, k: int) -> None:
    scores = some_scores(seed)
    assert scores.greedy(k) == literal_greedy(scores, k)


# ---- errors ---------------------------------------------------------------------------------------


def test_what_is_not_a_circuit_of_the_graph_is_refused(unchecked: None) -> None:
    values = torch.zeros(GRAPH.n_sources, GRAPH.n_targets)
    values[GRAPH.edge_index("m0->logits")] = torch.nan
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: some_scores().threshold(float("nan")), InputError, "threshold is NaN"),
        (lambda: some_scores().top(0), InputError, "cannot keep 0 edges; choose k from 1 to"),
        (lambda: Circuit.from_heads(GRAPH, [(0.9, 1)]), InputError, "not a pair .* of whole numbers"),
        (lambda: Circuit(graph=GRAPH, mask=torch.zeros(3, 4).bool()), ShapeError, "mask of shape"),
        (lambda: Circuit(graph=GRAPH, mask=torch.ones_like(GRAPH.valid)), InputError, "not an edge"),
        (lambda: EdgeScores(GRAPH, values), NonFiniteError, "score of m0->logits is nan"),
        (lambda: EdgeScores(GRAPH, values[:3]), ShapeError, "expected"),
        (lambda: EdgeScores(GRAPH, values * 0, per_example=values), ShapeError, "per_example has shape"),
        (lambda: ~Circuit.full(GRAPH) & Circuit.full(build_graph(3, 4)), GraphMismatchError, "belongs to"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()


def test_masks_are_not_shared_with_the_caller() -> None:
    Circuit.full(GRAPH).mask[0, 0] = False
    assert bool(GRAPH.valid[0, 0])


def test_a_circuit_without_a_path_warns_that_nothing_is_left() -> None:
    stray = Circuit.from_edges(GRAPH, ["a0.h0->m1", "m0->m2"])
    with pytest.warns(AssayWarning, match="none of the 2 edges lies on a path"):
        assert stray.connected().n_edges == 0
    assert stray.connected(warn=False).n_edges == 0
    assert Circuit.empty(GRAPH).connected().n_edges == 0  # it was empty before
