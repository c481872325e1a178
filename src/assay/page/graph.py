"""A circuit drawn: where its nodes and edges stand, and what the viewer of a page holds.

Layers run from left to right, heads are rows. The place of a node never depends on the circuit, so two
drawings of one model can be compared by eye. Edges that pass other layers run through the gaps between rows,
never behind a node.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.graph import Graph, build_graph
from assay.page.blocks import Block, Cell, Column, Details, Interactive, Table, columns
from assay.page.text import Span, Text, number


BAR, HEADER, MARGIN = 34.0, 30.0, 6.0
MIN_PITCH, INNER_WIDTH = 46.0, 1028.0
UNSCORED = 12.0  # size of the widest line's score where every edge weighs 1
UNSCRIPTED = 150  # edges that are drawn where no script runs
WRITTEN_ROWS = 100  # rows of the table of edges, at most
Edges = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class DrawnNode:
    """A box: `x, y` is its upper left corner; `index` its source row, S for `logits`."""

    index: int
    name: str
    label: str
    kind: str
    layer: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, kw_only=True)
class DrawnEdge:
    """A curve; `feeds` are the nodes whose input it is (several under grouped-query attention)."""

    rank: int
    source: int
    source_name: str
    target_name: str
    feeds: tuple[int, ...]
    score: float
    width: float
    path: str


@dataclass(frozen=True, kw_only=True)
class LayerBand:
    """A layer's column group and its heading."""

    label: str
    x: float
    width: float


@dataclass(frozen=True, kw_only=True)
class CircuitDrawing:
    """Everything the drawing needs; edges in order of rank, strongest first."""

    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]
    bands: tuple[LayerBand, ...]
    width: float
    height: float


def graph_of(graph: Mapping[str, Any]) -> Graph:
    """A graph rebuilt from the numbers that a document holds of it."""
    return build_graph(
        graph["n_layers"],
        graph["n_heads"],
        graph["n_kv_heads"],
        parallel=graph.get("parallel", False),
        mlps=graph.get("mlps", True),
        experts=graph.get("experts", 0),
    )


def circuit_drawing(
    described: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], *, scored: bool = True
) -> CircuitDrawing:
    """Places for all nodes of a model and for some edges.

    Args:
        described: What a document holds of the graph.
        listed: Edges, strongest first, each with `rank`, `source`, `target` and `score`.
        scored: Whether scores are real; else all are 1, and all lines are thin.
    """
    graph = graph_of(described)
    grid = _Grid(graph)
    nodes = tuple(grid.node(index) for index in range(graph.n_sources + 1))
    largest = widest(listed, scored=scored)
    edges = []
    for edge in listed:
        source, target = graph.source_index(edge["source"]), graph.target_index(edge["target"])
        feeds = tuple(int(row) for row in graph.feeds[target].nonzero().flatten()) or (graph.n_sources,)
        suffix = edge["target"].rpartition(".")[2]
        edges.append(
            DrawnEdge(
                rank=edge["rank"],
                source=source,
                source_name=edge["source"],
                target_name=graph.targets[target],
                feeds=feeds,
                score=edge["score"],
                width=round(stroke_width(edge["score"], largest), 2),
                path=grid.path(nodes[source], nodes[feeds[0]], suffix, source * 7 + target * 13),
            )
        )
    return CircuitDrawing(
        nodes=nodes,
        edges=tuple(edges),
        bands=grid.bands(),
        width=grid.width,
        height=grid.height,
    )


def widest(listed: Sequence[Mapping[str, Any]], *, scored: bool) -> float:
    """The size of a score that the widest line has."""
    if not scored:
        return UNSCORED
    return max((abs(edge["score"]) for edge in listed), default=1.0) or 1.0


def stroke_width(weight: float, largest: float) -> float:
    """Width of an edge in units of the drawing: its area grows with the size of its weight."""
    return 0.6 + 5.4 * math.sqrt(abs(weight) / largest)


def signed(score: float) -> Text:
    """A score with its sign and the colour of it."""
    return Span(("+" if score >= 0 else "") + number(score, 3), "plus" if score >= 0 else "minus")


