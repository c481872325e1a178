"""Tasks: pairs of clean and corrupted prompts drawn from seeded grammars or read from files, and images.

Public names are imported on first use; the stub beside this file is the one list of them.
"""

from assay.core.registry import lazy_names


__getattr__, __all__ = lazy_names(__name__, __file__)
