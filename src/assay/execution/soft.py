"""Runs under a real-valued mask, differentiable in the mask.

With weights w in [0, 1] in place of kept and cut, every target v reads

    x_v = beta_v + sum over sources u of ( w[u, v] a_u + (1 - w[u, v]) b_u )
        = s_v + sum over u of w[u, v] (a_u - b_u),

a_u the output in this run, b_u the ablated value, s_v the stream at v when every edge is cut. So a block
stacks the differences of all sources before it, one matrix product mixes them for all its targets, and
autograd does the rest. A mask of zeros and ones gives the ablated run of that circuit; a mask may also
differ from position to position. (uit de Bos and Garriga-Alonso 2024, equation 1; Cao et al. 2021,
arXiv:2104.03514, for the relaxation.)
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import ShapeError
from assay.execution.ablation import Baseline, Prepared
from assay.models import Block, Model
from assay.models.attention import PlacedAttention, Tables
from assay.tasks import Batch


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


class _Stacked(torch.autograd.Function):
    """`torch.cat` of what a stack holds and what comes on top, without a copy of what it holds.

    The rows behind those held are written in place. Nothing has read them, so what was kept of the rows
    before them for a backward pass still stands.
    """

    @staticmethod
    def forward(ctx: Any, held: Tensor, stack: Tensor, added: Tensor) -> Tensor:
        ctx.n = len(held)
        stack[ctx.n : ctx.n + len(added)] = added
        return stack.data[: ctx.n + len(added)]  # `.data`: saved rows are not told of later writes

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor]:
        return gradients[0][: ctx.n], None, gradients[0][ctx.n :]


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
        # Mixed streams and their normalised copies, the stack of differences with two of gradients, the rest.
        rows = 3 * (graph.n_targets + graph.n_sources) + 40
        return self.dtype.itemsize * (rows * length * self.model.d_model + 6 * self.model.n_vocab)

    def bytes_prepared(self, length: int) -> int:
        """Rough memory of one pair of `prepare_batch`, rather too much."""
        numbers = 12 * self.model.n_layers * length * self.model.d_model + self.model.n_vocab
        return self.dtype.itemsize * numbers

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
        self, pairs: SoftPairs, mask: Float[Tensor, "*batch n_sources n_targets"]
    ) -> Float[Tensor, "batch d_vocab"]:
        """Logits at the read position; differentiable in `mask`.

        Args:
            pairs: From `prepare_batch`.
            mask: Weight of every edge: one mask for all examples `[S, R]`, one per example `[batch, S, R]`,
                or one per position `[batch or 1, pos, S, R]`; a weight at a position applies to what the
                target reads there. Entries without an edge are not read. Values outside [0, 1] extrapolate.

        Raises:
            ShapeError: If the mask fits neither the graph nor the pairs.
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
        with self.model.frozen():
            return _Walk(self, pairs, mask.to(self.dtype)).finish()


