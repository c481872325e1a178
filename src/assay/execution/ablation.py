"""What an ablated edge carries instead of its source's output, and what replaces that of an ablated head.

An `Ablation` says which replacement activations a~ to use. For edges `prepare` measures what it needs on the
data once and then serves a `Baseline` for any batch: the activations themselves, and the stream each norm
would read if every edge were cut. For heads `prepare_heads` gives the outputs that replace theirs in a run.
"""

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from assay.circuits.naming import named_task
from assay.core.errors import InputError
from assay.core.random import stream
from assay.core.registry import Registry
from assay.models import Block, Model, Trace
from assay.tasks import Batch, Task


# ---- ablated values of a batch ----------------------------------------------------------------------------


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
        """The values of a pass; with streams, their sums are those of the pass."""
        kept = trace if trace.attention_in else None
        return cls(model=model, input=trace.input, z=trace.z, mlp=trace.mlp, trace=kept)

    @classmethod
    def by_source(cls, model: Model, values: list[Tensor]) -> "Baseline":
        """Out of the values of `input`, the heads of each block, and the MLPs."""
        z, mlp = values[1 : 1 + model.n_layers], values[1 + model.n_layers :]
        return cls(model=model, input=values[0], z=z, mlp=mlp)

    @property
    def rows(self) -> int:
        """1 where all examples share the values, else the number of examples."""
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
        return Baseline.by_source(self.model, [value[rows] for value in (self.input, *self.z, *self.mlp)])

    def attention_in(self, layer: int) -> Float[Tensor, "rows pos d_model"]:
        """Stream entering the attention norm of a block when every edge is cut."""
        return self._streams[2 * layer]

    def mlp_in(self, layer: int) -> Float[Tensor, "rows pos d_model"]:
        """Stream entering the MLP norm of a block when every edge is cut."""
        return self._streams[2 * layer + 1]

    def final_in(self) -> Float[Tensor, "rows pos d_model"]:
        """Stream entering the final norm when every edge is cut."""
        return self._streams[-1]

    def channels(self, layer: int) -> Float[Tensor, "rows pos n_channels d_head"]:
        """q/k/v projections (before rotary and head norms) of `attention_in`."""
        block = self.model.blocks[layer]
        if self.trace is not None:
            return block.channels(self.trace.qkv[layer])
        if layer not in self._projected:
            self._projected[layer] = block.project(block.attention_norm(self.attention_in(layer)))
        return self._projected[layer]

    @cached_property
    def _projected(self) -> dict[int, Tensor]:
        return {}

    @cached_property
    def _streams(self) -> list[Tensor]:
        """Prefix sums of the ablated sources plus output biases: two per block, then the final one."""
        if self.trace is not None:
            assert self.trace.final_in is not None
            pairs = zip(self.trace.attention_in, self.trace.mlp_in, strict=True)
            return [*(stream for pair in pairs for stream in pair), self.trace.final_in]
        streams, stream = [], self.input
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

    def each(parts: Sequence[Any]) -> Any:
        if isinstance(parts[0], list):
            return [each(some) for some in zip(*parts, strict=True)]
        return None if parts[0] is None else join(list(parts))

    names = ("z", "mlp", "attention_in", "mlp_in", "qkv", "final_in")
    activations = {name: each([getattr(trace, name) for trace in traces]) for name in names}
    entering = join([trace.input for trace in traces])
    return Trace(block_in=[entering], calls=traces[0].calls, **activations)


