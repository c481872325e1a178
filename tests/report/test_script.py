"""The viewer's script against the Python it must agree with, run by node where there is one."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.circuits import EdgeScores
from assay.graph import build_graph
from assay.page.graph import packed_pattern
from assay.page.html import source


def run_node(program: str, data: Any) -> Any:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the page's script is not compared with the library")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "script.js"
        place.write_text(source("viewer.js"), encoding="utf-8")
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


@pytest.mark.parametrize(
    ("text", "nodes", "edges"),
    [
        ("A0.H0", [1], [0, 1, 4]),
        ("logits", [3], [2, 3, 4]),
        ("a0 -> logits", [], [4]),
        ("input > q", [], [0]),
        ("nothing", [], []),
    ],
)
def test_a_search_finds_names_and_ends(text: str, nodes: list[int], edges: list[int]) -> None:
    data = {"text": text, "nodes": NODES, "edges": EDGES}
    found = shown("page.search(data.text, data.nodes, data.edges, [0, 1, 2, 3, 4])", data)
    assert found == {"nodes": nodes, "edges": edges}


def test_patterns_are_unpacked_within_half_a_step() -> None:
    pattern = torch.tensor([[1.0, 0.0], [0.25, 0.75]]).numpy()
    rows = shown("page.attentionRows(data, 2)", packed_pattern(pattern))
    assert rows == [pytest.approx(row, abs=1 / 510) for row in pattern.tolist()]
