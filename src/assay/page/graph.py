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
from assay.page.blocks import Cell, Column, Details, Interactive, Note, Table, columns
from assay.page.text import Span, Text, number


BAR, HEADER, MARGIN = 34.0, 30.0, 6.0
MIN_PITCH, INNER_WIDTH = 46.0, 1028.0
UNSCORED = 12.0  # size of the widest line's score where every edge weighs 1
UNSCRIPTED = 150  # edges that are drawn where no script runs
WRITTEN_ROWS = 100  # rows of the table of edges, at most
TERMINAL_ROWS = 10  # edges of the circuit that a terminal lists
SHAPE = ("n_layers", "n_heads", "n_kv_heads", "parallel", "mlps", "experts")
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

    source: int
    target: int
    feeds: tuple[int, ...]
    score: float
    width: float
    path: str


@dataclass(frozen=True, kw_only=True)
class CircuitDrawing:
    """Everything the drawing needs; edges in order of rank, strongest first.

    Attributes:
        bands: Of each layer: `label`, `x` and `width` of its columns.
    """

    graph: Graph
    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]
    bands: tuple[Mapping[str, Any], ...]
    width: float
    height: float


def graph_of(described: Mapping[str, Any]) -> Graph:
    """A graph rebuilt from the numbers that a document holds of it."""
    return build_graph(**{name: described[name] for name in SHAPE if name in described})


def circuit_drawing(described: Mapping[str, Any], listed: Edges, *, scored: bool = True) -> CircuitDrawing:
    """Places for all nodes of a model and for some edges.

    Args:
        described: What a document holds of the graph.
        listed: Edges, strongest first, each with `source`, `target` and `score`.
        scored: Whether scores are real; else all are 1, and all lines are thin.
    """
    graph = graph_of(described)
    grid = _Grid(graph)
    nodes = tuple(grid.node(index) for index in range(graph.n_sources + 1))
    largest = max((abs(edge["score"]) for edge in listed), default=1.0) or 1.0
    edges = []
    for edge in listed:
        source, target = graph.source_index(edge["source"]), graph.target_index(edge["target"])
        feeds = tuple(graph.feeds[target].nonzero().flatten().tolist()) or (graph.n_sources,)
        share = abs(edge["score"]) / (largest if scored else UNSCORED)
        edges.append(
            DrawnEdge(
                source=source,
                target=target,
                feeds=feeds,
                score=edge["score"],
                width=round(0.6 + 5.4 * math.sqrt(share), 2),  # the area of a line grows with its weight
                path=grid.path(
                    nodes[source], nodes[feeds[0]], graph.targets[target], source * 7 + target * 13
                ),
            )
        )
    facts: dict[str, Any] = {"bands": grid.bands(), "width": grid.width, "height": grid.height}
    return CircuitDrawing(graph=graph, nodes=nodes, edges=tuple(edges), **facts)


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
            name, layer, x = ("input", -1, MARGIN) if index == 0 else self._logits()
            size: dict[str, float] = {"x": x, "y": HEADER, "width": BAR, "height": self.row * self.n_rows}
            return DrawnNode(index=index, name=name, label=name, kind="bar", layer=layer, **size)
        name, layer = graph.sources[index], int(graph.source_layer[index]) - 1
        row: float = index - graph.head_source(layer)
        mlp = row >= graph.n_heads
        if mlp and graph.experts:  # they have their column to themselves
            row -= graph.n_heads
        named = self.node_width > 40 or (mlp and not graph.experts)
        centre = self.left + self.pitch * (layer * self.slots_per_layer + mlp + 0.5)
        middle = HEADER + self.row * (row + (1.0 if mlp and not graph.experts else 0.5))
        return DrawnNode(
            index=index,
            name=name,
            label=name if named else str(row),
            kind="mlp" if mlp else "head",
            layer=layer,
            x=round(centre - self.node_width / 2, 1),
            y=round(middle - self.node_height / 2, 1),
            width=round(self.node_width, 1),
            height=round(self.node_height, 1),
        )

    def _logits(self) -> tuple[str, int, float]:
        return "logits", self.graph.n_layers, self.width - MARGIN - BAR

    def bands(self) -> tuple[Mapping[str, Any], ...]:
        wide = self.pitch * self.slots_per_layer
        word = "layer " if wide > 60 else ""
        return tuple(
            {"label": f"{word}{layer}", "x": round(self.left + wide * layer, 1), "width": round(wide, 1)}
            for layer in range(self.graph.n_layers)
        )

    def path(self, source: DrawnNode, target: DrawnNode, entry: str, jitter: int) -> str:
        """SVG path from a node's right side to an entry on the left side of another."""
        x1, x2 = source.x + source.width, target.x
        y1 = source.y + source.height / 2
        y2 = target.y + target.height * {"q": 0.2, "v": 0.8}.get(entry.rpartition(".")[2], 0.5)
        bars = {"source": source.kind == "bar", "target": target.kind == "bar"}
        near = x2 - x1 < self.pitch * (1.0 if any(bars.values()) else 1.9)
        lane = self._lane(source, target, jitter)
        if bars["source"]:  # an edge may leave a bar, and reach one, at any height
            y1 = y2 if near else lane
        if bars["target"]:
            y2 = y1 if near else lane
        if near:
            return f"M{x1:.1f} {y1:.1f}{_curve(x1, y1, x2, y2)}"
        # Beside an MLP stands a column of heads, so the curve has to be done in the gap between the two.
        gap, free = self.pitch - self.node_width, (x2 - x1) / 2
        room = {"bar": 0.0, "mlp": min(gap, free), "head": min(0.8 * self.pitch, free)}
        leave, enter = x1 + room[source.kind], x2 - room[target.kind]
        start, end = _curve(x1, y1, leave, lane), _curve(enter, lane, x2, y2)
        return f"M{x1:.1f} {y1:.1f}{start}H{enter:.1f}{end}"

    def _lane(self, source: DrawnNode, target: DrawnNode, jitter: int) -> float:
        """Height of the gap between rows in which a passing edge runs."""

        def gap_beside(node: DrawnNode, towards: DrawnNode) -> float:
            if node.kind == "mlp" and not self.graph.experts:
                return self.graph.n_heads + (1.5 if towards.kind == "mlp" else 0.4)
            row = (node.y + node.height / 2 - HEADER) / self.row
            below = towards.y + towards.height / 2 > node.y + node.height / 2
            return row + (0.5 if below else -0.5)

        gap = 0.0
        if target.kind != "bar":
            gap = gap_beside(target, source)
        elif source.kind != "bar":
            gap = gap_beside(source, target)
        free = (self.row - self.node_height) * 0.6
        lane = HEADER + self.row * gap + free * ((jitter % 17) / 16 - 0.5)
        return min(max(lane, HEADER + 2), HEADER + self.row * self.n_rows - 2)


