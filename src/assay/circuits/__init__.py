"""Circuits and edge scores: selection, set operations, files."""

from assay.circuits.certified import CertifiedCircuit, certify
from assay.circuits.circuit import Circuit, Level, load_circuit, prune, published_circuit, published_circuits
from assay.circuits.exchange import export_circuit, read_eap_ig, write_eap_ig
from assay.circuits.files import write_atomically
from assay.circuits.heads import HeadCircuit, Role, load_head_circuit, published_head_circuits
from assay.circuits.node_scores import NodeScores, Scores, load_node_scores
from assay.circuits.scores import EdgeScores, load_scores
from assay.circuits.spans import Spans


__all__ = [
    "CertifiedCircuit",
    "Circuit",
    "EdgeScores",
    "HeadCircuit",
    "Level",
    "NodeScores",
    "Role",
    "Scores",
    "Spans",
    "certify",
    "export_circuit",
    "load_circuit",
    "load_head_circuit",
    "load_node_scores",
    "load_scores",
    "prune",
    "published_circuit",
    "published_circuits",
    "published_head_circuits",
    "read_eap_ig",
    "write_atomically",
    "write_eap_ig",
]
