"""Files of EAP-IG and MIB: exact round trips, published spellings, hostile input; graphs for Neuronpedia."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.circuits import Circuit, EdgeScores, NodeScores, export_circuit, read_eap_ig, write_eap_ig
from assay.circuits.exchange import attribution_graph, their_edges
from assay.core.errors import (
    AssayError,
    AssayWarning,
    FileFormatError,
    GraphMismatchError,
    InputError,
    NonFiniteError,
    OutputError,
    UnknownNameError,
    UnsafeFileError,
)
from assay.graph import Graph, build_graph


GRAPH = build_graph(2, 3)
GROUPED = build_graph(2, 6, 2)
PARALLEL = build_graph(2, 2, parallel=True)


def random_scores(graph: Graph = GRAPH, seed: int = 0, dtype: torch.dtype = torch.float32) -> EdgeScores:
    generator = torch.Generator().manual_seed(seed)
    return EdgeScores(graph, torch.randn(graph.valid.shape, generator=generator, dtype=dtype))


def eap_ig_edges(n_layers: int, n_heads: int, parallel: bool = False) -> list[str]:
    """Edge names in the order in which EAP-IG's `Graph.from_model` adds them, by its nested loops."""
    names: list[str] = []
    stream = ["input"]
    for layer in range(n_layers):
        heads = [f"a{layer}.h{head}" for head in range(n_heads)]
        names += [f"{node}->{head}<{letter}>" for node in stream for head in heads for letter in "qkv"]
        if parallel:
            names += [f"{node}->m{layer}" for node in stream]
        else:
            names += [f"{node}->m{layer}" for node in [*stream, *heads]]
        stream += [*heads, f"m{layer}"]
    return names + [f"{node}->logits" for node in stream]


def document(n_layers: int = 1, n_heads: int = 2) -> dict[str, Any]:
    """A file as EAP-IG writes it."""
    nodes = ["input", *(f"a{layer}.h{head}" for layer in range(n_layers) for head in range(n_heads))]
    nodes += [f"m{layer}" for layer in range(n_layers)] + ["logits"]
    return {
        "cfg": {"n_layers": n_layers, "n_heads": n_heads, "parallel_attn_mlp": False, "d_model": 8},
        "nodes": {name: {"in_graph": True} for name in nodes},
        "edges": {
            name: {"score": index / 7, "in_graph": index % 3 == 0}
            for index, name in enumerate(eap_ig_edges(n_layers, n_heads))
        },
    }


