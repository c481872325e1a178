"""OODSelect: find where better in-distribution accuracy means worse accuracy, and whether it is real."""

from assay.analyses.subsets.baselines import distance_scores
from assay.analyses.subsets.coherence import (
    models_needed,
    prevalence_shift,
    replicate_examples,
)
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.digits import digits_data
from assay.analyses.subsets.line import Correlation, correlate, fit_line, line_correlation, probit
from assay.analyses.subsets.overlap import selection_consistency
from assay.analyses.subsets.path import SelectionPath, selection_path
from assay.analyses.subsets.problem import Problem, Settings
from assay.analyses.subsets.selection import Evaluation, Subset, load_subset, oodselect
from assay.analyses.subsets.splits import ModelSplit, split_models
from assay.analyses.subsets.verdict import SubsetVerdict, cross_fit, permute_accuracy


__all__ = [
    "CorrectnessData",
    "Correlation",
    "Evaluation",
    "ModelSplit",
    "Problem",
    "SelectionPath",
    "Settings",
    "Subset",
    "SubsetVerdict",
    "correlate",
    "cross_fit",
    "digits_data",
    "distance_scores",
    "fit_line",
    "line_correlation",
    "load_subset",
    "models_needed",
    "oodselect",
    "permute_accuracy",
    "prevalence_shift",
    "probit",
    "replicate_examples",
    "selection_consistency",
    "selection_path",
    "split_models",
]
