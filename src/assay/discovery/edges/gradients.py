"""Edge scores from native backward passes, without a per-target copy of the residual stream.

For a target v with input x, norm N and projection W the gradient at x is closed form,

    g_v = (y - mean(y) - x^ mean(y x^)) / sigma,    y = gain * (W dq),

with dq the gradient at the projection's output (no mean terms for RMSNorm). `mean(y x^)` is
dq . (W^T gain x^) / d, a scalar per token that the projection's own output gives. So a pass leaves
behind dq / sigma and one scalar per channel; the projection back to d_model and the product with
the activation differences happen once per batch, whatever the number of passes. Where a norm's scale
counts as a constant, the term in x^ falls away. Blocks are taken together as long as their activations and
weights are small, so that a small model on an accelerator is not slowed down by the number of kernels.
(Syed et al. 2023, arXiv:2310.10348; Hanna et al. 2024, arXiv:2403.17806.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.execution import Baseline
from assay.models import Model, Trace
from assay.models.model import at_reads


# Bytes of expanded differences and gradients held at once; more gains nothing on any device tried.
CHUNK_BYTES = 256 * 2**20

# Targets that share a product with their sources, and the share of the blocks that they come from at most. A
# product of few targets is slow; in one of many, more of the pairs are not edges.
TARGETS_TOGETHER, BLOCKS_TOGETHER = 160, 1 / 3

# Bytes of one tensor over all blocks that are taken together: what stays in the cache of a core, or on an
# accelerator what is small against its memory.
TOGETHER_BYTES = {"cpu": 2**21, "cuda": 256 * 2**20}


@dataclass(kw_only=True, eq=False)
class ActivationDifferences:
    """Ablated minus clean output of every source, heads before the output projection.

    Attributes:
        model: The model.
        input: `[batch, pos, d_model]`.
        z: `[n_layers, batch, pos, n_heads, d_head]`.
        mlp: `[n_layers, batch, pos, d_model]`.
    """

    model: Model
    input: Tensor
    z: Tensor
    mlp: Tensor

    @classmethod
    def between(
        cls, model: Model, clean: Trace, baseline: Baseline, lengths: Int[Tensor, " batch"]
    ) -> "ActivationDifferences":
        """Differences of a batch, zero at padded positions."""
        real = (torch.arange(clean.input.shape[1], device=lengths.device) < lengths[:, None])[..., None]
        wide = model.result_dtype

        def difference(ablated: list[Tensor], values: list[Tensor]) -> Tensor:
            change = torch.stack(values).to(wide)
            return torch.sub(torch.stack(ablated).to(wide), change, out=change).mul_(real)

        streams = difference([baseline.input, *baseline.mlp], [clean.input, *clean.mlp])
        z = difference(baseline.z, clean.z).unflatten(-1, (model.n_heads, model.d_head))
        return cls(model=model, input=streams[0], z=z, mlp=streams[1:])

    def expand(self, rows: slice, over: Tensor | None = None) -> Float[Tensor, "n_sources batch pos d_model"]:
        """Differences as the stream sees them, for some examples; written over earlier ones if those fit."""
        model, graph = self.model, self.model.graph
        first = self.input[rows]
        expanded = over
        if expanded is None or expanded.shape[1:] != first.shape:
            expanded = first.new_empty(graph.n_sources, *first.shape)
        expanded[0] = first
        by_block = expanded[1:].unflatten(0, (graph.n_layers, -1))
        for blocks in blocks_together(model, *first.shape[:2]):
            layers = slice(blocks.start, blocks.stop)
            weight = torch.stack([block.out_weight() for block in model.blocks[layers]]).to(first.dtype)
            z = self.z[layers, rows].permute(0, 3, 1, 2, 4)
            _multiply(z.flatten(2, 3), weight, by_block[layers, : graph.n_heads])
        if graph.mlps:
            by_block[:, graph.n_heads] = self.mlp[:, rows]
        return expanded


def blocks_together(model: Model, n: int, length: int) -> list[range]:
    """Runs of neighbouring blocks whose tensors are small together, for `n` examples of so many positions."""
    norms = [norm for block in model.blocks for norm in (block.attention_norm, block.mlp_norm)]
    alike = len({(norm.kind, norm.kind and norm.eps) for norm in norms}) == 1
    # Channels of all examples, their weights, their gradients for one example.
    widest = max(n * length * model.d_head, model.d_model * model.d_head, length * model.d_model)
    each = model.blocks[0].n_channels * widest * model.result_dtype.itemsize
    most = TOGETHER_BYTES["cpu" if model.device.type == "cpu" else "cuda"]
    size = max(1, most // each) if alike else 1
    return [range(model.n_layers)[start : start + size] for start in range(0, model.n_layers, size)]


@dataclass(kw_only=True, eq=False)
class _BlockSums:
    """Sums over passes for some blocks; their number is the first dimension of all tensors.

    Attributes:
        attentions: Blocks whose attentions are read.
        mlps: Blocks whose MLPs are read.
        scaled: Sum of weight dq / sigma, `[blocks, batch, pos, n_channels, d_head]`.
        along: For each pass d_model times the scalar of the rank-one term, without the last axis of `scaled`.
        direction: For each pass x^, `[blocks, batch, pos, d_model]`.
        at_mlp: Sum of the gradients at the inputs of the MLPs, `[blocks, batch, pos, d_model]`.
    """

    attentions: range
    mlps: range
    scaled: Tensor | None = None
    along: list[Tensor] = field(default_factory=list)
    direction: list[Tensor] = field(default_factory=list)
    at_mlp: Tensor | None = None


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
        self, model: Model, *, first_attention: int = 0, first_mlp: int = 0, constant_scale: bool = False
    ) -> None:
        self.model = model
        self.constant_scale = constant_scale
        self.first_attention, self.first_mlp = first_attention, first_mlp
        self.blocks: list[_BlockSums] = []
        self.logits: Tensor | None = None
        self._written: Tensor | None = None
        self._projection = cache(lambda layers: _projection(model, layers))
        blocks = model.blocks
        self._gain = cache(lambda layers: _filled([blocks[i].mlp_norm.gain for i in layers], 1.0, model))

    def add(self, trace: Trace, positions: Int[Tensor, " batch"], weight: float) -> None:
        """Take one finished backward pass into the sums."""
        if not self.blocks and trace.attention_in:
            self.blocks = [
                _BlockSums(
                    attentions=range(max(each.start, self.first_attention), each.stop),
                    mlps=range(max(each.start, self.first_mlp), each.stop),
                )
                for each in blocks_together(self.model, *trace.attention_in[0].shape[:2])
            ]
        for sums in self.blocks:
            self._add_attentions(sums, trace, weight)
            self._add_mlps(sums, trace, weight)
        gradient = trace.gradients.get(("logits", 0, 0))
        if gradient is not None:
            # What the logits do not read has no gradient, so one position is enough unless they read more.
            read = gradient if self.model.pools else at_reads(gradient, positions)[:, None]
            change = read.to(self.model.result_dtype) * weight
            self.logits = change if self.logits is None else self.logits + change

    def _add_mlps(self, sums: _BlockSums, trace: Trace, weight: float) -> None:
        if not sums.mlps or ("mlp", sums.mlps[0], 0) not in trace.gradients:
            return
        n = self.model.n_layers  # a trace that begins at a later block than the first ends at the same
        x = _stacked([trace.mlp_in[layer - n] for layer in sums.mlps])
        above = _stacked([trace.gradients["mlp", layer, 0] for layer in sums.mlps]).view(x.shape)
        norm, gain = self.model.blocks[sums.mlps[0]].mlp_norm, self._gain(sums.mlps)
        if sums.at_mlp is None:
            sums.at_mlp = torch.zeros_like(x, dtype=self.model.result_dtype)
        for rows in _rows_together(sums.at_mlp):
            direction, inverse = norm.standardise(x[:, rows])
            scaled = above[:, rows].to(inverse.dtype) * (inverse * weight)
            scaled = scaled if gain is None else scaled * gain
            change = norm.centre(scaled)
            if not self.constant_scale and norm.kind is not None:
                change = change - direction * (scaled * direction).mean(-1, keepdim=True)
            sums.at_mlp[:, rows] += change

    def _add_attentions(self, sums: _BlockSums, trace: Trace, weight: float) -> None:
        if not sums.attentions or ("qkv", sums.attentions[0], 0) not in trace.gradients:
            return
        block, wide, n = self.model.blocks[sums.attentions[0]], self.model.result_dtype, self.model.n_layers
        x = _stacked([trace.attention_in[layer - n] for layer in sums.attentions])
        direction, inverse = block.attention_norm.standardise(x)
        keys = ([("qkv", layer, part) for layer in sums.attentions] for part in range(len(block.qkv)))
        gradients = [_stacked([trace.gradients[key] for key in of_part]) for of_part in keys]
        outputs = list(map(_stacked, zip(*(trace.qkv[layer - n] for layer in sums.attentions), strict=True)))
        along = inverse.new_empty(*x.shape[:-1], block.n_channels)
        if sums.scaled is None:
            sums.scaled = along.new_zeros(*along.shape, block.d_head)
        turns = not self.constant_scale and block.attention_norm.kind is not None
        constant = self._projection(sums.attentions)[1] if turns else None
        for rows in _rows_together(sums.scaled):
            scaled = block.channels([part[:, rows].to(wide) for part in gradients])
            scaled = scaled * (inverse[:, rows, ..., None] * weight)
            sums.scaled[:, rows] += scaled
            if turns:
                linear = block.channels([part[:, rows].to(wide) for part in outputs])
                linear = linear if constant is None else linear - constant
                torch.sum(scaled * linear, -1, out=along[:, rows])
        if turns:
            sums.along.append(along)
            sums.direction.append(direction)

    def parts(self, rows: slice) -> Iterator[tuple[int, slice, Float[Tensor, "targets batch pos d_model"]]]:
        """Gradients of some examples: how many sources can be read, which targets read, their gradients.

        Not each of these targets reads all of these sources: what is made of them holds for valid edges only.
        The gradients of `logits` have one position, the one that is read, unless the logits read more.
        Later gradients are written over earlier ones: take what is needed before the next.
        """
        graph = self.model.graph
        for group in self._groups():
            first, stop = min(group[0].attentions.start, group[0].mlps.start), group[-1].mlps.stop
            columns = slice(graph.channel_target(first, "q"), graph.mlp_targets(stop - 1).stop)
            (like, *_) = (each[0, rows] for each in (group[0].scaled, group[0].at_mlp) if each is not None)
            shape = (columns.stop - columns.start, *like.shape[:2], self.model.d_model)
            # Fresh memory costs as much as a product, so what was there is written over.
            if self._written is None or self._written.shape != shape:
                self._written = like.new_empty(shape)
            gradient, by_block = self._written, self._written.unflatten(0, (stop - first, -1))
            read = [len(sums.attentions) for sums in group if sums.scaled is not None]
            read += [len(sums.mlps) for sums in group if sums.at_mlp is not None]
            if sum(read) < (1 + graph.mlps) * len(by_block):  # some targets have no gradient
                gradient.zero_()
            for sums in group:
                if sums.scaled is not None:
                    at = slice(sums.attentions.start - first, sums.attentions.stop - first)
                    self._project_back(sums, rows, by_block[at, : graph.mlp_target(0)])
                if sums.at_mlp is not None:
                    by_block[sums.mlps.start - first : sums.mlps.stop - first, -1] = sums.at_mlp[:, rows]
            yield graph.sources_before_mlp(stop - 1), columns, gradient
        if self.logits is not None:
            yield graph.n_sources, slice(graph.n_targets - 1, graph.n_targets), self.logits[rows][None]

    def _groups(self) -> list[list[_BlockSums]]:
        """Neighbours whose targets share a product."""
        read = [sums for sums in self.blocks if sums.scaled is not None or sums.at_mlp is not None]
        blocks, each = self.model.blocks, max((len(sums.mlps) for sums in read), default=1)
        most = min(TARGETS_TOGETHER / (blocks[0].n_channels + 1), BLOCKS_TOGETHER * len(blocks))
        size = max(1, int(most / each))
        return [read[start : start + size] for start in range(0, len(read), size)]

    def _project_back(
        self, sums: _BlockSums, rows: slice, into: Float[Tensor, "blocks n_channels batch pos d_model"]
    ) -> None:
        """Gradients at what the channels of some blocks read."""
        assert sums.scaled is not None
        scaled = sums.scaled[:, rows].permute(0, 3, 1, 2, 4).flatten(2, 3)
        _multiply(scaled, self._projection(sums.attentions)[0], into)
        if sums.along:
            along = torch.stack([part[:, rows] for part in sums.along], -1) / self.model.d_model
            direction = torch.stack([part[:, rows] for part in sums.direction], -2)
            if len(into) == 1:
                by_token = into[0].flatten(1, 2).transpose(0, 1)
                by_token.baddbmm_(along.flatten(0, 2), direction.flatten(0, 2), alpha=-1)
            else:
                rank_one = torch.bmm(along.flatten(0, 2), direction.flatten(0, 2))
                into -= rank_one.unflatten(0, along.shape[:3]).permute(0, 3, 1, 2, 4)

    def chunks(self, differences: ActivationDifferences, extra: int = 1) -> Iterator[slice]:
        """Examples whose expanded differences, `extra` times, are held at once."""
        n, length = differences.input.shape[:2]
        blocks = max((group[-1].mlps.stop - group[0].mlps.start for group in self._groups()), default=1)
        rows = extra * (self.model.graph.n_sources + blocks * (self.model.blocks[0].n_channels + 1))
        size = max(1, CHUNK_BYTES // (rows * length * self.model.d_model * differences.input.itemsize))
        return (slice(start, min(start + size, n)) for start in range(0, n, size))

    def contract(
        self,
        differences: ActivationDifferences,
        positions: Int[Tensor, " batch"],
        *,
        rows: slice | None = None,
        per_example: bool,
        neurons: bool = False,
    ) -> Float[Tensor, "rows n_sources width"]:
        """Scores of the batch: difference of each source times gradient at each later target.

        Args:
            differences: Ablated minus clean activations.
            positions: Read position of each example.
            rows: Sources to score (a slice of graph rows); default all.
            per_example: Keep examples apart; otherwise the result is their sum, `[1, S, R]`.
            neurons: Score the dimensions of each source instead, `[.., S, d_model]`.
        """
        graph = self.model.graph
        wanted = rows or slice(0, graph.n_sources)
        if neurons:
            return self._neurons(differences, positions, wanted, per_example=per_example)
        n = len(differences.input) if per_example else 1
        # Targets first: a matrix product is fastest where its longer side, the sources, lies close in memory.
        scores = differences.input.new_zeros(n, graph.n_targets, graph.n_sources)
        expanded = None
        for chunk in self.chunks(differences):
            expanded = differences.expand(chunk, expanded)
            read = at_read(self.model, expanded, positions[chunk])
            for until, targets, right in self.parts(chunk):
                sources = slice(wanted.start, min(wanted.stop, until))
                if sources.start >= sources.stop:
                    continue
                left = (read if targets.stop == graph.n_targets else expanded)[sources]
                if per_example:
                    left, right = left.flatten(2).permute(1, 2, 0), right.flatten(2).transpose(0, 1)
                    scores[chunk, targets, sources].baddbmm_(right, left)
                else:
                    scores[0, targets, sources].addmm_(right.flatten(1), left.flatten(1).T)
        self._written = None
        return scores.mT.masked_fill_(~graph.valid.to(scores.device), 0)

    def _neurons(
        self,
        differences: ActivationDifferences,
        positions: Int[Tensor, " batch"],
        wanted: slice,
        *,
        per_example: bool,
    ) -> Float[Tensor, "rows n_sources d_model"]:
        """Difference of each source times the summed gradient of all that reads it, by dimension."""
        n = len(differences.input) if per_example else 1
        scores = differences.input.new_zeros(n, self.model.graph.n_sources, self.model.d_model)
        for chunk in self.chunks(differences):
            expanded = differences.expand(chunk)
            for rows, gradient in self._downstream(expanded[0], chunk, positions[chunk]):
                sources = slice(max(rows.start, wanted.start), min(rows.stop, wanted.stop))
                if sources.start >= sources.stop:
                    continue
                each = (expanded[sources] * gradient).sum(2).transpose(0, 1)
                if per_example:
                    scores[chunk, sources] = each
                else:
                    scores[0, sources] += each.sum(0)
        return scores

    def _downstream(
        self, like: Float[Tensor, "batch pos d_model"], chunk: slice, positions: Int[Tensor, " batch"]
    ) -> Iterator[tuple[slice, Float[Tensor, "batch pos d_model"]]]:
        """Sources, from the last to `input`, and the summed gradient of the targets that read them.

        The sum grows in place on the way, so each is to be used before the next.
        """
        graph, gradient = self.model.graph, torch.zeros_like(like)
        if self.logits is not None and self.model.pools:
            gradient += self.logits[chunk]
        elif self.logits is not None:
            gradient[torch.arange(len(like)), positions] = self.logits[chunk, 0]
        by_layer = {layer: sums for sums in self.blocks for layer in (*sums.attentions, *sums.mlps)}
        for layer in reversed(range(self.model.n_layers)):
            sums, mlps = by_layer.get(layer), graph.mlp_sources(layer)
            heads = slice(graph.head_source(layer), mlps.start)
            yield mlps, gradient
            if graph.parallel:
                yield heads, gradient
            if sums is not None and sums.at_mlp is not None and layer in sums.mlps:
                gradient += sums.at_mlp[layer - sums.mlps.start, chunk]
            if not graph.parallel:
                yield heads, gradient
            if sums is not None and sums.scaled is not None and layer in sums.attentions:
                block = layer - sums.attentions.start
                weight = self._projection(sums.attentions)[0][block]
                gradient += sums.scaled[block, chunk].flatten(2) @ weight.flatten(0, 1)
                for along, direction in zip(sums.along, sums.direction, strict=True):
                    share = along[block, chunk].sum(-1, keepdim=True) / self.model.d_model
                    gradient -= share * direction[block, chunk]
        yield slice(0, 1), gradient


def at_read(
    model: Model, expanded: Float[Tensor, "n_sources batch pos d_model"], positions: Tensor
) -> Float[Tensor, "n_sources batch reads d_model"]:
    """What the logits read of the sources: all positions, or the read position as an axis of one."""
    if model.pools:
        return expanded
    index = torch.arange(expanded.shape[1], device=positions.device)
    return expanded[:, index, positions][:, :, None]


def _rows_together(values: Float[Tensor, "blocks n *axes"]) -> Iterator[slice]:
    """Examples whose values are small together."""
    n, most = values.shape[1], TOGETHER_BYTES["cpu" if values.device.type == "cpu" else "cuda"]
    size = max(1, most * n // values.nbytes)
    return (slice(start, start + size) for start in range(0, n, size))


def _multiply(
    left: Float[Tensor, "blocks heads tokens width"],
    weight: Float[Tensor, "blocks heads width d_model"],
    into: Float[Tensor, "blocks heads batch pos d_model"],
) -> None:
    """Products of each head, written where they belong: without a copy for one block."""
    left, weight = left.flatten(0, 1), weight.flatten(0, 1)
    if len(into) == 1:
        torch.bmm(left, weight, out=into[0].flatten(1, 2))
    else:
        into.copy_(torch.bmm(left, weight).view(into.shape))


def _stacked(values: Sequence[Tensor]) -> Tensor:
    return values[0][None] if len(values) == 1 else torch.stack(list(values))


def _filled(values: Sequence[Tensor | None], fill: float, model: Model) -> Tensor | None:
    """Parameters of several blocks `[blocks, 1, 1, ...]`, `fill` where one has none; None where none has."""
    known = next((value for value in values if value is not None), None)
    if known is None:
        return None
    every = [known.new_full(known.shape, fill) if value is None else value for value in values]
    return _stacked([value.to(model.device) for value in every]).to(model.result_dtype)[:, None, None]


def _projection(
    model: Model, layers: range
) -> tuple[
    Float[Tensor, "blocks n_channels d_head d_model"], Float[Tensor, "blocks 1 1 n_channels d_head"] | None
]:
    """q/k/v projections with gain and centring of the norm before them, and what they give at x^ = 0.

    The second is the shift of the norm through the weights, plus biases; None where there is neither.
    """
    blocks = [model.blocks[layer] for layer in layers]
    norms = [block.attention_norm for block in blocks]
    plain = _stacked([block.qkv_weight() for block in blocks]).to(model.result_dtype)
    weight, gain = plain.permute(0, 2, 3, 1), _filled([norm.gain for norm in norms], 1.0, model)
    weight = norms[0].centre(weight if gain is None else weight * gain).contiguous()
    constant = _filled([block.qkv_bias() for block in blocks], 0.0, model)
    shift = _filled([norm.shift for norm in norms], 0.0, model)
    if shift is not None:
        through = torch.bmm(shift[:, 0], plain.flatten(2)).view(len(plain), 1, 1, *plain.shape[2:])
        constant = through if constant is None else constant + through
    return weight, constant
