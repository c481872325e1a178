"""One circuit on many pairs of a clean and a corrupted input, each input prepared once.

With a_u the output of source u in the circuit's run and b_u its output on the corrupted input alone,
a target v of the pair (x, x~) reads

    x_v = A_v(x) + B_v(x~) + sum over kept mixed u of a_u,
    A_v(x)  = sum over kept clean u of a_u,
    B_v(x~) = s_v - sum over kept u of b_u,

s_v being the corrupted stream at v. Clean sources depend on x alone and ablated ones on x~ alone, so A_v is
worked out once per clean input and B_v once per corrupted input; what is left for a pair are the mixed
sources that `logits` needs. Three things make a pair cheaper still:

- positions before the first token in which any two inputs differ are the same for all pairs;
- a channel that reads clean (or ablated) sources only is projected once per input;
- an attention input without mixed terms is a sum A + B, so its norm and projection split:
  W N(A + B) = (W A' + W B') / sigma with A', B' centred and sigma^2 from three scalar products.

(uit de Bos and Garriga-Alonso 2024, arXiv:2407.15166, equation 1.)
"""

import copy
from collections.abc import Hashable, Sequence
from functools import cache, partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.circuits import Circuit
from assay.core.errors import InputError, UnsupportedModelError
from assay.execution.attend import channel_column, live_heads
from assay.execution.feeds import AttentionFeeds, Feed, Projection, bind, gathered, lay_out
from assay.execution.plan import CompiledMask, compile_plan
from assay.execution.prepared import PreparedInputs
from assay.execution.written import Wanted, Written, written_by
from assay.models import Model, Trace
from assay.models.attention import PlacedAttention, Tables


