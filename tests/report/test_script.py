"""The page's script against the Python it must agree with, run by node where there is one."""

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import large_document

from assay.circuits import EdgeScores
from assay.graph import build_graph
from assay.page.circuit import circuit_drawing, stroke_width
from assay.page.html import script
from assay.page.viewer import circuit_view, packed_pattern, packed_weights


def run_node(program: str, data: Any) -> Any:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the page's script is not compared with the library")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "script.js"
        place.write_text(script(), encoding="utf-8")
        start = f"const page = require({json.dumps(str(place))}), data = JSON.parse(process.argv[1]);"
        command = [node, "-e", f"{start}\n{program}", json.dumps(data)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def shown(expression: str, data: Any) -> Any:
    """The value of an expression over `page` and `data`."""
    return run_node(f"console.log(JSON.stringify({expression}))", data)


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("parallel", [False, True])
def test_the_slider_prunes_exactly_as_circuits_do(n_kv_heads: int, parallel: bool) -> None:
    graph = build_graph(3, 4, n_kv_heads, parallel=parallel)
    generator = torch.Generator().manual_seed(n_kv_heads)
    scores = EdgeScores(graph, torch.randn(graph.n_sources, graph.n_targets, generator=generator))
    order = scores.values.abs().masked_fill(~graph.valid, -1).flatten().argsort(descending=True, stable=True)
    edges = []
    for place in order[: graph.n_edges].tolist():
        row, column = divmod(place, graph.n_targets)
        feeds = graph.feeds[column].nonzero().flatten().tolist() or [graph.n_sources]
        edges.append({"source": row, "feeds": feeds})
    sizes = [1, 5, 20, 40, 80, graph.n_edges]
    program = (
        "console.log(JSON.stringify(data.sizes.map((size) => page.connected(data.edges, size, data.n))))"
    )
    found = run_node(program, {"edges": edges, "sizes": sizes, "n": graph.n_sources + 1})
    for size, kept in zip(sizes, found, strict=True):
        circuit = scores.top(size).connected(warn=False)
        names = {
            graph.edge_name(*divmod(int(place), graph.n_targets))
            for place, keep in zip(order, kept, strict=False)
            if keep
        }
        assert names == set(circuit.edges())


def test_the_paths_of_many_edges_are_those_of_the_library() -> None:
    document = large_document()
    edges = document["edges"][:900]
    data = circuit_view(document["graph"], edges, caption="").data
    packed = data["edges"]["path"]
    assert sum("S" in path for path in packed) > 800
    found = run_node("console.log(JSON.stringify(page.readEdges(data).map((edge) => edge.path)))", data)
    drawing = circuit_drawing(document["graph"], edges)
    for path, edge in zip(found, drawing.edges, strict=True):
        one, other = ([float(each) for each in re.findall(r"[\d.]+", text)] for text in (path, edge.path))
        assert re.sub(r"[\d. ]", "", path) == re.sub(r"[\d. ]", "", edge.path)
        assert one == pytest.approx(other, abs=0.11)


def test_faithfulness_between_measured_sizes_is_interpolated_in_the_logarithm() -> None:
    program = (
        "console.log(JSON.stringify(data.at.map((size) => page.interpolate(data.sizes, data.values, size))))"
    )
    data = {"sizes": [1, 10, 100], "values": [None, 0.2, 0.8], "at": [1, 5, 10, 31.622776601683793, 100, 200]}
    assert run_node(program, data) == [None, None, 0.2, pytest.approx(0.5), 0.8, None]


def test_scores_are_written_with_their_sign() -> None:
    program = "console.log(JSON.stringify(data.map(page.signed)))"
    assert run_node(program, [0.5, -0.25, 0.0, 1e-5]) == [
        "+0.500",
        "\N{MINUS SIGN}0.250",
        "+0.000",
        "+1.0e-5",
    ]


EDGES = [
    {"i": 0, "source": 0, "feeds": [1], "target": "a0.h0.q", "from": 0, "to": 1},
    {"i": 1, "source": 1, "feeds": [2], "target": "m0", "from": 1, "to": 1},
    {"i": 2, "source": 2, "feeds": [3], "target": "logits", "from": 1, "to": 2},
    {"i": 3, "source": 0, "feeds": [3], "target": "logits", "from": 0, "to": 2},
    {"i": 4, "source": 1, "feeds": [3], "target": "logits", "from": 1, "to": 2},
]
NODES = ["input", "a0.h0", "m0", "logits"]
WEIGHTS = [0.5, -0.4, 0.1, -0.3, 0.05]
OPEN = {"from": None, "to": None, "sign": "", "minimum": 0, "role": None}


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"from": 1}, [1, 2, 4]),
        ({"to": 2}, [2, 3, 4]),
        ({"from": 1, "to": 1}, [1]),
        ({"sign": "minus"}, [1, 3]),
        ({"sign": "plus", "minimum": 0.1}, [0, 2]),
        ({"minimum": 0.3}, [0, 1, 3]),
    ],
)
def test_a_filter_keeps_edges_by_layer_sign_and_weight(chosen: dict[str, Any], kept: list[int]) -> None:
    data = {"edges": EDGES, "weights": WEIGHTS, "filter": {**OPEN, **chosen}}
    call = "page.passes(edge, data.weights[edge.i], data.filter)"
    assert shown(f"data.edges.filter((edge) => {call}).map((edge) => edge.i)", data) == kept


