"""Execution of a compiled plan on a model: one circuit, many inputs."""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.circuits import Circuit
from assay.execution.baseline import Baseline
from assay.execution.plan import AttentionStep, CompiledMask, Inlet, compile_plan
from assay.models import Block, Model, Trace
from assay.models.attention import PlacedAttention


Channels = dict[tuple[str, int], Tensor]  # (channel, head) -> [pairs, pos or 1, d_head]
Rows = tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]
Moves = Callable[[int, bool], Tensor]
# Told of what is computed: `stream`, `channel` (of a target), `z` or `mlp`; block; target, or head; value.
Observer = Callable[[str, int, int, Tensor], None]


class CircuitRunner:
    """Runs one circuit of one model; make it once, call `logits` for every batch.

    Args:
        model: The model.
        circuit: The edges to keep.
        resample: Whether ablated values come from one consistent run (see `compile_plan`).
        plan: What to run, where it is not the plan of the circuit.
    """

    def __init__(
        self,
        model: Model,
        circuit: Circuit,
        *,
        resample: bool,
        plan: CompiledMask | None = None,
    ) -> None:
        self.model, self.dtype = model, model.result_dtype
        self.plan: CompiledMask = plan or compile_plan(
            model.graph,
            circuit.mask,
            resample=resample,
            pools=model.pools,
            coupling=model.coupling,
        )
        # Of what is read at all positions (True) and at the read position only: a slot for each source that
        # is wanted by itself, and whether the sum of all is.
        self.slots: dict[bool, dict[int, int]] = {}
        self.totals: dict[bool, bool] = {}
        for everywhere in (True, False):
            inlets = [inlet for inlet in self.plan.inlets if inlet.everywhere is everywhere]
            rows = sorted({row for inlet in inlets for row in inlet.terms})
            self.slots[everywhere] = {row: slot for slot, row in enumerate(rows)}
            self.totals[everywhere] = any(inlet.from_total for inlet in inlets)
        self.live_heads = [self._live(layer) for layer in range(model.n_layers)]
        self.projections = cache(self._projections)
        self.out_weight = cache(self._out_weight)

    def _live(self, layer: int) -> tuple[list[int], list[int]]:
        """Heads of a block that are needed at all positions, and those needed at the read position only."""
        first, heads = self.model.graph.head_source(layer), range(self.model.n_heads)
        full = [head for head in heads if self.plan.everywhere[first + head]]
        return full, [head for head in heads if self.plan.somewhere[first + head] and head not in full]

    def _projections(self, layer: int) -> list[tuple[Inlet, list[tuple[str, int]], Tensor, Tensor | None]]:
        """The inlets of a block, the channels that read each, and their slice of the projection."""
        step, block = self.plan.attention[layer], self.model.blocks[layer]
        weight, bias = block.qkv_weight(), block.qkv_bias()
        projections = []
        for index, inlet in enumerate(step.inlets if step else ()):
            channels = list(step.channels(index)) if step else []
            columns = [channel_column(block, *channel) for channel in channels]
            some = weight[:, [] if inlet.empty else columns].flatten(1).contiguous()
            projections.append((inlet, channels, some, None if bias is None else bias[columns].flatten()))
        return projections

    def _out_weight(self, layer: int) -> Tensor | None:
        """Output projections of the heads of a block that are needed."""
        heads = [head for heads in self.live_heads[layer] for head in heads]
        return self.model.blocks[layer].out_weight()[heads].to(self.dtype) if heads else None

    @property
    def clean_depth(self) -> int | None:
        """Blocks of the clean pass that `logits` needs; None: the whole model."""
        if self.plan.everything:
            return None
        return max(self.plan.clean_depth, self.model.table_depth)

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
        rows: Rows | None = None,
        moves: Moves | None = None,
        observer: Observer | None = None,
    ) -> Float[Tensor, "n d_vocab"]:
        """Logits at the read position, row by row.

        Args:
            clean: A pass over the clean inputs, at least `clean_depth` blocks deep.
            baseline: Ablated values; one row that all share, or one per clean input.
            read: Read position of each pair.
            rows: The row of `clean` and the row of `baseline` that each pair has; default: its own.
            moves: Of a plan with moved targets: from a target, and whether it is wanted at all positions, to
                what is added to its input, `[n, pos, d_model]` or at the read position `[n, d_model]`.
            observer: Told of the input of every computed target, and of what nodes make of it.
        """
        assert not self.plan.everything, "a full circuit is the model itself; run the model instead"
        return _CircuitRun(self, clean, baseline, read, rows, moves, observer).finish()


