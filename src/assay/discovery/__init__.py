"""Edge-level circuit discovery."""

from assay.discovery.acdc import Acdc
from assay.discovery.agreement import consensus
from assay.discovery.attribution import CleanCorrupted, Eap, EapIgActivations, EapIgInputs
from assay.discovery.ifr import Ifr
from assay.discovery.masks import HardConcrete, LearnedMask, MaskSettings, learn_mask
from assay.discovery.method import (
    METHODS,
    BatchMethod,
    BatchScores,
    EdgeMethod,
    Settings,
    Sweep,
    completeness_gap,
    discover,
    get_method,
)
from assay.discovery.outputs import OutputScores, output_scores
from assay.discovery.patching import Exact, Random
from assay.discovery.positions import discover_positions
from assay.discovery.pruning import EdgePruning
from assay.discovery.quadrature import Node, quadrature_nodes
from assay.discovery.relp import Relp
from assay.discovery.ugs import Ugs


__all__ = [
    "METHODS",
    "Acdc",
    "BatchMethod",
    "BatchScores",
    "CleanCorrupted",
    "Eap",
    "EapIgActivations",
    "EapIgInputs",
    "EdgeMethod",
    "EdgePruning",
    "Exact",
    "HardConcrete",
    "Ifr",
    "LearnedMask",
    "MaskSettings",
    "Node",
    "OutputScores",
    "Random",
    "Relp",
    "Settings",
    "Sweep",
    "Ugs",
    "completeness_gap",
    "consensus",
    "discover",
    "discover_positions",
    "get_method",
    "learn_mask",
    "output_scores",
    "quadrature_nodes",
]
