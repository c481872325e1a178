"""Runs in which the output of one head at a time is replaced: as many as heads, at the price of half as many.

A head of block l writes after everything below it, so a run begins where the head writes, with the stream of
a finished run (the base) plus the change; blocks above are the model's own. On average that is half a pass.
Where only the last position changes and nothing earlier can see it, a causal model needs that one token: keys
and values of the others come from the base run.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from assay.core.errors import ShapeError
from assay.discovery.heads.replacing import outside, replaced_outputs
from assay.execution.batches import TOKENS_PER_PASS
from assay.execution.replacements import Replacement
from assay.models import Block, Model, Trace
from assay.models.attention import PlacedAttention
from assay.tasks import Batch


# Logits of some runs `[rows, d_vocab]` and which prompts they belong to `[rows]` -> one number per run.
Reading = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def base_run(model: Model, tokens: Int[Tensor, "n pos"]) -> Trace:
    """A plain pass with everything that runs of single heads start from."""
    with model.tracing(streams=True) as trace:
        model.forward(tokens)
    return trace


def bytes_of_base(model: Model, length: int) -> int:
    """Memory of one prompt's base run and of a run that begins from it."""
    return 60 * model.n_layers * model.d_model * length * 4


@torch.no_grad()
def one_head_replaced(
    model: Model,
    base: Trace,
    values: Sequence[Float[Tensor, "rows pos width"]],
    read: Int[Tensor, " n"],
    reading: Reading,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
) -> Float64[Tensor, "n heads"]:
    """What is read off the run in which one head's output is replaced at all positions, for each head.

    Args:
        model: The model.
        base: The run to start from (`base_run`), n prompts.
        values: Per block, the replacement for the outputs of its heads before the output projection,
            `[n or 1, pos, n_heads d_head]`.
        read: Position whose logits are read, per prompt.
        reading: From logits to one number per run.
        heads: (block, head) pairs; default: all, block by block.

    Returns:
        `[n, heads]` float64 on the CPU, in the order of `heads`.
    """
    heads = outside((), model) if heads is None else heads
    n, length = base.input.shape[:2]
    result = torch.empty(n, len(heads), dtype=torch.float64)
    at_once = max(1, TOKENS_PER_PASS // (n * length))
    for layer, places in _by_layer(heads):
        block = model.blocks[layer]
        now = _heads_of(model, base.head_z[layer], layer)
        change = _heads_of(model, values[layer], layer) - now
        for some in _portions(places, at_once):
            index = [heads[place][1] for place in some]
            delta = _written(model, block, now, change, index)
            stream = _after_block(model, base, layer, delta.flatten(0, 1), len(some))
            if layer + 1 < model.n_layers:
                calls = [_repeated_call(call, (n, n * block.n_heads), len(some)) for call in base.calls]
                hidden = model.resume(stream, Trace(calls=calls), layer=layer + 1)
            else:
                hidden = model.final_norm(stream)
            prompts = torch.arange(n, device=read.device).repeat(len(some))
            logits = model.read(hidden, read[prompts])
            result[:, some] = reading(logits, prompts).double().cpu().view(len(some), n).T
    return result


@torch.no_grad()
def one_head_replaced_at_read(
    model: Model,
    base: Trace,
    values: Sequence[Float[Tensor, "n width"]],
    read: Int[Tensor, " n"],
    reading: Reading,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
) -> Float64[Tensor, "n heads"]:
    """As `one_head_replaced`, the head being replaced at the read position only.

    In a causal model no earlier position sees the change, so one token per run is computed; other models are
    refused.

    Args:
        model: The model.
        base: The run to start from, n prompts.
        values: Per block, the replacement at the read position, `[n, n_heads d_head]`.
        read: Position that is changed and read, per prompt.
        reading: From logits to one number per run.
        heads: (block, head) pairs; default: all, block by block.

    Raises:
        UnsupportedModelError: For an image classifier.
    """
    model.check_text("replacing a head at the read position only")
    heads = outside((), model) if heads is None else heads
    n = len(read)
    index = torch.arange(n, device=read.device)
    result = torch.empty(n, len(heads), dtype=torch.float64)
    at_once = max(1, TOKENS_PER_PASS // n)
    past = _Past(model, base, read)
    for layer, places in _by_layer(heads):
        block = model.blocks[layer]
        now = _heads_of(model, base.head_z[layer], layer)[index, read]
        change = values[layer].to(now.dtype).unflatten(-1, (block.n_heads, block.d_head)) - now
        for some in _portions(places, at_once):
            chosen = [heads[place][1] for place in some]
            delta = _written(model, block, now, change, chosen)
            rows = index.repeat(len(some))
            stream = _after_block_at(model, base, layer, delta.flatten(0, 1), rows, read)
            for above in range(layer + 1, model.n_layers):
                stream = past.step(above, stream, rows)
            logits = model.finish(stream)
            result[:, some] = reading(logits, rows).double().cpu().view(len(some), n).T
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class OneByOne:
    """Runs of some prompts in which one head after the other is replaced.

    Attributes:
        model: The model.
        batch: The prompts.
        reading: From logits of some runs to one number each.
        heads: (block, head) pairs.
    """

    model: Model
    batch: Batch
    reading: Reading
    heads: Sequence[tuple[int, int]]

    def everywhere(
        self, base: Trace, values: Sequence[Float[Tensor, "rows pos width"]]
    ) -> Float64[Tensor, "n heads"]:
        """With outputs of one head replaced at all positions of a finished run."""
        return one_head_replaced(
            self.model, base, values, self.batch.positions, self.reading, heads=self.heads
        )

    def at_read(
        self, base: Trace, values: Sequence[Float[Tensor, "n pos width"]]
    ) -> Float64[Tensor, "n heads"]:
        """The same at the read position only."""
        read = self.batch.positions
        rows = torch.arange(len(read), device=read.device)
        last = [z[rows, read] for z in values]
        return one_head_replaced_at_read(self.model, base, last, read, self.reading, heads=self.heads)

    def dropped(self, base: Trace, replacement: Replacement) -> Float64[Tensor, "n heads"]:
        """With one head after the other ablated."""
        return self.everywhere(base, replaced_outputs(self.model, base, replacement, self.batch))


def _by_layer(heads: Sequence[tuple[int, int]]) -> Iterator[tuple[int, list[int]]]:
    """Each block with the places of its heads in the list."""
    for layer in sorted({layer for layer, _ in heads}):
        yield layer, [place for place, (other, _) in enumerate(heads) if other == layer]


def _portions(places: list[int], size: int) -> Iterator[list[int]]:
    return (places[start : start + size] for start in range(0, len(places), size))


def _heads_of(model: Model, z: Tensor, layer: int) -> Tensor:
    block = model.blocks[layer]
    if z.shape[-1] != block.n_heads * block.d_head:
        raise ShapeError(
            f"replacement of block {layer} has width {z.shape[-1]}; expected {block.n_heads} heads of "
            f"{block.d_head}"
        )
    by_head: Tensor = z.to(model.result_dtype).unflatten(-1, (block.n_heads, block.d_head))
    return by_head


def _written(
    model: Model, block: Block, now: Tensor, change: Tensor, heads: Sequence[int]
) -> Float[Tensor, "heads n *pos d_model"]:
    """What the attention of a block adds more where the output of one head changes, for each of some heads.

    A norm behind the heads acts on what they write together, as in the model.
    """
    if block.branch_norm is None and block.target_norm is None:
        weight = block.out_weight().to(model.result_dtype)[list(heads)]
        # [k, n, pos, d_head] @ [k, 1, d_head, d_model]
        return change[..., heads, :].movedim(-2, 0) @ (weight if change.ndim == 3 else weight[:, None])
    changed = now.repeat(len(heads), *[1] * now.ndim)
    for place, head in enumerate(heads):
        changed[place, ..., head, :] += change[..., head, :]
    before, after = (block.write(z.flatten(-2).to(model.dtype)) for z in (now, changed))
    difference: Tensor = (after - before).to(model.result_dtype)
    return difference


def _after_block(model: Model, base: Trace, layer: int, delta: Tensor, copies: int) -> Tensor:
    """Stream behind a block whose attention wrote `delta` more: `[copies n, pos, d_model]`."""
    block = model.blocks[layer]
    assert base.final_in is not None
    behind = base.block_in[layer + 1] if layer + 1 < model.n_layers else base.final_in
    if model.graph.parallel:
        return (behind.repeat(copies, 1, 1) + delta).to(model.dtype)
    middle = base.mlp_in[layer].repeat(copies, 1, 1) + delta
    return _through_mlp(model, block, middle)


def _after_block_at(
    model: Model, base: Trace, layer: int, delta: Tensor, rows: Tensor, read: Tensor
) -> Tensor:
    """The same at the read position alone: `[rows, d_model]`."""
    assert base.final_in is not None
    at = (rows, read[rows])
    if model.graph.parallel:
        behind = base.block_in[layer + 1] if layer + 1 < model.n_layers else base.final_in
        return (behind[at] + delta).to(model.dtype)
    return _through_mlp(model, model.blocks[layer], base.mlp_in[layer][at] + delta)


def _through_mlp(model: Model, block: Block, middle: Tensor) -> Tensor:
    middle = middle.to(model.dtype)
    stream: Tensor = middle + block.run_mlp(middle)
    return stream


def _repeated_call(
    call: tuple[tuple[Any, ...], dict[str, Any]], batches: Collection[int], copies: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a block for several copies of the batch.

    What has a row per prompt, or per prompt and head as BLOOM's slopes do, is repeated.
    """
    args, kwargs = call
    return (
        tuple(_repeated(value, batches, copies) for value in args),
        {name: _repeated(value, batches, copies) for name, value in kwargs.items()},
    )


def _repeated(value: Any, batches: Collection[int], copies: int) -> Any:
    if isinstance(value, Tensor) and value.ndim > 1 and value.shape[0] > 1 and value.shape[0] in batches:
        return value.repeat(copies, *[1] * (value.ndim - 1))
    if isinstance(value, tuple):
        return tuple(_repeated(item, batches, copies) for item in value)
    return value


class _Past:
    """Keys and values of a base run, for runs that differ from it at the read position only."""

    def __init__(self, model: Model, base: Trace, read: Int[Tensor, " n"]) -> None:
        self.model, self.base, self.read = model, base, read
        self.attention = self._at(torch.arange(len(read), device=read.device))
        self._cached: dict[int, tuple[Tensor, Tensor]] = {}

    def _at(self, rows: Int[Tensor, " rows"]) -> PlacedAttention:
        """The attention of some rows, each of the prompt that `rows` says."""
        tables = {
            kind: (cos.expand(len(self.read), -1, -1)[rows], sin.expand(len(self.read), -1, -1)[rows])
            for kind, (cos, sin) in self.model.tables(self.base.calls).items()
        }
        length, read = self.base.input.shape[1], self.read[rows]
        return PlacedAttention(self.model.rules, tables, length=length, causal=self.model.causal, read=read)

    def _keys_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """Both `[n, n_kv_heads, pos, d_head]`, keys normed and rotated."""
        if layer not in self._cached:
            block = self.model.blocks[layer]
            channels = block.channels(self.base.qkv[layer]).to(self.model.result_dtype)
            keys, values = channels[:, :, block.n_heads :].transpose(1, 2).chunk(2, 1)
            keys = self.attention.keys(layer, keys, range(block.n_kv_heads))
            self._cached[layer] = keys, values
        return self._cached[layer]

    def step(self, layer: int, stream: Float[Tensor, "rows d_model"], rows: Int[Tensor, " rows"]) -> Tensor:
        """One block at the read position; `rows` say which prompt each row belongs to."""
        model, block = self.model, self.model.blocks[layer]
        keys, values = self._keys_values(layer)
        normed = block.attention_norm(stream)
        channels = block.project(normed).to(model.result_dtype)
        query, key, value = channels[:, :, None].split([block.n_heads, block.n_kv_heads, block.n_kv_heads], 1)
        attention, index = self._at(rows), torch.arange(len(rows), device=rows.device)
        query = attention.queries(layer, query, range(block.n_heads), everywhere=False)
        key = attention.keys(layer, key, range(block.n_kv_heads), everywhere=False)
        keys, values = keys[rows], values[rows]
        keys[index, :, self.read[rows]] = key.squeeze(2)
        values[index, :, self.read[rows]] = value.squeeze(2)
        mixed = attention.mix(
            layer,
            query,
            keys,
            values,
            everywhere=False,
            heads=range(block.n_heads),
            kv_of_head=[block.kv_head(head) for head in range(block.n_heads)],
        ).squeeze(2)
        written = block.write(mixed.flatten(1).to(model.dtype))
        if model.graph.parallel:
            parallel: Tensor = stream + written + block.run_mlp(stream)
            return parallel
        return _through_mlp(model, block, stream + written)
