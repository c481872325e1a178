"""Files of EAP-IG and submissions to MIB: exact round trips, every published spelling, and hostile input."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.circuits import Circuit, EdgeScores
from assay.circuits.eap_ig import (
    load_submission,
    read_eap_ig,
    save_submission,
    their_edges,
    write_eap_ig,
)
from assay.core.errors import (
    AssayError,
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


def test_the_edges_of_parallel_blocks_are_those_of_the_published_loops() -> None:
    assert set(their_edges(PARALLEL)) == set(eap_ig_edges(2, 2, parallel=True))


@pytest.mark.parametrize("older", ["flag per node", "score per edge", "flag per edge", "no score"])
def test_older_files_are_read(tmp_path: Path, older: str) -> None:
    content = document()
    expected = read_eap_ig(put(tmp_path, content))
    assert expected.scores is not None
    if older == "flag per node":
        content["nodes"] = dict.fromkeys(content["nodes"], True)
    elif older == "score per edge":
        content["edges"] = {name: value["score"] for name, value in content["edges"].items()}
    elif older == "flag per edge":
        content["edges"] = {name: value["in_graph"] for name, value in content["edges"].items()}
    else:
        content["edges"] = {name: value | {"score": None} for name, value in content["edges"].items()}
    del content["cfg"]["parallel_attn_mlp"], content["cfg"]["d_model"]
    found = read_eap_ig(put(tmp_path, content))
    if older in ("flag per node", "score per edge"):
        assert found.scores is not None
        assert torch.equal(found.scores.values, expected.scores.values)
    else:
        assert found.scores is None
    assert (found.circuit is None) == (older == "score per edge")


def test_missing_edges_are_refused(tmp_path: Path) -> None:
    content = document()
    del content["edges"]["input->a0.h1<k>"], content["edges"]["m0->logits"]
    with pytest.raises(
        FileFormatError, match=r"2 of its 13 edges are missing, the first is 'input->a0\.h1\.k'"
    ):
        read_eap_ig(put(tmp_path, content))


# ---- grouped queries ------------------------------------------------------------------------------------


def test_copies_of_a_shared_edge_add_up(tmp_path: Path) -> None:
    content = document(1, 4)
    grouped = build_graph(1, 4, 2)
    found = read_eap_ig(put(tmp_path, content | {"edges": content["edges"]}), grouped, shared="any")
    assert found.scores is not None
    score = {name: value["score"] for name, value in content["edges"].items()}
    at = grouped.edge_index("input->a0.kv1.v")
    expected = score["input->a0.h2<v>"] + score["input->a0.h3<v>"]
    assert float(found.scores.values[at]) == pytest.approx(expected, rel=1e-12)
    at = grouped.edge_index("input->a0.h3.q")
    assert float(found.scores.values[at]) == score["input->a0.h3<q>"]


def test_a_split_edge_is_kept_as_told(tmp_path: Path) -> None:
    content = document(1, 4)
    grouped = build_graph(1, 4, 2)
    for name, value in content["edges"].items():
        value["in_graph"] = name in ("input->a0.h2<v>", "input->a0.h0<k>", "input->a0.h1<k>", "m0->logits")
    path = put(tmp_path, content)
    with pytest.raises(InputError, match=r"keeps 1 of the 2 copies of input->a0\.kv1\.v"):
        read_eap_ig(path, grouped)
    loose, strict = (read_eap_ig(path, grouped, shared=rule).circuit for rule in ("any", "all"))
    assert loose is not None
    assert strict is not None
    assert loose.edges() == ["input->a0.kv0.k", "input->a0.kv1.v", "m0->logits"]
    assert strict.edges() == ["input->a0.kv0.k", "m0->logits"]
    assert strict.provenance["split_edges"] == 1


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
    assert [name for name, node in content["nodes"].items() if node["in_graph"]] == [
        "input",
        "a0.h1",
        "logits",
    ]


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges_scores": None}, "is not a graph file of EAP-IG .*edges_scores"),
        ({"edges_scores": torch.zeros(2, 2)}, "is not a graph file of EAP-IG .*shape mismatch"),
        ({"edges_in_graph": "all"}, "is not a graph file of EAP-IG"),
        ({"neurons_in_graph": torch.zeros(9, 24)}, "single neurons"),
        ({"edges_in_graph": torch.zeros(9)}, "is not a graph file of EAP-IG"),
    ],
)
def test_foreign_torch_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        read_eap_ig(torch_file(tmp_path / "graph.pt", **changes))


# ---- bad files ------------------------------------------------------------------------------------------


def changed(**edges: Any) -> dict[str, Any]:
    content = document()
    content["edges"] |= edges
    return content


def with_edge(name: str, value: Any = None) -> dict[str, Any]:
    return changed(**{name: {"score": 1.0, "in_graph": True} if value is None else value})


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("input->a0.h9<q>", UnknownNameError, r"unknown target 'a0\.h9<q>' in a graph of .*; did you mean"),
        ("imput->m0", UnknownNameError, r"unknown source 'imput' .* did you mean input\?"),
        ("m0->a0.h1<q>", UnknownNameError, r"m0 writes after a0\.h1\.q reads"),
        ("m0", InputError, "edge 'm0' has no '->'"),
        ("a" * 10_000 + "->m0", InputError, "edge 'a{80}' has no '->'"),
        ("input->m0\x00\x1b[2J", UnknownNameError, r"unknown target 'm0\\x00"),
    ],
)
def test_unknown_edges_are_refused_by_name(
    tmp_path: Path, name: str, error: type[AssayError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_eap_ig(put(tmp_path, with_edge(name)))


@pytest.mark.parametrize("score", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_scores_that_are_not_finite_are_refused(tmp_path: Path, score: str) -> None:
    text = json.dumps(with_edge("input->m0", {"score": "here", "in_graph": True})).replace('"here"', score)
    with pytest.raises(NonFiniteError, match=r"score of input->m0 is (nan|-?inf)"):
        read_eap_ig(put(tmp_path, text))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "is not a graph file of EAP-IG"),
        ("{", "is not a graph file of EAP-IG"),
        ("[" * 100_000, "nested too deeply"),
        ('{"cfg": {"n_layers": 1, "n_heads": 2}, "nodes": {}}', "edge level, with cfg, nodes and edges"),
        ({**document(), "edges": {}}, "13 of its 13 edges are missing"),
        ({**document(), "cfg": {"n_layers": "1", "n_heads": 2}}, "is not a graph file of EAP-IG"),
        ({**document(), "cfg": {"n_layers": 10**9, "n_heads": 10**9}}, "more than any file"),
        ({**document(), "nodes": {"m0": {"in_graph": True, "neurons": [True]}}}, "single neurons"),
        (with_edge("input->m0", {"score": "high"}), "is not a graph file of EAP-IG"),
        (with_edge("input->m0", [1.0]), "is not a graph file of EAP-IG"),
        (with_edge("input->m0", {"score": 1.0, "in_graph": "yes"}), "is not a graph file of EAP-IG"),
        (with_edge("input->m0", {"score": 10**400}), "is not a graph file of EAP-IG"),
        (with_edge("input->m0", {"in_graph": True}), "is not a graph file of EAP-IG"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        read_eap_ig(put(tmp_path, content))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_raises_anything_but_an_error_of_ours(tmp_path: Path, data: st.DataObject) -> None:
    text = bytearray(json.dumps(document()).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at] = data.draw(st.sampled_from(list(b'{}[]":,0123456789.eE-+<>qkvamhl \\tfnN\xff\x00')))
    path = tmp_path / "damaged.json"
    path.write_bytes(bytes(text))
    try:
        found = read_eap_ig(path)
    except AssayError:
        return
    assert found.scores is not None or found.circuit is not None or found.graph.n_edges == 13


def test_graphs_must_agree(tmp_path: Path) -> None:
    path = put(tmp_path, document())
    with pytest.raises(
        GraphMismatchError, match="describes .*'n_layers': 1, .*requested graph is .*'n_layers': 2"
    ):
        read_eap_ig(path, GRAPH)
    with pytest.raises(GraphMismatchError, match="'parallel': False.*'parallel': True"):
        read_eap_ig(path, build_graph(1, 2, parallel=True))
    with pytest.raises(GraphMismatchError, match="'mlps': False"):
        read_eap_ig(path, build_graph(1, 2, mlps=False))
    with pytest.raises(GraphMismatchError, match="an attention-only graph cannot be written"):
        write_eap_ig(random_scores(build_graph(1, 2, mlps=False)), tmp_path / "out.json")
    with pytest.raises(GraphMismatchError, match="the circuit belongs to the graph"):
        write_eap_ig(random_scores(), tmp_path / "out.json", circuit=Circuit.full(PARALLEL))
    assert not (tmp_path / "out.json").exists()


def test_other_misuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="does not exist"):
        read_eap_ig(tmp_path / "absent.json")
    with pytest.raises(UnknownNameError, match="unknown rule for shared edges 'some'"):
        read_eap_ig(put(tmp_path, document()), shared="some")
    with pytest.raises(OutputError, match="cannot write"):
        write_eap_ig(random_scores(), tmp_path / "nowhere" / "out.json")


# ---- submissions ----------------------------------------------------------------------------------------


def test_submissions_come_back_as_they_were(tmp_path: Path) -> None:
    entries = {
        ("arc-easy", "llama3"): random_scores(GROUPED),
        ("arithmetic_addition", "qwen2_5"): random_scores(GRAPH, 1),
        ("ioi", "gpt2"): random_scores(),
    }
    root = save_submission(entries, tmp_path / "submission", d_model={"gpt2": 16})
    (root / "ioi_gpt2" / ".DS_Store.json").write_text("")
    found = load_submission(root, {"llama3": GROUPED})
    assert list(found) == list(entries)
    for key, scores in entries.items():
        assert torch.equal(found[key].values, scores.values)
    assert found["ioi", "gpt2"].provenance["task"] == "ioi"
    assert list(load_submission(root / "ioi_gpt2", GRAPH)) == [("ioi", "gpt2")]
    assert json.loads((root / "ioi_gpt2" / "importances.json").read_text())["cfg"]["d_model"] == 16


@pytest.mark.parametrize(
    "name", ["", "..", "../up", "a/b", "ioi\\x", "ioi ", "a\nb", "-ioi", "x..y", "nul\x00", "x" * 300]
)
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    for key in ((name, "gpt2"), ("ioi", name), ("ioi", "my_model")):
        with pytest.raises(InputError, match="cannot name a folder"):
            save_submission({key: random_scores()}, tmp_path / "submission")
    assert not (tmp_path / "submission").exists()


def test_folders_that_are_no_submission_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="folder .* does not exist"):
        load_submission(tmp_path / "absent")
    (tmp_path / "ioi_gpt2").mkdir()
    with pytest.raises(FileFormatError, match="has 0 .json and .pt files"):
        load_submission(tmp_path)
    (tmp_path / "gpt2").mkdir()
    with pytest.raises(FileFormatError, match="does not name a task and a model"):
        load_submission(tmp_path)
