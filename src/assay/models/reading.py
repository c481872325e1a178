"""Where logits are read: one position per example, or several."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def at_reads(
    values: Float[Tensor, "batch pos *axes"], positions: Int[Tensor, "batch *reads"]
) -> Float[Tensor, "batch *reads_and_axes"]:
    """What stands at the read position of each example `[batch, ...]`, or at each of several.

    Args:
        values: Anything with an entry per position.
        positions: One position per example, or several `[batch, reads]`; -1 fills rows that have fewer, and
            what is returned there means nothing.
    """
    index = torch.arange(len(values), device=values.device)
    if positions.ndim == 2:
        return values[index[:, None], positions.clamp(min=0)]
    return values[index, positions]
