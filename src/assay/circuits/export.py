"""Circuits for other programs: Neuronpedia's attribution-graph JSON, DOT, GraphML, SVG and PDF."""

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.circuits.circuit import Circuit
from assay.circuits.files import write_atomically
from assay.circuits.roles import NodeRoles
from assay.circuits.scores import EdgeScores
from assay.core.errors import GraphMismatchError, InputError
from assay.core.record import library_version
from assay.graph import Graph


@dataclass(frozen=True, kw_only=True)
class ExportedCircuit:
    """A circuit with what an export says about it.

    Attributes:
        circuit: The circuit. Of edges at spans, those kept at some span are exported.
        scores: Scores of its edges; without them every edge weighs 1.
        roles: Roles and labels of its nodes.
        model: Id of the model, e.g. `gpt2`.
        prompt: A prompt of the task, for formats that show one.
        tokens: Its tokens.
    """

    circuit: Circuit
    scores: EdgeScores | None = None
    roles: NodeRoles | None = None
    model: str = ""
    prompt: str = ""
    tokens: Sequence[str] = ()
    edges: tuple["ExportedEdge", ...] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.circuit.graph
        for what, other in (("scores", self.scores), ("roles", self.roles)):
            if other is not None and other.graph.fingerprint != graph.fingerprint:
                raise GraphMismatchError(
                    f"the {what} belong to another graph ({other.graph.n_layers} layers of "
                    f"{other.graph.n_heads} heads); the circuit's has {graph.n_layers} layers of "
                    f"{graph.n_heads} heads"
                )
        if self.circuit.n_edges == 0:
            raise InputError("the circuit keeps no edge, so there is nothing to export")
        values = None if self.scores is None else self.scores.total().values
        edges = [
            ExportedEdge(
                source=graph.sources[row],
                target=graph.targets[column],
                reader=_reader(graph, column),
                score=1.0 if values is None else float(values[row, column]),
            )
            for row, column in self.circuit.anywhere().mask.nonzero().tolist()
        ]
        object.__setattr__(self, "edges", tuple(sorted(edges, key=lambda edge: -abs(edge.score))))

    @property
    def nodes(self) -> list[str]:
        """Nodes at the ends of its edges, in forward order; a shared key/value head is a node (`a1.kv0`)."""
        found = {end for edge in self.edges for end in (edge.source, edge.reader)}
        return sorted(found, key=lambda name: _order(name, self.circuit.graph))

    def about(self, node: str) -> dict[str, str]:
        """Roles and label of a node, where it has them."""
        if self.roles is None:
            return {}
        groups, label = ", ".join(self.roles.of_node(node)), self.roles.labels.get(node, "")
        return {key: text for key, text in (("role", groups), ("label", label)) if text}


@dataclass(frozen=True, kw_only=True)
class ExportedEdge:
    """An edge: `source` writes, `reader` reads at the slot `target`; ablating a positive `score` hurts."""

    source: str
    target: str
    reader: str
    score: float


def _reader(graph: Graph, column: int) -> str:
    """The node that a target belongs to; of a key or value that query heads share, the shared head."""
    target = graph.targets[column]
    return target.rpartition(".")[0] if target[-2:] in (".q", ".k", ".v") else target


def _order(name: str, graph: Graph) -> tuple[int, int, int]:
    """Place of a node in the forward pass."""
    if name in ("input", "logits"):
        return (-1 if name == "input" else graph.n_layers, 0, 0)
    found = re.fullmatch(r"([am])(\d+)(?:\.(h|kv)(\d+))?", name)
    assert found is not None
    kind, layer, shared, head = found.groups()
    return int(layer), 2 if kind == "m" else (0 if shared == "kv" else 1), int(head or 0)


# ---- formats ------------------------------------------------------------------------------------


def attribution_graph(exported: ExportedCircuit) -> dict[str, Any]:
    """The circuit as an attribution graph of Neuronpedia: `metadata`, `qParams`, `nodes` and `links`.

    Notes:
        The format has one link between two nodes, so the scores of the query, key and value edges between
        them are summed. Its nodes stand at token positions; circuits of edges have none, so the input stands
        at the first and everything else at the last token. Heads have the feature type `attention head`.

    References:
        The JSON schema that Neuronpedia publishes for uploads (hijohnnylin/neuronpedia, graph-schema.json).
    """
    graph, tokens = exported.circuit.graph, list(exported.tokens) or [exported.prompt or "prompt"]
    ids = {name: _node_id(name, graph, len(tokens) - 1) for name in exported.nodes}
    links: dict[tuple[str, str], float] = {}
    for edge in exported.edges:
        ends = ids[edge.source]["node_id"], ids[edge.reader]["node_id"]
        links[ends] = links.get(ends, 0.0) + edge.score
    roles = {} if exported.roles is None else exported.roles.roles
    groups = {role: [ids[node]["node_id"] for node in nodes if node in ids] for role, nodes in roles.items()}
    return {
        "metadata": {
            "slug": f"assay-{exported.circuit.hash}",
            "scan": exported.model or "unknown",
            "prompt_tokens": tokens,
            "prompt": exported.prompt,
            "info": {
                "description": f"Circuit of {len(exported.edges):,} edges among heads and MLPs.",
                "generator": {"name": "assay", "version": library_version()},
            },
        },
        "qParams": {
            "linkType": "both",
            "pinnedIds": [each for members in groups.values() for each in members],
            "supernodes": [[role, *members] for role, members in groups.items() if members],
            "clickedId": "",
            "sg_pos": "",
        },
        "nodes": [{**ids[name], "clerp": _described(name, exported)} for name in exported.nodes],
        "links": [{"source": one, "target": other, "weight": sum_} for (one, other), sum_ in links.items()],
    }


