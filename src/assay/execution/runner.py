"""Execution of a compiled plan on a model: one circuit, many inputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.circuits import Circuit
from assay.execution.ablation import Baseline
from assay.execution.attend import PlacedAttention, channel_column, rotary_tables
from assay.execution.plan import AttentionStep, Inlet, Plan, compile_plan
from assay.models import Block, Model, Trace


@dataclass(kw_only=True, eq=False)
class _Projection:
    """Columns of the q/k/v projection that read one inlet."""

    inlet: int
    weight: Tensor | None  # [d_model, n * d_head]; None: take the ablated run's projection
    bias: Tensor | None
    channels: list[tuple[str, int]]  # which channels these columns are, in order


@dataclass(kw_only=True, eq=False)
class _BoundAttention:
    """An attention step with its slices of the weights."""

    step: AttentionStep
    projections: list[_Projection]
    kv_heads: tuple[int, ...]


class CircuitRunner:
    """Runs one circuit of one model; make it once, call `logits` for every batch.

    Args:
        model: The model.
        circuit: The edges to keep.
        resample: Whether ablated values come from one consistent run (see `compile_plan`).
    """

    def __init__(self, model: Model, circuit: Circuit, *, resample: bool) -> None:
        self.model = model
        self.plan: Plan = compile_plan(model.graph, circuit.mask, resample=resample, pools=model.pools)
        self.dtype = model.result_dtype
        self._slots_everywhere = _slots(self.plan.single_everywhere)
        self._slots_read = _slots(self.plan.single_read)
        self._attention = [None if step is None else _bind(model, step) for step in self.plan.attention]
        self._out_weights = [self._out_weight(layer) for layer in range(model.n_layers)]

    def _out_weight(self, layer: int) -> Tensor | None:
        first = self.model.graph.head_source(layer)
        if not bool(self.plan.somewhere[first : first + self.model.n_heads].any()):
            return None
        return self.model.blocks[layer].out_weight().to(self.dtype)

    @property
    def clean_depth(self) -> int | None:
        """Blocks of the clean pass that `logits` needs; None: the whole model."""
        return None if self.plan.everything else self.plan.clean_depth

    def bytes_per_pair(self, length: int) -> int:
        """Rough memory of one pair: stored differences plus the widest step."""
        rows = len(self.plan.single_everywhere) + 2 * max(
            (len(step.inlets) for step in self.plan.attention if step), default=1
        )
        return (rows + 12) * length * self.model.d_model * (8 if self.dtype == torch.float64 else 4)

    @torch.no_grad()
    def logits(
        self,
        clean: Trace,
        baseline: Baseline,
        read: Int[Tensor, " n"],
    ) -> Float[Tensor, "n d_vocab"]:
        """Logits at the read position, row by row.

        Args:
            clean: A pass over the clean inputs, at least `clean_depth` blocks deep.
            baseline: Ablated values; one row that all share, or one per clean input.
            read: Read position of each clean input.
        """
        assert not self.plan.everything, "a full circuit is the model; run it instead"
        run = _Run(self, clean, baseline, read)
        return run.finish()


def _slots(rows: frozenset[int]) -> dict[int, int]:
    return {row: slot for slot, row in enumerate(sorted(rows))}


def _bind(model: Model, step: AttentionStep) -> _BoundAttention:
    block = model.blocks[step.layer]
    weight, bias = block.qkv_weight(), block.qkv_bias()
    kv_heads = tuple(sorted(step.reads["k"]))
    projections = []
    for index, inlet in enumerate(step.inlets):
        channels = [
            (channel, head)
            for channel in ("q", "k", "v")
            for head, used in step.reads[channel].items()
            if used == index
        ]
        columns = [channel_column(block, channel, head) for channel, head in channels]
        if inlet.empty:
            projections.append(_Projection(inlet=index, weight=None, bias=None, channels=channels))
        else:
            projections.append(
                _Projection(
                    inlet=index,
                    weight=weight[:, columns].flatten(1).contiguous(),
                    bias=None if bias is None else bias[columns].flatten(),
                    channels=channels,
                )
            )
    return _BoundAttention(step=step, projections=projections, kv_heads=kv_heads)


class _Run:
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
        self.positions = PlacedAttention(
            self.model, rotary_tables(clean.calls), length=self.length, read=read
        )
        like = torch.empty(0, dtype=runner.dtype, device=clean.input.device)
        at_read, at_all = (self.n_pairs, self.model.d_model), (self.n_pairs, self.length, self.model.d_model)
        self.everywhere = like.new_empty(len(runner._slots_everywhere), *at_all)
        self.last = like.new_empty(len(runner._slots_read), *at_read)
        self.total = like.new_zeros(at_all) if self.plan.total_everywhere else None
        self.total_last = like.new_zeros(at_read) if self.plan.total_read else None

    # ---- choosing rows and positions ------------------------------------------------------------

    def wide(self, value: Tensor) -> Tensor:
        """In the number type of results."""
        return value.to(self.runner.dtype)

    def at_read(self, value: Tensor) -> Tensor:
        """The read position of `[pairs or 1, pos, ...]`."""
        if value.shape[0] == 1:
            return value[0][self.read]
        return value[self.index, self.read]

    # ---- the walk -------------------------------------------------------------------------------

    def finish(self) -> Tensor:
        model, graph = self.model, self.model.graph
        if self.plan.somewhere[0]:
            self.deposit([0], self.wide(self.clean.input) - self.wide(self.baseline.input))
        for layer in range(model.n_layers):
            attention = self.attention(layer)
            if not graph.parallel:
                self.deposit_heads(layer, *attention)
            mlp = self.mlp(layer) if graph.mlps else None
            if graph.parallel:
                self.deposit_heads(layer, *attention)
            if mlp is not None:
                self.deposit([graph.mlp_source(layer)], mlp)
        start = self.wide(self.baseline.final_in())
        stream = self.inputs([self.plan.logits], start if model.pools else self.at_read(start))[0]
        return model.finish(stream)

    def inputs(self, inlets: Sequence[Inlet], start: Tensor) -> Tensor:
        """Input of each inlet (all with the same positions): `[inlet, pairs, (pos,) d_model]`."""
        everywhere = inlets[0].everywhere
        slots = self.runner._slots_everywhere if everywhere else self.runner._slots_read
        store = self.everywhere if everywhere else self.last
        total = self.total if everywhere else self.total_last
        streams = []
        for inlet in inlets:
            stream = start
            if inlet.from_total:
                assert total is not None
                stream = stream + total
            rows = [slots[row] for row in inlet.terms]
            if len(rows) == 1:
                stream = torch.add(stream, store[rows[0]], alpha=-1 if inlet.from_total else 1)
            elif rows:
                sign = -1.0 if inlet.from_total else 1.0
                stream = stream + sign * _sum_rows(store, rows)
            streams.append(stream.expand(self.n_pairs, *stream.shape[1:]))
        return torch.stack(streams) if len(streams) > 1 else streams[0][None]

    def attention(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        """Head outputs before the output projection, minus the ablated ones.

        Returns `[heads, pairs, pos, d_head]` for heads needed everywhere and `[heads, pairs, 1, d_head]`
        for the others; clean heads of the block included, both in the order of `_live_heads`.
        """
        full, last = self._live_heads(layer)
        if not full and not last:
            return None, None
        block = self.model.blocks[layer]
        ablated = self.wide(self.baseline.z[layer]).unflatten(-1, (block.n_heads, block.d_head))
        values: dict[int, Tensor] = {}
        bound = self.runner._attention[layer]
        if bound is not None:
            values.update(self.computed_heads(layer, bound))
        if any(head not in values for head in (*full, *last)):
            clean = self.wide(self.clean.z[layer]).unflatten(-1, (block.n_heads, block.d_head))
            for head in (*full, *last):
                if head not in values:
                    values[head] = (
                        clean[:, :, head] if head in full else self.at_read(clean[:, :, head])[:, None]
                    )
        everywhere = torch.stack([values[head] - ablated[:, :, head] for head in full]) if full else None
        read = (
            torch.stack([values[head] - self.at_read(ablated[:, :, head])[:, None] for head in last])
            if last
            else None
        )
        return everywhere, read

    def _live_heads(self, layer: int) -> tuple[list[int], list[int]]:
        first = self.model.graph.head_source(layer)
        heads = range(self.model.n_heads)
        full = [head for head in heads if self.plan.everywhere[first + head]]
        last = [head for head in heads if self.plan.somewhere[first + head] and head not in full]
        return full, last

    def computed_heads(self, layer: int, bound: _BoundAttention) -> dict[int, Tensor]:
        """Live heads of a block that depend on both inputs: head -> `[pairs, pos or 1, d_head]`."""
        block, step = self.model.blocks[layer], bound.step
        channels = self.project(layer, block, bound)
        full, last = step.heads[: step.n_everywhere], step.heads[step.n_everywhere :]
        keys = torch.stack([channels["k", head] for head in bound.kv_heads], 1)
        values = torch.stack([channels["v", head] for head in bound.kv_heads], 1)
        keys = self.positions.keys(block, keys)
        outputs: dict[int, Tensor] = {}
        for heads, everywhere in ((full, True), (last, False)):
            if not heads:
                continue
            queries = torch.stack([channels["q", head] for head in heads], 1)
            mixed = self.positions.mix(
                block,
                self.positions.queries(block, queries, everywhere=everywhere),
                keys,
                values,
                everywhere=everywhere,
                kv_of_head=[bound.kv_heads.index(block.kv_head(head)) for head in heads],
            ).to(self.runner.dtype)
            outputs.update({head: mixed[:, index] for index, head in enumerate(heads)})
        return outputs

    def project(self, layer: int, block: Block, bound: _BoundAttention) -> dict[tuple[str, int], Tensor]:
        """q, k and v of the live heads: (channel, head) -> `[pairs, pos or 1, d_head]`."""
        step = bound.step
        channels: dict[tuple[str, int], Tensor] = {}
        start = self.wide(self.baseline.attention_in(layer))
        for everywhere in (True, False):
            chosen = [
                p
                for p in bound.projections
                if p.weight is not None and step.inlets[p.inlet].everywhere is everywhere
            ]
            if not chosen:
                continue
            streams = self.inputs(
                [step.inlets[p.inlet] for p in chosen], start if everywhere else self.at_read(start)
            )
            normed = block.attention_norm.module(streams.to(self.model.dtype))
            for projection, stream in zip(chosen, normed, strict=True):
                assert projection.weight is not None
                flat = stream.reshape(-1, self.model.d_model)
                if projection.bias is None:
                    output = flat @ projection.weight
                else:
                    output = torch.addmm(projection.bias, flat, projection.weight)
                parts = output.view(self.n_pairs, -1, len(projection.channels), block.d_head).unbind(2)
                channels.update(zip(projection.channels, parts, strict=True))
        for projection in bound.projections:
            if projection.weight is None:
                self.take_ablated(layer, block, step.inlets[projection.inlet], projection.channels, channels)
        return channels

    def take_ablated(
        self,
        layer: int,
        block: Block,
        inlet: Inlet,
        wanted: list[tuple[str, int]],
        channels: dict[tuple[str, int], Tensor],
    ) -> None:
        """Channels that keep nothing: the ablated run's own projections."""
        projected = self.baseline.channels(layer)
        for channel, head in wanted:
            part = projected[:, :, channel_column(block, channel, head)]
            if not inlet.everywhere:
                part = self.at_read(part)[:, None]
            channels[channel, head] = part.expand(self.n_pairs, -1, -1)

    def mlp(self, layer: int) -> Tensor | None:
        """MLP output minus the ablated one: `[pairs, pos, d_model]` or `[pairs, d_model]`; None if dead."""
        row = self.model.graph.mlp_source(layer)
        if not self.plan.somewhere[row]:
            return None
        ablated = self.wide(self.baseline.mlp[layer])
        step = self.plan.mlp[layer]
        if step is None:
            difference = self.wide(self.clean.mlp[layer]) - ablated
            return difference if self.plan.everywhere[row] else self.at_read(difference)
        block = self.model.blocks[layer]
        start = self.wide(self.baseline.mlp_in(layer))
        if not step.inlet.everywhere:
            start, ablated = self.at_read(start), self.at_read(ablated)
        stream = self.inputs([step.inlet], start)[0]
        output: Tensor = block.run_mlp(stream.to(self.model.dtype))
        return output.to(self.runner.dtype) - ablated

    # ---- keeping differences --------------------------------------------------------------------

    def deposit(self, rows: list[int], difference: Tensor) -> None:
        """Keep the difference of one stream-wide source, at all positions or at the read position."""
        row = rows[0]
        if difference.ndim == 3:
            if row in self.runner._slots_everywhere:
                self.everywhere[self.runner._slots_everywhere[row]] = difference
            if self.total is not None and self.plan.everywhere[row]:
                self.total += difference
        if row in self.runner._slots_read or self.total_last is not None:
            at_read = self.at_read(difference) if difference.ndim == 3 else difference
            if row in self.runner._slots_read:
                self.last[self.runner._slots_read[row]] = at_read
            if self.total_last is not None:
                self.total_last += at_read

    def deposit_heads(self, layer: int, everywhere: Tensor | None, last: Tensor | None) -> None:
        """Project the differences of the heads of a block into the stream and keep them."""
        weight = self.runner._out_weights[layer]
        if weight is None:
            return
        full_heads, last_heads = self._live_heads(layer)
        first = self.model.graph.head_source(layer)
        if everywhere is not None:
            self._deposit_everywhere([first + head for head in full_heads], everywhere, weight[full_heads])
        slots = self.runner._slots_read
        for heads, z in ((full_heads, everywhere), (last_heads, last)):
            rows = [first + head for head in heads]
            if z is None or not (self.total_last is not None or any(row in slots for row in rows)):
                continue
            z = z[:, :, 0] if z.shape[2] == 1 and heads is last_heads else z[:, self.index, self.read]
            outputs = torch.bmm(z, weight[heads])
            for row, output in zip(rows, outputs, strict=True):
                if row in slots:
                    self.last[slots[row]] = output
            if self.total_last is not None:
                self.total_last += outputs.sum(0)

    def _deposit_everywhere(self, rows: list[int], z: Tensor, weight: Tensor) -> None:
        slots = self.runner._slots_everywhere
        single = [index for index, row in enumerate(rows) if row in slots]
        if single:
            target = self.everywhere[slots[rows[single[0]]] : slots[rows[single[-1]]] + 1]
            torch.bmm(
                z[single].flatten(1, 2), weight[single], out=target.view(len(single), -1, target.shape[-1])
            )
        if self.total is None:
            return
        if single:
            self.total += self.everywhere[slots[rows[single[0]]] : slots[rows[single[-1]]] + 1].sum(0)
        rest = [index for index in range(len(rows)) if index not in single]
        if rest:
            merged = z[rest].permute(1, 2, 0, 3).flatten(2)
            self.total += merged @ weight[rest].flatten(0, 1)


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