def _projection(block: Block, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """q/k/v weights `[n_channels, d_model, d_head]` and biases `[n_channels, 1, d_head]`."""
    bias = block.qkv_bias()
    weight = block.qkv_weight().permute(1, 0, 2).to(dtype).contiguous()
    return weight, None if bias is None else bias.to(dtype)[:, None]


class _Walk:
    """One batch of pairs on its way through the blocks."""

    def __init__(self, runner: SoftRunner, pairs: SoftPairs, mask: Tensor) -> None:
        self.runner, self.pairs, self.mask = runner, pairs, mask
        self.model, self.graph, self.baseline = runner.model, runner.model.graph, pairs.baseline
        self.index = torch.arange(len(pairs), device=pairs.read.device)
        self.length = pairs.embedded.shape[1]
        self.positions = PlacedAttention(
            self.model.rules, pairs.tables, length=self.length, causal=self.model.causal, read=pairs.read
        )
        # Differences of the sources so far, [sources, batch, pos, d_model], and room for all of them.
        self.stack = pairs.embedded.new_empty(self.graph.n_sources, *pairs.embedded.shape)
        self.differences = self.stack[:0]
        self.at_read: Tensor | None = None  # where nothing else counts any more
        self.append(pairs.embedded[None])

    def finish(self) -> Tensor:
        pools = self.model.pools
        for layer in range(self.model.n_layers):
            if layer == self.model.n_layers - 1 and not pools:
                # Behind the last block only the read position counts, unless the logits read more of them.
                self.at_read = self._read(self.differences)
            heads = self.heads(layer)
            if not self.graph.parallel:
                self.append(heads)
            mlp = self.mlp(layer) if self.graph.mlps else None
            if self.graph.parallel:
                self.append(heads)
            if mlp is not None:
                self.append(mlp)
        stream = self.mix(self.latest, slice(-1, None), self.baseline.final_in())[0]
        logits = self.model.finish(stream if pools else stream[:, 0], self.pairs.read)
        return logits.to(self.runner.dtype)

    @property
    def latest(self) -> Tensor:
        """The differences where they are still read: at all positions, or the read position alone."""
        return self.differences if self.at_read is None else self.at_read

    def append(self, difference: Tensor) -> None:
        if self.at_read is not None:
            self.at_read = torch.cat([self.at_read, difference])
            return
        stacked: Any = _Stacked.apply  # PyTorch does not annotate it
        self.differences = stacked(self.differences, self.stack, difference)

    def _read(self, value: Tensor) -> Tensor:
        """The read position of `[rows, batch or 1, pos, width]`, kept as an axis of one."""
        value = value.expand(-1, len(self.pairs), -1, -1)
        return value[:, self.index, self.pairs.read][:, :, None]

    def like(self, value: Tensor, differences: Tensor) -> Tensor:
        """An ablated value `[batch or 1, pos, width]` at the positions that some differences have."""
        value = value.to(self.runner.dtype)
        return self._read(value[None])[0] if differences is self.at_read else value

    def mix(self, differences: Tensor, columns: slice, ablated: Tensor) -> Tensor:
        """Input of some targets, `[targets, batch, pos, d_model]`: one product over all sources given."""
        weight = self.mask[..., : len(differences), columns].transpose(-2, -1)
        if self.mask.ndim == 4 and differences.shape[2] < weight.shape[1]:  # the read position alone
            weight = weight.expand(len(self.pairs), -1, -1, -1)[self.index, self.pairs.read][:, None]
        mixed = self.like(ablated, differences) + self._product(weight, differences)
        for layer, block in enumerate(self.model.blocks):
            first = self.graph.head_source(layer)
            rows = slice(first, first + block.n_heads)
            if block.target_norm is not None and rows.stop <= len(differences):
                moved = self._product(weight[..., rows], differences[rows])
                cut = self.like(self._written(layer), differences)
                mixed = mixed - moved + block.target_norm(cut + moved) - block.target_norm(cut)
        return mixed

    def _product(self, weight: Tensor, differences: Tensor) -> Tensor:
        """Sum of the differences of some sources, weighted for each target."""
        if weight.ndim == 4:
            return (weight @ differences.permute(1, 2, 0, 3)).permute(2, 0, 1, 3)
        if weight.ndim == 2:
            return (weight @ differences.flatten(1)).view(-1, *differences.shape[1:])
        mixed = torch.bmm(weight, differences.transpose(0, 1).flatten(2))
        by_pair: Tensor = mixed.unflatten(2, differences.shape[2:])
        return by_pair.transpose(0, 1)

    def _written(self, layer: int) -> Tensor:
        """What the ablated heads of a block write together."""
        written = self.baseline.z[layer].to(self.runner.dtype) @ self.runner._out(layer).flatten(0, 1)
        bias = self.model.blocks[layer].out_bias()
        return written if bias is None else written + bias

    def project(self, layer: int, differences: Tensor, channels: slice) -> Tensor:
        """Some q/k/v channels of their own streams: `[batch, channels, pos, d_head]`."""
        first, block = self.graph.channel_target(layer, "q"), self.model.blocks[layer]
        columns = slice(first + channels.start, first + channels.stop)
        streams = self.mix(differences, columns, self.baseline.attention_in(layer))
        weight, bias = self.runner._qkv(layer)
        weight = weight[channels]
        normed = block.attention_norm(streams.to(self.model.dtype)).to(weight.dtype).flatten(1, -2)
        output = torch.bmm(normed, weight) if bias is None else torch.baddbmm(bias[channels], normed, weight)
        by_example: Tensor = output.unflatten(1, streams.shape[1:-1]).transpose(0, 1)
        return by_example

    def heads(self, layer: int) -> Tensor:
        """Outputs of the heads of a block minus the ablated ones, `[heads, batch, pos or 1, d_model]`."""
        block, dtype, everywhere = self.model.blocks[layer], self.runner.dtype, self.at_read is None
        n, heads = block.n_heads, range(block.n_heads)
        if self.at_read is None:
            both = self.project(layer, self.differences, slice(0, block.n_channels))
            queries, keyed = both.tensor_split([n], 1)
        else:
            queries = self.project(layer, self.at_read, slice(0, n))
            keyed = self.project(layer, self.differences, slice(n, block.n_channels))
        keys, values = keyed.chunk(2, 1)
        z = self.positions.mix(
            layer,
            self.positions.queries(layer, queries, heads, everywhere=everywhere),
            self.positions.keys(layer, keys, range(block.n_kv_heads)),
            values,
            everywhere=everywhere,
            heads=heads,
            kv_of_head=[block.kv_head(head) for head in heads],
        )
        ablated = self.like(self.baseline.z[layer], self.latest).unflatten(-1, (n, block.d_head))
        difference = block.rescaled(z.to(dtype)).transpose(0, 1) - ablated.permute(2, 0, 1, 3)
        outputs = torch.bmm(difference.flatten(1, 2), self.runner._out(layer))
        result: Tensor = outputs.unflatten(1, difference.shape[1:3])
        return result

    def mlp(self, layer: int) -> Tensor:
        """Output of a block's MLP minus the ablated one, `[1, batch, pos or 1, d_model]`."""
        stream = self.mix(self.latest, self.graph.mlp_targets(layer), self.baseline.mlp_in(layer))
        output = self.model.blocks[layer].run_mlp(stream[0].to(self.model.dtype)).to(self.runner.dtype)
        return (output - self.like(self.baseline.mlp[layer], self.latest))[None]
