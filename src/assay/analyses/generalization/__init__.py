"""What a circuit says about generalization: before deployment, and after it. Numbers in, numbers out.

Public names are imported on first use; the stub beside this file is the one list of them.
"""

from assay.analyses.generalization import baselines as baselines  # a module, not a name of one
from assay.core.registry import lazy_names


__getattr__, __all__ = lazy_names(__name__, __file__)
