"""Ablated execution: run a model with some edges kept and all others ablated."""

from assay.execution.ablation import (
    ABLATIONS as ABLATIONS,
    Ablation as Ablation,
    Mean as Mean,
    MeanSums as MeanSums,
    get_ablation as get_ablation,
)
from assay.execution.baseline import (
    Baseline as Baseline,
    BaselineShelf as BaselineShelf,
    Prepared as Prepared,
)
from assay.execution.forward import run_circuit as run_circuit, run_model as run_model
from assay.execution.pairs import PairRunner as PairRunner
from assay.execution.plan import CompiledMask as CompiledMask, compile_plan as compile_plan
from assay.execution.prepared import PreparedInputs as PreparedInputs
from assay.execution.runner import CircuitRunner as CircuitRunner
from assay.execution.runs import CircuitRuns as CircuitRuns
from assay.execution.soft import SoftPairs as SoftPairs, SoftRunner as SoftRunner
from assay.execution.suffix import SuffixRunner as SuffixRunner
