"""Jobs as pure functions of their records, resumed from a store: the audit, its stages, sweeps of many jobs.

Names are resolved on first use: a worker sets its threads before anything loads PyTorch.
"""

import importlib
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from assay.pipeline.audit_result import Audit as Audit, load_audit as load_audit
    from assay.pipeline.auditing import AuditOptions as AuditOptions, audit as audit
    from assay.pipeline.checks import check_options as check_options, check_writable as check_writable
    from assay.pipeline.cluster import RayWorkers as RayWorkers
    from assay.pipeline.cost import Forecast as Forecast, Workload as Workload, cost_of as cost_of
    from assay.pipeline.discovery import discover_stored as discover_stored, plan_discovery as plan_discovery
    from assay.pipeline.gates import (
        StoredCalibration as StoredCalibration,
        calibrate_stored as calibrate_stored,
        plan_calibration as plan_calibration,
        usual_prompts as usual_prompts,
    )
    from assay.pipeline.jobs import Job as Job
    from assay.pipeline.limits import Limits as Limits
    from assay.pipeline.local import LocalWorkers as LocalWorkers
    from assay.pipeline.plan import Plan as Plan
    from assay.pipeline.plan_file import parse_plan as parse_plan, read_plan as read_plan
    from assay.pipeline.progress import SweepProgress as SweepProgress
    from assay.pipeline.prompts import (
        DrawnPrompts as DrawnPrompts,
        draw_prompts as draw_prompts,
        prompts_to_measure as prompts_to_measure,
    )
    from assay.pipeline.runs import measure_stored as measure_stored, plan_measurement as plan_measurement
    from assay.pipeline.schedule import (
        Executor as Executor,
        SweepOutcome as SweepOutcome,
        run_jobs as run_jobs,
    )
    from assay.pipeline.sizing import (
        find_circuit as find_circuit,
        plan_circuit as plan_circuit,
        runs_of as runs_of,
    )
    from assay.pipeline.stage import Progress as Progress, Stage as Stage
    from assay.pipeline.worst import (
        DEFAULT_PAIRS as DEFAULT_PAIRS,
        DEFAULT_SIDE as DEFAULT_SIDE,
        PairCounts as PairCounts,
        StoredWorstCase as StoredWorstCase,
        plan_attack as plan_attack,
        plan_worst_case as plan_worst_case,
        sizes as sizes,
        with_findings as with_findings,
        worst_case_stored as worst_case_stored,
    )
    from assay.tasks.load import DEFAULT_N as DEFAULT_N

_HOMES = {
    "assay.pipeline.audit_result": "Audit load_audit",
    "assay.pipeline.auditing": "AuditOptions audit",
    "assay.pipeline.checks": "check_options check_writable",
    "assay.pipeline.cluster": "RayWorkers",
    "assay.pipeline.cost": "Forecast Workload cost_of",
    "assay.pipeline.discovery": "discover_stored plan_discovery",
    "assay.pipeline.gates": "StoredCalibration calibrate_stored plan_calibration usual_prompts",
    "assay.pipeline.jobs": "Job",
    "assay.pipeline.limits": "Limits",
    "assay.pipeline.local": "LocalWorkers",
    "assay.pipeline.plan": "Plan",
    "assay.pipeline.plan_file": "parse_plan read_plan",
    "assay.pipeline.progress": "SweepProgress",
    "assay.pipeline.prompts": "DrawnPrompts draw_prompts prompts_to_measure",
    "assay.pipeline.runs": "measure_stored plan_measurement",
    "assay.pipeline.schedule": "Executor SweepOutcome run_jobs",
    "assay.pipeline.sizing": "find_circuit plan_circuit runs_of",
    "assay.pipeline.stage": "Progress Stage",
    "assay.pipeline.worst": "DEFAULT_PAIRS DEFAULT_SIDE PairCounts StoredWorstCase plan_attack "
    "plan_worst_case sizes with_findings worst_case_stored",
    "assay.tasks.load": "DEFAULT_N",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'assay.pipeline' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