class KeptRuns:
    """What was computed of some batches of one task, for whoever needs it next.

    Args:
        max_bytes: What may be kept; what goes beyond is made again.
    """

    def __init__(self, max_bytes: int) -> None:
        self._free = max_bytes
        self._held: dict[tuple[str, int, int], tuple[Any, int]] = {}

    @staticmethod
    def _key(kind: str, batch: Batch) -> tuple[str, int, int]:
        return kind, int(batch.indices[0]), len(batch.indices)

    def put(self, kind: str, batch: Batch, value: Any, size: int) -> None:
        """Keep something of so many bytes, in the place of its forerunner, if there is room."""
        free = self._free + self._held.get(self._key(kind, batch), (None, 0))[1]
        if size <= free:
            self._free = free - size
            self._held[self._key(kind, batch)] = value, size

    def get(self, kind: str, batch: Batch) -> Any:
        """What is kept of a batch; None if nothing is."""
        return self._held.get(self._key(kind, batch), (None, 0))[0]

    def take(self, kind: str, batch: Batch) -> Any:
        """The same, which is then no longer kept."""
        value, size = self._held.pop(self._key(kind, batch), (None, 0))
        self._free += size
        return value


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """Serves baselines for batches of the task that an ablation was prepared on.

    Attributes:
        baseline: Baseline of a batch; also from a pass over `batch.corrupted`, where the caller has one.
        kept: Clean passes that preparing made, where the caller asked for them.
    """

    baseline: Callable[..., Baseline]
    kept: KeptRuns | None = None


class BaselineShelf:
    """Ablated values of one task under one ablation, and clean passes, kept from one circuit to the next.

    Only for runs that share model, task, ablation and seed; `CircuitRuns` holds one.

    Args:
        max_bytes: What may be kept; batches beyond it are made anew each time.
    """

    def __init__(self, max_bytes: int = 2**30) -> None:
        self._kept = KeptRuns(max_bytes)
        self._prepared: Prepared | None = None

    def prepared(self, make: Callable[[], Prepared]) -> Prepared:
        """The prepared ablation, made on first use."""
        if self._prepared is None:
            self._prepared = make()
        return self._prepared

    def baseline(self, prepared: Prepared, batch: Batch) -> Baseline:
        """The baseline of a batch, from the shelf if it is there."""
        held: Baseline | None = self._kept.get("baseline", batch)
        if held is None:
            held = prepared.baseline(batch)
            self._kept.put("baseline", batch, held, held.nbytes)
        return held

    def clean(self, batch: Batch, depth: int, make: Callable[[], Trace]) -> Trace:
        """A pass over the clean inputs of a batch, at least `depth` blocks deep."""
        held: Trace | None = self._kept.get("clean", batch)
        if held is None or len(held.z) < depth:
            held = make()
            self._kept.put("clean", batch, held, held.nbytes)
        return held


