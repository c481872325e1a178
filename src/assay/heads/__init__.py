"""Scores of single attention heads: from their weights, their outputs, and small changes to them."""

from assay.heads.membership import Separation, separation
from assay.heads.scores import HeadScores
from assay.heads.weights import (
    Composition,
    EdgeTest,
    EffectiveRank,
    answer_directions,
    composition,
    edge_test,
    effective_rank,
    member_ratio,
    ov_norm,
    product_singular_values,
    sv_entropy,
    weight_scores,
)


__all__ = [
    "Composition",
    "EdgeTest",
    "EffectiveRank",
    "HeadScores",
    "Separation",
    "answer_directions",
    "composition",
    "edge_test",
    "effective_rank",
    "member_ratio",
    "ov_norm",
    "product_singular_values",
    "separation",
    "sv_entropy",
    "weight_scores",
]