def _node_id(name: str, graph: Graph, last: int) -> dict[str, Any]:
    layer, kind, head = _order(name, graph)
    if name == "input":
        shown, feature, type_, position = "E", 0, "embedding", 0
    elif name == "logits":
        shown, feature, type_, position = str(graph.n_layers), 0, "logit", last
    else:
        # Features of a layer are numbered: its heads, then the key/value heads they share, then its MLP.
        first = {0: graph.n_heads, 1: 0, 2: graph.n_heads + graph.n_kv_heads}[kind]
        shown, feature, position = str(layer), first + head, last
        type_ = "mlp" if kind == 2 else "attention head"
    return {
        "node_id": f"{shown}_{feature}_{position}",
        "feature": feature,
        "layer": shown,
        "ctx_idx": position,
        "feature_type": type_,
        "jsNodeId": f"{shown}_{feature}-{position}",
        "influence": None,
        "activation": None,
    }


def _described(name: str, exported: ExportedCircuit) -> str:
    about = exported.about(name)
    return f"{name} ({', '.join(about.values())})" if about else name


def _attribution_json(exported: ExportedCircuit) -> bytes:
    return json.dumps(attribution_graph(exported), indent=1, allow_nan=False).encode()


def _dot(exported: ExportedCircuit) -> bytes:
    """Graphviz: layers from left to right, edges that oppose dashed."""
    lines = ["digraph circuit {", "  rankdir=LR;", "  node [shape=box, style=rounded];"]
    layers: dict[int, list[str]] = {}
    for node in exported.nodes:
        text = json.dumps("\n".join([node, *exported.about(node).values()]), ensure_ascii=False)
        lines.append(f"  {json.dumps(node)} [label={text}];")
        layers.setdefault(_order(node, exported.circuit.graph)[0], []).append(json.dumps(node))
    lines += [f"  {{ rank=same; {'; '.join(nodes)}; }}" for _, nodes in sorted(layers.items())]
    largest = max(abs(edge.score) for edge in exported.edges) or 1.0
    for edge in exported.edges:
        style = "dashed" if edge.score < 0 else "solid"
        lines.append(
            f"  {json.dumps(edge.source)} -> {json.dumps(edge.reader)} [target={json.dumps(edge.target)}, "
            f"score={edge.score:.6g}, style={style}, penwidth={0.5 + 4 * abs(edge.score) / largest:.2f}];"
        )
    return "\n".join([*lines, "}", ""]).encode()


def _graphml(exported: ExportedCircuit) -> bytes:
    """GraphML: nodes with layer, role and label, parallel edges with target and score."""
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(model=exported.model)
    for node in exported.nodes:
        graph.add_node(node, layer=_order(node, exported.circuit.graph)[0], **exported.about(node))
    for edge in exported.edges:
        graph.add_edge(edge.source, edge.reader, target=edge.target, score=edge.score)
    buffer = io.BytesIO()
    nx.write_graphml(graph, buffer)
    return buffer.getvalue()


def _picture(exported: ExportedCircuit, form: str) -> bytes:
    from assay.page.circuit import circuit_drawing
    from assay.page.circuit_plot import picture_bytes

    edges = [
        {"source": edge.source, "target": edge.target, "score": edge.score, "rank": rank}
        for rank, edge in enumerate(exported.edges, start=1)
    ]
    labels: Mapping[str, str] = {} if exported.roles is None else exported.roles.labels
    drawing = circuit_drawing(exported.circuit.graph.describe(), edges, scored=exported.scores is not None)
    return picture_bytes(drawing, form, labels=labels)


FORMATS: Mapping[str, Callable[[ExportedCircuit], bytes]] = {
    ".json": _attribution_json,
    ".dot": _dot,
    ".graphml": _graphml,
    ".svg": lambda exported: _picture(exported, "svg"),
    ".pdf": lambda exported: _picture(exported, "pdf"),
}


def export_circuit(path: str | Path, exported: ExportedCircuit) -> Path:
    """Write a circuit for another program; the ending of the file chooses the format.

    Args:
        path: `.json` (attribution graph of Neuronpedia), `.dot` (Graphviz), `.graphml`, `.svg` or `.pdf`.
        exported: The circuit, with scores, roles, model and prompt as far as they are known.

    Returns:
        The path written.

    Raises:
        InputError: For another ending.
        OutputError: If the file cannot be written.
    """
    place = Path(path)
    if place.suffix not in FORMATS:
        raise InputError(
            f"{place} ends in {place.suffix or 'nothing'!r}; a circuit is exported as {', '.join(FORMATS)}"
        )
    return write_atomically(place, FORMATS[place.suffix](exported))
