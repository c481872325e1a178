"""Attention patterns of all heads of a model on single prompts."""

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import InputError
from assay.models import Model
from assay.models.attention import PlacedAttention
from assay.tasks import PairTask


@torch.no_grad()
def attention_pattern(model: Model, task: PairTask, row: int) -> Float[Tensor, "n_layers n_heads pos pos"]:
    """Attention of every head on one clean prompt of a task.

    Args:
        model: The model.
        task: The prompts.
        row: Which of them.

    Returns:
        Shares in [0, 1]: `[layer, head, query, key]`; each query's shares sum to 1. Float32 on the CPU.

    Raises:
        InputError: If the task does not have this row.

    Notes:
        One forward pass. The weights are those that mix the values, with masks, caps and biases: they are
        read off by mixing the rows of the identity matrix in place of values.
    """
    if not 0 <= row < task.n:
        raise InputError(f"row is {row}; the task has prompts 0 to {task.n - 1}")
    length = int(task.lengths[row])
    with model.tracing(streams=True) as trace:
        model.forward(task.clean[row : row + 1, :length].to(model.device))
    attention = PlacedAttention(
        model.rules, model.tables(trace.calls), length=length, causal=model.causal, read=None
    )
    heads = range(model.n_heads)
    patterns = []
    for layer, block in enumerate(model.blocks):
        channels = block.channels(trace.qkv[layer]).transpose(-3, -2)
        queries, keyed = channels.tensor_split([block.n_heads], -3)
        keys, values = keyed.chunk(2, -3)
        unit = torch.eye(length, dtype=values.dtype, device=values.device)
        mixed = attention.mix(
            layer,
            attention.queries(layer, queries, heads, everywhere=True),
            attention.keys(layer, keys, range(block.n_kv_heads)),
            unit.expand(*values.shape[:-2], length, length),
            everywhere=True,
            heads=heads,
            kv_of_head=[block.kv_head(head) for head in heads],
        )
        patterns.append(mixed[0].float().cpu())
    return torch.stack(patterns)
