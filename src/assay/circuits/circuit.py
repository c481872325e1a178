"""A circuit: the set of edges of a graph that are kept, and how the set came to be."""

import hashlib
import json
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from jaxtyping import Bool
from torch import Tensor

from assay.circuits.files import check_graph, read_edges, shipped, write_edges
from assay.circuits.heads import HeadCircuit, check_heads, heads_of, load_head_circuit
from assay.circuits.spans import Spans, check_n_edges
from assay.core.errors import AssayWarning, GraphMismatchError, HubError, InputError, ShapeError, check_name
from assay.core.random import torch_stream
from assay.core.record import Plotted
from assay.core.untrusted import malformed, printable
from assay.graph import Graph, build_graph


if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

Level = Literal["edge", "node", "neuron"]  # what a circuit keeps or cuts, and scores rank

HUB = "hf://"  # begins an address of the Hugging Face Hub


@dataclass(frozen=True, kw_only=True, eq=False)
class Circuit(Plotted):
    """Edges kept out of a graph; all others are ablated when the circuit runs.

    A circuit of nodes keeps the edges among them: what a source outside writes is ablated for every reader.
    In a circuit of neurons a source moreover writes its kept coordinates only, and ablated ones elsewhere.

    Attributes:
        graph: The graph the mask indexes.
        mask: `[n_sources, n_targets]`, true = keep; false where the graph has no edge. With spans
            `[n_spans, n_sources, n_targets]`: an edge is kept at some positions and ablated at the others.
        heads: The kept heads as (layer, head) for a circuit made from heads, else None. Dropping such a
            circuit ablates its heads; dropping an edge circuit keeps the complement of its edges.
        provenance: What produced it, JSON-able.
        spans: Names of the spans of positions and what reaches what; None: every edge is kept everywhere or
            nowhere. The edge u->v at a span carries the output of u at its positions into the input of v at
            the same positions: for k and v where keys and values stand, for q, MLPs and logits where they
            read. Attention alone moves information to later positions.
        cells: Of a circuit of nodes the kept sources, `[n_sources]`; of one of neurons the kept dimensions of
            each source's output in the residual stream, `[n_sources, d_model]`; None: edges are kept one by
            one. Make such circuits by `from_nodes` and `from_cells`.
    """

    drawn_by = "assay.circuits.plots:plot_circuit"

    graph: Graph
    mask: Bool[Tensor, "... n_sources n_targets"]
    heads: tuple[tuple[int, int], ...] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    spans: Spans | None = None
    cells: Bool[Tensor, "n_sources ..."] | None = None

    def __post_init__(self) -> None:
        slots = edge_slots(self.graph, self.spans)
        if self.mask.shape != slots.shape or self.mask.dtype != torch.bool:
            got, shape = f"{self.mask.dtype} {tuple(self.mask.shape)}", tuple(slots.shape)
            raise ShapeError(f"mask is {got}; expected a torch.bool mask of shape {shape}")
        if bool((outside := self.mask & ~slots).any()):
            name = slot_names(self.graph, self.spans, outside)[0]
            raise InputError(f"mask keeps {name}, which is not an edge; start from Circuit.full()")
        if self.cells is not None:
            alone = self.heads is None and self.spans is None
            if not (alone and torch.equal(self.mask, edges_among(self.graph, self.cells))):
                raise InputError(
                    "a circuit of nodes or neurons keeps every edge among its nodes, everywhere; make it by "
                    "Circuit.from_nodes or Circuit.from_cells"
                )

    # ---- making ---------------------------------------------------------------------------------

    @classmethod
    def full(cls, graph: Graph, spans: Spans | None = None) -> "Circuit":
        """Every edge kept: the model itself."""
        return cls(graph=graph, mask=edge_slots(graph, spans).clone(), spans=spans)

    @classmethod
    def empty(cls, graph: Graph, spans: Spans | None = None) -> "Circuit":
        """Every edge ablated."""
        return cls(graph=graph, mask=torch.zeros_like(edge_slots(graph, spans)), spans=spans)

    @classmethod
    def from_edges(
        cls, graph: Graph, edges: Iterable[str | Sequence[str]], spans: Spans | None = None
    ) -> "Circuit":
        """The circuit of named edges.

        Args:
            graph: The graph that holds them.
            edges: `"a0.h1->a2.h0.q"` or `(source, target)`; the spelling of EAP-IG (`a2.h0<q>`) is accepted.
                With spans `"a0.h1->a2.h0.q@subject"`; without `@` the edge is kept at every span.
            spans: Spans of positions; default: an edge is kept everywhere.

        Raises:
            UnknownNameError: For the first edge or span that there is not.
            InputError: For an edge into `logits` at a span where they are not read.
        """
        slots = edge_slots(graph, spans)
        mask = torch.zeros_like(slots)
        for edge in edges:
            text = edge if isinstance(edge, str) else "->".join(edge)
            name, _, span = (text, "", "") if spans is None else text.partition("@")
            number = spans.index(span) if spans is not None and span else ...
            place = (number, *graph.edge_index(name))
            if not slots[place].any():
                raise InputError(f"edge {text!r}: the logits are not read in span {span!r}")
            mask[place] = slots[place]
        return cls(graph=graph, mask=mask, spans=spans)

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
        provenance: dict[str, Any] = {}
        if isinstance(heads, str | Path):
            heads = heads_of(str(heads)) or load_head_circuit(heads)
        if isinstance(heads, HeadCircuit):
            if (heads.n_layers, heads.n_heads) != (graph.n_layers, graph.n_heads):
                raise GraphMismatchError(
                    f"head circuit {heads.id!r} describes {heads.n_layers} layers of {heads.n_heads} heads, "
                    f"but the graph has {graph.n_layers} of {graph.n_heads}"
                )
            provenance = {"published": heads.id, "task": heads.task}
            heads = heads.heads
        head_set = check_heads(heads, graph.n_layers, graph.n_heads)
        rows = torch.zeros(graph.n_sources, dtype=torch.bool)
        rows[[0, *(graph.head_source(layer, head) for layer, head in head_set)]] = True
        for layer in range(graph.n_layers if mlps else 0):
            rows[graph.mlp_sources(layer)] = True
        return cls(graph=graph, mask=edges_among(graph, rows), heads=head_set, provenance=provenance)

    @classmethod
    def from_nodes(cls, graph: Graph, nodes: Iterable[str] | str) -> "Circuit":
        """The circuit of a set of nodes: all edges among them; what other nodes write is ablated.

        Unlike in a circuit of heads, `input` and MLPs are kept only where they are named.

        Args:
            graph: The graph that holds them.
            nodes: Names of sources, `["input", "a0.h1", "m0"]` or `"input,a0.h1,m0"`; `logits` stays.

        Raises:
            UnknownNameError: For the first node that there is not.
        """
        names = [name.strip() for name in nodes.split(",")] if isinstance(nodes, str) else nodes
        cells = torch.zeros(graph.n_sources, dtype=torch.bool)
        cells[[graph.source_index(name) for name in names if name != "logits"]] = True
        return cls.from_cells(graph, cells)

    @classmethod
    def from_cells(
        cls,
        graph: Graph,
        cells: Bool[Tensor, "n_sources *d_model"],
        provenance: Mapping[str, Any] | None = None,
    ) -> "Circuit":
        """The circuit of nodes or neurons, and all edges among the nodes that keep something.

        Args:
            graph: The graph that holds them.
            cells: Kept sources `[n_sources]`, or kept dimensions of their outputs `[n_sources, d_model]`.
            provenance: What chose them.

        Raises:
            ShapeError: If `cells` are not flags of this graph's sources.
        """
        mask = edges_among(graph, cells)
        return cls(graph=graph, mask=mask, cells=cells.clone(), provenance=dict(provenance or {}))

    @classmethod
    def random(
        cls, graph: Graph, n: int, *, seed: int = 0, level: Level = "edge", d_model: int | None = None
    ) -> "Circuit":
        """`n` edges, nodes or neurons drawn uniformly without replacement.

        `input` is always one of the nodes, since without it the run is that of the empty circuit. Neurons
        need `d_model`, the width of the model.
        """
        if level == "neuron" and d_model is None:
            raise InputError("random neurons need the width of the model; give d_model=model.d_model")
        slots = level_slots(graph, level, d_model)
        check_n_edges(n, slots, least=0, level=level)
        among, first = slots.flatten().nonzero().squeeze(1), 0
        if level == "node" and n:
            among, first = among[1:], 1
        order = torch.randperm(len(among), generator=torch_stream(seed, f"random-circuit/{n}"))
        kept = torch.zeros_like(slots)
        kept.view(-1)[among[order[: n - first]]] = True
        kept.view(-1)[:first] = True
        provenance = {"method": "random", "seed": seed}
        if level != "edge":
            return cls.from_cells(graph, kept, provenance)
        return cls(graph=graph, mask=kept, provenance=provenance)

    # ---- looking --------------------------------------------------------------------------------

    @cached_property
    def n_edges(self) -> int:
        """Number of kept edges; with spans of kept (edge, span) pairs."""
        return int(self.mask.sum())

    @property
    def level(self) -> Level:
        """What is kept or cut one by one: `edge`, `node` or `neuron`."""
        return level_of(self.cells)

    @property
    def items(self) -> Bool[Tensor, "..."]:
        """True at what is kept of the circuit's own level: `cells`, else `mask`."""
        return self.mask if self.cells is None else self.cells

    @cached_property
    def partial(self) -> bool:
        """Whether some node keeps some of its neurons and not all."""
        return self.level == "neuron" and bool((self.items.any(1) & ~self.items.all(1)).any())

    @cached_property
    def n_items(self) -> int:
        """Number of kept edges, nodes or neurons, by the level of the circuit."""
        return int(self.items.sum())

    @property
    def level_facts(self) -> dict[str, Any]:
        """Level and counts of a circuit of nodes or neurons, for documents beside its edges; else nothing."""
        if (level := self.level) == "edge":
            return {}
        return {"level": level, f"n_{level}s": self.n_items, f"n_graph_{level}s": self.items.numel()}

    def edges(self) -> list[str]:
        """Names of the kept edges in the order of the graph; `scores.to_frame()` lists edges by strength.

        With spans `a0.h1->a2.h0.q@subject`, span by span.
        """
        return slot_names(self.graph, self.spans, self.mask)

    def anywhere(self) -> "Circuit":
        """The ordinary circuit of the edges that are kept at some span."""
        if self.spans is None:
            return self
        provenance = {**self.provenance, "union_of": self.hash}
        return Circuit(graph=self.graph, mask=self.mask.any(0), provenance=provenance)

    def everywhere(self, spans: Spans) -> "Circuit":
        """The same edges kept at every span. A circuit of neurons raises an InputError."""
        if self.level == "neuron":
            raise InputError("a circuit of neurons cannot be kept at spans of positions; give edges or nodes")
        mask = edge_slots(self.graph, spans) & self.anywhere().mask
        return Circuit(graph=self.graph, spans=spans, mask=mask, provenance=dict(self.provenance))

    def nodes(self) -> list[str]:
        """Names of the nodes at the ends of kept edges, in forward order; `logits` last.

        An edge into a key or value head that several query heads share counts for those of them that
        other edges touch; if there is none, for all.
        """
        feeds, mask = self.graph.feeds, self.anywhere().mask
        read, alone = mask.any(0), feeds.sum(1) == 1
        rows = mask.any(1) | feeds[read & alone].any(0)
        shared = feeds[read & ~alone]
        rows |= shared[~(shared & rows).any(1)].any(0)
        names = [self.graph.sources[row] for row in rows.nonzero().squeeze(1).tolist()]
        return names + (["logits"] if bool(read[-1]) else [])

    def kept_heads(self) -> tuple[tuple[int, int], ...]:
        """Heads of the circuit as (layer, head): those given, or those of its connected form."""
        if self.heads is not None:
            return self.heads
        nodes = self.connected(warn=False).nodes()
        return tuple(head for name in nodes if name.startswith("a") for head in heads_of(name) or ())

    def to_frame(self) -> "pd.DataFrame":
        """One row per kept edge: source, target, source_layer, target_layer; with spans the span first.

        Of a circuit of nodes or neurons one row per node (node, layer) or neuron (node, neuron, layer), with
        layers as in `graph.source_layer`: 0 for `input`.
        """
        if self.cells is not None:
            rows = self.cells.nonzero()[:, 0]
            return cell_frame(self.graph, self.cells).assign(layer=self.graph.source_layer[rows].numpy())
        *_, rows, columns = self.mask.nonzero(as_tuple=True)
        return slot_frame(self.graph, self.spans, self.mask).assign(
            source_layer=self.graph.source_layer[rows].numpy(),
            target_layer=self.graph.target_layer[columns].numpy(),
        )

    def to_networkx(self) -> "nx.MultiDiGraph[str]":
        """Node-level graph: one edge per kept edge, with `target`, the slot it enters.

        A key/value head that several query heads share is a node of its own (`a1.kv1`); its attribute
        `heads` names those that read it.
        """
        import networkx as nx

        graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
        for row, column in self.anywhere().mask.nonzero().tolist():
            target, fed = self.graph.targets[column], self.graph.feeds[column].nonzero().squeeze(1).tolist()
            if len(fed) > 1:
                graph.add_node(reader_of(target), heads=tuple(self.graph.sources[head] for head in fed))
            graph.add_edge(self.graph.sources[row], reader_of(target), target=target)
        return graph

    @cached_property
    def hash(self) -> str:
        """Identity of graph, mask, and head list, spans or cells (16 hex digits)."""
        digest = hashlib.sha256(self.graph.fingerprint.encode())
        if self.spans is not None:
            digest.update(repr(sorted(self.spans.describe().items())).encode())
        digest.update(self.mask.contiguous().numpy().tobytes())
        if self.spans is None:
            digest.update(repr(self.heads).encode())
        if self.cells is not None:
            digest.update(self.level.encode() + self.cells.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        n = int(edge_slots(self.graph, self.spans).sum()) if self.cells is None else self.cells.numel()
        where = "" if self.spans is None else f" at {len(self.spans)} spans"
        return (
            f"Circuit({self.n_items} of {n} {self.level}s{where}, {self.n_items / n:.1%}, hash {self.hash})"
        )

    # ---- set operations -------------------------------------------------------------------------

    def _combine(self, other: "Circuit", operation: Callable[[Any, Any], Any]) -> "Circuit":
        """Apply a set operation to edges, nodes or neurons, or to the heads if both are circuits of heads."""
        self._check(other)
        shared = {key: value for key, value in self.provenance.items() if other.provenance.get(key) == value}
        if self.cells is not None:
            circuit = Circuit.from_cells(self.graph, operation(self.cells, other.cells))
        elif self.heads is None or other.heads is None:
            circuit = replace(self, mask=operation(self.mask, other.mask), heads=None)
        else:
            heads = sorted(operation(set(self.heads), set(other.heads)))
            circuit = Circuit.from_heads(self.graph, heads, mlps=self.keeps_mlps or other.keeps_mlps)
        return replace(circuit, provenance={**shared, "parents": [self.hash, other.hash]})

    @property
    def keeps_mlps(self) -> bool:
        """Whether the MLPs act: some edge out of the first one is kept."""
        return self.graph.mlps and bool(self.mask[..., self.graph.mlp_source(0), :].any())

    def emptied(self) -> "Circuit":
        """What is left when nothing of the circuit is kept: no edge, or for a head circuit no head.

        A circuit of heads ablates heads only, so its embeddings and kept MLPs still act.
        """
        if self.heads is None:
            return Circuit.empty(self.graph)
        return Circuit.from_heads(self.graph, [], mlps=self.keeps_mlps)

    def _check(self, other: "Circuit") -> "Circuit":
        check_graph("the other circuit", other.graph, self.graph)
        one, two = (None if each.spans is None else each.spans.describe() for each in (self, other))
        if one != two:
            raise InputError("the circuits have different spans of positions; compare them as .anywhere()")
        if self.level != other.level or self.items.shape != other.items.shape:
            raise InputError(
                f"one circuit is of {self.level}s, the other of {other.level}s; compare two of one level, or "
                "their edges: Circuit(graph=circuit.graph, mask=circuit.mask)"
            )
        return other

    def __or__(self, other: "Circuit") -> "Circuit":
        return self._combine(other, operator.or_)

    def __and__(self, other: "Circuit") -> "Circuit":
        return self._combine(other, operator.and_)

    def __sub__(self, other: "Circuit") -> "Circuit":
        return self._combine(other, lambda one, two: one - two if isinstance(one, set) else one & ~two)

    def __invert__(self) -> "Circuit":
        if self.cells is not None:
            return Circuit.from_cells(self.graph, ~self.cells, {"complement_of": self.hash})
        mask = edge_slots(self.graph, self.spans) & ~self.mask
        return Circuit(graph=self.graph, mask=mask, provenance={"complement_of": self.hash}, spans=self.spans)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Circuit) and self.hash == other.hash

    def __hash__(self) -> int:
        return int(self.hash, 16)

    def jaccard(self, other: "Circuit") -> float:
        """|A and B| / |A or B|; two empty circuits agree fully (1.0)."""
        union = int((self.items | self._check(other).items).sum())
        return 1.0 if union == 0 else int((self.items & other.items).sum()) / union

    def dropped(self) -> "Circuit":
        """What runs when this circuit is dropped: the complement, or everything but its heads."""
        if self.heads is None:
            return ~self
        mask = self.graph.valid.clone()
        mask[[self.graph.head_source(layer, head) for layer, head in self.heads]] = False
        return Circuit(graph=self.graph, mask=mask, provenance={"dropped": self.hash})

    def without_head(self, layer: int, head: int) -> "Circuit":
        """The circuit with one head ablated: none of its outgoing edges is kept."""
        row, provenance = self.graph.head_source(layer, head), {"parent": self.hash, "without": [layer, head]}
        if self.cells is not None:
            cells = self.cells.clone()
            cells[row] = False
            return Circuit.from_cells(self.graph, cells, provenance)
        mask = self.mask.clone()
        mask[..., row, :] = False
        heads = None if self.heads is None else tuple(pair for pair in self.heads if pair != (layer, head))
        return replace(self, mask=mask, heads=heads, provenance=provenance)

    def connected(self, *, warn: bool = True) -> "Circuit":
        """Only the edges on a kept path from `input` to `logits`; no logit changes under resampling.

        A circuit of nodes or neurons stays whole while it keeps something of `input`, which every kept node
        reads; without it, nothing is left.

        With spans the path leads through spans: a head that reads k or v at one writes at every one that
        `reach` allows, everything else stays where it is.

        Args:
            warn: Warn where none of the edges lies on such a path, so that nothing is left.
        """
        reach = None if self.spans is None else self.spans.reach
        mask = prune(self.graph, self.mask, reach)
        if self.cells is None:
            circuit = replace(self, mask=mask)
        else:
            on_path = mask.any(1).view(-1, *[1] * (self.cells.ndim - 1))
            circuit = Circuit.from_cells(self.graph, self.cells & on_path, self.provenance)
        if warn and self.n_items and not circuit.n_items:
            what, missing = self.level, "more edges" if self.level == "edge" else "`input` too"
            text = f"none of the {self.n_items} {what}s lies on a path from input to logits, so the connected"
            warnings.warn(f"{text} circuit is empty. Keep {missing}", AssayWarning, stacklevel=2)
        return circuit

    def arrays(self) -> dict[str, Bool[Tensor, "..."]]:
        """What a file or a store keeps of it beside its graph: `mask`, and `cells` where it has some."""
        return {"mask": self.mask} | ({} if self.cells is None else {"cells": self.cells})

    def save(self, path: str | Path) -> Path:
        """Write one `.safetensors` file with JSON metadata; the write is atomic."""
        return write_edges(
            path,
            self.graph,
            self.arrays(),
            kind="circuit",
            heads=self.heads,
            provenance=dict(self.provenance),
            spans=self.spans,
        )


