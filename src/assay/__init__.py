"""Circuits in trained transformers: discover them, run them, measure how far they can be trusted.

    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=200, seed=0)
    scores = assay.discover(model, task, "eap-ig-inputs")
    circuit = scores.top(200).connected()
    assay.measure(circuit, model, task, "faithfulness").interval()

Public names are imported on first use, so `import assay` and the command line start at once. The stub beside
this file, which type checkers read, is the one list of them: `from MODULE import NAME as NAME`.
"""

import ast
import importlib
from pathlib import Path


__version__ = "0.1.0"

_HOMES = {
    str(alias.asname): (str(statement.module), alias.name)
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        names = ", ".join(__all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {names}")
    module, own = _HOMES[name]
    return getattr(importlib.import_module(module), own)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
