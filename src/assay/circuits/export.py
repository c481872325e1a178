"""Circuits for Neuronpedia: its attribution-graph JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.circuits.circuit import Circuit
from assay.circuits.files import write_atomically
from assay.circuits.scores import EdgeScores
from assay.core.errors import GraphMismatchError, InputError
from assay.core.record import library_version
from assay.graph import Graph


@dataclass(frozen=True, kw_only=True)
class ExportedEdge:
    """An edge: `source` writes, `reader` reads at the slot `target`; ablating a positive `score` hurts."""

    source: str
    target: str
    reader: str
    score: float


@dataclass(frozen=True, kw_only=True)
class ExportedCircuit:
    """A circuit with what an export says about it.

    Attributes:
        circuit: The circuit. Of edges at spans, those kept at some span are exported.
        scores: Scores of its edges; without them every edge weighs 1.
        model: Id of the model, e.g. `gpt2`.
        prompt: A prompt of the task.
        tokens: Its tokens.
        edges: Its edges, the strongest first.
    """

    circuit: Circuit
    scores: EdgeScores | None = None
    model: str = ""
    prompt: str = ""
    tokens: Sequence[str] = ()
    edges: tuple[ExportedEdge, ...] = field(init=False)

    def __post_init__(self) -> None:
        graph, scores = self.circuit.graph, self.scores
        if scores is not None and scores.graph.fingerprint != graph.fingerprint:
            raise GraphMismatchError(
                f"the scores belong to another graph ({scores.graph.n_layers} layers of "
                f"{scores.graph.n_heads} heads); the circuit's has {graph.n_layers} layers of "
                f"{graph.n_heads} heads"
            )
        if self.circuit.n_edges == 0:
            raise InputError("the circuit keeps no edge, so there is nothing to export")
        mask = self.circuit.anywhere().mask
        values = mask.double() if scores is None else scores.total().values
        edges = [
            ExportedEdge(
                source=graph.sources[row],
                target=graph.targets[column],
                # Of a key or value that query heads share, the shared head.
                reader=graph.targets[column].removesuffix(".q").removesuffix(".k").removesuffix(".v"),
                score=float(values[row, column]),
            )
            for row, column in mask.nonzero().tolist()
        ]
        object.__setattr__(self, "edges", tuple(sorted(edges, key=lambda edge: -abs(edge.score))))

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes at the ends of its edges; a shared key/value head is a node (`a1.kv0`)."""
        return frozenset(end for edge in self.edges for end in (edge.source, edge.reader))


def attribution_graph(exported: ExportedCircuit) -> dict[str, Any]:
    """The circuit as an attribution graph of Neuronpedia: `metadata`, `qParams`, `nodes` and `links`.

    Notes:
        The format has one link between two nodes, so the scores of the query, key and value edges between
        them are summed. Its nodes stand at token positions; circuits of edges have none, so the input stands
        at the first and everything else at the last token. Heads have the feature type `attention head`; the
        roles of a published circuit become supernodes.

    References:
        The JSON schema that Neuronpedia publishes for uploads (hijohnnylin/neuronpedia, graph-schema.json).
    """
    graph, tokens = exported.circuit.graph, list(exported.tokens) or [exported.prompt or "prompt"]
    every = _nodes(graph, len(tokens) - 1)
    nodes = {name: node for name, node in every.items() if name in exported.nodes}
    links: dict[tuple[str, str], float] = {}
    for edge in exported.edges:
        pair = nodes[edge.source]["node_id"], nodes[edge.reader]["node_id"]
        links[pair] = links.get(pair, 0.0) + edge.score
    groups: dict[str, list[str]] = {}
    for role, heads in exported.circuit.roles.items():
        for name in (f"a{layer}.h{head}" for layer, head in heads):
            if name in nodes:
                nodes[name]["clerp"] = f"{name} ({role})"
                groups.setdefault(role, []).append(nodes[name]["node_id"])
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
            "supernodes": [[role, *members] for role, members in groups.items()],
            "clickedId": "",
            "sg_pos": "",
        },
        "nodes": list(nodes.values()),
        "links": [{"source": one, "target": other, "weight": sum_} for (one, other), sum_ in links.items()],
    }


def _nodes(graph: Graph, last: int) -> dict[str, dict[str, Any]]:
    """All nodes in forward order, a shared key/value head among them (`a1.kv0`)."""
    places = [("input", "E", 0, "embedding")]
    for layer in range(graph.n_layers):
        # Features of a layer are numbered: its heads, then the key/value heads they share, then its MLP.
        shared = [(f"a{layer}.kv{head}", graph.n_heads + head) for head in range(graph.n_kv_heads)]
        heads = [(f"a{layer}.h{head}", head) for head in range(graph.n_heads)]
        places += [(name, str(layer), feature, "attention head") for name, feature in shared + heads]
        places.append((f"m{layer}", str(layer), graph.n_heads + graph.n_kv_heads, "mlp"))
    places.append(("logits", str(graph.n_layers), 0, "logit"))
    nodes = {}
    for name, shown, feature, kind in places:
        position = 0 if name == "input" else last
        nodes[name] = {
            "node_id": f"{shown}_{feature}_{position}",
            "feature": feature,
            "layer": shown,
            "ctx_idx": position,
            "feature_type": kind,
            "jsNodeId": f"{shown}_{feature}-{position}",
            "influence": None,
            "activation": None,
            "clerp": name,
        }
    return nodes


def export_circuit(path: str | Path, exported: ExportedCircuit) -> Path:
    """Write a circuit as an attribution graph of Neuronpedia.

    Args:
        path: Ends in `.json`.
        exported: The circuit, with scores, model and prompt as far as they are known.

    Returns:
        The path written.

    Raises:
        InputError: For another ending.
        OutputError: If the file cannot be written.
    """
    place = Path(path)
    if place.suffix != ".json":
        raise InputError(f"{place} ends in {place.suffix or 'nothing'!r}; a circuit is exported as .json")
    document = json.dumps(attribution_graph(exported), indent=1, allow_nan=False)
    return write_atomically(place, document.encode())
