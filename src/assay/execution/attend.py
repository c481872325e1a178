"""Projections of some channels of a block, and the heads of a plan mixed from them."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from assay.execution.plan import AttentionStep
from assay.models import Block
from assay.models.attention import PlacedAttention


def channel_column(block: Block, channel: str, head: int) -> int:
    """Place of a channel (`q` of a head, `k` or `v` of a key/value head) in the common layout."""
    return {"q": 0, "k": block.n_heads, "v": block.n_heads + block.n_kv_heads}[channel] + head


def project(
    block: Block,
    streams: Float[Tensor, "channels *axes d_model"],
    weight: Float[Tensor, "channels d_model d_head"],
    bias: Float[Tensor, "channels 1 d_head"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "channels *axes d_head"]:
    """Some q/k/v channels of a block, each of a stream of its own.

    Args:
        block: The block.
        streams: What each channel reads.
        weight: Their projections, which set the number type of the result.
        bias: Their biases, if the block has any.
        dtype: Number type of the model, in which norms run.
    """
    normed = block.attention_norm(streams.to(dtype)).to(weight.dtype).flatten(1, -2)
    channels = torch.bmm(normed, weight) if bias is None else torch.baddbmm(bias, normed, weight)
    result: Tensor = channels.unflatten(1, streams.shape[1:-1])
    return result


def live_heads(
    attention: PlacedAttention,
    block: Block,
    step: AttentionStep,
    stacked: Callable[[str, Sequence[int], bool], Tensor],
) -> tuple[Tensor | None, Tensor | None]:
    """The heads of a step that are needed everywhere, and those needed at the read position only.

    Args:
        attention: The attention of the examples.
        block: The block.
        step: Which of its heads are live.
        stacked: Projected channels, `[n, heads, pos or 1, d_head]`, from their letter, the heads and whether
            they are needed at all positions.

    Returns:
        `[n, heads, pos, d_head]` and `[n, heads, 1, d_head]`, before the output projection; None where there
        is no such head.
    """
    layer, kv_heads = step.layer, step.kv_heads
    keys = attention.keys(layer, stacked("k", kv_heads, True), kv_heads)
    values = attention.values(layer, stacked("v", kv_heads, True))

    def mixed(heads: Sequence[int], *, everywhere: bool) -> Tensor | None:
        if not heads:
            return None
        asked = range(block.n_heads) if block.rule.couples else heads
        queries = attention.queries(layer, stacked("q", asked, everywhere), asked, everywhere=everywhere)
        return attention.mix(
            layer,
            queries[:, list(heads)] if block.rule.couples else queries,
            keys,
            values,
            everywhere=everywhere,
            heads=heads,
            kv_of_head=[kv_heads.index(block.kv_head(head)) for head in heads],
        )

    return mixed(step.full, everywhere=True), mixed(step.last, everywhere=False)
