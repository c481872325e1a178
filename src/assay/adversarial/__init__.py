"""Worst-case evaluation: on which inputs a circuit departs from its model, how far, what a sample proves."""

from assay.adversarial.ascent import Ascent, Climbs, grammar_ascent
from assay.adversarial.attack import run_sample, worst_case
from assay.adversarial.divergence import DIVERGENCES
from assay.adversarial.explain import ExplainedEdge, Explanation, explain
from assay.adversarial.inputs import DistinctInputs, PairSample, PromptSet
from assay.adversarial.matrix import FoundPair, MatrixSearch, matrix_search
from assay.adversarial.outside import FillerRow, Outside, outside_grammar, read_words, unused_words
from assay.adversarial.repair import Repair, repair
from assay.adversarial.result import WorstCase
from assay.adversarial.sampling import PROTOCOLS, sample_pairs
from assay.adversarial.search import SearchResult, search_worst


__all__ = [
    "DIVERGENCES",
    "PROTOCOLS",
    "Ascent",
    "Climbs",
    "DistinctInputs",
    "ExplainedEdge",
    "Explanation",
    "FillerRow",
    "FoundPair",
    "MatrixSearch",
    "Outside",
    "PairSample",
    "PromptSet",
    "Repair",
    "SearchResult",
    "WorstCase",
    "explain",
    "grammar_ascent",
    "matrix_search",
    "outside_grammar",
    "read_words",
    "repair",
    "run_sample",
    "sample_pairs",
    "search_worst",
    "unused_words",
    "worst_case",
]
