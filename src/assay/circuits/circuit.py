"""A circuit: the set of edges of a graph that are kept, and how the set came to be."""

import hashlib
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool
from torch import Tensor

from assay.circuits.files import flags, read_edges, write_edges
from assay.circuits.heads import HeadCircuit, check_heads, heads_of, load_head_circuit
from assay.circuits.paths import prune
from assay.core import display
from assay.core.errors import AssayWarning, GraphMismatchError, InputError, ShapeError
from assay.core.random import torch_stream
from assay.core.untrusted import malformed
from assay.graph import Graph


if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False)
class Circuit:
    """Edges kept out of a graph; all others are ablated when the circuit runs.

    Attributes:
        graph: The graph the mask indexes.
        mask: `[n_sources, n_targets]`, true = keep; false where the graph has no edge.
        heads: The kept heads as (layer, head) for a circuit made from heads, else None. Dropping such a
            circuit ablates its heads; dropping an edge circuit keeps the complement of its edges.
        provenance: What produced it, JSON-able.
        roles: For head circuits with published roles: role -> heads.
    """

    graph: Graph
    mask: Bool[Tensor, "n_sources n_targets"]
    heads: tuple[tuple[int, int], ...] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    roles: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expected = (self.graph.n_sources, self.graph.n_targets)
        if tuple(self.mask.shape) != expected or self.mask.dtype != torch.bool:
            raise ShapeError(
                f"mask is {self.mask.dtype} {tuple(self.mask.shape)}; this graph needs a torch.bool "
                f"mask of shape {expected}"
            )
        outside = self.mask & ~self.graph.valid
        if outside.any():
            row, column = outside.nonzero()[0].tolist()
            raise InputError(
                f"mask keeps {self.graph.edge_name(row, column)}, which is not an edge of the graph; "
                "start from graph.valid"
            )

    # ---- making ---------------------------------------------------------------------------------

    @classmethod
    def full(cls, graph: Graph) -> "Circuit":
        """Every edge kept: the model itself."""
        return cls(graph=graph, mask=graph.valid.clone())

    @classmethod
    def empty(cls, graph: Graph) -> "Circuit":
        """Every edge ablated."""
        return cls(graph=graph, mask=torch.zeros_like(graph.valid))

    @classmethod
    def from_edges(cls, graph: Graph, edges: Iterable[str | Sequence[str]]) -> "Circuit":
        """The circuit of named edges.

        Args:
            graph: The graph that holds them.
            edges: `"a0.h1->a2.h0.q"` or `(source, target)`; the spellings of EAP-IG, auto-circuit and
                ACDC are accepted, and ACDC's placeholder edges (`hook_q_input -> hook_q`) are skipped.

        Raises:
            UnknownNameError: For the first edge that the graph does not have.
        """
        mask = torch.zeros_like(graph.valid)
        for edge in edges:
            name = edge if isinstance(edge, str) else "->".join(edge)
            if not _is_placeholder(name):
                mask[graph.edge_index(name)] = True
        return cls(graph=graph, mask=mask)

    @classmethod
    def from_heads(
        cls,
        graph: Graph,
        heads: "HeadCircuit | Iterable[Sequence[int] | str] | str | Path",
        *,
        mlps: bool = True,
    ) -> "Circuit":
        """The circuit of a set of heads: all edges among `input`, the heads, the MLPs and `logits`.

        Args:
            graph: The graph that holds them.
            heads: (layer, head) pairs, zero-based, or their names, e.g. `["a2.h3"]` or `"a2.h3,a3.h0"`; a
                `HeadCircuit`; the name of a shipped one (see `published_head_circuits`); or the path of a
                head-circuit JSON file.
            mlps: Keep the MLPs (a head circuit ablates heads only); False drops them too.

        Raises:
            InputError: For duplicate or out-of-range heads, or contradictory roles or pathways in a file.
            UnknownNameError: For text that is neither a shipped name nor a file.
            GraphMismatchError: For a head circuit of another model shape.
        """
        roles: dict[str, tuple[tuple[int, int], ...]] = {}
        provenance: dict[str, Any] = {}
        if isinstance(heads, str | Path):
            heads = heads_of(str(heads)) or load_head_circuit(heads)
        if isinstance(heads, HeadCircuit):
            if (heads.n_layers, heads.n_heads) != (graph.n_layers, graph.n_heads):
                raise GraphMismatchError(
                    f"head circuit {heads.id!r} describes {heads.n_layers} layers of {heads.n_heads} heads; "
                    f"the graph has {graph.n_layers} of {graph.n_heads}"
                )
            roles = {name: role.heads for name, role in heads.roles.items()}
            provenance = {"published": heads.id, "task": heads.task}
            heads = heads.heads
        kept = check_heads(heads, graph.n_layers, graph.n_heads)
        rows = torch.zeros(graph.n_sources, dtype=torch.bool)
        rows[0] = True
        for layer, head in kept:
            rows[graph.head_source(layer, head)] = True
        if mlps and graph.mlps:
            rows[[graph.mlp_source(layer) for layer in range(graph.n_layers)]] = True
        columns = (graph.feeds & rows).any(1)
        columns[-1] = True
        mask = graph.valid & rows[:, None] & columns
        return cls(graph=graph, mask=mask, heads=kept, roles=roles, provenance=provenance)

    @classmethod
    def random(cls, graph: Graph, n_edges: int, *, seed: int = 0) -> "Circuit":
        """`n_edges` edges drawn uniformly without replacement."""
        check_n_edges(graph, n_edges, allow_zero=True)
        order = torch.randperm(graph.n_edges, generator=torch_stream(seed, f"random-circuit/{n_edges}"))
        flat = graph.valid.flatten().nonzero().squeeze(1)[order[:n_edges]]
        mask = torch.zeros(graph.valid.numel(), dtype=torch.bool)
        mask[flat] = True
        return cls(graph=graph, mask=mask.view_as(graph.valid), provenance={"method": "random", "seed": seed})

    # ---- looking --------------------------------------------------------------------------------

    @cached_property
    def n_edges(self) -> int:
        """Number of kept edges."""
        return int(self.mask.sum())

    def edges(self) -> list[str]:
        """Names of the kept edges, in row-major order."""
        return [self.graph.edge_name(row, column) for row, column in self.mask.nonzero().tolist()]

    def nodes(self) -> list[str]:
        """Names of the nodes at the ends of kept edges, in forward order; `logits` last.

        An edge into a key or value head that several query heads share counts for those of them that
        other edges touch; if there is none, for all.
        """
        feeds, read = self.graph.feeds, self.mask.any(0)
        alone = feeds.sum(1) == 1
        rows = self.mask.any(1) | feeds[read & alone].any(0)
        shared = feeds[read & ~alone]
        rows |= shared[~(shared & rows).any(1)].any(0)
        names = [self.graph.sources[row] for row in rows.nonzero().squeeze(1).tolist()]
        return names + (["logits"] if bool(self.mask[:, -1].any()) else [])

    def kept_heads(self) -> tuple[tuple[int, int], ...]:
        """Heads of the circuit as (layer, head): those given, or those of its connected form."""
        if self.heads is not None:
            return self.heads
        names = set(self.connected(warn=False).nodes())
        return tuple(
            (layer, head)
            for layer in range(self.graph.n_layers)
            for head in range(self.graph.n_heads)
            if f"a{layer}.h{head}" in names
        )

    def to_frame(self) -> "pd.DataFrame":
        """One row per kept edge: source, target, source_layer, target_layer."""
        import pandas as pd

        rows, columns = self.mask.nonzero(as_tuple=True)
        return pd.DataFrame(
            {
                "source": [self.graph.sources[row] for row in rows.tolist()],
                "target": [self.graph.targets[column] for column in columns.tolist()],
                "source_layer": self.graph.source_layer[rows].numpy(),
                "target_layer": self.graph.target_layer[columns].numpy(),
            }
        )

    def to_networkx(self) -> "nx.MultiDiGraph[str]":
        """Node-level graph: one edge per kept edge, with `target`, the slot it enters.

        A key/value head that several query heads share is a node of its own (`a1.kv1`); its attribute
        `heads` names those that read it.
        """
        import networkx as nx

        graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
        for row, column in self.mask.nonzero().tolist():
            target, fed = self.graph.targets[column], self._fed_nodes(column)
            node = fed[0]
            if len(fed) > 1:
                node = target.rpartition(".")[0]
                graph.add_node(node, heads=tuple(fed))
            graph.add_edge(self.graph.sources[row], node, target=target)
        return graph

    def _fed_nodes(self, column: int) -> list[str]:
        if column == self.graph.n_targets - 1:
            return ["logits"]
        return [self.graph.sources[row] for row in self.graph.feeds[column].nonzero().squeeze(1).tolist()]

    @cached_property
    def hash(self) -> str:
        """Identity of graph, mask and head list (16 hex digits)."""
        digest = hashlib.sha256(self.graph.fingerprint.encode())
        digest.update(self.mask.contiguous().numpy().tobytes())
        digest.update(repr(self.heads).encode())
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        share = self.n_edges / self.graph.n_edges
        return f"Circuit({self.n_edges} of {self.graph.n_edges} edges, {share:.1%}, hash {self.hash})"

    def _repr_html_(self) -> str:
        names = self.nodes()
        layers = dict(zip(self.graph.sources, self.graph.source_layer.tolist(), strict=True))
        ends = [
            (self.graph.sources[row], node)
            for row, column in self.mask.nonzero()[: display.MOST_DRAWN_EDGES + 1].tolist()
            for node in self._fed_nodes(column)
        ]
        # Within a block heads come before the MLP; the logits come last.
        places = [
            (name, 2 * layers.get(name, self.graph.n_layers + 1) + name.startswith("m")) for name in names
        ]
        return display.card(
            "circuit",
            (
                (
                    "edges",
                    f"{self.n_edges} of {self.graph.n_edges} ({self.n_edges / self.graph.n_edges:.1%})",
                ),
                ("nodes", len(names)),
                ("heads", len(self.heads) if self.heads is not None else None),
                ("method", self.provenance.get("method")),
                ("selection", self.provenance.get("selection")),
                ("graph", self.graph.fingerprint),
            ),
            id=self.hash,
            picture=display.drawing(places, ends),
        )

    # ---- set operations -------------------------------------------------------------------------

    def _combine(self, other: "Circuit", operation: Callable[[Any, Any], Any]) -> "Circuit":
        """Apply a set operation to the edges, or to the heads if both are circuits of heads."""
        self._check(other)
        shared = {
            key: value
            for key, value in self.provenance.items()
            if key in other.provenance and other.provenance[key] == value
        }
        provenance = {**shared, "parents": [self.hash, other.hash]}
        if self.heads is None or other.heads is None:
            mask = operation(self.mask, other.mask) & self.mask.logical_or(other.mask)
            return Circuit(graph=self.graph, mask=mask, provenance=provenance)
        heads = sorted(operation(set(self.heads), set(other.heads)))
        made = Circuit.from_heads(self.graph, heads, mlps=self.keeps_mlps or other.keeps_mlps)
        return replace(made, provenance=provenance)

    @property
    def keeps_mlps(self) -> bool:
        """Whether the MLPs act: some edge out of the first one is kept."""
        return self.graph.mlps and bool(self.mask[self.graph.mlp_source(0)].any())

    def emptied(self) -> "Circuit":
        """What is left when nothing of the circuit is kept: no edge, or for a head circuit no head.

        A circuit of heads ablates heads only, so its embeddings and kept MLPs still act.
        """
        if self.heads is None:
            return Circuit.empty(self.graph)
        return Circuit.from_heads(self.graph, [], mlps=self.keeps_mlps)

    def _check(self, other: "Circuit") -> "Circuit":
        if not isinstance(other, Circuit):
            raise InputError(f"expected a Circuit, got {type(other).__name__}")
        if other.graph.fingerprint != self.graph.fingerprint:
            raise GraphMismatchError(
                f"circuits of different graphs: {self.graph.describe()} and {other.graph.describe()}"
            )
        return other

    def __or__(self, other: "Circuit") -> "Circuit":
        return self._combine(other, operator.or_)

    def __and__(self, other: "Circuit") -> "Circuit":
        return self._combine(other, operator.and_)

    def __sub__(self, other: "Circuit") -> "Circuit":
        return self._combine(other, _minus)

    def __invert__(self) -> "Circuit":
        return Circuit(
            graph=self.graph, mask=self.graph.valid & ~self.mask, provenance={"complement_of": self.hash}
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Circuit) and self.hash == other.hash

    def __hash__(self) -> int:
        return int(self.hash, 16)

    def jaccard(self, other: "Circuit") -> float:
        """|A and B| / |A or B|; two empty circuits agree fully (1.0)."""
        union = int((self.mask | self._check(other).mask).sum())
        return 1.0 if union == 0 else int((self.mask & other.mask).sum()) / union

    def dropped(self) -> "Circuit":
        """What runs when this circuit is dropped: the complement, or everything but its heads."""
        if self.heads is None:
            return ~self
        rows = [self.graph.head_source(layer, head) for layer, head in self.heads]
        mask = self.graph.valid.clone()
        mask[rows] = False
        return Circuit(graph=self.graph, mask=mask, provenance={"dropped": self.hash})

    def without_head(self, layer: int, head: int) -> "Circuit":
        """The circuit with one head ablated: none of its outgoing edges is kept."""
        mask = self.mask.clone()
        mask[self.graph.head_source(layer, head)] = False
        heads = None if self.heads is None else tuple(pair for pair in self.heads if pair != (layer, head))
        return Circuit(
            graph=self.graph,
            mask=mask,
            heads=heads,
            provenance={"parent": self.hash, "without": [layer, head]},
        )

    def connected(self, *, warn: bool = True) -> "Circuit":
        """Only the edges on a kept path from `input` to `logits`; no logit changes under resampling.

        Args:
            warn: Warn where none of the edges lies on such a path, so that nothing is left.
        """
        found = replace(self, mask=prune(self.graph, self.mask))
        if warn and self.n_edges and not found.n_edges:
            warnings.warn(
                f"none of the {self.n_edges} edges lies on a path from input to logits, so the connected "
                "circuit is empty. Keep more edges",
                AssayWarning,
                stacklevel=2,
            )
        return found

    # ---- files ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write one `.safetensors` file with JSON metadata; the write is atomic."""
        return write_edges(
            path,
            self.graph,
            {"mask": self.mask},
            kind="circuit",
            heads=self.heads,
            roles={name: list(heads) for name, heads in self.roles.items()},
            provenance=dict(self.provenance),
        )