class PairRunner:
    """Runs one circuit on pairs of inputs under resample ablation.

    Args:
        model: The model.
        circuit: The edges to keep.
        prefix: Tokens that every input begins with; work on them is shared by all pairs. The read position
            is the last token of an input, so inputs are longer than the prefix.
    """

    def __init__(
        self, model: Model, circuit: Circuit, *, prefix: Int[Tensor, " shared"] | None = None
    ) -> None:
        model.check_text("running a table of pairs")
        if any(block.target_norm is not None for block in model.blocks):
            raise UnsupportedModelError(
                f"a table of pairs of {model.id} cannot run with post_norm={model.post_norm!r}, where a "
                "target does not read the sum of a clean and a corrupted part; use 'exact'"
            )
        self.model = model
        self.dtype = model.result_dtype
        self.plan: CompiledMask = compile_plan(
            model.graph,
            circuit.mask,
            resample=True,
            coupling=model.coupling,
        )
        self.prefix = torch.zeros(0, dtype=torch.long) if prefix is None else prefix
        self._layout = lay_out(self.plan)
        steps, feeds, dtype = self.plan.attention, self._layout.attention, self.dtype

        def bound(layer: int) -> AttentionFeeds | None:
            """The mixed heads of a block with their weights."""
            step = steps[layer]
            return None if step is None else bind(model, step, feeds[layer], dtype)

        self._attention = cache(bound)
        self._wanted = Wanted.by(self._layout.feeds)
        self._prefix_channels = self._read_prefix()

    def with_prefix(self, prefix: Int[Tensor, " shared"]) -> "PairRunner":
        """The same runner for inputs that share other first tokens; weights are not copied."""
        other = copy.copy(self)
        other.prefix = prefix
        other._prefix_channels = other._read_prefix()
        return other

    @torch.no_grad()
    def _read_prefix(self) -> list[Tensor] | None:
        """q/k/v projections of the prefix per block, `[pos, n_channels, d_head]`."""
        if len(self.prefix) == 0:
            return None
        with self.model.tracing(streams=True) as trace:
            self.model.forward(self.prefix[None].to(self.model.device))
        return [
            block.channels(parts)[0].to(self.dtype)
            for block, parts in zip(self.model.blocks, trace.qkv, strict=True)
        ]

    # ---- preparing inputs ------------------------------------------------------------------------

    def prepare_clean(self, tokens: Int[Tensor, "n pos"]) -> PreparedInputs:
        """One plain pass over clean inputs, and the parts of every target that depend on them alone."""
        trace, logits = self._pass(tokens)
        rows = self._layout.clean_rows
        writes = written_by(self.model, trace, rows, behind=len(self.prefix))
        parts: dict[Hashable, Tensor] = {}
        for feed in self._layout.feeds:
            if feed.clean and not feed.split and not feed.pure:
                key = ("A", feed.everywhere, feed.clean)
                if key not in parts:
                    parts[key] = gathered(writes, rows, [feed])[0]
        for layer, bound in enumerate(map(self._attention, range(self.model.n_layers))):
            for projection in bound.projections if bound else ():
                feed = projection.feed
                if feed.pure:
                    parts["channels", feed.key] = self._channels(trace, layer, projection)
                elif feed.split:
                    self._split(parts, layer, projection, gathered(writes, rows, [feed])[0])
        return PreparedInputs(logits=logits, parts=parts, length=tokens.shape[1], tables=self._tables(trace))

    def prepare_corrupted(self, tokens: Int[Tensor, "n pos"]) -> PreparedInputs:
        """One plain pass over corrupted inputs, and the ablated part of every target."""
        trace, logits = self._pass(tokens)
        feeds = self._layout.ablated_feeds
        rows = sorted({row for feed in feeds for row in feed.kept})
        writes = written_by(self.model, trace, rows, behind=len(self.prefix))
        ablated: dict[tuple[str, int, int], Tensor] = {}
        for everywhere in (True, False):
            chosen = [feed for feed in feeds if feed.everywhere is everywhere]
            sums = gathered(writes, rows, chosen)
            for feed, kept in zip(chosen, sums, strict=True):
                ablated[feed.key] = torch.sub(self._stream(trace, feed), kept)
        parts: dict[Hashable, Tensor] = {}
        for layer, bound in enumerate(map(self._attention, range(self.model.n_layers))):
            for projection in bound.projections if bound else ():
                feed = projection.feed
                if not feed.kept:
                    parts["channels", feed.key] = self._channels(trace, layer, projection)
                elif feed.split:
                    self._split(parts, layer, projection, ablated.pop(feed.key))
        parts |= {("B", key): value for key, value in ablated.items()}
        return PreparedInputs(logits=logits, parts=parts, length=tokens.shape[1], tables=self._tables(trace))

    @torch.no_grad()
    def _pass(self, tokens: Tensor) -> tuple[Trace, Tensor]:
        shared = len(self.prefix)
        if tokens.shape[1] <= shared or not bool((tokens[:, :shared].cpu() == self.prefix.cpu()).all()):
            raise InputError(
                f"inputs of {tokens.shape[1]} tokens must start with the shared prefix of {shared} tokens "
                "and be longer than it. Make the runner with a prefix that all inputs share"
            )
        tokens = tokens.to(self.model.device)
        with self.model.tracing(streams=True) as trace:
            hidden = self.model.forward(tokens)
        return trace, self.model.unembed(hidden[:, -1]).to(self.dtype)

    def _tables(self, trace: Trace) -> dict[Hashable, Tables]:
        """Rotary tables; all inputs have the same positions, so those of the first serve."""
        return {kind: (cos[:1], sin[:1]) for kind, (cos, sin) in self.model.tables(trace.calls).items()}

    def _stream(self, trace: Trace, feed: Feed) -> Tensor:
        """The corrupted stream where a feed reads."""
        kind, layer, _ = feed.key
        assert trace.final_in is not None
        streams = {"attention": trace.attention_in, "mlp": trace.mlp_in, "logits": [trace.final_in]}[kind]
        stream = streams[layer].to(self.dtype)
        return stream[:, len(self.prefix) :] if feed.everywhere else stream[:, -1]

    def _channels(self, trace: Trace, layer: int, projection: Projection) -> Tensor:
        """Projections that depend on one side alone: `[n, pos or 1, channels, d_head]`."""
        channels = self.model.blocks[layer].channels(trace.qkv[layer])[:, :, list(projection.columns)]
        channels = channels.to(self.dtype)
        return channels[:, len(self.prefix) :] if projection.feed.everywhere else channels[:, -1:]

    def _split(
        self, parts: dict[Hashable, Tensor], layer: int, projection: Projection, value: Tensor
    ) -> None:
        """One side of a split feed: its projection, and what the scale of the sum needs."""
        norm, key = self.model.blocks[layer].attention_norm, projection.feed.key
        value = value if value.ndim == 3 else value[:, None]
        centred = norm.centre(value)
        parts["centred", key] = centred
        parts["square", key] = centred.double().square().sum(-1)
        parts["projected", key] = centred @ projection.weight

    # ---- running pairs ---------------------------------------------------------------------------

    @torch.no_grad()
    def product(
        self, clean: PreparedInputs, corrupted: PreparedInputs
    ) -> Float[Tensor, "n_clean n_corrupted d_vocab"]:
        """Logits of every combination of a clean and a corrupted input."""
        if self.plan.everything:
            return clean.logits[:, None].expand(-1, corrupted.n, -1)
        logits = _Tile(self, clean, corrupted, None).finish()
        return logits.view(clean.n, corrupted.n, -1)

    @torch.no_grad()
    def pairs(
        self,
        clean: PreparedInputs,
        corrupted: PreparedInputs,
        clean_index: Int[Tensor, " pairs"],
        corrupted_index: Int[Tensor, " pairs"],
    ) -> Float[Tensor, "pairs d_vocab"]:
        """Logits of some combinations, given by row numbers of both sides."""
        if self.plan.everything:
            return clean.logits[clean_index]
        return _Tile(self, clean, corrupted, (clean_index, corrupted_index)).finish()

    def bytes_to_prepare(self, length: int, *, clean: bool) -> int:
        """Working memory of preparing one input of this length: a traced pass, and what its sources write."""
        model, behind = self.model, length - len(self.prefix)
        feeds = [] if clean else self._layout.ablated_feeds
        n_rows = len(self._layout.clean_rows if clean else {row for feed in feeds for row in feed.kept})
        # Of a feed the sum over its sources, and what is left of the stream without it.
        written = n_rows * behind + 2 * sum(behind if feed.everywhere else 1 for feed in feeds)
        kept_of_block = 3 * model.d_model + (model.n_heads + model.blocks[0].n_channels) * model.d_head
        traced = (model.n_layers * kept_of_block + 16 * model.d_model) * length
        wide = 8 if self.dtype == torch.float64 else 4
        return written * model.d_model * wide + traced * model.dtype.itemsize + 2 * wide * model.n_vocab

    def bytes_per_pair(self, length: int) -> int:
        """Rough working memory of one pair of this length."""
        rows = len(self._wanted.every) + 14 + max((len(feeds) for feeds in self._layout.attention), default=0)
        width = 8 if self.dtype == torch.float64 else 4
        return rows * (length - len(self.prefix)) * self.model.d_model * width + 24 * self.model.n_vocab


