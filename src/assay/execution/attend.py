"""Attention over queries, keys and values of any run: head norms, rotary positions, mask, mixing.

Runs differ in where channels come from. What becomes of them here is the model's own attention, with all
positions or the read position of each example as queries.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from assay.execution.plan import AttentionStep
from assay.models import Block, Model
from assay.models.conformance import rotate


def rotary_tables(calls: Sequence[tuple[Any, dict[str, Any]]]) -> tuple[Tensor, Tensor] | None:
    """Cosines and sines `[n or 1, pos, width]` that the model gave to its first block, if it has any."""
    tables = calls[0][1].get("position_embeddings")
    return None if tables is None else (tables[0], tables[1])


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
    normed = block.attention_norm.module(streams.to(dtype)).to(weight.dtype).flatten(1, -2)
    channels = torch.bmm(normed, weight) if bias is None else torch.baddbmm(bias, normed, weight)
    result: Tensor = channels.unflatten(1, streams.shape[1:-1])
    return result


class PlacedAttention:
    """The attention of some examples: channels are `[n, heads, pos, d_head]`.

    Args:
        model: The model.
        tables: Rotary tables `[n or 1, pos, width]`; see `rotary_tables`.
        length: Positions that have keys. Queries are at the last of them, as many as there are.
        read: Read position of each example, where queries at the read position alone are taken; None: it is
            the last position of all.
        heads_first: Channels are `[heads, n, pos, d_head]` instead, perhaps with further axes in front.
    """

    def __init__(
        self,
        model: Model,
        tables: tuple[Tensor, Tensor] | None,
        *,
        length: int,
        read: Int[Tensor, " n"] | None,
        heads_first: bool = False,
    ) -> None:
        self.causal, self.length, self.read = model.causal, length, read
        self._axis = 1 if heads_first else 2  # axes behind that of the examples, up to positions
        self._tables = {True: tables, False: tables}
        if tables is not None and read is not None:
            index = torch.arange(len(read), device=read.device)
            cos, sin = (table.expand(len(read), -1, -1)[index, read][:, None] for table in tables)
            self._tables[False] = cos, sin
        self._masks: dict[tuple[int | None, bool], Tensor] = {}

    def queries(
        self, block: Block, x: Float[Tensor, "*heads pos d_head"], *, everywhere: bool
    ) -> Float[Tensor, "*heads pos d_head"]:
        """Projected queries at all positions or at the read position, normed and rotated."""
        return self._rotated(x if block.q_norm is None else block.q_norm(x), everywhere=everywhere)

    def keys(self, block: Block, x: Float[Tensor, "*heads pos d_head"]) -> Float[Tensor, "*heads pos d_head"]:
        """Projected keys at all positions, normed and rotated."""
        return self._rotated(x if block.k_norm is None else block.k_norm(x), everywhere=True)

    def leaves(self, block: Block) -> bool:
        """Whether queries and keys are used as they were projected."""
        return self._tables[True] is None and block.q_norm is None and block.k_norm is None

    def _rotated(self, x: Tensor, *, everywhere: bool) -> Tensor:
        tables = self._tables[everywhere]
        if tables is None:
            return x
        cos, sin = (table[:, -x.shape[-2] :] for table in tables)
        return rotate(x, cos, sin) if self._axis == 1 else rotate(x, cos[:, None], sin[:, None])

    def mix(
        self,
        block: Block,
        queries: Float[Tensor, "a b queries d_head"],
        keys: Float[Tensor, "a c pos d_head"],
        values: Float[Tensor, "a c pos d_head"],
        *,
        everywhere: bool,
        kv_of_head: Sequence[int] | None = None,
    ) -> Float[Tensor, "a b queries d_head"]:
        """Outputs of heads before their output projection: softmax(q k^T scale) v.

        Args:
            block: The block they belong to.
            queries: From `queries`.
            keys: From `keys`.
            values: As projected.
            everywhere: Whether queries are at all positions, not at the read position.
            kv_of_head: Which key and value each query head reads; None: its own.
        """
        if kv_of_head is not None:
            keys, values = shared_by_heads(keys, kv_of_head), shared_by_heads(values, kv_of_head)
        return functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=self._allowed(block, queries, everywhere=everywhere),
            scale=block.scaling,
        )

    def live_heads(
        self, block: Block, step: AttentionStep, stacked: Callable[[str, Sequence[int], bool], Tensor]
    ) -> tuple[Tensor | None, Tensor | None]:
        """The heads of a step that are needed everywhere, and those needed at the read position only.

        Args:
            block: The block.
            step: Which of its heads are live.
            stacked: Projected channels of some heads, `[n, heads, pos or 1, d_head]`, from their letter, the
                heads and whether they are needed at all positions.

        Returns:
            `[n, heads, pos, d_head]` and `[n, heads, 1, d_head]`, before the output projection; None where
            there is no such head.
        """
        keys = self.keys(block, stacked("k", step.kv_heads, True))
        values = stacked("v", step.kv_heads, True)

        def mixed(heads: Sequence[int], *, everywhere: bool) -> Tensor | None:
            if not heads:
                return None
            return self.mix(
                block,
                self.queries(block, stacked("q", heads, everywhere), everywhere=everywhere),
                keys,
                values,
                everywhere=everywhere,
                kv_of_head=[step.kv_heads.index(block.kv_head(head)) for head in heads],
            )

        return mixed(step.full, everywhere=True), mixed(step.last, everywhere=False)

    def _allowed(
        self, block: Block, queries: Tensor, *, everywhere: bool
    ) -> Bool[Tensor, "*heads queries pos"] | None:
        """True where a query may attend: causal, inside the sliding window if the block has one.

        None where every query attends to all.
        """
        last_of_all = self.read is None and not everywhere and block.window is None
        if not self.causal or last_of_all:
            return None
        kind = block.window, everywhere
        if kind not in self._masks:
            keys = torch.arange(self.length, device=queries.device)
            if everywhere or self.read is None:
                places = keys[-queries.shape[-2] :, None]
            else:
                places = self.read.view(-1, *[1] * (self._axis + 1))
            allowed = keys <= places
            if block.window is not None:
                allowed = allowed & (places - keys < block.window)
            self._masks[kind] = allowed
        return self._masks[kind]


def shared_by_heads(x: Float[Tensor, "n kv pos d_head"], kv_of_head: Sequence[int]) -> Tensor:
    """Keys or values, one for each query head that reads them: `[n, heads, pos, d_head]`."""
    n_kv = x.shape[1]
    group = len(kv_of_head) // n_kv
    if list(kv_of_head) != [place for place in range(n_kv) for _ in range(group)]:
        return x[:, list(kv_of_head)]
    return x if group == 1 else x.repeat_interleave(group, 1)
