"""Circuits for Neuronpedia: its attribution-graph JSON."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from assay.circuits.circuit import Circuit
from assay.circuits.files import write_atomically
from assay.circuits.scores import EdgeScores
from assay.core.errors import GraphMismatchError, InputError
from assay.core.record import library_version
from assay.graph import Graph


class ExportedEdge(NamedTuple):
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
    """

    circuit: Circuit
    scores: EdgeScores | None = None
    model: str = ""
    prompt: str = ""
    tokens: Sequence[str] = ()

    def __post_init__(self) -> None:
        graph, scores = self.circuit.graph, self.scores
        if scores is not None and scores.graph.fingerprint != graph.fingerprint:
            raise GraphMismatchError(
                f"the scores belong to another graph, {scores.graph.describe()}; the circuit's is "
                f"{graph.describe()}"
            )
        if self.circuit.n_edges == 0:
            raise InputError("the circuit keeps no edge, so there is nothing to export")

    @cached_property
    def edges(self) -> tuple[ExportedEdge, ...]:
        """Its edges, the strongest first."""
        graph, mask = self.circuit.graph, self.circuit.anywhere().mask
        values = mask.double() if self.scores is None else self.scores.total().values
        edges = []
        for row, column in mask.nonzero().tolist():
            reader = re.sub(r"\.[qkv]$", "", graph.targets[column])  # or the head that query heads share
            score = float(values[row, column])
            edges.append(ExportedEdge(graph.sources[row], graph.targets[column], reader, score))
        return tuple(sorted(edges, key=lambda edge: -abs(edge.score)))

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
    tokens = list(exported.tokens) or [exported.prompt or "prompt"]
    nodes = _nodes(exported.circuit.graph, exported.nodes, len(tokens) - 1)
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


def _nodes(graph: Graph, named: frozenset[str], last: int) -> dict[str, dict[str, Any]]:
    """Some nodes in forward order."""
    mlp = graph.n_heads + graph.n_kv_heads  # features of a layer: heads, key/value heads they share, the MLP
    places = [("input", "E", 0, "embedding")]
    for layer in range(graph.n_layers):
        shared = [(f"a{layer}.kv{head}", graph.n_heads + head) for head in range(graph.n_kv_heads)]
        heads = [(f"a{layer}.h{head}", head) for head in range(graph.n_heads)]
        places += [(name, str(layer), feature, "attention head") for name, feature in shared + heads]
        places.append((f"m{layer}", str(layer), mlp, "mlp"))
    places.append(("logits", str(graph.n_layers), 0, "logit"))
    nodes = {}
    for name, layer_name, feature, kind in (place for place in places if place[0] in named):
        position = 0 if name == "input" else last
        nodes[name] = {
            "node_id": f"{layer_name}_{feature}_{position}",
            "feature": feature,
            "layer": layer_name,
            "ctx_idx": position,
            "feature_type": kind,
            "jsNodeId": f"{layer_name}_{feature}-{position}",
            "influence": None,
            "activation": None,
            "clerp": name,
        }
    return nodes


def export_circuit(path: str | Path, exported: ExportedCircuit) -> Path:
    """Write a circuit as an attribution graph of Neuronpedia, a `.json` file.

    Raises:
        OutputError: If the file cannot be written.
    """
    document = json.dumps(attribution_graph(exported), indent=1, allow_nan=False)
    return write_atomically(Path(path), document.encode())