# ---- edges at spans -------------------------------------------------------------------------------------


def edge_slots(graph: Graph, spans: Spans | None = None) -> Bool[Tensor, "*spans n_sources n_targets"]:
    """True where there is an edge; at a span every edge but those into logits that are not read there."""
    if spans is None:
        return graph.valid
    slots = graph.valid.expand(len(spans), -1, -1).clone()
    slots[~spans.read, :, -1] = False
    return slots


def level_of(cells: Tensor | None) -> Level:
    """The level of what stands per source, `[S]` or `[S, d_model]`; None: per edge."""
    if cells is None:
        return "edge"
    return "node" if cells.ndim == 1 else "neuron"


def level_slots(graph: Graph, level: Level, d_model: int | None = None) -> Bool[Tensor, "n_sources *width"]:
    """True at every edge `[S, R]`, node `[S]` or neuron `[S, d_model]`.

    Raises:
        UnknownNameError: For another level.
    """
    check_name("level", level, get_args(Level))
    if level == "edge":
        return graph.valid
    return torch.ones(graph.n_sources, *[d_model or 1] * (level == "neuron"), dtype=torch.bool)


def edges_among(graph: Graph, cells: Bool[Tensor, "n_sources *d_model"]) -> Bool[Tensor, "S R"]:
    """Every edge among some nodes: those that keep anything, and `logits`."""
    if cells.dtype != torch.bool or cells.ndim not in (1, 2) or len(cells) != graph.n_sources:
        got, n = f"{cells.dtype} {tuple(cells.shape)}", graph.n_sources
        raise ShapeError(f"cells are {got}; expected torch.bool of shape ({n},) or ({n}, d_model)")
    rows = cells.reshape(graph.n_sources, -1).any(1)
    columns = (graph.feeds & rows).any(1)
    columns[-1] = True
    return graph.valid & rows[:, None] & columns


