"""DINOv2 of Hugging Face, with registers and without."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from assay.models.adapter import FAMILIES
from assay.models.classifier_reading import ClassifierReading, read_by
from assay.models.families.vit import VIT
from assay.models.family import Config


def _prefix(config: Config) -> int:
    return 1 + int(getattr(config, "num_register_tokens", 0))


def _features(module: Any, hidden: Tensor) -> tuple[Tensor, ...]:
    """CLS beside the mean of the patches; registers are not read."""
    return (torch.cat([hidden[:, 0], hidden[:, _prefix(module.config) :].mean(1)], 1),)


for _backbone, _name in (("dinov2", "Dinov2"), ("dinov2_with_registers", "Dinov2WithRegisters")):
    _reading = ClassifierReading(
        backbone=_backbone, features=_features, pools=lambda config: True, prefix=_prefix
    )
    _key = _backbone.replace("_", "-")
    FAMILIES.add(
        _key,
        replace(
            VIT,
            key=_key,
            serves="DINOv2" + " with registers" * _backbone.endswith("registers"),
            model_types=(_backbone,),
            backbone=_backbone,
            blocks=f"{_backbone}.encoder.layer",
            attention_norm="norm1",
            mlp_norm="norm2",
            final_norm=f"{_backbone}.layernorm",
            attention_scale="layer_scale1",
            mlp_scale="layer_scale2",
            variant=lambda module: {"activation": None} if module.config.use_swiglu_ffn else {},
            **read_by({f"{_name}ForImageClassification": _reading}),
        ),
    )
