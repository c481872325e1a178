"""Ablated values of every source: what the cut edges of a batch carry, kept for the next circuit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.models import Model, Trace
from assay.tasks import Batch


@dataclass(kw_only=True, eq=False)
class Baseline:
    """Ablated values of every source for some inputs.

    `rows` is 1 where all examples share them (zero, mean), else one per example; heads are kept
    before the output projection (`z`), which is 1 / n_heads of the memory of their outputs.
    """

    model: Model
    input: Float[Tensor, "rows pos d_model"]
    z: list[Tensor]
    mlp: list[Tensor]
    trace: Trace | None = None

    @classmethod
    def of(cls, model: Model, trace: Trace) -> "Baseline":
        """The values of a pass with streams."""
        return cls(model=model, input=trace.input, z=trace.z, mlp=trace.mlp, trace=trace)

    @property
    def rows(self) -> int:
        return self.input.shape[0]

    @property
    def nbytes(self) -> int:
        """Memory of the activations and of the trace behind them."""
        if self.trace is not None:
            return self.trace.nbytes
        return sum(tensor.nbytes for tensor in (self.input, *self.z, *self.mlp))

    def take(self, rows: Int[Tensor, " k"]) -> "Baseline":
        """The values of the examples in these rows; shared ones serve as they are."""
        if self.rows == 1:
            return self

        if self.trace is not None:
            return Baseline.of(self.model, joined([self.trace], lambda parts: parts[0][rows]))
        z, mlp = ([value[rows] for value in values] for values in (self.z, self.mlp))
        return Baseline(model=self.model, input=self.input[rows], z=z, mlp=mlp)

    def attention_in(self, layer: int) -> Float[Tensor, "rows pos d_model"]:
        """Stream entering the attention norm of a block when every edge is cut."""
        return self.trace.attention_in[layer] if self.trace is not None else self._streams[2 * layer]

    def mlp_in(self, layer: int) -> Float[Tensor, "rows pos d_model"]:
        """Stream entering the MLP norm of a block when every edge is cut."""
        return self.trace.mlp_in[layer] if self.trace is not None else self._streams[2 * layer + 1]

    def final_in(self) -> Float[Tensor, "rows pos d_model"]:
        """Stream entering the final norm when every edge is cut."""
        if self.trace is None:
            return self._streams[-1]
        assert self.trace.final_in is not None
        return self.trace.final_in

    def channels(self, layer: int) -> Float[Tensor, "rows pos n_channels d_head"]:
        """q/k/v projections (before rotary and head norms) of `attention_in`."""
        block = self.model.blocks[layer]
        if self.trace is not None:
            return block.channels(self.trace.qkv[layer])
        if layer not in self._channel_cache:
            normed = block.attention_norm(self.attention_in(layer))
            self._channel_cache[layer] = block.project(normed)
        return self._channel_cache[layer]

    @cached_property
    def _channel_cache(self) -> dict[int, Tensor]:
        return {}

    @cached_property
    def _streams(self) -> list[Tensor]:
        """Prefix sums of the ablated sources plus output biases: two per block, then the final one."""
        streams = []
        stream = self.input
        for layer, block in enumerate(self.model.blocks):
            streams.append(stream)
            weight, bias = block.out_weight().flatten(0, 1), block.out_bias()
            attention = torch.nn.functional.linear(self.z[layer].to(weight), weight.T, bias).to(stream)
            if block.target_norm is not None:
                attention = block.target_norm(attention)
            if not self.model.graph.parallel:
                stream = stream + attention
                streams.append(stream)
                stream = stream + self.mlp[layer]
            else:
                streams.append(stream)
                stream = stream + attention + self.mlp[layer]
        return [*streams, stream]


def joined(traces: Sequence[Trace], join: Callable[[list[Tensor]], Tensor]) -> Trace:
    """One trace of the activations of some traces of equal depth, tensor by tensor; see `Trace`."""

    def each(name: str) -> list[Tensor]:
        return [join(list(parts)) for parts in zip(*(getattr(trace, name) for trace in traces), strict=True)]

    last = [trace.final_in for trace in traces if trace.final_in is not None]
    return Trace(
        block_in=[join([trace.input for trace in traces])],
        z=each("z"),
        mlp=each("mlp"),
        attention_in=each("attention_in"),
        mlp_in=each("mlp_in"),
        qkv=[
            [join(list(part)) for part in zip(*parts, strict=True)]
            for parts in zip(*(trace.qkv for trace in traces), strict=True)
        ],
        final_in=join(last) if last else None,
        calls=traces[0].calls,
    )


class KeptRuns:
    """Clean passes that measuring the means made anyway, kept for the discovery that reads them next.

    Args:
        max_bytes: What may be kept; batches beyond it are run again.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._bytes = 0
        self._runs: dict[tuple[int, int], tuple[Trace, Tensor]] = {}

    def put(self, batch: Batch, trace: Trace, logits: Tensor) -> None:
        """Keep the pass over a batch and its logits at the read position, if there is room."""
        size = trace.nbytes + logits.nbytes
        if self._bytes + size <= self.max_bytes:
            self._bytes += size
            self._runs[int(batch.indices[0]), len(batch.indices)] = trace, logits

    def take(self, batch: Batch) -> tuple[Trace, Tensor] | None:
        """The pass over a batch, which is then no longer kept; None if it is not here."""
        return self._runs.pop((int(batch.indices[0]), len(batch.indices)), None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """Serves baselines for batches of the task that an ablation was prepared on.

    Attributes:
        make: Baseline of a batch, from a pass over `batch.corrupted` where the caller has one.
        kept: Clean passes that preparing made, where the caller asked for them.
    """

    make: Callable[[Batch, Trace | None], Baseline]
    kept: KeptRuns | None = None

    def baseline(self, batch: Batch, trace: Trace | None = None) -> Baseline:
        """Baseline of a batch; `trace` is a pass over `batch.corrupted` if the caller has one already."""
        return self.make(batch, trace)


class BaselineShelf:
    """Ablated values of one task under one ablation, and clean passes, kept from one circuit to the next.

    Only for runs that share model, task, ablation and seed; `CircuitRuns` holds one.

    Args:
        max_bytes: What may be kept; batches beyond it are made anew each time.
    """

    def __init__(self, max_bytes: int = 2**30) -> None:
        self.max_bytes = max_bytes
        self._bytes = 0
        self._prepared: Prepared | None = None
        self._baselines: dict[tuple[int, int], Baseline] = {}
        self._clean: dict[tuple[int, int], Trace] = {}

    def prepared(self, make: Callable[[], Prepared]) -> Prepared:
        """The prepared ablation, made on first use."""
        if self._prepared is None:
            self._prepared = make()
        return self._prepared

    def baseline(self, prepared: Prepared, batch: Batch) -> Baseline:
        """The baseline of a batch, from the shelf if it is there."""
        key = (int(batch.indices[0]), len(batch.indices))
        if key not in self._baselines:
            baseline = prepared.baseline(batch)
            if self._bytes + baseline.nbytes > self.max_bytes:
                return baseline
            self._bytes += baseline.nbytes
            self._baselines[key] = baseline
        return self._baselines[key]

    def clean(self, batch: Batch, depth: int, make: Callable[[], Trace]) -> Trace:
        """A pass over the clean inputs of a batch, at least `depth` blocks deep."""
        key = (int(batch.indices[0]), len(batch.indices))
        held = self._clean.get(key)
        if held is not None and len(held.z) >= depth:
            return held
        trace = make()
        grown = trace.nbytes - (0 if held is None else held.nbytes)
        if self._bytes + grown <= self.max_bytes:
            self._bytes += grown
            self._clean[key] = trace
        return trace
