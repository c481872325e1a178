"""Worst-case evaluation: on which inputs a circuit departs from its model, how far, what a sample proves."""

from assay.adversarial.explain import ExplainedEdge, Explanation, explain
from assay.adversarial.inputs import DistinctInputs, PairSample, PromptSet
from assay.adversarial.sampling import PROTOCOLS, sample_pairs


__all__ = [
    "PROTOCOLS",
    "DistinctInputs",
    "ExplainedEdge",
    "Explanation",
    "PairSample",
    "PromptSet",
    "explain",
    "sample_pairs",
]
