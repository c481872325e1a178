"""Scores of single attention heads: from their weights, their outputs, and small changes to them."""

from assay.discovery.heads.attribution import attribution_patching
from assay.discovery.heads.classifier import (
    WeightFeatures,
    WeightPrediction,
    predict_from_weights,
    weight_features,
)
from assay.discovery.heads.direct import (
    HeadOutputs,
    activation_magnitude,
    direct_attribution,
    head_outputs,
    margin_directions,
)
from assay.discovery.heads.effects import (
    drop_scores,
    mediation_scores,
    patching_scores,
)
from assay.discovery.heads.fisher import fisher_count
from assay.discovery.heads.head_pairs import Composition, EdgeTest, composition, edge_test
from assay.discovery.heads.information import causation_entropy
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.discovery.heads.membership import Separation, SetOverlap, separation, set_overlap
from assay.discovery.heads.methods import HEAD_METHODS, HeadMethod, discover_heads, find_head_method
from assay.discovery.heads.scores import HeadScores, load_head_scores
from assay.discovery.heads.single_heads import activation_patching, drop_effect, mediation
from assay.discovery.heads.table import MeasurementTable
from assay.discovery.heads.weights import (
    EffectiveRank,
    answer_directions,
    effective_rank,
    member_ratio,
    ov_norm,
    product_singular_values,
    sv_entropy,
    weight_scores,
)


__all__ = [
    "HEAD_METHODS",
    "INTERVENTIONS",
    "Composition",
    "EdgeTest",
    "EffectiveRank",
    "HeadMethod",
    "HeadOutputs",
    "HeadScores",
    "MeasurementTable",
    "Separation",
    "SetOverlap",
    "WeightFeatures",
    "WeightPrediction",
    "activation_magnitude",
    "activation_patching",
    "answer_directions",
    "attribution_patching",
    "causation_entropy",
    "composition",
    "direct_attribution",
    "discover_heads",
    "drop_effect",
    "drop_scores",
    "edge_test",
    "effective_rank",
    "find_head_method",
    "fisher_count",
    "head_outputs",
    "load_head_scores",
    "margin_directions",
    "mediation",
    "mediation_scores",
    "member_ratio",
    "ov_norm",
    "patching_scores",
    "predict_from_weights",
    "product_singular_values",
    "separation",
    "set_overlap",
    "sv_entropy",
    "weight_features",
    "weight_scores",
]
