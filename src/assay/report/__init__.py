"""Reports: one self-contained page about any result, a sweep, or two results."""

import importlib
from typing import Any


# Modules, those of this package by their last name, and the name in the module where it is another.
_HOMES = {
    "calibration_figure": "assay.analyses.calibration.page",
    "calibration_overview": "assay.analyses.calibration.page_summary:overview",
    "circuit_document": "circuit_page",
    "save_histogram": "assay.analyses.worst_case.plots",
    "save_report": "save",
    "sweep_frame": "sweep",
    "sweep_page": "sweep",
    "tail_verdict": "assay.analyses.worst_case.page_words",
    "verdict": "assay.pipeline.audit_words",
}

__all__ = [
    "calibration_figure",
    "calibration_overview",
    "circuit_document",
    "save_histogram",
    "save_report",
    "sweep_frame",
    "sweep_page",
    "tail_verdict",
    "verdict",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'assay.report' has no attribute {name!r}")
    module, _, own = _HOMES[name].partition(":")
    path = module if module.startswith("assay.") else f"assay.report.{module}"
    return getattr(importlib.import_module(path), own or name)
