"""Edge-level circuit discovery."""

from assay.discovery import attribution, patching  # noqa: F401 - registers the methods
from assay.discovery.method import METHODS, BatchScores, EdgeMethod, Settings, completeness_gap, discover
from assay.discovery.quadrature import Node, quadrature_nodes


__all__ = [
    "METHODS",
    "BatchScores",
    "EdgeMethod",
    "Node",
    "Settings",
    "completeness_gap",
    "discover",
    "quadrature_nodes",
]
