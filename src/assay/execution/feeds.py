"""A plan from the point of view of pairs: what each target takes from which side.

A *feed* is one distinct input of a block or of `logits`; its kept sources are split into those that depend
on the clean input alone and those that depend on both inputs. Everything here follows from the mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from assay.execution.attend import channel_column
from assay.execution.plan import AttentionStep, CompiledMask, Inlet
from assay.models import Block, Model


@dataclass(frozen=True, kw_only=True, eq=False)
class Feed:
    """One distinct input of a block or of `logits`, split by what its sources depend on.

    Attributes:
        key: Names its parts among those of prepared inputs.
        everywhere: At all positions, else at the last one only.
        kept: All kept sources; `clean` and the mixed ones together.
        clean: Kept sources that depend on the clean input alone.
        terms: Mixed sources added to the sum, or subtracted from the total of all mixed ones.
        from_total: Whether `terms` are subtracted.
        mixed: Whether any mixed source is kept.
        pure: Whether the target reads the unchanged clean stream.
    """

    key: tuple[str, int, int]
    everywhere: bool
    kept: tuple[int, ...]
    clean: tuple[int, ...]
    terms: tuple[int, ...]
    from_total: bool
    mixed: bool
    pure: bool

    @property
    def split(self) -> bool:
        """An attention input that is a sum of a clean and an ablated part, and of nothing else."""
        return self.key[0] == "attention" and bool(self.clean) and not self.mixed and not self.pure


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """Channels that read one feed, and their columns of the projection weights."""

    feed: Feed
    channels: tuple[tuple[str, int], ...]
    columns: tuple[int, ...]
    weight: Tensor  # [d_model, n * d_head]; of a split feed with the gain of the norm inside
    bias: Tensor | None  # [n * d_head]; of a split feed with the shift of the norm inside


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionFeeds:
    """The mixed heads of a block with their projections in and out."""

    step: AttentionStep
    projections: tuple[Projection, ...]
    out: Tensor  # [live heads, d_head, d_model]


@dataclass(kw_only=True, eq=False)
class PairLayout:
    """Feeds of a plan, and which mixed sources are kept by themselves."""

    attention: list[list[Feed]] = field(default_factory=list)
    mlp: list[Feed | None] = field(default_factory=list)
    logits: Feed

    @property
    def feeds(self) -> list[Feed]:
        inner = [feed for feeds in self.attention for feed in feeds] + [feed for feed in self.mlp if feed]
        return [*inner, self.logits]

    @property
    def clean_rows(self) -> list[int]:
        """Sources of which some feed reads the clean value."""
        return sorted({row for feed in self.feeds for row in feed.clean})

    @property
    def ablated_feeds(self) -> list[Feed]:
        """Feeds of which something is worked out once per corrupted input."""
        feeds = [feed for feed in self.feeds if feed.kept and not feed.pure]
        return feeds if self.logits.kept else [*feeds, self.logits]


def lay_out(plan: CompiledMask) -> PairLayout:
    """The feeds of a plan."""
    graph = plan.graph
    mixed = plan.somewhere & ~plan.clean
    layout = PairLayout(
        logits=_feed(plan, mixed.tolist(), plan.logits, ("logits", 0, 0), graph.n_sources),
    )
    for layer in range(graph.n_layers):
        step, mlp = plan.attention[layer], plan.mlp[layer]
        upstream = graph.sources_before_block(layer)
        layout.attention.append(
            [
                _feed(plan, mixed.tolist(), inlet, ("attention", layer, index), upstream)
                for index, inlet in enumerate(step.inlets if step else ())
            ]
        )
        before = graph.sources_before_mlp(layer)
        layout.mlp.append(_feed(plan, mixed.tolist(), mlp.inlet, ("mlp", layer, 0), before) if mlp else None)
    return layout


def _feed(
    plan: CompiledMask, mixed: Sequence[bool], inlet: Inlet, key: tuple[str, int, int], upstream: int
) -> Feed:
    live = (plan.everywhere if inlet.everywhere else plan.somewhere).tolist()
    before = [row for row in range(upstream) if live[row]]
    kept = [row for row in before if (row in inlet.terms) is not inlet.from_total]
    clean = tuple(row for row in kept if not mixed[row])
    plus = tuple(row for row in kept if mixed[row])
    minus = tuple(row for row in before if mixed[row] and row not in plus)
    from_total = len(minus) + 1 < len(plus)
    return Feed(
        key=key,
        everywhere=inlet.everywhere,
        kept=tuple(kept),
        clean=clean,
        terms=minus if from_total else plus,
        from_total=from_total,
        mixed=bool(plus),
        pure=len(clean) == upstream,
    )


def gathered(writes: Tensor, rows: Sequence[int], feeds: Sequence[Feed]) -> list[Tensor]:
    """Sum of the sources in `rows` that each feed keeps: `[n, pos, d_model]`, or `[n, d_model]`."""
    if not feeds:
        return []
    writes = writes if feeds[0].everywhere else writes[:, :, -1]
    kept = torch.tensor([[row in feed.kept for row in rows] for feed in feeds], device=writes.device)
    if not rows:
        return [writes.new_zeros(writes.shape[1:]) for _ in feeds]
    sums = kept.to(writes.dtype) @ writes.flatten(1)
    return list(sums.view(len(feeds), *writes.shape[1:]).unbind())


def bind(model: Model, step: AttentionStep, feeds: Sequence[Feed], dtype: torch.dtype) -> AttentionFeeds:
    """The projections of a block's mixed heads, with their slices of the weights."""
    block = model.blocks[step.layer]
    whole = block.qkv_weight(), block.qkv_bias()
    projections = []
    for index, feed in enumerate(feeds):
        channels = step.channels(index)
        columns = tuple(channel_column(block, *channel) for channel in channels)
        weight, bias = projection_weights(*whole, columns)
        if feed.split:
            weight, bias = _folded(block, weight, bias, dtype)
        projections.append(
            Projection(feed=feed, channels=channels, columns=columns, weight=weight, bias=bias)
        )
    return AttentionFeeds(
        step=step,
        projections=tuple(projections),
        out=block.out_weight()[list(step.heads)].to(dtype),
    )


def projection_weights(
    weight: Float[Tensor, "d_model n_channels d_head"],
    bias: Float[Tensor, "n_channels d_head"] | None,
    columns: Sequence[int],
) -> tuple[Tensor, Tensor | None]:
    """Some columns of a q/k/v projection: `[d_model, n * d_head]`, and their bias if there is one."""
    some = weight[:, list(columns)].flatten(1).contiguous()
    return some, None if bias is None else bias[list(columns)].flatten()


def _folded(
    block: Block, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """A projection that takes gain and shift of the norm before it along."""
    norm = block.attention_norm
    if norm.shift is not None:
        through = norm.shift.to(weight.device, dtype) @ weight.to(dtype)
        bias = through if bias is None else bias.to(dtype) + through
    return norm.scaled_by_gain(weight.to(dtype).T).T, bias
