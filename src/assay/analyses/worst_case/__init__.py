"""Worst-case evaluation: on which inputs a circuit departs from its model, how far, what a sample proves."""

from assay.analyses.worst_case.attack import run_sample, worst_case
from assay.analyses.worst_case.divergence import DIVERGENCES
from assay.analyses.worst_case.explain import ExplainedEdge, Explanation, explain
from assay.analyses.worst_case.result import WorstCase
from assay.analyses.worst_case.sampling import PROTOCOLS, DistinctInputs, PairSample, PromptSet, sample_pairs
from assay.analyses.worst_case.search import Ascent, SearchResult, search_worst


__all__ = [
    "DIVERGENCES",
    "PROTOCOLS",
    "Ascent",
    "DistinctInputs",
    "ExplainedEdge",
    "Explanation",
    "PairSample",
    "PromptSet",
    "SearchResult",
    "WorstCase",
    "explain",
    "run_sample",
    "sample_pairs",
    "search_worst",
    "worst_case",
]
