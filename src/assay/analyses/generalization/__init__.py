"""What a circuit says about generalization: before deployment, and after it. Numbers in, numbers out."""

from assay.analyses.generalization import baselines
from assay.analyses.generalization.alarms import alarm_curve, calibrate_threshold
from assay.analyses.generalization.circuit_loss import CircuitLoss, finetune
from assay.analyses.generalization.dependency import (
    Motif,
    dependency_depth_bias,
    dependency_matrix,
    motif,
    resampled_depth_bias,
    universal_motif,
)
from assay.analyses.generalization.domains import (
    calibrate_on_corruptions,
    measure_domains,
    split_known,
)
from assay.analyses.generalization.dynamics import Dynamics, training_dynamics
from assay.analyses.generalization.evaluation import (
    TaskCorrelation,
    correlate,
    ratio_ablation,
    summarize_correlations,
)
from assay.analyses.generalization.inspection import InspectionSettings
from assay.analyses.generalization.monitor import Monitor, discover_reference
from assay.analyses.generalization.ranking import Ranking, rank_models
from assay.analyses.generalization.shift import DISTANCES, circuit_shift, circuit_shifts, rank_shift_map


__all__ = [
    "DISTANCES",
    "CircuitLoss",
    "Dynamics",
    "InspectionSettings",
    "Monitor",
    "Motif",
    "Ranking",
    "TaskCorrelation",
    "alarm_curve",
    "baselines",
    "calibrate_on_corruptions",
    "calibrate_threshold",
    "circuit_shift",
    "circuit_shifts",
    "correlate",
    "dependency_depth_bias",
    "dependency_matrix",
    "discover_reference",
    "finetune",
    "measure_domains",
    "motif",
    "rank_models",
    "rank_shift_map",
    "ratio_ablation",
    "resampled_depth_bias",
    "split_known",
    "summarize_correlations",
    "training_dynamics",
    "universal_motif",
]
