"""What the output of an ablated head is replaced by: every ablation that is one of heads, by its key."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from assay.core.errors import InputError
from assay.core.registry import Registry
from assay.execution.ablation import ABLATIONS, Ablation
from assay.execution.replacements import Replacement, Setting, Site
from assay.tasks import Task


INTERVENTIONS: Registry[Ablation] = Registry("intervention", holds=Ablation)


@dataclass(frozen=True, kw_only=True)
class MeanAtRead(Ablation):
    """Mean over the reference prompts' clean runs of the output at the read position.

    Attributes:
        key: Registered name.
        only_there: Write at the read position only; elsewhere the head keeps its output.
    """

    key: str
    only_there: bool = False
    summary: str = ""

    def prepare_heads(self, setting: Setting) -> Replacement:
        reference = setting.reference
        used = setting.finite(reference)
        rows = torch.arange(reference.n, device=used.device)
        read = reference.positions.to(used.device)
        means = [z.double()[rows, read][used].mean(0) for z in setting.outputs(reference)]

        def replaced(site: Site) -> Tensor:
            if not self.only_there:
                return means[site.layer][None, None]
            z = site.z.clone()
            z[torch.arange(len(z), device=z.device), site.batch.positions] = means[site.layer].to(z.dtype)
            return z

        return replaced


@dataclass(frozen=True, kw_only=True)
class Donor(Ablation):
    """Outputs in the clean run of another prompt, one donor per prompt for all heads.

    Donors are a derangement of the prompts of one length (and one answer, with `same_answer`), drawn with the
    seed. A prompt without a possible donor is not `served`: it keeps its own outputs, and tables and metrics
    leave it out.

    Attributes:
        key: Registered name.
        same_answer: Only donors with the same right answers.
    """

    key: str
    same_answer: bool = False
    draws: int = 5
    summary: str = ""

    def prepare_heads(self, setting: Setting) -> Replacement:
        donors = self.donors_of(setting)
        outputs = setting.outputs(setting.task)
        chosen = torch.from_numpy(np.where(donors < 0, np.arange(len(donors)), donors))
        return lambda site: outputs[site.layer][chosen[site.batch.indices.cpu()]]

    def served(self, setting: Setting) -> Bool[np.ndarray, " n"]:
        return np.asarray(self.donors_of(setting) >= 0)

    def donors_of(self, setting: Setting) -> Int64[np.ndarray, " n"]:
        """Row of each prompt's donor; -1 for a prompt without one.

        Raises:
            InputError: If no two prompts have the same number of tokens, or given donors do not fit.
        """
        task = setting.task
        if setting.donors is not None:
            return _checked_donors(setting.donors, task)
        groups: dict[tuple[int, ...], list[int]] = {}
        answers = task.answers.flatten(1).tolist()
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
                f"the {task.n} prompts all have different lengths, so they cannot exchange activations; "
                f"{self.key!r} needs prompts of the same number of tokens"
            )
        return donors


def derangement(n: int, rng: np.random.Generator) -> Int64[np.ndarray, " n"]:
    """A permutation of n >= 2 things that moves every one, uniform among these."""
    while True:  # a share 1/e of all permutations qualifies
        order = rng.permutation(n)
        if not (order == np.arange(n)).any():
            return np.asarray(order, dtype=np.int64)


class Soft(Ablation):
    """A tenth of the head's own output."""

    key = "soft"
    summary = "a tenth of its own output"

    def prepare_heads(self, setting: Setting) -> Replacement:
        return lambda site: 0.1 * site.z


class AttentionUniform(Ablation):
    """Equal attention to every position it may attend to, as with a query of zero."""

    key = "attn-uniform"
    summary = "equal attention to every position"

    def prepare_heads(self, setting: Setting) -> Replacement:
        def replaced(site: Site) -> Tensor:
            length, block = site.z.shape[1], site.block
            place = torch.arange(length, device=site.z.device)
            distance = place[:, None] - place
            allowed = block.rule.allowed(distance)
            weights = allowed.double() / allowed.sum(1, keepdim=True)
            mixed = torch.einsum("ts,bskd->btkd", weights, site.values.double())
            return mixed.repeat_interleave(block.n_heads // block.n_kv_heads, dim=2)

        return replaced


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
            f"donor {int(donors[row])} of prompt {row} has {lengths[donors[row]]} tokens, the prompt "
            f"{lengths[row]}; activations can only be exchanged between prompts of one length"
        )
    return donors.astype(np.int64)


for _intervention in (
    ABLATIONS["zero"],
    ABLATIONS["mean"],
    ABLATIONS["mean-positional"],
    MeanAtRead(key="mean-last-broadcast", summary="its mean at the read position, everywhere"),
    MeanAtRead(key="mean-last", only_there=True, summary="its mean at the read position, there only"),
    ABLATIONS["resample"],
    Donor(key="resample-donor", summary="outputs on another clean prompt"),
    Donor(key="resample-donor-same-class", same_answer=True, summary="the same, of a prompt with its answer"),
    ABLATIONS["noise-additive"],
    ABLATIONS["noise"],
    Soft(),
    AttentionUniform(),
):
    INTERVENTIONS.add(_intervention.key, _intervention)
