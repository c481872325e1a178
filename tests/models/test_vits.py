"""Conformance of the vision transformers of Hugging Face transformers, on random small configurations."""

from typing import Any

import pytest
import transformers
from torch import nn
from vit_conformance import Conformance, randomise

from assay.models import FAMILIES


TOWER = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 8,
}
SMALL = {**TOWER, "num_labels": 5}
DINO = {**{name: value for name, value in SMALL.items() if name != "intermediate_size"}, "mlp_ratio": 2}
TEXT = {"num_hidden_layers": 1, "vocab_size": 61, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
CLIP = {"vision_config": TOWER, "text_config": TEXT, "num_labels": 5}

# Model type and what varies -> entries of its configuration. A new family is a line here.
CONFIGS: dict[str, dict[str, Any]] = {
    "vit": SMALL,
    "vit without biases": {**SMALL, "qkv_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
    "vit of oblong images": {**SMALL, "image_size": (16, 24), "patch_size": (8, 6)},
    "vit with dropout": {**SMALL, "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3},
    "deit": SMALL,
    "deit with a teacher": SMALL,
    "dinov2": DINO,
    "dinov2 with gated MLPs": {**DINO, "use_swiglu_ffn": True},
    "dinov2_with_registers": {**DINO, "num_register_tokens": 2},
    "clip": CLIP,
    "siglip": {**CLIP, "vision_config": {**TOWER, "vision_use_head": False}},
}


def build(name: str) -> nn.Module:
    """A classifier of one configuration."""
    config = transformers.AutoConfig.for_model(name.split()[0], **CONFIGS[name])
    if name.startswith("deit"):  # two classes read this configuration
        teacher = "WithTeacher" if name.endswith("teacher") else ""
        deit: nn.Module = getattr(transformers, f"DeiTForImageClassification{teacher}")(config)
        return deit
    module: nn.Module = transformers.AutoModelForImageClassification.from_config(config)
    return module


@pytest.fixture(params=CONFIGS, scope="module")
def module(request: pytest.FixtureRequest) -> nn.Module:
    return randomise(build(request.param))


class TestHuggingFace(Conformance):
    pass


def test_every_described_model_type_is_tried() -> None:
    served = {
        model_type
        for _, family in FAMILIES.items()
        if family.vision is not None
        for model_type in family.model_types
    }
    assert served == {name.split()[0] for name in CONFIGS}