def put(folder: Path, content: Any, name: str = "graph.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# ---- reading --------------------------------------------------------------------------------------------


def test_every_edge_of_the_published_order_is_read(tmp_path: Path) -> None:
    content = document(2, 3)
    found = read_eap_ig(put(tmp_path, content), GRAPH)
    assert found.scores is not None
    assert found.circuit is not None
    assert len(content["edges"]) == GRAPH.n_edges
    for name, value in content["edges"].items():
        at = GRAPH.edge_index(name)
        assert float(found.scores.values[at]) == value["score"]
        assert bool(found.circuit.mask[at]) == value["in_graph"]
    assert found.scores.provenance["sign"] == "positive: keep"
    assert set(their_edges(PARALLEL)) == set(eap_ig_edges(2, 2, parallel=True))


OLDER: list[tuple[Callable[[dict[str, Any]], object], bool, bool]] = [
    (lambda value: value, True, True),
    (lambda value: value["score"], True, False),
    (lambda value: value["in_graph"], False, True),
    (lambda value: value | {"score": None}, False, True),
]


@pytest.mark.parametrize(("edge", "has_scores", "has_circuit"), OLDER)
def test_older_files_are_read(tmp_path: Path, edge: Any, has_scores: bool, has_circuit: bool) -> None:
    content = document()
    expected = read_eap_ig(put(tmp_path, content))
    content["nodes"] = dict.fromkeys(content["nodes"], True)
    content["edges"] = {name: edge(value) for name, value in content["edges"].items()}
    del content["cfg"]["parallel_attn_mlp"], content["cfg"]["d_model"]
    found = read_eap_ig(put(tmp_path, content))
    assert found.circuit == (expected.circuit if has_circuit else None)
    assert (found.scores is not None) == has_scores
    assert found.scores is None or torch.equal(found.scores.values, expected.scores.values)


# ---- grouped queries ------------------------------------------------------------------------------------


def test_copies_of_a_shared_edge_add_up_and_one_of_them_keeps_it(tmp_path: Path) -> None:
    content, grouped = document(1, 4), build_graph(1, 4, 2)
    score = {name: value["score"] for name, value in content["edges"].items()}
    for name, value in content["edges"].items():
        value["in_graph"] = name in ("input->a0.h2<v>", "input->a0.h0<k>", "input->a0.h1<k>", "m0->logits")
    with pytest.warns(AssayWarning, match="keeps some of the copies of 1 edges that are single ones here"):
        found = read_eap_ig(put(tmp_path, content), grouped)
    assert found.scores is not None
    assert found.circuit is not None
    expected = score["input->a0.h2<v>"] + score["input->a0.h3<v>"]
    assert found.scores["input->a0.kv1.v"] == pytest.approx(expected, rel=1e-12)
    assert found.scores["input->a0.h3.q"] == score["input->a0.h3<q>"]
    assert found.circuit.edges() == ["input->a0.kv0.k", "input->a0.kv1.v", "m0->logits"]
    assert found.circuit.provenance["split_edges"] == 1


# ---- round trips ----------------------------------------------------------------------------------------


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    graph=st.sampled_from([GRAPH, GROUPED, PARALLEL, build_graph(1, 4, 1, parallel=True)]),
    seed=st.integers(0, 1000),
    kept=st.integers(0, 30),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_scores_and_circuits_come_back_exactly(
    tmp_path: Path, graph: Graph, seed: int, kept: int, dtype: torch.dtype
) -> None:
    group = graph.n_heads // graph.n_kv_heads
    scores = random_scores(graph, seed, dtype)
    circuit = Circuit.random(graph, min(kept, graph.n_edges), seed=seed)
    path = write_eap_ig(scores, tmp_path / "both.json", circuit=circuit, d_model=16)
    found = read_eap_ig(path, graph)
    assert found.scores is not None
    if group in (1, 2, 4) or dtype == torch.float32:  # thirds of a float64 round
        assert torch.equal(found.scores.values, scores.values)
        assert found.scores.values.dtype == dtype
    else:
        torch.testing.assert_close(found.scores.values, scores.values, rtol=1e-15, atol=0)
    assert (found.circuit or Circuit.empty(graph)) == circuit
    alone = read_eap_ig(write_eap_ig(circuit, tmp_path / "alone.json"), graph)
    assert (alone.circuit or Circuit.empty(graph)) == circuit


def test_a_written_file_is_what_eap_ig_reads(tmp_path: Path) -> None:
    circuit = Circuit.from_edges(GRAPH, ["input->a0.h1.q", "a0.h1->logits"])
    content = json.loads(write_eap_ig(circuit, tmp_path / "circuit.json", d_model=16).read_text())
    assert set(content) == {"cfg", "nodes", "edges"}
    assert content["cfg"] == {"n_layers": 2, "n_heads": 3, "parallel_attn_mlp": False, "d_model": 16}
    assert set(content["edges"]) == set(eap_ig_edges(2, 3))
    assert content["edges"]["input->a0.h1<q>"] == {"score": 1.0, "in_graph": True}
    assert content["edges"]["input->a0.h1<k>"] == {"score": 0.0, "in_graph": False}
    marked = [name for name, node in content["nodes"].items() if node["in_graph"]]
    assert marked == ["input", "a0.h1", "logits"]


def torch_file(path: Path, **changes: Any) -> Path:
    """A file as EAP-IG's `to_pt` writes it: all cells filled, also those without an edge."""
    scores = torch.arange(GRAPH.valid.numel(), dtype=torch.float32).view_as(GRAPH.valid) / 3
    content = {
        "cfg": {"n_layers": 2, "n_heads": 3, "parallel_attn_mlp": False, "d_model": 24},
        "src_nodes": list(GRAPH.sources),
        "dst_nodes": [name[:-2] + f"<{name[-1]}>" if "." in name else name for name in GRAPH.targets],
        "edges_scores": scores.masked_fill(~GRAPH.valid, -torch.inf),
        "edges_in_graph": scores > 4,
        "nodes_in_graph": torch.ones(GRAPH.n_sources, dtype=torch.bool),
    }
    torch.save({key: value for key, value in (content | changes).items() if value is not None}, path)
    return path


def test_torch_files_are_read(tmp_path: Path) -> None:
    found = read_eap_ig(torch_file(tmp_path / "graph.pt"), GRAPH)
    scores = torch.arange(GRAPH.valid.numel(), dtype=torch.float32).view_as(GRAPH.valid) / 3
    assert found.scores is not None
    assert found.circuit is not None
    assert torch.equal(found.scores.values, scores.where(GRAPH.valid, 0))
    assert torch.equal(found.circuit.mask, (scores > 4) & GRAPH.valid)


@pytest.mark.parametrize("graph", [GRAPH, GROUPED, PARALLEL])
@pytest.mark.parametrize("ending", ["json", "pt"])
def test_nodes_and_neurons_come_back_exactly(tmp_path: Path, graph: Graph, ending: str) -> None:
    generator = torch.Generator().manual_seed(1)
    path = tmp_path / f"graph.{ending}"
    values = torch.randn(graph.n_sources, generator=generator)
    values[1] = torch.nan  # without a score: always kept
    nodes = NodeScores(graph, values)
    found = read_eap_ig(write_eap_ig(nodes, path, circuit=nodes.top(3), d_model=5), graph)
    assert (found.scores, found.neuron_scores) == (None, None)
    assert found.node_scores is not None
    torch.testing.assert_close(found.node_scores.values, values, rtol=0, atol=0, equal_nan=True)
    assert found.circuit == nodes.top(3)
    assert read_eap_ig(write_eap_ig(nodes.top(3), path), graph).circuit == nodes.top(3)
    values = torch.randn(graph.n_sources, 5, generator=generator)
    values[0], values[2, 3] = torch.nan, torch.nan
    neurons = NodeScores(graph, values)
    found = read_eap_ig(write_eap_ig(neurons, path, circuit=neurons.top(9)), graph)
    assert (found.scores, found.node_scores) == (None, None)
    assert found.neuron_scores is not None
    torch.testing.assert_close(found.neuron_scores.values, values, rtol=0, atol=0, equal_nan=True)
    assert found.circuit == neurons.top(9)
    assert read_eap_ig(write_eap_ig(neurons, path), graph).circuit is None


def test_a_file_of_neurons_has_the_form_that_eap_ig_reads(tmp_path: Path) -> None:
    """`from_json` assigns a head's neurons to the rows of its whole layer, and skips `logits`."""
    neurons = NodeScores(GRAPH, torch.arange(GRAPH.n_sources * 4.0).view(-1, 4))
    content = json.loads(write_eap_ig(neurons, tmp_path / "graph.json", circuit=neurons.top(6)).read_text())
    assert content["cfg"]["d_model"] == 4
    assert content["nodes"]["logits"] == {"in_graph": True}
    assert content["nodes"]["input"]["neurons_scores"] == [0, 1, 2, 3]
    for head in ("a1.h0", "a1.h2"):
        assert content["nodes"][head]["neurons_scores"] == neurons.values[5:8].tolist()
        assert content["nodes"][head]["neurons"] == [[False] * 4, [False] * 4, [False, False, True, True]]
    assert [name for name, node in content["nodes"].items() if node["in_graph"]] == ["a1.h2", "m1", "logits"]
    marked = [name for name, edge in content["edges"].items() if edge["in_graph"]]
    assert marked == ["a1.h2->m1", "a1.h2->logits", "m1->logits"]


class Harmful:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return (print, ("run",))


def test_a_torch_file_that_runs_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnsafeFileError, match="could run code"):
        read_eap_ig(torch_file(tmp_path / "graph.pt", extra=Harmful()))
    path = tmp_path / "plain.pt"
    path.write_bytes(pickle.dumps({"cfg": Harmful()}, protocol=2))
    with pytest.raises(UnsafeFileError, match="could run code"):
        read_eap_ig(path)
    assert "run" not in capsys.readouterr().out
    for changes, message in (
        ({"edges_scores": torch.zeros(2, 2)}, "is not a graph file of EAP-IG.*shape mismatch"),
        ({"edges_in_graph": "all"}, "is not a graph file of EAP-IG"),
        ({"neurons_in_graph": torch.zeros(8, 24)}, "shape mismatch"),
        ({"neurons_in_graph": torch.ones(9, 24)}, "cuts edges among nodes with kept neurons"),
    ):
        with pytest.raises(FileFormatError, match=message):
            read_eap_ig(torch_file(tmp_path / "graph.pt", **changes))


