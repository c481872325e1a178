"""Jobs: pure functions of their records, resumed from the store; above all the audit."""

from assay.runner.gates import (
    StoredCalibration,
    calibrate_stored,
    plan_calibration,
    usual_prompts,
)
from assay.runner.job import Audit, audit, load_audit, plan, plan_discovery, plan_measurement
from assay.runner.prompts import Draws, draw_prompts, prompts_to_measure
from assay.runner.stages import (
    Progress,
    Stage,
    check_options,
    check_writable,
    discover_stored,
    find_circuit,
    measure_stored,
    runs_of,
)
from assay.runner.worst import (
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


__all__ = [
    "DEFAULT_N",
    "DEFAULT_PAIRS",
    "DEFAULT_SIDE",
    "Audit",
    "Draws",
    "Progress",
    "Sizes",
    "Stage",
    "StoredCalibration",
    "StoredWorstCase",
    "audit",
    "calibrate_stored",
    "check_options",
    "check_writable",
    "discover_stored",
    "draw_prompts",
    "find_circuit",
    "load_audit",
    "measure_stored",
    "plan",
    "plan_calibration",
    "plan_discovery",
    "plan_measurement",
    "plan_worst_case",
    "prompts_to_measure",
    "runs_of",
    "sizes",
    "usual_prompts",
    "with_findings",
    "worst_case_stored",
]
