"""Roles and labels of a graph's nodes: what the circuit viewer saves and loads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.circuits.circuit import Circuit
from assay.circuits.files import write_atomically
from assay.core.errors import FileFormatError, GraphMismatchError, UnknownNameError, near_matches
from assay.core.untrusted import malformed, read_object
from assay.graph import Graph


SCHEMA = "assay-roles/1"


@dataclass(frozen=True, kw_only=True)
class NodeRoles:
    """Named groups of the nodes of a graph, and labels of single nodes.

    Attributes:
        graph: The graph whose nodes are named.
        roles: Role -> names of its nodes, e.g. `{"name movers": ("a9.h6", "a9.h9")}`.
        labels: Node -> its label.

    Raises:
        UnknownNameError: If a role or a label names a node that the graph does not have.
    """

    graph: Graph
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {*self.graph.sources, "logits"}
        for name in (*(node for nodes in self.roles.values() for node in nodes), *self.labels):
            if name not in known:
                near = near_matches(name, known)
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                raise UnknownNameError(f"{name!r} is not a node of this graph{hint}")

    @classmethod
    def of(cls, circuit: Circuit) -> "NodeRoles":
        """The published roles of a circuit made from heads; none for others."""
        roles = {
            role: tuple(f"a{layer}.h{head}" for layer, head in heads) for role, heads in circuit.roles.items()
        }
        return cls(graph=circuit.graph, roles=roles)

    def of_node(self, node: str) -> tuple[str, ...]:
        """Names of the roles that a node has."""
        return tuple(role for role, nodes in self.roles.items() if node in nodes)

    def to_dict(self) -> dict[str, Any]:
        """The content of a roles file: plain JSON with the graph's numbers and fingerprint."""
        return {
            "schema": SCHEMA,
            "graph": {**self.graph.describe(), "fingerprint": self.graph.fingerprint},
            "roles": {role: list(nodes) for role, nodes in self.roles.items()},
            "labels": dict(self.labels),
        }

    def save(self, path: str | Path) -> Path:
        """Write a roles file; the write is atomic."""
        return write_atomically(Path(path), json.dumps(self.to_dict(), indent=1).encode())


def load_roles(path: str | Path, graph: Graph) -> NodeRoles:
    """Read a roles file, of `NodeRoles.save` or of the circuit viewer.

    Args:
        path: The file.
        graph: The graph that the file must belong to.

    Raises:
        FileFormatError: If the file does not exist or is not a roles file.
        GraphMismatchError: If the file belongs to another graph.
        UnknownNameError: If it names a node that the graph does not have.
    """
    place = Path(path)
    content = read_object(place, "a JSON file of roles, saved by the circuit viewer")
    if content.get("schema") != SCHEMA:
        raise FileFormatError(
            f"{place} is not a roles file: its schema is not {SCHEMA!r}; save one in the circuit viewer or "
            "with NodeRoles.save"
        )
    with malformed(place, "a roles file"):
        own = content["graph"]
        if own["fingerprint"] != graph.fingerprint:
            raise GraphMismatchError(
                f"{place} belongs to another graph ({own['n_layers']} layers of {own['n_heads']} heads, "
                f"fingerprint {own['fingerprint']}); the circuit's graph has {graph.n_layers} layers of "
                f"{graph.n_heads} heads, fingerprint {graph.fingerprint}. Give a roles file of this graph"
            )
        roles = {str(role): tuple(map(str, nodes)) for role, nodes in content["roles"].items()}
        labels = {str(node): str(label) for node, label in content["labels"].items()}
    return NodeRoles(graph=graph, roles=roles, labels=labels)
