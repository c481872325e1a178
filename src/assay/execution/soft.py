"""Runs under a real-valued mask, differentiable in the mask.

With weights w in [0, 1] in place of kept and cut, every target v reads

    x_v = beta_v + sum over sources u of ( w[u, v] a_u + (1 - w[u, v]) b_u )
        = s_v + sum over u of w[u, v] (a_u - b_u),

a_u the output in this run, b_u the ablated value, s_v the stream at v when every edge is cut. The
differences of all sources lie in one stack, which a matrix product mixes for the targets of several blocks.
A mask of zeros and ones gives the ablated run of that circuit; a mask may also differ from position to
position. (uit de Bos and Garriga-Alonso 2024, equation 1; Cao et al. 2021, arXiv:2104.03514, for the
relaxation.)
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.core.errors import ShapeError
from assay.execution.ablation import Baseline, Prepared
from assay.models import Block, Model
from assay.models.attention import PlacedAttention, Tables
from assay.tasks import Batch


# Targets of the blocks that share a product: fewer leave a processor's multipliers idle.
TOGETHER = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftPairs:
    """Some examples, ready to be run under any mask. Made by `SoftRunner.prepare_batch`.

    Attributes:
        embedded: Clean minus ablated output of `input`, `[batch, pos, d_model]`.
        baseline: Ablated values of every source, and the streams they add up to.
        tables: Rotary tables by kind.
        read: Read position of each example.
        model_logits: The model on the clean inputs, at the read position.
    """

    embedded: Float[Tensor, "batch pos d_model"]
    baseline: Baseline
    tables: dict[Hashable, Tables]
    read: Int[Tensor, " batch"]
    model_logits: Float[Tensor, "batch d_vocab"]

    def __len__(self) -> int:
        return len(self.read)

    def take(self, rows: Int[Tensor, " k"]) -> "SoftPairs":
        """The examples in these rows, in this order; repeats are allowed."""
        return replace(
            self,
            embedded=self.embedded[rows],
            baseline=self.baseline.take(rows),
            # Rotary tables that all rows share serve as they are.
            tables={
                kind: (cos, sin) if len(cos) == 1 else (cos[rows], sin[rows])
                for kind, (cos, sin) in self.tables.items()
            },
            read=self.read[rows],
            model_logits=self.model_logits[rows],
        )


class SoftRunner:
    """Runs a model under real-valued masks: language models and image classifiers, any ablation.

    Args:
        model: The model; its parameters get no gradient.

    Example:
        >>> from assay.execution import ABLATIONS
        >>> from assay.models import load_model
        >>> from assay.tasks import load_task
        >>> model = load_model("mini")
        >>> task, runner = load_task("ioi", model, n=2), SoftRunner(model)
        >>> means = ABLATIONS["mean"].prepare(model, task, batch_size=2, seed=0)
        >>> pairs = runner.prepare_batch(next(task.batches(2)), means)
        >>> mask = runner.model.graph.valid.float().requires_grad_()
        >>> runner.logits(pairs, mask).logsumexp(1).sum().backward()
        >>> tuple(mask.grad.shape) == tuple(mask.shape)
        True
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.dtype = model.result_dtype
        blocks, dtype = model.blocks, model.result_dtype
        self._qkv = cache(lambda layer: _projection(blocks[layer], dtype))
        self._out = cache(lambda layer: blocks[layer].out_weight().to(dtype).contiguous())

    def bytes_per_pair(self, length: int) -> int:
        """Rough memory of one pair when gradients are wanted."""
        graph = self.model.graph
        # Streams and normalised copies, differences with their gradient and what they were made of, the rest.
        rows = 3 * (graph.n_targets + graph.n_sources) + 40
        return self.dtype.itemsize * (rows * length * self.model.d_model + 6 * self.model.n_vocab)

    def bytes_prepared(self, length: int) -> int:
        """Rough memory of one pair of `prepare_batch`, an overestimate."""
        model = self.model
        of_heads = sum((block.n_heads + block.n_channels) * block.d_head for block in model.blocks)
        at_position = of_heads + 3 * (model.n_layers + 1) * model.d_model
        return self.dtype.itemsize * (at_position * length + model.n_vocab)

    @torch.no_grad()
    def prepare_batch(self, batch: Batch, prepared: Prepared) -> SoftPairs:
        """Run the model on some examples of a task, prompts or images, under any ablation.

        Args:
            batch: The examples, on the model's device.
            prepared: From `Ablation.prepare` on the same task.
        """
        model, baseline = self.model, prepared.baseline(batch)
        with model.tracing() as trace:
            hidden = model.forward(batch.clean)
        return SoftPairs(
            embedded=trace.input.to(self.dtype) - baseline.input.to(self.dtype),
            baseline=baseline,
            tables=model.tables(trace.calls),
            read=batch.positions,
            model_logits=model.read(hidden, batch.positions).to(self.dtype),
        )

    def logits(
        self,
        pairs: SoftPairs,
        mask: Float[Tensor, "*batch n_sources n_targets"],
        *,
        cells: Float[Tensor, "*each n_sources d_model"] | None = None,
    ) -> Float[Tensor, "batch d_vocab"]:
        """Logits at the read position; differentiable in `mask` and `cells`.

        Args:
            pairs: From `prepare_batch`.
            mask: Weight of every edge: one mask for all examples `[S, R]`, one per example `[batch, S, R]`,
                or one per position `[batch or 1, pos, S, R]`; a weight at a position applies to what the
                target reads there. Entries without an edge are not read. Values outside [0, 1] extrapolate.
            cells: Weight of every dimension of every source's output, `[S, d_model]` or one per example
                `[batch, S, d_model]`: it multiplies a_u - b_u before any target reads it. Default: all 1.

        Raises:
            ShapeError: If the mask or the cells fit neither the graph nor the pairs.
        """
        graph = self.model.graph
        shape = (graph.n_sources, graph.n_targets)
        rows, length = pairs.embedded.shape[:2]
        shapes = [shape, (rows, *shape), (rows, length, *shape), (1, length, *shape)]
        if tuple(mask.shape) not in shapes:
            raise ShapeError(
                f"mask has shape {tuple(mask.shape)}; expected {shape}, {(rows, *shape)} for one mask per "
                f"pair, or {(rows, length, *shape)} (or 1 row) for one per position"
            )
        if cells is not None:
            width = (graph.n_sources, self.model.d_model)
            if tuple(cells.shape) not in [width, (rows, *width)]:
                raise ShapeError(
                    f"cells have shape {tuple(cells.shape)}; expected {width}, or {(rows, *width)} for one "
                    "set per pair"
                )
            # As the differences lie: [sources, batch or 1, 1, d_model].
            cells = cells.to(self.dtype).reshape(-1, *width).transpose(0, 1)[:, :, None]
        # With the axes of examples and positions, one long where they are shared.
        weights = mask.to(self.dtype).reshape(*mask.shape[:-2], *(1,) * (4 - mask.ndim), *shape)
        with self.model.frozen():
            stream = _Walk(self, pairs).run(weights, cells)
            logits = self.model.finish(stream if self.model.pools else stream[:, 0], pairs.read)
        return logits.to(self.dtype)


