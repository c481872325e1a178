"""Calibrations: sixteen gates that say whether a measurement can be trusted.

Every public class and function of the modules below can be imported from here.
"""

from importlib import import_module

from assay.analyses.calibration.gate import GATES, Found, Gate, Quantity, Undetermined, find_gate


_MODULES = (
    "ablations agreement battery certified discriminant distribution inputs invariance multiplicity "
    "reliability resampling sensitivity stability validity"
)

__all__ = ["GATES", "Found", "Gate", "Quantity", "Undetermined", "find_gate"]
for _module in _MODULES.split():
    _home = import_module(f"{__name__}.{_module}")
    for _name, _value in vars(_home).items():
        if getattr(_value, "__module__", None) == _home.__name__ and not _name.startswith("_"):
            globals()[_name] = _value
            __all__ += [_name]
