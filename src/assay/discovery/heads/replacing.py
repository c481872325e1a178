"""Runs of the whole model in which some heads are replaced before the output projection.

Embeddings, MLPs, norms and biases act as ever. Some replacements depend on the head's own activations in
that very run, so they are made inside it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.circuits.heads import check_heads
from assay.core.errors import InputError
from assay.execution.batches import choose_batch_size
from assay.execution.forward import check_finite
from assay.execution.replacements import Replacement, Site
from assay.models import Model, Trace
from assay.tasks import Batch, Task, map_tensors


Heads = Collection[tuple[int, int]]


def run_with_heads_replaced(
    model: Model,
    task: Task,
    heads: Heads,
    replacement: Replacement,
    *,
    batch_size: int | None = None,
    check: bool = True,
) -> Float[Tensor, "n d_vocab"]:
    """Logits at the read position with some heads replaced, all of them at once.

    Args:
        model: The model.
        task: The prompts.
        heads: (block, head) pairs to replace.
        replacement: What by (`Ablation.prepare_heads`).
        batch_size: Prompts per pass; default: by free memory.
        check: Refuse NaN or infinite logits.
    """
    size = choose_batch_size(model, task, asked=batch_size)
    results = []
    for batch in task.batches(size):
        batch = batch.to(model.device)
        with torch.no_grad(), heads_replaced(model, heads, replacement, batch):
            logits = model.read(model.forward(batch.clean), batch.positions).to(model.result_dtype).cpu()
        if check:
            check_finite(logits, "the run with heads replaced", batch.indices)
        results.append(logits)
    return torch.cat(results)


def replaced_outputs(
    model: Model, trace: Trace, replacement: Replacement, batch: Batch
) -> list[Float[Tensor, "n pos width"]]:
    """What the heads of each block are replaced by where everything below them is as in a finished run.

    Args:
        model: The model.
        trace: The run.
        replacement: What by.
        batch: Its prompts.
    """
    outputs = []
    for layer, block in enumerate(model.blocks):
        z = trace.head_z[layer].unflatten(-1, (block.n_heads, block.d_head))
        values = block.channels(trace.qkv[layer])[:, :, block.n_heads + block.n_kv_heads :]
        new = replacement(Site(layer=layer, block=block, z=z, values=values, batch=batch))
        outputs.append(new.to(z).expand_as(z).flatten(2))
    return outputs


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
    for layer, head in sorted(heads):
        if not (0 <= layer < model.n_layers and 0 <= head < model.n_heads):
            raise InputError(
                f"head ({layer}, {head}) does not exist; the model has {model.n_layers} blocks of "
                f"{model.n_heads} heads, counted from 0"
            )
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


def heads_of_model(model: Model, heads: Iterable[Sequence[int]] | None = None) -> tuple[tuple[int, int], ...]:
    """The (block, head) pairs asked for, all of a model by default.

    Raises:
        InputError: For a head that the model does not have, or one named twice.
    """
    return check_heads(outside((), model) if heads is None else heads, model.n_layers, model.n_heads)


def outside(heads: Heads, model: Model) -> list[tuple[int, int]]:
    """All heads of a model but these."""
    kept = set(heads)
    return [
        (layer, head)
        for layer in range(model.n_layers)
        for head in range(model.n_heads)
        if (layer, head) not in kept
    ]
