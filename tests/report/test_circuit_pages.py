"""The drawing of a circuit and its page: places of nodes and edges, attention, and the viewer's script."""

import base64
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pages import Document, large_document, listed
from synthetic_store import made_audit, mini

import assay
from assay.circuits import Circuit, EdgeScores
from assay.core.errors import GraphMismatchError
from assay.execution.forward import attention_pattern
from assay.graph import Graph, build_graph
from assay.metrics.page import NOTABLE, curve_data, overshoot_text
from assay.page.blocks import Interactive, Page
from assay.page.graph import UNSCRIPTED, CircuitDrawing, packed_pattern
from assay.page.html import source
from assay.report.circuit_page import circuit_page, curve_page
from assay.report.save import render


# ---- the drawing --------------------------------------------------------------------------------


def grouped() -> Document:
    """Of a graph whose heads share keys and values in pairs."""
    graph = build_graph(2, 4, 2)
    values = torch.randn(graph.n_sources, graph.n_targets, generator=torch.Generator().manual_seed(0))
    scores = EdgeScores(graph, values)
    return {"graph": graph.describe(), "edges": listed(scores.top(60), scores)}


SHAPES = {"4x8": lambda: made_audit().to_dict(), "12x12": lambda: large_document(500), "grouped": grouped}


@pytest.fixture(params=SHAPES, scope="module")
def layout(request: pytest.FixtureRequest) -> CircuitDrawing:
    made = SHAPES[request.param]()
    return CircuitDrawing(made["graph"], made["edges"])


def test_nodes_stand_in_forward_order_without_touching(layout: CircuitDrawing) -> None:
    boxes = layout.nodes
    for one in boxes:
        assert one.x >= 0
        assert one.x + one.width <= layout.width
        assert one.y + one.height <= layout.height
        for other in boxes:
            if one.index < other.index:
                beside = one.x + one.width < other.x
                below = one.x == other.x and one.y + one.height < other.y
                assert beside or below, (one.name, other.name)


def test_edges_join_their_ends_and_never_pass_behind_a_node(layout: CircuitDrawing) -> None:
    nodes = {node.index: node for node in layout.nodes}
    for edge in layout.edges:
        source, target = nodes[edge["source"]], nodes[edge["feeds"][0]]
        start, end = ends(edge["path"])
        assert start[0] == pytest.approx(source.x + source.width, abs=0.1)
        assert source.y <= start[1] <= source.y + source.height
        assert end[0] == pytest.approx(target.x, abs=0.1)
        assert target.y <= end[1] <= target.y + target.height
        places = np.array(samples(edge["path"]))
        for node in layout.nodes:
            if node.index in (edge["source"], *edge["feeds"]):
                continue
            across = (places[:, 0] > node.x + 1) & (places[:, 0] < node.x + node.width - 1)
            behind = across & (places[:, 1] > node.y + 1) & (places[:, 1] < node.y + node.height - 1)
            assert not behind.any(), (edge, node.name)
    widths = [edge["width"] for edge in layout.edges]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 6.0


def samples(path: str) -> list[tuple[float, float]]:
    """Places along a path: many on a curve, many on a level run."""
    here, places = (0.0, 0.0), []
    for letter, body in re.findall(r"([MHC])([^MHC]*)", path):
        numbers = [float(number) for number in body.split()]
        for t in np.linspace(0, 1, 40):
            if letter == "C":
                x1, y1, x2, y2, x, y = numbers
                weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
                places.append((np.dot(weights, (here[0], x1, x2, x)), np.dot(weights, (here[1], y1, y2, y))))
            elif letter == "H":
                places.append((here[0] + t * (numbers[0] - here[0]), here[1]))
        here = (numbers[0], here[1]) if letter == "H" else (numbers[-2], numbers[-1])
    return places


