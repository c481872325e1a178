"""Runs with heads replaced before the output projection: any set of them at once, or one after the other.

Embeddings, MLPs, norms and biases act as ever. Some replacements depend on the head's own activations in
that very run, so they are made inside it.

One head at a time, there are as many runs as heads, at the price of half as many: a head of block l writes
after everything below it, so a run begins where the head writes, with the stream of a finished run (the base)
plus the change; blocks above are the model's own. Where only the last position changes and nothing earlier
can see it, a causal model needs that one token: keys and values of the others come from the base run.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from assay.circuits.heads import check_heads
from assay.execution.ablation import Replacement, Site
from assay.execution.batches import TOKENS_PER_PASS, choose_batch_size
from assay.models import Block, Model, Trace
from assay.models.attention import PlacedAttention
from assay.objectives import Objective
from assay.tasks import Batch, Task, map_tensors


Heads = Collection[tuple[int, int]]


def run_with_heads_replaced(
    model: Model, task: Task, heads: Heads, replacement: Replacement, *, batch_size: int | None = None
) -> Float[Tensor, "n d_vocab"]:
    """Logits at the read position with some heads replaced, all of them at once; NaN and infinite ones pass.

    Args:
        model: The model.
        task: The prompts.
        heads: (block, head) pairs to replace.
        replacement: What by (`Ablation.prepare_heads`).
        batch_size: Prompts per pass; default: by free memory.
    """
    size = choose_batch_size(model, task, asked=batch_size)
    results = []
    for batch in task.batches(size):
        batch = batch.to(model.device)
        with torch.no_grad(), heads_replaced(model, heads, replacement, batch):
            logits = model.read(model.forward(batch.clean), batch.positions)
        results.append(logits.to(model.result_dtype).cpu())
    return torch.cat(results)


@contextmanager
def heads_replaced(model: Model, heads: Heads, replacement: Replacement, batch: Batch) -> Iterator[None]:
    """Replace some heads in every pass made inside, from whichever block on.

    Args:
        model: The model.
        heads: (block, head) pairs.
        replacement: What by.
        batch: The prompts that pass; a pass may hold several copies of them, one after the other.
    """
    by_layer: dict[int, list[int]] = {}
    for layer, head in check_heads(heads, model.n_layers, model.n_heads):
        by_layer.setdefault(layer, []).append(head)
    with ExitStack() as hooks:
        for layer, chosen in by_layer.items():
            for handle in _hook(model, layer, chosen, replacement, batch):
                hooks.callback(handle.remove)
        yield


def _hook(
    model: Model, layer: int, heads: Sequence[int], replacement: Replacement, batch: Batch
) -> Iterator[torch.utils.hooks.RemovableHandle]:
    """Hooks of one block: keep the projections, then change the input of the output projection."""
    block = model.blocks[layer]
    projected: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: Tensor) -> None:
        projected.append(output)

    def change(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = args[0].to(model.device).unflatten(-1, (block.n_heads, block.d_head))
        channels = block.channels([each.to(model.device) for each in projected])
        projected.clear()
        values = channels[:, :, block.n_heads + block.n_kv_heads :]
        passing = _copies(batch, len(z) // len(batch.indices))
        new = replacement(Site(layer=layer, block=block, z=z, values=values, batch=passing))
        changed = z.clone()
        changed[:, :, heads] = new.to(z.dtype).expand_as(z)[:, :, heads]
        return (changed.flatten(2).to(args[0].device), *args[1:])

    for projection in block.qkv:
        yield projection.register_forward_hook(keep)
    yield block.out.register_forward_pre_hook(change)


def _copies(batch: Batch, count: int) -> Batch:
    """A batch as often as given."""
    if count == 1:
        return batch
    return map_tensors(batch, lambda value: value.repeat(count, *[1] * (value.ndim - 1)))


def outside(heads: Heads, model: Model) -> list[tuple[int, int]]:
    """All heads of a model but these."""
    kept = set(heads)
    return [head for head in product(range(model.n_layers), range(model.n_heads)) if head not in kept]


# ---- one head at a time ----

# Logits of some runs `[rows, d_vocab]` and which prompts they belong to `[rows]` -> one number per run.
Reading = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def base_run(model: Model, tokens: Int[Tensor, "n pos"]) -> Trace:
    """A plain pass with everything that runs of single heads start from."""
    with model.tracing(streams=True) as trace:
        model.forward(tokens)
    return trace


@dataclass(frozen=True, kw_only=True, eq=False)
class OneByOne:
    """Runs of some prompts in which one head after the other is replaced.

    Attributes:
        model: The model.
        batch: The n prompts.
        reading: From logits of some runs to one number each.
        heads: (block, head) pairs, the columns of what the methods return.
    """

    model: Model
    batch: Batch
    reading: Reading
    heads: Sequence[tuple[int, int]]

    @torch.no_grad()
    def everywhere(
        self, base: Trace, values: Sequence[Float[Tensor, "rows pos width"]]
    ) -> Float64[Tensor, "n heads"]:
        """What is read off the run with one head's output replaced at all positions, for each head.

        Args:
            base: The run to start from (`base_run`).
            values: Per block, the replacement for the outputs of its heads before the output projection,
                `[n or 1, pos, n_heads d_head]`.

        Returns:
            `[n, heads]` on the CPU.
        """
        model, read = self.model, self.batch.positions
        n, length = base.input.shape[:2]

        def above(layer: int, delta: Tensor, copies: int) -> Tensor:
            stream = _after_block(model, base, layer, delta, methodcaller("repeat", copies, 1, 1))
            if layer + 1 < model.n_layers:
                calls = _repeated(base.calls, (n, n * model.blocks[layer].n_heads), copies)
                hidden = model.resume(stream, Trace(calls=calls), layer=layer + 1)
            else:
                hidden = model.final_norm(stream)
            return model.read(hidden, read.repeat(copies))

        return self._each(base.head_z, values, TOKENS_PER_PASS // (n * length), above)

    @torch.no_grad()
    def at_read(
        self, base: Trace, values: Sequence[Float[Tensor, "n pos width"]]
    ) -> Float64[Tensor, "n heads"]:
        """As `everywhere`, the head being replaced at the read position only.

        In a causal model no earlier position sees the change, so one token per run is computed.

        Raises:
            UnsupportedModelError: For an image classifier.
        """
        model, read = self.model, self.batch.positions
        model.check_text("replacing a head at the read position only")
        rows = torch.arange(len(read), device=read.device)
        past = _Past(model, base, read)

        def above(layer: int, delta: Tensor, copies: int) -> Tensor:
            repeated = rows.repeat(copies)
            stream = _after_block(model, base, layer, delta, itemgetter((repeated, read[repeated])))
            for later in range(layer + 1, model.n_layers):
                stream = past.step(later, stream, repeated)
            return model.finish(stream)

        now, new = ([z[rows, read] for z in each] for each in (base.head_z, values))
        return self._each(now, new, TOKENS_PER_PASS // len(read), above)

    def dropped(self, base: Trace, replacement: Replacement) -> Float64[Tensor, "n heads"]:
        """With one head after the other ablated, everything below it as in the base run."""
        values = []
        for layer, block in enumerate(self.model.blocks):
            z = base.head_z[layer].unflatten(-1, (block.n_heads, block.d_head))
            mixed = block.channels(base.qkv[layer])[:, :, block.n_heads + block.n_kv_heads :]
            new = replacement(Site(layer=layer, block=block, z=z, values=mixed, batch=self.batch))
            values.append(new.to(z).expand_as(z).flatten(2))
        return self.everywhere(base, values)

    def _each(
        self,
        now: Sequence[Tensor],
        values: Sequence[Tensor],
        at_once: int,
        above: Callable[[int, Tensor, int], Tensor],
    ) -> Float64[Tensor, "n heads"]:
        """The runs of every head, `at_once` at a time; `above` goes from what a block wrote to logits."""
        model, n = self.model, len(self.batch.positions)
        result = torch.empty(n, len(self.heads), dtype=torch.float64)
        for layer, places in _portions(self.heads, max(1, at_once)):
            block, copies = model.blocks[layer], len(places)
            before, after = (
                z[layer].to(model.result_dtype).unflatten(-1, (block.n_heads, block.d_head))
                for z in (now, values)
            )
            chosen = [self.heads[place][1] for place in places]
            delta = _written(model, block, before, after - before, chosen).flatten(0, 1)
            prompts = torch.arange(n, device=self.batch.positions.device).repeat(copies)
            numbers = self.reading(above(layer, delta, copies), prompts)
            result[:, places] = numbers.double().cpu().view(copies, n).T
        return result


# From the clean run, the corrupted one where it was asked for, and what starts from them, to margins.
Run = Callable[[Trace, Trace, OneByOne], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadMargins:
    """Margins of whole runs, clean and corrupted, `[P]`, and of runs with one head replaced `[P, heads]`.

    Without corrupted runs `y_corrupted` is `y_full`.
    """

    y_full: Float64[np.ndarray, " P"]
    y_corrupted: Float64[np.ndarray, " P"]
    y_one: Float64[np.ndarray, "P heads"]


def head_margins(
    model: Model,
    task: Task,
    run: Run,
    *,
    objective: Objective,
    heads: Sequence[tuple[int, int]] | None = None,
    batch_size: int | None = None,
    paired: bool = True,
    first: int = 0,
) -> HeadMargins:
    """Margins (-loss) of the whole runs and of those in which one of some heads is replaced.

    Args:
        model: The model.
        task: The prompts, of the model.
        run: Makes the runs of a batch.
        objective: Its negative is the margin.
        heads: (block, head) pairs; default: all, block by block.
        batch_size: Prompts per pass; default: by free memory.
        paired: Run the corrupted prompts too.
        first: Row of the first prompt, for replacements that belong to rows of a larger task.
    """
    heads = outside((), model) if heads is None else heads
    # What the base run of a prompt takes, and a run that begins from it.
    extra = 60 * model.n_layers * model.d_model * task.length * model.result_dtype.itemsize
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra)
    if model.device.type == "cpu":  # copies of the prompts fill a pass
        size = min(size, max(1, TOKENS_PER_PASS // (4 * task.length)))
    parts = []
    for batch in task.batches(size):
        batch = batch.to(model.device)
        clean = base_run(model, batch.clean)
        counterpart = base_run(model, batch.corrupted) if paired else clean
        full, other = (_read(model, trace, batch) for trace in (clean, counterpart))
        reading = partial(_margin, objective, batch, full)
        placed = replace(batch, indices=batch.indices + first)
        one = OneByOne(model=model, batch=placed, reading=reading, heads=heads)
        rows = torch.arange(len(batch.indices), device=model.device)
        parts.append((reading(full, rows), reading(other, rows), run(clean, counterpart, one)))
    columns = (torch.cat(part).double().cpu().numpy() for part in zip(*parts, strict=True))
    return HeadMargins(**dict(zip(("y_full", "y_corrupted", "y_one"), columns, strict=True)))


def _margin(objective: Objective, batch: Batch, full: Tensor, logits: Tensor, rows: Tensor) -> Tensor:
    """-loss of logits of some runs, and of the prompts that they belong to."""
    return -objective(logits.double(), full[rows].double(), map_tensors(batch, lambda tensor: tensor[rows]))


@torch.no_grad()
def _read(model: Model, base: Trace, batch: Batch) -> Tensor:
    """Logits at the read position of a finished run."""
    assert base.final_in is not None
    return model.read(model.final_norm(base.final_in), batch.positions).to(model.result_dtype)


def _portions(heads: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[int, list[int]]]:
    """Each block with places of its heads in the list, at most `size` at a time."""
    for layer in sorted({layer for layer, _ in heads}):
        places = [place for place, (other, _) in enumerate(heads) if other == layer]
        for start in range(0, len(places), size):
            yield layer, places[start : start + size]


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


def _after_block(
    model: Model, base: Trace, layer: int, delta: Tensor, rows_of: Callable[[Tensor], Tensor]
) -> Tensor:
    """Stream behind a block whose attention wrote `delta` more in some rows of the base run."""
    assert base.final_in is not None
    if model.graph.parallel:
        behind = base.block_in[layer + 1] if layer + 1 < model.n_layers else base.final_in
        return (rows_of(behind) + delta).to(model.dtype)
    middle = (rows_of(base.mlp_in[layer]) + delta).to(model.dtype)
    return middle + model.blocks[layer].run_mlp(middle)


def _repeated(value: Any, batches: Collection[int], copies: int) -> Any:
    """Arguments of blocks for several copies of the batch.

    What has a row per prompt, or per prompt and head as BLOOM's slopes do, is repeated.
    """
    if isinstance(value, Tensor) and value.ndim > 1 and value.shape[0] > 1 and value.shape[0] in batches:
        return value.repeat(copies, *[1] * (value.ndim - 1))
    if isinstance(value, dict):
        return {name: _repeated(item, batches, copies) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_repeated(item, batches, copies) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
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
        heads = range(block.n_heads)
        groups = [block.kv_head(head) for head in heads]
        mixed = attention.mix(
            layer, query, keys, values, everywhere=False, heads=heads, kv_of_head=groups
        ).squeeze(2)
        written = block.write(mixed.flatten(1).to(model.dtype))
        middle = (stream + written).to(model.dtype)
        return middle + block.run_mlp(stream if model.graph.parallel else middle)