def load_circuit(path: str | Path, graph: Graph | None = None) -> Circuit:
    """Read a circuit written by `Circuit.save`.

    Args:
        path: The file.
        graph: The graph it must belong to; default: the one it was saved with.

    Raises:
        FileFormatError: If the file is truncated, tampered with, of another kind or too new.
        GraphMismatchError: If it belongs to another graph.
    """
    stored, arrays, metadata = read_edges(path, "circuit", graph)
    with malformed(path, "a circuit written by .save()"):
        heads = metadata["heads"]
        return Circuit(
            graph=stored,
            mask=flags(arrays["mask"]),
            heads=None if heads is None else check_heads(heads, stored.n_layers, stored.n_heads),
            roles={
                name: check_heads(pairs, stored.n_layers, stored.n_heads)
                for name, pairs in metadata["roles"].items()
            },
            provenance=dict(metadata["provenance"]),
        )


def _minus(first: Any, second: Any) -> Any:
    """Set difference, of masks or of sets."""
    return first & ~second if isinstance(first, Tensor) else first - second


def check_n_edges(graph: Graph, n_edges: int, *, allow_zero: bool = False) -> None:
    """Refuse a circuit size outside the graph."""
    low = 0 if allow_zero else 1
    if not isinstance(n_edges, int):
        raise InputError(f"the number of edges is {n_edges!r}; give a whole number")
    if not low <= n_edges <= graph.n_edges:
        raise InputError(
            f"cannot keep {n_edges} edges: this graph has {graph.n_edges}; choose k from {low} to "
            f"{graph.n_edges}"
        )


def _is_placeholder(name: str) -> bool:
    """ACDC's internal edges from a head's input to its channel to its result."""
    target = name.partition("->")[2]
    source = name.partition("->")[0]
    inner = (".attn.hook_q", ".attn.hook_k", ".attn.hook_v")
    return target.strip().partition("[")[0].endswith(inner) or source.strip().partition("[")[0].endswith(
        inner
    )
