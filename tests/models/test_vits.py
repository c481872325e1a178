"""Conformance of the vision transformers of Hugging Face transformers, on random small configurations."""

from collections.abc import Callable

import pytest
import transformers
from torch import nn
from vit_conformance import Conformance, randomise

from assay.models import FAMILIES


SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 8,
    "num_labels": 5,
}

CONFIGS: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)),
    "vit without biases": lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(**SMALL, qkv_bias=False, hidden_act="gelu_new", layer_norm_eps=1e-3)
    ),
    "vit of oblong images": lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(**{**SMALL, "image_size": (16, 24), "patch_size": (8, 6)})
    ),
    "vit with dropout": lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(**SMALL, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
    ),
    "deit": lambda: transformers.DeiTForImageClassification(transformers.DeiTConfig(**SMALL)),
    "deit with a teacher": lambda: transformers.DeiTForImageClassificationWithTeacher(
        transformers.DeiTConfig(**SMALL)
    ),
}


@pytest.fixture(params=CONFIGS, scope="module")
def module(request: pytest.FixtureRequest) -> nn.Module:
    return randomise(CONFIGS[request.param]())


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