# --------------------------------------------------------------------------------------------- running


Channels = dict[tuple[str, int], Tensor]  # of the live heads of a block, [..., pos or 1, d_head]


class _Tile:
    """Some pairs on their way through the blocks."""

    def __init__(
        self,
        runner: PairRunner,
        clean: PreparedInputs,
        corrupted: PreparedInputs,
        index: tuple[Tensor, Tensor] | None,
    ) -> None:
        if clean.length != corrupted.length:
            raise InputError(
                f"the clean inputs have {clean.length} tokens, the corrupted ones {corrupted.length}, but "
                "edges can only be patched between inputs of one length"
            )
        self.runner, self.model = runner, runner.model
        self.clean, self.corrupted, self.index = clean, corrupted, index
        self.shared = len(runner.prefix)
        self.length = clean.length - self.shared
        self.positions = PlacedAttention(
            self.model.rules, clean.tables, length=clean.length, causal=self.model.causal, read=None
        )
        self.lead = (clean.n, corrupted.n) if index is None else (len(index[0]),)
        self.n = clean.n * corrupted.n if index is None else len(index[0])
        like = torch.empty(0, dtype=runner.dtype, device=clean.logits.device)
        shape = (self.n, self.length, self.model.d_model)
        self.written = Written(runner._wanted, like, shape, None)

    def left(self, key: Hashable) -> Tensor:
        """A part of the clean inputs, to be broadcast against `right`."""
        part = self.clean.parts[key]
        return part[:, None] if self.index is None else part[self.index[0]]

    def right(self, key: Hashable) -> Tensor:
        """A part of the corrupted inputs."""
        part = self.corrupted.parts[key]
        return part[None] if self.index is None else part[self.index[1]]

    def flat(self, value: Tensor) -> Tensor:
        """`[n_clean, n_corrupted, ...]` or `[pairs, ...]`, each side perhaps of size 1, as `[pairs, ...]`."""
        return value.expand(*self.lead, *value.shape[len(self.lead) :]).reshape(
            self.n, *value.shape[len(self.lead) :]
        )

    def finish(self) -> Tensor:
        model, graph = self.model, self.model.graph
        for layer in range(model.n_layers):
            heads = self.attention(layer)
            if not graph.parallel:
                self.put_heads(layer, *heads)
            mlp = self.mlp(layer)
            if graph.parallel:
                self.put_heads(layer, *heads)
            if mlp is not None:
                self.written.put(graph.mlp_source(layer), mlp)
        stream = self.stream(self.runner._layout.logits)
        return model.finish(stream).to(self.runner.dtype)

    def stream(self, feed: Feed) -> Tensor:
        """What a feed reads: `[pairs, pos, d_model]`, or `[pairs, d_model]` at the last position."""
        value = self.right(("B", feed.key))
        if feed.clean:
            value = self.left(("A", feed.everywhere, feed.clean)) + value
        value = self.flat(value)
        if not feed.mixed:
            return value
        # Term by term in place: a tile has many pairs, and a sum of its own of a few terms would cost more.
        slots, store, total = self.written.at(everywhere=feed.everywhere)
        if feed.from_total:
            assert total is not None
            value = value + total
            for row in feed.terms:
                value -= store[slots[row]]
        else:
            value = value + store[slots[feed.terms[0]]]
            for row in feed.terms[1:]:
                value += store[slots[row]]
        return value

    # ---- attention -------------------------------------------------------------------------------

    def attention(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        """Mixed heads before the output projection: `[heads, pairs, pos or 1, d_head]` of both kinds."""
        bound = self.runner._attention(layer)
        if bound is None:
            return None, None
        block, step = self.model.blocks[layer], bound.step
        channels: Channels = {}
        for projection in bound.projections:
            value = self.project(layer, projection)  # [..., pos or 1, channels, d_head]
            channels.update(zip(projection.channels, value.unbind(-2), strict=True))
        stacked = partial(self.stacked, layer, channels)
        full, last = (
            None if z is None else block.rescaled(z.to(self.runner.dtype)).transpose(0, 1)
            for z in live_heads(self.positions, block, step, stacked)
        )
        return full, last

    def project(self, layer: int, projection: Projection) -> Tensor:
        feed, model = projection.feed, self.model
        if feed.pure:
            return self.left(("channels", feed.key))
        if not feed.kept:
            return self.right(("channels", feed.key))
        if feed.split:
            value = self.left(("projected", feed.key)) + self.right(("projected", feed.key))
            value = value * self.inverse_scale(layer, feed)[..., None]
            value = value if projection.bias is None else value + projection.bias
        else:
            normed = model.blocks[layer].attention_norm(self.stream(feed).to(model.dtype))
            flat = normed.reshape(-1, model.d_model)
            output = (
                flat @ projection.weight
                if projection.bias is None
                else torch.addmm(projection.bias, flat, projection.weight)
            )
            value = output.to(self.runner.dtype).view(self.n, -1, output.shape[-1])
            if self.index is None:
                value = value.unflatten(0, self.lead)
        channels: Tensor = value.unflatten(-1, (len(projection.channels), model.d_head))
        return channels

    def inverse_scale(self, layer: int, feed: Feed) -> Tensor:
        """1 / sigma of the sum of a clean and an ablated part, per pair and position."""
        norm = self.model.blocks[layer].attention_norm
        key = ("centred", feed.key)
        if norm.kind is None:
            return self.left(("square", feed.key)).new_ones(()).to(self.runner.dtype)
        if self.index is None:
            clean, ablated = self.clean.parts[key], self.corrupted.parts[key]
            cross = torch.einsum("itd,jtd->ijt", clean, ablated)
        else:
            cross = (self.left(key) * self.right(key)).sum(-1)
        squares = self.left(("square", feed.key)) + self.right(("square", feed.key)) + 2 * cross.double()
        return torch.rsqrt(squares / self.model.d_model + norm.eps).to(self.runner.dtype)

    def stacked(
        self, layer: int, channels: Channels, channel: str, heads: Sequence[int], everywhere: bool
    ) -> Tensor:
        """Channels of some heads, `[pairs, heads, pos, d_head]`; of keys and values the prefix in front."""
        front = 0 if channel == "q" else self.shared
        shape = (len(heads), front + (self.length if everywhere else 1), self.model.d_head)
        result = self.clean.logits.new_empty(*self.lead, *shape)
        prefix, block = self.runner._prefix_channels, self.model.blocks[layer]
        for place, head in enumerate(heads):
            if front:
                assert prefix is not None
                result[..., place, :front, :] = prefix[layer][:, channel_column(block, channel, head)]
            result[..., place, front:, :] = channels[channel, head]
        return result.view(self.n, *shape)

    # ---- keeping what is written -----------------------------------------------------------------

    def mlp(self, layer: int) -> Tensor | None:
        feed = self.runner._layout.mlp[layer]
        if feed is None:
            return None
        block = self.model.blocks[layer]
        output: Tensor = block.run_mlp(self.stream(feed).to(self.model.dtype))
        return output.to(self.runner.dtype)

    def put_heads(self, layer: int, full: Tensor | None, last: Tensor | None) -> None:
        """Project heads into the stream: singly where a target asks for them, else all at once."""
        bound = self.runner._attention(layer)
        if bound is None:
            return
        first, n_full, out = self.model.graph.head_source(layer), bound.step.n_everywhere, bound.out
        rows = [first + head for head in bound.step.heads]
        live = [place for place, row in enumerate(rows) if self.runner.plan.somewhere[row]]
        if len(live) < len(rows):  # the others were needed for the scale that all heads share
            full = None if full is None else full[[place for place in live if place < n_full]]
            last = None if last is None else last[[place - n_full for place in live if place >= n_full]]
            rows, out, n_full = [rows[place] for place in live], out[live], 0 if full is None else len(full)
        if full is not None:
            self._write(full, rows[:n_full], out[:n_full], *self.written.at(everywhere=True))
        slots, store, total = self.written.at(everywhere=False)
        if store.shape[0] or total is not None:
            parts = [] if full is None else [full[:, :, -1:]]
            parts += [] if last is None else [last]
            total = None if total is None else total[:, None]
            self._write(torch.cat(parts), rows, out, slots, store[:, :, None], total)

    @staticmethod
    def _write(
        z: Tensor, rows: list[int], weight: Tensor, slots: dict[int, int], store: Tensor, total: Tensor | None
    ) -> None:
        """`z` is `[heads, pairs, pos, d_head]`, `store` `[slots, pairs, pos, d_model]`."""
        single = [place for place, row in enumerate(rows) if row in slots]
        for place in single:
            target = store[slots[rows[place]]]
            torch.matmul(z[place], weight[place], out=target)
            if total is not None:
                total += target
        rest = [place for place in range(len(rows)) if place not in single]
        if rest and total is not None:
            merged = z[rest].permute(1, 2, 0, 3).flatten(2)
            total += merged @ weight[rest].flatten(0, 1)
