"""Calibrations: sixteen gates that say whether a measurement can be trusted."""

from assay.calibration.gate import GATES, Gate, find_gate


__all__ = ["GATES", "Gate", "find_gate"]
