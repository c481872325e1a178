"""Descriptions of the families served, one file each; every module of this package is imported."""

import importlib
import pkgutil


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
