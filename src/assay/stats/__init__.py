"""Statistics on arrays: intervals, association, statistics that resample. No model, no torch.

Every public class and function of the modules can be imported from here.
"""

from importlib import import_module


_MODULES = "agreement certificates estimate intervals relative_error resampled significance summary"

__all__ = []
for _module in _MODULES.split():
    _home = import_module(f"{__name__}.{_module}")
    for _name, _value in vars(_home).items():
        if getattr(_value, "__module__", None) == _home.__name__ and not _name.startswith("_"):
            globals()[_name] = _value
            __all__ += [_name]
