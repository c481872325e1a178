"""What an ablated edge carries instead of its source's output, and what replaces that of an ablated head.

An `Ablation` says which replacement activations a~ to use. For edges `prepare` measures what it needs on the
data once and then serves a `Baseline` for any batch: the activations themselves, and the stream each norm
would read if every edge were cut. For heads `prepare_heads` gives the outputs that replace theirs in a run.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.core.errors import InputError
from assay.core.random import stream
from assay.core.registry import Registry
from assay.execution.baseline import Baseline, KeptRuns, Prepared
from assay.execution.replacements import Replacement, Setting, Site, real_tokens
from assay.models import Model, Trace
from assay.tasks import Batch, Task


class Ablation(abc.ABC):
    """Abstract: which replacement activations cut edges, or ablated heads, carry.

    Attributes:
        key: Registered name.
        paired: Whether the corrupted input of each example is used.
        draws: Independent draws of heads that are averaged by default; 1 where nothing is random.
        measured: Whether cut edges carry what is measured over several examples.
        summary: One line for lists.
    """

    key: str
    paired: bool = False
    draws: int = 1
    measured: bool = True
    summary: str = ""

    def prepare(self, model: Model, task: Task, *, batch_size: int, seed: int) -> Prepared:
        """Measure on `task` what cut edges need; forward passes happen here or in `baseline`."""
        raise InputError(f"{self.key!r} is defined for heads, not for edges")

    def prepare_heads(self, setting: Setting) -> Replacement:
        """Measure what replaces the outputs of heads; plain passes happen here."""
        raise InputError(f"{self.key!r} is defined for edges, not for heads")

    def served(self, setting: Setting) -> Bool[np.ndarray, " n"]:
        """Examples that there is a replacement for; the others keep their own outputs."""
        return np.ones(setting.task.n, dtype=np.bool_)


ABLATIONS: Registry[Ablation] = Registry("ablation", holds=Ablation)


def get_ablation(ablation: str | Ablation) -> Ablation:
    """The ablation behind a key, or the object itself."""
    if isinstance(ablation, Ablation):
        return ablation
    key = ablation.replace("_", "-")
    return ABLATIONS[key if key in ABLATIONS else ablation]


class Zero(Ablation):
    """Zeros: the source writes nothing (output biases of the attention stay)."""

    key = "zero"
    measured = False
    summary = "zeros: the source writes nothing"

    def prepare(self, model: Model, task: Task, *, batch_size: int, seed: int) -> Prepared:
        heads = torch.zeros(1, 1, model.n_heads * model.d_head, dtype=model.dtype, device=model.device)
        stream = torch.zeros(1, 1, model.d_model, dtype=model.dtype, device=model.device)
        return _shared(model, [stream] + [heads] * model.n_layers + [stream] * model.n_layers)

    def prepare_heads(self, setting: Setting) -> Replacement:
        return lambda site: torch.zeros_like(site.z[:1, :1])


class Resample(Ablation):
    """Activations of the unablated run on the paired corrupted input."""

    key = "resample"
    paired = True
    measured = False
    summary = "its output on the corrupted input"

    def prepare(self, model: Model, task: Task, *, batch_size: int, seed: int) -> Prepared:
        def make(batch: Batch, trace: Trace | None) -> Baseline:
            if trace is None:
                with torch.no_grad(), model.tracing(streams=True) as trace:
                    model.forward(batch.corrupted)
            if trace.attention_in:
                return Baseline.of(model, trace)
            return Baseline(model=model, input=trace.input, z=trace.z, mlp=trace.mlp)

        return Prepared(make=make)

    def prepare_heads(self, setting: Setting) -> Replacement:
        outputs = setting.outputs(setting.task, corrupted=True)
        return lambda site: outputs[site.layer][site.batch.indices]


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

    @property
    def summary(self) -> str:  # type: ignore[override]  # and two summaries
        return f"its mean over examples{' at the same position' if self.per_position else ' and positions'}"

    def prepare(
        self, model: Model, task: Task, *, batch_size: int, seed: int, keep: KeptRuns | None = None
    ) -> Prepared:
        if self.per_position:
            check_several(self.key, task.n)
            check_aligned(self.key, task, task)
        sums = MeanSums(model, self, keep=keep)
        for batch in task.batches(batch_size):
            sums.add(batch)
        return sums.prepared()

    def prepare_heads(self, setting: Setting) -> Replacement:
        reference = setting.reference
        if self.per_position:
            check_aligned(self.key, reference, setting.task)
        used = setting.finite(reference)
        rows = used if self.per_position else real_tokens(reference, used)
        means = [z.double()[rows].mean(0) for z in setting.outputs(reference)]
        means = [mean[None] if self.per_position else mean[None, None] for mean in means]
        return lambda site: means[site.layer][:, : site.z.shape[1]]


class Noise(Ablation):
    """Gaussian noise of the source's own standard deviation over the clean examples.

    Each example draws from a stream of its own row number, so results do not depend on the batch size.
    For heads the noise is drawn before the output projection.
    """

    key = "noise"
    draws = 5
    summary = "noise of its own spread over the examples"

    def prepare(self, model: Model, task: Task, *, batch_size: int, seed: int) -> Prepared:
        def moments(value: Tensor, weight: Tensor) -> Tensor:
            value = value * weight
            return torch.stack([value.sum((0, 1, 3)), value.square().sum((0, 1, 3))])

        n_positions = int(task.lengths.sum())
        deviations = []
        sums = SourceSums(model, moments)
        for batch in task.batches(batch_size):
            sums.add(batch)
        for (total, square), width in zip(sums.totals, _widths(model), strict=True):
            n = n_positions * width
            deviations.append(((square - total.square() / n) / max(n - 1, 1)).clamp(min=0).sqrt())

        def make(batch: Batch, trace: Trace | None) -> Baseline:
            widths = [
                width * deviation.numel() for width, deviation in zip(_widths(model), deviations, strict=True)
            ]
            shape = (batch.width, sum(widths))
            rngs = [stream(seed, f"noise/{row}") for row in batch.indices.tolist()]
            rows = [torch.from_numpy(rng.standard_normal(shape, dtype="float32")) for rng in rngs]
            parts = torch.stack(rows).to(model.device).split(widths, dim=2)
            scales = (
                deviation.float().repeat_interleave(part.shape[2] // deviation.numel())
                for part, deviation in zip(parts, deviations, strict=True)
            )
            values = [(part * scale).to(model.dtype) for part, scale in zip(parts, scales, strict=True)]
            return _baseline(model, values)

        return Prepared(make=make)

    def prepare_heads(self, setting: Setting) -> Replacement:
        real = real_tokens(setting.reference, setting.finite(setting.reference))
        spread = [
            z[real].double().transpose(0, 1).flatten(1).std(1) for z in setting.outputs(setting.reference)
        ]
        return lambda site: setting.noise(self.key, site) * spread[site.layer][:, None]


class NoiseAdditive(Ablation):
    """The source's own output on the clean input plus Gaussian noise of its spread on that input.

    The deviation is over real positions and features of one prompt (ddof 1). Each example draws from a stream
    of its own row number. For heads the noise is added before the output projection.
    """

    key = "noise-additive"
    draws = 5
    measured = False
    summary = "its own output plus noise of its own spread"

    def prepare(self, model: Model, task: Task, *, batch_size: int, seed: int) -> Prepared:
        def make(batch: Batch, trace: Trace | None) -> Baseline:
            with torch.no_grad(), model.tracing() as clean:
                model.forward(batch.clean)
            rngs = [stream(seed, f"noise-additive/{row}") for row in batch.indices.tolist()]
            noisy = []
            for value, nodes in _by_source(model, clean):
                by_node = value.double().unflatten(-1, (nodes, -1))
                draws = torch.stack(
                    [torch.from_numpy(rng.standard_normal(by_node.shape[1:])) for rng in rngs]
                )
                noise = draws.to(by_node.device) * _own_spread(by_node, batch)
                noisy.append((by_node + noise).flatten(2).to(value.dtype))
            return _baseline(model, noisy)

        return Prepared(make=make)

    def prepare_heads(self, setting: Setting) -> Replacement:
        def replaced(site: Site) -> Tensor:
            return site.z + setting.noise(self.key, site) * _own_spread(site.z, site.batch)

        return replaced


def _own_spread(
    by_node: Float[Tensor, "batch pos nodes width"], batch: Batch
) -> Float[Tensor, "batch one nodes one"]:
    """Standard deviation of each node over the real positions and features of one example."""
    real = torch.arange(by_node.shape[1], device=by_node.device) < batch.lengths[:, None]
    spread = [
        one[here].transpose(0, 1).flatten(1).double().std(1) for one, here in zip(by_node, real, strict=True)
    ]
    return torch.stack(spread)[:, None, :, None]


def _shared(model: Model, values: list[Tensor], kept: KeptRuns | None = None) -> Prepared:
    """One row of `input`, heads and MLPs for all examples; a single position is spread over all of them."""

    def make(batch: Batch, trace: Trace | None) -> Baseline:
        length = batch.width
        return _baseline(
            model,
            [value.expand(1, length, -1) if value.shape[1] == 1 else value[:, :length] for value in values],
        )

    return Prepared(make=make, kept=kept)


def _baseline(model: Model, values: list[Tensor]) -> Baseline:
    """The baseline of `input`, the heads of each block, and the MLPs."""
    z, mlp = values[1 : 1 + model.n_layers], values[1 + model.n_layers :]
    return Baseline(model=model, input=values[0], z=z, mlp=mlp)


def _by_source(model: Model, trace: Trace) -> list[tuple[Tensor, int]]:
    """Outputs of `input`, the heads of each block, and the MLPs, with the number of sources in each."""
    return [(trace.input, 1), *((z, model.n_heads) for z in trace.z), *((mlp, 1) for mlp in trace.mlp)]


def _widths(model: Model) -> list[int]:
    """Entries per position of one source, for `input`, the heads of each block, and the MLPs."""
    return [model.d_model] + [model.d_head] * model.n_layers + [model.d_model] * model.n_layers


class SourceSums:
    """Sums over clean inputs of something about the outputs of every source, batch by batch.

    Args:
        model: The model.
        reduce: From values `[batch, pos, nodes, width]` and weights of real positions, both float64, to what
            is added up.
        keep: Where to leave the passes for who reads them next.

    Attributes:
        totals: One for `input`, one per block for the heads, one per block for the MLP.
    """

    def __init__(
        self, model: Model, reduce: Callable[[Tensor, Tensor], Tensor], *, keep: KeptRuns | None = None
    ) -> None:
        self.model, self.totals = model, list[Tensor]()
        self._reduce, self._keep = reduce, keep

    def add(self, batch: Batch) -> None:
        """One forward pass over the clean inputs of a batch."""
        model = self.model
        batch = batch.to(model.device)
        with torch.no_grad(), model.tracing() as trace:
            hidden = model.forward(batch.clean)
            if self._keep is not None:
                self._keep.put(batch, trace, model.read(hidden, batch.positions))
        positions = torch.arange(batch.width, device=model.device)
        weight = (positions < batch.lengths[:, None])[..., None, None].double()
        values = _by_source(model, trace)
        parts = [self._reduce(value.double().unflatten(-1, (nodes, -1)), weight) for value, nodes in values]
        pairs = zip(self.totals, parts, strict=True)
        self.totals = [a + b for a, b in pairs] if self.totals else parts


class MeanSums:
    """What a mean ablation measures, from batches that are given one at a time.

    Serves data that are read once for several models: each batch goes to `add` of each model's sums, and
    `prepared` gives what `Mean.prepare` gives for all the batches together.

    Args:
        model: The model.
        ablation: `mean` or `mean-positional`.
        keep: Where to leave the clean passes for the discovery that reads them next.

    Attributes:
        n: Examples so far.

    Example:
        >>> from assay.models import load_model
        >>> from assay.tasks import load_task
        >>> model = load_model("mini")
        >>> sums = MeanSums(model, Mean())
        >>> for batch in load_task("ioi", model, n=6).batches(2):
        ...     sums.add(batch)
        >>> sums.n, sums.prepared().baseline(batch).input.shape  # one row for all examples
        (6, torch.Size([1, 15, 160]))
    """

    def __init__(self, model: Model, ablation: Mean, *, keep: KeptRuns | None = None) -> None:
        self.model, self.ablation, self.n = model, ablation, 0
        self._keep, self._positions = keep, 0
        self._widths: set[int] = set()
        self._sums = SourceSums(
            model, lambda value, weight: (value * weight).sum(0, True).flatten(2), keep=keep
        )

    def add(self, batch: Batch) -> None:
        """Take a batch in: one forward pass.

        Raises:
            InputError: If `mean-positional` meets examples of another length.
        """
        self._widths |= set(batch.lengths.tolist())
        if self.ablation.per_position and len(self._widths) > 1:
            raise unequal_lengths(self.ablation.key, sorted(self._widths))
        self._sums.add(batch)
        self.n += len(batch.indices)
        self._positions += int(batch.lengths.sum())

    def prepared(self) -> Prepared:
        """The ablation with the means over all batches so far.

        Raises:
            InputError: Before the first example; for `mean-positional` before the second.
        """
        if self.ablation.per_position or self.n == 0:
            check_several(self.ablation.key, self.n)
        sums, count = self._sums.totals, self.n
        if not self.ablation.per_position:
            sums, count = [value.sum(1, keepdim=True) for value in sums], self._positions
        return _shared(self.model, [(value / count).to(self.model.dtype) for value in sums], self._keep)


def check_several(key: str, n: int) -> None:
    """Refuse a mean over no example, or of each position over one."""
    if n < 2:
        raise InputError(
            f"{key} ablation of {n} example would replace every activation by itself; give at least 2 "
            "examples"
        )


def check_aligned(key: str, reference: Task, task: Task) -> None:
    """Refuse prompts of different lengths where each position has a mean of its own."""
    lengths = sorted({*reference.lengths.tolist(), *task.lengths.tolist()})
    if len(lengths) > 1:
        raise unequal_lengths(key, lengths)


def unequal_lengths(key: str, lengths: list[int]) -> InputError:
    """What to say of prompts of different lengths where each position has a mean of its own."""
    return InputError(
        f"{key} uses the mean of each position, but the prompts have lengths {lengths}; use prompts of "
        "one template, or 'mean'"
    )


class MeasuredOn(Ablation):
    """An ablation of edges whose values are measured on prompts of their own, whatever prompts are run.

    Args:
        ablation: The ablation.
        reference: What it is measured on.
    """

    def __init__(self, ablation: Ablation, reference: Task) -> None:
        self.key, self.paired, self.summary = ablation.key, ablation.paired, ablation.summary
        self._ablation, self._reference = ablation, reference
        self._made: tuple[Model, Prepared] | None = None

    def prepare(self, model: Model, task: Task, *, batch_size: int, seed: int) -> Prepared:
        reference = model.bind(self._reference)
        if isinstance(self._ablation, Mean) and self._ablation.per_position:
            check_aligned(self.key, reference, task)
        if self._made is None or self._made[0] is not model:
            made = self._ablation.prepare(model, reference, batch_size=batch_size, seed=seed)
            self._made = model, made
        return self._made[1]


for _ablation in (Resample(), Zero(), Mean(), Mean(per_position=True), Noise(), NoiseAdditive()):
    ABLATIONS.add(_ablation.key, _ablation)
