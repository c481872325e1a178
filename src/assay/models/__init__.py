"""Native transformers behind one interface."""

from assay.models.block import Block, Norm
from assay.models.family import FAMILIES, Family, Sizes, Vision
from assay.models.loading import family_of, load_model
from assay.models.model import Model, prompted
from assay.models.tracing import Trace
from assay.models.transformer_lens import convert_attention_only


__all__ = [
    "FAMILIES",
    "Block",
    "Family",
    "Model",
    "Norm",
    "Sizes",
    "Trace",
    "Vision",
    "convert_attention_only",
    "family_of",
    "load_model",
    "prompted",
]