# ---- bad files ------------------------------------------------------------------------------------------


def with_edge(name: str, value: Any = None) -> dict[str, Any]:
    content = document()
    content["edges"][name] = {"score": 1.0, "in_graph": True} if value is None else value
    return content


def without_edges() -> dict[str, Any]:
    content = document()
    del content["edges"]["input->a0.h1<k>"], content["edges"]["m0->logits"]
    return content


FOREIGN = "is not a graph file of EAP-IG"
BAD: list[tuple[Any, type[AssayError], str]] = [
    (with_edge("input->a0.h9<q>"), UnknownNameError, r"unknown target 'a0\.h9<q>' .*; did you mean"),
    (with_edge("m0->a0.h1<q>"), UnknownNameError, r"m0 writes after a0\.h1\.q reads"),
    (with_edge("a" * 10_000 + "->m0"), InputError, "edge 'a{80}' has no '->'"),
    (with_edge("input->m0\x00\x1b[2J"), UnknownNameError, r"unknown target 'm0\\x00"),
    (with_edge("input->m0", {"score": float("nan"), "in_graph": True}), NonFiniteError, "m0 is nan"),
    ("[1]", FileFormatError, FOREIGN),
    ("[" * 100_000, FileFormatError, "nested too deeply"),
    ('{"cfg": {"n_layers": 1, "n_heads": 2}, "nodes": {}}', FileFormatError, "EAP-IG, with cfg, nodes"),
    (without_edges(), FileFormatError, r"2 of its 13 edges are missing, the first is 'input->a0\.h1\.k'"),
    ({**document(), "cfg": {"n_layers": "1", "n_heads": 2}}, FileFormatError, FOREIGN),
    ({**document(), "cfg": {"n_layers": 10**9, "n_heads": 10**9}}, FileFormatError, "more than any file"),
    ({**document(), "nodes": {"a0.h0": {"neurons": [[True] * 8]}}}, FileFormatError, r"expected \(2, 8\)"),
    ({**document(), "nodes": {"m0": {"score": 1e999}}}, NonFiniteError, "a score of m0 is infinite"),
    (with_edge("input->m0", {"score": "high"}), FileFormatError, FOREIGN),
    (with_edge("input->m0", {"score": 10**400}), FileFormatError, FOREIGN),
]


