"""Reports: one self-contained page about any result, a sweep, or two results."""

from assay.core.lazy import lazy_names


_HOMES, __getattr__ = lazy_names(__name__, __file__)
__all__ = sorted(_HOMES)
