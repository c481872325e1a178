"""The page's script against the Python it must agree with, run by node where there is one."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import assay.page
from assay.circuits import EdgeScores
from assay.graph import build_graph


SCRIPT = Path(assay.page.__file__).parent / "templates" / "page.js"


def run_node(program: str, data: Any) -> Any:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the page's script is not compared with the library")
    start = f"const page = require({json.dumps(str(SCRIPT))}), data = JSON.parse(process.argv[1]);"
    source = f"{start}\n{program}"
    done = subprocess.run([node, "-e", source, json.dumps(data)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


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
        edges.append([row, feeds, graph.targets[column], 0.0])
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
