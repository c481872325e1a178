"""What the output of an ablated head is replaced by."""

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from assay.core.errors import InputError
from assay.core.random import stream
from assay.core.registry import Registry
from assay.discovery.heads.replacing import Heads, Replacement, Site, run_with_heads_replaced
from assay.execution.forward import choose_batch_size
from assay.models import Model
from assay.tasks import Task


# The replacement for the outputs of all heads of a block, [batch or 1, pos or 1, n_heads, d_head].


class Intervention(abc.ABC):
    """Abstract: a way to replace the output of a head.

    Attributes:
        key: Registered name.
        draws: Independent draws that are averaged by default; 1 where nothing is random.
        summary: One line for lists.
    """

    key: str
    draws: int = 1
    summary: str = ""

    @abc.abstractmethod
    def prepare(self, setting: "Setting") -> Replacement:
        """Measure what the replacement needs; plain passes happen here."""


INTERVENTIONS: Registry[Intervention] = Registry("intervention", holds=Intervention)


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
        donors: Row of the prompt that each prompt gets its activations from, instead of drawn ones.
    """

    model: Model
    task: Task
    reference: Task
    batch_size: int
    seed: int = 0
    draw: int = 0
    donors: Int64[np.ndarray, " n"] | None = None
    _outputs: dict[tuple[int, bool], list[Tensor]] = field(default_factory=dict)
    _logits: dict[tuple[int, bool], Tensor] = field(default_factory=dict)

    def outputs(self, task: Task, *, corrupted: bool = False) -> list[Float[Tensor, "n pos n_heads d_head"]]:
        """Outputs of the heads in a plain pass over a task, per block; kept for the next intervention."""
        key = (id(task), corrupted)
        if key not in self._outputs:
            parts: list[list[Tensor]] = [[] for _ in range(self.model.n_layers)]
            logits = []
            for batch in task.batches(self.batch_size):
                batch = batch.to(self.model.device)
                with torch.no_grad(), self.model.tracing() as trace:
                    hidden = self.model.forward(batch.corrupted if corrupted else batch.clean)
                    read = self.model.read(hidden, batch.positions)
                logits.append(read.to(self.model.result_dtype).cpu())
                for into, z in zip(parts, trace.z, strict=True):
                    into.append(z.unflatten(-1, (self.model.n_heads, self.model.d_head)))
            self._outputs[key] = [torch.cat(part) for part in parts]
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


# ------------------------------------------------------------------------------------- interventions


class Zero(Intervention):
    """Zeros."""

    key = "zero"
    summary = "the head writes nothing"

    def prepare(self, setting: Setting) -> Replacement:
        return lambda site: torch.zeros_like(site.z[:1, :1])


@dataclass(frozen=True, kw_only=True)
class Mean(Intervention):
    """Means over the reference prompts' clean runs.

    Attributes:
        key: Registered name.
        over: `positions`: all real positions together; `position`: each by itself; `last`: the read position.
        only_last: Write at the read position only; elsewhere the head keeps its output.
    """

    key: str
    over: str
    only_last: bool = False
    summary: str = ""

    def prepare(self, setting: Setting) -> Replacement:
        reference = setting.reference
        if self.over == "position":
            check_aligned(self.key, reference, setting.task)
        used = setting.finite(reference)
        means = [self._mean(z, reference, used) for z in setting.outputs(reference)]
        return self._everywhere(means) if not self.only_last else self._at_read(means)

    def _mean(self, z: Tensor, reference: Task, used: Tensor) -> Tensor:
        z = z.double()
        if self.over == "last":
            rows = torch.arange(reference.n, device=z.device)
            return z[rows, reference.positions.to(z.device)][used].mean(0)[None, None]
        if self.over == "position":
            return z[used].mean(0, keepdim=True)
        return z[_real(reference, used)].mean(0)[None, None]

    @staticmethod
    def _everywhere(means: Sequence[Tensor]) -> Replacement:
        return lambda site: means[site.layer][:, : site.z.shape[1]]

    @staticmethod
    def _at_read(means: Sequence[Tensor]) -> Replacement:
        def replaced(site: Site) -> Tensor:
            z = site.z.clone()
            rows = torch.arange(len(z), device=z.device)
            z[rows, site.batch.positions] = means[site.layer][0].to(z.dtype)
            return z

        return replaced


class Resample(Intervention):
    """Outputs in the run on the prompt's own corrupted counterpart."""

    key = "resample"
    summary = "outputs on the corrupted prompt"

    def prepare(self, setting: Setting) -> Replacement:
        outputs = setting.outputs(setting.task, corrupted=True)
        return lambda site: outputs[site.layer][site.batch.indices]


