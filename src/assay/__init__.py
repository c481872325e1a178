"""Circuits in trained transformers: discover them, run them, measure how far they can be trusted.

    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=200, seed=0)
    scores = assay.discover(model, task, "eap-ig-inputs")
    circuit = scores.top(200).connected()
    assay.measure(circuit, model, task, "faithfulness").interval()

Public names are imported on first use, so `import assay` and the command line start at once.
"""

import builtins
import importlib
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from assay.analyses.benchmark import benchmark_discovery, measure_truth
    from assay.analyses.calibration import calibrate, calibrate_all
    from assay.analyses.generalization import (
        Monitor,
        baselines,
        calibrate_threshold,
        circuit_shift,
        dependency_depth_bias,
        dependency_matrix,
        finetune,
        motif,
        universal_motif,
    )
    from assay.analyses.generalization import rank_models as rank
    from assay.analyses.subsets import (
        CorrectnessData,
        SelectionPath,
        Subset,
        load_subset,
        oodselect,
        selection_consistency,
        selection_path,
    )
    from assay.analyses.worst_case import WorstCase, worst_case
    from assay.catalogue import list_entries as list  # noqa: A004 - the name users know
    from assay.circuits import Circuit, EdgeScores, certify, load_circuit, load_scores
    from assay.core.errors import AssayError
    from assay.core.measurement import Measurement
    from assay.core.verdict import Interval, Verdict
    from assay.discovery.edges import consensus, discover, discover_positions, output_scores
    from assay.discovery.heads import HeadScores, discover_heads
    from assay.execution import CircuitRuns, run_circuit, run_model
    from assay.graph import Graph, build_graph
    from assay.metrics import compare, faithfulness_curve, measure
    from assay.models import Model, load_model
    from assay.models.planted import planted_model
    from assay.page.notebook import ProgressDisplay
    from assay.pipeline.audit import audit
    from assay.report import save_report
    from assay.stats import percentile_confidence, percentile_sample_size
    from assay.store import Store
    from assay.tasks import ImageStream, ImageTask, PairTask, load_images, load_task, stream_images
    from assay.zoo import Zoo

__version__ = "0.1.0"

__all__ = [
    "AssayError",
    "Circuit",
    "CircuitRuns",
    "CorrectnessData",
    "EdgeScores",
    "Graph",
    "HeadScores",
    "ImageStream",
    "ImageTask",
    "Interval",
    "Measurement",
    "Model",
    "Monitor",
    "PairTask",
    "ProgressDisplay",
    "SelectionPath",
    "Store",
    "Subset",
    "Verdict",
    "WorstCase",
    "Zoo",
    "audit",
    "baselines",
    "benchmark_discovery",
    "build_graph",
    "calibrate",
    "calibrate_all",
    "calibrate_threshold",
    "certify",
    "circuit_shift",
    "compare",
    "consensus",
    "dependency_depth_bias",
    "dependency_matrix",
    "discover",
    "discover_heads",
    "discover_positions",
    "faithfulness_curve",
    "finetune",
    "list",
    "load_circuit",
    "load_images",
    "load_model",
    "load_scores",
    "load_subset",
    "load_task",
    "measure",
    "measure_truth",
    "motif",
    "oodselect",
    "output_scores",
    "percentile_confidence",
    "percentile_sample_size",
    "planted_model",
    "rank",
    "run_circuit",
    "run_model",
    "save_report",
    "selection_consistency",
    "selection_path",
    "stream_images",
    "universal_motif",
    "worst_case",
]

# The names of each module; `own:name` where the module calls it otherwise. The exports test keeps this,
# `__all__` and the imports above in step.
_NAMES = {
    "assay.analyses.benchmark": "benchmark_discovery measure_truth",
    "assay.analyses.calibration": "calibrate calibrate_all",
    "assay.analyses.generalization": "Monitor baselines calibrate_threshold circuit_shift "
    "dependency_depth_bias dependency_matrix finetune motif rank_models:rank universal_motif",
    "assay.analyses.subsets": "CorrectnessData SelectionPath Subset load_subset oodselect "
    "selection_consistency selection_path",
    "assay.analyses.worst_case": "WorstCase worst_case",
    "assay.catalogue": "list_entries:list",
    "assay.circuits": "Circuit EdgeScores certify load_circuit load_scores",
    "assay.core.errors": "AssayError",
    "assay.core.measurement": "Measurement",
    "assay.core.verdict": "Interval Verdict",
    "assay.discovery.edges": "consensus discover discover_positions output_scores",
    "assay.discovery.heads": "HeadScores discover_heads",
    "assay.execution": "CircuitRuns run_circuit run_model",
    "assay.graph": "Graph build_graph",
    "assay.metrics": "compare faithfulness_curve measure",
    "assay.models": "Model load_model",
    "assay.models.planted": "planted_model",
    "assay.page.notebook": "ProgressDisplay",
    "assay.pipeline.audit": "audit",
    "assay.report": "save_report",
    "assay.stats": "percentile_confidence percentile_sample_size",
    "assay.store": "Store",
    "assay.tasks": "ImageStream ImageTask PairTask load_images load_task stream_images",
    "assay.zoo": "Zoo",
}
_HOMES = {
    entry.rpartition(":")[2]: (module, entry.partition(":")[0])
    for module, entries in _NAMES.items()
    for entry in entries.split()
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'assay' has no attribute {name!r}; public names: {', '.join(__all__)}")
    module, attribute = _HOMES[name]
    value: object = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> builtins.list[str]:
    return sorted({*globals(), *__all__})