def cell_frame(graph: Graph, cells: Bool[Tensor, "n_sources *d_model"]) -> "pd.DataFrame":
    """One row per true node or neuron: node, and the neuron where there are some."""
    import pandas as pd

    rows, *neurons = (places.tolist() for places in cells.nonzero(as_tuple=True))
    frame = pd.DataFrame({"node": [graph.sources[row] for row in rows]})
    return frame.assign(neuron=neurons[0]) if neurons else frame


def slot_frame(graph: Graph, spans: Spans | None, mask: Bool[Tensor, "..."]) -> "pd.DataFrame":
    """One row per true entry: span where there are spans, source, target."""
    import pandas as pd

    *spanned, rows, columns = (places.tolist() for places in mask.nonzero(as_tuple=True))
    frame = {} if spans is None else {"span": [spans.names[span] for span in spanned[0]]}
    frame["source"] = [graph.sources[row] for row in rows]
    frame["target"] = [graph.targets[column] for column in columns]
    return pd.DataFrame(frame)


def slot_names(graph: Graph, spans: Spans | None, mask: Bool[Tensor, "..."]) -> list[str]:
    """Names of the true entries, `a0.h1->a2.h0.q`, with `@span` where there are spans."""
    return [
        graph.edge_name(row, column) + (f"@{spans.names[span[0]]}" if spans is not None else "")
        for *span, row, column in mask.nonzero().tolist()
    ]


