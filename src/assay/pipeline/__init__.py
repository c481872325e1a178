"""Jobs as pure functions of their records, resumed from a store: the audit, its stages, sweeps of many jobs.

Names are resolved on first use: a worker sets its threads before anything loads PyTorch.
"""

import importlib
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from assay.pipeline.cluster import RayWorkers
    from assay.pipeline.gates import StoredCalibration, calibrate_stored, plan_calibration, usual_prompts
    from assay.pipeline.job import Audit, audit, load_audit, plan_audit, plan_discovery, plan_measurement
    from assay.pipeline.jobs import Job
    from assay.pipeline.limits import Limits
    from assay.pipeline.local import LocalWorkers
    from assay.pipeline.plan import Plan, parse_plan, read_plan
    from assay.pipeline.progress import SweepProgress
    from assay.pipeline.prompts import Draws, draw_prompts, prompts_to_measure
    from assay.pipeline.schedule import Executor, SweepOutcome, run_jobs
    from assay.pipeline.stages import (
        Progress,
        Stage,
        check_options,
        check_writable,
        discover_stored,
        find_circuit,
        measure_stored,
        runs_of,
    )
    from assay.pipeline.worst import (
        DEFAULT_PAIRS,
        DEFAULT_SIDE,
        Sizes,
        StoredWorstCase,
        plan_worst_case,
        sizes,
        with_findings,
        worst_case_stored,
    )
    from assay.tasks.load import DEFAULT_N

_HOMES = {
    "DEFAULT_N": "assay.tasks.load",
    "DEFAULT_PAIRS": "worst",
    "DEFAULT_SIDE": "worst",
    "Audit": "job",
    "Draws": "prompts",
    "Executor": "schedule",
    "Job": "jobs",
    "Limits": "limits",
    "LocalWorkers": "local",
    "Plan": "plan",
    "Progress": "stages",
    "RayWorkers": "cluster",
    "Sizes": "worst",
    "Stage": "stages",
    "StoredCalibration": "gates",
    "StoredWorstCase": "worst",
    "SweepOutcome": "schedule",
    "SweepProgress": "progress",
    "audit": "job",
    "calibrate_stored": "gates",
    "check_options": "stages",
    "check_writable": "stages",
    "discover_stored": "stages",
    "draw_prompts": "prompts",
    "find_circuit": "stages",
    "load_audit": "job",
    "measure_stored": "stages",
    "parse_plan": "plan",
    "plan_audit": "job",
    "plan_calibration": "gates",
    "plan_discovery": "job",
    "plan_measurement": "job",
    "plan_worst_case": "worst",
    "prompts_to_measure": "prompts",
    "read_plan": "plan",
    "run_jobs": "schedule",
    "runs_of": "stages",
    "sizes": "worst",
    "usual_prompts": "gates",
    "with_findings": "worst",
    "worst_case_stored": "worst",
}

__all__ = [
    "DEFAULT_N",
    "DEFAULT_PAIRS",
    "DEFAULT_SIDE",
    "Audit",
    "Draws",
    "Executor",
    "Job",
    "Limits",
    "LocalWorkers",
    "Plan",
    "Progress",
    "RayWorkers",
    "Sizes",
    "Stage",
    "StoredCalibration",
    "StoredWorstCase",
    "SweepOutcome",
    "SweepProgress",
    "audit",
    "calibrate_stored",
    "check_options",
    "check_writable",
    "discover_stored",
    "draw_prompts",
    "find_circuit",
    "load_audit",
    "measure_stored",
    "parse_plan",
    "plan_audit",
    "plan_calibration",
    "plan_discovery",
    "plan_measurement",
    "plan_worst_case",
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
    if name not in _HOMES:
        raise AttributeError(f"module 'assay.pipeline' has no attribute {name!r}")
    home = _HOMES[name]
    return getattr(importlib.import_module(home if "." in home else f"assay.pipeline.{home}"), name)
