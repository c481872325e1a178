"""Edge-level circuit discovery."""

from assay.discovery import (  # noqa: F401 - registers the methods
    acdc,
    attribution,
    ifr,
    patching,
    pruning,
    relp,
    ugs,
)
from assay.discovery.consensus import consensus
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
from assay.discovery.positions import discover_positions
from assay.discovery.quadrature import Node, quadrature_nodes


__all__ = [
    "METHODS",
    "BatchMethod",
    "BatchScores",
    "EdgeMethod",
    "HardConcrete",
    "LearnedMask",
    "MaskSettings",
    "Node",
    "OutputScores",
    "Settings",
    "Sweep",
    "completeness_gap",
    "consensus",
    "discover",
    "discover_positions",
    "get_method",
    "learn_mask",
    "output_scores",
    "quadrature_nodes",
]