def reader_of(target: str) -> str:
    """The node that reads at a target, `a0.h1` at `a0.h1.q`; a key/value head that heads share, `a1.kv0`."""
    return re.sub(r"\.[qkv]$", "", target)


def prune(
    graph: Graph,
    mask: Bool[Tensor, "*masks n_sources n_targets"],
    reach: Bool[Tensor, "n_spans n_spans"] | None = None,
) -> Bool[Tensor, "*masks n_sources n_targets"]:
    """Edges of each mask that lie on a path from `input` to `logits` inside it.

    Equal to dropping nodes without kept in- or out-edges until nothing changes. Two sweeps over the
    blocks, so the cost is that of a few reductions over the masks.

    Args:
        graph: The graph.
        mask: Kept edges, of any number of circuits; with `reach` those of one circuit, span by span.
        reach: Spans that attention carries something from (rows) to (columns); a path may change its span.
    """
    device, masks = mask.device, mask.shape[:-2]
    feeds = graph.feeds.to(device)
    moved = torch.zeros(graph.n_targets, dtype=torch.bool, device=device)
    if reach is not None:  # keys and values are what attention carries to other positions
        for layer in range(graph.n_layers):
            moved[graph.channel_target(layer, "k") : graph.mlp_target(layer)] = True

    def carried(flags: Tensor, columns: slice, ways: Tensor) -> Tensor:
        """Flags of targets by span, those of keys and values spread over the spans that they reach."""
        return torch.where(moved[columns], (ways.float() @ flags.float()) > 0, flags)

    reached = torch.zeros(*masks, graph.n_sources, dtype=torch.bool, device=device)
    reached[..., 0] = True
    for columns, rows in graph.stages:
        read = (mask[..., columns] & reached[..., None]).any(-2)
        read = read if reach is None else carried(read, columns, reach.T)
        reached[..., rows] = (feeds[columns, rows] & read[..., None]).any(-2)
    needed = mask[..., -1].clone()
    wanted = torch.zeros(*masks, graph.n_targets, dtype=torch.bool, device=device)
    wanted[..., -1] = True
    for columns, rows in reversed(graph.stages):
        want = (feeds[columns, rows] & needed[..., None, rows]).any(-1)
        wanted[..., columns] = want if reach is None else carried(want, columns, reach)
        needed |= (mask[..., columns] & wanted[..., None, columns]).any(-1)
    return mask & reached[..., None] & wanted[..., None, :]