def ends(path: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where a path begins, and where it ends."""
    start = re.match(r"M([\d.]+) ([\d.]+)", path)
    return (float(start[1]), float(start[2])), samples(path)[-1]


def test_q_k_and_v_enter_at_heights_of_their_own(layout: CircuitDrawing) -> None:
    heights: dict[int, dict[str, set[float]]] = {}
    for edge in layout.edges:
        channel = layout.graph.targets[edge["target"]].rpartition(".")[2]
        if channel in ("q", "k", "v"):
            places = heights.setdefault(edge["feeds"][0], {}).setdefault(channel, set())
            places.add(round(ends(edge["path"])[1][1], 1))
    assert any(len(channels) == 3 for channels in heights.values())
    for channels in heights.values():
        assert all(len(places) == 1 for places in channels.values())
        assert len(set.union(*channels.values())) == len(channels)


def test_grouped_keys_feed_all_heads_of_their_group_under_either_name() -> None:
    made = grouped()
    graph = build_graph(2, 4, 2)
    before = CircuitDrawing(made["graph"], made["edges"])
    for edge in before.edges:
        name = graph.targets[edge["target"]]
        shared = name.endswith((".k", ".v"))
        assert len(edge["feeds"]) == (2 if shared else 1)
        if name != "logits":
            assert set(edge["feeds"]) == set(graph.feeds[edge["target"]].nonzero().flatten().tolist())
        assert (".kv" in name) == shared
    alone = Circuit.full(build_graph(2, 3, mlps=False))
    drawing = CircuitDrawing(alone.graph.describe(), listed(alone))
    assert {node.kind for node in drawing.nodes} == {"bar", "head"}


# ---- the page of a circuit ----------------------------------------------------------------------


def test_patterns_are_those_of_the_model_itself() -> None:
    model, task = mini().model, mini().task
    pattern = attention_pattern(model, task, 1)
    length = int(task.lengths[1])
    assert pattern.shape == (model.n_layers, model.n_heads, length, length)
    assert torch.allclose(pattern.sum(-1), torch.ones(pattern.shape[:-1]), atol=1e-5)
    native: Any = model.module
    before = native.config._attn_implementation
    native.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            seen = native(task.clean[1:2, :length], output_attentions=True).attentions
    finally:
        native.set_attn_implementation(before)
    for layer, weights in enumerate(seen):
        assert torch.allclose(weights[0].float(), pattern[layer], atol=1e-5)
    with pytest.raises(IndexError):
        attention_pattern(model, task, 40)


def attention_of(page: Page) -> Document:
    (view,) = page.sections[0].blocks
    assert isinstance(view, Interactive)
    return dict(view.values["data"]["attention"])


def test_a_page_holds_patterns_of_the_first_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    made, circuit = mini(), mini().scores.top(40)
    given = {"scores": made.scores, "model": made.model, "task": made.task, "prompts": 2}
    attention = attention_of(circuit_page(circuit, **given))
    assert [prompt["text"][:2] for prompt in attention["prompts"]] == ["1:", "2:"]
    assert set(attention["heads"]) == {name for name in circuit.nodes() if ".h" in name}
    assert attention["note"] == ""
    name = sorted(attention["heads"])[0]
    layer, head = (int(part[1:]) for part in name.split("."))
    length = len(attention["prompts"][1]["tokens"])
    packed = np.frombuffer(base64.b64decode(attention["heads"][name][1]), np.uint8).reshape(length, length)
    pattern = attention_pattern(made.model, made.task, 1)[layer, head].numpy()
    assert np.abs(packed / 255 - pattern).max() <= 1 / 510 + 1e-6
    monkeypatch.setattr("assay.report.circuit_page.PATTERN_BYTES", 2_000)
    attention = attention_of(circuit_page(circuit, **given))
    assert 0 < len(attention["heads"]) < 10
    assert sum(len(each) for packed in attention["heads"].values() for each in packed) <= 2_100
    assert f"Patterns of {len(attention['heads'])} of " in attention["note"]


def test_a_circuit_alone_has_a_page_that_names_what_it_lacks() -> None:
    graph = build_graph(12, 12)
    text = render(circuit_page(Circuit.random(graph, 9_000)))
    assert text.partition('<g class="edges"')[2].partition("</g>")[0].count("<path") == UNSCRIPTED
    assert "This circuit has no scores" in text
    assert "The strongest 5,000 of 9,000 edges are drawn" in text
    assert "made without attention patterns" in text
    for sign, has_signs in ((1.0, False), (-1.0, True)):
        scores = EdgeScores(graph, sign * graph.valid.float())
        text = render(circuit_page(Circuit.random(graph, 20), scores=scores))
        assert ("opposes: ablating it helps" in text) is has_signs
        assert "width: size of the score" in text
    with pytest.raises(GraphMismatchError, match="does not belong to mini"):
        circuit_page(Circuit.full(graph), model=mini().model, task=mini().task)


# ---- the viewer's script, run by node -----------------------------------------------------------


def shown(expression: str, data: Any, folder: Path) -> Any:
    """The value of an expression over `page`, the script, and `data`."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the page's script is not compared with the library")
    place = folder / "script.js"
    place.write_text(source("viewer.js"), encoding="utf-8")
    start = f"const page = require({json.dumps(str(place))}), data = JSON.parse(process.argv[1]);"
    command = [node, "-e", f"{start}\nconsole.log(JSON.stringify({expression}))", json.dumps(data)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("graph", [build_graph(3, 4), build_graph(3, 4, 2, parallel=True)], ids=["4", "2"])
def test_the_slider_prunes_exactly_as_circuits_do(graph: Graph, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(4)
    scores = EdgeScores(graph, torch.randn(graph.n_sources, graph.n_targets, generator=generator))
    order = scores.values.abs().masked_fill(~graph.valid, -1).flatten().argsort(descending=True, stable=True)
    edges = []
    for place in order[: graph.n_edges].tolist():
        row, column = divmod(place, graph.n_targets)
        feeds = graph.feeds[column].nonzero().flatten().tolist() or [graph.n_sources]
        edges.append({"source": row, "feeds": feeds})
    sizes = [1, 5, 20, 40, 80, graph.n_edges]
    data = {"edges": edges, "sizes": sizes, "n": graph.n_sources + 1}
    found = shown("data.sizes.map((size) => page.connected(data.edges, size, data.n))", data, tmp_path)
    for size, kept in zip(sizes, found, strict=True):
        circuit = scores.top(size).connected(warn=False)
        drawn = [int(place) for place, keep in zip(order, kept, strict=False) if keep]
        assert {graph.edge_name(*divmod(place, graph.n_targets)) for place in drawn} == set(circuit.edges())


EDGES = [
    {"i": 0, "source": 0, "feeds": [1], "target": "a0.h0.q", "from": 0, "to": 1},
    {"i": 1, "source": 1, "feeds": [2], "target": "m0", "from": 1, "to": 1},
    {"i": 2, "source": 2, "feeds": [3], "target": "logits", "from": 1, "to": 2},
    {"i": 3, "source": 0, "feeds": [3], "target": "logits", "from": 0, "to": 2},
    {"i": 4, "source": 1, "feeds": [3], "target": "logits", "from": 1, "to": 2},
]
SEARCHES = {"A0.H0": ([1], [0, 1, 4]), "logits": ([3], [2, 3, 4]), "a0 -> logits": ([], [4])}
SEARCHES |= {"input > q": ([], [0]), "nothing": ([], [])}


def test_numbers_searches_and_patterns_of_the_script(tmp_path: Path) -> None:
    data = {"sizes": [1, 10, 100], "values": [None, 0.2, 0.8], "at": [1, 5, 10, 31.622776601683793, 100, 200]}
    read = shown("data.at.map((size) => page.interpolate(data.sizes, data.values, size))", data, tmp_path)
    assert read == [None, None, 0.2, pytest.approx(0.5), 0.8, None], "in the logarithm of the size"
    signs = shown("data.map(page.signed)", [0.5, -0.25, 0.0, 1e-5], tmp_path)
    assert signs == ["+0.500", "\N{MINUS SIGN}0.250", "+0.000", "+1.0e-5"]
    search = "data.texts.map((text) => page.search(text, data.nodes, data.edges, [0, 1, 2, 3, 4]))"
    texts = {"texts": [*SEARCHES], "nodes": ["input", "a0.h0", "m0", "logits"], "edges": EDGES}
    found = shown(search, texts, tmp_path)
    assert [(each["nodes"], each["edges"]) for each in found] == [*SEARCHES.values()]
    pattern = torch.tensor([[1.0, 0.0], [0.25, 0.75]]).numpy()
    rows = shown("page.attentionRows(data, 2)", packed_pattern(pattern), tmp_path)
    assert rows == [pytest.approx(row, abs=1 / 510) for row in pattern.tolist()]


# ---- a curve ------------------------------------------------------------------------------------


def test_the_page_of_a_curve_explains_overshoot_and_shows_its_circuit() -> None:
    model, task = mini().model, mini().task
    scores = assay.discover(model, task, "eap-ig-inputs", steps=2)
    curve = assay.faithfulness_curve(scores, model, task, absolute=False, fractions=[0.01, 0.5, 1.0])
    assert curve.overshoot > NOTABLE
    page = curve_page(curve)
    clipped = f"Without it CPR is {curve.clipped_cpr:.2f} and CMD {curve.clipped_cmd:.2f}."
    assert page.verdict.startswith(f"CPR {curve.cpr:.2f} [")
    assert page.verdict.endswith(f"this overshoot is {curve.overshoot:.2f}. {clipped}")
    assert page.sections[1].title == f"The circuit of faithfulness {curve.values[1]:.2f}"
    html = render(curve)
    assert "the strongest edges by signed score; pruned to the paths" in html
    assert f"{curve.circuits[1].n_edges:,} of 1,519 edges" in html
    clipped_at_one = replace(curve_data(curve), overshoot=0.01)
    assert overshoot_text(clipped_at_one) == ""
