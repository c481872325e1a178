"""What the circuit viewer of a page holds: one builder for audits and circuits."""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assay.page.blocks import Block, Cell, CircuitView, Column, Details, Table
from assay.page.circuit import CircuitDrawing, circuit_drawing, graph_of, signed, widest
from assay.page.text import Text, number


UNSCRIPTED = 300  # edges that are drawn where no script runs
WRITTEN_ROWS = 600  # rows of the table of edges that are in the page, at most; the script adds the others
Edges = Sequence[Mapping[str, Any]]


def circuit_view(
    described: Mapping[str, Any],
    edges: Edges,
    *,
    caption: Text,
    size: int = 0,
    curve: Mapping[str, Any] | None = None,
    scored: bool = True,
    extras: Mapping[str, Any] | None = None,
    blocks: Sequence[Block] = (),
    more: Sequence[Block] = (),
) -> CircuitView:
    """A viewer of some edges of a graph.

    Args:
        described: What a document holds of the graph.
        edges: Strongest first, each with `rank`, `source`, `target`, `score`.
        caption: What it shows.
        size: Strongest edges that are the circuit; the reader can change it.
        curve: Faithfulness by size, `n_edges` and `values`, shown beside the size.
        scored: Whether the scores are real.
        extras: `roles`, `attention` and `examples` of a document, where it has them.
        blocks: What a terminal shows in its place.
        more: Blocks behind a click.
    """
    drawing = circuit_drawing(described, edges, scored=scored)
    kept = [bool(edge.get("kept", True)) for edge in edges]
    on = {0, len(drawing.nodes) - 1}
    for edge, keep in zip(drawing.edges, kept, strict=True):
        if keep:
            on |= {edge.source, *edge.feeds}
    styles = ["minus" if edge["score"] < 0 else "" for edge in edges]
    drawn = [(edge, style) for edge, style, keep in zip(drawing.edges, styles, kept, strict=True) if keep]
    return CircuitView(
        drawing=drawing,
        on=frozenset(on),
        unscripted=drawn[:UNSCRIPTED][::-1],
        size=size,
        scored=scored,
        caption=caption,
        blocks=blocks,
        more=more,
        data={
            **_graph_data(described, drawing),
            "largest": widest(edges, scored=scored),
            "size": min(size, len(edges)),
            "curve": curve and {key: curve[key] for key in ("n_edges", "values")},
            **{key: (extras or {}).get(key) for key in ("roles", "attention", "examples")},
        },
    )


def _graph_data(described: Mapping[str, Any], drawing: CircuitDrawing) -> dict[str, Any]:
    """Nodes and edges by column, so that thousands of edges stay small."""
    graph = graph_of(described)
    targets = {name: column for column, name in enumerate(graph.targets)}
    feeds: list[list[int]] = [[] for _ in graph.targets]
    for edge in drawing.edges:
        feeds[targets[edge.target_name]] = list(edge.feeds)
    columns: dict[str, Any] = {
        "source": [edge.source for edge in drawing.edges],
        "target": [targets[edge.target_name] for edge in drawing.edges],
        "score": [_short(edge.score) for edge in drawing.edges],
        "path": [edge.path for edge in drawing.edges],
    }
    if len(drawing.edges) > WRITTEN_ROWS:  # a curve by its end alone: the script knows its shape
        columns["path"] = [re.sub(r"C\S+ \S+ \S+ \S+ (\S+ [\d.]+)", r"S\1", each) for each in columns["path"]]
    return {
        "graph": {**graph.describe(), "fingerprint": graph.fingerprint},
        "total": graph.n_edges,
        "nodes": [node.name for node in drawing.nodes],
        "layers": [node.layer + 1 for node in drawing.nodes],
        "targets": list(graph.targets),
        "feeds": feeds,
        "edges": columns,
    }


def edges_table(edges: Edges, written: int = WRITTEN_ROWS) -> Details:
    """The edges of a viewer as a table behind a click: the same without a picture.

    Args:
        edges: Strongest first.
        written: Rows that are in the page; the script adds the others.
    """
    return Details(
        summary="The edges as a table",
        blocks=[
            Table(
                columns=[
                    Column(name="rank", numeric=True, sort=True),
                    Column(name="source", sort=True),
                    Column(name="target", sort=True),
                    Column(name="score", numeric=True, sort=True),
                    Column(name="in the circuit", sort=True),
                ],
                rows=[
                    [
                        str(edge["rank"]),
                        edge["source"],
                        edge["target"],
                        Cell(text=signed(edge["score"]), value=_short(edge["score"])),
                        "yes" if edge.get("kept", False) else "no",
                    ]
                    for edge in edges[:written]
                ],
                note=f"The strongest {number(written)} of {number(len(edges))} edges of the figure."
                if len(edges) > written
                else "",
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


def packed_weights(weights: Sequence[float]) -> dict[str, Any]:
    """Signed weights as bytes: `values` in base64, each times `scale` / 127; off by at most scale / 254."""
    numbers = np.asarray(weights, dtype=np.float64)
    scale = float(np.abs(numbers).max(initial=0.0)) or 1.0
    steps = np.rint(numbers / scale * 127).astype(np.int8)
    return {"values": base64.b64encode(steps.tobytes()).decode(), "scale": scale}


def packed_pattern(pattern: np.ndarray) -> str:
    """An attention pattern `[query, key]` of shares as bytes in base64; off by at most 1 / 510."""
    steps = np.rint(np.clip(pattern, 0.0, 1.0) * 255).astype(np.uint8)
    return base64.b64encode(steps.tobytes()).decode()
