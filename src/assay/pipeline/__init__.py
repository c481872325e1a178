"""Jobs as pure functions of their records, resumed from a store: the audit, its stages, sweeps of many jobs.

Names are resolved on first use: a worker sets its threads before anything loads PyTorch.
"""

from assay.core.lazy import lazy_names


_HOMES, __getattr__ = lazy_names(__name__, __file__)
__all__ = sorted(_HOMES)