# ---- circuits out of files ------------------------------------------------------------------------------


def load_circuit(path: str | Path, graph: Graph | None = None) -> Circuit:
    """Read a circuit written by `Circuit.save`.

    Args:
        path: The file, or an address of the Hugging Face Hub: `hf://OWNER/NAME`, followed by `@REVISION` and
            `/PATH` where they are not the main branch and `circuit.safetensors`. Private repositories need
            `HF_TOKEN` or `hf auth login`.
        graph: The graph it must belong to; default: the one it was saved with.

    Raises:
        FileFormatError: If the file is truncated, tampered with, of another kind or too new.
        GraphMismatchError: If it belongs to another graph.
        HubError: If an address is malformed, or its file cannot be fetched.
    """
    path = _fetched(str(path)) if str(path).startswith(HUB) else path
    stored, arrays, metadata = read_edges(path, "circuit", graph)
    with malformed(path, "a circuit written by .save()"):
        heads, shape = metadata.get("heads"), (stored.n_layers, stored.n_heads)
        return Circuit(
            graph=stored,
            mask=arrays["mask"].bool(),
            heads=None if heads is None else check_heads(heads, *shape),
            provenance=metadata["provenance"],
            spans=Spans.restored(metadata.get("spans")),
            cells=None if (cells := arrays.get("cells")) is None else cells.bool(),
        )