def _projection(block: Block, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """q/k/v weights `[n_channels, d_model, d_head]` and biases `[n_channels, 1, d_head]`."""
    bias = block.qkv_bias()
    weight = block.qkv_weight().permute(1, 0, 2).to(dtype).contiguous()
    return weight, None if bias is None else bias.to(dtype)[:, None]


class _Stack:
    """Differences of all sources at some positions, and the gradients of a walk in them and in the mask.

    Args:
        mask: `[batch or 1, pos or 1, S, R]`.
        values: Room for the differences, `[S, batch, pos, d_model]`.
    """

    def __init__(self, mask: Tensor, values: Tensor) -> None:
        self.mask, self.values, self.by_position = mask, values, mask.shape[1] > 1
        # Examples, or single positions of them, that have weights of their own.
        self.groups = values.shape[1] * values.shape[2] if self.by_position else len(mask)
        self.gradient = self.mask_gradient = values[:0]  # until the way back

    def grouped(self, x: Tensor) -> Tensor:
        """`[n, batch, pos, d_model]` as `[groups, n, numbers in a group]`; a view."""
        return x.view(len(x), self.groups, -1).transpose(0, 1)

    def weights(self, rows: slice, columns: slice) -> Tensor:
        """`[groups, rows, columns]`."""
        weights = self.mask[..., rows, columns]
        if self.by_position:
            weights = weights.expand(self.values.shape[1], -1, -1, -1)
        return weights.flatten(0, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Streams:
    """What some targets read, in the making.

    Attributes:
        stack: The differences that they read of.
        columns: The targets.
        values: The ablated stream and what has been added to it, `[targets, batch, pos, d_model]`; on the way
            back its gradient.
    """

    stack: _Stack
    columns: slice
    values: Tensor

    def part(self, columns: slice) -> "_Streams":
        """Some of the targets."""
        first = self.columns.start
        values = self.values[columns.start - first : columns.stop - first]
        return _Streams(stack=self.stack, columns=columns, values=values)

    def add(self, into: Tensor, rows: slice) -> None:
        """Add the differences of some sources, weighted for each target: one product."""
        grouped, weights = self.stack.grouped, self.stack.weights(rows, self.columns)
        grouped(into).baddbmm_(weights.transpose(1, 2), grouped(self.stack.values[rows]))

    def back(self, into: Tensor, rows: slice) -> None:
        """The way back through `add`, where the gradient has taken the place of what was added to."""
        stack, grouped = self.stack, self.stack.grouped
        grouped(stack.gradient[rows]).baddbmm_(stack.weights(rows, self.columns), grouped(into))
        if len(stack.mask_gradient):
            slopes = torch.bmm(grouped(stack.values[rows]), grouped(into).transpose(1, 2))
            total = stack.mask_gradient[..., rows, self.columns]
            slopes = slopes.unflatten(0, (-1, total.shape[1]))
            total += slopes if len(total) == len(slopes) else slopes.sum(0, keepdim=True)


class _Walked(torch.autograd.Function):
    """A walk as one step for autograd, which itself copies the stack's gradient for every product with it."""

    @staticmethod
    def forward(ctx: Any, walk: "_Walk", mask: Tensor, at_read: Tensor, cells: Tensor | None) -> Tensor:
        ctx.walk = walk
        with torch.enable_grad():
            return walk.forward(mask.detach(), at_read.detach(), None if cells is None else cells.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        walk, ctx.walk = ctx.walk, None
        if walk is None:
            raise RuntimeError("the gradient of a run under a mask can be taken once; run it again")
        found = walk.backward(gradient, mask=ctx.needs_input_grad[1])
        return None, *(
            each if wanted else None for each, wanted in zip(found, ctx.needs_input_grad[1:], strict=True)
        )


class _Walk:
    """One batch of pairs on its way through the blocks and, where gradients are wanted, back.

    Autograd differentiates what each block makes of its streams. These steps and the products between blocks
    are kept on a tape, so that gradients are added up in place.
    """

    def __init__(self, runner: SoftRunner, pairs: SoftPairs) -> None:
        self.runner, self.pairs, self.graded = runner, pairs, False
        self.model, self.graph, self.baseline = runner.model, runner.model.graph, pairs.baseline
        self.reads = torch.arange(len(pairs), device=pairs.read.device), pairs.read
        length, causal = pairs.embedded.shape[1], self.model.causal
        self.positions = PlacedAttention(
            self.model.rules, pairs.tables, length=length, causal=causal, read=pairs.read
        )
        self.tape: list[Callable[[], None]] = []

    def run(self, mask: Tensor, cells: Tensor | None) -> Tensor:
        """The stream that the logits read, `[batch, pos or 1, d_model]`."""
        at_read = mask
        if mask.shape[1] > 1:
            at_read = mask.expand(len(self.pairs), -1, -1, -1)[self.reads][:, None]
        weighed = cells is not None and cells.requires_grad
        self.cells_gradient = torch.zeros_like(cells) if cells is not None and weighed else None
        self.graded = torch.is_grad_enabled() and (mask.requires_grad or weighed)
        walked: Any = _Walked.apply  # PyTorch does not annotate it
        stream: Tensor = walked(self, mask, at_read, cells)
        return stream

    def forward(self, mask: Tensor, at_read: Tensor, cells: Tensor | None) -> Tensor:
        graph, embedded, pools = self.graph, self.pairs.embedded, self.model.pools
        self.cells = cells
        self.everywhere = self.here = _Stack(mask, embedded.new_empty(graph.n_sources, *embedded.shape))
        self.write(slice(0, 1), embedded[None], [])
        whole = self.model.n_layers - (not pools)
        together = max(1, TOGETHER * graph.n_layers // graph.n_targets)
        for first in range(0, whole, together):
            self.some_blocks(range(first, min(first + together, whole)))
        if not pools:
            self.last_block(at_read)
        columns = slice(graph.n_targets - 1, graph.n_targets)
        streams = self.streams(self.here, (columns, self.baseline.final_in()))
        self.add(streams, slice(0, graph.n_sources))
        self.stream, self.leaves = self.read(streams, graph.n_sources)
        return self.stream.detach()[0]

    def backward(self, gradient: Tensor, *, mask: bool) -> tuple[Tensor | None, ...]:
        """Gradients in the mask, in that at the read position, and in the cells."""
        for stack in {self.everywhere, self.here}:
            stack.gradient = torch.zeros_like(stack.values)
            if mask:
                stack.mask_gradient = torch.zeros_like(stack.mask)
        _overwrite(self.leaves, self.stream, gradient[None])
        while self.tape:
            self.tape.pop()()
        at_read = None if self.here is self.everywhere else self.here.mask_gradient
        return self.everywhere.mask_gradient, at_read, self.cells_gradient

    def some_blocks(self, layers: range) -> None:
        """Blocks that read and write at all positions."""
        graph, ablated = self.graph, []
        for layer in layers:
            ablated.append((self._attention_columns(layer), self.baseline.attention_in(layer)))
            ablated.append((graph.mlp_targets(layer), self.baseline.mlp_in(layer)))
        streams = self.streams(self.everywhere, *ablated)
        before = graph.sources_before_block(layers[0])
        self.add(streams, slice(0, before))  # for all blocks at once, see `TOGETHER`
        for layer in layers:
            attention, mlp = self._attention_columns(layer), graph.mlp_targets(layer)
            both = streams.part(slice(attention.start, mlp.stop))
            self.add(both, slice(before, graph.sources_before_block(layer)))
            self.block(layer, [both.part(attention)], both.part(mlp))

    def last_block(self, mask: Tensor) -> None:
        """The last block; behind it only the read position counts, unless the logits read more of them."""
        graph, layer, stack = self.graph, self.model.n_layers - 1, self.everywhere
        rows, attention = slice(0, graph.sources_before_block(layer)), self._attention_columns(layer)
        room = stack.values.new_empty(*stack.values.shape[:2], 1, self.model.d_model)
        room[rows] = self._read(stack.values[rows])
        self.here = _Stack(mask, room)
        if self.graded:
            self.tape.append(partial(_widen, self.here, stack, rows, self.reads))
        keys, stream = graph.channel_target(layer, "k"), self.baseline.attention_in(layer)
        queries = self.streams(self.here, (slice(attention.start, keys), stream))
        keyed = self.streams(stack, (slice(keys, attention.stop), stream))
        mlp = self.streams(self.here, (graph.mlp_targets(layer), self.baseline.mlp_in(layer)))
        for streams in (queries, keyed, mlp):
            self.add(streams, rows)
        self.block(layer, [queries, keyed], mlp)

    def _attention_columns(self, layer: int) -> slice:
        return slice(self.graph.channel_target(layer, "q"), self.graph.mlp_target(layer))

    def block(self, layer: int, attention: list[_Streams], mlp: _Streams) -> None:
        """The heads and the MLP of a block, from what they read of the sources before it."""
        graph = self.graph
        heads = slice(graph.head_source(layer), graph.mlp_source(layer))
        read = [self.read(each, heads.start) for each in attention]
        output = self.heads(layer, *(value for value, _ in read))
        self.write(heads, output, [leaf for _, leaves in read for leaf in leaves])
        if graph.mlps:
            if not graph.parallel:
                self.add(mlp, heads)
            stream, leaves = self.read(mlp, graph.sources_before_mlp(layer))
            self.write(graph.mlp_sources(layer), self.mlp(layer, stream), leaves)

    def streams(self, stack: _Stack, *ablated: tuple[slice, Tensor]) -> _Streams:
        """The ablated streams of some targets in a row."""
        columns = slice(ablated[0][0].start, ablated[-1][0].stop)
        values = stack.values.new_empty(columns.stop - columns.start, *stack.values.shape[1:])
        streams = _Streams(stack=stack, columns=columns, values=values)
        for some, stream in ablated:
            streams.part(some).values.copy_(self.like(stream, stack))
        return streams

    def add(self, streams: _Streams, rows: slice, into: Tensor | None = None) -> None:
        """Add what some sources send to some targets to their streams, or to something else."""
        if rows.start == rows.stop or streams.columns.start == streams.columns.stop:
            return
        into = streams.values if into is None else into
        streams.add(into, rows)
        if self.graded:
            self.tape.append(partial(streams.back, into, rows))

    def read(self, streams: _Streams, n_before: int) -> tuple[Tensor, list[Tensor]]:
        """Streams as their targets read them, and the leaves that this was made of.

        Where there is a norm behind the heads of a block, a target gives it what it reads of them.
        """
        leaves, norms = [streams.values.data.requires_grad_(self.graded)], []
        for layer, block in enumerate(self.model.blocks):
            rows = slice(self.graph.head_source(layer), self.graph.mlp_source(layer))
            if block.target_norm is not None and rows.stop <= n_before:
                moved = torch.zeros_like(streams.values)
                self.add(streams, rows, moved)
                leaves.append(moved.data.requires_grad_(self.graded))
                norms.append((block.target_norm, self.like(self._written(layer), streams.stack)))
        value = leaves[0]
        for moved, (norm, cut) in zip(leaves[1:], norms, strict=True):
            value = value - moved + norm(cut + moved) - norm(cut)
        return value, leaves

    def write(self, rows: slice, output: Tensor, leaves: list[Tensor]) -> None:
        """Put what some sources write, minus the ablated value, into the stack."""
        cells = None if self.cells is None else self.cells[rows]
        self.here.values[rows] = output.detach() if cells is None else output.detach() * cells
        if self.graded:
            slopes = None if self.cells_gradient is None else self.cells_gradient[rows]
            self.tape.append(partial(_unwrite, self.here, rows, output, leaves, cells, slopes))

    def _read(self, value: Tensor) -> Tensor:
        """The read position of `[rows, batch or 1, pos, width]`, kept as an axis of one."""
        return value.expand(-1, len(self.pairs), -1, -1)[:, *self.reads][:, :, None]

    def like(self, value: Tensor, stack: _Stack) -> Tensor:
        """An ablated value `[batch or 1, pos, width]` at the positions of a stack."""
        value = value.to(self.runner.dtype)
        return value if stack is self.everywhere else self._read(value[None])[0]

    def _written(self, layer: int) -> Tensor:
        """What the ablated heads of a block write together."""
        written = self.baseline.z[layer].to(self.runner.dtype) @ self.runner._out(layer).flatten(0, 1)
        bias = self.model.blocks[layer].out_bias()
        return written if bias is None else written + bias

    def project(self, layer: int, streams: Tensor, channels: slice) -> Tensor:
        """Some q/k/v channels of their own streams: `[batch, channels, pos, d_head]`."""
        block = self.model.blocks[layer]
        weight, bias = self.runner._qkv(layer)
        weight = weight[channels]
        normed = block.attention_norm(streams.to(self.model.dtype)).to(weight.dtype).flatten(1, -2)
        output = torch.bmm(normed, weight) if bias is None else torch.baddbmm(bias[channels], normed, weight)
        by_example: Tensor = output.unflatten(1, streams.shape[1:-1]).transpose(0, 1)
        return by_example

    def heads(self, layer: int, streams: Tensor, keyed: Tensor | None = None) -> Tensor:
        """Outputs of the heads of a block minus the ablated ones, `[heads, batch, pos or 1, d_model]`.

        Args:
            layer: The block.
            streams: What all channels read, or the queries at the read position.
            keyed: What keys and values read, where queries are at the read position.
        """
        block, dtype, everywhere = self.model.blocks[layer], self.runner.dtype, keyed is None
        n, heads = block.n_heads, range(block.n_heads)
        if keyed is None:
            queries, rest = self.project(layer, streams, slice(0, block.n_channels)).tensor_split([n], 1)
        else:
            queries = self.project(layer, streams, slice(0, n))
            rest = self.project(layer, keyed, slice(n, block.n_channels))
        keys, values = rest.chunk(2, 1)
        z = self.positions.mix(
            layer,
            self.positions.queries(layer, queries, heads, everywhere=everywhere),
            self.positions.keys(layer, keys, range(block.n_kv_heads)),
            values,
            everywhere=everywhere,
            heads=heads,
            kv_of_head=[block.kv_head(head) for head in heads],
        )
        ablated = self.like(self.baseline.z[layer], self.here).unflatten(-1, (n, block.d_head))
        difference = block.rescaled(z.to(dtype)).transpose(0, 1) - ablated.permute(2, 0, 1, 3)
        outputs = torch.bmm(difference.flatten(1, 2), self.runner._out(layer))
        result: Tensor = outputs.unflatten(1, difference.shape[1:3])
        return result

    def mlp(self, layer: int, stream: Tensor) -> Tensor:
        """Output of a block's MLP minus the ablated one, `[1, batch, pos or 1, d_model]`."""
        output = self.model.blocks[layer].run_mlp(stream[0].to(self.model.dtype)).to(self.runner.dtype)
        return (output - self.like(self.baseline.mlp[layer], self.here))[None]


def _overwrite(leaves: list[Tensor], output: Tensor, gradient: Tensor) -> None:
    """Put the gradient in some leaves in their place."""
    for leaf, found in zip(leaves, torch.autograd.grad(output, leaves, gradient), strict=True):
        leaf.data.copy_(found)


def _unwrite(
    stack: _Stack,
    rows: slice,
    output: Tensor,
    leaves: list[Tensor],
    cells: Tensor | None,
    slopes: Tensor | None,
) -> None:
    """The way back from the stack to what some sources read; adds to the gradient in their cells."""
    gradient = stack.gradient[rows]
    if cells is not None and slopes is not None:
        slopes += (gradient * output.detach()).sum_to_size(slopes.shape)
        gradient = gradient * cells
    if leaves:
        _overwrite(leaves, output, gradient)


def _widen(narrow: _Stack, wide: _Stack, rows: slice, reads: tuple[Tensor, Tensor]) -> None:
    """The way back from the differences at the read position to those at all."""
    wide.gradient[rows][:, *reads] += narrow.gradient[rows][:, :, 0]
