"""Edge scores from native backward passes, without a per-target copy of the residual stream.

For a target v with input x, norm N and projection W the gradient at x is closed form,

    g_v = (y - mean(y) - x^ mean(y x^)) / sigma,    y = gain * (W dq),

with dq the gradient at the projection's output (no mean terms for RMSNorm). `mean(y x^)` is
dq . (W^T gain x^) / d, a scalar per token that the projection's own output gives. So a pass leaves
behind dq / sigma and one scalar per channel; the projection back to d_model and the product with
the activation differences happen once per batch, whatever the number of passes. Where a norm's scale
counts as a constant, the term in x^ falls away.
(Syed et al. 2023, arXiv:2310.10348; Hanna et al. 2024, arXiv:2403.17806.)
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.execution import Baseline
from assay.models import Model, Norm, Trace
from assay.models.model import at_reads


# Bytes of expanded differences and gradients held at once; more gains nothing on any device tried.
CHUNK_BYTES = 256 * 2**20


@dataclass(kw_only=True, eq=False)
class ActivationDifferences:
    """Ablated minus clean output of every source, heads before the output projection.

    Attributes:
        input: `[batch, pos, d_model]`.
        z: Per block `[batch, pos, n_heads, d_head]`.
        mlp: Per block `[batch, pos, d_model]`.
    """

    model: Model
    input: Tensor
    z: list[Tensor]
    mlp: list[Tensor]

    @classmethod
    def between(
        cls,
        model: Model,
        clean: Trace,
        baseline: Baseline,
        lengths: Int[Tensor, " batch"],
    ) -> "ActivationDifferences":
        """Differences of a batch, zero at padded positions."""
        real = (torch.arange(clean.input.shape[1], device=lengths.device) < lengths[:, None])[..., None]
        wide = model.result_dtype

        def difference(ablated: Tensor, value: Tensor) -> Tensor:
            return (ablated.to(wide) - value.to(wide)) * real

        heads = (model.n_heads, model.d_head)
        return cls(
            model=model,
            input=difference(baseline.input, clean.input),
            z=[difference(b, a).unflatten(-1, heads) for a, b in zip(clean.z, baseline.z, strict=True)],
            mlp=[difference(b, a) for a, b in zip(clean.mlp, baseline.mlp, strict=True)],
        )

    def expand(self, rows: slice) -> Float[Tensor, "n_sources batch pos d_model"]:
        """Differences as the stream sees them, for some examples."""
        model, graph = self.model, self.model.graph
        first = self.input[rows]
        expanded = first.new_empty(graph.n_sources, *first.shape)
        expanded[0] = first
        for layer, block in enumerate(model.blocks):
            row = graph.head_source(layer)
            z = self.z[layer][rows].permute(2, 0, 1, 3).flatten(1, 2)
            weight = block.out_weight().to(first.dtype)
            heads = expanded[row : row + model.n_heads]
            torch.bmm(z, weight, out=heads.flatten(1, 2))
            if graph.mlps:
                expanded[graph.mlp_source(layer)] = self.mlp[layer][rows]
        return expanded


@dataclass(kw_only=True, eq=False)
class _ChannelSums:
    """Sums over passes for the q/k/v channels of one block."""

    scaled: Tensor | None = None  # sum of weight dq / sigma, [batch, pos, n_channels, d_head]
    along: list[Tensor] = field(default_factory=list)  # per pass, the scalar of the rank-one term
    direction: list[Tensor] = field(default_factory=list)  # per pass, x^


class GradientSums:
    """Weighted sum over passes of the gradient at every target's input.

    Args:
        model: The model.
        first_attention, first_mlp: Blocks whose attention (MLP) is the first to be read; earlier targets
            get no gradient. Used where only what lies behind a source matters.
        constant_scale: Take the scale that a norm divides by for a constant. The passes must do the same,
            since gradients further back come from them.
    """

    def __init__(
        self,
        model: Model,
        *,
        first_attention: int = 0,
        first_mlp: int = 0,
        constant_scale: bool = False,
    ) -> None:
        self.model = model
        self.constant_scale = constant_scale
        self.first_attention, self.first_mlp = first_attention, first_mlp
        self.channels = [_ChannelSums() for _ in model.blocks]
        self.mlp: list[Tensor | None] = [None] * model.n_layers
        self.logits: Tensor | None = None
        self._weight = cache(lambda layer: _projections(model, layer))

    def add(self, trace: Trace, positions: Int[Tensor, " batch"], weight: float) -> None:
        """Take one finished backward pass into the sums."""
        wide = self.model.result_dtype
        offset_attention = self.model.n_layers - len(trace.attention_in)
        offset_mlp = self.model.n_layers - len(trace.mlp_in)
        for layer in range(self.first_attention, self.model.n_layers):
            self._add_attention(layer, layer - offset_attention, trace, weight, wide)
        for layer in range(self.first_mlp, self.model.n_layers):
            block = self.model.blocks[layer]
            gradient = trace.gradients.get(("mlp", layer, 0))
            if gradient is not None:
                x = trace.mlp_in[layer - offset_mlp]
                above = gradient.view(x.shape).to(wide) * weight
                change = norm_backward(block.mlp_norm, x, above, constant_scale=self.constant_scale)
                before = self.mlp[layer]
                self.mlp[layer] = change if before is None else before + change
        gradient = trace.gradients.get(("logits", 0, 0))
        if gradient is not None:
            # What the logits do not read has no gradient, so one position is enough unless they read more.
            whole = self.model.pools
            read = gradient if whole else at_reads(gradient, positions)[:, None]
            change = read.to(wide) * weight
            self.logits = change if self.logits is None else self.logits + change

    def _add_attention(self, layer: int, place: int, trace: Trace, weight: float, wide: torch.dtype) -> None:
        block, sums = self.model.blocks[layer], self.channels[layer]
        parts = [trace.gradients.get(("qkv", layer, part)) for part in range(len(block.qkv))]
        if any(part is None for part in parts):
            return
        direction, inverse = block.attention_norm.standardise(trace.attention_in[place])
        scaled = block.channels([part.to(wide) for part in parts if part is not None]) * (
            weight * inverse[..., None]
        )
        sums.scaled = scaled if sums.scaled is None else sums.scaled + scaled
        if self.constant_scale or block.attention_norm.kind is None:
            return
        linear = block.channels([part.to(wide) for part in trace.qkv[place]])
        constant = _constant(self.model, layer)
        if constant is not None:
            linear = linear - constant.to(wide)
        sums.along.append((scaled * linear).sum(-1) / self.model.d_model)
        sums.direction.append(direction)

    def _attention_gradient(self, layer: int, rows: slice) -> Tensor | None:
        """`[n_channels, batch, pos, d_model]` of some examples."""
        sums = self.channels[layer]
        if sums.scaled is None:
            return None
        scaled = sums.scaled[rows]
        n, length = scaled.shape[:2]
        gradient = torch.bmm(scaled.permute(2, 0, 1, 3).flatten(1, 2), self._weight(layer))
        if sums.along:
            along = torch.stack([part[rows] for part in sums.along], -1).flatten(0, 1)
            direction = torch.stack([part[rows] for part in sums.direction], 2).flatten(0, 1)
            gradient -= torch.bmm(along, direction).transpose(0, 1)
        result: Tensor = gradient.unflatten(1, (n, length))
        return result

    def parts(self, rows: slice) -> Iterator[tuple[int, slice, Float[Tensor, "targets batch pos d_model"]]]:
        """Gradients of some examples: how many sources can be read, which targets read, their gradients.

        Those of `logits` have one position, the one that is read, unless the logits read more.
        """
        graph = self.model.graph
        for layer in range(self.model.n_layers):
            first, last = graph.channel_target(layer, "q"), graph.mlp_target(layer)
            gradient = self._attention_gradient(layer, rows) if layer >= self.first_attention else None
            if gradient is not None:
                yield graph.sources_before_block(layer), slice(first, last), gradient
            mlp = self.mlp[layer]
            if mlp is not None:
                yield graph.sources_before_mlp(layer), graph.mlp_targets(layer), mlp[rows][None]
        if self.logits is not None:
            column = slice(graph.n_targets - 1, graph.n_targets)
            yield graph.n_sources, column, self.logits[rows][None]

    def chunks(self, differences: ActivationDifferences, extra: int = 1) -> Iterator[slice]:
        """Examples whose expanded differences, `extra` times, are held at once."""
        n, length = differences.input.shape[:2]
        rows = extra * (self.model.graph.n_sources + 3 * self.model.n_heads)
        size = max(1, CHUNK_BYTES // (rows * length * self.model.d_model * 4))
        return (slice(start, min(start + size, n)) for start in range(0, n, size))

    def contract(
        self,
        differences: ActivationDifferences,
        positions: Int[Tensor, " batch"],
        *,
        rows: slice | None = None,
        per_example: bool,
    ) -> Float[Tensor, "rows n_sources n_targets"]:
        """Scores of the batch: difference of each source times gradient at each later target.

        Args:
            differences: Ablated minus clean activations.
            positions: Read position of each example.
            rows: Sources to score (a slice of graph rows); default all.
            per_example: Keep examples apart; otherwise the result is their sum, `[1, S, R]`.
        """
        graph = self.model.graph
        wanted = rows or slice(0, graph.n_sources)
        n = len(differences.input) if per_example else 1
        scores = differences.input.new_zeros(n, graph.n_sources, graph.n_targets)
        for chunk in self.chunks(differences):
            expanded = differences.expand(chunk)
            read = at_read(self.model, expanded, positions[chunk])
            into = scores[chunk] if per_example else scores
            for until, targets, right in self.parts(chunk):
                sources = slice(wanted.start, min(wanted.stop, until))
                if sources.start >= sources.stop:
                    continue
                left = (read if targets.stop == graph.n_targets else expanded)[sources]
                if per_example:
                    into[:, sources, targets] += torch.bmm(
                        left.flatten(2).transpose(0, 1), right.flatten(2).permute(1, 2, 0)
                    )
                else:
                    into[0, sources, targets] += left.flatten(1) @ right.flatten(1).T
        return scores


def at_read(
    model: Model, expanded: Float[Tensor, "n_sources batch pos d_model"], positions: Tensor
) -> Float[Tensor, "n_sources batch reads d_model"]:
    """What the logits read of the sources: all positions, or the read position as an axis of one."""
    if model.pools:
        return expanded
    index = torch.arange(expanded.shape[1], device=positions.device)
    return expanded[:, index, positions][:, :, None]


def norm_backward(norm: Norm, x: Tensor, gradient: Tensor, *, constant_scale: bool) -> Tensor:
    """Gradient at a norm's input from the gradient at its output."""
    direction, inverse = norm.standardise(x)
    scaled = norm.scaled_by_gain(gradient) * inverse
    change = norm.centre(scaled)
    return (
        change
        if constant_scale or norm.kind is None
        else change - direction * (scaled * direction).mean(-1, keepdim=True)
    )


def _projections(model: Model, layer: int) -> Float[Tensor, "n_channels d_head d_model"]:
    """q/k/v projections with gain and centring of the norm before them."""
    block = model.blocks[layer]
    weight = block.qkv_weight().to(model.result_dtype).permute(1, 2, 0)
    return block.attention_norm.centre(block.attention_norm.scaled_by_gain(weight)).contiguous()


def _constant(model: Model, layer: int) -> Tensor | None:
    """What the projections give at x^ = 0: shift of the norm through the weights, plus biases."""
    block = model.blocks[layer]
    constant = block.qkv_bias()
    shift = block.attention_norm.shift
    if shift is not None:
        through = torch.einsum("d,dkc->kc", shift.to(block.home), block.qkv_weight())
        constant = through if constant is None else constant + through
    return constant
