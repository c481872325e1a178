import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from assay.core.errors import AssayWarning
from assay.page.graph import CircuitDrawing, circuit_drawing, graph_of


Document = dict[str, Any]
SHAPES = [{}, {"n_layers": 12, "n_heads": 12}, {"n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "size": 60}]


def drawn(document: Document) -> CircuitDrawing:
    return circuit_drawing(document["graph"], document["edges"])


@pytest.fixture(params=SHAPES, ids=["4x8", "12x12", "grouped"])
def layout(request: pytest.FixtureRequest, make_document: Callable[..., Document]) -> CircuitDrawing:
    return drawn(make_document(**request.param))


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


def test_edges_leave_their_source_and_enter_their_target_from_the_left(layout: CircuitDrawing) -> None:
    nodes = {node.index: node for node in layout.nodes}
    for edge in layout.edges:
        source, target = nodes[edge.source], nodes[edge.feeds[0]]
        start, *_, end = _points(edge.path)
        assert start[0] == pytest.approx(source.x + source.width, abs=0.1)
        assert source.y <= start[1] <= source.y + source.height
        assert end[0] == pytest.approx(target.x, abs=0.1)
        assert target.y <= end[1] <= target.y + target.height


def test_edges_never_pass_behind_a_node(layout: CircuitDrawing) -> None:
    for edge in layout.edges:
        places = np.array(_samples(edge.path))
        for node in layout.nodes:
            if node.index in (edge.source, *edge.feeds):
                continue
            across = (places[:, 0] > node.x + 1) & (places[:, 0] < node.x + node.width - 1)
            behind = across & (places[:, 1] > node.y + 1) & (places[:, 1] < node.y + node.height - 1)
            assert not behind.any(), (edge.source_name, edge.target_name, node.name)


def _samples(path: str) -> list[tuple[float, float]]:
    """Places along a path: many on a curve, many on a level run."""
    here, found = (0.0, 0.0), []
    for letter, body in re.findall(r"([MHC])([^MHC]*)", path):
        numbers = [float(number) for number in body.split()]
        for t in np.linspace(0, 1, 40) if letter != "M" else (1.0,):
            if letter == "C":
                x1, y1, x2, y2, x, y = numbers
                weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
                found.append((np.dot(weights, (here[0], x1, x2, x)), np.dot(weights, (here[1], y1, y2, y))))
            elif letter == "H":
                found.append((here[0] + t * (numbers[0] - here[0]), here[1]))
        here = (numbers[0], here[1]) if letter == "H" else (numbers[-2], numbers[-1])
    return found


def _points(path: str) -> list[tuple[float, float]]:
    """Ends of the pieces of a path."""
    points = [(0.0, 0.0)]
    for letter, body in re.findall(r"([MHC])([^MHC]*)", path):
        numbers = [float(number) for number in body.split()]
        points.append((numbers[0], points[-1][1]) if letter == "H" else (numbers[-2], numbers[-1]))
    return points[1:]


def test_q_k_and_v_enter_at_different_heights(layout: CircuitDrawing) -> None:
    places: dict[tuple[int, str], set[float]] = {}
    for edge in layout.edges:
        channel = edge.target_name.rpartition(".")[2]
        if channel in ("q", "k", "v"):
            places.setdefault((edge.feeds[0], channel), set()).add(_points(edge.path)[-1][1])
    by_node: dict[int, list[float]] = {}
    for (node, _), heights in sorted(places.items()):
        assert len(heights) == 1
        by_node.setdefault(node, []).extend(heights)
    assert any(len(heights) == 3 for heights in by_node.values())
    for heights in by_node.values():
        assert len(set(heights)) == len(heights)


def test_width_grows_with_the_score(layout: CircuitDrawing) -> None:
    widths = [edge.width for edge in layout.edges]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 6.0


def test_grouped_keys_feed_all_heads_of_their_group(make_document: Callable[..., Document]) -> None:
    document = make_document(n_layers=2, n_heads=4, n_kv_heads=2, size=60)
    graph = graph_of(document["graph"])
    for edge in drawn(document).edges:
        shared = edge.target_name.endswith((".k", ".v"))
        assert len(edge.feeds) == (2 if shared else 1)
        if edge.target_name != "logits":
            column = graph.target_index(edge.target_name)
            assert set(edge.feeds) == set(graph.feeds[column].nonzero().flatten().tolist())
        assert (".kv" in edge.target_name) == shared


def test_older_names_of_shared_keys_are_drawn_under_the_new_ones(
    make_document: Callable[..., Document],
) -> None:
    document = make_document(n_layers=2, n_heads=4, n_kv_heads=2, size=60)
    before = drawn(document)
    for edge in document["edges"]:
        edge["target"] = edge["target"].replace(".kv", ".h")
    with pytest.warns(AssayWarning, match="key/value head"):
        assert drawn(document).edges == before.edges


def test_attention_only_and_parallel_models_have_a_place_too(document: Document) -> None:
    document["graph"] |= {"mlps": False}
    document["edges"] = [edge for edge in document["edges"] if "m" not in edge["source"] + edge["target"]]
    layout = drawn(document)
    assert {node.kind for node in layout.nodes} == {"bar", "head"}