def channel_column(block: Block, channel: str, head: int) -> int:
    """Place of a channel (`q` of a head, `k` or `v` of a key/value head) in the common layout."""
    return {"q": 0, "k": block.n_heads, "v": block.n_heads + block.n_kv_heads}[channel] + head


class _CircuitRun:
    """One batch of pairs on its way through the plan."""

    def __init__(
        self,
        runner: CircuitRunner,
        clean: Trace,
        baseline: Baseline,
        read: Tensor,
        rows: Rows | None,
        moves: Moves | None,
        observer: Observer | None,
    ) -> None:
        self.runner, self.model, self.plan = runner, runner.model, runner.plan
        self.clean, self.baseline, self.read, self.moves = clean, baseline, read, moves
        self.observe: Observer = observer or (lambda *noted: None)
        self.clean_rows = None if rows is None else rows[0]
        self.baseline_rows = None if rows is None else rows[1]
        n, length = len(read), clean.input.shape[1]
        self.n_pairs = n
        self.index = torch.arange(n, device=read.device)
        # Many pairs overflow the cache of a core: then one stream after the other, not few large kernels.
        self.apart = rows is not None and read.device.type == "cpu"
        tables = self.model.tables(clean.calls)
        if rows is not None:  # all inputs have the same positions
            tables = {kind: (cos[:1], sin[:1]) for kind, (cos, sin) in tables.items()}
        self.positions = PlacedAttention(
            self.model.rules,
            tables,
            length=length,
            causal=self.model.causal,
            read=read,
        )
        # Differences of sources from their ablated values: single ones, and the sum of all.
        like = torch.empty(0, dtype=runner.dtype, device=clean.input.device)
        sizes = {True: (n, length, self.model.d_model), False: (n, self.model.d_model)}
        self.single = {key: like.new_empty(len(runner.slots[key]), *size) for key, size in sizes.items()}
        self.total = {
            key: like.new_zeros(size) if runner.totals[key] else None for key, size in sizes.items()
        }

    # ---- choosing rows and positions ------------------------------------------------------------

    def wide(self, value: Tensor) -> Tensor:
        """In the number type of results."""
        return value.to(self.runner.dtype)

    def chosen(self, value: Tensor, rows: Tensor | None, *, everywhere: bool) -> Tensor:
        """A value of the pairs at all positions, or at the read position; one row that they share is kept."""
        if len(value) == 1:
            return value if everywhere else value[0][self.read]
        if everywhere:
            return value if rows is None else value[rows]
        return value[self.index if rows is None else rows, self.read]

    def of_clean(self, value: Tensor, *, everywhere: bool) -> Tensor:
        return self.wide(self.chosen(value, self.clean_rows, everywhere=everywhere))

    def of_baseline(self, value: Tensor, *, everywhere: bool) -> Tensor:
        return self.wide(self.chosen(value, self.baseline_rows, everywhere=everywhere))

    # ---- the walk -------------------------------------------------------------------------------

    def finish(self) -> Tensor:
        model, graph, plan = self.model, self.model.graph, self.plan
        if plan.somewhere[0]:
            everywhere = bool(plan.everywhere[0])
            clean = self.of_clean(self.clean.input, everywhere=everywhere)
            self.put(0, clean - self.of_baseline(self.baseline.input, everywhere=everywhere))
        for layer in range(model.n_layers):
            heads = self.heads(layer)
            if not graph.parallel:
                self.put_heads(layer, *heads)
            mlp = self.mlp(layer)
            if graph.parallel:
                self.put_heads(layer, *heads)
            if mlp is not None:
                self.put(graph.mlp_source(layer), mlp)
        start = self.of_baseline(self.baseline.final_in(), everywhere=plan.logits.everywhere)
        stream = self.stream(start, plan.logits)
        self.observe("stream", model.n_layers, graph.n_targets - 1, stream)
        return model.finish(stream, self.read)

    def stream(self, start: Tensor, inlet: Inlet) -> Tensor:
        """What an inlet reads: `start` and the kept differences, `[pairs, (pos,) d_model]`."""
        everywhere = inlet.everywhere
        if inlet.moved is not None:
            assert self.moves is not None
            start = start + self.moves(inlet.moved, everywhere)
        total = self.total[everywhere]
        if inlet.from_total:
            assert total is not None
            start = start + total
        sign = -1 if inlet.from_total else 1
        slots, single = self.runner.slots[everywhere], self.single[everywhere]
        rows = [slots[row] for row in inlet.terms]
        if self.apart and rows:
            start = torch.add(start, single[rows[0]], alpha=sign)
            for row in rows[1:]:
                start.add_(single[row], alpha=sign)
        elif len(rows) == 1:
            start = torch.add(start, single[rows[0]], alpha=sign)
        elif rows:
            start = start + sign * _sum_rows(single, rows)
        return start.expand(self.n_pairs, *start.shape[1:])

    def heads(self, layer: int) -> list[Tensor | None]:
        """Head outputs before the output projection, minus the ablated ones.

        `[heads, pairs, pos, d_head]` for heads needed everywhere and `[heads, pairs, 1, d_head]` for the
        others; clean heads of the block included, both in the order of `live_heads`.
        """
        live, step = self.runner.live_heads[layer], self.plan.attention[layer]
        split = (self.model.n_heads, self.model.d_head)
        outputs = {} if step is None else self.computed_heads(layer, step)
        results: list[Tensor | None] = []
        for heads, everywhere in zip(live, (True, False), strict=True):
            if not heads:
                results.append(None)
                continue
            clean, place = None, slice(None) if everywhere else None
            ablated = self.of_baseline(self.baseline.z[layer], everywhere=everywhere).unflatten(-1, split)
            if any(head not in outputs for head in heads):
                clean = self.of_clean(self.clean.z[layer], everywhere=everywhere).unflatten(-1, split)
            parts = []
            for head in heads:
                value = outputs[head] if clean is None or head in outputs else clean[..., head, :][:, place]
                parts.append(value - ablated[..., head, :][:, place])
            results.append(torch.stack(parts))
        return results

    def computed_heads(self, layer: int, step: AttentionStep) -> dict[int, Tensor]:
        """Live heads of a block that depend on both inputs: head -> `[pairs, pos or 1, d_head]`."""
        block, attention, kv_heads = self.model.blocks[layer], self.positions, step.kv_heads
        channels = self.project(layer, block)

        def stacked(channel: str, heads: Sequence[int]) -> Tensor:
            return torch.stack([channels[channel, head] for head in heads], 1)

        keys = attention.keys(layer, stacked("k", kv_heads), kv_heads)
        values = stacked("v", kv_heads)
        outputs: dict[int, Tensor] = {}
        for heads, everywhere in ((step.full, True), (step.last, False)):
            if not heads:
                continue
            asked = range(block.n_heads) if block.rule.couples else heads
            queries = attention.queries(layer, stacked("q", asked), asked, everywhere=everywhere)
            z = attention.mix(
                layer,
                queries[:, list(heads)] if block.rule.couples else queries,
                keys,
                values,
                everywhere=everywhere,
                heads=heads,
                kv_of_head=[kv_heads.index(block.kv_head(head)) for head in heads],
            )
            outputs |= zip(heads, block.rescaled(self.wide(z)).unbind(1), strict=True)
        for head, value in outputs.items():
            self.observe("z", layer, head, value)
        return outputs

    def project(self, layer: int, block: Block) -> Channels:
        """q, k and v of the live heads."""
        projections = self.runner.projections(layer)
        channels: Channels = {}
        for everywhere in (True, False):
            chosen = [each for each in projections if not each[0].empty and each[0].everywhere is everywhere]
            if not chosen:
                continue
            start = self.of_baseline(self.baseline.attention_in(layer), everywhere=everywhere)
            streams = [self.stream(start, inlet) for inlet, *_ in chosen]
            if self.apart:
                normed: Sequence[Tensor] = [block.attention_norm(s.to(self.model.dtype)) for s in streams]
            else:
                together = torch.stack(streams) if len(streams) > 1 else streams[0][None]
                normed = block.attention_norm(together.to(self.model.dtype)).unbind()
            for (_, names, weight, bias), stream, flat in zip(chosen, streams, normed, strict=True):
                flat = flat.reshape(-1, self.model.d_model)
                output = flat @ weight if bias is None else torch.addmm(bias, flat, weight)
                parts = output.view(self.n_pairs, -1, len(names), block.d_head).unbind(2)
                channels.update(zip(names, parts, strict=True))
                for name, part in zip(names, parts, strict=True):
                    target = self.model.graph.channel_target(layer, *name)
                    self.observe("stream", layer, target, stream)
                    self.observe("channel", layer, target, part)
        for inlet, names, *_ in projections:
            if inlet.empty:  # the ablated run's own projections
                for channel, head in names:
                    part = self.baseline.channels(layer)[:, :, channel_column(block, channel, head)]
                    part = self.chosen(part, self.baseline_rows, everywhere=inlet.everywhere)
                    part = part if inlet.everywhere else part[:, None]
                    channels[channel, head] = part.expand(self.n_pairs, -1, -1)
        return channels

    def mlp(self, layer: int) -> Tensor | None:
        """Output of the MLP of a block minus the ablated one; None where no one needs it.

        `[pairs, pos, d_model]`, or `[pairs, d_model]` where only the read position is needed.
        """
        row, step = self.model.graph.mlp_source(layer), self.plan.mlp[layer]
        if not self.model.graph.mlps or not self.plan.somewhere[row]:
            return None
        everywhere = bool(self.plan.everywhere[row]) if step is None else step.inlet.everywhere
        ablated = self.of_baseline(self.baseline.mlp[layer], everywhere=everywhere)
        if step is None:
            return self.of_clean(self.clean.mlp[layer], everywhere=everywhere) - ablated
        start = self.of_baseline(self.baseline.mlp_in(layer), everywhere=everywhere)
        stream = self.stream(start, step.inlet)
        output = self.wide(self.model.blocks[layer].run_mlp(stream.to(self.model.dtype)))
        target = self.model.graph.mlp_target(layer)
        self.observe("stream", layer, target, stream)
        self.observe("mlp", layer, target, output)
        return output - ablated

    # ---- keeping differences --------------------------------------------------------------------

    def put(self, row: int, value: Tensor) -> None:
        """Keep what one source changed, at all positions or at the read position."""
        if value.ndim == 3:
            self._keep(row, value, everywhere=True)
            if self.runner.totals[False] or row in self.runner.slots[False]:
                value = value[self.index, self.read]
        if value.ndim == 2:
            self._keep(row, value, everywhere=False)

    def _keep(self, row: int, value: Tensor, *, everywhere: bool) -> None:
        slots, total = self.runner.slots[everywhere], self.total[everywhere]
        if row in slots:
            self.single[everywhere][slots[row]] = value
        if total is not None:
            total += value

    def put_heads(self, layer: int, full: Tensor | None, last: Tensor | None) -> None:
        """Project the differences of the heads of a block into the stream and keep them."""
        weight = self.runner.out_weight(layer)
        if weight is None:
            return
        first = self.model.graph.head_source(layer)
        rows = [first + head for heads in self.runner.live_heads[layer] for head in heads]
        n_full = 0 if full is None else len(full)
        if full is not None:
            self._put_everywhere(rows[:n_full], full, weight[:n_full])
        slots, single, total = self.runner.slots[False], self.single[False], self.total[False]
        for z, part in ((full, slice(n_full)), (last, slice(n_full, None))):
            if z is None or not (total is not None or any(row in slots for row in rows[part])):
                continue
            at_read = z[:, :, 0] if z is last else z[:, self.index, self.read]
            outputs = torch.bmm(at_read, weight[part])
            for row, output in zip(rows[part], outputs, strict=True):
                if row in slots:
                    single[slots[row]] = output
            if total is not None:
                total += outputs.sum(0)

    def _put_everywhere(self, rows: Sequence[int], z: Tensor, weight: Tensor) -> None:
        slots, total = self.runner.slots[True], self.total[True]
        single = [index for index, row in enumerate(rows) if row in slots]
        if single:
            target = self.single[True][slots[rows[single[0]]] : slots[rows[single[-1]]] + 1]
            torch.bmm(
                z[single].flatten(1, 2), weight[single], out=target.view(len(single), -1, target.shape[-1])
            )
            if total is not None:
                total += target.sum(0)
        rest = [index for index in range(len(rows)) if index not in single]
        if rest and total is not None:
            merged = z[rest].permute(1, 2, 0, 3).flatten(2)
            total += merged @ weight[rest].flatten(0, 1)


def _sum_rows(store: Tensor, rows: list[int]) -> Tensor:
    """Sum of some rows; a matrix product when many, since it reads each row once without temporaries."""
    coefficients = store.new_zeros(rows[-1] + 1)
    coefficients[rows] = 1
    if len(rows) * 3 >= rows[-1] + 1:
        return (coefficients @ store[: rows[-1] + 1].flatten(1)).view(store.shape[1:])
    total = store[rows[0]] + store[rows[1]]
    for row in rows[2:]:
        total += store[row]
    return total
