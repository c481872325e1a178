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
from typing import TYPE_CHECKING, Any

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

HUB = "hf://"  # begins an address of the Hugging Face Hub


@dataclass(frozen=True, kw_only=True, eq=False)
class Circuit(Plotted):
    """Edges kept out of a graph; all others are ablated when the circuit runs.

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
    """

    drawn_by = "assay.circuits.plots:plot_circuit"

    graph: Graph
    mask: Bool[Tensor, "... n_sources n_targets"]
    heads: tuple[tuple[int, int], ...] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    spans: Spans | None = None

    def __post_init__(self) -> None:
        slots = edge_slots(self.graph, self.spans)
        if self.mask.shape != slots.shape or self.mask.dtype != torch.bool:
            got, shape = f"{self.mask.dtype} {tuple(self.mask.shape)}", tuple(slots.shape)
            raise ShapeError(f"mask is {got}; expected a torch.bool mask of shape {shape}")
        if bool((outside := self.mask & ~slots).any()):
            name = slot_names(self.graph, self.spans, outside)[0]
            raise InputError(f"mask keeps {name}, which is not an edge; start from Circuit.full()")

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
        columns = (graph.feeds & rows).any(1)
        columns[-1] = True
        mask = graph.valid & rows[:, None] & columns
        return cls(graph=graph, mask=mask, heads=head_set, provenance=provenance)

    @classmethod
    def random(cls, graph: Graph, n_edges: int, *, seed: int = 0) -> "Circuit":
        """`n_edges` edges drawn uniformly without replacement."""
        check_n_edges(n_edges, graph.valid, least=0)
        order = torch.randperm(graph.n_edges, generator=torch_stream(seed, f"random-circuit/{n_edges}"))
        mask = torch.zeros_like(graph.valid)
        mask.view(-1)[graph.valid.flatten().nonzero().squeeze(1)[order[:n_edges]]] = True
        return cls(graph=graph, mask=mask, provenance={"method": "random", "seed": seed})

    # ---- looking --------------------------------------------------------------------------------

    @cached_property
    def n_edges(self) -> int:
        """Number of kept edges; with spans of kept (edge, span) pairs."""
        return int(self.mask.sum())

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
        """The same edges kept at every span."""
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
        """One row per kept edge: source, target, source_layer, target_layer; with spans the span first."""
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
        """Identity of graph, mask, and head list or spans (16 hex digits)."""
        digest = hashlib.sha256(self.graph.fingerprint.encode())
        if self.spans is not None:
            digest.update(repr(sorted(self.spans.describe().items())).encode())
        digest.update(self.mask.contiguous().numpy().tobytes())
        if self.spans is None:
            digest.update(repr(self.heads).encode())
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        n = int(edge_slots(self.graph, self.spans).sum())
        where = "" if self.spans is None else f" at {len(self.spans)} spans"
        return f"Circuit({self.n_edges} of {n} edges{where}, {self.n_edges / n:.1%}, hash {self.hash})"

    # ---- set operations -------------------------------------------------------------------------

    def _combine(self, other: "Circuit", operation: Callable[[Any, Any], Any]) -> "Circuit":
        """Apply a set operation to the edges, or to the heads if both are circuits of heads."""
        self._check(other)
        shared = {key: value for key, value in self.provenance.items() if other.provenance.get(key) == value}
        if self.heads is None or other.heads is None:
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
        return other

    def __or__(self, other: "Circuit") -> "Circuit":
        return self._combine(other, operator.or_)

    def __and__(self, other: "Circuit") -> "Circuit":
        return self._combine(other, operator.and_)

    def __sub__(self, other: "Circuit") -> "Circuit":
        return self._combine(other, lambda one, two: one - two if isinstance(one, set) else one & ~two)

    def __invert__(self) -> "Circuit":
        mask = edge_slots(self.graph, self.spans) & ~self.mask
        return Circuit(graph=self.graph, mask=mask, provenance={"complement_of": self.hash}, spans=self.spans)

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
        mask = self.graph.valid.clone()
        mask[[self.graph.head_source(layer, head) for layer, head in self.heads]] = False
        return Circuit(graph=self.graph, mask=mask, provenance={"dropped": self.hash})

    def without_head(self, layer: int, head: int) -> "Circuit":
        """The circuit with one head ablated: none of its outgoing edges is kept."""
        mask = self.mask.clone()
        mask[..., self.graph.head_source(layer, head), :] = False
        heads = None if self.heads is None else tuple(pair for pair in self.heads if pair != (layer, head))
        provenance = {"parent": self.hash, "without": [layer, head]}
        return replace(self, mask=mask, heads=heads, provenance=provenance)

    def connected(self, *, warn: bool = True) -> "Circuit":
        """Only the edges on a kept path from `input` to `logits`; no logit changes under resampling.

        With spans the path leads through spans: a head that reads k or v at one writes at every one that
        `reach` allows, everything else stays where it is.

        Args:
            warn: Warn where none of the edges lies on such a path, so that nothing is left.
        """
        reach = None if self.spans is None else self.spans.reach
        circuit = replace(self, mask=prune(self.graph, self.mask, reach))
        if warn and self.n_edges and not circuit.n_edges:
            text = f"none of the {self.n_edges} edges lies on a path from input to logits, so the connected"
            warnings.warn(f"{text} circuit is empty. Keep more edges", AssayWarning, stacklevel=2)
        return circuit

    def save(self, path: str | Path) -> Path:
        """Write one `.safetensors` file with JSON metadata; the write is atomic."""
        return write_edges(
            path,
            self.graph,
            {"mask": self.mask},
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
