"""What a circuit says about generalization: before deployment, and after it. Numbers in, numbers out."""

from assay.analyses.generalization import baselines
from assay.analyses.generalization.alarms import (
    Calibration,
    ConformalAlarm,
    Guarantee,
    SequentialTest,
    Threshold,
    calibrate_threshold,
    conformal_p_value,
)
from assay.analyses.generalization.circuit_loss import CircuitLoss, CircuitSettings
from assay.analyses.generalization.dependency import (
    LayerSets,
    Motif,
    dependency_depth_bias,
    dependency_matrix,
    motif,
    output_depth_bias,
    resampled_depth_bias,
    universal_motif,
)
from assay.analyses.generalization.domain_shifts import (
    DomainCalibration,
    calibrate_on_corruptions,
    measure_domains,
)
from assay.analyses.generalization.dynamics import Dynamics, training_dynamics
from assay.analyses.generalization.evaluation import (
    AlarmCounts,
    AlarmCurve,
    CorrelationSummary,
    TaskCorrelation,
    alarm_counts,
    alarm_curve,
    correlate,
    ratio_ablation,
    summarize_correlations,
)
from assay.analyses.generalization.finetuning import FineTuning, finetune
from assay.analyses.generalization.inspecting import inspect_model
from assay.analyses.generalization.inspection import Inspection, InspectionSettings
from assay.analyses.generalization.journal import Reading
from assay.analyses.generalization.known_parts import KnownParts, split_known
from assay.analyses.generalization.monitoring import Monitor
from assay.analyses.generalization.predictor import PREDICTORS
from assay.analyses.generalization.ranking import rank_inspections, rank_models
from assay.analyses.generalization.ranking_table import Ranking
from assay.analyses.generalization.reference import discover_reference
from assay.analyses.generalization.shift import (
    DISTANCES,
    Distance,
    check_comparable,
    circuit_shift,
    circuit_shifts,
    rank_shift_map,
)


__all__ = [
    "DISTANCES",
    "PREDICTORS",
    "AlarmCounts",
    "AlarmCurve",
    "Calibration",
    "CircuitLoss",
    "CircuitSettings",
    "ConformalAlarm",
    "CorrelationSummary",
    "Distance",
    "DomainCalibration",
    "Dynamics",
    "FineTuning",
    "Guarantee",
    "Inspection",
    "InspectionSettings",
    "KnownParts",
    "LayerSets",
    "Monitor",
    "Motif",
    "Ranking",
    "Reading",
    "SequentialTest",
    "TaskCorrelation",
    "Threshold",
    "alarm_counts",
    "alarm_curve",
    "baselines",
    "calibrate_on_corruptions",
    "calibrate_threshold",
    "check_comparable",
    "circuit_shift",
    "circuit_shifts",
    "conformal_p_value",
    "correlate",
    "dependency_depth_bias",
    "dependency_matrix",
    "discover_reference",
    "finetune",
    "inspect_model",
    "measure_domains",
    "motif",
    "output_depth_bias",
    "rank_inspections",
    "rank_models",
    "rank_shift_map",
    "ratio_ablation",
    "resampled_depth_bias",
    "split_known",
    "summarize_correlations",
    "training_dynamics",
    "universal_motif",
]
