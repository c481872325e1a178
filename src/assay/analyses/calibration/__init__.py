"""Calibrations: sixteen gates that say whether a measurement can be trusted."""

from assay.analyses.calibration.ablations import (
    ablation_invariance as ablation_invariance,
    method_invariance as method_invariance,
)
from assay.analyses.calibration.agreement import (
    convergent_validity as convergent_validity,
    inter_rater as inter_rater,
)
from assay.analyses.calibration.battery import (
    CalibrationReport as CalibrationReport,
    calibrate_all as calibrate_all,
)
from assay.analyses.calibration.certified import certified_stability as certified_stability
from assay.analyses.calibration.consistency import (
    cronbach_items as cronbach_items,
    split_half as split_half,
    split_half_published as split_half_published,
)
from assay.analyses.calibration.discriminant import discriminant_validity as discriminant_validity
from assay.analyses.calibration.distribution import (
    distributional_characterization as distributional_characterization,
)
from assay.analyses.calibration.gate import GATES as GATES, Gate as Gate, find_gate as find_gate
from assay.analyses.calibration.invariance import (
    Grouping as Grouping,
    choose_groups as choose_groups,
    measurement_invariance as measurement_invariance,
)
from assay.analyses.calibration.judging import calibrate as calibrate
from assay.analyses.calibration.multiplicity import (
    PooledResult as PooledResult,
    multiple_comparisons as multiple_comparisons,
)
from assay.analyses.calibration.pooling import pooled_results as pooled_results
from assay.analyses.calibration.quantity import Quantity as Quantity
from assay.analyses.calibration.reliability import reliability_suite as reliability_suite, retest as retest
from assay.analyses.calibration.resampling import (
    bootstrap_stability as bootstrap_stability,
    seed_variance as seed_variance,
)
from assay.analyses.calibration.signal import derived_metrics as derived_metrics
from assay.analyses.calibration.stability import distributional_stability as distributional_stability
from assay.analyses.calibration.validity import (
    incremental_validity as incremental_validity,
    nomological_validity as nomological_validity,
)
