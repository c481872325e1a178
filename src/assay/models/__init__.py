"""Native transformers behind one interface."""

from assay.models.adapter import Block, Family, Fused, Model, Norm, Separate, Trace
from assay.models.decoders import FAMILIES, family_of, load_model


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
