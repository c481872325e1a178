"""The residual-stream graph of a transformer: what writes, what reads, in which order.

Sources write into the residual stream: `input`, then per block the heads `a{l}.h{i}` and the MLP
`m{l}`. Targets read from it: per block `a{l}.h{i}.q`, `.k`, `.v` and `m{l}`, last `logits`. An edge
joins a source to every target that reads after the source has written. Where query heads share keys
and values, their targets are those of key/value heads: `a{l}.kv{j}.k`, `a{l}.kv{j}.v`. Everything
indexed by edges is one dense tensor `[n_sources, n_targets]`; names are looked up once, at the border.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from assay.core.errors import InputError, UnknownNameError, near_matches


CHANNELS = ("q", "k", "v")


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Topology of one transformer, without weights. Build it with `build_graph`.

    Attributes:
        n_layers: Number of blocks.
        n_heads: Query heads per block.
        n_kv_heads: Key/value heads per block (smaller than `n_heads` under grouped-query attention).
        parallel: True where the MLP of a block does not read the heads of its own block.
        mlps: False for attention-only models.
    """

    n_layers: int
    n_heads: int
    n_kv_heads: int
    parallel: bool = False
    mlps: bool = True

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Names of the nodes that write, in forward order; length S."""
        names = ["input"]
        for layer in range(self.n_layers):
            names += [f"a{layer}.h{head}" for head in range(self.n_heads)]
            names += [f"m{layer}"] if self.mlps else []
        return tuple(names)

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Names of the inputs that read, in forward order; length R."""
        names = []
        for layer in range(self.n_layers):
            for channel in CHANNELS:
                heads = self.n_heads if channel == "q" else self.n_kv_heads
                names += [self.channel_name(layer, channel, head) for head in range(heads)]
            names += [f"m{layer}"] if self.mlps else []
        return (*names, "logits")

    @property
    def n_sources(self) -> int:
        """S = 1 + n_layers (n_heads + n_mlps)."""
        return 1 + self.n_layers * self._sources_per_layer

    @property
    def n_targets(self) -> int:
        """R = n_layers (n_heads + 2 n_kv_heads + n_mlps) + 1."""
        return self.n_layers * self._targets_per_layer + 1

    @property
    def n_edges(self) -> int:
        """Number of true entries of `valid`."""
        return int(self.valid.sum())

    @property
    def n_mlps(self) -> int:
        """MLP nodes of a block: one or none."""
        return int(self.mlps)

    @property
    def _sources_per_layer(self) -> int:
        return self.n_heads + self.n_mlps

    @property
    def _targets_per_layer(self) -> int:
        return self.n_heads + 2 * self.n_kv_heads + self.n_mlps

    def head_source(self, layer: int, head: int = 0) -> int:
        """Row of head `head` of block `layer`."""
        return 1 + layer * self._sources_per_layer + head

    def mlp_source(self, layer: int) -> int:
        """Row of the MLP of block `layer`."""
        return 1 + layer * self._sources_per_layer + self.n_heads

    def mlp_sources(self, layer: int) -> slice:
        """Rows of the MLP nodes of block `layer`: one or none."""
        return slice(self.mlp_source(layer), self.mlp_source(layer) + self.n_mlps)

    def channel_target(self, layer: int, channel: str, head: int = 0) -> int:
        """Column of channel `q`, `k` or `v` of head `head` (a key/value head for `k`, `v`)."""
        offset = {"q": 0, "k": self.n_heads, "v": self.n_heads + self.n_kv_heads}[channel]
        return layer * self._targets_per_layer + offset + head

    def channel_name(self, layer: int, channel: str, head: int) -> str:
        """Name of channel `q`, `k` or `v`: `a1.h3.q`, and `a1.kv1.k` where heads share keys and values."""
        shared = channel != "q" and self.n_kv_heads < self.n_heads
        return f"a{layer}.{'kv' if shared else 'h'}{head}.{channel}"

    def mlp_target(self, layer: int) -> int:
        """Column of the MLP of block `layer`."""
        return layer * self._targets_per_layer + self.n_heads + 2 * self.n_kv_heads

    def mlp_targets(self, layer: int) -> slice:
        """Columns of the MLP nodes of block `layer`: one or none."""
        return slice(self.mlp_target(layer), self.mlp_target(layer) + self.n_mlps)

    def sources_before_block(self, layer: int) -> int:
        """How many sources the attention of block `layer` can read (a prefix of the rows)."""
        return 1 + layer * self._sources_per_layer

    def sources_before_mlp(self, layer: int) -> int:
        """How many sources the MLP of block `layer` can read (a prefix of the rows)."""
        own_heads = 0 if self.parallel else self.n_heads
        return self.sources_before_block(layer) + own_heads

    @cached_property
    def valid(self) -> Bool[Tensor, "n_sources n_targets"]:
        """True where an edge exists."""
        valid = torch.zeros(self.n_sources, self.n_targets, dtype=torch.bool)
        for layer in range(self.n_layers):
            attention = slice(self.channel_target(layer, "q"), self.mlp_target(layer))
            valid[: self.sources_before_block(layer), attention] = True
            valid[: self.sources_before_mlp(layer), self.mlp_targets(layer)] = True
        valid[:, -1] = True
        return valid

    @cached_property
    def source_layer(self) -> Int[Tensor, " n_sources"]:
        """Layer index of each source: 0 for `input`, l + 1 for the nodes of block l."""
        rows = torch.arange(self.n_sources)
        return torch.where(rows == 0, 0, 1 + (rows - 1).div(self._sources_per_layer, rounding_mode="floor"))

    @cached_property
    def target_layer(self) -> Int[Tensor, " n_targets"]:
        """Layer index of each target: l + 1 in block l, n_layers + 1 for `logits`."""
        return 1 + torch.arange(self.n_targets).div(self._targets_per_layer, rounding_mode="floor")

    @cached_property
    def feeds(self) -> Bool[Tensor, "n_targets n_sources"]:
        """True where a target is an input of the node behind a source."""
        feeds = torch.zeros(self.n_targets, self.n_sources, dtype=torch.bool)
        group = self.n_heads // self.n_kv_heads
        for layer in range(self.n_layers):
            for head in range(self.n_heads):
                for channel in CHANNELS:
                    of = head if channel == "q" else head // group
                    feeds[self.channel_target(layer, channel, of), self.head_source(layer, head)] = True
            if self.mlps:
                feeds[self.mlp_target(layer), self.mlp_source(layer)] = True
        return feeds

    @cached_property
    def stages(self) -> tuple[tuple[slice, slice], ...]:
        """Each attention and each MLP in forward order: columns that it reads at, rows that it writes."""
        stages = []
        for layer in range(self.n_layers):
            first, last = self.channel_target(layer, "q"), self.mlp_target(layer)
            row = self.head_source(layer)
            stages.append((slice(first, last), slice(row, row + self.n_heads)))
            if self.mlps:
                stages.append((self.mlp_targets(layer), self.mlp_sources(layer)))
        return tuple(stages)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the topology; equal fingerprints mean interchangeable masks."""
        text = f"graph/1 {self.n_layers} {self.n_heads} {self.n_kv_heads} {self.parallel} {self.mlps}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def describe(self) -> dict[str, int | bool]:
        """The numbers that `build_graph` needs to build this graph again."""
        return asdict(self)

    @cached_property
    def _source_rows(self) -> Mapping[str, int]:
        return {name: row for row, name in enumerate(self.sources)}

    @cached_property
    def _target_columns(self) -> Mapping[str, int]:
        return {name: column for column, name in enumerate(self.targets)}

    def source_index(self, name: str) -> int:
        """Row of a source."""
        return _look_up("source", name, name, self._source_rows)

    def target_index(self, name: str) -> int:
        """Column of a target; EAP-IG's spelling, `a0.h3<q>`, is accepted."""
        return _look_up("target", _EAP_IG.sub(r".\1", name), name, self._target_columns)

    def edge_name(self, source: int, target: int) -> str:
        """`a0.h1->a2.h0.q`."""
        return f"{self.sources[source]}->{self.targets[target]}"

    def edge_index(self, name: str) -> tuple[int, int]:
        """Row and column of an edge given as `source->target`.

        Raises:
            UnknownNameError: If an end does not exist or the source writes after the target reads.
        """
        source, arrow, target = name.partition("->")
        if not arrow:
            raise InputError(f"edge {name!r} has no '->'; write it as 'a0.h1->a2.h0.q'")
        row, column = self.source_index(source.strip()), self.target_index(target.strip())
        if not self.valid[row, column]:
            raise UnknownNameError(
                f"edge {name!r} is not in the graph: {self.sources[row]} writes after "
                f"{self.targets[column]} reads"
            )
        return row, column


