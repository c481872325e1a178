"""Runs of an edge circuit in which its other edges carry what one draw of an intervention says.

Edges take those interventions that are an ablation of edges as well, and donors: what an edge carries on the
donor's prompt is known from a plain run.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.discovery.heads.interventions import INTERVENTIONS, Donor
from assay.execution import ABLATIONS, Ablation, BaselineShelf, run_circuit
from assay.execution.ablation import check_aligned
from assay.execution.replacements import Setting


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
        check_aligned(ablation, setting.reference, prompts)
    chosen, size = ABLATIONS[ablation], setting.batch_size
    seed = setting.seed + 1000 * setting.draw  # another stream per draw
    shelf = BaselineShelf(max_bytes=0) if shelf is None else shelf
    if setting.reference is not setting.task:  # means and deviations are those of the reference
        shelf.prepared(lambda: chosen.prepare(setting.model, setting.reference, batch_size=size, seed=seed))
    return run_circuit(
        setting.model,
        prompts,
        circuit,
        ablation=chosen,
        batch_size=size,
        seed=seed,
        check=False,
        shelf=shelf,
    )