@dataclass(frozen=True, kw_only=True)
class Donor(Intervention):
    """Outputs in the clean run of another prompt, one donor per prompt for all heads.

    Donors are a derangement of the prompts of one length (and one answer, with `same_answer`), drawn with the
    seed. A prompt without a possible donor keeps its own outputs; `donors_of` names these prompts, and tables
    and metrics leave them out.

    Attributes:
        key: Registered name.
        same_answer: Only donors with the same right answers.
    """

    key: str
    same_answer: bool = False
    draws: int = 5
    summary: str = ""

    def prepare(self, setting: Setting) -> Replacement:
        donors = self.donors_of(setting)
        outputs = setting.outputs(setting.task)
        chosen = torch.from_numpy(np.where(donors < 0, np.arange(len(donors)), donors))
        return lambda site: outputs[site.layer][chosen[site.batch.indices.cpu()]]

    def donors_of(self, setting: Setting) -> Int64[np.ndarray, " n"]:
        """Row of each prompt's donor; -1 for a prompt without one.

        Raises:
            InputError: If no two prompts have the same number of tokens, or given donors do not fit.
        """
        task = setting.task
        if setting.donors is not None:
            return _checked_donors(setting.donors, task)
        groups: dict[tuple[int, ...], list[int]] = {}
        answers = task.answers.tolist()
        for row, length in enumerate(task.lengths.tolist()):
            group = (length, *sorted(answers[row])) if self.same_answer else (length,)
            groups.setdefault(group, []).append(row)
        rng = setting.rng(self.key)
        donors = np.full(task.n, -1, dtype=np.int64)
        for rows in groups.values():
            if len(rows) > 1:
                donors[rows] = np.array(rows)[derangement(len(rows), rng)]
        if not self.same_answer and (donors < 0).all():
            raise InputError(
                f"each of the {task.n} prompts has a length of its own, so no prompt can give another its "
                f"activations; {self.key!r} needs prompts of the same number of tokens"
            )
        return donors


def derangement(n: int, rng: np.random.Generator) -> Int64[np.ndarray, " n"]:
    """A permutation of n >= 2 things that moves every one, uniform among these."""
    while True:  # a share 1/e of all permutations qualifies
        order = rng.permutation(n)
        if not (order == np.arange(n)).any():
            return np.asarray(order, dtype=np.int64)


class NoiseAdditive(Intervention):
    """The head's output plus Gaussian noise of its own deviation over positions and features."""

    key = "noise-additive"
    draws = 5
    summary = "its own output plus noise of its own spread"

    def prepare(self, setting: Setting) -> Replacement:
        def replaced(site: Site) -> Tensor:
            real = torch.arange(site.z.shape[1], device=site.z.device) < site.batch.lengths[:, None]
            spread = torch.stack(
                [
                    z[here].transpose(0, 1).flatten(1).double().std(1)
                    for z, here in zip(site.z, real, strict=True)
                ]
            )
            return site.z + setting.noise(self.key, site) * spread[:, None, :, None]

        return replaced


class Noise(Intervention):
    """Gaussian noise of the deviation that the head's entries have over the reference prompts (ddof 1)."""

    key = "noise"
    draws = 5
    summary = "noise of its own spread over the prompts"

    def prepare(self, setting: Setting) -> Replacement:
        real = _real(setting.reference, setting.finite(setting.reference))
        spread = [
            z[real].double().transpose(0, 1).flatten(1).std(1) for z in setting.outputs(setting.reference)
        ]

        def replaced(site: Site) -> Tensor:
            return setting.noise(self.key, site) * spread[site.layer][:, None]

        return replaced


