"""OODSelect: find where better in-distribution accuracy means worse accuracy, and whether it is real."""

from assay.analyses.subsets.baselines import BaselineRow, baseline_rows, distance_scores
from assay.analyses.subsets.composition import (
    ClassComposition,
    ClassCorrelation,
    class_composition,
    class_correlations,
)
from assay.analyses.subsets.consistency import SelectionConsistency, selection_consistency
from assay.analyses.subsets.crossfit import CrossFit, cross_fit
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.describe import SubsetDescription, describe_selection, describe_subset
from assay.analyses.subsets.digits import digits_data
from assay.analyses.subsets.encoder import Encoder, TextRanker, embed_examples
from assay.analyses.subsets.holdout import ExampleHoldout, example_holdout
from assay.analyses.subsets.language_models import ChatEndpoint, pipeline_answers, pipeline_captioner
from assay.analyses.subsets.layouts import PackedMatrix
from assay.analyses.subsets.line import Correlation, Line, correlate, fit_line, line_correlation, probit
from assay.analyses.subsets.members import Evaluation
from assay.analyses.subsets.model_curve import ModelsNeeded, models_needed
from assay.analyses.subsets.ngrams import NGrams, ngram_features, ngram_shift
from assay.analyses.subsets.objective import Found
from assay.analyses.subsets.path import LargestSubset, SelectionPath, selection_path
from assay.analyses.subsets.permutation import permute_accuracy
from assay.analyses.subsets.prevalence import PrevalenceRow, PrevalenceShift, prevalence_shift
from assay.analyses.subsets.problem import default_sizes
from assay.analyses.subsets.proposals import text_proposer
from assay.analyses.subsets.published import PublishedSelections, load_published
from assay.analyses.subsets.quality import Quality, Understood
from assay.analyses.subsets.replication import (
    ExampleReplication,
    HalfReplication,
    replicate_examples,
    replicate_halves,
)
from assay.analyses.subsets.selection import Subset, load_subset, oodselect
from assay.analyses.subsets.settings import SelectionOptions, Settings
from assay.analyses.subsets.splits import ModelSplit, folds, split_models
from assay.analyses.subsets.verdict import SubsetVerdict, judge_sizes


__all__ = [
    "BaselineRow",
    "ChatEndpoint",
    "ClassComposition",
    "ClassCorrelation",
    "CorrectnessData",
    "Correlation",
    "CrossFit",
    "Encoder",
    "Evaluation",
    "ExampleHoldout",
    "ExampleReplication",
    "Found",
    "HalfReplication",
    "LargestSubset",
    "Line",
    "ModelSplit",
    "ModelsNeeded",
    "NGrams",
    "PackedMatrix",
    "PrevalenceRow",
    "PrevalenceShift",
    "PublishedSelections",
    "Quality",
    "SelectionConsistency",
    "SelectionOptions",
    "SelectionPath",
    "Settings",
    "Subset",
    "SubsetDescription",
    "SubsetVerdict",
    "TextRanker",
    "Understood",
    "baseline_rows",
    "class_composition",
    "class_correlations",
    "correlate",
    "cross_fit",
    "default_sizes",
    "describe_selection",
    "describe_subset",
    "digits_data",
    "distance_scores",
    "embed_examples",
    "example_holdout",
    "fit_line",
    "folds",
    "judge_sizes",
    "line_correlation",
    "load_predictions",
    "load_published",
    "load_subset",
    "models_needed",
    "ngram_features",
    "ngram_shift",
    "oodselect",
    "permute_accuracy",
    "pipeline_answers",
    "pipeline_captioner",
    "prevalence_shift",
    "probit",
    "replicate_examples",
    "replicate_halves",
    "selection_consistency",
    "selection_path",
    "split_models",
    "text_proposer",
]

load_predictions = CorrectnessData.from_predictions
