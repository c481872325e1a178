"""Spans, position-aware scores and circuits: naming, choosing, paths, files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.circuits import Circuit, EdgeScores, certify, load_circuit, load_scores
from assay.circuits.circuit import edge_slots
from assay.circuits.files import write_edges
from assay.circuits.spans import Spans
from assay.core.errors import InputError
from assay.graph import Graph, build_graph
from assay.tasks import PairTask


GRAPH = build_graph(2, 2, 1)


def prompts(*lengths: int, **changed: Any) -> PairTask:
    """Prompts of these lengths; their tokens do not matter."""
    n, width = len(lengths), max(lengths)
    ids = torch.arange(n * width).view(n, width) + 1
    return PairTask(
        clean=ids,
        corrupted=ids.flip(1),
        answers=torch.zeros(n, 1, dtype=torch.long),
        lengths=torch.tensor(lengths),
        **changed,
    )


def spans_of(task: PairTask, choice: Any) -> Spans:
    return Spans.of(task, choice, causal=True)


def each(length: int, *, causal: bool = True) -> Spans:
    return Spans.of(prompts(length), "each", causal=causal)


THREE = each(3)


def random_scores(graph: Graph = GRAPH, spans: Spans = THREE, seed: int = 0) -> EdgeScores:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(len(spans), graph.n_sources, graph.n_targets, generator=generator)
    return EdgeScores(graph, values, spans=spans)


# ------------------------------------------------------------------------------------------------- spans


def test_each_position_is_a_span_that_reaches_itself_and_later_ones() -> None:
    spans = spans_of(prompts(3, 3), "each")
    assert spans.names == ("0", "1", "2")
    assert spans.reach.tolist() == [[True, True, True], [False, True, True], [False, False, True]]
    assert spans.read.tolist() == [False, False, True]
    assert spans.label(prompts(3, 3, 3)).tolist() == [[0, 1, 2]] * 3


def test_named_places_are_counted_in_each_prompt() -> None:
    task = prompts(4, 6)
    spans = spans_of(task, {"subject": [1, 2], "last": -1})
    assert spans.names == ("subject", "last", "rest")
    assert spans.label(task).tolist() == [[2, 0, 0, 1, -1, -1], [2, 0, 0, 2, 2, 1]]
    # "rest" stands before and behind "subject" in the second prompt, and nothing follows "last" but itself.
    assert spans.reach.tolist() == [[True, True, True], [False, True, False], [True, True, True]]
    assert spans.read.tolist() == [False, True, False]


def test_slots_and_what_lies_between_them_are_spans() -> None:
    slots = {"name": torch.tensor([1, 2]), "place": torch.tensor([3, 3])}
    task = prompts(6, 5, slots=slots)
    spans = spans_of(task, "slots")
    assert spans.names == ("start", "name", "name+", "place", "place+", "end")
    named = [[spans.names[i] for i in row if i >= 0] for row in spans.label(task).tolist()]
    assert named == [
        ["start", "name", "name+", "place", "place+", "end"],
        ["start", "start", "name", "place", "end"],
    ]
    assert spans.label(task.subset([1])).tolist() == [[0, 0, 1, 3, 5, -1]]


SPAN_ERRORS: list[tuple[tuple[int, ...], Any, str]] = [
    ((3, 4), "each", "have 3 to 4 tokens; use spans='slots'"),
    ((3,), "every", "unknown spans 'every'"),
    ((3,), "slots", "'custom' has no slots"),
    ((3,), {"a": 0, "b": [0, 1]}, "span 'b' at .* overlaps another place in prompt 0"),
    ((4, 3), {"a": 3}, "span 'a' at 3 is empty, outside or overlaps another place in prompt 1"),
    ((3,), {"a": slice(5, 9)}, "span 'a' at slice.* is empty"),
    ((3,), {"a@b": 0}, "without '@' and '->'"),
]


def test_spans_that_do_not_fit_are_refused() -> None:
    for lengths, choice, message in SPAN_ERRORS:
        with pytest.raises(InputError, match=message):
            spans_of(prompts(*lengths), choice)
    with pytest.raises(InputError, match="has a span '3', but the circuit has 0, 1, 2"):
        THREE.label(prompts(4))
    with pytest.raises(InputError, match="read in span '1', but .* edges into the logits only at 2"):
        THREE.label(prompts(3, positions=torch.tensor([1])))
    with pytest.raises(InputError, match="the logits are not read in span '0'"):
        Circuit.from_edges(GRAPH, ["m1->logits@0"], THREE)


# ------------------------------------------------------------------------------------------------ scores


def test_top_and_threshold_by_hand() -> None:
    values = torch.zeros(3, GRAPH.n_sources, GRAPH.n_targets)
    row, column = GRAPH.edge_index("input->a0.kv0.k")
    values[0, row, column], values[1, row, column] = 3.0, -4.0
    values[2, 0, -1] = 1.0
    scores = EdgeScores(GRAPH, values, spans=THREE)
    assert scores.top(1).edges() == ["input->a0.kv0.k@1"]
    assert scores.top(1, absolute=False).edges() == ["input->a0.kv0.k@0"]
    assert scores.threshold(1.0).edges() == ["input->a0.kv0.k@0", "input->a0.kv0.k@1", "input->logits@2"]
    assert scores.threshold(1, absolute=False).n_edges == 2
    total = scores.total()
    assert total.values[row, column].item() == -1.0  # the terms of the two positions cancel
    assert scores["input->a0.kv0.k"] == -1.0
    frame = scores.to_frame()
    assert len(frame) == int(scores.slots.sum())
    assert frame.iloc[0].to_list() == ["1", "input", "a0.kv0.k", -4.0]


# ---------------------------------------------------------------------------------------------- circuits


def test_names_come_back() -> None:
    names = ["a0.h1->a1.h0.q@2", "input->a0.kv0.k@0", "m1->logits@2"]
    circuit = Circuit.from_edges(GRAPH, names, THREE)
    assert sorted(circuit.edges()) == sorted(names)
    assert Circuit.from_edges(GRAPH, circuit.edges(), THREE) == circuit
    assert circuit.n_edges == 3
    assert circuit.anywhere().edges() == ["input->a0.kv0.k", "a0.h1->a1.h0.q", "m1->logits"]
    assert circuit.to_frame().to_dict("list") == {
        "span": ["0", "2", "2"],
        "source": ["input", "a0.h1", "m1"],
        "target": ["a0.kv0.k", "a1.h0.q", "logits"],
        "source_layer": GRAPH.source_layer[[0, 2, -1]].tolist(),
        "target_layer": circuit.to_frame().target_layer.to_list(),
    }
    everywhere = Circuit.from_edges(GRAPH, ["input->a0.kv0.k", "m1->logits"], THREE)
    assert everywhere.n_edges == 4


def test_complement_and_ends() -> None:
    circuit, full, empty = random_scores().top(10), Circuit.full(GRAPH, THREE), Circuit.empty(GRAPH, THREE)
    assert (circuit.mask ^ (~circuit).mask).equal(full.mask)
    assert (~full, circuit.emptied()) == (empty, Circuit.empty(GRAPH))
    assert len({circuit, empty, full, ~empty}) == 3


def test_attention_alone_moves_information_and_only_forward() -> None:
    forward = ["input->a0.kv0.v@0", "a0.h0->m1@2", "m1->logits@2"]
    keep = Circuit.from_edges(GRAPH, forward, THREE)
    assert keep.connected() == keep
    # The MLP reads position 1 and is read at 2: nothing carries it there.
    stuck = Circuit.from_edges(GRAPH, ["input->a0.kv0.v@0", "a0.h0->m1@1", "m1->logits@2"], THREE)
    assert stuck.connected(warn=False).n_edges == 0
    # A value at position 2 cannot be read at 1.
    names = ["input->a0.kv0.v@2", "a0.h0->a1.kv0.k@1", "a1.h0->logits@2"]
    back = Circuit.from_edges(GRAPH, names, THREE)
    assert back.connected(warn=False).n_edges == 0
    # A query stays where it is.
    query = Circuit.from_edges(GRAPH, ["input->a0.h0.q@0", "a0.h0->m1@2", "m1->logits@2"], THREE)
    assert query.connected(warn=False).n_edges == 0
    anywhere = each(3, causal=False)
    seen = Circuit.from_edges(GRAPH, back.edges(), anywhere)
    assert seen.connected() == seen


def path_graph(circuit: Circuit) -> Any:
    """Every way of information, written out: a node per source and span and per target and span."""
    graph, spans = circuit.graph, circuit.spans
    ways: Any = nx.DiGraph()
    for number in range(len(spans)):
        ways.add_edge("start", ("source", 0, number))
        ways.add_node(("target", graph.n_targets - 1, number))
        ways.add_edge(("target", graph.n_targets - 1, number), "stop")
    for span, row, column in circuit.mask.nonzero().tolist():
        ways.add_edge(("source", row, span), ("target", column, span))
    for column, row in graph.feeds.nonzero().tolist():
        for before in range(len(spans)):
            for after in range(len(spans)):
                carried = graph.targets[column][-1] in "kv" and graph.targets[column][0] == "a"
                if bool(spans.reach[before, after]) if carried else before == after:
                    ways.add_edge(("target", column, before), ("source", row, after))
    return ways


RAGGED = Spans(
    names=("a", "b", "c"),
    reach=torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 1]]).bool(),
    read=torch.tensor([0, 1, 1]).bool(),
    rule={"kind": "slots"},
)


@given(
    seed=st.integers(0, 10_000),
    share=st.floats(0.02, 0.3),
    graph=st.sampled_from([GRAPH, build_graph(3, 4, 2), build_graph(2, 2, parallel=True), build_graph(3, 1)]),
    spans=st.sampled_from([THREE, each(3, causal=False), RAGGED, each(1)]),
)
def test_connected_is_what_lies_on_a_path(seed: int, share: float, graph: Graph, spans: Spans) -> None:
    generator = torch.Generator().manual_seed(seed)
    slots = edge_slots(graph, spans)
    mask = slots & (torch.rand(slots.shape, generator=generator) < share)
    circuit = Circuit(graph=graph, spans=spans, mask=mask)
    ways = path_graph(circuit)
    ahead = nx.descendants(ways, "start")
    behind = nx.ancestors(ways, "stop")
    expected = torch.zeros_like(mask)
    for span, row, column in mask.nonzero().tolist():
        expected[span, row, column] = ("source", row, span) in ahead and ("target", column, span) in behind
    pruned = circuit.connected(warn=False)
    assert pruned.mask.equal(expected)
    assert pruned.connected(warn=False) == pruned
    if len(spans) == 1:
        assert circuit.anywhere().connected(warn=False).mask.equal(expected[0])


# ------------------------------------------------------------------------------------------------- files


def test_files_bring_back_scores_and_circuits(tmp_path: Path) -> None:
    scores = EdgeScores(GRAPH, random_scores().values, spans=RAGGED, details={"seconds": 1.5})
    loaded = load_scores(scores.save(tmp_path / "scores.safetensors"), GRAPH)
    assert loaded.values.equal(scores.values)
    assert loaded.spans.describe() == RAGGED.describe()
    circuit = scores.top(5)
    again = load_circuit(circuit.save(tmp_path / "circuit.safetensors"))
    assert (again, again.provenance["k"]) == (circuit, 5)
    # Files of their former kinds.
    shared = {"spans": RAGGED, "provenance": {}}
    old = write_edges(tmp_path / "old", GRAPH, {"mask": circuit.mask}, kind="position circuit", **shared)
    assert load_circuit(old) == circuit
    arrays = {"values": scores.values}
    old = write_edges(tmp_path / "old", GRAPH, arrays, kind="position scores", details={}, **shared)
    assert load_scores(old).values.equal(scores.values)


def test_what_does_not_fit_spans_is_refused() -> None:
    scores = random_scores()
    for call, message in (
        (lambda: certify(scores, 3), r"certify does not accept edges at spans .* give scores.total\(\)"),
        (lambda: scores.greedy(3), r"greedy growth does not accept edges at spans .* scores.total"),
        (lambda: scores.top(3).jaccard(scores.total().top(3)), "have different spans"),
        (lambda: EdgeScores(GRAPH, scores.values[0], spans=THREE), r"values has shape .* expected \(3, "),
        (lambda: EdgeScores(GRAPH, scores.values), r"values has shape \(3, "),
        (lambda: replace(scores, per_example=scores.values), "and none for scores at spans"),
        (lambda: replace(scores.top(3), mask=scores.top(3).mask[0]), r"a torch.bool mask of shape \(3, "),
    ):
        with pytest.raises(InputError, match=message):
            call()