# ---- heads inside a run -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """The heads of one block in one batch, while the run passes through them.

    Attributes:
        layer: Block.
        block: Its description.
        z: Outputs of all its heads in this run, `[batch, pos, n_heads, d_head]`.
        values: Value vectors they mix, `[batch, pos, n_kv_heads, d_head]`.
        batch: The prompts.
    """

    layer: int
    block: Block
    z: Float[Tensor, "batch pos n_heads d_head"]
    values: Float[Tensor, "batch pos n_kv_heads d_head"]
    batch: Batch


# Outputs of all heads of a block, `[batch or 1, pos or 1, n_heads, d_head]`.
Replacement = Callable[[Site], Tensor]


@dataclass(kw_only=True, eq=False)
class Setting:
    """What interventions are prepared on; plain passes are made once for all of them.

    Attributes:
        model: The model.
        task: The prompts that are run.
        reference: The prompts that means are taken over.
        batch_size: Prompts per pass.
        seed: Root seed of donors and noise.
        draw: Number of the draw, for interventions that are averaged over several.
    """

    model: Model
    task: Task
    reference: Task
    batch_size: int
    seed: int = 0
    draw: int = 0
    _outputs: dict[tuple[int, bool], list[Tensor]] = field(default_factory=dict)
    _logits: dict[tuple[int, bool], Tensor] = field(default_factory=dict)

    def outputs(self, task: Task, *, corrupted: bool = False) -> list[Float[Tensor, "n pos n_heads d_head"]]:
        """Outputs of the heads in a plain pass over a task, per block; kept for the next intervention."""
        key, model = (id(task), corrupted), self.model
        if key not in self._outputs:
            outputs, logits = [], []
            for batch in task.batches(self.batch_size):
                batch = batch.to(model.device)
                with torch.no_grad(), model.tracing() as trace:
                    hidden = model.forward(batch.corrupted if corrupted else batch.clean)
                    logits.append(model.read(hidden, batch.positions).to(model.result_dtype).cpu())
                outputs.append([z.unflatten(-1, (model.n_heads, model.d_head)) for z in trace.head_z])
            self._outputs[key] = [torch.cat(part) for part in zip(*outputs, strict=True)]
            self._logits[key] = torch.cat(logits)
        return self._outputs[key]

    def logits(self, task: Task, *, corrupted: bool = False) -> Float[Tensor, "n d_vocab"]:
        """Logits of the same plain pass at the read positions, on the CPU."""
        self.outputs(task, corrupted=corrupted)
        return self._logits[id(task), corrupted]

    def finite(self, task: Task) -> Bool[Tensor, " n"]:
        """Prompts of a task that means and deviations are taken over: those on which all outputs are finite.

        All of them where there is none, so that the replacement is as undefined as they are.
        """
        rows = torch.stack([z.isfinite().flatten(1).all(1) for z in self.outputs(task)]).all(0)
        return rows if bool(rows.any()) else ~rows

    def real(self, task: Task) -> Bool[Tensor, "n pos"]:
        """True at the tokens of its `finite` prompts, False at padding."""
        used = self.finite(task)[:, None]
        return (torch.arange(task.length, device=used.device) < task.lengths.to(used.device)[:, None]) & used

    def rng(self, key: str, *more: object) -> np.random.Generator:
        """The stream of an intervention and a draw; independent of batches."""
        name = "/".join(map(str, (key, self.draw, *more)))
        return stream(self.seed, f"intervention/{name}")

    def noise(self, key: str, site: Site) -> Float64[Tensor, "batch pos n_heads d_head"]:
        """Standard normal noise for the heads of a block; each prompt has its own."""
        rows = [
            self.rng(key, site.layer, row).standard_normal(site.z.shape[1:])
            for row in site.batch.indices.tolist()
        ]
        return torch.from_numpy(np.stack(rows)).to(site.z.device)


# ---- ablations --------------------------------------------------------------------------------------------


class Ablation(abc.ABC):
    """Abstract: which replacement activations cut edges, or ablated heads, carry.

    Attributes:
        key: Registered name.
        paired: Whether the corrupted input of each example is used.
        draws: Independent draws of heads that are averaged by default; 1 where nothing is random.
        measured: Whether cut edges carry what is measured over several of the examples that are run.
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

    def describe(self, model: Model) -> dict[str, Any]:
        """What it adds to the provenance of numbers of a model, JSON-able."""
        return {"ablation": self.key}

    def served(self, setting: Setting) -> Bool[np.ndarray, " n"]:
        """Examples that there is a replacement for; the others keep their own outputs."""
        return np.ones(setting.task.n, dtype=np.bool_)


ABLATIONS: Registry[Ablation] = Registry("ablation", holds=Ablation)


def get_ablation(ablation: str | Ablation) -> Ablation:
    """The ablation behind a key, or the object itself.

    A mean may name the task or file that it is taken over: `mean:greater-than`, `mean-positional:abc.jsonl`.

    Raises:
        UnknownNameError: For another key.
        InputError: For a reference of an ablation that takes no mean.
    """
    if isinstance(ablation, Ablation):
        return ablation
    name, _, reference = ablation.partition(":")
    key = name.replace("_", "-")
    found = ABLATIONS[key if key in ABLATIONS else name]
    if not reference:
        return found
    if not isinstance(found, Mean):
        raise InputError(
            f"{found.key!r} ablation takes no mean of {reference!r}; use mean or mean-positional"
        )
    return replace(found, reference=reference)


