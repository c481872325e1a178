"""ViT and DeiT of Hugging Face."""

from dataclasses import replace

from assay.models.adapter import FAMILIES
from assay.models.classifier_reading import ClassifierReading, read_by
from assay.models.family import Family, Separate


VIT = FAMILIES.add(
    "vit",
    Family(
        key="vit",
        serves="ViT",
        model_types=("vit",),
        backbone="vit",
        blocks="vit.layers",
        attention_norm="layernorm_before",
        mlp_norm="layernorm_after",
        final_norm="vit.layernorm",
        unembed="classifier",
        attention="attention",
        qkv=Separate(q="attention.q_proj", k="attention.k_proj", v="attention.v_proj"),
        out="attention.o_proj",
        mlp="mlp",
        activation="mlp.activation_fn",
        norm="layer",
        **read_by({"ViTForImageClassification": ClassifierReading(backbone="vit")}),
    ),
)
_DEIT = ClassifierReading(backbone="deit", prefix=lambda config: 2)
_TAUGHT = replace(
    _DEIT,
    heads=("cls_classifier", "distillation_classifier"),
    features=lambda module, hidden: (hidden[:, 0], hidden[:, 1]),
    pools=lambda config: True,
)
FAMILIES.add(
    "deit",
    replace(
        VIT,
        key="deit",
        serves="DeiT",
        model_types=("deit",),
        backbone="deit",
        blocks="deit.layers",
        final_norm="deit.layernorm",
        **read_by({"DeiTForImageClassificationWithTeacher": _TAUGHT, "DeiTForImageClassification": _DEIT}),
    ),
)
