"""Statistics on arrays: intervals, association, statistics that resample. No model, no torch.

Public names are imported on first use; the stub beside this file is the one list of them.
"""

from assay.core.registry import homes_of, loader


_HOMES = homes_of(__file__)
__all__ = sorted(_HOMES)
__getattr__ = loader(__name__, _HOMES)
