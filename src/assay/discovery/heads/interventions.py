"""What the output of an ablated head is replaced by: every ablation that is one of heads, by its key.

Edge circuits take those interventions that are an ablation of edges as well, and donors: what an edge carries
on the donor's prompt is known from a plain run.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.core.registry import Registry
from assay.execution import ABLATIONS, Ablation, BaselineShelf, run_circuit
from assay.execution.ablation import Noise, Replacement, Setting, Site, check_aligned
from assay.models.model import at_reads


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
        read = reference.positions.to(used.device)
        means = [at_reads(z.double(), read)[used].mean(0) for z in setting.outputs(reference)]

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
            InputError: If no two prompts have the same number of tokens.
        """
        task = setting.task
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
    Noise(),
    Soft(),
    AttentionUniform(),
):
    INTERVENTIONS.add(_intervention.key, _intervention)


def run_with_edges_replaced(
    circuit: Circuit, intervention: Ablation, setting: Setting, *, shelf: BaselineShelf | None = None
) -> Float[Tensor, "n d_vocab"]:
    """Logits of a circuit at the read position, whatever they are worth: NaN and infinite ones pass.

    Args:
        circuit: The edges to keep.
        intervention: What the others carry.
        setting: Model, prompts, reference, seed and draw.
        shelf: Keeps what the others carry for the next circuit under the same intervention and setting.

    Raises:
        InputError: For an intervention that is defined for heads only, or that cannot serve the prompts.

    Notes:
        A prompt without a donor of its answer keeps its own activations, as in a run with heads replaced.
    """
    prompts, ablation = setting.task, intervention.key
    if isinstance(intervention, Donor):
        donors = intervention.donors_of(setting)
        rows = torch.from_numpy(np.where(donors < 0, np.arange(len(donors)), donors))
        prompts = prompts.with_donors(rows)
        ablation = "resample"
    if ablation not in ABLATIONS:
        have = ", ".join(sorted({*ABLATIONS} & {*INTERVENTIONS}))
        raise InputError(
            f"{ablation!r} is defined for heads, but this circuit keeps edges; give a head circuit "
            f"(Circuit.from_heads), or one of {have}, resample-donor"
        )
    if ablation == "mean-positional":
        check_aligned(ablation, [*setting.reference.lengths.tolist(), *prompts.lengths.tolist()])
    chosen, size = ABLATIONS[ablation], setting.batch_size
    seed = setting.seed + 1000 * setting.draw  # another stream per draw
    shelf = BaselineShelf(max_bytes=0) if shelf is None else shelf
    if setting.reference is not setting.task:  # means and deviations are those of the reference
        shelf.prepared(lambda: chosen.prepare(setting.model, setting.reference, batch_size=size, seed=seed))
    return run_circuit(
        circuit, setting.model, prompts, ablation=chosen, batch_size=size, seed=seed, check=False, shelf=shelf
    )
