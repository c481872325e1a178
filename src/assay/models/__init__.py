"""Native transformers behind one interface."""

from assay.models.adapter import Block, Family, Fused, Model, Norm, Separate
from assay.models.decoders import FAMILIES, family_of, load_model
from assay.models.tracing import Trace


__all__ = [
    "FAMILIES",
    "Block",
    "Family",
    "Fused",
    "Model",
    "Norm",
    "Separate",
    "Trace",
    "family_of",
    "load_model",
]
