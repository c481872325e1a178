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
SHAPE = ("n_layers", "n_heads", "n_kv_heads", "parallel", "mlps")
Edges = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
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

    @property
    def middle(self) -> float:
        """Its height."""
        return self.y + self.height / 2


def graph_of(described: Mapping[str, Any]) -> Graph:
    """A graph rebuilt from the numbers that a document holds of it."""
    return build_graph(**{name: described[name] for name in SHAPE if name in described})


def signed(score: float) -> Text:
    """A score with its sign and the colour of it."""
    return Span(("+" if score >= 0 else "") + number(score, 3), "plus" if score >= 0 else "minus")


class CircuitDrawing:
    """Places for all nodes of a model and for some edges; columns hold the heads or the MLP of a block.

    Args:
        described: What a document holds of the graph.
        listed: Edges, strongest first, each with `source`, `target` and `score`.
        scored: Whether scores are real; else all are 1, and all lines are thin.

    Attributes:
        nodes: The boxes.
        edges: The lines, in the order given: `source`, `target`, `feeds` (the nodes whose input it is,
            several under grouped-query attention), `score`, `width` and `path`.
        bands: Of each layer: `label`, `x` and `width` of its columns.
        width: Of the whole.
        height: Likewise.
    """

    def __init__(self, described: Mapping[str, Any], listed: Edges, *, scored: bool = True) -> None:
        self.graph = graph = graph_of(described)
        per_layer = 2 if graph.mlps else 1
        self._pitch = max(MIN_PITCH, INNER_WIDTH / (graph.n_layers * per_layer))
        self._row = 44.0 if graph.n_heads <= 10 else 36.0
        self._n_rows = graph.n_heads + (1.5 if graph.mlps else 0.0)
        self._box = min(52.0, self._pitch * 0.52), self._row * 0.55
        wide = self._pitch * per_layer
        self.width = 2 * (MARGIN + BAR) + wide * graph.n_layers
        self.height = HEADER + self._row * self._n_rows + 10
        word = "layer " if wide > 60 else ""
        self.bands: list[dict[str, Any]] = [
            {"label": f"{word}{layer}", "x": round(MARGIN + BAR + wide * layer, 1), "width": round(wide, 1)}
            for layer in range(graph.n_layers)
        ]
        self.nodes = [self._node(index) for index in range(graph.n_sources + 1)]
        largest = max((abs(edge["score"]) for edge in listed), default=1.0) or 1.0
        self.edges = [self._edge(edge, largest if scored else UNSCORED) for edge in listed]

    def _node(self, index: int) -> DrawnNode:
        graph = self.graph
        if index in (0, graph.n_sources):
            name, layer = ("input", -1) if index == 0 else ("logits", graph.n_layers)
            x = MARGIN if index == 0 else self.width - MARGIN - BAR
            return DrawnNode(index, name, name, "bar", layer, x, HEADER, BAR, self._row * self._n_rows)
        name, layer = graph.sources[index], int(graph.source_layer[index]) - 1
        row, (width, height) = index - graph.head_source(layer), self._box
        mlp = row >= graph.n_heads
        columns = layer * (2 if graph.mlps else 1) + mlp
        x = MARGIN + BAR + self._pitch * (columns + 0.5) - width / 2
        y = HEADER + self._row * (row + (1.0 if mlp else 0.5)) - height / 2
        label = name if width > 40 or mlp else str(row)
        place = (round(each, 1) for each in (x, y, width, height))
        return DrawnNode(index, name, label, "mlp" if mlp else "head", layer, *place)

    def _edge(self, edge: Mapping[str, Any], largest: float) -> dict[str, Any]:
        graph = self.graph
        source, target = graph.source_index(edge["source"]), graph.target_index(edge["target"])
        feeds = tuple(graph.feeds[target].nonzero().flatten().tolist()) or (graph.n_sources,)
        share = abs(edge["score"]) / largest
        ends = self.nodes[source], self.nodes[feeds[0]]
        return {
            "source": source,
            "target": target,
            "feeds": feeds,
            "score": edge["score"],
            "width": round(0.6 + 5.4 * math.sqrt(share), 2),  # the area of a line grows with its weight
            "path": self._path(*ends, graph.targets[target], source * 7 + target * 13),
        }

    def _path(self, source: DrawnNode, target: DrawnNode, entry: str, jitter: int) -> str:
        """SVG path from a node's right side to an entry on the left side of another."""
        x1, x2, y1 = source.x + source.width, target.x, source.middle
        y2 = target.y + target.height * {"q": 0.2, "v": 0.8}.get(entry.rpartition(".")[2], 0.5)
        near = x2 - x1 < self._pitch * (1.0 if "bar" in (source.kind, target.kind) else 1.9)
        lane = self._lane(source, target, jitter)
        if source.kind == "bar":  # an edge may leave a bar, and reach one, at any height
            y1 = y2 if near else lane
        if target.kind == "bar":
            y2 = y1 if near else lane
        if near:
            return f"M{x1:.1f} {y1:.1f}{_curve(x1, y1, x2, y2)}"
        # Beside an MLP stands a column of heads, so the curve has to be done in the gap between the two.
        gap, free = self._pitch - self._box[0], (x2 - x1) / 2
        room = {"bar": 0.0, "mlp": min(gap, free), "head": min(0.8 * self._pitch, free)}
        leave, enter = x1 + room[source.kind], x2 - room[target.kind]
        start, end = _curve(x1, y1, leave, lane), _curve(enter, lane, x2, y2)
        return f"M{x1:.1f} {y1:.1f}{start}H{enter:.1f}{end}"

    def _lane(self, source: DrawnNode, target: DrawnNode, jitter: int) -> float:
        """Height of the gap between rows in which a passing edge runs."""
        node, towards = (source, target) if target.kind == "bar" else (target, source)
        if node.kind == "bar":
            gap = 0.0
        elif node.kind == "mlp":
            gap = self.graph.n_heads + (1.5 if towards.kind == "mlp" else 0.4)
        else:
            gap = (node.middle - HEADER) / self._row + (0.5 if towards.middle > node.middle else -0.5)
        free = (self._row - self._box[1]) * 0.6
        lane = HEADER + self._row * gap + free * ((jitter % 17) / 16 - 0.5)
        return min(max(lane, HEADER + 2), HEADER + self._row * self._n_rows - 2)


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
    drawing = CircuitDrawing(described, edges, scored=scored)
    inside = [edge for edge in edges if edge["kept"]]
    opening = "shown" if any("shown" in edge for edge in edges) else "kept"
    drawn = [edge for edge, listed in zip(drawing.edges, edges, strict=True) if listed.get(opening)]
    graph = drawing.graph
    values = {
        "drawing": drawing,
        "on": {0, graph.n_sources, *(end for edge in drawn for end in (edge["source"], *edge["feeds"]))},
        "unscripted": drawn[:UNSCRIPTED][::-1],
        "size": size,
        "scored": scored,
        "signed": any(edge["score"] < 0 for edge in edges),  # some methods give sizes alone
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
                name: [edge[name] for edge in drawing.edges] for name in ("source", "target", "width", "path")
            }
            | {"score": [_short(edge["score"]) for edge in drawing.edges]},
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
    return Interactive(macro="circuit", values=values, blocks=[Note(text=caption), strongest])


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
    return Table(
        columns=[
            Column(name="rank", numeric=True, sort=True),
            *columns("source", "target", sort=True),
            Column(name="score", numeric=True, sort=True),
            Column(name="in the circuit", sort=True),
        ],
        rows=rows,
        left=max(0, len(edges) - WRITTEN_ROWS),
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
