"""Worst-case evaluation: on which inputs a circuit departs from its model, how far, what a sample proves."""

from assay.adversarial.attack import run_sample, worst_case
from assay.adversarial.divergence import DIVERGENCES
from assay.adversarial.explain import ExplainedEdge, Explanation, explain
from assay.adversarial.inputs import DistinctInputs, PairSample, PromptSet
from assay.adversarial.repair import Repair, repair
from assay.adversarial.result import WorstCase
from assay.adversarial.sampling import PROTOCOLS, sample_pairs


__all__ = [
    "DIVERGENCES",
    "PROTOCOLS",
    "DistinctInputs",
    "ExplainedEdge",
    "Explanation",
    "PairSample",
    "PromptSet",
    "Repair",
    "WorstCase",
    "explain",
    "repair",
    "run_sample",
    "sample_pairs",
    "worst_case",
]