def build_graph(
    n_layers: int, n_heads: int, n_kv_heads: int | None = None, parallel: bool = False, mlps: bool = True
) -> Graph:
    """The graph of a transformer of this shape; no model is needed.

    Args:
        n_layers: Blocks, >= 1.
        n_heads: Query heads per block, >= 1.
        n_kv_heads: Key/value heads per block; must divide `n_heads`. Default: `n_heads`.
        parallel: True for blocks whose attention and MLP read the same stream (GPT-NeoX).
        mlps: False for attention-only models.

    Raises:
        InputError: For a shape no transformer can have.

    Example:
        >>> build_graph(12, 12).n_edges
        32491
    """
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    if n_layers < 1 or n_heads < 1 or n_kv_heads < 1 or n_heads % n_kv_heads:
        raise InputError(
            f"no such transformer: n_layers={n_layers}, n_heads={n_heads}, n_kv_heads={n_kv_heads}; "
            "each must be at least 1 and n_kv_heads must divide n_heads"
        )
    return Graph(n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_kv_heads, parallel=parallel, mlps=mlps)


_EAP_IG = re.compile(r"<([qkv])>$")


def _look_up(kind: str, name: str, given: str, known: Mapping[str, int]) -> int:
    if name in known:
        return known[name]
    near = near_matches(name, known)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UnknownNameError(f"unknown {kind} {given!r} in a graph of {len(known)} {kind}s{hint}")