def _curve(x1: float, y1: float, x2: float, y2: float) -> str:
    """S-shaped piece of a path, level at both ends; nothing where they are one."""
    half = (x1 + x2) / 2
    return f"C{half:.1f} {y1:.1f} {half:.1f} {y2:.1f} {x2:.1f} {y2:.1f}" if x1 != x2 else ""


def circuit_view(
    described: Mapping[str, Any],
    edges: Edges,
    *,
    caption: Text,
    n_edges: int,
    size: int = 0,
    curve: Mapping[str, Any] | None = None,
    scored: bool = True,
    attention: Mapping[str, Any] | None = None,
) -> Interactive:
    """A viewer of some edges of a graph; a terminal shows the caption and the strongest edges.

    Args:
        described: What a document holds of the graph.
        edges: Strongest first, each with `rank`, `source`, `target`, `score`, whether it is `kept` by the
            circuit, and, where the drawing opens on some of these alone, `shown`.
        caption: What it shows.
        n_edges: Of the circuit, of which `edges` may be the strongest alone.
        size: Strongest edges that are the circuit; the reader can change it.
        curve: Faithfulness by size, `n_edges` and `values`, shown beside the size.
        scored: Whether the scores are real.
        attention: Patterns of heads on prompts, as a document holds them.
    """
    drawing = circuit_drawing(described, edges, scored=scored)
    inside = [edge for edge in edges if edge["kept"]]
    opening = "shown" if any("shown" in edge for edge in edges) else "kept"
    drawn = [edge for edge, listed in zip(drawing.edges, edges, strict=True) if listed.get(opening)]
    graph = drawing.graph
    values = {
        "drawing": drawing,
        "on": {0, len(drawing.nodes) - 1, *(end for edge in drawn for end in (edge.source, *edge.feeds))},
        "unscripted": drawn[:UNSCRIPTED][::-1],
        "size": size,
        "scored": scored,
        "caption": (
            caption,
            Span(" Hover a node or an edge to see what it reads and writes.", "script-only"),
        ),
        "more": [Details(summary="The edges as a table", blocks=[_edges_table(edges)])],
        "data": {
            "total": graph.n_edges,
            "nodes": [node.name for node in drawing.nodes],
            "layers": [node.layer + 1 for node in drawing.nodes],
            "targets": list(graph.targets),
            "feeds": [row.nonzero().flatten().tolist() or [graph.n_sources] for row in graph.feeds],
            "edges": {  # by column, so that thousands of edges stay small
                name: [getattr(edge, name) for edge in drawing.edges]
                for name in ("source", "target", "width", "path")
            }
            | {"score": [_short(edge.score) for edge in drawing.edges]},
            "size": min(size, len(edges)),
            "curve": curve and {key: curve[key] for key in ("n_edges", "values")},
            "attention": attention,
        },
    }
    first = min(TERMINAL_ROWS, n_edges)
    strongest = Table(
        columns=[*columns("source", "target"), Column(name="score", numeric=True)],
        rows=[[edge["source"], edge["target"], signed(edge["score"])] for edge in inside[:TERMINAL_ROWS]],
        note=f"{f'The {first} strongest' if scored else first} of {number(n_edges)} edges.",
    )
    return Interactive(template="circuit.html", values=values, blocks=[Note(text=caption), strongest])


def _edges_table(edges: Edges) -> Table:
    """The strongest edges of a viewer: the same without a picture."""
    rows = [
        [
            str(edge["rank"]),
            edge["source"],
            edge["target"],
            Cell(text=signed(edge["score"]), value=_short(edge["score"])),
            "yes" if edge["kept"] else "no",
        ]
        for edge in edges[:WRITTEN_ROWS]
    ]
    left = f"The strongest {WRITTEN_ROWS} of the {number(len(edges))} edges that the drawing can show."
    return Table(
        columns=[
            Column(name="rank", numeric=True, sort=True),
            *columns("source", "target", sort=True),
            Column(name="score", numeric=True, sort=True),
            Column(name="in the circuit", sort=True),
        ],
        rows=rows,
        note=left if len(edges) > WRITTEN_ROWS else "",
        style="edges-table",
        tall=True,
        named=False,
    )


def _short(score: float) -> float:
    """A score with the digits that a page can show."""
    return float(f"{score:.5g}")


def packed_pattern(pattern: np.ndarray) -> str:
    """An attention pattern `[query, key]` of shares as bytes in base64; off by at most 1 / 510."""
    steps = np.rint(np.clip(pattern, 0.0, 1.0) * 255).astype(np.uint8)
    return base64.b64encode(steps.tobytes()).decode()
