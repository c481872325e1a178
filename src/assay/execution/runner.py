"""Execution of a compiled plan on a model: one circuit, many inputs.

The number of kernels does not grow with the number of edges. The differences of the sources lie in one store,
and the distinct inputs of a stage (attention or MLP of a block, `logits`) are one product of the store with a
matrix of coefficients. Inputs that equally many channels read are projected together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, groupby

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.circuits import Circuit
from assay.execution.ablation import Baseline
from assay.execution.plan import CompiledMask, Inlet, compile_plan
from assay.models import Model, Trace
from assay.models.attention import PlacedAttention


Numbers = tuple[int, ...]
BOTH = (True, False)  # what is needed at all positions, and what is needed at the read position only
Rows = tuple[Int[Tensor, " pairs"] | None, Int[Tensor, " pairs"] | None]
Moves = Callable[[int, bool], Tensor]
Take = Callable[[Tensor, int, Numbers], Tensor]
# Told what a run computes: `stream` or `channel` of a target, or `output` of a source; its number; the value.
Observer = Callable[[str, int, Tensor], None]


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """Distinct inputs of one stage at all positions, or at the read position.

    Attributes:
        inlets: What they are.
        slots: Places of the store that they read.
        matrix: Which of the coefficients are theirs, `[inputs, slots]`.
    """

    inlets: Sequence[Inlet]
    slots: Numbers
    matrix: int


@dataclass(frozen=True, kw_only=True)
class _Channels:
    """What the heads of one block read at all positions, or at the read position.

    Attributes:
        queries: Heads whose queries come first in the result; keys and then values follow.
        size: Channels in the result.
        inputs: What is projected.
        groups: Inputs that equally many channels read: which inputs, the channels of each one after the
            other, and their places in the result.
        ablated: Channels that are those of the ablated run, and their places.
        heads: Heads that are computed of them, which may be more than are needed where heads are coupled.
        live: Places of those that are needed.
    """

    queries: Numbers
    size: int
    inputs: _Inputs
    groups: list[tuple[slice, Numbers, Numbers]]
    ablated: tuple[Numbers, Numbers]
    heads: Numbers
    live: Numbers


class CircuitRunner:
    """Runs one circuit of one model; make it once, call `logits` for every batch.

    Args:
        model: The model.
        circuit: The edges to keep.
        resample: Whether ablated values come from one consistent run (see `compile_plan`).
        plan: What to run, where it is not the plan of the circuit.
    """

    def __init__(
        self, model: Model, circuit: Circuit, *, resample: bool, plan: CompiledMask | None = None
    ) -> None:
        self.model, self.dtype, graph = model, model.result_dtype, model.graph
        self.plan: CompiledMask = plan or compile_plan(
            graph, circuit.mask, resample=resample, pools=model.pools, coupling=model.coupling
        )
        self._lists: dict[Numbers, None] = {}
        self._matrices: list[np.ndarray] = []
        layers = range(graph.n_layers)
        self.heads = [{each: self._heads(layer, each) for each in BOTH} for layer in layers]
        # A slot for each source that is wanted by itself, at all positions and at the read position. The
        # first slot at all positions holds the sum of all sources, if that is wanted.
        self.has_total = any(inlet.from_total for inlet in self.plan.inlets)
        rows = [0]
        for layer in layers:
            rows += [graph.head_source(layer) + head for head in self.live(layer)]
            rows += range(graph.n_sources)[graph.mlp_sources(layer)]
        self.slots: dict[bool, dict[int, int]] = {}
        for each in BOTH:
            wanted = {row for inlet in self.plan.inlets if inlet.everywhere is each for row in inlet.terms}
            alone = [row for row in rows if row in wanted]
            self.slots[each] = {row: slot for slot, row in enumerate(alone, each * self.has_total)}
        self.kept = [{each: self._kept(layer, each) for each in BOTH} for layer in layers]
        self.channels = [{each: self._channels(layer, each) for each in BOTH} for layer in layers]
        self.mlp = [None if inlet is None else self._inputs([inlet]) for inlet in self.plan.mlp]
        self.final = self._inputs([self.plan.logits])
        # All indices and all coefficients reach the device in one copy each.
        indices = torch.tensor(list(chain(*self._lists)), dtype=torch.long, device=model.device)
        self.index = dict(zip(self._lists, indices.split([len(each) for each in self._lists]), strict=True))
        flat = torch.from_numpy(np.concatenate([matrix.ravel() for matrix in self._matrices]))
        parts = flat.to(model.device, self.dtype).split([matrix.size for matrix in self._matrices])
        self.coefficients = [part.view(m.shape) for part, m in zip(parts, self._matrices, strict=True)]
        # Caches that refer to the runner would keep its weights until Python looks for cycles.
        self.take = take = partial(_taken, self.index)
        blocks, dtype = model.blocks, self.dtype
        self.out_weight = cache(lambda layer, heads: take(blocks[layer].out_weight(), 0, heads).to(dtype))
        self.projections = cache(partial(_projections, model, self.channels, take))

    # ---- compiling ------------------------------------------------------------------------------

    def _heads(self, layer: int, everywhere: bool) -> tuple[Numbers, Numbers]:
        """Heads of a block that are needed there: those that mix both inputs, those of the clean input."""
        plan, first = self.plan, self.model.graph.head_source(layer)
        own = slice(first, first + self.model.n_heads)
        wanted = plan.somewhere[own] & (plan.everywhere[own] == everywhere)
        mixed, clean = (
            np.flatnonzero(wanted & kind).tolist() for kind in (~plan.clean[own], plan.clean[own])
        )
        self._noted(mixed + clean)
        return self._noted(mixed), self._noted(clean)

    def live(self, layer: int) -> Numbers:
        """Heads of a block that are needed, those at all positions first."""
        return tuple(head for each in BOTH for kind in self.heads[layer][each] for head in kind)

    def _kept(self, layer: int, everywhere: bool) -> tuple[Numbers, slice]:
        """Places of the live heads of a block that have slots, and those slots."""
        first, slots = self.model.graph.head_source(layer), self.slots[everywhere]
        heads = self.live(layer)
        places = [place for place, head in enumerate(heads) if first + head in slots]
        self._noted([heads[place] for place in places])
        start = slots[first + heads[places[0]]] if places else 0
        return self._noted(places), slice(start, start + len(places))

    def _inputs(self, inlets: Sequence[Inlet]) -> _Inputs:
        """Some inputs of one stage. Where they read few slots of many, those are gathered."""
        slots = self.slots[inlets[0].everywhere] if inlets else {}
        matrix = np.zeros((len(inlets), len(slots) + self.has_total))
        for row, inlet in zip(matrix, inlets, strict=True):
            row[[slots[term] for term in inlet.terms]] = -1 if inlet.from_total else 1
            row[:1] += inlet.from_total
        used = np.flatnonzero(matrix.any(0)).tolist()
        span = range(used[0], used[-1] + 1) if used else range(0)
        read = self._noted(used if 3 * len(used) < len(span) else span)
        self._matrices.append(matrix[:, read])
        return _Inputs(inlets=inlets, slots=read, matrix=len(self._matrices) - 1)

    def _channels(self, layer: int, everywhere: bool) -> _Channels | None:
        step = self.plan.attention[layer]
        if step is None or not any(inlet.everywhere is everywhere for inlet in step.inlets):
            return None
        own = {inlet: each for inlet, each in step.inlets.items() if inlet.everywhere is everywhere}
        n_heads, n_kv_heads = self.model.n_heads, self.model.n_kv_heads
        queries = sorted(channel for channel in chain(*own.values()) if channel < n_heads)
        keys = [n_heads + key for key in step.keys] if everywhere else []
        order = [*queries, *keys, *(key + n_kv_heads for key in keys)]
        place = {channel: number for number, channel in enumerate(order)}
        filled = [inlet for inlet in own if not inlet.empty]
        filled.sort(key=lambda inlet: (len(own[inlet]), place[own[inlet][0]]))
        groups, first = [], 0
        for count, inlets in groupby(filled, lambda inlet: len(own[inlet])):
            read = self._noted([channel for inlet in inlets for channel in own[inlet]])
            inputs = slice(first, first + len(read) // count)
            groups.append((inputs, read, self._noted([place[channel] for channel in read])))
            first = inputs.stop
        cut = self._noted([channel for inlet, each in own.items() if inlet.empty for channel in each])
        heads = step.full if everywhere else step.last
        return _Channels(
            queries=tuple(queries),
            size=len(order),
            inputs=self._inputs(filled),
            groups=groups,
            ablated=(cut, self._noted([place[channel] for channel in cut])),
            heads=self._noted(heads),
            live=self._noted([heads.index(head) for head in self.heads[layer][everywhere][0]]),
        )

    def _noted(self, numbers: Sequence[int]) -> Numbers:
        """Numbers by which a run takes or puts something; those that are not a range need an index."""
        chosen = tuple(numbers)
        if not _is_range(chosen):
            self._lists[chosen] = None
        return chosen

    # ---- running --------------------------------------------------------------------------------

    @property
    def clean_depth(self) -> int | None:
        """Blocks of the clean pass that `logits` needs; None: the whole model."""
        return None if self.plan.everything else max(self.plan.clean_depth, self.model.table_depth)

    def bytes_per_pair(self, length: int) -> int:
        """Rough memory of one pair: stored differences plus the widest step."""
        widest = max((len(step.inlets) for step in self.plan.attention if step), default=1)
        rows = len(self.slots[True]) + 2 * widest + 12
        return rows * length * self.model.d_model * (8 if self.dtype == torch.float64 else 4)

    @torch.no_grad()
    def logits(
        self,
        clean: Trace,
        baseline: Baseline,
        read: Int[Tensor, " n"],
        *,
        rows: Rows = (None, None),
        shared: int = 0,
        moves: Moves | None = None,
        observer: Observer | None = None,
    ) -> Float[Tensor, "n d_vocab"]:
        """Logits at the read position, row by row.

        Args:
            clean: A pass over the clean inputs, at least `clean_depth` blocks deep.
            baseline: Ablated values; one row that all share, or one per clean input.
            read: Read position of each pair.
            rows: The row of `clean` and the row of `baseline` that each pair has; default: its own.
            shared: First positions at which all inputs of both sides are alike, before any that is read:
                a causal model does the same there on all of them, so they are not run again.
            moves: Of a plan that moves a target: from a target, and whether it is wanted at all positions, to
                what is added to its input, `[k, m, pos, d_model]` or at the read position `[k, m, d_model]`,
                where the pairs are k groups of m and groups may share it (k = 1).
            observer: Told the input of every target that is computed, and what is made of it (heads before
                the output projection): `[n, pos, width]`, or at the read position `[n, width]`.
        """
        assert not self.plan.everything, "a full circuit is the model itself; run the model instead"
        return _CircuitRun(self, clean, baseline, read, rows, shared, moves, observer).finish()


def _is_range(numbers: Numbers) -> bool:
    return not numbers or numbers == tuple(range(numbers[0], numbers[0] + len(numbers)))


def _taken(index: Mapping[Numbers, Tensor], value: Tensor, dim: int, numbers: Numbers) -> Tensor:
    """Some rows of an axis of a tensor: a view where they follow each other."""
    if _is_range(numbers):
        return value.narrow(dim, numbers[0] if numbers else 0, len(numbers))
    return value.index_select(dim, index[numbers])


def _projections(
    model: Model, channels: list[dict[bool, _Channels | None]], take: Take, layer: int, everywhere: bool
) -> list[tuple[Tensor, Tensor | None]]:
    """Weights `[inputs, d_model, width]` and biases of each group of channels of a block."""
    block, plan, projections = model.blocks[layer], channels[layer][everywhere], []
    whole, biases = block.qkv_weight(), block.qkv_bias()
    for inputs, read, _ in plan.groups if plan else ():
        n = inputs.stop - inputs.start
        weight = take(whole, 1, read).unflatten(1, (n, -1)).transpose(0, 1).flatten(2)
        bias = None if biases is None else take(biases, 0, read).reshape(n, 1, -1)
        projections.append((weight, bias))
    return projections


@dataclass(eq=False)
class _CircuitRun:
    """One batch of pairs on its way through the plan; see `CircuitRunner.logits`."""

    runner: CircuitRunner
    clean: Trace
    baseline: Baseline
    read: Tensor
    rows: Rows
    shared: int
    moves: Moves | None
    observer: Observer | None

    def __post_init__(self) -> None:
        runner, clean, read, shared = self.runner, self.clean, self.read, self.shared
        self.model, self.plan, self.take = runner.model, runner.plan, runner.take
        self.n_pairs, length = len(read), clean.input.shape[1]
        self.index = torch.arange(self.n_pairs, device=read.device)
        self.computed_read = read - shared if shared else read  # among the positions that are run
        tables = self.model.tables(clean.calls)
        if self.rows[0] is not None:  # all inputs have the same positions
            tables = {kind: (cos[:1], sin[:1]) for kind, (cos, sin) in tables.items()}
        self.attention = PlacedAttention(
            self.model.rules, tables, length=length, causal=self.model.causal, read=read
        )
        # Differences of sources from their ablated values.
        self.like = torch.empty(0, dtype=runner.dtype, device=clean.input.device)
        n, width = self.n_pairs, self.model.d_model
        self.store = {
            True: self.like.new_empty(len(runner.slots[True]) + runner.has_total, n, length - shared, width),
            False: self.like.new_empty(len(runner.slots[False]), n, width),
        }
        self.total = self.store[True][0].zero_() if runner.has_total else None

    # ---- choosing rows and positions ------------------------------------------------------------

    def chosen(self, value: Tensor, rows: Tensor | None, everywhere: bool) -> Tensor:
        """A value of the pairs at all positions, or at the read position; a row that they share is a view."""
        if everywhere:
            value = value[:, self.shared :] if rows is None or len(value) == 1 else value[rows, self.shared :]
            return value.to(self.runner.dtype).expand(self.n_pairs, *value.shape[1:])
        shared = len(value) == 1
        value = value[0][self.read] if shared else value[self.index if rows is None else rows, self.read]
        return value.to(self.runner.dtype)

    def of_baseline(self, value: Tensor, everywhere: bool) -> Tensor:
        return self.chosen(value, self.rows[1], everywhere)

    def at_read(self, value: Float[Tensor, "*heads n pos width"]) -> Float[Tensor, "*heads n width"]:
        """The read position of something that was computed at all positions."""
        return value[..., self.index, self.computed_read, :]

    # ---- the walk -------------------------------------------------------------------------------

    def finish(self) -> Tensor:
        model, graph, plan = self.model, self.model.graph, self.plan
        if plan.somewhere[0]:
            everywhere = bool(plan.everywhere[0])
            clean = self.chosen(self.clean.input, self.rows[0], everywhere)
            self.put(0, clean, self.of_baseline(self.baseline.input, everywhere))
        for layer in range(model.n_layers):
            heads = self.heads(layer)
            if not graph.parallel:
                self.put_heads(layer, heads)
            mlp = self.mlp(layer)
            if graph.parallel:
                self.put_heads(layer, heads)
            if mlp is not None:
                self.put(graph.mlp_source(layer), *mlp)
        stream = self.streams(self.baseline.final_in(), self.runner.final)[0]
        self.tell("stream", [graph.n_targets - 1], [stream])
        return model.finish(stream, self.read)

    def tell(self, kind: str, numbers: Iterable[int], values: Iterable[Tensor]) -> None:
        if self.observer is not None:
            for number, value in zip(numbers, values, strict=True):
                self.observer(kind, number, value)

    def streams(self, ablated: Tensor, inputs: _Inputs) -> Float[Tensor, "inputs n ... d_model"]:
        """What some inlets read: the ablated stream and the kept differences."""
        everywhere = inputs.inlets[0].everywhere
        start = self.of_baseline(ablated, everywhere)
        coefficients = self.runner.coefficients[inputs.matrix]
        if coefficients.numel():
            some = self.take(self.store[everywhere], 0, inputs.slots).flatten(1)
            streams: Tensor = torch.addmm(start.reshape(1, -1), coefficients, some).unflatten(1, start.shape)
        else:
            streams = start.expand(len(inputs.inlets), *start.shape).clone()
        for stream, inlet in zip(streams, inputs.inlets, strict=True):
            if self.moves is not None and inlet.moved is not None:
                move = self.moves(inlet.moved, everywhere)
                stream.unflatten(0, (-1, move.shape[1])).add_(move)
        return streams

    def heads(self, layer: int) -> dict[bool, Float[Tensor, "heads n pos d_head"]]:
        """Outputs of the live heads before the output projection, minus the ablated ones."""
        step, differences = self.plan.attention[layer], {}
        outputs = {} if step is None else self.attend(layer, step.keys)
        for everywhere, (mixed, clean) in self.runner.heads[layer].items():
            if not mixed + clean:
                continue
            ablated = self.of_heads(self.baseline.z[layer], self.rows[1], mixed + clean, everywhere)
            length = self.store[True].shape[2] if everywhere else 1
            values = self.like.new_empty(len(mixed + clean), self.n_pairs, length, self.model.d_head)
            if mixed:
                torch.sub(outputs[everywhere], ablated[: len(mixed)], out=values[: len(mixed)])
            if clean:
                found = self.of_heads(self.clean.z[layer], self.rows[0], clean, everywhere)
                torch.sub(found, ablated[len(mixed) :], out=values[len(mixed) :])
            differences[everywhere] = values
        return differences

    def of_heads(
        self, z: Tensor, rows: Tensor | None, heads: Numbers, everywhere: bool
    ) -> Float[Tensor, "heads n pos d_head"]:
        """Outputs of some heads in a plain pass, at all positions or at the read position."""
        some = self.take(z.unflatten(-1, (self.model.n_heads, self.model.d_head)), -2, heads)
        some = self.chosen(some, rows, everywhere)
        return (some if everywhere else some[:, None]).permute(2, 0, 1, 3)

    def attend(self, layer: int, kv_heads: Numbers) -> dict[bool, Float[Tensor, "heads n pos d_head"]]:
        """Live heads of a block that mix both inputs, at all positions and at the read position only."""
        block, attention, outputs = self.model.blocks[layer], self.attention, {}
        plans = {each: plan for each, plan in self.runner.channels[layer].items() if plan is not None}
        channels = {each: self.project(layer, each, plan).transpose(0, 1) for each, plan in plans.items()}
        keyed = channels[True][:, len(plans[True].queries) :]
        if self.shared:
            columns = [block.n_heads + part * block.n_kv_heads + key for part in (0, 1) for key in kv_heads]
            before = self.baseline.channels(layer)[:1, : self.shared, columns].transpose(1, 2)
            keyed = torch.cat([before.expand(self.n_pairs, -1, -1, -1), keyed], 2)
        keys, values = keyed.chunk(2, 1)
        keys = attention.keys(layer, keys, kv_heads)
        for everywhere, plan in plans.items():
            heads, asked = plan.heads, plan.queries
            if not heads:
                continue
            queries = channels[everywhere][:, : len(asked)]
            queries = attention.queries(layer, queries, asked, everywhere=everywhere)
            read = [kv_heads.index(block.kv_head(head)) for head in heads]
            own = slice(min(read), max(read) + 1)
            z = attention.mix(
                layer,
                queries if asked == heads else self.take(queries, 1, heads),
                keys[:, own],
                values[:, own],
                everywhere=everywhere,
                heads=heads,
                kv_of_head=[place - own.start for place in read],
            )
            z = block.rescaled(z.to(self.runner.dtype))
            if self.observer is not None:
                first = self.model.graph.head_source(layer)
                self.tell("output", [first + head for head in heads], z.unbind(1))
            outputs[everywhere] = self.take(z, 1, plan.live).transpose(0, 1)
        return outputs

    def project(
        self, layer: int, everywhere: bool, plan: _Channels
    ) -> Float[Tensor, "channels n pos d_head"]:
        """Queries, then keys and values of the live heads of a block, where they are read."""
        block = self.model.blocks[layer]
        shape = self.n_pairs, self.store[True].shape[2] if everywhere else 1, block.d_head
        channels = torch.empty(plan.size, *shape, dtype=self.model.dtype, device=self.like.device)
        cut, places = plan.ablated
        if cut:
            ablated = self.of_baseline(self.take(self.baseline.channels(layer), 2, cut), everywhere)
            self.fill(channels, places, (ablated if everywhere else ablated[:, None]).permute(2, 0, 1, 3))
        if not plan.groups:
            return channels
        streams = self.streams(self.baseline.attention_in(layer), plan.inputs)
        normed = block.attention_norm(streams.to(self.model.dtype)).flatten(1, -2)
        projections = self.runner.projections(layer, everywhere)
        for (inputs, read, places), (weight, bias) in zip(plan.groups, projections, strict=True):
            some = normed[inputs]
            product = torch.bmm(some, weight) if bias is None else torch.baddbmm(bias, some, weight)
            parts = product.view(len(some), *shape[:2], -1, block.d_head).permute(0, 3, 1, 2, 4).flatten(0, 1)
            if len(places) == plan.size and _is_range(places):
                channels = parts
            else:
                self.fill(channels, places, parts)
            if self.observer is not None:
                columns = [self.model.graph.channel_target(layer, "q") + channel for channel in read]
                self.tell("stream", columns, streams[inputs].repeat_interleave(len(read) // len(some), 0))
                self.tell("channel", columns, parts)
        return channels

    def fill(self, channels: Tensor, places: Numbers, values: Tensor) -> None:
        if _is_range(places):
            channels[places[0] : places[-1] + 1] = values
        else:
            channels[self.runner.index[places]] = values.to(channels.dtype)

    def mlp(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Output of the MLP of a block and the ablated one; None where it is not needed.

        `[n, pos, d_model]`, or `[n, d_model]` where only the read position is needed.
        """
        graph, inputs = self.model.graph, self.runner.mlp[layer]
        row = graph.mlp_source(layer)
        if not graph.mlps or not self.plan.somewhere[row]:
            return None
        everywhere = bool(self.plan.everywhere[row])
        ablated = self.of_baseline(self.baseline.mlp[layer], everywhere)
        if inputs is None:
            return self.chosen(self.clean.mlp[layer], self.rows[0], everywhere), ablated
        stream = self.streams(self.baseline.mlp_in(layer), inputs)[0]
        output = self.model.blocks[layer].run_mlp(stream.to(self.model.dtype)).to(self.runner.dtype)
        self.tell("stream", [graph.mlp_target(layer)], [stream])
        self.tell("output", [row], [output])
        return output, ablated

    # ---- keeping differences --------------------------------------------------------------------

    def put(self, row: int, value: Tensor, ablated: Tensor) -> None:
        """Keep what one source changed, at all positions or at the read position."""
        everywhere = value.ndim == 3
        slot, read_slot = (self.runner.slots[each].get(row) for each in (everywhere, False))
        out = None if slot is None else self.store[everywhere][slot]
        difference = torch.sub(value, ablated, out=out)
        if everywhere and self.total is not None:
            self.total += difference
        if everywhere and read_slot is not None:
            self.store[False][read_slot] = self.at_read(difference)

    def put_heads(self, layer: int, differences: dict[bool, Float[Tensor, "heads n pos d_head"]]) -> None:
        """Project the differences of the heads of a block into the stream and keep them."""
        runner, live, full = self.runner, self.runner.live(layer), differences.get(True)
        for everywhere, (places, slots) in runner.kept[layer].items():
            if not places:
                continue
            if everywhere:
                z = differences[True].flatten(1, 2)
            else:
                parts = [] if full is None else [self.at_read(full)]
                parts += [differences[False][:, :, 0]] if False in differences else []
                z = parts[0] if len(parts) == 1 else torch.cat(parts)
            weight = runner.out_weight(layer, tuple(live[place] for place in places))
            torch.bmm(self.take(z, 0, places), weight, out=self.store[everywhere][slots].flatten(1, -2))
        if full is not None and self.total is not None:
            weight = runner.out_weight(layer, live[: len(full)]).flatten(0, 1)
            self.total += full.permute(1, 2, 0, 3).flatten(2) @ weight
