"""Execution of a compiled plan on a model: one circuit, many inputs."""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.circuits import Circuit
from assay.execution.ablation import Baseline
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
        self, model: Model, circuit: Circuit, *, resample: bool, plan: CompiledMask | None = None
    ) -> None:
        self.model, self.dtype = model, model.result_dtype
        self.plan: CompiledMask = plan or compile_plan(
            model.graph, circuit.mask, resample=resample, pools=model.pools, coupling=model.coupling
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
        for inlet, channels in step.inlets.items() if step else ():
            columns = [channel_column(block, *channel) for channel in channels]
            some = weight[:, [] if inlet.empty else columns].flatten(1).contiguous()
            projections.append((inlet, channels, some, None if bias is None else bias[columns].flatten()))
        return projections

    def _out_weight(self, layer: int) -> Tensor:
        """Output projections of the heads of a block that are needed."""
        full, last = self.live_heads[layer]
        return self.model.blocks[layer].out_weight()[[*full, *last]].to(self.dtype)

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
        rows: Rows | None = None,
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
            moves: Of a plan with moved targets: from a target, and whether it is wanted at all positions, to
                what is added to its input, `[n, pos, d_model]` or at the read position `[n, d_model]`.
            observer: Told of the input of every computed target, and of what nodes make of it.
        """
        assert not self.plan.everything, "a full circuit is the model itself; run the model instead"
        return _CircuitRun(self, clean, baseline, read, rows, shared, moves, observer).finish()


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
        shared: int,
        moves: Moves | None,
        observer: Observer | None,
    ) -> None:
        self.runner, self.model, self.plan = runner, runner.model, runner.plan
        self.clean, self.baseline, self.read, self.moves = clean, baseline, read, moves
        self.observe: Observer = observer or (lambda *noted: None)
        both: tuple[Tensor | None, Tensor | None] = rows or (None, None)
        self.clean_rows, self.baseline_rows = both
        self.n_pairs, self.shared, length = len(read), shared, clean.input.shape[1]
        self.index = torch.arange(self.n_pairs, device=read.device)
        # Many pairs overflow the cache of a core: then one stream after the other, not few large kernels.
        self.apart = rows is not None and read.device.type == "cpu"
        tables = self.model.tables(clean.calls)
        if rows is not None:  # all inputs have the same positions
            tables = {kind: (cos[:1], sin[:1]) for kind, (cos, sin) in tables.items()}
        self.attention = PlacedAttention(
            self.model.rules, tables, length=length, causal=self.model.causal, read=read
        )
        # Differences of sources from their ablated values: single ones, and the sum of all.
        self.like = torch.empty(0, dtype=runner.dtype, device=clean.input.device)
        n, width = self.n_pairs, self.model.d_model
        sizes = {True: (n, length - shared, width), False: (n, width)}
        self.single = {key: self.like.new_empty(len(runner.slots[key]), *size) for key, size in sizes.items()}
        self.total = {
            key: self.like.new_zeros(size) if runner.totals[key] else None for key, size in sizes.items()
        }

    # ---- choosing rows and positions ------------------------------------------------------------

    def chosen(self, value: Tensor, rows: Tensor | None, *, everywhere: bool) -> Tensor:
        """A value of the pairs at all positions, or at the read position; one row that they share is kept."""
        if everywhere:
            value = value[:, self.shared :]
            return value if rows is None or len(value) == 1 else value[rows]
        return (
            value[0][self.read] if len(value) == 1 else value[self.index if rows is None else rows, self.read]
        )

    def of_clean(self, value: Tensor, *, everywhere: bool) -> Tensor:
        return self.chosen(value, self.clean_rows, everywhere=everywhere).to(self.runner.dtype)

    def of_baseline(self, value: Tensor, *, everywhere: bool) -> Tensor:
        return self.chosen(value, self.baseline_rows, everywhere=everywhere).to(self.runner.dtype)

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
        if len(rows) > 1 and not self.apart:
            start = start + sign * _sum_rows(single, rows)
        elif rows:
            start = torch.add(start, single[rows[0]], alpha=sign)
            for row in rows[1:]:
                start.add_(single[row], alpha=sign)
        return start.expand(self.n_pairs, *start.shape[1:])

    def heads(self, layer: int) -> list[Tensor | None]:
        """Head outputs before the output projection, minus the ablated ones.

        `[heads, pairs, pos, d_head]` for heads needed everywhere and `[heads, pairs, 1, d_head]` for the
        others; clean heads of the block included, both in the order of `live_heads`.
        """
        step = self.plan.attention[layer]
        outputs = {} if step is None else self.computed_heads(layer, step)
        results: list[Tensor | None] = []
        for heads, everywhere in zip(self.runner.live_heads[layer], (True, False), strict=True):
            if not heads:
                results.append(None)
                continue
            ablated = self._single_heads(self.baseline.z[layer], self.baseline_rows, heads, everywhere)
            unchanged = [head for head in heads if head not in outputs]
            if unchanged:
                clean = self._single_heads(self.clean.z[layer], self.clean_rows, unchanged, everywhere)
                outputs |= zip(unchanged, clean, strict=True)
            shape = outputs[heads[0]].shape[1:]
            differences = self.like.new_empty(len(heads), self.n_pairs, *shape)
            for head, cut, into in zip(heads, ablated, differences, strict=True):
                torch.sub(outputs[head], cut, out=into)
            results.append(differences)
        return results

    def _single_heads(
        self, z: Tensor, rows: Tensor | None, heads: Sequence[int], everywhere: bool
    ) -> Sequence[Tensor]:
        """Outputs of some heads, `[pairs or 1, pos or 1, d_head]` each."""
        z = z.unflatten(-1, (self.model.n_heads, self.model.d_head))
        some = self.chosen(z[..., list(heads), :], rows, everywhere=everywhere).to(self.runner.dtype)
        return (some if everywhere else some[:, None]).unbind(-2)

    def computed_heads(self, layer: int, step: AttentionStep) -> dict[int, Tensor]:
        """Live heads of a block that depend on both inputs: head -> `[pairs, pos or 1, d_head]`."""
        block, attention, kv_heads = self.model.blocks[layer], self.attention, step.kv_heads
        channels = self.project(layer, block)

        def stacked(channel: str, heads: Sequence[int]) -> Tensor:
            found = torch.stack([channels[channel, head] for head in heads], 1)
            if channel == "q" or not self.shared:
                return found
            columns = [channel_column(block, channel, head) for head in heads]
            before = self.baseline.channels(layer)[:1, : self.shared, columns].transpose(1, 2)
            return torch.cat([before.expand(self.n_pairs, -1, -1, -1), found], 2)

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
            outputs |= zip(heads, block.rescaled(z.to(self.runner.dtype)).unbind(1), strict=True)
        for head, value in outputs.items():
            self.observe("z", layer, head, value)
        return outputs

    def project(self, layer: int, block: Block) -> Channels:
        """q, k and v of the live heads."""
        projections, channels = self.runner.projections(layer), Channels()
        for everywhere in (True, False):
            chosen = [each for each in projections if not each[0].empty and each[0].everywhere is everywhere]
            if not chosen:
                continue
            start = self.of_baseline(self.baseline.attention_in(layer), everywhere=everywhere)
            streams = [self.stream(start, inlet) for inlet, *_ in chosen]
            normed: Sequence[Tensor]
            if self.apart or len(streams) == 1:
                normed = [block.attention_norm(stream.to(self.model.dtype)) for stream in streams]
            else:
                normed = block.attention_norm(torch.stack(streams).to(self.model.dtype)).unbind()
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
                for name in names:
                    part = self.baseline.channels(layer)[:, :, channel_column(block, *name)]
                    part = self.chosen(part, self.baseline_rows, everywhere=inlet.everywhere)
                    channels[name] = (part if inlet.everywhere else part[:, None]).expand(
                        self.n_pairs, -1, -1
                    )
        return channels

    def mlp(self, layer: int) -> Tensor | None:
        """Output of the MLP of a block minus the ablated one; None where no one needs it.

        `[pairs, pos, d_model]`, or `[pairs, d_model]` where only the read position is needed.
        """
        row, inlet = self.model.graph.mlp_source(layer), self.plan.mlp[layer]
        if not self.model.graph.mlps or not self.plan.somewhere[row]:
            return None
        everywhere = bool(self.plan.everywhere[row])
        ablated = self.of_baseline(self.baseline.mlp[layer], everywhere=everywhere)
        if inlet is None:
            return self.of_clean(self.clean.mlp[layer], everywhere=everywhere) - ablated
        start = self.of_baseline(self.baseline.mlp_in(layer), everywhere=everywhere)
        stream = self.stream(start, inlet)
        output = self.model.blocks[layer].run_mlp(stream.to(self.model.dtype)).to(self.runner.dtype)
        self.observe("stream", layer, self.model.graph.mlp_target(layer), stream)
        self.observe("mlp", layer, self.model.graph.mlp_target(layer), output)
        return output - ablated

    # ---- keeping differences --------------------------------------------------------------------

    def put(self, row: int, value: Tensor) -> None:
        """Keep what one source changed, at all positions or at the read position."""
        if value.ndim == 3:
            self._keep(row, value, everywhere=True)
            if self.runner.totals[False] or row in self.runner.slots[False]:
                value = value[self.index, self.read - self.shared]
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
        first, weight = self.model.graph.head_source(layer), self.runner.out_weight(layer)
        rows = [first + head for heads in self.runner.live_heads[layer] for head in heads]
        n_full = 0 if full is None else len(full)
        if full is not None:
            self._put_everywhere(rows[:n_full], full, weight[:n_full])
        slots, single, total = self.runner.slots[False], self.single[False], self.total[False]
        for z, part in ((full, slice(n_full)), (last, slice(n_full, None))):
            if z is None or not (total is not None or any(row in slots for row in rows[part])):
                continue
            at_read = z[:, :, 0] if z is last else z[:, self.index, self.read - self.shared]
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
            some = z if len(single) == len(rows) else z[single]
            torch.bmm(some.flatten(1, 2), weight[single], out=target.view(len(single), -1, target.shape[-1]))
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