class _Grid:
    """Coordinates: slots are columns (one for the heads and one for the MLP of each block)."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.slots_per_layer = 2 if graph.mlps else 1
        n_slots = graph.n_layers * self.slots_per_layer
        self.pitch = max(MIN_PITCH, INNER_WIDTH / n_slots)
        self.row = 44.0 if graph.n_heads <= 10 else 36.0
        self.left = MARGIN + BAR
        self.width = self.left * 2 + self.pitch * n_slots
        self.node_width = min(52.0, self.pitch * 0.52)
        self.node_height = self.row * 0.55
        self.n_rows = max(graph.n_heads + (1.5 if graph.mlps else 0), float(graph.experts))
        self.height = HEADER + self.row * self.n_rows + 10

    def node(self, index: int) -> DrawnNode:
        graph = self.graph
        if index in (0, graph.n_sources):
            first = index == 0
            return DrawnNode(
                index=index,
                name="input" if first else "logits",
                label="input" if first else "logits",
                kind="bar",
                layer=-1 if first else graph.n_layers,
                x=MARGIN if first else self.width - MARGIN - BAR,
                y=HEADER,
                width=BAR,
                height=self.row * self.n_rows,
            )
        name = graph.sources[index]
        layer = int(graph.source_layer[index]) - 1
        head = index - graph.head_source(layer)
        mlp = head >= graph.n_heads
        slot = layer * self.slots_per_layer + int(mlp)
        centre = self.left + self.pitch * (slot + 0.5)
        row = (
            head - graph.n_heads if mlp and graph.experts else head
        )  # experts have their column to themselves
        middle = HEADER + self.row * (row + (1.0 if mlp and not graph.experts else 0.5))
        return DrawnNode(
            index=index,
            name=name,
            label=name if self.node_width > 40 or (mlp and not graph.experts) else str(row),
            kind="mlp" if mlp else "head",
            layer=layer,
            x=round(centre - self.node_width / 2, 1),
            y=round(middle - self.node_height / 2, 1),
            width=round(self.node_width, 1),
            height=round(self.node_height, 1),
        )

    def bands(self) -> tuple[LayerBand, ...]:
        wide = self.pitch * self.slots_per_layer
        word = "layer " if wide > 60 else ""
        return tuple(
            LayerBand(label=f"{word}{layer}", x=round(self.left + wide * layer, 1), width=round(wide, 1))
            for layer in range(self.graph.n_layers)
        )

    def path(self, source: DrawnNode, target: DrawnNode, channel: str, jitter: int) -> str:
        """SVG path from a node's right side to an entry on the left side of another."""
        x1, x2 = source.x + source.width, target.x
        y1 = source.y + source.height / 2
        shift = {"q": -0.3, "k": 0.0, "v": 0.3}.get(channel, 0.0)
        y2 = target.y + target.height * (0.5 + shift)
        lane = self._lane(source, target, jitter)
        if source.kind == "bar" and target.kind == "bar":
            return f"M{x1:.1f} {lane:.1f}H{x2:.1f}"
        # Beside an MLP stands a column of heads, so the curve has to be done in the gap between the two.
        gap = self.pitch - self.node_width
        leave = min(gap if source.kind == "mlp" else 0.8 * self.pitch, (x2 - x1) / 2)
        enter = min(gap if target.kind == "mlp" else 0.8 * self.pitch, (x2 - x1) / 2)
        if source.kind == "bar":
            lane = y2 if x2 - x1 < self.pitch else lane
            return f"M{x1:.1f} {lane:.1f}H{x2 - enter:.1f}{_curve(x2 - enter, lane, x2, y2)}"
        if target.kind == "bar":
            lane = y1 if x2 - x1 < self.pitch else lane
            return f"M{x1:.1f} {y1:.1f}{_curve(x1, y1, x1 + leave, lane)}H{x2:.1f}"
        if x2 - x1 < self.pitch * 1.9:
            return f"M{x1:.1f} {y1:.1f}{_curve(x1, y1, x2, y2)}"
        return (
            f"M{x1:.1f} {y1:.1f}{_curve(x1, y1, x1 + leave, lane)}"
            f"H{x2 - enter:.1f}{_curve(x2 - enter, lane, x2, y2)}"
        )

    def _lane(self, source: DrawnNode, target: DrawnNode, jitter: int) -> float:
        """Height of the gap between rows in which a passing edge runs."""
        n_heads = self.graph.n_heads

        def gap_beside(node: DrawnNode, towards: DrawnNode) -> float:
            if node.kind == "mlp" and not self.graph.experts:
                return n_heads + (1.5 if towards.kind == "mlp" else 0.4)
            row = (node.y + node.height / 2 - HEADER) / self.row
            below = towards.y + towards.height / 2 > node.y + node.height / 2
            return row + (0.5 if below else -0.5)

        if target.kind != "bar":
            gap = gap_beside(target, source)
        elif source.kind != "bar":
            gap = gap_beside(source, target)
        else:
            gap = 0.0
        free = (self.row - self.node_height) * 0.6
        lane = HEADER + self.row * gap + free * ((jitter % 17) / 16 - 0.5)
        return min(max(lane, HEADER + 2), HEADER + self.row * self.n_rows - 2)


