"""The current run of some examples while edges are cut, and what sets of further cuts change in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from assay.execution.attend import project
from assay.execution.baseline import Baseline
from assay.execution.stages import LiveStage, LiveStages, TargetGroup
from assay.models import Trace
from assay.models.attention import PlacedAttention


@dataclass(kw_only=True, eq=False)
class StageRun:
    """The current run of some examples at one stage.

    Attributes:
        streams: Per group, what its targets read, `[columns, n, pos or 1, d_model]`.
        channels: Per group, queries and keys (rotated) and values `[columns, n, pos or 1, d_head]`.
        z: Per group of heads, their outputs before the output projection `[heads, n, pos or 1, d_head]`.
        mlp: What the MLP writes, `[1, n, pos or 1, d_model]`.
    """

    streams: list[Tensor]
    channels: list[Tensor] = field(default_factory=list)
    z: list[Tensor] = field(default_factory=list)
    mlp: Tensor | None = None

    @property
    def nbytes(self) -> int:
        tensors = [*self.streams, *self.channels, *self.z, *([] if self.mlp is None else [self.mlp])]
        return _nbytes(tensors)


def _nbytes(tensors: Sequence[Tensor]) -> int:
    return sum(int(tensor.nbytes) for tensor in tensors)


class CutExamples:
    """Some examples: what their sources would carry when cut, and the current run at the live targets."""

    def __init__(self, live: LiveStages, clean: Trace, baseline: Baseline, read: Tensor) -> None:
        self.live, self.model, self.clean, self.read = live, live.model, clean, read
        self.dtype = live.model.result_dtype
        self.n, self.length = clean.input.shape[:2]
        self.index = torch.arange(self.n, device=read.device)
        self.states: dict[int, StageRun] = {}
        self.positions = PlacedAttention(
            self.model.rules,
            self.model.tables(clean.calls),
            length=self.length,
            causal=self.model.causal,
            read=None if read.ndim == 2 else read,
            heads_first=True,
        )
        split = (self.model.n_heads, self.model.d_head)
        # Ablated minus clean, heads before their output projection.
        self.input = self.wide(baseline.input) - self.wide(clean.input)
        pairs = zip(baseline.z, clean.z, strict=True)
        self.z = [(self.wide(cut) - self.wide(kept)).unflatten(-1, split) for cut, kept in pairs]
        pairs = zip(baseline.mlp, clean.mlp, strict=True)
        self.mlp = [self.wide(cut) - self.wide(kept) for cut, kept in pairs]
        clean.z, clean.mlp = [], []

    @property
    def nbytes(self) -> int:
        tensors = [self.input, *self.z, *self.mlp, *self.clean.attention_in, *self.clean.mlp_in]
        tensors += [part for parts in self.clean.qkv for part in parts]
        return _nbytes(tensors) + sum(state.nbytes for state in self.states.values())

    def wide(self, value: Tensor) -> Tensor:
        """In the number type of results."""
        return value.to(self.dtype)

    def at(self, value: Tensor, *, everywhere: bool) -> Tensor:
        """`[n, pos, ...]` at all positions, or at the read position kept as an axis of one."""
        return value if everywhere else value[self.index, self.read][:, None]

    def differences(self, rows: Sequence[int], *, everywhere: bool) -> Float[Tensor, "rows n pos d_model"]:
        """Ablated minus clean outputs of some sources, in the order given."""
        graph = self.model.graph
        parts = []
        first, per_layer = graph.head_source(0), (graph.n_sources - 1) // graph.n_layers
        for layer, members in groupby(rows, key=lambda row: (row - first) // per_layer if row else -1):
            if layer < 0:
                parts += [self.at(self.input, everywhere=everywhere)[None] for _ in members]
                continue
            heads: list[int] = []
            for row in members:
                head = row - graph.head_source(layer)
                if head < graph.n_heads:
                    heads.append(head)
                    continue
                parts += self._heads(layer, heads, everywhere=everywhere)
                heads = []
                parts.append(self.at(self.mlp[layer], everywhere=everywhere)[None])
            parts += self._heads(layer, heads, everywhere=everywhere)
        return torch.cat(parts)

    def _heads(self, layer: int, heads: list[int], *, everywhere: bool) -> list[Tensor]:
        if not heads:
            return []
        z = self.at(self.z[layer], everywhere=everywhere)[:, :, heads].permute(2, 0, 1, 3)
        return [torch.bmm(z.flatten(1, 2), self.live.out(layer)[heads]).unflatten(1, z.shape[1:3])]

    # ---- the current run at one stage -----------------------------------------------------------

    def open(self, number: int, stage: LiveStage) -> None:
        """Set the current run up at a stage: so far it is the clean one."""
        if number == self.live.last:
            assert self.clean.final_in is not None
            start = self.clean.final_in
        else:
            start = (self.clean.mlp_in if number % 2 else self.clean.attention_in)[stage.layer]
        streams = []
        for group in stage.groups:
            stream = self.at(self.wide(start), everywhere=group.everywhere)
            streams.append(stream.expand(len(group.columns), *stream.shape).clone())
        state = StageRun(streams=streams)
        self.states[number] = state
        if number == self.live.last:
            return
        block = self.model.blocks[stage.layer]
        if number % 2:
            state.mlp = self.wide(block.run_mlp(streams[0].to(self.model.dtype)))
            return
        channels = block.channels(self.clean.qkv[stage.layer]).permute(2, 0, 1, 3)
        first = self.model.graph.channel_target(stage.layer, "q")
        for group in stage.groups:
            own = channels[[column - first for column in group.columns]]
            if not group.everywhere:
                own = own[:, self.index, self.read][:, :, None]
            turned = self.turn(stage.layer, group, own[:, None], list(range(len(group.columns))))
            state.channels.append(turned[:, 0])
        by_column = self.channels(number, stage)
        for heads in stage.heads:
            picked = [torch.stack([by_column[reads[i]] for reads in heads.reads])[:, None] for i in range(3)]
            state.z.append(self.attend(stage.layer, heads.heads, *picked, everywhere=heads.everywhere)[:, 0])

    def channels(self, number: int, stage: LiveStage) -> dict[int, Tensor]:
        """Current queries, keys and values by target, `[n, pos or 1, d_head]`."""
        held = zip(stage.groups, self.states[number].channels, strict=True)
        return {
            column: part for group, parts in held for column, part in zip(group.columns, parts, strict=True)
        }

    def turn(self, layer: int, group: TargetGroup, channels: Tensor, places: list[int]) -> Tensor:
        """Norms of the heads and rotary positions on `[places, hypotheses, n, pos or 1, d_head]`."""
        block, attention = self.model.blocks[layer], self.positions
        if block.rule.leaves:
            return channels
        n_queries, n_turned = (sum(place < limit for place in places) for limit in group.turned)
        queries, keys, values = channels.tensor_split([n_queries, n_turned])
        first = self.model.graph.channel_target(layer, "q")
        heads = [group.columns[place] - first for place in places[:n_queries]]
        kv_heads = [group.columns[place] - first - block.n_heads for place in places[n_queries:n_turned]]
        parts = [
            attention.queries(layer, queries, heads, everywhere=group.everywhere) if heads else queries,
            attention.keys(layer, keys, kv_heads) if kv_heads else keys,
            attention.values(layer, values),
        ]
        parts = [part for part in parts if len(part)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def attend(
        self,
        layer: int,
        heads: Sequence[int],
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        everywhere: bool,
    ) -> Float[Tensor, "heads hypotheses n pos d_head"]:
        """Outputs of some heads before their output projection, from channels of the same axes."""
        channels = (part.flatten(0, 1) for part in (queries, keys, values))
        rows = [head for head in heads for _ in range(queries.shape[1])]
        mixed = self.positions.mix(layer, *channels, everywhere=everywhere, heads=rows)
        return self.wide(mixed).view_as(queries)


class CutPass:
    """Some hypotheses on their way from a target to the logits, on one batch of examples.

    Differences from the current run of the sources that changed are kept in two stores: at all positions,
    and at the read position.
    """

    def __init__(self, examples: CutExamples, target: int, moved: Tensor) -> None:
        self.live, self.model, self.examples = examples.live, examples.model, examples
        self.target, self.moved, self.k = target, moved, len(moved)
        self.rows: dict[bool, list[int]] = {True: [], False: []}
        self.stores: dict[bool, list[Tensor]] = {True: [], False: []}
        self.updates: list[tuple[Tensor, list[int], Tensor]] = []

    def finish(self) -> Float[Tensor, "hypotheses n *reads d_vocab"]:
        live = self.live
        for number in range(live.stage_of[self.target], live.last):
            if number in live.opened:
                (self.mlp if number % 2 else self.heads)(number, live.opened[number])
        stage, state = live.opened[live.last], self.examples.states[live.last]
        # A live target reaches `logits`, so its input has changed.
        change = self.changed(stage.groups[0], state.streams[0])
        assert change is not None
        stream = change[1][0].flatten(0, 1)
        read = self.examples.read
        if self.model.reads_all(read):
            finished = self.model.finish(stream, read.repeat(self.k, *[1] * (read.ndim - 1)))
        else:
            finished = self.model.finish(stream[:, 0])
        logits = self.examples.wide(finished)
        self.rows, self.stores = {}, {}
        by_hypothesis: Tensor = logits.unflatten(0, (self.k, -1))
        return by_hypothesis

    def finish_natively(self) -> Float[Tensor, "hypotheses n *reads d_vocab"]:
        """As `finish` while no edge is cut: what lies behind the target's block then reads one stream.

        So the module's own blocks can run from there on. Behind the last block there is nothing to gain.
        """
        live, model, examples = self.live, self.model, self.examples
        number = live.stage_of[self.target]
        layer = number // 2
        if layer >= model.n_layers - 1:
            return self.finish()
        (self.mlp if number % 2 else self.heads)(number, live.opened[number])
        change = torch.cat(self.stores[True]).sum(0)
        if number % 2 or model.graph.parallel or not model.graph.mlps:
            hidden = examples.wide(examples.clean.block_in[layer + 1]) + change
        else:  # the MLP of the same block reads what its heads write
            stream = examples.wide(examples.clean.mlp_in[layer]) + change
            block = model.blocks[layer]
            hidden = stream + examples.wide(block.run_mlp(stream.to(model.dtype)))
        self.rows, self.stores, self.updates = {}, {}, []
        hidden = hidden.flatten(0, 1).to(model.dtype)
        read = examples.read.repeat(self.k, *[1] * (examples.read.ndim - 1))
        logits = model.read(model.resume(hidden, examples.clean, layer=layer + 1), read)
        by_hypothesis: Tensor = examples.wide(logits).unflatten(0, (self.k, -1))
        return by_hypothesis

    def commit(self, hypothesis: int) -> None:
        for held, places, new in self.updates:
            held[places] = new[:, hypothesis]

    def changed(self, group: TargetGroup, held: Tensor) -> tuple[list[int], Tensor] | None:
        """Places in a group that read something new, and what: `[places, hypotheses, n, pos, d_model]`."""
        if self.target in group.columns:
            places, mixed = [group.columns.index(self.target)], self.moved[None]
        else:
            rows = self.rows[group.everywhere]
            weight = self.live.kept[rows][:, list(group.columns)].T
            places = weight.any(1).nonzero().squeeze(1).tolist()
            if not places:
                return None
            store = torch.cat(self.stores[group.everywhere])
            mixed = (weight[places].to(store) @ store.flatten(1)).view(len(places), *store.shape[1:])
        streams = held[places][:, None] + mixed
        self.updates.append((held, places, streams))
        return places, streams

    def deposit(self, rows: list[int], differences: Tensor, *, everywhere: bool) -> None:
        """Keep what some sources write, minus the current run: `[rows, hypotheses, n, pos or 1, d_model]`."""
        if everywhere:
            self.rows[True] += rows
            self.stores[True].append(differences)
            if self.live.several:
                return  # no target reads one position alone
            differences = differences[:, :, self.examples.index, self.examples.read][:, :, :, None]
        self.rows[False] += rows
        self.stores[False].append(differences)

    def heads(self, number: int, stage: LiveStage) -> None:
        """The attention of a block: new channels, and the heads that read them."""
        state, examples = self.examples.states[number], self.examples
        fresh: dict[int, Tensor] = {}
        for group, streams, channels in zip(stage.groups, state.streams, state.channels, strict=True):
            change = self.changed(group, streams)
            if change is None:
                continue
            places, new = change
            assert group.weight is not None
            bias = None if group.bias is None else group.bias[places]
            block = self.model.blocks[stage.layer]
            projected = project(block, new, group.weight[places], bias, self.model.dtype)
            projected = examples.turn(stage.layer, group, projected, places)
            self.updates.append((channels, places, projected))
            fresh |= {group.columns[place]: part for place, part in zip(places, projected, strict=True)}
        if not fresh:
            return
        current = examples.channels(number, stage)
        for heads, z in zip(stage.heads, state.z, strict=True):
            touched = [place for place, reads in enumerate(heads.reads) if any(c in fresh for c in reads)]
            if not touched:
                continue
            columns = [[heads.reads[place][i] for place in touched] for i in range(3)]
            picked = [self.stack(fresh, current, wanted) for wanted in columns]
            chosen = [heads.heads[place] for place in touched]
            new = examples.attend(stage.layer, chosen, *picked, everywhere=heads.everywhere)
            self.updates.append((z, touched, new))
            difference = new - z[touched][:, None]
            weight = heads.weight if len(touched) == len(heads.heads) else heads.weight[touched]
            written = torch.bmm(difference.flatten(1, 3), weight).unflatten(1, difference.shape[1:4])
            first = self.model.graph.head_source(stage.layer)
            rows = [first + head for head in chosen]
            self.deposit(rows, written, everywhere=heads.everywhere)

    def stack(self, fresh: dict[int, Tensor], current: dict[int, Tensor], columns: list[int]) -> Tensor:
        """Channels of some heads, new ones where there are: `[heads, hypotheses, n, pos or 1, d_head]`."""
        return torch.stack(
            [
                fresh[column] if column in fresh else current[column].expand(self.k, -1, -1, -1)
                for column in columns
            ]
        )

    def mlp(self, number: int, stage: LiveStage) -> None:
        """The MLP of a block, if what it reads has changed."""
        state, group = self.examples.states[number], stage.groups[0]
        change = self.changed(group, state.streams[0])
        if change is None:
            return
        assert state.mlp is not None
        block = self.model.blocks[stage.layer]
        output = self.examples.wide(block.run_mlp(change[1].to(self.model.dtype)))
        self.updates.append((state.mlp, [0], output))
        row = self.model.graph.mlp_source(stage.layer)
        self.deposit([row], output - state.mlp[:, None], everywhere=group.everywhere)
