"""Sweeps: many jobs from one plan, on the processes of one machine or on a Ray cluster, kept in one store.

Names are resolved on first use: a worker sets its threads before anything loads PyTorch.
"""

import importlib
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from assay.sweep.cluster import RayWorkers
    from assay.sweep.jobs import Job
    from assay.sweep.limits import Limits
    from assay.sweep.local import LocalWorkers
    from assay.sweep.plan import Plan, parse_plan, read_plan
    from assay.sweep.progress import SweepProgress
    from assay.sweep.schedule import Executor, SweepOutcome, run_jobs

__all__ = [
    "Executor",
    "Job",
    "Limits",
    "LocalWorkers",
    "Plan",
    "RayWorkers",
    "SweepOutcome",
    "SweepProgress",
    "parse_plan",
    "read_plan",
    "run_jobs",
]

_HOMES = {
    "Executor": "schedule",
    "Job": "jobs",
    "Limits": "limits",
    "LocalWorkers": "local",
    "Plan": "plan",
    "RayWorkers": "cluster",
    "SweepOutcome": "schedule",
    "SweepProgress": "progress",
    "parse_plan": "plan",
    "read_plan": "plan",
    "run_jobs": "schedule",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'assay.sweep' has no attribute {name!r}")
    return getattr(importlib.import_module(f"assay.sweep.{_HOMES[name]}"), name)
