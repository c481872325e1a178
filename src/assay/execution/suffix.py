"""Runs that cut a few more edges into one target, each computed from that target on.

While every edge into the targets before v is kept, each source that v can read writes its clean value a_u.
Cutting some of its edges therefore moves its input by a known amount,

    x_v = (x_v of the current run) + sum over the newly cut u of (b_u - a_u),

b_u the ablated value, and of the rest of the model only what v reaches through kept edges changes. So a
model is cut from `logits` towards `input` without running what lies before the target at all: the current
run is held as what its live targets read, and a set of cuts as what they change in it. Many sets are
evaluated in one pass, and any one of them can become the current run.
(The runs are those of Conmy et al. 2023, arXiv:2304.14997, algorithm 1, and of `assay.execution.runner`.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.errors import InputError, ShapeError
from assay.execution.ablation import Baseline
from assay.execution.attend import Attention, rotary_tables
from assay.models import Model, Trace


@dataclass(kw_only=True, eq=False)
class _Group:
    """Live targets of one stage that are read at the same positions.

    Attributes:
        everywhere: Read at all positions, or at the read position only.
        columns: The targets, in order.
        weight, bias: Their projections `[columns, d_model, d_head]` and `[columns, 1, d_head]`, if channels.
        turned: How many of them are queries, and how many queries or keys; values come last.
    """

    everywhere: bool
    columns: tuple[int, ...]
    weight: Tensor | None = None
    bias: Tensor | None = None
    turned: tuple[int, int] = (0, 0)


@dataclass(kw_only=True, eq=False)
class _Heads:
    """Live heads of a block whose outputs are needed at the same positions.

    Attributes:
        everywhere: Needed at all positions, or at the read position only.
        heads: Their numbers.
        reads: Their query, key and value targets.
        weight: Their output projections `[heads, d_head, d_model]`.
    """

    everywhere: bool
    heads: tuple[int, ...]
    reads: tuple[tuple[int, int, int], ...]
    weight: Tensor


@dataclass(kw_only=True, eq=False)
class _Stage:
    """The attention or the MLP of a block, or `logits`: what of it is live."""

    layer: int
    groups: list[_Group] = field(default_factory=list)
    heads: list[_Heads] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class _State:
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
        held = [*self.streams, *self.channels, *self.z, *([] if self.mlp is None else [self.mlp])]
        return _nbytes(held)


def _nbytes(tensors: Sequence[Tensor]) -> int:
    return sum(int(tensor.nbytes) for tensor in tensors)


class SuffixRunner:
    """The run of a model on some examples while its edges are cut from `logits` towards `input`.

    Starts as the model itself, all edges kept. Ask in reverse order of the targets: once edges into a target
    are cut, targets of later stages (attention or MLP of a block, `logits`) read changed sources and are
    refused.

    Args:
        model: The model: text or images.
        keep: Hold what the last call of `logits` computed, so that `commit` need not compute it again.

    Example:
        >>> from assay.execution import ABLATIONS
        >>> from assay.models import load_model
        >>> from assay.tasks import load_task
        >>> model = load_model("mini")
        >>> task = load_task("ioi", model, n=2)
        >>> batch = next(task.batches(2))
        >>> zeros = ABLATIONS["zero"].prepare(model, task, batch_size=2, seed=0).baseline(batch)
        >>> runner = SuffixRunner(model)
        >>> clean = runner.add(batch.clean, zeros, batch.positions)
        >>> [found] = runner.logits(model.graph.n_targets - 1, [0, 1], torch.eye(2, dtype=torch.bool))
        >>> found.shape  # `input` cut alone, then head 0 of block 0 alone
        torch.Size([2, 2, 1968])
        >>> runner.commit(1)
        >>> runner.kept[:3, -1].tolist()
        [True, False, True]
    """

    def __init__(self, model: Model, *, keep: bool = True) -> None:
        self.model, self.keep = model, keep
        self.dtype = model.result_dtype
        graph = model.graph
        self.kept: Bool[Tensor, "n_sources n_targets"] = graph.valid.clone()
        self._examples: list[_Examples] = []
        self._stages: dict[int, _Stage] = {}
        self._out = [block.out_weight().to(self.dtype) for block in model.blocks]
        # Live targets, by the positions they are read at; filled as stages open.
        self._everywhere = torch.zeros(graph.n_targets, dtype=torch.bool)
        self._somewhere = torch.zeros(graph.n_targets, dtype=torch.bool)
        self._last_stage = 2 * model.n_layers
        self._stage_of = [2 * (int(layer) - 1) for layer in graph.target_layer]
        if graph.mlps:
            for layer in range(graph.n_layers):
                self._stage_of[graph.mlp_target(layer)] += 1
        self._opened = self._last_stage + 1
        self._cut = self._last_stage
        self._asked: tuple[int, list[int], Tensor] | None = None
        self._passes: list[_Pass] = []

    @torch.no_grad()
    def add(self, inputs: Tensor, baseline: Baseline, read: Int[Tensor, " n"]) -> Float[Tensor, "n d_vocab"]:
        """Take in some examples: one forward pass over them.

        Args:
            inputs: Token ids `[n, pos]` (shorter prompts padded on the right) or images.
            baseline: Ablated values; one row that all examples share, or one per example.
            read: Read position of each example.

        Returns:
            Logits of the model at the read position.

        Raises:
            InputError: If edges have been cut already.
        """
        if self._opened <= self._last_stage:
            raise InputError("examples were added after cuts were asked for; add all of them first")
        with self.model.tracing(streams=True) as trace:
            hidden = self.model.forward(inputs)
        self._examples.append(_Examples(self, trace, baseline, read))
        return self.model.read(hidden, read).to(self.dtype)

    def live(self, target: int) -> bool:
        """Whether a target has a way to `logits` through kept edges; if not, cutting edges does nothing."""
        self._open(self._stage_of[target])
        return bool(self._somewhere[target])

    def everywhere(self, target: int) -> bool:
        """Whether a live target is read at all positions, not at the read position only."""
        self._open(self._stage_of[target])
        return bool(self._everywhere[target])

    @property
    def nbytes(self) -> int:
        """Memory of the examples and of the current run."""
        return sum(examples.nbytes for examples in self._examples)

    def logits(
        self, target: int, sources: Sequence[int], cuts: Bool[Tensor, "hypotheses n_sources"]
    ) -> Iterator[Float[Tensor, "hypotheses n d_vocab"]]:
        """Logits at the read position with some edges into a target cut, the current run otherwise.

        Args:
            target: A live target.
            sources: Sources whose edges into it are still kept.
            cuts: For each hypothesis, which of their edges are cut; at least one hypothesis.

        Yields:
            For each batch of examples in the order they were added, the logits of all hypotheses.

        Raises:
            ShapeError: If `cuts` does not have a column per source.
            InputError: For a dead target, an edge that is not kept, or a target behind one that was cut.
        """
        self._check(target, sources, cuts)
        self._asked, self._passes = (target, list(sources), cuts), []
        for examples in self._examples:
            with torch.no_grad():
                run = self._pass(examples, target, sources, cuts)
                found = run.finish()
            if self.keep:
                self._passes.append(run)
            del run
            yield found

    @torch.no_grad()
    def commit(self, hypothesis: int) -> None:
        """Make one hypothesis of the last call of `logits` the current run.

        Raises:
            InputError: If there was none since the last commit.
        """
        if self._asked is None:
            raise InputError("there is nothing to commit; ask for logits first")
        target, sources, cuts = self._asked
        for place, examples in enumerate(self._examples):
            if len(self._passes) == len(self._examples):
                self._passes[place].commit(hypothesis)
            else:
                run = self._pass(examples, target, sources, cuts[hypothesis : hypothesis + 1])
                run.finish()
                run.commit(0)
        cut = [row for row, gone in zip(sources, cuts[hypothesis].tolist(), strict=True) if gone]
        self.kept[cut, target] = False
        self._cut = min(self._cut, self._stage_of[target])
        self._asked, self._passes = None, []

    def forget(self) -> None:
        """Drop what the last call of `logits` computed."""
        self._asked, self._passes = None, []

    # ---- what is live -----------------------------------------------------------------------------

    def _check(self, target: int, sources: Sequence[int], cuts: Tensor) -> None:
        graph = self.model.graph
        if cuts.ndim != 2 or cuts.shape[1] != len(sources) or len(cuts) == 0:
            raise ShapeError(
                f"cuts has shape {tuple(cuts.shape)}; expected one row per hypothesis and {len(sources)} "
                "columns, one per source"
            )
        if self._stage_of[target] > self._cut:
            raise InputError(
                f"edges before {graph.targets[target]} have been cut, so it no longer reads clean sources; "
                "ask for targets in reverse order"
            )
        if not self.live(target):
            raise InputError(
                f"{graph.targets[target]} has no way to logits through kept edges; cutting its edges changes "
                "nothing"
            )
        for row in sources:
            if not self.kept[row, target]:
                raise InputError(f"the edge {graph.edge_name(row, target)} is not kept, so it cannot be cut")

    def _open(self, stage: int) -> None:
        """Decide what is live at a stage and all after it, and set up the current run there."""
        while self._opened > stage:
            self._opened -= 1
            opened = self._stage(self._opened)
            if opened is not None:
                self._stages[self._opened] = opened
                with torch.no_grad():
                    for examples in self._examples:
                        examples.open(self._opened, opened)

    def _stage(self, stage: int) -> _Stage | None:
        graph, layer = self.model.graph, stage // 2
        if stage == self._last_stage:
            return _Stage(layer=layer, groups=self._groups([(graph.n_targets - 1, self.model.pools)]))
        if stage % 2:
            if not graph.mlps:
                return None
            needed, everywhere = self._needed(graph.mlp_source(layer))
            column = graph.mlp_target(layer)
            groups = self._groups([(column, everywhere)] if needed else [])
            return _Stage(layer=layer, groups=groups) if groups else None
        return self._attention(layer)

    def _needed(self, row: int) -> tuple[bool, bool]:
        """Whether the output of a source is needed at all, and whether at all positions."""
        return bool((self.kept[row] & self._somewhere).any()), bool((self.kept[row] & self._everywhere).any())

    def _groups(self, live: list[tuple[int, bool]]) -> list[_Group]:
        """Live targets, sorted by where they are read; also noted as live."""
        groups = []
        for everywhere in (True, False):
            columns = tuple(sorted({column for column, where in live if where is everywhere}))
            if columns:
                self._somewhere[list(columns)] = True
                self._everywhere[list(columns)] = everywhere
                groups.append(_Group(everywhere=everywhere, columns=columns))
        return groups

    def _attention(self, layer: int) -> _Stage | None:
        graph, block = self.model.graph, self.model.blocks[layer]
        live: list[tuple[int, bool]] = []
        parts: dict[bool, list[tuple[int, tuple[int, int, int]]]] = {True: [], False: []}
        for head in range(graph.n_heads):
            needed, everywhere = self._needed(graph.head_source(layer, head))
            if not needed:
                continue
            shared = block.kv_head(head)
            reads = (
                graph.channel_target(layer, "q", head),
                graph.channel_target(layer, "k", shared),
                graph.channel_target(layer, "v", shared),
            )
            # A query is read where its head is needed, keys and values at all positions.
            live += [(reads[0], everywhere), (reads[1], True), (reads[2], True)]
            parts[everywhere].append((head, reads))
        if not live:
            return None
        stage = _Stage(layer=layer, groups=self._groups(live))
        first = graph.channel_target(layer, "q")
        weight, bias = block.qkv_weight().permute(1, 0, 2), block.qkv_bias()
        for group in stage.groups:
            channels = [column - first for column in group.columns]
            group.weight = weight[channels].contiguous()
            group.bias = None if bias is None else bias[channels][:, None]
            n_queries = sum(channel < block.n_heads for channel in channels)
            n_values = sum(channel >= block.n_heads + block.n_kv_heads for channel in channels)
            group.turned = (n_queries, len(channels) - n_values)
        for where, members in parts.items():
            if members:
                heads = tuple(head for head, _ in members)
                stage.heads.append(
                    _Heads(
                        everywhere=where,
                        heads=heads,
                        reads=tuple(reads for _, reads in members),
                        weight=self._out[layer][list(heads)],
                    )
                )
        return stage

    def _pass(self, examples: "_Examples", target: int, sources: Sequence[int], cuts: Tensor) -> "_Pass":
        everywhere = self.everywhere(target)
        differences = examples.differences(sources, everywhere=everywhere)
        mixed = cuts.to(differences) @ differences.flatten(1)
        return _Pass(self, examples, target, mixed.view(len(cuts), *differences.shape[1:]))


class _Examples:
    """Some examples: what their sources would carry when cut, and the current run at the live targets."""

    def __init__(self, runner: SuffixRunner, clean: Trace, baseline: Baseline, read: Tensor) -> None:
        self.runner, self.model, self.clean, self.read = runner, runner.model, clean, read
        self.n, self.length = clean.input.shape[:2]
        self.index = torch.arange(self.n, device=read.device)
        self.states: dict[int, _State] = {}
        self.positions = Attention(
            self.model, rotary_tables(clean.calls), length=self.length, read=read, heads_first=True
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
        return value.to(self.runner.dtype)

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
        return [torch.bmm(z.flatten(1, 2), self.runner._out[layer][heads]).unflatten(1, z.shape[1:3])]

    # ---- the current run at one stage -----------------------------------------------------------

    def open(self, number: int, stage: _Stage) -> None:
        """Set the current run up at a stage: so far it is the clean one."""
        if number == self.runner._last_stage:
            assert self.clean.final_in is not None
            start = self.clean.final_in
        else:
            start = (self.clean.mlp_in if number % 2 else self.clean.attention_in)[stage.layer]
        streams = []
        for group in stage.groups:
            stream = self.at(self.wide(start), everywhere=group.everywhere)
            streams.append(stream.expand(len(group.columns), *stream.shape).clone())
        state = _State(streams=streams)
        self.states[number] = state
        if number == self.runner._last_stage:
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
            state.z.append(self.attend(stage.layer, *picked, everywhere=heads.everywhere)[:, 0])

    def channels(self, number: int, stage: _Stage) -> dict[int, Tensor]:
        """Current queries, keys and values by target, `[n, pos or 1, d_head]`."""
        held = zip(stage.groups, self.states[number].channels, strict=True)
        return {
            column: part for group, parts in held for column, part in zip(group.columns, parts, strict=True)
        }

    def turn(self, layer: int, group: _Group, channels: Tensor, places: list[int]) -> Tensor:
        """Norms of the heads and rotary positions on `[places, hypotheses, n, pos or 1, d_head]`."""
        block = self.model.blocks[layer]
        if self.positions.leaves(block):
            return channels
        n_queries, n_turned = (sum(place < limit for place in places) for limit in group.turned)
        queries, keys, values = channels.tensor_split([n_queries, n_turned])
        parts = [
            self.positions.queries(block, queries, everywhere=group.everywhere) if len(queries) else queries,
            self.positions.keys(block, keys) if len(keys) else keys,
            values,
        ]
        parts = [part for part in parts if len(part)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, *, everywhere: bool
    ) -> Float[Tensor, "heads hypotheses n pos d_head"]:
        """Outputs of some heads before their output projection, from channels of the same axes."""
        block = self.model.blocks[layer]
        channels = (part.flatten(0, 1) for part in (queries, keys, values))
        mixed = self.positions.mix(block, *channels, everywhere=everywhere)
        return self.wide(mixed).view_as(queries)


class _Pass:
    """Some hypotheses on their way from a target to the logits, on one batch of examples.

    Differences from the current run of the sources that changed are kept in two stores: at all positions,
    and at the read position.
    """

    def __init__(self, runner: SuffixRunner, examples: _Examples, target: int, moved: Tensor) -> None:
        self.runner, self.model, self.examples = runner, runner.model, examples
        self.target, self.moved, self.k = target, moved, len(moved)
        self.rows: dict[bool, list[int]] = {True: [], False: []}
        self.stores: dict[bool, list[Tensor]] = {True: [], False: []}
        self.updates: list[tuple[Tensor, list[int], Tensor]] = []

    def finish(self) -> Float[Tensor, "hypotheses n d_vocab"]:
        runner = self.runner
        for number in range(runner._stage_of[self.target], runner._last_stage):
            if number in runner._stages:
                (self.mlp if number % 2 else self.heads)(number, runner._stages[number])
        stage, state = runner._stages[runner._last_stage], self.examples.states[runner._last_stage]
        # A live target reaches `logits`, so its input has changed.
        found = self.changed(stage.groups[0], state.streams[0])
        assert found is not None
        stream = found[1][0].flatten(0, 1)
        logits: Tensor = self.model.finish(stream if self.model.pools else stream[:, 0]).to(runner.dtype)
        self.rows, self.stores = {}, {}
        by_hypothesis: Tensor = logits.unflatten(0, (self.k, -1))
        return by_hypothesis

    def commit(self, hypothesis: int) -> None:
        for held, places, new in self.updates:
            held[places] = new[:, hypothesis]

    def changed(self, group: _Group, held: Tensor) -> tuple[list[int], Tensor] | None:
        """Places in a group that read something new, and what: `[places, hypotheses, n, pos, d_model]`."""
        if self.target in group.columns:
            places, mixed = [group.columns.index(self.target)], self.moved[None]
        else:
            rows = self.rows[group.everywhere]
            weight = self.runner.kept[rows][:, list(group.columns)].T
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
            differences = differences[:, :, self.examples.index, self.examples.read][:, :, :, None]
        self.rows[False] += rows
        self.stores[False].append(differences)

    def heads(self, number: int, stage: _Stage) -> None:
        """The attention of a block: new channels, and the heads that read them."""
        state, examples = self.examples.states[number], self.examples
        fresh: dict[int, Tensor] = {}
        for group, streams, channels in zip(stage.groups, state.streams, state.channels, strict=True):
            found = self.changed(group, streams)
            if found is None:
                continue
            places, new = found
            projected = examples.turn(
                stage.layer, group, self.project(stage.layer, group, places, new), places
            )
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
            new = examples.attend(stage.layer, *picked, everywhere=heads.everywhere)
            self.updates.append((z, touched, new))
            difference = new - z[touched][:, None]
            weight = heads.weight if len(touched) == len(heads.heads) else heads.weight[touched]
            written = torch.bmm(difference.flatten(1, 3), weight).unflatten(1, difference.shape[1:4])
            first = self.model.graph.head_source(stage.layer)
            rows = [first + heads.heads[place] for place in touched]
            self.deposit(rows, written, everywhere=heads.everywhere)

    def stack(self, fresh: dict[int, Tensor], current: dict[int, Tensor], columns: list[int]) -> Tensor:
        """Channels of some heads, new ones where there are: `[heads, hypotheses, n, pos or 1, d_head]`."""
        return torch.stack(
            [
                fresh[column] if column in fresh else current[column].expand(self.k, -1, -1, -1)
                for column in columns
            ]
        )

    def project(self, layer: int, group: _Group, places: list[int], streams: Tensor) -> Tensor:
        """Channels of their own streams: `[places, hypotheses, n, pos or 1, d_head]`."""
        assert group.weight is not None
        normed = self.model.blocks[layer].attention_norm.module(streams.to(self.model.dtype)).flatten(1, 3)
        if group.bias is None:
            output = torch.bmm(normed, group.weight[places])
        else:
            output = torch.baddbmm(group.bias[places], normed, group.weight[places])
        channels: Tensor = output.unflatten(1, streams.shape[1:4])
        return channels

    def mlp(self, number: int, stage: _Stage) -> None:
        """The MLP of a block, if what it reads has changed."""
        state, group = self.examples.states[number], stage.groups[0]
        found = self.changed(group, state.streams[0])
        if found is None:
            return
        assert state.mlp is not None
        output = self.model.blocks[stage.layer].run_mlp(found[1].to(self.model.dtype)).to(self.runner.dtype)
        self.updates.append((state.mlp, [0], output))
        row = self.model.graph.mlp_source(stage.layer)
        self.deposit([row], output - state.mlp[:, None], everywhere=group.everywhere)