def _fetched(address: str) -> Path:
    """The file of an address, in the cache of the hub's client."""
    from huggingface_hub import hf_hub_download

    try:
        owner, name, *path = address.removeprefix(HUB).split("/")
        name, _, revision = name.partition("@")
        file = "/".join(path) or "circuit.safetensors"
        return Path(hf_hub_download(f"{owner}/{name}", file, revision=revision or None))
    except (OSError, ValueError) as error:
        text = f"cannot fetch {printable(address)[:200]}: {error}"
        raise HubError(f"{text}; write hf://OWNER/NAME@REVISION/PATH.safetensors") from error


def published_circuits() -> tuple[str, ...]:
    """Names of the shipped circuits."""
    return tuple(sorted(shipped("data")))


def published_circuit(name: str) -> Circuit:
    """A published circuit at edge level.

    Args:
        name: `ioi_gpt2` (Wang et al. 2022, arXiv:2211.00593), `ioi_gpt2_autocircuit` (the same in Miller et
            al. 2024's reading), `greater_than_gpt2` (Hanna et al. 2023, arXiv:2305.00586) or
            `docstring_attn_only_4l` (Heimersheim and Janiak 2023); edges as in Conmy et al. 2023,
            arXiv:2304.14997.

    Raises:
        UnknownNameError: For any other name.

    Example:
        >>> published_circuit("ioi_gpt2").n_edges
        963
    """
    known = shipped("data")
    check_name("published circuit", name, sorted(known))
    stored: dict[str, Any] = json.loads(known[name].read_text("utf-8"))
    model = stored["model"]
    graph = build_graph(model["n_layers"], model["n_heads"], mlps=model["has_mlp"])
    provenance = {"published": name, "references": stored["references"]}
    return replace(Circuit.from_edges(graph, stored["edges"]), provenance=provenance)
