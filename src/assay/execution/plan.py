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
- a target that keeps almost everything at all positions starts from the running total and subtracts.

A run may also start from another run and move the input of one target, as `assay.execution.cuts` does. That
run then takes the place of the ablated one in all of this: sources that the target does not reach equal their
value in it.

A plan is made by NumPy: it takes thousands of steps on few booleans, and each costs less than in PyTorch.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from assay.core.errors import ShapeError
from assay.graph import Graph


# Heads of a block are apart; share a norm of their queries and keys; share a norm of what they write.
Coupling = Literal["none", "queries", "heads"]

Sources = Bool[np.ndarray, " n_sources"]
Mask = Bool[np.ndarray, "n_sources n_targets"]


@dataclass(frozen=True, kw_only=True)
class Inlet:
    """One distinct input of an attention, an MLP or `logits`.

    Attributes:
        everywhere: True when needed at all positions, else at the read position only.
        from_total: Start from the running total of all differences (then `terms` are subtracted).
        terms: Rows of the sources added to, or subtracted from, the start.
        moved: The one target that reads it, where an amount of its own is added.
    """

    everywhere: bool
    from_total: bool
    terms: tuple[int, ...]
    moved: int | None = None

    @property
    def empty(self) -> bool:
        """True where the input is the ablated stream itself."""
        return not self.from_total and not self.terms and self.moved is None


@dataclass(frozen=True, kw_only=True)
class AttentionStep:
    """The live heads of one block, and what reads each distinct input.

    Attributes:
        full: Live query heads that are needed at all positions.
        last: Those that are needed at the read position only.
        keys: Key/value heads that they read.
        inlets: Distinct inputs, with the channels that read each: their places in the order of
            `Block.channels`, which is that of the block's targets.
    """

    full: tuple[int, ...]
    last: tuple[int, ...]
    keys: tuple[int, ...]
    inlets: dict[Inlet, list[int]] = field(default_factory=dict)


@dataclass(kw_only=True)
class CompiledMask:
    """Everything that depends on the mask alone. Build it with `compile_plan`.

    Attributes:
        graph: The graph of the mask.
        everything: True where the run is the model itself.
        clean: Per source, computed from the clean input alone.
        everywhere, somewhere: Per source, needed at all positions, needed at all.
        attention: Step per block (None where all of it is dead, clean or ablated).
        mlp: What the MLP of each block reads (None where it is dead, clean or ablated).
        logits: Inlet of `logits`.
    """

    graph: Graph
    everything: bool
    clean: Sources
    everywhere: Sources
    somewhere: Sources
    attention: list[AttentionStep | None]
    mlp: list[Inlet | None]
    logits: Inlet

    @cached_property
    def inlets(self) -> list[Inlet]:
        """All distinct inputs, in forward order."""
        inlets = []
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            inlets += [*(attention.inlets if attention else ()), *([mlp] if mlp else ())]
        return [*inlets, self.logits]

    @cached_property
    def clean_depth(self) -> int:
        """How many blocks of the model must be run on the clean input."""
        return int(self.graph.source_layer.numpy()[self.clean & self.somewhere].max(initial=0))


def _feeds(graph: Graph, coupling: Coupling) -> Bool[np.ndarray, "n_targets n_sources"]:
    """True where a target is an input of the node behind a source, or moves it through the other heads."""
    feeds: np.ndarray = graph.feeds.numpy()
    if coupling == "none":
        return feeds
    feeds = feeds.copy()
    for layer in range(graph.n_layers):
        last = graph.mlp_target(layer) if coupling == "heads" else graph.channel_target(layer, "v")
        row = graph.head_source(layer)
        feeds[graph.channel_target(layer, "q") : last, row : row + graph.n_heads] = True
    return feeds


def source_types(
    graph: Graph,
    mask: Bool[Tensor, "n_sources n_targets"],
    *,
    coupling: Coupling = "none",
    origin: int | None = None,
) -> tuple[Sources, Sources]:
    """Which sources are clean and which are ablated-only; all others mix the two inputs.

    A target is clean if it keeps every upstream edge and all those sources are clean; it is ablated if
    every upstream edge is cut or comes from an ablated source; a node is what all its targets are. Where
    one target is moved (`origin`), everything is ablated but what it reaches.
    """
    clean, ablated = (np.zeros(graph.n_sources, dtype=np.bool_) for _ in range(2))
    clean[0], ablated[0] = origin is None, origin is not None
    stays = np.arange(graph.n_targets) != origin
    inputs, valid = _feeds(graph, coupling), graph.valid.numpy()
    for columns, rows in graph.stages:
        before = slice(0, rows.start)  # sources that may have written
        kept = mask.numpy()[before, columns]
        target_clean = np.asarray((~valid[before, columns] | (kept & clean[before, None])).all(0))
        target_ablated = np.asarray((~kept | ablated[before, None]).all(0)) & stays[columns]
        feeds = inputs[columns, rows]
        clean[rows] = ~(feeds & ~target_clean[:, None]).any(0)
        ablated[rows] = ~(feeds & ~target_ablated[:, None]).any(0)
    return clean, ablated


