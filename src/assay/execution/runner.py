"""Execution of a compiled plan on a model: one circuit, many inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.circuits import Circuit
from assay.execution.attend import channel_column, live_heads
from assay.execution.baseline import Baseline
from assay.execution.feeds import projection_weights
from assay.execution.plan import AttentionStep, CompiledMask, Inlet, compile_plan
from assay.execution.written import Wanted, Written
from assay.models import Block, Model, Trace
from assay.models.attention import PlacedAttention


@dataclass(frozen=True, kw_only=True, eq=False)
class _InletProjection:
    """Channels that read one inlet, with their slice of the projection."""

    inlet: Inlet
    channels: tuple[tuple[str, int], ...]
    weight: Tensor | None  # [d_model, n * d_head]; None: take the ablated run's projection
    bias: Tensor | None


class CircuitRunner:
    """Runs one circuit of one model; make it once, call `logits` for every batch.

    Args:
        model: The model.
        circuit: The edges to keep.
        resample: Whether ablated values come from one consistent run (see `compile_plan`).
        several: Whether several positions of an example are read.
        plan: The plan of such a circuit of an equal model; default: it is compiled here.
    """

    def __init__(
        self,
        model: Model,
        circuit: Circuit,
        *,
        resample: bool,
        several: bool = False,
        plan: CompiledMask | None = None,
    ) -> None:
        self.model = model
        self.plan: CompiledMask = plan or compile_plan(
            model.graph,
            circuit.mask,
            resample=resample,
            pools=model.pools or several,
            coupling=model.coupling,
        )
        self.dtype = model.result_dtype
        self._wanted = Wanted.by(self.plan.inlets)
        plan, live = self.plan, [self._live(layer) for layer in range(model.n_layers)]
        self._live_heads = live
        self._projections = cache(lambda layer: _bind(model, plan.attention[layer]))
        self._out_weight = cache(lambda layer: _out_weight(model, layer, *live[layer]))

    def _live(self, layer: int) -> tuple[list[int], list[int]]:
        """Heads of a block that are needed at all positions, and those needed at the read position only."""
        first, heads = self.model.graph.head_source(layer), range(self.model.n_heads)
        full = [head for head in heads if self.plan.everywhere[first + head]]
        return full, [head for head in heads if self.plan.somewhere[first + head] and head not in full]

    @property
    def clean_depth(self) -> int | None:
        """Blocks of the clean pass that `logits` needs; None: the whole model."""
        if self.plan.everything:
            return None
        return max(self.plan.clean_depth, self.model.table_depth)

    def bytes_per_pair(self, length: int) -> int:
        """Rough memory of one pair: stored differences plus the widest step."""
        rows = len(self._wanted.every) + 2 * max(
            (len(step.inlets) for step in self.plan.attention if step), default=1
        )
        return (rows + 12) * length * self.model.d_model * (8 if self.dtype == torch.float64 else 4)

    @torch.no_grad()
    def logits(
        self,
        clean: Trace,
        baseline: Baseline,
        read: Int[Tensor, "n *reads"],
    ) -> Float[Tensor, "n *reads d_vocab"]:
        """Logits at the read position, row by row.

        Args:
            clean: A pass over the clean inputs, at least `clean_depth` blocks deep.
            baseline: Ablated values; one row that all share, or one per clean input.
            read: Read position of each clean input, or several `[n, reads]`.
        """
        assert not self.plan.everything, "a full circuit is the model itself; run the model instead"
        run = _CircuitRun(self, clean, baseline, read)
        return run.finish()


def _bind(model: Model, step: AttentionStep | None) -> list[_InletProjection]:
    projections: list[_InletProjection] = []
    if step is None:
        return projections
    block = model.blocks[step.layer]
    whole = block.qkv_weight(), block.qkv_bias()
    for index, inlet in enumerate(step.inlets):
        channels = step.channels(index)
        weight, bias = None, None
        if not inlet.empty:
            columns = [channel_column(block, *channel) for channel in channels]
            weight, bias = projection_weights(*whole, columns)
        projections.append(_InletProjection(inlet=inlet, channels=channels, weight=weight, bias=bias))
    return projections


def _out_weight(model: Model, layer: int, full: Sequence[int], last: Sequence[int]) -> Tensor | None:
    """Output projections of the heads of a block that are needed."""
    heads = [*full, *last]
    return model.blocks[layer].out_weight()[heads].to(model.result_dtype) if heads else None


class _CircuitRun:
    """One batch of pairs on its way through the plan."""

    def __init__(
        self,
        runner: CircuitRunner,
        clean: Trace,
        baseline: Baseline,
        read: Tensor,
    ) -> None:
        self.runner, self.model, self.plan = runner, runner.model, runner.plan
        self.clean, self.baseline, self.read = clean, baseline, read
        self.n_pairs, self.length = len(read), clean.input.shape[1]
        self.index = torch.arange(self.n_pairs, device=read.device)
        single = None if read.ndim == 2 else read  # where several are read, everything live is everywhere
        self.positions = PlacedAttention(
            self.model.rules,
            self.model.tables(clean.calls),
            length=self.length,
            causal=self.model.causal,
            read=single,
        )
        like = torch.empty(0, dtype=runner.dtype, device=clean.input.device)
        shape = (self.n_pairs, self.length, self.model.d_model)
        self.written = Written(runner._wanted, like, shape, single)

    # ---- choosing rows and positions ------------------------------------------------------------

    def wide(self, value: Tensor) -> Tensor:
        """In the number type of results."""
        return value.to(self.runner.dtype)

    # ---- the walk -------------------------------------------------------------------------------

    def finish(self) -> Tensor:
        model, graph = self.model, self.model.graph
        if self.plan.somewhere[0]:
            difference = self.wide(self.clean.input) - self.wide(self.baseline.input)
            self.written.put(0, difference if self.plan.everywhere[0] else self.written.at_read(difference))
        for layer in range(model.n_layers):
            attention = self.attention(layer)
            if not graph.parallel:
                self.put_heads(layer, *attention)
            mlp = self.mlp(layer)
            if graph.parallel:
                self.put_heads(layer, *attention)
            if mlp is not None:
                self.written.put(graph.mlp_source(layer), mlp)
        start = self.wide(self.baseline.final_in())
        if not model.reads_all(self.read):
            start = self.written.at_read(start)
        return model.finish(self.inputs([self.plan.logits], start)[0], self.read)

    def inputs(self, inlets: Sequence[Inlet], start: Tensor) -> Tensor:
        """Input of each inlet (all with the same positions): `[inlet, pairs, (pos,) d_model]`."""
        streams = [self.added(start, inlet) for inlet in inlets]
        streams = [stream.expand(self.n_pairs, *stream.shape[1:]) for stream in streams]
        return torch.stack(streams) if len(streams) > 1 else streams[0][None]

    def added(self, start: Tensor, inlet: Inlet) -> Tensor:
        """`start` plus the kept sources of an inlet, at its positions."""
        slots, store, total = self.written.at(everywhere=inlet.everywhere)
        if inlet.from_total:
            assert total is not None
            start = start + total
        sign = -1 if inlet.from_total else 1
        rows = [slots[row] for row in inlet.terms]
        if len(rows) == 1:
            return torch.add(start, store[rows[0]], alpha=sign)
        return start + sign * _sum_rows(store, rows) if rows else start

    def attention(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        """Head outputs before the output projection, minus the ablated ones.

        Returns `[heads, pairs, pos, d_head]` for heads needed everywhere and `[heads, pairs, 1, d_head]`
        for the others; clean heads of the block included, both in the order of `_live_heads`.
        """
        full, last = self.runner._live_heads[layer]
        if not full and not last:
            return None, None
        block = self.model.blocks[layer]
        ablated = self.wide(self.baseline.z[layer]).unflatten(-1, (block.n_heads, block.d_head))
        step = self.plan.attention[layer]
        values = {} if step is None else self.computed_heads(layer, step)
        if any(head not in values for head in (*full, *last)):
            clean = self.wide(self.clean.z[layer]).unflatten(-1, (block.n_heads, block.d_head))
            for head in (*full, *last):
                if head not in values:
                    value = clean[:, :, head]
                    values[head] = value if head in full else self.written.at_read(value)[:, None]
        everywhere = torch.stack([values[head] - ablated[:, :, head] for head in full]) if full else None
        read = (
            torch.stack([values[head] - self.written.at_read(ablated[:, :, head])[:, None] for head in last])
            if last
            else None
        )
        return everywhere, read

    def computed_heads(self, layer: int, step: AttentionStep) -> dict[int, Tensor]:
        """Live heads of a block that depend on both inputs: head -> `[pairs, pos or 1, d_head]`."""
        block = self.model.blocks[layer]
        channels = self.project(layer, block)

        def stacked(channel: str, heads: Sequence[int], everywhere: bool) -> Tensor:
            return torch.stack([channels[channel, head] for head in heads], 1)

        outputs: dict[int, Tensor] = {}
        mixed = live_heads(self.positions, block, step, stacked)
        for heads, z in zip((step.full, step.last), mixed, strict=True):
            if z is not None:
                outputs |= zip(heads, block.rescaled(self.wide(z)).unbind(1), strict=True)
        return outputs

    def project(self, layer: int, block: Block) -> dict[tuple[str, int], Tensor]:
        """q, k and v of the live heads: (channel, head) -> `[pairs, pos or 1, d_head]`."""
        projections = self.runner._projections(layer)
        channels: dict[tuple[str, int], Tensor] = {}
        start = self.wide(self.baseline.attention_in(layer))
        for everywhere in (True, False):
            chosen = [p for p in projections if p.weight is not None and p.inlet.everywhere is everywhere]
            if not chosen:
                continue
            at = start if everywhere else self.written.at_read(start)
            streams = self.inputs([projection.inlet for projection in chosen], at)
            normed = block.attention_norm(streams.to(self.model.dtype))
            for projection, stream in zip(chosen, normed, strict=True):
                assert projection.weight is not None
                flat = stream.reshape(-1, self.model.d_model)
                if projection.bias is None:
                    output = flat @ projection.weight
                else:
                    output = torch.addmm(projection.bias, flat, projection.weight)
                parts = output.view(self.n_pairs, -1, len(projection.channels), block.d_head).unbind(2)
                channels.update(zip(projection.channels, parts, strict=True))
        for projection in projections:
            if projection.weight is None:
                channels |= self.ablated_channels(layer, block, projection)
        return channels

    def ablated_channels(
        self, layer: int, block: Block, projection: _InletProjection
    ) -> dict[tuple[str, int], Tensor]:
        """Channels that keep nothing: the ablated run's own projections."""
        projected = self.baseline.channels(layer)
        channels = {}
        for channel, head in projection.channels:
            part = projected[:, :, channel_column(block, channel, head)]
            if not projection.inlet.everywhere:
                part = self.written.at_read(part)[:, None]
            channels[channel, head] = part.expand(self.n_pairs, -1, -1)
        return channels

    def mlp(self, layer: int) -> Tensor | None:
        """Output of the MLP of a block minus the ablated one; None where no one needs it.

        `[pairs, pos, d_model]`, or `[pairs, d_model]` where only the read position is needed.
        """
        row, step = self.model.graph.mlp_source(layer), self.plan.mlp[layer]
        if not self.model.graph.mlps or not self.plan.somewhere[row]:
            return None
        ablated = self.wide(self.baseline.mlp[layer])
        if step is None:
            difference = self.wide(self.clean.mlp[layer]) - ablated
            return difference if self.plan.everywhere[row] else self.written.at_read(difference)
        start = self.wide(self.baseline.mlp_in(layer))
        everywhere = step.inlet.everywhere
        stream = self.inputs([step.inlet], start if everywhere else self.written.at_read(start))[0]
        output = self.wide(self.model.blocks[layer].run_mlp(stream.to(self.model.dtype)))
        return output - (ablated if everywhere else self.written.at_read(ablated))

    def put_heads(self, layer: int, full: Tensor | None, last: Tensor | None) -> None:
        """Project the differences of the heads of a block into the stream and keep them."""
        weight = self.runner._out_weight(layer)
        if weight is None:
            return
        first = self.model.graph.head_source(layer)
        rows = [first + head for heads in self.runner._live_heads[layer] for head in heads]
        n_full = 0 if full is None else len(full)
        if full is not None:
            self._put_everywhere(rows[:n_full], full, weight[:n_full])
        slots, store, total = self.written.at(everywhere=False)
        for z, part in ((full, slice(n_full)), (last, slice(n_full, None))):
            if z is None or not (total is not None or any(row in slots for row in rows[part])):
                continue
            at_read = z[:, :, 0] if z is last else z[:, self.written.index, self.read]
            outputs = torch.bmm(at_read, weight[part])
            for row, output in zip(rows[part], outputs, strict=True):
                if row in slots:
                    store[slots[row]] = output
            if total is not None:
                total += outputs.sum(0)

    def _put_everywhere(self, rows: Sequence[int], z: Tensor, weight: Tensor) -> None:
        slots, store, total = self.written.at(everywhere=True)
        single = [index for index, row in enumerate(rows) if row in slots]
        if single:
            target = store[slots[rows[single[0]]] : slots[rows[single[-1]]] + 1]
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
