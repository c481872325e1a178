"""Statistics on arrays: intervals, association, statistics that resample. No model, no torch."""

from assay.stats.association import fagin_tau_rows, kendall_tau, kendall_tau_rows, pearson, spearman
from assay.stats.intervals import (
    bootstrap_interval,
    clopper_pearson,
    delta_interval,
    draw_counts,
    fieller_interval,
    fisher_z_interval,
)
from assay.stats.statistic import (
    FunctionOfSums,
    RatioOfSums,
    corrected_rate,
    mean_difference,
    mean_of,
    ratio_of,
    recovery_of,
    statistic_from_dict,
)


__all__ = [
    "FunctionOfSums",
    "RatioOfSums",
    "bootstrap_interval",
    "clopper_pearson",
    "corrected_rate",
    "delta_interval",
    "draw_counts",
    "fagin_tau_rows",
    "fieller_interval",
    "fisher_z_interval",
    "kendall_tau",
    "kendall_tau_rows",
    "mean_difference",
    "mean_of",
    "pearson",
    "ratio_of",
    "recovery_of",
    "spearman",
    "statistic_from_dict",
]
