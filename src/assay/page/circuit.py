"""Where the nodes and edges of a circuit drawing stand: layers from left to right, heads as rows.

The place of a node never depends on the circuit, so two drawings of one model can be compared by
eye. Edges that pass other layers run through the gaps between rows, never behind a node.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.graph import Graph, build_graph
from assay.page.text import Span, Text, number


BAR, HEADER, MARGIN = 34.0, 30.0, 6.0
MIN_PITCH, INNER_WIDTH = 46.0, 1028.0
UNSCORED = 12.0  # size of the widest line's score where every edge weighs 1


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
    channel: str
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
    shared_kv: int


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
                channel=suffix if suffix in ("q", "k", "v") else "",
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
        shared_kv=graph.n_heads // graph.n_kv_heads,
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
