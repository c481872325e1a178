"""Circuits and edge scores: selection, set operations, files."""

from assay.circuits.circuit import Circuit, prune
from assay.circuits.files import load_circuit, load_scores, write_atomically
from assay.circuits.heads import (
    BAND_ORDINALS,
    HeadCircuit,
    Role,
    band_of_layer,
    band_ordinal,
    load_head_circuit,
    published_head_circuits,
)
from assay.circuits.published import published_circuit, published_circuits
from assay.circuits.scores import EdgeScores


__all__ = [
    "BAND_ORDINALS",
    "Circuit",
    "EdgeScores",
    "HeadCircuit",
    "Role",
    "band_of_layer",
    "band_ordinal",
    "load_circuit",
    "load_head_circuit",
    "load_scores",
    "prune",
    "published_circuit",
    "published_circuits",
    "published_head_circuits",
    "write_atomically",
]
