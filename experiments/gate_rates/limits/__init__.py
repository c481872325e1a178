"""Every gate and sub-result at its thresholds, over the family of distributions that the promise names."""

from limits import (
    ablations,
    attributions,
    claims,
    discriminant,
    heads,
    rank_agreement,
    reliability,
    runs,
    scores,
    separation,
    topk,
)
from limits.cells import PROMISED, SHAPES, Cell


CELLS: tuple[Cell, ...] = (
    *ablations.CELLS,
    *attributions.CELLS,
    *claims.CELLS,
    *discriminant.CELLS,
    *heads.CELLS,
    *rank_agreement.CELLS,
    *reliability.CELLS,
    *runs.CELLS,
    *scores.CELLS,
    *separation.CELLS,
    *topk.CELLS,
)

__all__ = ["CELLS", "PROMISED", "SHAPES", "Cell"]
