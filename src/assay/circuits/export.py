"""Circuits for Neuronpedia: its attribution-graph JSON."""

import json
import re
from collections.abc import Mapping, Sequence
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
    edges: tuple["ExportedEdge", ...] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.circuit.graph
        if self.scores is not None and self.scores.graph.fingerprint != graph.fingerprint:
            raise GraphMismatchError(
                f"the scores belong to another graph ({self.scores.graph.n_layers} layers of "
                f"{self.scores.graph.n_heads} heads); the circuit's has {graph.n_layers} layers of "
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
        ends = {end for edge in self.edges for end in (edge.source, edge.reader)}
        return sorted(ends, key=lambda name: _order(name, self.circuit.graph))


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
    match = re.fullmatch(r"([am])(\d+)(?:\.(h|kv)(\d+))?", name)
    assert match is not None
    kind, layer, shared, head = match.groups()
    return int(layer), 2 if kind == "m" else (0 if shared == "kv" else 1), int(head or 0)


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
    ids = {name: _node_id(name, graph, len(tokens) - 1) for name in exported.nodes}
    links: dict[tuple[str, str], float] = {}
    for edge in exported.edges:
        ends = ids[edge.source]["node_id"], ids[edge.reader]["node_id"]
        links[ends] = links.get(ends, 0.0) + edge.score
    roles = {
        role: [name for layer, head in heads if (name := f"a{layer}.h{head}") in ids]
        for role, heads in exported.circuit.roles.items()
    }
    groups = {role: [ids[name]["node_id"] for name in names] for role, names in roles.items()}
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
        "nodes": [{**ids[name], "clerp": _label(name, roles)} for name in exported.nodes],
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


def _label(name: str, roles: Mapping[str, Sequence[str]]) -> str:
    own = ", ".join(role for role, names in roles.items() if name in names)
    return f"{name} ({own})" if own else name


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
    return write_atomically(
        place, json.dumps(attribution_graph(exported), indent=1, allow_nan=False).encode()
    )
