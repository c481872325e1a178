"""Ablated execution: run a model with some edges kept and all others ablated."""

from assay.execution.ablation import ABLATIONS, Ablation, Mean, MeanSums, get_ablation
from assay.execution.baseline import Baseline, BaselineShelf, Prepared
from assay.execution.cuts import CutRunner
from assay.execution.forward import run_circuit, run_model
from assay.execution.pairs import PairRunner, PreparedInputs
from assay.execution.plan import CompiledMask, compile_plan
from assay.execution.runner import CircuitRunner
from assay.execution.runs import CircuitRuns
from assay.execution.soft import SoftPairs, SoftRunner


__all__ = [
    "ABLATIONS",
    "Ablation",
    "Baseline",
    "BaselineShelf",
    "CircuitRunner",
    "CircuitRuns",
    "CompiledMask",
    "CutRunner",
    "Mean",
    "MeanSums",
    "PairRunner",
    "Prepared",
    "PreparedInputs",
    "SoftPairs",
    "SoftRunner",
    "compile_plan",
    "get_ablation",
    "run_circuit",
    "run_model",
]
