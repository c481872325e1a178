"""Scores of single attention heads: from their weights, their outputs, and small changes to them."""

from assay.discovery.heads.attribution import attribution_patching as attribution_patching
from assay.discovery.heads.classifier import (
    WeightFeatures as WeightFeatures,
    WeightPrediction as WeightPrediction,
    predict_from_weights as predict_from_weights,
    weight_features as weight_features,
)
from assay.discovery.heads.direct import (
    HeadOutputs as HeadOutputs,
    activation_magnitude as activation_magnitude,
    direct_attribution as direct_attribution,
    head_outputs as head_outputs,
    margin_directions as margin_directions,
)
from assay.discovery.heads.effects import (
    CircuitEffect as CircuitEffect,
    circuit_effect as circuit_effect,
    drop_scores as drop_scores,
    mediation_scores as mediation_scores,
    patching_scores as patching_scores,
)
from assay.discovery.heads.fisher import fisher_count as fisher_count
from assay.discovery.heads.head_pairs import (
    Composition as Composition,
    EdgeTest as EdgeTest,
    composition as composition,
    edge_test as edge_test,
)
from assay.discovery.heads.information import (
    causation_entropy as causation_entropy,
    stability_selection as stability_selection,
)
from assay.discovery.heads.interventions import INTERVENTIONS as INTERVENTIONS
from assay.discovery.heads.llc import (
    Langevin as Langevin,
    LearningCoefficient as LearningCoefficient,
    learning_coefficient as learning_coefficient,
    learning_coefficients as learning_coefficients,
)
from assay.discovery.heads.membership import (
    Separation as Separation,
    SetOverlap as SetOverlap,
    separation as separation,
    set_overlap as set_overlap,
)
from assay.discovery.heads.methods import (
    HEAD_METHODS as HEAD_METHODS,
    HeadMethod as HeadMethod,
    discover_heads as discover_heads,
    find_head_method as find_head_method,
)
from assay.discovery.heads.scores import HeadScores as HeadScores, load_head_scores as load_head_scores
from assay.discovery.heads.single_heads import (
    activation_patching as activation_patching,
    drop_effect as drop_effect,
    mediation as mediation,
)
from assay.discovery.heads.table import MeasurementTable as MeasurementTable
from assay.discovery.heads.weights import (
    EffectiveRank as EffectiveRank,
    answer_directions as answer_directions,
    effective_rank as effective_rank,
    member_ratio as member_ratio,
    ov_norm as ov_norm,
    product_singular_values as product_singular_values,
    sv_entropy as sv_entropy,
    weight_scores as weight_scores,
)
