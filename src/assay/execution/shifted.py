"""Runs of the whole model in which the input of every target is shifted by itself.

    x_v = (sum of all sources of this run) + shift_v

Nothing is cut: the shift of a target changes what it reads and, through what it writes, everything behind it.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from assay.execution.soft import SoftPairs, SoftRunner, _Walk


def shifted_logits(
    runner: SoftRunner,
    pairs: SoftPairs,
    differences: Float[Tensor, "n_sources batch pos d_model"],
    signs: Int8[Tensor, "draws batch n_sources n_targets"],
    alphas: Float[Tensor, " draws"],
    epsilon: float,
) -> Float[Tensor, "two draws batch *reads d_vocab"]:
    """Logits with every target's input shifted by plus and minus epsilon sum_u sign[u, v] difference_u.

    Args:
        runner: Of the model.
        pairs: Some examples.
        differences: Ablated minus clean output of every source, 0 at padding.
        signs: Of every draw, example and edge; entries without an edge are not read.
        alphas: Where between its ablated (0) and its clean value (1) the input source is, per draw.
        epsilon: Size of the shift.

    Returns:
        Row 0 for plus, row 1 for minus; all draws and examples are rows of one pass.
    """
    draws, batch = signs.shape[:2]
    many = pairs.repeat(2 * draws)
    scale = alphas.to(pairs.embedded).repeat_interleave(batch).repeat(2)
    many = replace(many, embedded=many.embedded * scale[:, None, None])
    with torch.no_grad(), runner.model.frozen():
        logits = _ShiftedWalk(runner, many, differences, signs, epsilon).finish()
    return logits.view(2, draws, batch, *logits.shape[1:])


class _ShiftedWalk(_Walk):
    """A walk with every edge whole and a shift in front of every target."""

    def __init__(
        self, runner: SoftRunner, pairs: SoftPairs, differences: Tensor, signs: Tensor, epsilon: float
    ) -> None:
        super().__init__(runner, pairs, runner.model.graph.valid.to(runner.dtype))
        n_sources, batch = differences.shape[:2]
        self.along = differences.transpose(0, 1).reshape(batch, n_sources, -1) * epsilon
        self.signs = signs

    def mix(self, differences: Tensor, columns: slice, start: Tensor) -> Tensor:
        whole = start.to(self.runner.dtype) + differences.sum(0)
        shift = self.shift(len(differences), columns)
        if shift.shape[2] != whole.shape[1]:
            shift = self._read(shift)
        return whole + shift

    def shift(self, n_sources: int, columns: slice) -> Tensor:
        """Shift of some targets that read the first sources, `[targets, 2 draws batch, pos, d_model]`."""
        signs = self.signs[:, :, :n_sources, columns].to(self.along)
        draws, batch, _, targets = signs.shape
        weight = signs.permute(1, 0, 3, 2).reshape(batch, draws * targets, n_sources)
        moved = torch.bmm(weight, self.along[:, :n_sources])
        moved = moved.view(batch, draws, targets, self.length, -1).permute(2, 1, 0, 3, 4).flatten(1, 2)
        return torch.cat([moved, -moved], 1)