def named(ablation: Ablation) -> bool:
    """Whether an ablation is what its key names; records hold keys, so what is kept can tell only these."""
    return ablation.key.partition(":")[0] in ABLATIONS and get_ablation(ablation.key) == ablation


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
        def baseline(batch: Batch, trace: Trace | None = None) -> Baseline:
            if trace is None:
                with torch.no_grad(), model.tracing(streams=True) as trace:
                    model.forward(batch.corrupted)
            return Baseline.of(model, trace)

        return Prepared(baseline=baseline)

    def prepare_heads(self, setting: Setting) -> Replacement:
        outputs = setting.outputs(setting.task, corrupted=True)
        return lambda site: outputs[site.layer][site.batch.indices]


@dataclass(frozen=True, kw_only=True)
class Mean(Ablation):
    """Mean of the source over clean examples: those that are run, or those of a reference.

    Attributes:
        per_position: Average each position by itself (all prompts must have one length) instead of
            over all real positions.
        reference: The task over whose clean examples the mean is taken, or what `--task` would call it; it
            is measured once per model. Default: the task that is run. Wang et al. take prompts of the same
            templates with three unrelated names (ABC), so that a mean holds nothing of the names.

    References:
        Wang et al. 2022, arXiv:2211.00593, section 2.1 (means over a reference distribution).
    """

    per_position: bool = False
    reference: Task | str | None = None
    _over: dict[Model, Task] = field(default_factory=dict, init=False, repr=False, compare=False)
    _made: dict[Model, Prepared] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def key(self) -> str:  # type: ignore[override]  # the forms are keys of their own
        of = self.reference
        name = "" if of is None else f":{of if isinstance(of, str) else of.name}"
        return ("mean-positional" if self.per_position else "mean") + name

    @property
    def measured(self) -> bool:  # type: ignore[override]  # and where they are measured
        return self.reference is None

    @property
    def summary(self) -> str:  # type: ignore[override]  # and summaries
        return f"its mean over examples{' at the same position' if self.per_position else ' and positions'}"

    def describe(self, model: Model) -> dict[str, Any]:
        reference = self._reference(model)
        return super().describe(model) | ({} if reference is None else {"reference": reference.describe()})

    def _reference(self, model: Model) -> Task | None:
        if self.reference is not None and model not in self._over:
            given = self.reference
            self._over[model] = model.bind(named_task(given, model) if isinstance(given, str) else given)
        return self._over.get(model)

    def prepare(
        self, model: Model, task: Task, *, batch_size: int, seed: int, keep: KeptRuns | None = None
    ) -> Prepared:
        reference = self._reference(model)
        if reference is None:
            return self._means(model, task, batch_size, keep)
        if self.per_position:
            check_aligned(self.key, [*reference.lengths.tolist(), *task.lengths.tolist()])
        if model not in self._made:
            self._made[model] = self._means(model, reference, batch_size, None)
        return self._made[model]

    def _means(self, model: Model, task: Task, batch_size: int, keep: KeptRuns | None) -> Prepared:
        sums = MeanSums(model, self, keep=keep)
        for batch in task.batches(batch_size):
            sums.add(batch)
        return sums.prepared()

    def prepare_heads(self, setting: Setting) -> Replacement:
        reference = self._reference(setting.model) or setting.reference
        if self.per_position:
            check_aligned(self.key, [*reference.lengths.tolist(), *setting.task.lengths.tolist()])
        rows = setting.finite(reference) if self.per_position else setting.real(reference)
        means = [z.double()[rows].mean(0) for z in setting.outputs(reference)]
        means = [mean[None] if self.per_position else mean[None, None] for mean in means]
        return lambda site: means[site.layer][:, : site.z.shape[1]]


