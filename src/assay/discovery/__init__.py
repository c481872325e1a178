"""Edge-level circuit discovery."""

from assay.discovery import attribution, patching  # noqa: F401 - registers the methods
from assay.discovery.masks import HardConcrete, LearnedMask, MaskSettings, learn_mask
from assay.discovery.method import METHODS, BatchScores, EdgeMethod, Settings, completeness_gap, discover
from assay.discovery.outputs import OutputScores, output_scores
from assay.discovery.quadrature import Node, quadrature_nodes


__all__ = [
    "METHODS",
    "BatchScores",
    "EdgeMethod",
    "HardConcrete",
    "LearnedMask",
    "MaskSettings",
    "Node",
    "OutputScores",
    "Settings",
    "completeness_gap",
    "discover",
    "learn_mask",
    "output_scores",
    "quadrature_nodes",
]
