"""Statistics on arrays: intervals, association, statistics that resample. No model, no torch."""

from assay.stats.agreement import (
    Concordance as Concordance,
    IntraclassCorrelation as IntraclassCorrelation,
    intraclass_correlation as intraclass_correlation,
    kappa_matrix as kappa_matrix,
    kendall_w as kendall_w,
    top_members as top_members,
)
from assay.stats.all_pairs_bounds import (
    all_pairs_failure as all_pairs_failure,
    all_pairs_order_failure as all_pairs_order_failure,
    best_all_pairs_order as best_all_pairs_order,
    maximum_exceedance as maximum_exceedance,
)
from assay.stats.anova import GroupDifferences as GroupDifferences, group_differences as group_differences
from assay.stats.association import (
    fagin_tau_rows as fagin_tau_rows,
    kendall_tau as kendall_tau,
    kendall_tau_rows as kendall_tau_rows,
    pearson as pearson,
    pearson_matrix as pearson_matrix,
    spearman as spearman,
    spearman_matrix as spearman_matrix,
)
from assay.stats.bounded import bounded_mean as bounded_mean
from assay.stats.cells import CellTests as CellTests, cell_tests as cell_tests
from assay.stats.certificates import (
    Certificate as Certificate,
    certificate as certificate,
    certificate_family as certificate_family,
)
from assay.stats.detection import (
    auroc as auroc,
    average_precision as average_precision,
    d_prime as d_prime,
    precision_at as precision_at,
)
from assay.stats.estimate import Estimate as Estimate, SignificanceTest as SignificanceTest
from assay.stats.inclusion import (
    CertifiedInclusion as CertifiedInclusion,
    certified_inclusion as certified_inclusion,
    edit_radius as edit_radius,
)
from assay.stats.intervals import (
    bootstrap_interval as bootstrap_interval,
    clopper_pearson as clopper_pearson,
    delta_interval as delta_interval,
    draw_counts as draw_counts,
    fieller_interval as fieller_interval,
    fisher_z_interval as fisher_z_interval,
    outermost as outermost,
    resampled_ratios as resampled_ratios,
    studentized_interval as studentized_interval,
)
from assay.stats.multiplicity import (
    benjamini_hochberg as benjamini_hochberg,
    benjamini_yekutieli as benjamini_yekutieli,
    bonferroni as bonferroni,
    e_benjamini_hochberg as e_benjamini_hochberg,
    holm as holm,
    partial_conjunction as partial_conjunction,
    true_discoveries as true_discoveries,
)
from assay.stats.percentile_bounds import (
    OrderStatistic as OrderStatistic,
    SampleSize as SampleSize,
    best_order_statistic as best_order_statistic,
    percentile_confidence as percentile_confidence,
    percentile_failure as percentile_failure,
    percentile_sample_size as percentile_sample_size,
)
from assay.stats.permutation import (
    MeanTest as MeanTest,
    RankTest as RankTest,
    mean_tests as mean_tests,
    spearman_test as spearman_test,
)
from assay.stats.poisson_weights import poisson_weights as poisson_weights
from assay.stats.relative_error import (
    RelativeErrors as RelativeErrors,
    absolute_errors as absolute_errors,
    relative_errors as relative_errors,
)
from assay.stats.reliability import (
    Consistency as Consistency,
    cronbach_alpha as cronbach_alpha,
    resampled_alpha_bounds as resampled_alpha_bounds,
    spearman_brown as spearman_brown,
)
from assay.stats.resampled import ResampledValue as ResampledValue
from assay.stats.sequences import (
    ConfidenceSequence as ConfidenceSequence,
    confidence_sequence as confidence_sequence,
    hoeffding_radius as hoeffding_radius,
)
from assay.stats.skewed_mean import mean_above as mean_above, skewed_mean_interval as skewed_mean_interval
from assay.stats.spread import (
    bootstrap_spread as bootstrap_spread,
    coefficient_of_variation as coefficient_of_variation,
    standard_deviation as standard_deviation,
    standard_error as standard_error,
)
from assay.stats.statistic import (
    FunctionOfSums as FunctionOfSums,
    RatioOfSums as RatioOfSums,
    corrected_rate as corrected_rate,
    mean_difference as mean_difference,
    mean_of as mean_of,
    ratio_of as ratio_of,
    recovery_of as recovery_of,
    statistic_from_dict as statistic_from_dict,
)
from assay.stats.summary import (
    AnchorComparison as AnchorComparison,
    CellTable as CellTable,
    Histogram as Histogram,
    Summary as Summary,
    cell_table as cell_table,
    compare_with_anchor as compare_with_anchor,
    histogram as histogram,
    mean_standard_error as mean_standard_error,
    summarize as summarize,
    top_indices as top_indices,
    weighted_quantiles as weighted_quantiles,
)
