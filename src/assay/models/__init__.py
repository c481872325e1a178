"""Native transformers behind one interface."""

from assay.models.adapter import FAMILIES as FAMILIES, Model as Model
from assay.models.block import Block as Block, Norm as Norm
from assay.models.family import (
    Family as Family,
    Fused as Fused,
    Separate as Separate,
    Sizes as Sizes,
    Vision as Vision,
)
from assay.models.loading import load_model as load_model
from assay.models.prompting import prompted as prompted
from assay.models.recognition import family_of as family_of
from assay.models.tracing import Trace as Trace
from assay.models.transformer_lens import convert_attention_only as convert_attention_only
