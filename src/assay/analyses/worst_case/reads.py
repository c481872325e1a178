"""Divergences of pairs whose prompts are read at one position or at several.

The divergence of a pair is the mean over its reads, as a loss is in `assay.objectives`. Where wrong answers
are compared with, reads without one do not count.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from assay.analyses.worst_case.inputs import PromptSet
from assay.analyses.worst_case.pair_divergence import Divergence, table_divergences
from assay.objectives import mean_over_reads


def counted_reads(divergence: Divergence, clean: PromptSet) -> Bool[Tensor, "pairs reads"]:
    """Which reads of each pair count; one column where each pair has one."""
    counted = _by_read(clean.positions, 1) >= 0
    if divergence.needs_answers and clean.wrong is not None:
        counted = counted & (_by_read(clean.wrong, 2) >= 0).any(2)
    return counted


def read_divergences(
    divergence: Divergence,
    model: Float[Tensor, "pairs *reads d_vocab"],
    circuit: Float[Tensor, "pairs *reads d_vocab"],
    clean: PromptSet,
) -> Float64[np.ndarray, "pairs reads"]:
    """Divergences of some pairs at each of their reads, NaN where a read does not count.

    Args:
        divergence: Which one.
        model: Logits of the model on each clean input.
        circuit: Logits of a circuit on each pair.
        clean: The clean inputs, a row per pair.

    Raises:
        InputError: If the divergence needs tokens that are not there.
        ShapeError: If a divergence of the caller's returns another shape than one number per read.
        InconsistentRunError: If a KL is negative beyond rounding.
    """
    counted = counted_reads(divergence, clean)
    tokens = {"answers": clean.answers, "wrong": clean.wrong} if divergence.needs_answers else {}
    known = {name: None if ids is None else _by_read(ids, 2)[counted] for name, ids in tokens.items()}
    left, right = (_by_read(logits, 2)[counted] for logits in (model, circuit))
    values = np.full(counted.shape, np.nan)
    values[counted.numpy()] = table_divergences(divergence, left, right[:, None], **known)[:, 0]
    return values


def pair_divergences(
    divergence: Divergence,
    model: Float[Tensor, "pairs *reads d_vocab"],
    circuit: Float[Tensor, "pairs *reads d_vocab"],
    clean: PromptSet,
) -> Float64[np.ndarray, " pairs"]:
    """The mean of `read_divergences` over the reads of each pair that count; arguments as there."""
    return mean_by_pair(read_divergences(divergence, model, circuit, clean), counted_reads(divergence, clean))


def mean_by_pair(
    values: Float64[np.ndarray, "pairs reads"], counted: Bool[Tensor, "pairs reads"]
) -> Float64[np.ndarray, " pairs"]:
    """The mean of each row over the reads that count."""
    return np.asarray(mean_over_reads(torch.from_numpy(values)[counted], counted).numpy())


def likeliest_differs(
    model: Float[Tensor, "pairs *reads d_vocab"],
    circuit: Float[Tensor, "pairs *reads d_vocab"],
    clean: PromptSet,
) -> Bool[np.ndarray, " pairs"]:
    """Whether the largest logits of model and circuit belong to two tokens, at any read of a pair."""
    differs = _by_read(circuit.argmax(-1) != model.argmax(-1), 1)
    return np.asarray((differs & (_by_read(clean.positions, 1) >= 0)).any(1).numpy())


def _by_read(table: Tensor, axes: int) -> Tensor:
    """A table with an axis of reads, second; `axes` it has without that of the last kind."""
    return table[:, None] if table.ndim == axes else table