def test_a_filter_by_role_keeps_edges_that_touch_one_of_its_nodes() -> None:
    program = """const filter = {...data.filter, role: new Set([2])};
    const kept = data.edges.filter((edge) => page.passes(edge, 1, filter));
    console.log(JSON.stringify(kept.map((edge) => edge.i)))"""
    assert run_node(program, {"edges": EDGES, "filter": OPEN}) == [1, 2]


def test_the_strongest_edges_are_drawn_one_by_one_and_the_rest_in_bundles_of_layers() -> None:
    data = {"edges": EDGES, "weights": WEIGHTS}
    order = "page.byWeight([0, 1, 2, 3, 4], data.weights)"
    plan = shown(f"page.drawingPlan(data.edges, data.weights, {order}, 2)", data)
    assert plan["single"] == [0, 1]
    assert plan["bundles"] == [
        {"from": 0, "to": 2, "edges": [3], "sum": pytest.approx(0.3)},
        {"from": 1, "to": 2, "edges": [2, 4], "sum": pytest.approx(0.15)},
    ]


@pytest.mark.parametrize(
    ("text", "nodes", "edges"),
    [
        ("A0.H0", [1], [0, 1, 4]),
        ("logits", [3], [2, 3, 4]),
        ("a0 -> logits", [], [4]),
        ("input > q", [], [0]),
        ("name mover", [1], [0, 1, 4]),
        ("final sum", [2], [1, 2]),
        ("nothing", [], []),
        ("  ", [], []),
    ],
)
def test_a_search_finds_names_ends_roles_and_labels(text: str, nodes: list[int], edges: list[int]) -> None:
    roles = {"roles": {"name movers": ["a0.h0"]}, "labels": {"m0": "Final sum"}}
    data = {"text": text, "nodes": NODES, "edges": EDGES, "roles": roles}
    found = shown("page.search(data.text, data.nodes, data.edges, [0, 1, 2, 3, 4], data.roles)", data)
    assert found == {"nodes": nodes, "edges": edges}


def test_edges_between_roles_are_counted_and_summed() -> None:
    roles = {"roles": {"first": ["input", "a0.h0"], "last": ["logits"]}, "labels": {}}
    data = {"roles": roles, "nodes": NODES, "edges": EDGES, "weights": WEIGHTS}
    flows = shown("page.roleFlows(data.roles, data.nodes, data.edges, data.weights, [0, 1, 2, 3, 4])", data)
    assert flows == [
        {"writer": "first", "reader": "first", "count": 1, "sum": 0.5},
        {"writer": "first", "reader": "last", "count": 2, "sum": pytest.approx(-0.25)},
    ]


def test_lines_are_as_wide_as_the_library_draws_them() -> None:
    weights = [1.0, -0.5, 0.01, 0.0]
    found = shown("data.map((weight) => page.strokeWidth(weight, 2))", weights)
    assert found == pytest.approx([stroke_width(weight, 2.0) for weight in weights])


def test_weights_and_patterns_are_unpacked_within_half_a_step() -> None:
    weights = [0.8, -0.31, 0.0, 0.002]
    pattern = torch.tensor([[1.0, 0.0], [0.25, 0.75]]).numpy()
    data = {"weights": packed_weights(weights), "pattern": packed_pattern(pattern)}
    assert shown("[...page.exampleWeights(data.weights)]", data) == pytest.approx(weights, abs=0.8 / 254)
    rows = shown("page.attentionRows(data.pattern, 2)", data)
    assert rows == [pytest.approx(row, abs=1 / 510) for row in pattern.tolist()]