def _curve(x1: float, y1: float, x2: float, y2: float) -> str:
    """S-shaped piece of a path, level at both ends."""
    half = (x1 + x2) / 2
    return f"C{half:.1f} {y1:.1f} {half:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"


def circuit_view(
    described: Mapping[str, Any],
    edges: Edges,
    *,
    caption: Text,
    size: int = 0,
    curve: Mapping[str, Any] | None = None,
    scored: bool = True,
    attention: Mapping[str, Any] | None = None,
    blocks: Sequence[Block] = (),
    more: Sequence[Block] = (),
) -> Interactive:
    """A viewer of some edges of a graph.

    Args:
        described: What a document holds of the graph.
        edges: Strongest first, each with `rank`, `source`, `target`, `score`.
        caption: What it shows.
        size: Strongest edges that are the circuit; the reader can change it.
        curve: Faithfulness by size, `n_edges` and `values`, shown beside the size.
        scored: Whether the scores are real.
        attention: Patterns of heads on prompts, as a document holds them.
        blocks: What a terminal shows in its place.
        more: Blocks behind a click.
    """
    drawing = circuit_drawing(described, edges, scored=scored)
    drawn = [edge for edge, listed in zip(drawing.edges, edges, strict=True) if listed.get("kept", True)]
    graph = graph_of(described)
    column = {name: place for place, name in enumerate(graph.targets)}
    feeds: list[list[int]] = [[] for _ in graph.targets]
    for edge in drawing.edges:
        feeds[column[edge.target_name]] = list(edge.feeds)
    values = {
        "drawing": drawing,
        "on": {0, len(drawing.nodes) - 1, *(end for edge in drawn for end in (edge.source, *edge.feeds))},
        "unscripted": drawn[:UNSCRIPTED][::-1],
        "size": size,
        "scored": scored,
        "caption": caption,
        "more": more,
        "data": {
            "total": graph.n_edges,
            "nodes": [node.name for node in drawing.nodes],
            "layers": [node.layer + 1 for node in drawing.nodes],
            "targets": list(graph.targets),
            "feeds": feeds,
            "edges": {  # by column, so that thousands of edges stay small
                "source": [edge.source for edge in drawing.edges],
                "target": [column[edge.target_name] for edge in drawing.edges],
                "score": [_short(edge.score) for edge in drawing.edges],
                "width": [edge.width for edge in drawing.edges],
                "path": [edge.path for edge in drawing.edges],
            },
            "size": min(size, len(edges)),
            "curve": curve and {key: curve[key] for key in ("n_edges", "values")},
            "attention": attention,
        },
    }
    return Interactive(template="circuit.html", values=values, blocks=blocks)


def edges_table(edges: Edges) -> Details:
    """The strongest edges of a viewer as a table behind a click: the same without a picture.

    Args:
        edges: Strongest first.
    """
    names = [
        Column(name="rank", numeric=True, sort=True),
        *columns("source", "target", sort=True),
        Column(name="score", numeric=True, sort=True),
        Column(name="in the circuit", sort=True),
    ]
    rows = [
        [
            str(edge["rank"]),
            edge["source"],
            edge["target"],
            Cell(text=signed(edge["score"]), value=_short(edge["score"])),
            "yes" if edge.get("kept", False) else "no",
        ]
        for edge in edges[:WRITTEN_ROWS]
    ]
    left = f"The strongest {number(WRITTEN_ROWS)} of {number(len(edges))} edges of the figure."
    return Details(
        summary="The edges as a table",
        blocks=[
            Table(
                columns=names,
                rows=rows,
                note=left if len(edges) > WRITTEN_ROWS else "",
                style="edges-table",
                tall=True,
                named=False,
            )
        ],
    )


def shared_kv(described: Mapping[str, Any]) -> int:
    """Query heads that read one key/value head."""
    graph = graph_of(described)
    return graph.n_heads // graph.n_kv_heads


def _short(score: float) -> float:
    """A score with the digits that a page can show."""
    return float(f"{score:.5g}")


def packed_pattern(pattern: np.ndarray) -> str:
    """An attention pattern `[query, key]` of shares as bytes in base64; off by at most 1 / 510."""
    steps = np.rint(np.clip(pattern, 0.0, 1.0) * 255).astype(np.uint8)
    return base64.b64encode(steps.tobytes()).decode()