class Soft(Intervention):
    """A tenth of the head's own output."""

    key = "soft"
    summary = "a tenth of its own output"

    def prepare(self, setting: Setting) -> Replacement:
        return lambda site: 0.1 * site.z


class AttentionUniform(Intervention):
    """Equal attention to every position it may attend to, as with a query of zero."""

    key = "attn-uniform"
    summary = "equal attention to every position"

    def prepare(self, setting: Setting) -> Replacement:
        def replaced(site: Site) -> Tensor:
            length, block = site.z.shape[1], site.block
            place = torch.arange(length, device=site.z.device)
            distance = place[:, None] - place
            allowed = (distance >= 0) & (distance < (math.inf if block.window is None else block.window))
            weights = allowed.double() / allowed.sum(1, keepdim=True)
            mixed = torch.einsum("ts,bskd->btkd", weights, site.values.double())
            return mixed.repeat_interleave(block.n_heads // block.n_kv_heads, dim=2)

        return replaced


def _real(task: Task, used: Bool[Tensor, " n"]) -> Bool[Tensor, "n pos"]:
    """True at the tokens of the prompts that are used, False at padding."""
    place = torch.arange(task.length, device=used.device)
    return (place < task.lengths.to(used.device)[:, None]) & used[:, None]


def check_aligned(key: str, reference: Task, task: Task) -> None:
    """Refuse prompts of different lengths where each position has a mean of its own."""
    lengths = sorted({*reference.lengths.tolist(), *task.lengths.tolist()})
    if len(lengths) > 1:
        raise InputError(
            f"{key} replaces by the mean of each position, and the prompts have lengths {lengths}; use "
            "prompts of one template, or 'mean'"
        )


def _checked_donors(donors: Int[np.ndarray, " n"], task: Task) -> Int64[np.ndarray, " n"]:
    if donors.shape != (task.n,) or donors.min() < 0 or donors.max() >= task.n:
        raise InputError(
            f"donors are {donors.shape[0]} rows from {donors.min()} to {donors.max()}; the task has {task.n} "
            f"prompts, 0 to {task.n - 1}"
        )
    lengths = task.lengths.numpy()
    unequal = np.flatnonzero(lengths[donors] != lengths)
    if len(unequal):
        row = int(unequal[0])
        raise InputError(
            f"donor {int(donors[row])} of prompt {row} has {lengths[donors[row]]} tokens and the prompt "
            f"{lengths[row]}; activations can only be taken over between prompts of one length"
        )
    return donors.astype(np.int64)


for _intervention in (
    Zero(),
    Mean(key="mean", over="positions", summary="its mean over prompts and positions"),
    Mean(key="mean-positional", over="position", summary="its mean at the same position"),
    Mean(key="mean-last-broadcast", over="last", summary="its mean at the read position, everywhere"),
    Mean(key="mean-last", over="last", only_last=True, summary="its mean at the read position, there only"),
    Resample(),
    Donor(key="resample-donor", summary="outputs on another clean prompt"),
    Donor(key="resample-donor-same-class", same_answer=True, summary="the same, of a prompt with its answer"),
    NoiseAdditive(),
    Noise(),
    Soft(),
    AttentionUniform(),
):
    INTERVENTIONS.add(_intervention.key, _intervention)


def logits_under(
    model: Model,
    task: Task,
    intervention: str | Intervention,
    heads: Heads,
    *,
    setting: Setting | None = None,
    reference: Task | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> Float[Tensor, "n d_vocab"]:
    """Logits with some heads replaced by one draw of an intervention.

    Args:
        model: The model.
        task: The prompts.
        intervention: Key or object.
        heads: (block, head) pairs to replace.
        setting: Prepared passes of an earlier call, to share them; the other options are then its own.
        reference: Prompts that means are taken over; default: the task's.
        batch_size: Prompts per pass; default: by free memory.
        seed: Root seed of donors and noise.
    """
    if setting is None:
        size = choose_batch_size(model, task, asked=batch_size)
        setting = Setting(model=model, task=task, reference=reference or task, batch_size=size, seed=seed)
    chosen = INTERVENTIONS[intervention] if isinstance(intervention, str) else intervention
    return run_with_heads_replaced(model, task, heads, chosen.prepare(setting), batch_size=setting.batch_size)
