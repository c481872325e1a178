"""Scores of single attention heads: from their weights, their outputs, and small changes to them."""

from assay.heads.attribution import (
    attribution_patching,
)
from assay.heads.classifier import (
    WeightFeatures,
    WeightPrediction,
    predict_from_weights,
    weight_features,
)
from assay.heads.direct import (
    HeadOutputs,
    activation_magnitude,
    direct_attribution,
    head_outputs,
    margin_directions,
)
from assay.heads.information import (
    causation_entropy,
    parent_flags,
    stability_selection,
)
from assay.heads.llc import (
    Langevin,
    LearningCoefficient,
    fisher_count,
    learning_coefficient,
    learning_coefficients,
)
from assay.heads.membership import (
    Separation,
    SetOverlap,
    separation,
    set_overlap,
)
from assay.heads.scores import (
    HeadScores,
)
from assay.heads.table import MeasurementTable
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
    "HeadOutputs",
    "HeadScores",
    "Langevin",
    "LearningCoefficient",
    "MeasurementTable",
    "Separation",
    "SetOverlap",
    "WeightFeatures",
    "WeightPrediction",
    "activation_magnitude",
    "answer_directions",
    "attribution_patching",
    "causation_entropy",
    "composition",
    "direct_attribution",
    "edge_test",
    "effective_rank",
    "fisher_count",
    "head_outputs",
    "learning_coefficient",
    "learning_coefficients",
    "margin_directions",
    "member_ratio",
    "ov_norm",
    "parent_flags",
    "predict_from_weights",
    "product_singular_values",
    "separation",
    "set_overlap",
    "stability_selection",
    "sv_entropy",
    "weight_features",
    "weight_scores",
]
