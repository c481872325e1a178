"""Attention over queries, keys and values of any run: head norms, positions, mask, mixing.

Runs differ in where their channels come from. What becomes of them between the projections and the output
projection is the model's own attention, written here once for all families and all runs.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


# Beyond so many queries no mask or weights of all queries by all keys are made, but of so many at once.
LONG, QUERIES = 512, 256

Tables = tuple[Tensor, Tensor]  # cosines and sines, [n or 1, pos, turned width]


def rotate(
    x: Float[Tensor, "*heads pos d_head"],
    cos: Float[Tensor, "..."],
    sin: Float[Tensor, "..."],
    *,
    adjacent: bool = False,
) -> Float[Tensor, "*heads pos d_head"]:
    """Rotary position embedding; tables `[..., pos, turned]` broadcast over the axes in front.

    Args:
        x: Queries or keys; the first `turned` entries are rotated, the others pass.
        cos: Cosines, one for each rotated entry.
        sin: Sines, likewise.
        adjacent: Whether entries 2j and 2j + 1 turn together, not j and j + turned / 2.
    """
    width = cos.shape[-1]
    turned, passed = x[..., :width], x[..., width:]
    if adjacent:
        swapped = torch.stack([-turned[..., 1::2], turned[..., ::2]], -1).flatten(-2)
    else:
        half = width // 2
        swapped = torch.cat([-turned[..., half:], turned[..., :half]], -1)
    return torch.cat([turned * cos + swapped * sin, passed], -1).to(x.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadNorm:
    """A norm of queries or keys behind their projection.

    Attributes:
        module: The native norm.
        over: `head`: each head by itself, one gain for all; `own`: each head by itself with its own gain, a
            list `norms` of LayerNorms; `block`: all heads of the block as one vector.
    """

    module: nn.Module
    over: Literal["head", "own", "block"] = "head"

    def __call__(
        self, x: Float[Tensor, "n heads pos d_head"], heads: Sequence[int]
    ) -> Float[Tensor, "n heads pos d_head"]:
        """The normed channels of some heads."""
        normed: Tensor
        if self.over == "head":
            normed = self.module(x)
            return normed.to(x.device)
        if self.over == "block":
            last = x.transpose(-3, -2)
            normed = self.module(last.flatten(-2)).view(last.shape)
            return normed.to(x.device).transpose(-3, -2)
        norms = self.module.get_submodule("norms")
        parts = [
            norms.get_submodule(str(head))(part).to(x.device)
            for head, part in zip(heads, x.unbind(-3), strict=True)
        ]
        return torch.stack(parts, -3)


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionRule:
    """What the attention of one block does between its projections and its output projection.

    Attributes:
        scaling: Factor of query-key products.
        window: How many positions a query sees, its own included; None: all earlier ones.
        softcap: k of k tanh(s / k) on scaled products, if there is one.
        table: Which rotary tables the block takes; None: it does not rotate.
        adjacent: Order of the rotated entries, see `rotate`.
        q_norm, k_norm: Norms behind the projections, if any.
        bias: From a number of positions to what is added to scaled products by the position of the key,
            `[n_heads, 1, pos]`; None: nothing.
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None
    table: Hashable | None = None
    adjacent: bool = False
    q_norm: HeadNorm | None = None
    k_norm: HeadNorm | None = None
    bias: Callable[[int], Tensor] | None = None

    @property
    def couples(self) -> bool:
        """Whether the query or key of a head depends on what the other heads of the block read."""
        return any(norm is not None and norm.over == "block" for norm in (self.q_norm, self.k_norm))

    def allowed(self, distance: Int[Tensor, "*axes"]) -> Bool[Tensor, "*axes"]:
        """Whether a causal query may attend to a key so many positions before it."""
        before = distance >= 0
        return before if self.window is None else before & (distance < self.window)

    def mixed(
        self,
        queries: Float[Tensor, "*axes queries d_head"],
        keys: Float[Tensor, "*axes keys d_head"],
        values: Float[Tensor, "*axes keys d_value"],
        allowed: Bool[Tensor, "..."] | None,
        bias: Float[Tensor, "..."] | None,
    ) -> Float[Tensor, "*axes queries d_value"]:
        """Values mixed by the attention weights; a cap needs the weights, else a kernel does without them."""
        if self.softcap is not None:
            scores = torch.tanh(queries @ keys.transpose(-2, -1) * self.scaling / self.softcap) * self.softcap
            scores = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
            return scores.softmax(-1).to(values.dtype) @ values
        if bias is not None:
            allowed = bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=allowed, scale=self.scaling
        )


