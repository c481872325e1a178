"""What an ablated edge carries instead of its source's output.

An `Ablation` says which replacement activations a~ to use; `prepare` measures what it needs on the
data once and then serves a `Baseline` for any batch: the activations themselves, and the stream
each norm would read if every edge were cut.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import InputError
from assay.core.random import stream
from assay.core.registry import Registry
from assay.models import Model, Trace
from assay.tasks import Batch, Task


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

    @property
    def rows(self) -> int:
        return self.input.shape[0]

    @property
    def nbytes(self) -> int:
        """Memory of the activations and of the trace behind them."""
        tensors = [self.input, *self.z, *self.mlp]
        if self.trace is not None:
            tensors += self.trace.attention_in + self.trace.mlp_in + self.trace.block_in
            tensors += [part for parts in self.trace.qkv for part in parts]
        return sum(tensor.nbytes for tensor in tensors)

    def repeat(self, times: int) -> "Baseline":
        """The values of every example `times` times, all examples first; shared ones serve as they are."""
        if self.rows == 1:
            return self

        def repeated(values: list[Tensor]) -> list[Tensor]:
            return [value.repeat(times, *[1] * (value.ndim - 1)) for value in values]

        trace = self.trace
        if trace is not None:
            assert trace.final_in is not None
            trace = Trace(
                attention_in=repeated(trace.attention_in),
                mlp_in=repeated(trace.mlp_in),
                qkv=[repeated(parts) for parts in trace.qkv],
                final_in=repeated([trace.final_in])[0],
            )
        (first,) = repeated([self.input])
        return Baseline(
            model=self.model, input=first, z=repeated(self.z), mlp=repeated(self.mlp), trace=trace
        )

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
            normed = block.attention_norm.module(self.attention_in(layer))
            self._channel_cache[layer] = block.channels([projection(normed) for projection in block.qkv])
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
            attention = torch.nn.functional.linear(
                self.z[layer], block.out_weight().flatten(0, 1).T, block.out_bias()
            )
            if not self.model.graph.parallel:
                stream = stream + attention
                streams.append(stream)
                stream = stream + self.mlp[layer]
            else:
                streams.append(stream)
                stream = stream + attention + self.mlp[layer]
        return [*streams, stream]


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
        size = sum(value.nbytes for value in (*trace.block_in, *trace.z, *trace.mlp, logits))
        if self._bytes + size <= self.max_bytes:
            self._bytes += size
            self._runs[int(batch.indices[0]), len(batch.indices)] = trace, logits

    def take(self, batch: Batch) -> tuple[Trace, Tensor] | None:
        """The pass over a batch, which is then no longer kept; None if it is not here."""
        return self._runs.pop((int(batch.indices[0]), len(batch.indices)), None)


class BaselineShelf:
    """Ablated values of one task under one ablation, kept from one circuit to the next.

    Only for runs that share model, task, ablation and seed; `CircuitRuns` holds one.

    Args:
        max_bytes: What may be kept; batches beyond it are made anew each time.
    """

    def __init__(self, max_bytes: int = 2**30) -> None:
        self.max_bytes = max_bytes
        self._bytes = 0
        self._prepared: Prepared | None = None
        self._baselines: dict[tuple[int, int], Baseline] = {}

    def prepared(self, make: Callable[[], "Prepared"]) -> "Prepared":
        """The prepared ablation, made on first use."""
        if self._prepared is None:
            self._prepared = make()
        return self._prepared

    def baseline(self, prepared: "Prepared", batch: Batch) -> Baseline:
        """The baseline of a batch, from the shelf if it is there."""
        key = (int(batch.indices[0]), len(batch.indices))
        if key not in self._baselines:
            baseline = prepared.baseline(batch)
            if self._bytes + baseline.nbytes > self.max_bytes:
                return baseline
            self._bytes += baseline.nbytes
            self._baselines[key] = baseline
        return self._baselines[key]


class Ablation(abc.ABC):
    """Abstract: which replacement activations a cut edge carries."""

    key: str
    paired: bool = False  # whether the corrupted input of each example is used

    @abc.abstractmethod
    def prepare(self, model: Model, task: Task, *, batch_size: int, seed: int) -> "Prepared":
        """Measure on `task` whatever the replacement needs; forward passes happen here or in `baseline`."""


class Prepared(abc.ABC):
    """Serves baselines for batches of the task it was prepared on.

    Attributes:
        kept: Clean passes that preparing made, where the caller asked for them.
    """

    kept: KeptRuns | None = None

    @abc.abstractmethod
    def baseline(self, batch: Batch, trace: Trace | None = None) -> Baseline:
        """Baseline of a batch; `trace` is a pass over `batch.corrupted` if the caller has one already."""


ABLATIONS: Registry[Ablation] = Registry("ablation", holds=Ablation)


def get_ablation(ablation: str | Ablation) -> Ablation:
    """The ablation behind a key, or the object itself."""
    if isinstance(ablation, Ablation):
        return ablation
    key = ablation.replace("_", "-")
    return ABLATIONS[key if key in ABLATIONS else ablation]


class Resample(Ablation):
    """Activations of the unablated run on the paired corrupted input."""

    key = "resample"
    paired = True

    def prepare(self, model: Model, task: Task, *, batch_size: int, seed: int) -> Prepared:
        return _Resampled(model)


class _Resampled(Prepared):
    def __init__(self, model: Model) -> None:
        self.model = model

    def baseline(self, batch: Batch, trace: Trace | None = None) -> Baseline:
        if trace is None:
            with torch.no_grad(), self.model.tracing(streams=True) as trace:
                self.model.forward(batch.corrupted)
        return Baseline(
            model=self.model,
            input=trace.input,
            z=trace.z,
            mlp=trace.mlp,
            trace=trace if trace.attention_in else None,
        )


class _Shared(Prepared):
    """One row for all examples; a single position is spread over all of them."""

    def __init__(self, model: Model, stream: Tensor, z: list[Tensor], mlp: list[Tensor]) -> None:
        self.model, self.input, self.z, self.mlp = model, stream, z, mlp

    def baseline(self, batch: Batch, trace: Trace | None = None) -> Baseline:
        length = batch.width

        def spread(value: Tensor) -> Tensor:
            return value.expand(1, length, -1) if value.shape[1] == 1 else value[:, :length]

        return Baseline(
            model=self.model,
            input=spread(self.input),
            z=[spread(value) for value in self.z],
            mlp=[spread(value) for value in self.mlp],
        )


class Zero(Ablation):
    """Zeros: the source writes nothing (output biases of the attention stay)."""

    key = "zero"

    def prepare(self, model: Model, task: Task, *, batch_size: int, seed: int) -> Prepared:
        heads = torch.zeros(1, 1, model.n_heads * model.d_head, dtype=model.dtype, device=model.device)
        stream = torch.zeros(1, 1, model.d_model, dtype=model.dtype, device=model.device)
        return _Shared(model, stream, [heads] * model.n_layers, [stream] * model.n_layers)


@dataclass(frozen=True, kw_only=True)
class Mean(Ablation):
    """Mean of the source over the clean examples.

    Attributes:
        per_position: Average each position by itself (all prompts must have one length) instead of
            over all real positions.
    """

    per_position: bool = False

    @property
    def key(self) -> str:  # type: ignore[override]  # the two forms are two keys
        return "mean-positional" if self.per_position else "mean"

    def prepare(
        self, model: Model, task: Task, *, batch_size: int, seed: int, keep: KeptRuns | None = None
    ) -> Prepared:
        if task.n < 2 and self.per_position:
            raise InputError(
                f"{self.key} ablation of {task.n} example would replace every activation by itself; "
                "give at least 2 examples"
            )
        lengths = sorted(set(task.lengths.tolist()))
        if self.per_position and len(lengths) > 1:
            raise InputError(
                "mean-positional ablation needs prompts of one length, this task has lengths "
                f"{lengths}; use one template, "
                "or ablation='mean'"
            )
        sums = _over_data(
            model,
            task,
            batch_size,
            lambda value, weight: (value * weight).sum(0, keepdim=True).flatten(2),
            keep=keep,
        )
        count: Tensor | int = task.n
        if not self.per_position:
            sums = [value.sum(1, keepdim=True) for value in sums]
            count = int(task.lengths.sum())
        means = [(value / count).to(model.dtype) for value in sums]
        shared = _Shared(model, *_split(means, model.n_layers))
        shared.kept = keep
        return shared


class Noise(Ablation):
    """Gaussian noise of the source's own standard deviation over the clean examples.

    Each example draws from a stream of its own row number, so results do not depend on the batch size.
    For heads the noise is drawn before the output projection.
    """

    key = "noise"

    def prepare(self, model: Model, task: Task, *, batch_size: int, seed: int) -> Prepared:
        def moments(value: Tensor, weight: Tensor) -> Tensor:
            value = value * weight
            return torch.stack([value.sum((0, 1, 3)), value.square().sum((0, 1, 3))])

        n_positions = int(task.lengths.sum())
        widths = _widths(model)
        deviations = []
        for (total, square), width in zip(_over_data(model, task, batch_size, moments), widths, strict=True):
            n = n_positions * width
            deviations.append(((square - total.square() / n) / max(n - 1, 1)).clamp(min=0).sqrt())
        return _Noisy(model, deviations, seed)


class _Noisy(Prepared):
    def __init__(self, model: Model, deviations: list[Tensor], seed: int) -> None:
        self.model, self.deviations, self.seed = model, deviations, seed

    def baseline(self, batch: Batch, trace: Trace | None = None) -> Baseline:
        length = batch.width
        widths = [
            width * deviation.numel()
            for width, deviation in zip(_widths(self.model), self.deviations, strict=True)
        ]
        draws = torch.stack(
            [
                torch.from_numpy(
                    stream(self.seed, f"noise/{row}").standard_normal((length, sum(widths)), dtype="float32")
                )
                for row in batch.indices.tolist()
            ]
        ).to(self.model.device)
        values = []
        for part, deviation in zip(draws.split(widths, dim=2), self.deviations, strict=True):
            scale = deviation.float().repeat_interleave(part.shape[2] // deviation.numel())
            values.append((part * scale).to(self.model.dtype))
        embedded, z, mlp = _split(values, self.model.n_layers)
        return Baseline(model=self.model, input=embedded, z=z, mlp=mlp)


class NoiseAdditive(Ablation):
    """The source's own output on the clean input plus Gaussian noise of its spread on that input.

    The deviation is over real positions and features of one prompt (ddof 1). Each example draws from a stream
    of its own row number. For heads the noise is added before the output projection.
    """

    key = "noise-additive"

    def prepare(self, model: Model, task: Task, *, batch_size: int, seed: int) -> Prepared:
        return _AddedNoise(model, seed)


class _AddedNoise(Prepared):
    def __init__(self, model: Model, seed: int) -> None:
        self.model, self.seed = model, seed

    def baseline(self, batch: Batch, trace: Trace | None = None) -> Baseline:
        with torch.no_grad(), self.model.tracing() as clean:
            self.model.forward(batch.clean)
        real = torch.arange(batch.width, device=self.model.device) < batch.lengths[:, None]
        sources = [
            (clean.input, 1),
            *((z, self.model.n_heads) for z in clean.z),
            *((m, 1) for m in clean.mlp),
        ]
        rngs = [stream(self.seed, f"noise-additive/{row}") for row in batch.indices.tolist()]
        noisy = []
        for value, nodes in sources:
            by_node = value.double().unflatten(-1, (nodes, -1))
            spread = torch.stack(
                [one[here].transpose(0, 1).flatten(1).std(1) for one, here in zip(by_node, real, strict=True)]
            )
            draws = torch.stack([torch.from_numpy(rng.standard_normal(by_node.shape[1:])) for rng in rngs])
            noisy.append(
                (by_node + draws.to(by_node.device) * spread[:, None, :, None]).flatten(2).to(value.dtype)
            )
        embedded, z, mlp = _split(noisy, self.model.n_layers)
        return Baseline(model=self.model, input=embedded, z=z, mlp=mlp)


def _widths(model: Model) -> list[int]:
    """Entries per position of one source, for `input`, the heads of each block, and the MLPs."""
    return [model.d_model] + [model.d_head] * model.n_layers + [model.d_model] * model.n_layers


def _split(values: list[Tensor], n_layers: int) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    return values[0], values[1 : 1 + n_layers], values[1 + n_layers :]


def _over_data(
    model: Model,
    task: Task,
    batch_size: int,
    reduce: Callable[[Tensor, Tensor], Tensor],
    *,
    keep: KeptRuns | None = None,
) -> list[Tensor]:
    """Sum `reduce(values [batch, pos, nodes, width], weights of real positions)` over the clean inputs.

    One total for `input`, one per block for the heads, one per block for the MLP; float64.
    """
    totals: list[Tensor] | None = None
    for batch in task.batches(batch_size):
        batch = batch.to(model.device)
        with torch.no_grad(), model.tracing() as trace:
            hidden = model.forward(batch.clean)
            if keep is not None:
                keep.put(batch, trace, model.read(hidden, batch.positions))
        positions = torch.arange(batch.width, device=model.device)
        weight = (positions < batch.lengths[:, None])[..., None, None].double()
        values = [(trace.input, 1), *((z, model.n_heads) for z in trace.z), *((mlp, 1) for mlp in trace.mlp)]
        parts = [reduce(value.double().unflatten(-1, (nodes, -1)), weight) for value, nodes in values]
        totals = parts if totals is None else [a + b for a, b in zip(totals, parts, strict=True)]
    assert totals is not None
    return totals


for _ablation in (Resample(), Zero(), Mean(), Mean(per_position=True), Noise(), NoiseAdditive()):
    ABLATIONS.add(_ablation.key, _ablation)
