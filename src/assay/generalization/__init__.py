"""What a circuit says about generalization: before deployment, and after it. Numbers in, numbers out."""

from assay.generalization import baselines
from assay.generalization.dependency import (
    LayerSets,
    dependency_depth_bias,
    dependency_matrix,
    layer_sets,
    output_depth_bias,
)
from assay.generalization.depth_interval import depth_bias_interval
from assay.generalization.evaluation import (
    AlarmCounts,
    AlarmCurve,
    CorrelationSummary,
    TaskCorrelation,
    Threshold,
    alarm_counts,
    alarm_curve,
    calibrate_threshold,
    correlate,
    ratio_ablation,
    summarize_correlations,
)
from assay.generalization.motifs import Motif, motif, universal_motif
from assay.generalization.shift import (
    DISTANCES,
    CircuitView,
    Distance,
    check_comparable,
    circuit_shift,
    circuit_shifts,
    heat_signature,
    rank_shift_map,
)


__all__ = [
    "DISTANCES",
    "AlarmCounts",
    "AlarmCurve",
    "CircuitView",
    "CorrelationSummary",
    "Distance",
    "LayerSets",
    "Motif",
    "TaskCorrelation",
    "Threshold",
    "alarm_counts",
    "alarm_curve",
    "baselines",
    "calibrate_threshold",
    "check_comparable",
    "circuit_shift",
    "circuit_shifts",
    "correlate",
    "dependency_depth_bias",
    "dependency_matrix",
    "depth_bias_interval",
    "heat_signature",
    "layer_sets",
    "motif",
    "output_depth_bias",
    "rank_shift_map",
    "ratio_ablation",
    "summarize_correlations",
    "universal_motif",
]
