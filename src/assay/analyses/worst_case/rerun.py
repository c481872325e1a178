"""The worst pairs once more, by the one-pair engine, which shares nothing with the factored one."""

from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from assay.analyses.worst_case.inputs import PairSample, PromptSet, task_of
from assay.analyses.worst_case.pair_divergence import Divergence, Kernel, get_divergence
from assay.analyses.worst_case.row_by_row import ablation_of, pair_divergences
from assay.analyses.worst_case.rows import RankedPairs
from assay.circuits import Circuit
from assay.core.errors import InconsistentRunError
from assay.execution import Ablation, get_ablation, run_circuit, run_model
from assay.models import Model


RERUN_ABSOLUTE, RERUN_RELATIVE = 1e-3, 1e-3  # by how much a second run may differ
_HALF = 8  # units in the last place that divergences of number types below float32 are allowed


class Logits(NamedTuple):
    """Logits of the same pairs in three runs, each `[k, d_vocab]`."""

    model: Float[Tensor, "k d_vocab"]
    circuit: Float[Tensor, "k d_vocab"]
    corrupted: Float[Tensor, "k d_vocab"]  # of the empty circuit, where no second input is read


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """How pairs of a result are run once more.

    Attributes:
        model: The model.
        circuit: The circuit.
        sample: The pairs.
        divergence: What was measured.
    """

    model: Model
    circuit: Circuit
    sample: PairSample
    divergence: str | Divergence | Kernel

    def logits(
        self, clean_index: Int64[np.ndarray, " k"], corrupted_index: Int64[np.ndarray, " k"], exact: bool
    ) -> Logits:
        """Logits of the pairs of some rows, by a float64 copy of the model if `exact`."""
        clean, corrupted = (
            self.sample.clean.subset(clean_index),
            self.sample.corrupted.subset(corrupted_index),
        )
        return rerun(
            self.model, self.circuit, clean, corrupted, ablation=ablation_of(self.sample), exact=exact
        )

    def confirmed(self, ranking: RankedPairs, stored: Float64[np.ndarray, " k"], *, exact: bool) -> Logits:
        """The logits of ranked pairs, if their divergences are the stored ones.

        Raises:
            InconsistentRunError: If one of them is not: the run is not to be trusted.
        """
        logits = self.logits(ranking.clean_index, ranking.corrupted_index, exact)
        kind, clean = get_divergence(self.divergence), self.sample.clean.subset(ranking.clean_index)
        again = pair_divergences(kind, logits.model, logits.circuit, clean)
        # Number types below float32 allow some units in the last place.
        eps = torch.finfo(self.model.dtype).eps
        allowed = max(RERUN_ABSOLUTE, _HALF * eps) + max(RERUN_RELATIVE, 2 * eps) * np.abs(stored)
        # Not `>`: a NaN of the second run is a disagreement too.
        agrees = np.abs(again - stored) <= allowed
        if not agrees.all():
            at = int(np.flatnonzero(~agrees)[0])
            raise InconsistentRunError(
                f"inconsistent_rerun: pair (clean {ranking.clean_index[at]}, corrupted "
                f"{ranking.corrupted_index[at]}) has divergence {stored[at]:.6g} in the run and "
                f"{again[at]:.6g} when run again. One of the two does not belong to this circuit, so use "
                "neither"
            )
        return logits


def rerun(
    model: Model,
    circuit: Circuit,
    clean: PromptSet,
    corrupted: PromptSet,
    *,
    ablation: str | Ablation = "resample",
    exact: bool = False,
) -> Logits:
    """Logits of model, circuit and model on the corrupted input, row by row, by the one-pair engine.

    Where the ablation reads no second input, the third run is that of the empty circuit.

    Args:
        model: The model.
        circuit: The circuit; its edges alone count.
        clean: Clean inputs.
        corrupted: As many corrupted ones.
        ablation: What cut edges carry.
        exact: Run a float64 copy of the model.
    """
    if exact:
        wide = Model(deepcopy(model.module).double(), model.family, name=model.id)
        model = wide.treating(model.post_norm)
    task = task_of(clean, corrupted)
    # Of the edges alone: where a circuit was found is not a matter of a float64 copy of the model.
    edges = Circuit(graph=circuit.graph, mask=circuit.mask, spans=circuit.spans)
    carried = get_ablation(ablation)
    empty = Circuit.empty(circuit.graph)
    runs = (
        run_model(model, task),
        run_circuit(model, task, edges, ablation=carried),
        run_model(model, task, corrupted=True)
        if carried.paired
        else run_circuit(model, task, empty, ablation=carried),
    )
    return Logits(*(each.detach().cpu() for each in runs))
