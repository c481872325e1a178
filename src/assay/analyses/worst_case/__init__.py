"""Worst-case evaluation: on which inputs a circuit departs from its model, how far, what a sample proves."""

from assay.analyses.worst_case.ascent import Ascent, Climbs, grammar_ascent
from assay.analyses.worst_case.attack import run_sample, worst_case
from assay.analyses.worst_case.explain import ExplainedEdge, Explanation, explain
from assay.analyses.worst_case.inputs import DistinctInputs, PairSample, PromptSet
from assay.analyses.worst_case.matrix import FoundPair, MatrixSearch, matrix_search
from assay.analyses.worst_case.pair_divergence import DIVERGENCES
from assay.analyses.worst_case.result import WorstCase
from assay.analyses.worst_case.sampling import PROTOCOLS, sample_pairs
from assay.analyses.worst_case.search import SearchResult, search_worst


__all__ = [
    "DIVERGENCES",
    "PROTOCOLS",
    "Ascent",
    "Climbs",
    "DistinctInputs",
    "ExplainedEdge",
    "Explanation",
    "FoundPair",
    "MatrixSearch",
    "PairSample",
    "PromptSet",
    "SearchResult",
    "WorstCase",
    "explain",
    "grammar_ascent",
    "matrix_search",
    "run_sample",
    "sample_pairs",
    "search_worst",
    "worst_case",
]
