"""Edge-level circuit discovery."""

from assay.discovery.edges.acdc import Acdc
from assay.discovery.edges.eap_ig import CleanCorrupted, Eap, EapIgActivations, EapIgInputs, quadrature_nodes
from assay.discovery.edges.gim import Gim
from assay.discovery.edges.ifr import Ifr
from assay.discovery.edges.method import METHODS, Choices, EdgeMethod, get_method
from assay.discovery.edges.nested import Nested
from assay.discovery.edges.outputs import OutputScores, OutputSums, output_scores
from assay.discovery.edges.patching import Exact, Random
from assay.discovery.edges.relp import Relp
from assay.discovery.edges.running import ScoreSums, completeness_gap, discover
from assay.discovery.edges.two_target import TwoTarget
from assay.discovery.edges.ugs import Ugs


__all__ = [
    "METHODS",
    "Acdc",
    "Choices",
    "CleanCorrupted",
    "Eap",
    "EapIgActivations",
    "EapIgInputs",
    "EdgeMethod",
    "Exact",
    "Gim",
    "Ifr",
    "Nested",
    "OutputScores",
    "OutputSums",
    "Random",
    "Relp",
    "ScoreSums",
    "TwoTarget",
    "Ugs",
    "completeness_gap",
    "discover",
    "get_method",
    "output_scores",
    "quadrature_nodes",
]
