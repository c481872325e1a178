"""The compiled form of an ablated run: what has to be computed, where, and from what.

For a mask C every target v reads

    x_v = biases + sum over sources u of ( C[u, v] ? a_u : b_u )
        = s_v + sum over kept u of (a_u - b_u),

with a_u the output in this run, b_u the ablated output, and s_v the ablated stream at v, which
the ablated run leaves behind anyway. (Conmy et al. 2023, arXiv:2304.14997; uit de Bos and
Garriga-Alonso 2024, equation 1.) The plan is made once per mask and holds no tensors of any input:

- sources without a kept path to `logits` are dead and never computed;
- under resampling, sources without a kept path from `input` equal their ablated value, so their
  edges count as cut, and a target that reads only such sources takes its projection from the
  ablated run;
- sources that read the unchanged clean stream are clean: they depend on the clean input alone;
- a node whose value is used at the read position only is computed there only;
- targets of one block that keep the same sources share one input and one norm;
- a target that keeps almost everything starts from the running total and subtracts.

A run may also start from another run and move the input of one target, as `assay.execution.cuts` does. That
run then takes the place of the ablated one in all of this: sources that the target does not reach equal their
value in it.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from assay.core.errors import ShapeError
from assay.graph import Graph


# Heads of a block are apart; share a norm of their queries and keys; share a norm of what they write.
Coupling = Literal["none", "queries", "heads"]


@dataclass(frozen=True, kw_only=True)
class Inlet:
    """One distinct input of an attention, an MLP or `logits`.

    Attributes:
        everywhere: True when needed at all positions, else at the read position only.
        from_total: Start from the running total of all differences (then `terms` are subtracted).
        terms: Rows of the sources added to, or subtracted from, the start.
        moved: The target to whose stream an amount of its own is added.
    """

    everywhere: bool
    from_total: bool
    terms: tuple[int, ...]
    moved: int | None = None

    @property
    def empty(self) -> bool:
        """True where the input is the ablated stream itself."""
        return not self.from_total and not self.terms and self.moved is None


@dataclass(kw_only=True)
class AttentionStep:
    """The live heads of one block: where each channel reads.

    Attributes:
        heads: Live query heads in order, those needed everywhere first.
        n_everywhere: How many of `heads` are needed at all positions.
        inlets: Distinct inputs of the block.
        reads: For `q` heads and `k`, `v` key/value heads: head -> index into `inlets`.
    """

    layer: int
    heads: tuple[int, ...] = ()
    n_everywhere: int = 0
    inlets: list[Inlet] = field(default_factory=list)
    reads: dict[str, dict[int, int]] = field(default_factory=dict)

    @property
    def full(self) -> tuple[int, ...]:
        """Live heads that are needed at all positions."""
        return self.heads[: self.n_everywhere]

    @property
    def last(self) -> tuple[int, ...]:
        """Live heads that are needed at the read position only."""
        return self.heads[self.n_everywhere :]

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """Key/value heads that the live heads read."""
        return tuple(sorted(self.reads["k"]))

    def channels(self, inlet: int) -> tuple[tuple[str, int], ...]:
        """The channels that read an inlet, as (`q`, `k` or `v`, head)."""
        return tuple(
            (channel, head)
            for channel in ("q", "k", "v")
            for head, used in self.reads[channel].items()
            if used == inlet
        )


@dataclass(kw_only=True)
class MlpStep:
    """One live MLP."""

    layer: int
    inlet: Inlet


@dataclass(kw_only=True)
class CompiledMask:
    """Everything that depends on the mask alone. Build it with `compile_plan`.

    Attributes:
        graph: The graph of the mask.
        everything: True where the run is the model itself.
        clean: Per source, computed from the clean input alone.
        everywhere, somewhere: Per source, needed at all positions, needed at all.
        attention: Step per block (None where all of it is dead, clean or ablated).
        mlp: Step per block (None where it is dead, clean or ablated).
        logits: Inlet of `logits`.
    """

    graph: Graph
    everything: bool
    clean: Bool[Tensor, " n_sources"]
    everywhere: Bool[Tensor, " n_sources"]
    somewhere: Bool[Tensor, " n_sources"]
    attention: list[AttentionStep | None]
    mlp: list[MlpStep | None]
    logits: Inlet

    @cached_property
    def inlets(self) -> list[Inlet]:
        """All distinct inputs, in forward order."""
        inlets = []
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            inlets += attention.inlets if attention else []
            inlets += [mlp.inlet] if mlp else []
        return [*inlets, self.logits]

    @cached_property
    def clean_depth(self) -> int:
        """How many blocks of the model must be run on the clean input."""
        rows = (self.clean & self.somewhere).nonzero().squeeze(1).tolist()
        return max((int(self.graph.source_layer[row]) for row in rows), default=0)

    def counts(self) -> dict[str, int]:
        """Live sources by kind, for reports and tests."""
        live = self.somewhere
        return {
            "live": int(live.sum()),
            "clean": int((live & self.clean).sum()),
            "per_pair": int((live & ~self.clean).sum()),
            "read_position_only": int((live & ~self.clean & ~self.everywhere).sum()),
            "inlets": len(self.inlets),
        }


def _feeds(graph: Graph, coupling: Coupling) -> Bool[Tensor, "n_targets n_sources"]:
    """True where a target is an input of the node behind a source, or moves it through the other heads."""
    if coupling == "none":
        return graph.feeds
    feeds = graph.feeds.clone()
    for layer in range(graph.n_layers):
        first, last = graph.channel_target(layer, "q"), graph.mlp_target(layer)
        row = graph.head_source(layer)
        moving = slice(first, last if coupling == "heads" else graph.channel_target(layer, "v"))
        feeds[moving, row : row + graph.n_heads] = True
    return feeds


def _is_attention(columns: slice, rows: slice) -> bool:
    """Whether a stage is the attention of a block, not its MLPs: it reads at more places than it writes."""
    n_rows: int = rows.stop - rows.start
    return bool(columns.stop - columns.start > n_rows)


def source_types(
    graph: Graph,
    mask: Bool[Tensor, "n_sources n_targets"],
    *,
    coupling: Coupling = "none",
    origin: int | None = None,
) -> tuple[Bool[Tensor, " n_sources"], Bool[Tensor, " n_sources"]]:
    """Which sources are clean and which are ablated-only; all others mix the two inputs.

    A target is clean if it keeps every upstream edge and all those sources are clean; it is ablated if
    every upstream edge is cut or comes from an ablated source; a node is what all its targets are. Where
    one target is moved, everything is ablated but what it reaches.
    """
    clean = torch.zeros(graph.n_sources, dtype=torch.bool)
    ablated = torch.zeros(graph.n_sources, dtype=torch.bool)
    clean[0], ablated[0] = origin is None, origin is not None
    inputs = _feeds(graph, coupling)
    for columns, rows in graph.stages:
        upstream, kept = graph.valid[:, columns], mask[:, columns]
        target_clean = (~upstream | (kept & clean[:, None])).all(0)
        target_ablated = (~kept | ablated[:, None]).all(0)
        if origin is not None and columns.start <= origin < columns.stop:
            target_ablated[origin - columns.start] = False
        feeds = inputs[columns, rows]
        clean[rows] = (~feeds | target_clean[:, None]).all(0)
        ablated[rows] = (~feeds | target_ablated[:, None]).all(0)
    return clean, ablated


def compile_plan(
    graph: Graph,
    mask: Bool[Tensor, "n_sources n_targets"],
    *,
    resample: bool,
    pools: bool = False,
    coupling: Coupling = "none",
    origin: int | None = None,
    moved: Collection[int] = (),
) -> CompiledMask:
    """Work out what an ablated run of `mask` has to compute.

    Args:
        graph: The graph.
        mask: True = keep.
        resample: True where the ablated value of a source is its output in one consistent run, so that
            a source fed by ablated values only equals its own ablated value.
        pools: True where `logits` reads all positions (mean pooling), not one.
        coupling: Which heads of a block depend on each other's inputs; see `Model.coupling`.
        origin: The one target whose input is moved, where the run starts from another run.
        moved: Targets whose streams in that run have amounts of their own; see `CircuitRunner.logits`.
    """
    if mask.shape != graph.valid.shape:
        raise ShapeError(f"mask has shape {tuple(mask.shape)}; expected {tuple(graph.valid.shape)}")
    clean, ablated = source_types(graph, mask, coupling=coupling, origin=origin)
    kept = mask & ~ablated[:, None] if resample else mask.clone()
    everywhere, somewhere = _liveness(graph, kept, clean, pools=pools, coupling=coupling)
    live = _Live(
        graph=graph,
        kept=kept & somewhere[:, None],
        everywhere=everywhere,
        somewhere=somewhere,
        computed=somewhere & ~clean,
        origin=origin,
        moved=moved,
    )
    upstream_clean = (~graph.valid | (mask & clean[:, None])).all(0)
    plan = CompiledMask(
        graph=graph,
        everything=bool(upstream_clean[-1]),
        clean=clean,
        everywhere=everywhere,
        somewhere=somewhere,
        attention=[],
        mlp=[],
        logits=live.inlet(graph.n_targets - 1, everywhere=pools),
    )
    for layer in range(graph.n_layers):
        plan.attention.append(_attention_step(live, layer, coupling))
        plan.mlp.append(_mlp_step(live, layer))
    return plan


def _liveness(
    graph: Graph,
    kept: Bool[Tensor, "n_sources n_targets"],
    clean: Bool[Tensor, " n_sources"],
    *,
    pools: bool,
    coupling: Coupling,
) -> tuple[Bool[Tensor, " n_sources"], Bool[Tensor, " n_sources"]]:
    """Sources needed at all positions, and sources needed at all, walking back from `logits`.

    Clean sources are read from a plain pass, so they ask for nothing upstream.
    """
    somewhere = kept[:, -1].clone()
    everywhere = somewhere.clone() if pools else torch.zeros_like(somewhere)
    inputs = _feeds(graph, coupling)
    for columns, rows in reversed(graph.stages):
        feeds = inputs[columns, rows]
        active = somewhere[rows] & ~clean[rows]
        attention = _is_attention(columns, rows)
        if attention and coupling != "none" and bool((active & everywhere[rows]).any()):
            everywhere[rows] |= active  # what couples them is needed at all positions
        wanted = (feeds & active).any(1)
        # Keys and values are read at every position, queries and MLP inputs where their node is needed.
        wanted_everywhere = (feeds & (active & everywhere[rows])).any(1)
        if attention:
            wanted_everywhere[graph.n_heads :] = wanted[graph.n_heads :]
        somewhere |= (kept[:, columns] & wanted).any(1)
        everywhere |= (kept[:, columns] & wanted_everywhere).any(1)
    return everywhere, somewhere


@dataclass(frozen=True, kw_only=True)
class _Live:
    """What is needed of a mask: edges, and sources at all positions, at all, and beyond a plain pass."""

    graph: Graph
    kept: Bool[Tensor, "n_sources n_targets"]
    everywhere: Bool[Tensor, " n_sources"]
    somewhere: Bool[Tensor, " n_sources"]
    computed: Bool[Tensor, " n_sources"]
    origin: int | None
    moved: Collection[int]

    def inlet(self, column: int, *, everywhere: bool) -> Inlet:
        """Kept sources of a target, or the cut ones where that list is shorter."""
        plus = self.kept[:, column]
        written = self.everywhere if everywhere else self.somewhere
        minus = self.graph.valid[:, column] & written & ~plus
        from_total = int(plus.sum()) > int(minus.sum()) + 1
        terms = (minus if from_total else plus).nonzero().squeeze(1).tolist()
        changed = column == self.origin or (column in self.moved and bool(terms or from_total))
        moved = column if changed else None
        return Inlet(everywhere=everywhere, from_total=from_total, terms=tuple(terms), moved=moved)


def _mlp_step(live: _Live, layer: int) -> MlpStep | None:
    graph = live.graph
    row = graph.mlp_source(layer)
    if not graph.mlps or not live.computed[row]:
        return None
    inlet = live.inlet(graph.mlp_target(layer), everywhere=bool(live.everywhere[row]))
    return MlpStep(layer=layer, inlet=inlet)


def _attention_step(live: _Live, layer: int, coupling: Coupling) -> AttentionStep | None:
    graph = live.graph
    first = graph.head_source(layer)
    heads = [head for head in range(graph.n_heads) if live.computed[first + head]]
    if not heads:
        return None
    full = [head for head in heads if live.everywhere[first + head]]
    if coupling == "heads":
        heads = list(range(graph.n_heads))
        full = heads if full else []
    last = [head for head in heads if head not in full]
    step = AttentionStep(layer=layer, heads=(*full, *last), n_everywhere=len(full))
    places: dict[Inlet, int] = {}
    reads: dict[str, dict[int, int]] = defaultdict(dict)

    def note(channel: str, head: int, needed: bool) -> None:
        column = graph.channel_target(layer, channel, head)
        inlet = live.inlet(column, everywhere=needed)
        index = places.setdefault(inlet, len(places))
        if index == len(step.inlets):
            step.inlets.append(inlet)
        reads[channel][head] = index

    for head in step.heads if coupling == "none" else range(graph.n_heads):
        note("q", head, head in full if coupling == "none" else bool(full))
        for channel in ("k", "v"):
            note(channel, head * graph.n_kv_heads // graph.n_heads, True)
    step.reads = dict(reads)
    return step
