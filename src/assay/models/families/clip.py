"""The vision towers of CLIP and SigLIP, as classifiers of Hugging Face."""

from dataclasses import replace

from assay.models.adapter import FAMILIES
from assay.models.classifier_reading import ClassifierReading, read_by
from assay.models.families.vit import VIT
from assay.models.family import Separate


_CLIP = ClassifierReading(
    backbone="vision_model",
    features=lambda module, hidden: (hidden[:, 1:].mean(1),),
    pools=lambda config: True,
)
_SIGLIP = replace(_CLIP, features=lambda module, hidden: (hidden.mean(1),), prefix=lambda config: 0)

CLIP = FAMILIES.add(
    "clip",
    replace(
        VIT,
        key="clip",
        serves="CLIP, vision tower",
        model_types=("clip",),
        backbone="vision_model",
        blocks="vision_model.encoder.layers",
        attention_norm="layer_norm1",
        mlp_norm="layer_norm2",
        final_norm=None,
        attention="self_attn",
        qkv=Separate(q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj"),
        out="self_attn.out_proj",
        scaling=lambda attention: attention.scale,
        **read_by({"CLIPForImageClassification": _CLIP}),
    ),
)
FAMILIES.add(
    "siglip",
    replace(
        CLIP,
        key="siglip",
        serves="SigLIP, vision tower",
        model_types=("siglip",),
        final_norm="vision_model.post_layernorm",
        **read_by({"SiglipForImageClassification": _SIGLIP}),
    ),
)