class Noise(Ablation):
    """Gaussian noise of the head's own standard deviation over the reference prompts, for heads alone.

    Each example draws from a stream of its own row number, so results do not depend on the batch size. The
    noise is drawn before the output projection.
    """

    key = "noise"
    draws = 5
    summary = "noise of its own spread over the examples"

    def prepare_heads(self, setting: Setting) -> Replacement:
        real = setting.real(setting.reference)
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
        def baseline(batch: Batch, trace: Trace | None = None) -> Baseline:
            with torch.no_grad(), model.tracing() as clean:
                model.forward(batch.clean)
            rngs = [stream(seed, f"noise-additive/{row}") for row in batch.indices.tolist()]
            noisy = []
            heads = [(z, model.n_heads) for z in clean.z]
            for value, nodes in [(clean.input, 1), *heads, *((mlp, 1) for mlp in clean.mlp)]:
                by_node = value.double().unflatten(-1, (nodes, -1))
                drawn = np.stack([rng.standard_normal(by_node.shape[1:]) for rng in rngs])
                noise = torch.from_numpy(drawn).to(by_node.device) * _own_spread(by_node, batch)
                noisy.append((by_node + noise).flatten(2).to(value.dtype))
            return Baseline.by_source(model, noisy)

        return Prepared(baseline=baseline)

    def prepare_heads(self, setting: Setting) -> Replacement:
        return lambda site: site.z + setting.noise(self.key, site) * _own_spread(site.z, site.batch)


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

    def baseline(batch: Batch, trace: Trace | None = None) -> Baseline:
        length = batch.width
        spread = (each.expand(1, length, -1) if each.shape[1] == 1 else each[:, :length] for each in values)
        return Baseline.by_source(model, list(spread))

    return Prepared(baseline=baseline, kept=kept)


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
        self._lengths: set[int] = set()
        self._sums: list[Tensor] = []

    def add(self, batch: Batch) -> None:
        """Take a batch in: one forward pass.

        Raises:
            InputError: If `mean-positional` meets examples of another length.
        """
        self._lengths |= set(batch.lengths.tolist())
        if self.ablation.per_position:
            check_aligned(self.ablation.key, self._lengths)
        model, batch = self.model, batch.to(self.model.device)
        with torch.no_grad(), model.tracing() as trace:
            hidden = model.forward(batch.clean)
            if self._keep is not None:
                logits = model.read(hidden, batch.positions)
                self._keep.put("run", batch, (trace, logits), trace.nbytes + logits.nbytes)
        real = (torch.arange(batch.width, device=model.device) < batch.lengths[:, None])[..., None]
        sums = [(value.double() * real).sum(0, True) for value in (trace.input, *trace.z, *trace.mlp)]
        self._sums = [one + more for one, more in zip(self._sums, sums, strict=True)] if self._sums else sums
        self.n += len(batch.indices)
        self._positions += int(batch.lengths.sum())

    def prepared(self) -> Prepared:
        """The ablation with the means over all batches so far.

        Raises:
            InputError: Before the first example; for `mean-positional` before the second.
        """
        if self.n < 1 + self.ablation.per_position:
            raise InputError(
                f"{self.ablation.key} ablation takes a mean over examples and got {self.n}; give at least 2 "
                "examples"
            )
        sums, count = self._sums, self.n
        if not self.ablation.per_position:
            sums, count = [value.sum(1, keepdim=True) for value in sums], self._positions
        return _shared(self.model, [(value / count).to(self.model.dtype) for value in sums], self._keep)


def check_aligned(key: str, lengths: Iterable[int]) -> None:
    """Refuse prompts of different lengths where each position has a mean of its own."""
    different = sorted(set(lengths))
    if len(different) > 1:
        raise InputError(
            f"{key} uses the mean of each position, but the prompts have lengths {different}; use prompts of "
            "one template, or 'mean'"
        )


for _ablation in (Resample(), Zero(), Mean(), Mean(per_position=True), NoiseAdditive()):
    ABLATIONS.add(_ablation.key, _ablation)