class PlacedAttention:
    """The attention of some examples: channels are `[n, heads, pos, d_head]`.

    Args:
        rules: What the attention of each block does.
        tables: Rotary tables by kind; see `Model.tables`.
        length: Positions that have keys. Queries are at the last of them, as many as there are.
        causal: Whether a query sees itself and earlier positions only.
        read: Read position of each example, where queries at the read position alone are taken; None: it is
            the last position of all.
    """

    def __init__(
        self,
        rules: Sequence[AttentionRule],
        tables: Mapping[Hashable, Tables],
        *,
        length: int,
        causal: bool,
        read: Int[Tensor, " n"] | None,
    ) -> None:
        self.rules, self.causal, self.length, self.read = rules, causal, length, read
        self._tables: dict[tuple[Hashable, bool], Tables] = {}
        for kind, (cos, sin) in tables.items():
            self._tables[kind, True] = self._tables[kind, False] = (cos, sin)
            if read is not None:
                index = torch.arange(len(read), device=read.device)
                self._tables[kind, False] = tuple(  # type: ignore[assignment]  # two in, two out
                    table.expand(len(read), -1, -1)[index, read][:, None] for table in (cos, sin)
                )
        self._masks: dict[tuple[int | None, bool], Tensor] = {}

    def queries(self, layer: int, x: Tensor, heads: Sequence[int], *, everywhere: bool) -> Tensor:
        """Projected queries of some heads at all positions or at the read position, normed and rotated."""
        return self._turned(layer, self.rules[layer].q_norm, x, heads, everywhere=everywhere)

    def keys(self, layer: int, x: Tensor, heads: Sequence[int], *, everywhere: bool = True) -> Tensor:
        """Projected keys of some key/value heads, normed and rotated."""
        return self._turned(layer, self.rules[layer].k_norm, x, heads, everywhere=everywhere)

    def _turned(
        self, layer: int, norm: HeadNorm | None, x: Tensor, heads: Sequence[int], *, everywhere: bool
    ) -> Tensor:
        rule = self.rules[layer]
        if norm is not None:
            x = norm(x, heads)
        if rule.table is None:
            return x
        cos, sin = (table[:, -x.shape[-2] :] for table in self._tables[rule.table, everywhere])
        return rotate(x, cos[:, None], sin[:, None], adjacent=rule.adjacent)

    def mix(
        self,
        layer: int,
        queries: Float[Tensor, "a b queries d_head"],
        keys: Float[Tensor, "a c pos d_head"],
        values: Float[Tensor, "a c pos d_value"],
        *,
        everywhere: bool,
        heads: Sequence[int],
        kv_of_head: Sequence[int] | None = None,
    ) -> Float[Tensor, "a b queries d_value"]:
        """Outputs of heads before their output projection: softmax(q k^T scale) v.

        Args:
            layer: Their block.
            queries: From `queries`.
            keys: From `keys`.
            values: From `values`.
            everywhere: Whether queries are at all positions, not at the read position.
            heads: Which head stands at each place of the heads' axis of `queries`.
            kv_of_head: Which of the keys and values given each query head reads; None: its own.
        """
        rule = self.rules[layer]
        if kv_of_head is not None:
            keys, values = shared_by_heads(keys, kv_of_head), shared_by_heads(values, kv_of_head)
        bias = None if rule.bias is None else rule.bias(self.length).detach().to(queries)[None, list(heads)]
        if self.causal and everywhere and queries.shape[-2] > LONG:
            return self._mix_long(rule, queries, keys, values, bias)
        return rule.mixed(queries, keys, values, self._allowed(rule, queries, everywhere=everywhere), bias)

    def _mix_long(
        self, rule: AttentionRule, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None
    ) -> Tensor:
        """`mix` of causal queries at all positions; memory grows with the length, not with its square."""
        before = self.length - queries.shape[-2]
        if not before and bias is None and rule.softcap is None and rule.window is None:
            return functional.scaled_dot_product_attention(
                queries, keys, values, is_causal=True, scale=rule.scaling
            )
        graded = torch.is_grad_enabled() and any(each.requires_grad for each in (queries, keys, values))
        places = torch.arange(self.length, device=queries.device)
        parts = []
        for start in range(before, self.length, QUERIES):
            stop = min(start + QUERIES, self.length)
            reached = slice(0 if rule.window is None else max(0, start - rule.window + 1), stop)
            block = (
                queries[..., start - before : stop - before, :],
                keys[..., reached, :],
                values[..., reached, :],
                rule.allowed(places[start:stop, None] - places[reached]),
                None if bias is None else bias[..., reached],
            )
            # A backward pass works the weights of a block out again; kept, they would be the square.
            run = partial(checkpoint, rule.mixed, use_reentrant=False) if graded else rule.mixed
            parts.append(run(*block))
        return torch.cat(parts, -2)

    def _allowed(
        self, rule: AttentionRule, queries: Tensor, *, everywhere: bool
    ) -> Bool[Tensor, "*heads queries pos"] | None:
        """True where a query may attend: causal, inside the sliding window if the block has one.

        None where every query attends to all.
        """
        last_of_all = self.read is None and not everywhere and rule.window is None
        if not self.causal or last_of_all:
            return None
        kind = rule.window, everywhere
        if kind not in self._masks:
            keys = torch.arange(self.length, device=queries.device)
            if everywhere or self.read is None:
                places = keys[-queries.shape[-2] :, None]
            else:
                places = self.read.view(-1, 1, 1, 1)
            self._masks[kind] = rule.allowed(places - keys)
        return self._masks[kind]


def shared_by_heads(x: Float[Tensor, "n kv pos d_head"], kv_of_head: Sequence[int]) -> Tensor:
    """Keys or values, one for each query head that reads them: `[n, heads, pos, d_head]`."""
    n_kv = x.shape[1]
    group = len(kv_of_head) // n_kv
    if list(kv_of_head) != [place for place in range(n_kv) for _ in range(group)]:
        return x[:, list(kv_of_head)]
    return x if group == 1 else x.repeat_interleave(group, 1)
