"""Circuits in trained transformers: discover them, run them, measure how far they can be trusted.

    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=200, seed=0)
    scores = assay.discover(model, task, "eap-ig-inputs")
    circuit = scores.top(200).connected()
    assay.measure(circuit, model, task, "faithfulness").interval()

Public names are imported on first use, so `import assay` and the command line start at once. The stub beside
this file, which type checkers read, is the one list of them: `from MODULE import NAME as NAME`.
"""

from assay.core.registry import lazy_names


__version__ = "0.1.0"

__getattr__, __all__ = lazy_names(__name__, __file__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
