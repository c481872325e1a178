"""What a circuit says about generalization: before deployment, and after it. Numbers in, numbers out."""

from assay.analyses.generalization import baselines
from assay.analyses.generalization.accuracy_estimate import AccuracyEstimate, AccuracyEstimator, Backtest
from assay.analyses.generalization.alarms import (
    Calibration,
    ConformalAlarm,
    Guarantee,
    SequentialTest,
    conformal_p_value,
)
from assay.analyses.generalization.circuit_loss import CircuitLoss, CircuitSettings
from assay.analyses.generalization.circuit_view import WeightedCircuit
from assay.analyses.generalization.depth_bias import (
    LayerSets,
    dependency_depth_bias,
    dependency_matrix,
    layer_sets,
    output_depth_bias,
)
from assay.analyses.generalization.domain_shifts import (
    DomainCalibration,
    calibrate_on_corruptions,
    measure_domains,
)
from assay.analyses.generalization.dynamics import DepthVerdict, Dynamics, judge_depth, training_dynamics
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
from assay.analyses.generalization.motifs import Motif, motif, universal_motif
from assay.analyses.generalization.noise_floor import Excess, NoiseFloor
from assay.analyses.generalization.predictor import PREDICTORS
from assay.analyses.generalization.ranking import rank_inspections, rank_models
from assay.analyses.generalization.ranking_table import Ranking
from assay.analyses.generalization.reference import Reference, discover_reference, load_reference
from assay.analyses.generalization.resampled import (
    ResampledMatrix,
    resampled_dependency,
    resampled_depth_bias,
    resampled_motif,
    resampled_shift,
)
from assay.analyses.generalization.shift import (
    DISTANCES,
    Distance,
    check_comparable,
    circuit_shift,
    circuit_shifts,
    heat_signature,
    rank_shift_map,
)
from assay.analyses.generalization.thresholds import Threshold, calibrate_threshold


__all__ = [
    "DISTANCES",
    "PREDICTORS",
    "AccuracyEstimate",
    "AccuracyEstimator",
    "AlarmCounts",
    "AlarmCurve",
    "Backtest",
    "Calibration",
    "CircuitLoss",
    "CircuitSettings",
    "ConformalAlarm",
    "CorrelationSummary",
    "DepthVerdict",
    "Distance",
    "DomainCalibration",
    "Dynamics",
    "Excess",
    "FineTuning",
    "Guarantee",
    "Inspection",
    "InspectionSettings",
    "KnownParts",
    "LayerSets",
    "Monitor",
    "Motif",
    "NoiseFloor",
    "Ranking",
    "Reading",
    "Reference",
    "ResampledMatrix",
    "SequentialTest",
    "TaskCorrelation",
    "Threshold",
    "WeightedCircuit",
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
    "heat_signature",
    "inspect_model",
    "judge_depth",
    "layer_sets",
    "load_reference",
    "measure_domains",
    "motif",
    "output_depth_bias",
    "rank_inspections",
    "rank_models",
    "rank_shift_map",
    "ratio_ablation",
    "resampled_dependency",
    "resampled_depth_bias",
    "resampled_motif",
    "resampled_shift",
    "split_known",
    "summarize_correlations",
    "training_dynamics",
    "universal_motif",
]