@pytest.mark.parametrize(("content", "error", "message"), BAD)
def test_foreign_files_are_refused(
    tmp_path: Path, content: Any, error: type[AssayError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_eap_ig(put(tmp_path, content))


def test_graphs_and_arguments_must_fit(tmp_path: Path) -> None:
    path, out = put(tmp_path, document()), tmp_path / "out.json"
    attention_only = build_graph(1, 2, mlps=False)
    cases: list[tuple[Callable[[], object], type[AssayError], str]] = [
        (lambda: read_eap_ig(path, GRAPH), GraphMismatchError, "describes .*'n_layers': 1, .*'n_layers': 2"),
        (lambda: read_eap_ig(path, build_graph(1, 2, parallel=True)), GraphMismatchError, "'parallel': True"),
        (lambda: read_eap_ig(path, attention_only), GraphMismatchError, "'mlps': False"),
        (lambda: write_eap_ig(random_scores(attention_only), out), GraphMismatchError, "attention-only"),
        (
            lambda: write_eap_ig(random_scores(), out, circuit=Circuit.full(PARALLEL)),
            GraphMismatchError,
            "the circuit belongs to another model",
        ),
        (lambda: read_eap_ig(tmp_path / "absent.json"), FileFormatError, "does not exist"),
        (lambda: write_eap_ig(random_scores(), tmp_path / "no" / "out.json"), OutputError, "cannot write"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
    assert not out.exists()


# ---- Neuronpedia ----------------------------------------------------------------------------------------


NUMBER, TEXT, LIST, DICT = (int, float), (str,), (list,), (dict,)
# Fields of Neuronpedia's published JSON schema of attribution graphs, with the types of their values; those
# that begin with "?" may be left out.
QUERY = ("?linkType", "?clickedId", "?sg_pos")
SCHEMA: dict[str, dict[str, tuple[type, ...]]] = {
    "": {"metadata": DICT, "qParams": DICT, "nodes": LIST, "links": LIST},
    "metadata": {"slug": TEXT, "scan": TEXT, "prompt_tokens": LIST, "prompt": TEXT, "?info": DICT},
    "info": {"?description": TEXT, "?generator": DICT},
    "generator": {"?name": TEXT, "?version": TEXT},
    "qParams": {"?pinnedIds": LIST, "?supernodes": LIST, **dict.fromkeys(QUERY, TEXT)},
    "node": {
        **dict.fromkeys(("node_id", "feature_type", "jsNodeId", "clerp"), TEXT),
        **dict.fromkeys(("?influence", "?activation"), (*NUMBER, type(None))),
        "feature": (int, type(None)),
        "layer": (str, int),
        "ctx_idx": (int,),
    },
    "link": {"source": TEXT, "target": TEXT, "weight": NUMBER},
}


def check_part(part: dict[str, Any], kind: str) -> None:
    """One object against the schema: what must be there, and that every field is known and has its type."""
    types = {name.lstrip("?"): each for name, each in SCHEMA[kind].items()}
    required = {name for name in SCHEMA[kind] if not name.startswith("?")}
    assert required <= set(part) <= set(types), kind
    for name, value in part.items():
        assert isinstance(value, types[name]), f"{kind}.{name} is {value!r}"
        assert not isinstance(value, bool)


def check_attribution_graph(document: dict[str, Any]) -> None:
    metadata, query = document["metadata"], document["qParams"]
    check_part(document, "")
    check_part(query, "qParams")
    for kind, part in (("metadata", metadata), ("info", info := metadata["info"])):
        check_part(part, kind)
    check_part(info["generator"], "generator")
    for node in document["nodes"]:
        check_part(node, "node")
        assert 0 <= node["ctx_idx"] < len(metadata["prompt_tokens"])
    ids = {node["node_id"] for node in document["nodes"]}
    assert len(ids) == len(document["nodes"])
    for link in document["links"]:
        check_part(link, "link")
        assert {link["source"], link["target"]} <= ids


@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_an_attribution_graph_has_the_form_that_neuronpedia_reads(n_kv_heads: int, tmp_path: Path) -> None:
    scores = random_scores(build_graph(2, 4, n_kv_heads))
    circuit = scores.top(60)
    path = export_circuit(tmp_path / "c.json", circuit, scores=scores, model="mini", tokens=("a", " b", " c"))
    document = json.loads(path.read_text())
    check_attribution_graph(document)
    assert (document["metadata"]["scan"], document["metadata"]["prompt"]) == ("mini", "a b c")
    head = {node["clerp"]: node for node in document["nodes"]}["a1.h0"]
    assert (head["node_id"], head["feature_type"]) == ("1_0_2", "attention head")
    total = sum(link["weight"] for link in document["links"])
    assert total == pytest.approx(float(scores.values[circuit.mask].sum()), rel=1e-5)


def test_scores_of_query_key_and_value_are_summed_into_one_link(tmp_path: Path) -> None:
    graph = build_graph(1, 2)
    circuit = Circuit.from_edges(graph, ["input->a0.h1.q", "input->a0.h1.k", "a0.h1->logits"])
    values = torch.zeros(graph.n_sources, graph.n_targets)
    for target, score in (("a0.h1.q", 0.5), ("a0.h1.k", -0.2)):
        values[0, graph.target_index(target)] = score
    values[graph.source_index("a0.h1"), graph.target_index("logits")] = 2.0
    document = attribution_graph(circuit, scores=EdgeScores(graph, values))
    check_attribution_graph(document)
    links = {(link["source"], link["target"]): link["weight"] for link in document["links"]}
    assert links == {("E_0_0", "0_1_0"): pytest.approx(0.3), ("0_1_0", "1_0_0"): 2.0}
    for other, scores, error, message in (
        (circuit, None, OutputError, "cannot write"),
        (Circuit.empty(graph), None, InputError, "keeps no edge"),
        (circuit, random_scores(), GraphMismatchError, "scores belongs to another model"),
    ):
        with pytest.raises(error, match=message):
            export_circuit(tmp_path / "nowhere" / "c.json", other, scores=scores)
