"""The worst pairs once more, by the one-pair engine, which shares nothing with the factored one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from assay.analyses.worst_case.divergence import Divergence, Kernel, get_divergence, table_divergences
from assay.analyses.worst_case.evaluation import rerun
from assay.analyses.worst_case.inputs import PairSample
from assay.analyses.worst_case.rows import RankedPairs
from assay.circuits import Circuit
from assay.core.errors import InconsistentRunError
from assay.models import Model


RERUN_ABSOLUTE, RERUN_RELATIVE = 1e-3, 1e-3  # by how much a second run may differ
_HALF = 8  # units in the last place that divergences of number types below float32 are allowed


class Logits(NamedTuple):
    """Logits of the same pairs in three runs, each `[k, d_vocab]`."""

    model: Float[Tensor, "k d_vocab"]
    circuit: Float[Tensor, "k d_vocab"]
    corrupted: Float[Tensor, "k d_vocab"]


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """How pairs of a result are run once more.

    Attributes:
        logits: `(clean rows, corrupted rows, exact) -> Logits`, a fresh batch; `exact` in float64.
        divergence: `(Logits, clean rows) -> [k]` float64.
        tolerance: By how much a second run may differ, absolutely and relative to the first; more for
            number types below float32, whose logits have a few units in the last place to play with.
    """

    logits: Callable[..., Logits]
    divergence: Callable[..., Float64[np.ndarray, " k"]]
    tolerance: tuple[float, float] = (RERUN_ABSOLUTE, RERUN_RELATIVE)

    def confirmed(self, ranking: RankedPairs, stored: Float64[np.ndarray, " k"], *, exact: bool) -> Logits:
        """The logits of ranked pairs, if their divergences are the stored ones.

        Raises:
            InconsistentRunError: If one of them differs by more than the tolerance.
        """
        logits = self.logits(ranking.clean_index, ranking.corrupted_index, exact)
        again = self.divergence(logits, ranking.clean_index)
        # Not `>`: a NaN of the second run is a disagreement too.
        absolute, relative = self.tolerance
        agrees = np.abs(again - stored) <= absolute + relative * np.abs(stored)
        if not agrees.all():
            at = int(np.flatnonzero(~agrees)[0])
            raise InconsistentRunError(
                f"inconsistent_rerun: pair (clean {ranking.clean_index[at]}, corrupted "
                f"{ranking.corrupted_index[at]}) has divergence {stored[at]:.6g} in the run and "
                f"{again[at]:.6g} when run again. One of the two does not belong to this circuit, so use "
                "neither"
            )
        return logits


def make_rerun(
    model: Model, circuit: Circuit, sample: PairSample, divergence: str | Divergence | Kernel
) -> Rerun:
    """How pairs of a sample are run again."""
    kind = get_divergence(divergence)

    def logits(
        clean_index: Int64[np.ndarray, " k"], corrupted_index: Int64[np.ndarray, " k"], exact: bool
    ) -> Logits:
        clean, corrupted = sample.clean.subset(clean_index), sample.corrupted.subset(corrupted_index)
        # Of the edges alone: where a circuit was found is not a matter of a float64 copy of the model.
        edges = Circuit(graph=circuit.graph, mask=circuit.mask)
        runs = rerun(model, edges, clean, corrupted, exact=exact)
        return Logits(*(each.detach().cpu() for each in runs))

    def divergences(logits: Logits, clean_index: Int64[np.ndarray, " k"]) -> Float64[np.ndarray, " k"]:
        side = sample.clean.subset(clean_index)
        answers = {"answers": side.answers, "wrong": side.wrong} if kind.needs_answers else {}
        table = table_divergences(kind, logits.model, logits.circuit[:, None], **answers)
        return np.asarray(table[:, 0])

    eps = torch.finfo(model.dtype).eps
    tolerance = (max(RERUN_ABSOLUTE, _HALF * eps), max(RERUN_RELATIVE, 2 * eps))
    return Rerun(logits=logits, divergence=divergences, tolerance=tolerance)
