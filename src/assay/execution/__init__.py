"""Ablated execution: run a model with some edges kept and all others ablated."""

from assay.execution.ablation import (
    ABLATIONS,
    Ablation,
    Baseline,
    BaselineShelf,
    Mean,
    MeanSums,
    Prepared,
    get_ablation,
)
from assay.execution.cuts import CutRunner
from assay.execution.forward import run_circuit, run_model
from assay.execution.pairs import PairRunner, PreparedInputs
from assay.execution.runner import CircuitRunner
from assay.execution.runs import CircuitRuns
from assay.execution.soft import SoftRunner


__all__ = [
    "ABLATIONS",
    "Ablation",
    "Baseline",
    "BaselineShelf",
    "CircuitRunner",
    "CircuitRuns",
    "CutRunner",
    "Mean",
    "MeanSums",
    "PairRunner",
    "Prepared",
    "PreparedInputs",
    "SoftRunner",
    "get_ablation",
    "run_circuit",
    "run_model",
]