def compile_plan(
    graph: Graph,
    mask: Bool[Tensor, "n_sources n_targets"],
    *,
    resample: bool,
    pools: bool = False,
    coupling: Coupling = "none",
    origin: int | None = None,
    offset: Collection[int] = (),
) -> CompiledMask:
    """Work out what an ablated run of `mask` has to compute.

    Args:
        graph: The graph.
        mask: True = keep.
        resample: True where the ablated value of a source is its output in one consistent run, so that
            a source fed by ablated values only equals its own ablated value.
        pools: True where `logits` reads all positions (mean pooling), not one.
        coupling: Which heads of a block depend on each other's inputs; see `Model.coupling`.
        origin: The one target whose input is moved, where the run starts from another run; see
            `CircuitRunner.logits`.
        offset: Targets that in the other run read something else than the stream of their stage.
    """
    if mask.shape != graph.valid.shape:
        raise ShapeError(f"mask has shape {tuple(mask.shape)}; expected {tuple(graph.valid.shape)}")
    clean, ablated = source_types(graph, mask, coupling=coupling, origin=origin)
    kept: Mask = mask.numpy() & ~ablated[:, None] if resample else mask.numpy()
    everywhere, somewhere = _liveness(graph, kept, clean, pools=pools, coupling=coupling)
    kept, computed = kept & somewhere[:, None], somewhere & ~clean
    left_out = graph.valid.numpy() & everywhere[:, None] & ~kept
    from_total = kept.sum(0) > left_out.sum(0) + 1

    def inlet(column: int, *, at_all: bool) -> Inlet:
        """Kept sources of a target, or the cut ones where that list is shorter."""
        total = at_all and bool(from_total[column])
        terms = tuple(np.flatnonzero((left_out if total else kept)[:, column]).tolist())
        apart = column == origin or (column in offset and bool(terms or total))
        return Inlet(everywhere=at_all, from_total=total, terms=terms, moved=column if apart else None)

    def attention(layer: int) -> AttentionStep | None:
        first = graph.head_source(layer)
        heads = [head for head in range(graph.n_heads) if computed[first + head]]
        if not heads:
            return None
        full = [head for head in heads if everywhere[first + head]]
        if coupling == "heads":
            heads = list(range(graph.n_heads))
            full = heads if full else []
        last = [head for head in heads if head not in full]
        queries = [*full, *last] if coupling == "none" else range(graph.n_heads)
        keys = dict.fromkeys(head * graph.n_kv_heads // graph.n_heads for head in queries)
        step = AttentionStep(full=tuple(full), last=tuple(last), keys=tuple(keys))
        first_key, first_value = graph.n_heads, graph.n_heads + graph.n_kv_heads
        for channel in (*queries, *(first_key + key for key in keys), *(first_value + key for key in keys)):
            # Keys and values are read at every position.
            at_all = channel >= graph.n_heads or (channel in full if coupling == "none" else bool(full))
            read = inlet(graph.channel_target(layer, "q") + channel, at_all=at_all)
            step.inlets.setdefault(read, []).append(channel)
        return step

    def mlp(layer: int) -> Inlet | None:
        row = graph.mlp_source(layer)
        if not graph.mlps or not computed[row]:
            return None
        return inlet(graph.mlp_target(layer), at_all=bool(everywhere[row]))

    return CompiledMask(
        graph=graph,
        everything=bool((~graph.valid.numpy()[:, -1] | (mask.numpy()[:, -1] & clean)).all()),
        clean=clean,
        everywhere=everywhere,
        somewhere=somewhere,
        attention=[attention(layer) for layer in range(graph.n_layers)],
        mlp=[mlp(layer) for layer in range(graph.n_layers)],
        logits=inlet(graph.n_targets - 1, at_all=pools),
    )


def _liveness(
    graph: Graph, kept: Mask, clean: Sources, *, pools: bool, coupling: Coupling
) -> tuple[Sources, Sources]:
    """Sources needed at all positions, and sources needed at all, walking back from `logits`.

    Clean sources are read from a plain pass, so they ask for nothing upstream.
    """
    somewhere = kept[:, -1].copy()
    everywhere = somewhere.copy() if pools else np.zeros_like(somewhere)
    inputs = _feeds(graph, coupling)
    for columns, rows in reversed(graph.stages):
        feeds, upstream = inputs[columns, rows], kept[: rows.start, columns]
        active = somewhere[rows] & ~clean[rows]
        attention = len(feeds) > feeds.shape[1]  # reads at more places than it writes
        if attention and coupling != "none" and (active & everywhere[rows]).any():
            everywhere[rows] |= active  # what couples them is needed at all positions
        wanted = (feeds & active).any(1)
        # Keys and values are read at every position, queries and MLP inputs where their node is needed.
        wanted_everywhere = (feeds & (active & everywhere[rows])).any(1)
        if attention:
            wanted_everywhere[graph.n_heads :] = wanted[graph.n_heads :]
        somewhere[: rows.start] |= (upstream & wanted).any(1)
        everywhere[: rows.start] |= (upstream & wanted_everywhere).any(1)
    return everywhere, somewhere
