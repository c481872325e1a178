"""Calibrations: sixteen gates that say whether a measurement can be trusted."""

from assay.analyses.calibration.ablations import ablation_invariance, method_invariance
from assay.analyses.calibration.agreement import convergent_validity, inter_rater
from assay.analyses.calibration.battery import CalibrationReport, calibrate_all
from assay.analyses.calibration.certified import certified_stability
from assay.analyses.calibration.discriminant import discriminant_validity
from assay.analyses.calibration.distribution import distributional_characterization
from assay.analyses.calibration.gate import GATES, Found, Gate, Quantity, Undetermined, find_gate
from assay.analyses.calibration.inputs import calibrate
from assay.analyses.calibration.invariance import Grouping, choose_groups, measurement_invariance
from assay.analyses.calibration.multiplicity import PooledResult, multiple_comparisons, pooled_results
from assay.analyses.calibration.reliability import (
    cronbach_items,
    reliability_suite,
    retest,
    split_half,
    split_half_published,
)
from assay.analyses.calibration.resampling import bootstrap_stability, seed_variance
from assay.analyses.calibration.sensitivity import derived_metrics
from assay.analyses.calibration.stability import distributional_stability
from assay.analyses.calibration.validity import incremental_validity, nomological_validity


__all__ = [
    "GATES",
    "CalibrationReport",
    "Found",
    "Gate",
    "Grouping",
    "PooledResult",
    "Quantity",
    "Undetermined",
    "ablation_invariance",
    "bootstrap_stability",
    "calibrate",
    "calibrate_all",
    "certified_stability",
    "choose_groups",
    "convergent_validity",
    "cronbach_items",
    "derived_metrics",
    "discriminant_validity",
    "distributional_characterization",
    "distributional_stability",
    "find_gate",
    "incremental_validity",
    "inter_rater",
    "measurement_invariance",
    "method_invariance",
    "multiple_comparisons",
    "nomological_validity",
    "pooled_results",
    "reliability_suite",
    "retest",
    "seed_variance",
    "split_half",
    "split_half_published",
]
