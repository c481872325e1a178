"""Circuits and edge scores: selection, set operations, files."""

from assay.circuits.circuit import Circuit, prune
from assay.circuits.files import load_circuit, load_scores, write_atomically
from assay.circuits.published import published_circuit, published_circuits
from assay.circuits.scores import EdgeScores


__all__ = [
    "Circuit",
    "EdgeScores",
    "load_circuit",
    "load_scores",
    "prune",
    "published_circuit",
    "published_circuits",
    "write_atomically",
]
