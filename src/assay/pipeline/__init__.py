"""Jobs as pure functions of their records, resumed from a store: the audit, its stages, sweeps of many jobs.

Names are resolved on first use: a worker sets its threads before anything loads PyTorch.
"""

import importlib
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from assay.pipeline.audit import Audit, load_audit
    from assay.pipeline.checks import check_options, check_writable
    from assay.pipeline.discovery import discover_stored
    from assay.pipeline.gates import StoredCalibration, calibrate_stored, usual_prompts
    from assay.pipeline.jobs import Job
    from assay.pipeline.plan import Limits, Plan, parse_plan, read_plan
    from assay.pipeline.prompts import DrawnPrompts, draw_prompts, prompts_to_measure
    from assay.pipeline.runs import measure_stored
    from assay.pipeline.sizing import find_circuit, runs_of
    from assay.pipeline.stage import Progress, Stage
    from assay.pipeline.sweep import SweepOutcome, expand, run_jobs
    from assay.pipeline.workers import LocalWorkers, RayWorkers, Workers
    from assay.pipeline.worst import (
        DEFAULT_PAIRS,
        DEFAULT_SIDE,
        PairCounts,
        StoredWorstCase,
        sizes,
        with_findings,
        worst_case_stored,
    )
    from assay.tasks.load import DEFAULT_N

_HOMES = {
    "assay.pipeline.audit": "Audit load_audit",
    "assay.pipeline.checks": "check_options check_writable",
    "assay.pipeline.discovery": "discover_stored",
    "assay.pipeline.gates": "StoredCalibration calibrate_stored usual_prompts",
    "assay.pipeline.jobs": "Job",
    "assay.pipeline.plan": "Limits Plan parse_plan read_plan",
    "assay.pipeline.prompts": "DrawnPrompts draw_prompts prompts_to_measure",
    "assay.pipeline.runs": "measure_stored",
    "assay.pipeline.sizing": "find_circuit runs_of",
    "assay.pipeline.stage": "Progress Stage",
    "assay.pipeline.sweep": "SweepOutcome expand run_jobs",
    "assay.pipeline.workers": "LocalWorkers RayWorkers Workers",
    "assay.pipeline.worst": "DEFAULT_PAIRS DEFAULT_SIDE PairCounts StoredWorstCase sizes "
    "with_findings worst_case_stored",
    "assay.tasks.load": "DEFAULT_N",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "DEFAULT_N",
    "DEFAULT_PAIRS",
    "DEFAULT_SIDE",
    "Audit",
    "DrawnPrompts",
    "Job",
    "Limits",
    "LocalWorkers",
    "PairCounts",
    "Plan",
    "Progress",
    "RayWorkers",
    "Stage",
    "StoredCalibration",
    "StoredWorstCase",
    "SweepOutcome",
    "Workers",
    "calibrate_stored",
    "check_options",
    "check_writable",
    "discover_stored",
    "draw_prompts",
    "expand",
    "find_circuit",
    "load_audit",
    "measure_stored",
    "parse_plan",
    "prompts_to_measure",
    "read_plan",
    "run_jobs",
    "runs_of",
    "sizes",
    "usual_prompts",
    "with_findings",
    "worst_case_stored",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'assay.pipeline' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
